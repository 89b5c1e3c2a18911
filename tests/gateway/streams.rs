//! Streams through the whole gateway, on real sockets: what fails over, what is said to the client, what nobody is blamed for.
//! Names like `bl_047` are the cases of public failures of similar systems that a test settles.

use std::time::{Duration, Instant};

use crate::support::{Got, Served, Setup, request};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use omniroute::cli::fake::{Answer, FakeUpstream, FaultKind, Match, Outcome, Reply, Rule, Script};
use omniroute::snapshot::Strategy;
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";
const RESPONSES: &str = "/v1/responses";
const MESSAGES: &str = "/v1/messages";

/// A vendor `one` that answers as told, and a good vendor `two` behind it.
struct Pair {
    one: FakeUpstream,
    two: FakeUpstream,
    served: Served,
}

async fn fake(text: &str, answer: Option<Answer>) -> FakeUpstream {
    let rules = answer.map(|a| Rule::new("told", Match::default(), a)).into_iter().collect();
    FakeUpstream::start("127.0.0.1:0", Script { text: Some(text.into()), rules, ..Script::default() }).await.unwrap()
}

impl Pair {
    async fn new(answer: Answer) -> Self {
        Self::with(answer, None).await
    }

    async fn with(answer: Answer, second: Option<Answer>) -> Self {
        let (one, two) = (fake("from one", Some(answer)).await, fake("from two", second).await);
        let served = Setup::new()
            .provider("one", &one.base_url())
            .provider("two", &two.base_url())
            .connection("one", "a", 1)
            .connection("two", "b", 1)
            .combo("assistant", Strategy::Priority, &["one/m1", "two/m2"])
            .change(|s| {
                for provider in &mut s.providers {
                    provider.timeouts.stream_idle_ms = 400;
                    provider.timeouts.response_start_ms = Some(600);
                }
            })
            .start();
        Self { one, two, served }
    }

    async fn stream(&self, path: &str) -> Got {
        self.served.post(path, &body(true)).await
    }

    async fn state(&self) -> Value {
        self.served.connection("a").await
    }

    /// What a good stream of `two` looks like when it is asked directly.
    async fn good(&self, path: &str) -> String {
        let text = self.stream(path).await.text();
        assert!(text.contains("two"), "{text}");
        text
    }
}

fn body(stream: bool) -> Value {
    json!({"model": "assistant", "stream": stream, "max_tokens": 100, "messages": [{"role": "user", "content": "hi"}], "input": "hi"})
}

/// The last frame of a stream.
fn last(text: &str) -> &str {
    text.trim_end().rsplit("\n\n").next().unwrap()
}

/// Every dialect with every way to break, all at once.
async fn matrix<T: Copy>(rows: &[T], kinds: &[FaultKind], run: impl AsyncFn(T, FaultKind)) {
    let run = &run;
    let all = rows.iter().flat_map(|row| kinds.iter().map(move |kind| run(*row, *kind)));
    futures::future::join_all(all).await;
}

#[tokio::test]
async fn bl_047_before_content_a_broken_stream_fails_over_in_every_dialect() {
    use FaultKind::{Close, Cut, Eof, ErrorFrame, Ping, Reset, Stall};
    matrix(&[CHAT, RESPONSES, MESSAGES], &[Cut, Eof, Reset, Stall, Ping, ErrorFrame, Close], async |path, kind| {
        let pair = Pair::new(Answer::fault(kind, 1)).await;
        let got = pair.stream(path).await;
        assert_eq!(got.status, 200, "{path} {kind:?}: {}", got.text());
        assert!(got.text().contains("two") && !got.text().contains("one "), "nothing of the first vendor arrives: {}", got.text());
        assert_eq!((pair.one.requests().len(), pair.two.requests().len()), (1, 1), "{path} {kind:?}");
    })
    .await;
}

