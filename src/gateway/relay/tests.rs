use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use futures::StreamExt;
use futures::channel::mpsc;
use http::HeaderMap;
use http_body::Body;
use http_body::Frame;
use http_body_util::BodyExt;

use super::*;
use crate::gateway::upstream::BodyError;
use Dialect::{ChatCompletions as Chat, Messages, Responses};

/// A provider's body, fed by the test.
#[derive(Debug)]
pub(super) struct Feed(pub mpsc::UnboundedReceiver<Result<Bytes, BodyError>>);

impl Body for Feed {
    type Data = Bytes;
    type Error = BodyError;
    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        self.0.poll_next_unpin(cx).map(|next| next.map(|r| r.map(Frame::data)))
    }
}

/// Without a limit on memory and without a way to continue.
pub(super) fn hooks(on_end: OnEnd) -> Hooks<Feed> {
    Hooks { on_end, buffers: Buffers::default(), resume: None }
}

pub(super) type Outcomes = Arc<Mutex<Vec<StreamOutcome>>>;

struct Stream {
    feed: mpsc::UnboundedSender<Result<Bytes, BodyError>>,
    outcomes: Outcomes,
}

impl Stream {
    fn say(&self, text: &str) {
        self.feed.unbounded_send(Ok(Bytes::copy_from_slice(text.as_bytes()))).expect("body is read");
    }

    fn end(&self) -> StreamEnd {
        let outcomes = self.outcomes.lock().expect("lock");
        assert_eq!(outcomes.len(), 1, "reported exactly once");
        outcomes[0].end.clone()
    }
}

pub(super) fn policy(dialect: Dialect) -> StreamPolicy {
    let timeouts = Timeouts { stream_idle_ms: 30_000, ..Timeouts::default() };
    StreamPolicy::new(dialect, Instant::now(), &timeouts, &RequestHead::default())
}

async fn open(policy: StreamPolicy, start: &str) -> (Stream, Opened<Feed>) {
    let (feed, receiver) = mpsc::unbounded();
    let outcomes = Outcomes::default();
    let stream = Stream { feed, outcomes: Arc::clone(&outcomes) };
    stream.say(start);
    let on_end = Box::new(move |o| outcomes.lock().expect("lock").push(o));
    let opened = open_stream(Feed(receiver), &HeaderMap::new(), policy, hooks(on_end)).await;
    (stream, opened)
}

async fn committed(policy: StreamPolicy, start: &str) -> (Stream, Box<StreamBody<Feed>>) {
    match open(policy, start).await {
        (stream, Opened::Committed(body)) => (stream, body),
        (_, other) => panic!("{other:?}"),
    }
}

async fn whole(mut start: &str, policy: StreamPolicy) -> Result<(String, StreamOutcome), StreamFailure> {
    let (feed, receiver) = mpsc::unbounded();
    let outcomes = Outcomes::default();
    let slot = Arc::clone(&outcomes);
    while !start.is_empty() {
        let (piece, rest) = start.split_at(start.ceil_char_boundary(7));
        feed.unbounded_send(Ok(Bytes::copy_from_slice(piece.as_bytes()))).expect("open");
        start = rest;
    }
    drop(feed);
    match open_stream(Feed(receiver), &HeaderMap::new(), policy, hooks(Box::new(move |o| slot.lock().expect("lock").push(o)))).await {
        Opened::Failed(failure) => Err(failure),
        Opened::Unchecked(body) => panic!("{body:?}"),
        Opened::Committed(body) => {
            let bytes = body.collect().await.expect("infallible").to_bytes();
            let outcome = outcomes.lock().expect("lock").pop().expect("reported");
            Ok((String::from_utf8(bytes.to_vec()).expect("text"), outcome))
        }
    }
}

pub(super) async fn read(body: &mut StreamBody<Feed>) -> String {
    let data = body.frame().await.expect("more").expect("infallible").into_data().expect("data");
    String::from_utf8(data.to_vec()).expect("text")
}

pub(super) const ROLE: &str = "data: {\"id\":\"c1\",\"choices\":[{\"delta\":{\"role\":\"assistant\"}}]}\n\n";
pub(super) const HI: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"hi\"}}]}\n\n";
const EMPTY: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"\"}}]}\n\n";
pub(super) const STOP: &str = "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
pub(super) const DONE: &str = "data: [DONE]\n\n";

