//! Public failures of similar systems (ids of the collection in the names), each with what is right here.

use std::time::{Duration, Instant};

use crate::support::{Reply, Served, Setup, Vendor};
use omniroute::snapshot::{Rule, RuleVerdict, Snapshot, Strategy};
use serde_json::{Value, json};

/// `a` of vendor one, then `c` of vendor two.
async fn two(change: impl FnOnce(&mut Snapshot)) -> (Vendor, Vendor, Served) {
    let (one, other) = (Vendor::start().await, Vendor::start().await);
    let setup = Setup::new()
        .provider("one", &one.base_url())
        .provider("two", &other.base_url())
        .connection("one", "a", 1)
        .connection("two", "c", 1)
        .combo("assistant", Strategy::Priority, &["one/m1", "two/m2"]);
    (one, other, setup.change(change).start())
}

fn sse(frames: &[&str]) -> Reply {
    Reply::new(200, frames.iter().map(|frame| format!("{frame}\n\n")).collect::<String>()).header("content-type", "text/event-stream")
}

/// A rule that takes this text for a quota of ten minutes.
pub fn rule(text: &str, restate: Option<u16>) -> Rule {
    let plain = crate::rules::rule("quota-words");
    let verdict = RuleVerdict { cooldown_ms: Some(600_000), restate_status: restate, ..plain.verdict };
    Rule { text: Some(text.to_owned()), verdict, ..plain }
}

fn seconds_left(until: &Value) -> i64 {
    let until = omniroute::api::time::EpochMs::parse(until.as_str().unwrap()).unwrap();
    (until.0 - omniroute::gateway::clock::now().0) / 1000
}

#[tokio::test]
async fn bl_002_a_long_model_cooldown_of_a_proxy_locks_that_model_as_long_as_it_says() {
    let (one, _other, served) = two(|_| {}).await;
    let body = json!({"error": {"code": "model_cooldown", "message": "All credentials for model m1 are cooling down"}});
    one.script("a", [Reply::new(429, body).header("retry-after", 135_734), Reply::chat("a")]);
    assert_eq!(served.chat("assistant").await.content(), "c");
    let state = served.connection("a").await;
    let lock = &state["lockouts"][0];
    assert_eq!(lock["model"], "m1", "{state}");
    assert!((135_000..=135_735).contains(&seconds_left(&lock["until"])), "{lock}");
    assert_eq!(served.chat("one/another").await.content(), "a", "other models of the connection serve");
    assert_eq!(served.chat("assistant").await.content(), "c");
    assert_eq!(one.calls().len(), 2);
}

#[tokio::test]
async fn bl_008_the_same_error_means_the_same_as_a_status_and_as_a_frame() {
    let error =
        json!({"error": {"message": "You exceeded your current quota", "type": "insufficient_quota", "code": "insufficient_quota"}});
    let mut seen = Vec::new();
    for reply in [Reply::new(429, &error), sse(&[&format!("data: {error}")])] {
        let (one, _other, served) = two(|_| {}).await;
        one.script("a", [reply]);
        assert_eq!(served.chat_stream("assistant").await.status, 200);
        let state = served.connection("a").await;
        seen.push((state["state"].clone(), state["reason"].clone()));
    }
    assert_eq!(seen[0], seen[1]);
    assert_ne!(seen[0].0, "Active");
}

#[tokio::test]
async fn bl_010_and_bl_012_a_rule_restates_an_answer_and_a_first_frame_alike() {
    let words = "用户额度不足";
    let body = json!({"error": {"message": words}});
    for reply in [Reply::new(403, &body), sse(&[&format!("data: {body}")])] {
        let (one, other, served) = two(|s| s.rules = vec![rule(words, Some(429))]).await;
        one.script("a", [reply]);
        let got = served.chat_stream("assistant").await;
        assert_eq!(got.body, Reply::chat_stream("c").body, "not a byte of the first vendor");
        assert_eq!((other.calls().len(), served.connection("a").await["state"].as_str()), (1, Some("Cooling")));
    }
    let (one, other, served) = two(|s| s.rules = vec![rule(words, Some(429))]).await;
    one.script("a", [Reply::new(403, &body)]);
    other.script("c", [Reply::new(403, &body)]);
    let got = served.chat("assistant").await;
    assert_eq!(got.status, 429, "{}", got.text());
    assert!(got.header("retry-after").is_some_and(|wait| wait.parse::<u64>().unwrap() > 590));
}

