//! Held back, broken, continued: with a controlled clock and scripted answers.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use futures::channel::mpsc;
use http::HeaderMap;
use http_body::Body;
use http_body_util::BodyExt;
use serde_json::Value;

use super::tests::{DONE, Feed, HI, Outcomes, ROLE, STOP, hooks, policy, read};
use super::*;
use crate::gateway::upstream::BodyError;
use Dialect::{ChatCompletions as Chat, Messages, Responses};

type Feeder = mpsc::UnboundedSender<Result<Bytes, BodyError>>;

fn said(text: &str) -> String {
    format!("data: {}\n\n", serde_json::json!({"id": "c2", "choices": [{"index": 0, "delta": {"content": text}}]}))
}

fn feed(text: &str) -> (Feeder, Feed) {
    let (feeder, receiver) = mpsc::unbounded();
    feeder.unbounded_send(Ok(Bytes::copy_from_slice(text.as_bytes()))).expect("open");
    (feeder, Feed(receiver))
}

/// A body that ends politely behind `text`.
fn ended(text: &str) -> Feed {
    feed(text).1
}

/// Answers requests for the rest from a list; remembers what was asked and what became of it.
#[derive(Default)]
struct Provider {
    answers: Mutex<VecDeque<Result<Feed, ResumeError>>>,
    asked: Mutex<Vec<String>>,
    outcomes: Mutex<Vec<Recovered>>,
    slow: bool,
}

impl Resume<Feed> for Provider {
    fn resume(self: Arc<Self>, text: String) -> Answer<Feed> {
        self.asked.lock().expect("lock").push(text);
        let answer = self.answers.lock().expect("lock").pop_front().unwrap_or_else(|| Err(ResumeError::Broken("no more".to_owned())));
        let slow = self.slow;
        Box::pin(async move {
            if slow {
                std::future::pending::<()>().await;
            }
            Ok((HeaderMap::new(), answer?))
        })
    }

    fn settled(&self, outcome: Recovered) {
        self.outcomes.lock().expect("lock").push(outcome);
    }
}

struct Run {
    provider: Arc<Provider>,
    outcomes: Outcomes,
    body: Box<StreamBody<Feed>>,
}

impl Run {
    async fn new(first: Feed, policy: StreamPolicy, provider: Provider, buffers: Buffers) -> Self {
        let (provider, outcomes) = (Arc::new(provider), Outcomes::default());
        let slot = Arc::clone(&outcomes);
        let on_end = Box::new(move |outcome| slot.lock().expect("lock").push(outcome));
        let resume: Arc<dyn Resume<Feed>> = Arc::clone(&provider) as _;
        let hooks = Hooks { on_end, buffers, resume: Some(resume) };
        let Opened::Committed(body) = open_stream(first, &HeaderMap::new(), policy, hooks).await else { panic!("not committed") };
        Self { provider, outcomes, body }
    }

    async fn of(first: &str, answers: impl IntoIterator<Item = Result<Feed, ResumeError>>) -> Self {
        let provider = Provider { answers: Mutex::new(answers.into_iter().collect()), ..Provider::default() };
        Self::new(ended(first), policy(Chat), provider, Buffers::default()).await
    }

    /// All that the client gets, and how it ended.
    async fn whole(&mut self) -> (String, StreamEnd) {
        let bytes = (&mut *self.body).collect().await.expect("infallible").to_bytes();
        let mut outcomes = self.outcomes.lock().expect("lock");
        assert_eq!(outcomes.len(), 1, "reported exactly once");
        (String::from_utf8(bytes.to_vec()).expect("text"), outcomes.remove(0).end)
    }

    fn asked(&self) -> Vec<String> {
        self.provider.asked.lock().expect("lock").clone()
    }

    fn recovered(&self) -> Vec<Recovered> {
        self.provider.outcomes.lock().expect("lock").clone()
    }
}