#[tokio::test]
async fn bl_047_bl_048_after_content_a_broken_stream_says_so_in_every_dialect() {
    use FaultKind::{Cut, Eof, Ping, Reset, Stall};
    let rows = [(CHAT, 2, "data: {\"error\":"), (RESPONSES, 6, "event: response.failed\n"), (MESSAGES, 4, "event: error\n")];
    matrix(&rows, &[Cut, Eof, Reset, Stall, Ping], async |(path, after, start), kind| {
        let pair = Pair::new(Answer::fault(kind, after)).await;
        let got = pair.stream(path).await;
        let text = got.text();
        assert_eq!(got.status, 200, "{text}");
        assert!(last(&text).starts_with(start), "{path} {kind:?}: {text}");
        assert!(!text.contains("[DONE]") && !text.contains("message_stop") && !text.contains("response.completed"), "{text}");
        assert!(!text.contains("\"finish_reason\":\"stop\"") && !text.contains("two"), "nothing is invented or replayed: {text}");
        assert_eq!(pair.two.requests().len(), 0, "{path} {kind:?}");
        let state = pair.state().await;
        assert_eq!(state["state"], "Cooling", "a broken stream is a failure: {path} {kind:?} {state}");
    })
    .await;
}

#[tokio::test]
async fn bl_047_a_malformed_frame_is_relayed_and_the_stream_goes_on() {
    let pair = Pair::new(Answer::fault(FaultKind::Malformed, 2)).await;
    let text = pair.stream(CHAT).await.text();
    assert!(text.contains("data: {\"malformed\n\n") && text.ends_with("data: [DONE]\n\n"), "{text}");
    assert_eq!(pair.state().await["state"], "Active");
}

#[tokio::test]
async fn bl_050_bl_012_an_error_behind_a_comment_fails_over_and_nothing_of_it_arrives() {
    let error = "data: {\"error\":{\"code\":503,\"message\":\"upstream unavailable\"}}\n\n";
    for frames in [vec![": ping\n\n", error], vec![": ping\n\n"], vec![]] {
        let pair = Pair::new(Answer::frames(frames)).await;
        let text = pair.stream(CHAT).await.text();
        assert!(text.contains("two") && !text.contains("ping") && !text.contains("unavailable"), "{text}");
    }
}

/// The same failure means the same, whether it comes as a status or as the first frame of a 200.
#[tokio::test]
async fn bl_008_one_classifier_for_statuses_and_frames() {
    let error =
        json!({"error": {"code": "insufficient_quota", "type": "insufficient_quota", "message": "You exceeded your current quota."}});
    let mut states = Vec::new();
    for answer in
        [Answer::status(429).body(error.clone()), Answer::frames([format!("data: {error}\n\n")]), Answer::default().body(error.clone())]
    {
        let pair = Pair::new(answer).await;
        assert!(pair.stream(CHAT).await.text().contains("two"));
        let state = pair.state().await;
        states.push((state["state"].clone(), state["reason"].clone()));
    }
    assert!(states.iter().all(|s| *s == states[0]), "{states:?}");
    assert_ne!(states[0].0, "Active");
}

#[tokio::test]
async fn bl_052_lifecycle_frames_are_held_so_that_a_failure_has_its_status() {
    let start = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"m\",\"usage\":{}}}\n\n";
    let error = "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"Overloaded\"}}\n\n";
    let pair = Pair::with(Answer::frames([start, error]), Some(Answer::status(503))).await;
    let got = pair.stream(MESSAGES).await;
    assert!(got.status >= 500, "{}", got.text());
    assert_eq!((got.header("content-type"), &got.json()["type"]), (Some("application/json"), &json!("error")), "{}", got.text());
}