#[tokio::test]
async fn bl_014_overload_moves_on_rests_for_a_sane_time_and_never_counts_for_the_breaker() {
    for wait in [Some("30"), Some("Wed, 21 Oct 2015 07:28:00 GMT"), Some("Fri, 31 Dec 9999 23:59:59 GMT"), None] {
        let (one, _other, served) = two(|_| {}).await;
        let reply = Reply::new(529, json!({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}));
        one.script("a", [wait.map_or(reply.clone(), |wait| reply.header("retry-after", wait))]);
        assert_eq!(served.chat("assistant").await.content(), "c", "{wait:?}");
        let state = served.manage("GET", "/state", "").await.json();
        assert_eq!(state["providers"][0]["breaker"]["failures"], 0, "{wait:?}");
        let connection = &state["connections"][0];
        let until = if connection["until"].is_null() { &connection["lockouts"][0]["until"] } else { &connection["until"] };
        assert!((0..=30 * 86_400).contains(&seconds_left(until)), "{wait:?}: {connection}");
    }
}

#[tokio::test]
async fn bl_020_and_bl_023_an_open_breaker_is_seen_and_obeyed() {
    let (one, _other, served) = two(|s| {
        s.providers[0].breaker.failure_threshold = 3;
        s.connections[0].disable_cooling = true;
    })
    .await;
    one.script("a", [Reply::error(503, "down")]);
    for _ in 0..5 {
        assert_eq!(served.chat("assistant").await.content(), "c");
    }
    assert_eq!(one.calls().len(), 3, "after the third failure nobody is sent there");
    let breaker = served.manage("GET", "/state", "").await.json()["providers"][0]["breaker"].clone();
    assert_eq!(breaker["state"], "Open", "{breaker}");
    let direct = served.chat("one/m1").await;
    assert_eq!(
        (direct.status, direct.code().as_str(), direct.header("x-omniroute-provider-breaker")),
        (503, "provider_circuit_open", Some("open"))
    );
    assert!(direct.header("retry-after").is_some());
}

#[tokio::test]
async fn bl_028_a_target_that_is_alone_rests_like_any_other() {
    let vendor = Vendor::start().await;
    let served = Setup::new()
        .provider("one", &vendor.base_url())
        .connection("one", "a", 1)
        .combo("alone", Strategy::Priority, &["one/m1"])
        .change(|s| s.combos[0].attempts.per_target = 1)
        .start();
    vendor.script("a", [Reply::error(500, "broken")]);
    for _ in 0..3 {
        assert!(served.chat("alone").await.status >= 500);
    }
    assert_eq!(vendor.calls().len(), 1);
    assert_eq!(served.connection("a").await["state"], "Cooling");
}

#[tokio::test]
async fn bl_030_failed_fallbacks_rest_as_well() {
    let (one, other, served) = two(|_| {}).await;
    one.script("a", [Reply::error(401, "bad key")]);
    other.script("c", [Reply::error(401, "bad key")]);
    let got = served.chat("assistant").await;
    assert_eq!(
        (got.status, got.code().as_str()),
        (503, "ALL_ACCOUNTS_INACTIVE"),
        "our credential is never the client's problem: {}",
        got.text()
    );
    for name in ["a", "c"] {
        let state = served.connection(name).await;
        assert_eq!((&state["state"], &state["strikes"]), (&json!("Cooling"), &json!(1)), "{state}");
    }
}

#[tokio::test]
async fn bl_044_no_connection_at_all_is_said_at_once() {
    let served = Setup::new().provider("one", "http://127.0.0.1:9/v1").combo("assistant", Strategy::Priority, &["one/m1"]).start();
    let begin = Instant::now();
    let got = served.chat("assistant").await;
    assert!(begin.elapsed() < Duration::from_secs(2));
    assert!(matches!(got.status, 404 | 503), "{}", got.text());
    assert_eq!(got.header("retry-after"), None, "no time will help");
    assert_eq!(got.header("x-should-retry"), Some("false"));
}

#[tokio::test]
async fn bl_048_half_an_answer_never_looks_whole() {
    let (one, other, served) = two(|_| {}).await;
    let frame =
        r#"data: {"id":"x","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"half"},"finish_reason":null}]}"#;
    one.script("a", [sse(&[frame])]);
    let text = served.chat_stream("assistant").await.text();
    assert!(
        text.starts_with(frame)
            && text.trim_end().lines().last().is_some_and(|last| last.starts_with("data: {") && last.contains("\"error\"")),
        "{text}"
    );
    assert!(!text.contains("[DONE]") && !text.contains("\"stop\""), "{text}");
    assert_eq!(other.calls().len(), 0, "nothing is replayed once content was sent");
    assert_ne!(served.connection("a").await["lastStatus"], Value::Null);
}

#[tokio::test]
async fn bl_050_and_bl_055_what_carries_no_answer_is_none() {
    let error = r#"data: {"error":{"code":503,"message":"upstream unavailable"}}"#;
    let role = r#"data: {"choices":[{"index":0,"delta":{"role":"assistant"}}]}"#;
    let stop = r#"data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#;
    for frames in [vec![": ping", error], vec![], vec![role, stop, "data: [DONE]"]] {
        let (one, _other, served) = two(|_| {}).await;
        one.script("a", [sse(&frames)]);
        assert_eq!(served.chat_stream("assistant").await.body, Reply::chat_stream("c").body, "{frames:?}");
    }
}

