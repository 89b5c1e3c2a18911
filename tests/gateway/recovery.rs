//! Streams that break and come back (`streamRecovery`), through the whole gateway.

use std::time::{Duration, Instant};

use crate::support::{Got, Served, Setup, request};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use omniroute::cli::fake::{Answer, FakeUpstream, FaultKind, Match, Outcome, Reply, Rule, Script};
use omniroute::snapshot::{Snapshot, Strategy};
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";
const RESPONSES: &str = "/v1/responses";
const MESSAGES: &str = "/v1/messages";

/// A vendor `one` that gives these answers in turn, the last one for ever, and a good vendor `two` behind it.
struct World {
    one: FakeUpstream,
    two: FakeUpstream,
    served: Served,
}

impl World {
    async fn new(answers: impl IntoIterator<Item = Answer>, change: impl FnOnce(&mut Snapshot)) -> Self {
        let mut rule = Rule::new("told", Match::default(), Answer::default());
        rule.answers = answers.into_iter().collect();
        let script = Script { text: Some("one two three four".into()), rules: vec![rule], ..Script::default() };
        let one = FakeUpstream::start("127.0.0.1:0", script).await.unwrap();
        let script = Script { text: Some("elsewhere".into()), ..Script::default() };
        let two = FakeUpstream::start("127.0.0.1:0", script).await.unwrap();
        let served = Setup::new()
            .provider("one", &one.base_url())
            .provider("two", &two.base_url())
            .connection("one", "a", 1)
            .connection("two", "b", 1)
            .combo("assistant", Strategy::Priority, &["one/m1", "two/m2"])
            .change(change)
            .start();
        Self { one, two, served }
    }

    async fn stream(&self, path: &str) -> Got {
        self.served.post(path, &body()).await
    }

    async fn counted(&self, metric: &str) -> Option<String> {
        let text = self.served.manage("GET", "/metrics", "").await.text();
        text.lines().find_map(|line| Some(line.strip_prefix(metric)?.trim().to_owned()))
    }

    async fn recoveries(&self, kind: &str, outcome: &str) -> Option<String> {
        self.counted(&format!("omniroute_stream_recoveries_total{{kind=\"{kind}\",outcome=\"{outcome}\"}}")).await
    }

    /// How often the vendors were asked.
    fn asked(&self) -> (usize, usize) {
        (self.one.requests().len(), self.two.requests().len())
    }

    async fn state(&self) -> Value {
        self.served.connection("a").await["state"].clone()
    }
}

fn reopening(snapshot: &mut Snapshot) {
    snapshot.settings.stream_recovery.enabled = true;
}

fn continuing(snapshot: &mut Snapshot) {
    snapshot.settings.stream_recovery.continue_mid_stream = true;
}

fn body() -> Value {
    json!({"model": "assistant", "stream": true, "max_tokens": 100, "messages": [{"role": "user", "content": "hi"}], "input": "hi"})
}

fn good() -> Answer {
    Answer::default()
}

/// Good frames, then nothing for as long as the client is there.
fn hanging() -> Answer {
    Answer::fault(FaultKind::Hang, 0)
}

fn saying(text: &str) -> Answer {
    Answer { reply: Some(Reply { text: Some(text.into()), ..Reply::default() }), ..Answer::default() }
}

/// The text of a chat stream as an SDK puts it together.
fn text_of(stream: &str) -> String {
    let frames = stream.split("\n\n").filter_map(|frame| frame.strip_prefix("data: ")).filter(|data| *data != "[DONE]");
    let deltas = frames.map(|data| serde_json::from_str::<Value>(data).unwrap()["choices"][0]["delta"]["content"].clone());
    deltas.filter_map(|text| text.as_str().map(str::to_owned)).collect()
}