#[tokio::test]
async fn bl_055_an_empty_answer_fails_over_and_one_that_says_why_does_not() {
    let role = "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\"}}]}\n\n";
    let end = |reason: &str| format!("data: {{\"choices\":[{{\"delta\":{{}},\"finish_reason\":\"{reason}\"}}]}}\n\n");
    let done = "data: [DONE]\n\n";
    let empty = Pair::new(Answer::frames([role.to_owned(), end("stop"), done.to_owned()])).await;
    assert!(empty.stream(CHAT).await.text().contains("two"));
    for reason in ["length", "content_filter"] {
        let pair = Pair::new(Answer::frames([role.to_owned(), end(reason), done.to_owned()])).await;
        assert_eq!(pair.stream(CHAT).await.text(), format!("{role}{}{done}", end(reason)));
    }
    for delta in [r#"{"tool_calls":[{"index":0,"id":"c","function":{"name":"f","arguments":""}}]}"#, r#"{"refusal":"no"}"#] {
        let content = format!("data: {{\"choices\":[{{\"delta\":{delta}}}]}}\n\n");
        let frames = [role.to_owned(), content, end("stop"), done.to_owned()];
        let pair = Pair::new(Answer::frames(frames.clone())).await;
        assert_eq!(pair.stream(CHAT).await.text(), frames.concat());
    }
}

#[tokio::test]
async fn bl_057_an_answer_without_choices_is_a_bad_upstream_response() {
    let empty = Answer::default().body(json!({"id": "x", "choices": []}));
    let pair = Pair::new(empty.clone()).await;
    let got = pair.served.post(CHAT, &body(false)).await;
    assert_eq!(got.content(), "from two");
    let pair = Pair::with(empty.clone(), Some(empty)).await;
    let got = pair.served.post(CHAT, &body(false)).await;
    assert_eq!(got.status, 502, "{}", got.text());
    assert!(!got.text().contains("\"content\""), "no assistant text is invented: {}", got.text());
}

/// BL-056, BL-058: what a provider streams arrives byte for byte, usage chunks included; nothing of ours is in it.
#[tokio::test]
async fn bl_056_bl_058_good_streams_arrive_byte_for_byte() {
    let usage = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":5}}\n\n";
    let frames = [
        "data: {\"choices\":[{\"delta\":{\"content\":\"hi\"}}]}\r\n\r\n",
        "id: 7\ndata: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n",
        usage,
        "data: [DONE]\n\n",
    ];
    let pair = Pair::new(Answer::frames(frames)).await;
    let got = pair.stream(CHAT).await;
    assert_eq!(got.text(), frames.concat());
    assert_eq!(got.header("content-type"), Some("text/event-stream; charset=utf-8"));
    for path in [CHAT, RESPONSES, MESSAGES] {
        let pair = Pair::new(Answer::status(500)).await;
        let text = pair.good(path).await;
        assert!(text.lines().all(|l| l.is_empty() || l.starts_with("data: ") || l.starts_with("event: ")), "{text}");
    }
}

#[tokio::test]
async fn bl_102_client_headers_do_not_leak() {
    let pair = Pair::new(Answer::default()).await;
    for path in [CHAT, RESPONSES, MESSAGES] {
        let mut wanted = request("POST", path, "client");
        for (name, value) in [
            ("cookie", "a=b"),
            ("x-forwarded-for", "1.1.1.1"),
            ("x-session-id", "s"),
            ("x-codex-session-id", "s"),
            ("x-omniroute-session", "s"),
            ("x-omniroute-anything", "s"),
            ("x-internal", "s"),
            ("x-api-key", "client"),
        ] {
            wanted = wanted.header(name, value);
        }
        let got = pair.served.send(wanted.body(Full::new(Bytes::from(body(false).to_string()))).unwrap()).await;
        assert_eq!(got.status, 200, "{}", got.text());
    }
    for seen in pair.one.requests() {
        assert_eq!(seen.key, "a");
        for (name, value) in &seen.headers {
            assert!(!value.contains("client") && !name.starts_with("x-") && name != "cookie", "{name}: {value}");
        }
    }
}

/// A request whose answer is read piece by piece.
async fn open(served: &Served, path: &str) -> (hyper::client::conn::http1::SendRequest<Full<Bytes>>, http::Response<Incoming>) {
    let stream = tokio::net::TcpStream::connect(served.running.listen_addr()).await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let wanted = request("POST", path, "client").header("host", "gateway").body(Full::new(Bytes::from(body(true).to_string()))).unwrap();
    let response = sender.send_request(wanted).await.unwrap();
    (sender, response)
}