/// The text of a chat stream as an SDK puts it together, and its finish reason.
fn understood(stream: &str) -> (String, Option<String>) {
    let (mut text, mut reason) = (String::new(), None);
    for data in stream.split("\n\n").filter_map(|frame| frame.strip_prefix("data: ")).filter(|data| *data != "[DONE]") {
        let chunk: Value = serde_json::from_str(data).unwrap_or_else(|e| panic!("{e}: {data}"));
        let choice = &chunk["choices"][0];
        text += choice["delta"]["content"].as_str().unwrap_or_default();
        reason = choice["finish_reason"].as_str().map(str::to_owned).or(reason);
    }
    (text, reason)
}

#[tokio::test(start_paused = true)]
async fn content_is_held_back_for_750_ms_from_the_first_bytes_on() {
    let holding = StreamPolicy { hold: RECOVERY_HOLD, ..policy(Chat) };
    let (feeder, body) = feed(ROLE);
    let headers = HeaderMap::new();
    let mut opening = Box::pin(open_stream(body, &headers, holding, hooks(Box::new(|_| ()))));
    let begin = Instant::now();
    tokio::select! {
        _ = &mut opening => panic!("committed"),
        () = tokio::time::sleep(Duration::from_millis(500)) => {}
    }
    feeder.unbounded_send(Ok(HI.into())).expect("open");
    let Opened::Committed(mut body) = opening.await else { panic!("not committed") };
    assert_eq!(begin.elapsed().as_millis(), 750);
    assert_eq!((read(&mut body).await, read(&mut body).await), (ROLE.to_owned(), HI.to_owned()));
    // What was held back was content: nothing waits for it any more.
    tokio::select! {
        _ = body.frame() => panic!("ended"),
        () = tokio::time::sleep(Duration::from_secs(29)) => {}
    }
}