#[tokio::test]
async fn a_stream_that_breaks_at_once_is_opened_again_in_every_dialect() {
    let runs = [(CHAT, 3), (RESPONSES, 7), (MESSAGES, 4)]
        .into_iter()
        .flat_map(|row| [FaultKind::Cut, FaultKind::Eof, FaultKind::Reset].map(|kind| (row, kind)));
    futures::future::join_all(runs.map(async |((path, after), kind)| {
        let world = World::new([Answer::fault(kind, after), good()], reopening).await;
        let got = world.stream(path).await;
        let text = got.text();
        assert_eq!(got.status, 200, "{path} {kind:?}: {text}");
        assert!(text.contains("four") && !text.contains("\"error\":{") && !text.contains("elsewhere"), "{path} {kind:?}: {text}");
        assert_eq!(
            text.matches("[DONE]").count() + text.matches("message_stop\n").count() + text.matches("completed\n").count(),
            1,
            "{text}"
        );
        assert_eq!(world.asked(), (2, 0), "{path} {kind:?}");
        assert_eq!((world.state().await, world.recoveries("reopen", "recovered").await), (json!("Active"), Some("1".into())));
        assert_eq!(
            world.counted("omniroute_attempts_total{connection=\"a\",outcome=\"success\",provider=\"one\"}").await,
            Some("1".into())
        );
    }))
    .await;
}

#[tokio::test]
async fn it_is_opened_again_four_times_and_blamed_once() {
    let world = World::new([Answer::fault(FaultKind::Cut, 3)], reopening).await;
    assert!(text_of(&world.stream(CHAT).await.text()).contains("elsewhere"));
    assert_eq!(world.asked(), (5, 1));
    assert_eq!(world.recoveries("reopen", "failed").await, Some("4".into()));
    let state = world.served.connection("a").await;
    assert_eq!((&state["state"], &state["backoffLevel"], &state["inFlight"]), (&json!("Cooling"), &json!(1), &json!(0)));
}

#[tokio::test]
async fn an_error_is_no_truncation_and_without_the_setting_nothing_is_asked_again() {
    let world = World::new([Answer::fault(FaultKind::ErrorFrame, 3)], reopening).await;
    assert!(text_of(&world.stream(CHAT).await.text()).contains("elsewhere"));
    assert_eq!(world.asked(), (1, 1));
    let world = World::new([Answer::fault(FaultKind::Cut, 3)], |_| ()).await;
    assert!(world.stream(CHAT).await.text().contains("stream_interrupted"));
    assert_eq!(world.asked(), (1, 0));
}

#[tokio::test]
async fn a_client_that_asks_for_one_call_gets_one() {
    let both = |s: &mut Snapshot| {
        reopening(s);
        continuing(s);
    };
    let world = World::new([Answer::fault(FaultKind::Cut, 3), good()], both).await;
    let once = request("POST", CHAT, "client").header("x-omniroute-fallback", "none");
    let got = world.served.send(once.body(Full::new(Bytes::from(body().to_string()))).unwrap()).await;
    assert!(got.text().contains("stream_interrupted"), "{}", got.text());
    assert_eq!(world.asked(), (1, 0));
}

#[tokio::test]
async fn an_answer_to_the_second_request_counts_as_the_attempts_own() {
    let world = World::new([Answer::fault(FaultKind::Cut, 3), Answer::status(429).header("retry-after", "77")], reopening).await;
    assert!(text_of(&world.stream(CHAT).await.text()).contains("elsewhere"));
    assert_eq!(world.asked(), (2, 1));
    let state = world.served.connection("a").await;
    assert_eq!((&state["reason"], &state["lastStatus"]), (&json!("RateLimitExceeded"), &json!(429)), "{state}");
}

#[tokio::test]
async fn what_a_second_answer_says_about_limits_is_learned() {
    for setting in [reopening as fn(&mut Snapshot), continuing] {
        let limited = good().header("x-ratelimit-limit-requests", "60").header("x-ratelimit-remaining-requests", "7");
        let world = World::new([Answer::fault(FaultKind::Cut, 3), limited], setting).await;
        assert_eq!(world.stream(CHAT).await.status, 200);
        assert_eq!(world.asked(), (2, 0));
        let learned = world.served.manage("GET", "/api/rate-limits", "").await.text();
        assert!(learned.contains("\"limit\":60") && learned.contains("\"remaining\":7"), "{learned}");
    }
}

#[tokio::test]
async fn a_second_request_passes_the_gates_of_the_first() {
    let world = World::new([Answer::fault(FaultKind::Cut, 3), good()], |s| {
        reopening(s);
        continuing(s);
        s.connections.truncate(1);
        s.connections[0].max_concurrent = 1;
        s.connections[0].rate_limit_protection = true;
        s.connections[0].rate_limits.min_interval_ms = Some(400);
    })
    .await;
    let begin = Instant::now();
    assert_eq!(text_of(&world.stream(CHAT).await.text()), "one two three four");
    assert!(begin.elapsed() >= Duration::from_millis(400), "the only slot is free for it, but not before its time: {:?}", begin.elapsed());
    assert_eq!(text_of(&world.stream(CHAT).await.text()), "one two three four", "the slot came back");
    assert_eq!(world.asked(), (3, 0));
}