#[tokio::test(start_paused = true)]
async fn a_good_stream_arrives_byte_for_byte() {
    let text =
        format!(": ping\n\n{ROLE}{HI}data: garbage\n\n{HI}{STOP}data: {{\"choices\":[],\"usage\":{{\"completion_tokens\":2}}}}\n\n{DONE}");
    let (got, outcome) = whole(&text, policy(Chat)).await.expect("committed");
    assert_eq!(got, text);
    assert_eq!(outcome.end, StreamEnd::Complete(None));
    assert_eq!((outcome.facts.malformed, outcome.facts.usage.map(|u| u.output)), (1, Some(2)));
}

#[tokio::test(start_paused = true)]
async fn what_comes_before_the_content_is_held_and_then_given_at_once() {
    let (feed, receiver) = mpsc::unbounded();
    let headers = HeaderMap::new();
    let mut opening = Box::pin(open_stream(Feed(receiver), &headers, policy(Chat), hooks(Box::new(|_| ()))));
    for text in [ROLE, EMPTY, ": ping\n\n"] {
        feed.unbounded_send(Ok(text.into())).expect("open");
        tokio::select! {
            biased;
            _ = &mut opening => panic!("committed by {text:?}"),
            () = tokio::time::sleep(Duration::from_secs(1)) => {}
        }
    }
    feed.unbounded_send(Ok(HI.into())).expect("open");
    let Opened::Committed(mut body) = opening.await else { panic!("not committed") };
    let mut got = String::new();
    while got.len() < (ROLE.len() + EMPTY.len() + 8 + HI.len()) {
        got += &read(&mut body).await;
    }
    assert_eq!(got, format!("{ROLE}{EMPTY}: ping\n\n{HI}"));
    feed.unbounded_send(Ok("data: {\"ha".into())).expect("open");
    assert_eq!(read(&mut body).await, "data: {\"ha", "half a frame is relayed at once");
}