#[tokio::test]
async fn content_arrives_while_the_provider_is_still_busy() {
    let pair = Pair::new(Answer::default().interval(Duration::from_millis(150))).await;
    let (_sender, mut response) = open(&pair.served, CHAT).await;
    let first = response.body_mut().frame().await.unwrap().unwrap();
    assert!(first.into_data().is_ok_and(|d| !d.is_empty()));
    assert_eq!(pair.one.requests()[0].outcome, Outcome::Running, "the rest is still to come");
}

/// From the client's leaving to the end of the provider's connection, in the best of a few tries: other work on this machine is not ours.
#[tokio::test]
async fn a_client_that_leaves_frees_the_provider_within_100_ms_and_blames_nobody() {
    for (answer, committed) in [(Answer::fault(FaultKind::Stall, 3), true), (Answer::fault(FaultKind::Hang, 0), false)] {
        let pair = Pair::new(answer).await;
        let mut best = Duration::MAX;
        for tries in 1..=5 {
            let left = leave(&pair, committed, tries).await;
            assert!(pair.one.wait(|r| r.iter().all(|r| r.outcome == Outcome::Aborted)).await);
            best = best.min(left.elapsed());
            if best < Duration::from_millis(100) {
                break;
            }
        }
        assert!(best < Duration::from_millis(100), "{best:?}");
        let released = async { while pair.state().await["inFlight"] != 0 {} };
        tokio::time::timeout(Duration::from_secs(5), released).await.expect("the permit comes back");
        assert_eq!((&pair.state().await["state"], pair.two.requests().len()), (&json!("Active"), 0));
    }
}

/// Asks, waits for the provider and leaves; answers when.
async fn leave(pair: &Pair, committed: bool, tries: usize) -> Instant {
    if committed {
        let (sender, mut response) = open(&pair.served, CHAT).await;
        response.body_mut().frame().await.unwrap().unwrap();
        drop((sender, response));
    } else {
        tokio::select! {
            _ = open(&pair.served, CHAT) => panic!("answered"),
            arrived = pair.one.wait(|r| r.len() == tries) => assert!(arrived),
        }
    }
    Instant::now()
}

/// Reasoning that lasts longer than any deadline, but is never silent for as long.
#[tokio::test]
async fn reasoning_is_progress_and_commits() {
    let reply = Reply { reasoning: Some("let me think about it for a while".into()), ..Reply::default() };
    let pair = Pair::new(Answer { reply: Some(reply), interval: Some(Duration::from_millis(350)), ..Answer::default() }).await;
    let mut patient = pair.served.gateway.config().unwrap().snapshot.as_ref().clone();
    for provider in &mut patient.providers {
        (provider.timeouts.stream_idle_ms, provider.timeouts.response_start_ms) = (2_000, Some(2_000));
    }
    pair.served.gateway.load(patient, Vec::new()).unwrap();
    let texts = futures::future::join_all([CHAT, RESPONSES, MESSAGES].map(|path| pair.stream(path))).await;
    for text in texts.iter().map(Got::text) {
        assert!(text.contains("think") && text.contains("one") && !text.contains("error\":{"), "{text}");
    }
    assert_eq!(pair.two.requests().len(), 0);
}

/// A provider that ignores `stream: true` is made to stream; what is no answer fails over.
#[tokio::test]
async fn a_whole_answer_in_place_of_a_stream_becomes_one() {
    let good =
        json!({"id": "x", "choices": [{"index": 0, "message": {"role": "assistant", "content": "from one"}, "finish_reason": "stop"}]});
    let got = Pair::new(Answer::default().body(good)).await.stream(CHAT).await;
    assert_eq!(got.header("content-type"), Some("text/event-stream; charset=utf-8"));
    let text = got.text();
    assert!(text.contains("\"delta\":{\"content\":\"from one\"") && text.ends_with("data: [DONE]\n\n"), "{text}");
    for bad in [json!({"id": "x"}), json!({"choices": [{"message": {"content": ""}, "finish_reason": "stop"}]})] {
        let got = Pair::new(Answer::default().body(bad)).await.stream(CHAT).await;
        assert!(got.text().contains("two"), "{}", got.text());
    }
}