#[tokio::test]
async fn bl_052_without_content_the_answer_is_an_http_error() {
    let (one, other, served) = two(|_| {}).await;
    let start = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"m\",\"type\":\"message\",\"role\":\"assistant\",\"content\":[]}}";
    let error = "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"api_error\",\"message\":\"broken\"}}";
    one.script("a", [sse(&[start, error])]);
    other.script("c", [Reply::error(503, "later")]);
    let got = served.post("/v1/messages", &json!({"model": "assistant", "stream": true, "max_tokens": 5, "messages": []})).await;
    assert!(got.status >= 500, "{}", got.text());
    assert_eq!((got.header("content-type"), got.json()["type"].as_str()), (Some("application/json"), Some("error")));
}

#[tokio::test]
async fn bl_056_and_bl_058_a_stream_arrives_byte_for_byte() {
    let (one, _other, served) = two(|_| {}).await;
    let frames = [
        ": a comment of the vendor",
        r#"data: {"id":"x","choices":[{"index":0,"delta":{"role":"assistant","content":"hi"}}]}"#,
        r#"data: {"id":"x","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#,
        r#"data: {"id":"x","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":5}}"#,
        "data: [DONE]",
    ];
    one.script("a", [sse(&frames)]);
    assert_eq!(served.chat_stream("assistant").await.body, sse(&frames).body);
}

#[tokio::test]
async fn bl_001_and_bl_057_a_200_without_an_answer_moves_on() {
    for (body, terminal) in [
        (json!({"choices": [], "error": {"code": "credits_exhausted", "message": "balance is zero"}}), Some("CreditsExhausted")),
        (json!({"id": "x", "choices": []}), None),
        (json!({"choices": [{"index": 0, "message": {"role": "assistant", "content": ""}, "finish_reason": "stop"}]}), None),
    ] {
        let (one, other, served) = two(|_| {}).await;
        one.script("a", [Reply::new(200, &body)]);
        assert_eq!(served.chat("assistant").await.content(), "c", "{body}");
        if let Some(state) = terminal {
            assert_eq!(served.connection("a").await["state"], state);
        }
        other.script("c", [Reply::new(200, &body)]);
        let got = served.chat("assistant").await;
        assert!(got.status >= 500, "{body}: {}", got.text());
    }
}

#[tokio::test]
async fn bl_068_the_time_of_a_request_is_bounded() {
    let (one, other, served) = two(|s| {
        s.combos[0].target_timeout_ms = 200;
        s.combos[0].total_timeout_ms = 300;
    })
    .await;
    one.script("a", [Reply::chat("a").after(30_000)]);
    other.script("c", [Reply::chat("c").after(30_000)]);
    let begin = Instant::now();
    let got = served.chat("assistant").await;
    assert_eq!(got.status, 504, "{}", got.text());
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    assert_eq!(served.connection("a").await["state"], "Active", "the request's own deadline says nothing about the account");
}

#[tokio::test]
async fn bl_021_limits_of_one_account_never_open_the_breaker_of_all() {
    let (vendor, setup) = Setup::two_accounts().await;
    vendor.script("a", [Reply::error(429, "slow down")]);
    let served = setup
        .change(|s| {
            s.providers[0].breaker.failure_threshold = 3;
            s.connections[0].disable_cooling = true;
        })
        .start();
    for _ in 0..6 {
        assert_eq!(served.chat("assistant").await.content(), "b");
    }
    assert_eq!(vendor.calls().iter().filter(|key| *key == "a").count(), 6, "it was asked and limited each time");
    let breaker = served.manage("GET", "/state", "").await.json()["providers"][0]["breaker"].clone();
    assert_eq!((&breaker["state"], &breaker["failures"]), (&json!("Closed"), &json!(0)), "{breaker}");
}

#[tokio::test]
async fn bl_040_streams_of_two_accounts_run_side_by_side() {
    let (vendor, setup) = Setup::two_accounts().await;
    for key in ["a", "b"] {
        vendor.script(key, [Reply::chat_stream(key).after(60_000)]);
    }
    let served = setup.change(|s| s.connections.iter_mut().for_each(|c| c.max_concurrent = 1)).start();
    let both = async { tokio::join!(served.chat_stream("assistant"), served.chat_stream("assistant")) };
    tokio::select! {
        _ = both => panic!("neither is answered in time"),
        () = vendor.called(2) => {}
    }
    let mut calls = vendor.calls();
    calls.sort();
    assert_eq!(calls, ["a", "b"], "one slot each, and no third limit above them");
}