#[tokio::test(start_paused = true)]
async fn errors_and_ends_before_content_go_back_to_the_engine() {
    let error = "{\"error\":{\"code\":503,\"message\":\"upstream unavailable\"}}";
    let start = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"m\"}}\n\n";
    let overloaded = "{\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\"}}";
    for (dialect, text, transport, body) in [
        (Chat, format!(": ping\n\ndata: {error}\n\n"), None, error),
        (Chat, format!("{ROLE}data: {error}\n\n{DONE}"), None, error),
        (Messages, format!("{start}event: error\ndata: {overloaded}\n\n"), None, overloaded),
        (
            Responses,
            "data: {\"type\":\"response.failed\",\"response\":{}}\n\n".into(),
            None,
            "{\"type\":\"response.failed\",\"response\":{}}",
        ),
        (Chat, String::new(), Some(TransportError::StreamInterrupted), ""),
        (Chat, ROLE.into(), Some(TransportError::StreamInterrupted), ""),
        (Chat, format!("{ROLE}{STOP}{DONE}"), Some(TransportError::Quality), ""),
        (Chat, DONE.into(), Some(TransportError::Quality), ""),
        (Messages, format!("{start}data: {{\"type\":\"message_stop\"}}\n\n"), Some(TransportError::Quality), ""),
    ] {
        let failure = whole(&text, policy(dialect)).await.expect_err("failed");
        assert_eq!((failure.transport, &failure.body[..]), (transport, body.as_bytes()), "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_empty_end_is_an_answer_where_it_says_why() {
    let length = STOP.replace("stop", "length");
    assert!(whole(&format!("{ROLE}{length}{DONE}"), policy(Chat)).await.is_ok());
    let lenient = StreamPolicy { empty_stop_is_valid: true, ..policy(Chat) };
    let (got, outcome) = whole(&format!("{ROLE}{STOP}{DONE}"), lenient).await.expect("valid");
    assert_eq!((got, outcome.end), (format!("{ROLE}{STOP}{DONE}"), StreamEnd::Complete(None)));
}

#[tokio::test(start_paused = true)]
async fn a_broken_stream_ends_with_the_error_frame_of_its_dialect() {
    let created = "data: {\"type\":\"response.created\",\"sequence_number\":0,\"response\":{\"id\":\"resp_7\"}}\n\n";
    let delta = "data: {\"type\":\"response.output_text.delta\",\"sequence_number\":1,\"delta\":\"x\"}\n\n";
    let text =
        "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"type\":\"text_delta\",\"text\":\"a\"}}\n\n";
    for (dialect, sent, last) in [
        (Chat, format!("{ROLE}{HI}"), "data: {\"error\":"),
        (Messages, text.to_owned(), "event: error\ndata: {"),
        (Responses, format!("{created}{delta}"), "event: response.failed\ndata: {"),
    ] {
        let (got, outcome) = whole(&sent, policy(dialect)).await.expect("committed");
        let frame = got.strip_prefix(sent.as_str()).expect("what was sent comes first");
        assert!(frame.starts_with(last) && frame.ends_with("}\n\n") && !frame.contains("[DONE]"), "{frame}");
        if dialect == Responses {
            assert!(frame.contains("\"sequence_number\":2") && frame.contains("\"resp_7\""), "{frame}");
        }
        assert!(matches!(outcome.end, StreamEnd::Interrupted(i) if i.code == "stream_interrupted"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_finish_reason_without_done_is_an_end() {
    let (got, outcome) = whole(&format!("{HI}{STOP}"), policy(Chat)).await.expect("committed");
    assert_eq!((got, outcome.end), (format!("{HI}{STOP}"), StreamEnd::Complete(None)));
}

#[tokio::test(start_paused = true)]
async fn the_providers_own_error_frame_is_the_last_one() {
    let error = "data: {\"error\":{\"message\":\"x\"}}\n\n";
    let (got, outcome) = whole(&format!("{HI}{error}{HI}{DONE}"), policy(Chat)).await.expect("committed");
    assert_eq!(got, format!("{HI}{error}"));
    assert!(
        matches!(outcome.end, StreamEnd::Interrupted(i) if i.code == "upstream_error" && &i.frame[..] == b"{\"error\":{\"message\":\"x\"}}")
    );
}

#[tokio::test(start_paused = true)]
async fn no_content_within_the_readiness_budget_fails_over() {
    let started = Instant::now();
    let (_stream, opened) = open(policy(Chat), ROLE).await;
    let Opened::Failed(failure) = opened else { panic!("committed") };
    assert_eq!((failure.transport, failure.code), (Some(TransportError::StreamNotReady), "STREAM_READINESS_TIMEOUT"));
    assert_eq!(started.elapsed().as_secs(), 80);
}

#[tokio::test(start_paused = true)]
async fn pings_and_empty_text_are_no_progress() {
    let (stream, mut body) = committed(policy(Chat), HI).await;
    assert_eq!(read(&mut body).await, HI);
    let started = Instant::now();
    let pings = async {
        loop {
            tokio::time::sleep(Duration::from_secs(7)).await;
            stream.say(": ping\n\n");
            stream.say(EMPTY);
        }
    };
    let mut got = String::new();
    tokio::select! {
        () = pings => {}
        () = async { while !body.is_end_stream() { got += &read(&mut body).await; } } => {}
    }
    assert_eq!(started.elapsed().as_secs(), 30);
    assert!(got.contains("stream_idle_timeout"), "{got}");
    assert!(matches!(stream.end(), StreamEnd::Interrupted(i) if i.code == "stream_idle_timeout"));
}

#[tokio::test(start_paused = true)]
async fn reasoning_without_content_runs_into_the_content_stall() {
    let thinking = "data: {\"choices\":[{\"delta\":{\"reasoning_content\":\"\"}}]}\n\n";
    let stall = StreamPolicy { content_stall: Duration::from_secs(10), ..policy(Chat) };
    let (stream, mut body) = committed(stall, thinking).await;
    for _ in 0..3 {
        read(&mut body).await;
        tokio::time::sleep(Duration::from_secs(9)).await;
        stream.say(thinking);
    }
    read(&mut body).await;
    let started = Instant::now();
    assert!(read(&mut body).await.contains("stream_content_stall"));
    assert_eq!(started.elapsed().as_secs(), 10);
    // Content ends that deadline for good.
    let (stream, mut body) = committed(stall, HI).await;
    read(&mut body).await;
    tokio::select! {
        _ = body.frame() => panic!("ended"),
        () = tokio::time::sleep(Duration::from_secs(20)) => {}
    }
    stream.say(DONE);
    assert_eq!(read(&mut body).await, DONE);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_read_is_not_the_providers_fault() {
    let (stream, mut body) = committed(policy(Chat), HI).await;
    read(&mut body).await;
    tokio::time::sleep(Duration::from_secs(300)).await;
    tokio::select! {
        _ = body.frame() => panic!("ended"),
        () = tokio::time::sleep(Duration::from_secs(20)) => {}
    }
    drop(body);
    assert_eq!(stream.end(), StreamEnd::Aborted);
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_stays_open_behind_its_end_is_closed() {
    let (stream, mut body) = committed(policy(Chat), &format!("{HI}{DONE}")).await;
    let started = Instant::now();
    while body.frame().await.is_some() {}
    assert_eq!((started.elapsed().as_secs(), stream.end()), (1, StreamEnd::Complete(None)));
}

#[tokio::test(start_paused = true)]
async fn heartbeats_go_between_events_only() {
    let beating = StreamPolicy { heartbeat: Duration::from_secs(5), ..policy(Chat) };
    let (stream, mut body) = committed(beating, HI).await;
    read(&mut body).await;
    assert_eq!(read(&mut body).await, ": keep-alive\n\n");
    stream.say("data: {\"choi");
    assert_eq!(read(&mut body).await, "data: {\"choi");
    let mut rest = String::new();
    while !body.is_end_stream() {
        rest += &read(&mut body).await;
    }
    assert!(rest.starts_with("\":null}\n\ndata: {\"error\":"), "the half event is closed, nothing goes in between: {rest}");
}

#[tokio::test(start_paused = true)]
async fn text_that_trickles_is_ended_and_reasoning_is_not() {
    let rules = ThroughputWatchdog { enabled: true, warmup_ms: 10_000, window_ms: 10_000, min_bytes_per_second: 4, min_useful_bytes: 1 };
    let slow = StreamPolicy { throughput: rules, ..policy(Chat) };
    let run = |frame: &'static str| async move {
        let (stream, mut body) = committed(slow, HI).await;
        let started = Instant::now();
        let drip = async {
            loop {
                tokio::time::sleep(Duration::from_secs(3)).await;
                stream.say(frame);
            }
        };
        tokio::select! {
            () = drip => None,
            () = async { while !body.is_end_stream() { body.frame().await; } } => Some(started.elapsed().as_secs()),
            () = tokio::time::sleep(Duration::from_secs(120)) => None,
        }
    };
    assert_eq!(run(HI).await, Some(20));
    assert_eq!(run("data: {\"choices\":[{\"delta\":{\"reasoning_content\":\"x\"}}]}\n\n").await, None);
}

#[tokio::test(start_paused = true)]
async fn compressed_streams_are_read() {
    use std::io::Write;
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    gzip.write_all(format!("{ROLE}{HI}{DONE}").as_bytes()).expect("gzip");
    let bytes = gzip.finish().expect("gzip");
    let (feed, receiver) = mpsc::unbounded();
    for byte in bytes.chunks(5) {
        feed.unbounded_send(Ok(Bytes::copy_from_slice(byte))).expect("open");
    }
    drop(feed);
    let headers = HeaderMap::from_iter([(http::header::CONTENT_ENCODING, http::HeaderValue::from_static("gzip"))]);
    let Opened::Committed(body) = open_stream(Feed(receiver), &headers, policy(Chat), hooks(Box::new(|_| ()))).await else {
        panic!("failed")
    };
    assert_eq!(body.collect().await.expect("infallible").to_bytes(), format!("{ROLE}{HI}{DONE}"));
}

#[test]
fn larger_requests_get_more_time() {
    let head = |items, chars, tools, effort| RequestHead { items, chars, tools, effort, ..RequestHead::default() };
    for (head, seconds) in [
        (head(1, 10, 0, None), 80),
        (head(151, 10, 0, None), 100),
        (head(401, 250_001, 15, None), 160),
        (head(401, 750_001, 15, Some(Effort::High)), 180),
        (head(1, 10, 15, Some(Effort::Low)), 95),
    ] {
        assert_eq!(readiness_budget(&head).as_secs(), seconds);
    }
}