#[tokio::test(start_paused = true)]
async fn a_hold_ends_with_the_stream_and_with_64_kib() {
    let holding = StreamPolicy { hold: RECOVERY_HOLD, ..policy(Chat) };
    let begin = Instant::now();
    let big = said(&"x".repeat(70_000));
    for text in [format!("{ROLE}{HI}{STOP}{DONE}"), big] {
        let (_feeder, body) = feed(&text);
        assert!(matches!(open_stream(body, &HeaderMap::new(), holding, hooks(Box::new(|_| ()))).await, Opened::Committed(_)));
    }
    assert_eq!(begin.elapsed(), Duration::ZERO);
    // Nothing was given to the client: whatever goes wrong goes back to the engine.
    let error = "data: {\"error\":{\"message\":\"x\"}}\n\n";
    for (text, truncated) in [(format!("{ROLE}{HI}"), true), (format!("{ROLE}{HI}{error}"), false)] {
        match open_stream(ended(&text), &HeaderMap::new(), holding, hooks(Box::new(|_| ()))).await {
            Opened::Failed(failure) => assert_eq!(failure.is_truncation(), truncated, "{failure:?}"),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn without_room_for_what_is_held_the_stream_is_committed() {
    let holding = StreamPolicy { hold: RECOVERY_HOLD, ..policy(Chat) };
    let buffers = Buffers::default();
    buffers.limit(10);
    let (_feeder, body) = feed(HI);
    let opened = open_stream(body, &HeaderMap::new(), holding, Hooks { buffers: buffers.clone(), ..hooks(Box::new(|_| ())) }).await;
    assert!(matches!(opened, Opened::Committed(_)));
    buffers.limit(1_000);
    let (_feeder, body) = feed(ROLE);
    let headers = HeaderMap::new();
    let mut opening = Box::pin(open_stream(body, &headers, holding, Hooks { buffers: buffers.clone(), ..hooks(Box::new(|_| ())) }));
    assert!(futures::poll!(&mut opening).is_pending());
    assert!(buffers.reserve(1_000).is_none(), "what is held counts");
    drop(opening);
    assert!(buffers.reserve(1_000).is_some());
}

#[tokio::test(start_paused = true)]
async fn a_broken_text_goes_on_where_it_stopped() {
    let first = format!("{ROLE}{}{}", said("The quick "), said("brown"));
    let rest = format!("{ROLE}{}{STOP}{DONE}", said("brown fox"));
    let mut run = Run::of(&first, [Ok(ended(&rest))]).await;
    let (text, end) = run.whole().await;
    assert_eq!(end, StreamEnd::Complete(None));
    assert!(text.starts_with(&first) && text.ends_with(DONE) && text.matches("[DONE]").count() == 1, "{text}");
    assert_eq!(understood(&text), ("The quick brown fox".to_owned(), Some("stop".to_owned())));
    assert_eq!((run.asked(), run.recovered()), (vec!["The quick brown".to_owned()], vec![Recovered::Yes]));
}

#[tokio::test(start_paused = true)]
async fn the_regular_end_is_made_where_the_rest_has_none_of_its_own() {
    for (rest, reason) in [(format!("{}{STOP}", said(" b")), "stop"), (format!("{}{DONE}", said(" b")), "stop")] {
        let mut run = Run::of(&said("a"), [Ok(ended(&rest))]).await;
        let (text, end) = run.whole().await;
        assert_eq!((understood(&text), end), (("a b".to_owned(), Some(reason.to_owned())), StreamEnd::Complete(None)), "{text}");
        assert!(text.ends_with(DONE) && text.matches("[DONE]").count() == 1, "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_cut_within_a_frame_loses_and_repeats_nothing() {
    let (whole, half) = (said("one"), said(", two, three"));
    for cut in 0..half.len() {
        let first = format!("{whole}{}", &half[..cut]);
        let mut run = Run::of(&first, [Ok(ended(&format!("{}{STOP}{DONE}", said(", two"))))]).await;
        let (text, _) = run.whole().await;
        assert_eq!((understood(&text).0.as_str(), run.asked()), ("one, two", vec!["one".to_owned()]), "cut at {cut}: {text}");
    }
}

#[tokio::test(start_paused = true)]
async fn it_is_tried_four_times_and_then_said_to_be_broken() {
    let broken = || Err(ResumeError::Broken("reset".to_owned()));
    let half = "data: {\"choi";
    let mut run = Run::of(&said("one"), [Ok(ended(&said(" two"))), broken(), Ok(ended("")), Ok(ended(half))]).await;
    let (text, end) = run.whole().await;
    let (good, error) = text.trim_end().rsplit_once("\n\n").expect("frames");
    assert_eq!(understood(&format!("{good}\n\n")).0, "one two");
    assert!(error.contains("stream_interrupted") && !text.contains("[DONE]") && !text.contains("\"stop\""), "{text}");
    assert!(matches!(end, StreamEnd::Interrupted(_)));
    assert_eq!(run.asked(), ["one", "one two", "one two", "one two"]);
    assert_eq!(run.recovered(), [Recovered::No; 4]);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_not_asked_again() {
    let mut run = Run::of(&said("one"), [Err(ResumeError::Refused("status 400".to_owned()))]).await;
    let (text, end) = run.whole().await;
    assert!(text.contains("stream_interrupted") && matches!(end, StreamEnd::Interrupted(_)), "{text}");
    assert_eq!((run.asked().len(), run.recovered()), (1, vec![Recovered::Refused]));
}

#[tokio::test(start_paused = true)]
async fn only_plain_text_is_continued() {
    let tool = "data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0}]}}]}\n\n";
    let second = "data: {\"choices\":[{\"index\":1,\"delta\":{\"content\":\"x\"}}]}\n\n";
    let thinking = "data: {\"choices\":[{\"delta\":{\"reasoning_content\":\"hm\"}}]}\n\n";
    let error = "data: {\"error\":{\"message\":\"x\"}}\n\n";
    for first in [format!("{HI}{tool}"), format!("{HI}{second}"), thinking.to_owned(), format!("{HI}{error}")] {
        let mut run = Run::of(&first, []).await;
        let (text, end) = run.whole().await;
        assert!(text.contains("\"error\"") && matches!(end, StreamEnd::Interrupted(_)), "{text}");
        assert_eq!(run.asked().len(), 0, "{first}");
    }
    for (dialect, first) in [
        (
            Messages,
            "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"type\":\"text_delta\",\"text\":\"a\"}}\n\n",
        ),
        (Responses, "data: {\"type\":\"response.output_text.delta\",\"sequence_number\":1,\"delta\":\"x\"}\n\n"),
    ] {
        let mut run = Run::new(ended(first), policy(dialect), Provider::default(), Buffers::default()).await;
        run.whole().await;
        assert_eq!(run.asked().len(), 0, "{dialect:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_text_that_is_too_long_to_be_kept_is_not_continued() {
    let piece = said(&"word ".repeat(10_000));
    let mut run = Run::of(&piece.repeat(6), []).await;
    let (text, _) = run.whole().await;
    assert!(text.starts_with(&piece.repeat(6)) && text.contains("stream_interrupted"));
    let buffers = Buffers::default();
    buffers.limit(20_000);
    let mut tight = Run::new(ended(&piece), policy(Chat), Provider::default(), buffers).await;
    assert!(tight.whole().await.0.starts_with(&piece));
    assert_eq!((run.asked().len(), tight.asked().len()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn silence_and_a_trickle_are_reasons_to_go_on() {
    let slow = ThroughputWatchdog { enabled: true, warmup_ms: 0, window_ms: 10_000, min_bytes_per_second: 4, min_useful_bytes: 1 };
    let quiet = ThroughputWatchdog::default();
    for (throughput, seconds) in [(quiet, 30), (slow, 10)] {
        let (_feeder, first) = feed(&said("one"));
        let answers = Mutex::new([Ok(ended(&format!("{}{STOP}{DONE}", said(" two"))))].into());
        let provider = Provider { answers, ..Provider::default() };
        let begin = Instant::now();
        let mut run = Run::new(first, StreamPolicy { throughput, ..policy(Chat) }, provider, Buffers::default()).await;
        let (text, end) = run.whole().await;
        assert_eq!((understood(&text).0.as_str(), end), ("one two", StreamEnd::Complete(None)), "{text}");
        assert_eq!(begin.elapsed().as_secs(), seconds);
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_for_the_rest_that_is_not_answered_is_given_up() {
    let provider = Provider { slow: true, ..Provider::default() };
    let begin = Instant::now();
    let mut run = Run::new(ended(&said("one")), policy(Chat), provider, Buffers::default()).await;
    let (text, _) = run.whole().await;
    assert!(text.contains("stream_interrupted"), "{text}");
    assert_eq!((run.asked().len(), begin.elapsed().as_secs()), (4, 4 * 30));
}

#[tokio::test(start_paused = true)]
async fn a_request_for_the_rest_that_is_on_its_way_does_not_trickle() {
    let throughput = ThroughputWatchdog { enabled: true, warmup_ms: 0, window_ms: 10_000, min_bytes_per_second: 4, min_useful_bytes: 1 };
    let provider = Provider { slow: true, ..Provider::default() };
    let begin = Instant::now();
    let mut run = Run::new(ended(&said("one")), StreamPolicy { throughput, ..policy(Chat) }, provider, Buffers::default()).await;
    run.whole().await;
    assert_eq!((run.asked().len(), begin.elapsed().as_secs()), (4, 4 * 30));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_ends_it() {
    let mut run = Run::new(ended(&said("one")), policy(Chat), Provider { slow: true, ..Provider::default() }, Buffers::default()).await;
    read(&mut run.body).await;
    tokio::select! {
        _ = run.body.frame() => panic!("nothing can come"),
        () = tokio::time::sleep(Duration::from_secs(1)) => {}
    }
    assert!(!run.body.is_end_stream());
    let Run { provider, outcomes, body } = run;
    drop(body);
    assert_eq!(*provider.outcomes.lock().expect("lock"), [Recovered::Aborted]);
    assert!(matches!(outcomes.lock().expect("lock")[..], [StreamOutcome { end: StreamEnd::Aborted, .. }]));
}