/// Sends the request and leaves when `when` says so.
async fn leave(world: &World, when: impl AsyncFn(&World)) {
    let stream = tokio::net::TcpStream::connect(world.served.running.listen_addr()).await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let wanted = request("POST", CHAT, "client").header("host", "gateway").body(Full::new(Bytes::from(body().to_string()))).unwrap();
    let reading = async {
        let response = sender.send_request(wanted).await.unwrap();
        let _ = response.into_body().collect().await;
    };
    tokio::select! {
        () = reading => panic!("answered to its end"),
        () = when(world) => {}
    }
}

#[tokio::test]
async fn nothing_is_asked_for_a_client_that_has_left() {
    for (change, breaks) in [(reopening as fn(&mut Snapshot), 3), (continuing, 3)] {
        let world = World::new([Answer::fault(FaultKind::Cut, breaks), hanging()], change).await;
        leave(&world, async |world| assert!(world.one.wait(|r| r.len() == 2).await)).await;
        assert!(world.one.wait(|r| r.iter().all(|r| r.outcome != Outcome::Running)).await);
        let released = async { while world.served.connection("a").await["inFlight"] != 0 {} };
        tokio::time::timeout(Duration::from_secs(5), released).await.expect("the permit comes back");
        assert_eq!((world.asked(), world.state().await), ((2, 0), json!("Active")), "nobody is to blame");
        assert_eq!(
            world.counted("omniroute_attempts_total{connection=\"a\",outcome=\"cancelled\",provider=\"one\"}").await,
            Some("1".into())
        );
    }
}

#[tokio::test]
async fn a_text_that_breaks_later_goes_on_behind_what_was_said() {
    for kind in [FaultKind::Cut, FaultKind::Eof, FaultKind::Reset, FaultKind::Stall] {
        let world = World::new([Answer::fault(kind, 3), saying("two three four")], |s| {
            continuing(s);
            s.providers.iter_mut().for_each(|p| p.timeouts.stream_idle_ms = 400);
        })
        .await;
        let text = world.stream(CHAT).await.text();
        assert_eq!(text_of(&text), "one two three four", "{kind:?}: {text}");
        assert!(text.ends_with("data: [DONE]\n\n") && text.matches("[DONE]").count() == 1, "{text}");
        let asked = world.one.requests();
        let second: Value = serde_json::from_str(&asked[1].body).unwrap();
        let last = second["messages"].as_array().unwrap().last().unwrap();
        assert_eq!((asked.len(), last), (2, &json!({"role": "assistant", "content": "one two "})), "{kind:?}");
        assert_eq!((&second["model"], asked[1].key.as_str()), (&json!("m1"), "a"), "the same account and model");
        assert_eq!((world.recoveries("continue", "recovered").await, world.state().await), (Some("1".into()), json!("Active")));
    }
}

#[tokio::test]
async fn a_text_that_cannot_be_continued_ends_with_the_error_frame() {
    let tool = r#"data: {"choices":[{"delta":{"tool_calls":[{"index":0,"id":"c","function":{"name":"f","arguments":""}}]}}]}"#;
    let called = Answer::frames([format!("{tool}\n\n")]);
    for (first, asked) in [(called, 1), (Answer::fault(FaultKind::Cut, 3), 2)] {
        let world = World::new([first, Answer::status(400)], continuing).await;
        let text = world.stream(CHAT).await.text();
        let last = text.trim_end().rsplit("\n\n").next().unwrap();
        assert!(last.starts_with("data: {\"error\":") && last.contains("stream_interrupted") && !text.contains("[DONE]"), "{text}");
        assert_eq!((world.asked(), world.state().await), ((asked, 0), json!("Cooling")));
    }
    for path in [RESPONSES, MESSAGES] {
        let world = World::new([Answer::fault(FaultKind::Cut, 6), good()], continuing).await;
        assert!(world.stream(path).await.text().contains("stream_interrupted"));
        assert_eq!(world.asked(), (1, 0), "{path}");
    }
}
