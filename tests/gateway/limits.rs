//! Caps, queues, keys and sessions: who may run when, and over which connection.

use std::time::{Duration, Instant};

use crate::support::{Got, Reply, Served, Setup, Vendor, request};
use bytes::Bytes;
use http_body_util::Full;
use omniroute::snapshot::{Snapshot, Strategy};
use serde_json::json;

async fn two_accounts(change: impl FnOnce(&mut Snapshot)) -> (Vendor, Served) {
    let (vendor, setup) = Setup::two_accounts().await;
    (vendor, setup.change(change).start())
}

#[tokio::test]
async fn a_full_connection_is_passed_over_while_another_has_room() {
    let (vendor, served) = two_accounts(|s| s.connections[0].max_concurrent = 1).await;
    vendor.script("a", [Reply::chat("a").after(500)]);
    let (first, second) = tokio::join!(served.chat("assistant"), async {
        vendor.called(1).await;
        served.chat("assistant").await
    });
    assert_eq!((first.content(), second.content()), ("a".to_owned(), "b".to_owned()));
    assert_eq!(served.connection("a").await["state"], "Active");
}

#[tokio::test]
async fn when_all_are_full_the_first_slot_anywhere_is_taken() {
    let (vendor, served) = two_accounts(|s| s.connections.iter_mut().for_each(|c| c.max_concurrent = 1)).await;
    vendor.script("a", [Reply::chat("a").after(5_000)]);
    vendor.script("b", [Reply::chat("b").after(200)]);
    let begin = Instant::now();
    let (_, second, third) = tokio::join!(
        tokio::time::timeout(Duration::from_secs(3), served.chat("assistant")),
        async {
            vendor.called(1).await;
            served.chat("assistant").await
        },
        async {
            vendor.called(2).await;
            served.chat("assistant").await
        }
    );
    assert_eq!((second.content(), third.content()), ("b".to_owned(), "b".to_owned()));
    assert!(begin.elapsed() < Duration::from_secs(4));
}

#[tokio::test]
async fn who_waited_for_a_slot_goes_on_where_it_was() {
    let (vendor, served) = two_accounts(|s| {
        s.connections[1].max_concurrent = 1;
        s.combos[0].attempts.max = 2;
        s.combos[0].attempts.per_target = 1;
    })
    .await;
    vendor.script("a", [Reply::error(401, "no").after(0), Reply::error(500, "broken")]);
    vendor.script("b", [Reply::chat("b").after(400), Reply::error(500, "broken too")]);
    let (first, second) = tokio::join!(served.chat("assistant"), async {
        vendor.called(2).await;
        served.manage("POST", "/api/resilience/cooldowns", r#"{"all": true}"#).await;
        served.chat("assistant").await
    });
    assert_eq!(first.content(), "b");
    assert_eq!(vendor.calls(), ["a", "b", "a", "b"], "what failed before the wait is not called again after it");
    assert_eq!(second.status, 500, "{}", second.text());
    assert_eq!(second.header("x-omniroute-combo-attempted"), Some("2"));
    assert_eq!(second.header("x-omniroute-decision"), Some("strategy=Priority; target=one/m1; connection=b; attempts=2"));
}

#[tokio::test]
async fn limits_of_the_queue_have_codes_of_their_own_and_blame_nobody() {
    let (vendor, served) = two_accounts(|s| {
        s.connections.truncate(1);
        s.connections[0].max_concurrent = 1;
        s.connections[0].rate_limits.max_wait_ms = 50;
        s.connections[0].rate_limits.max_queue_depth = 1;
    })
    .await;
    vendor.script("a", [Reply::chat("a").after(1_000)]);
    let late = async {
        vendor.called(1).await;
        tokio::join!(served.chat("assistant"), served.chat("assistant"))
    };
    let (first, (second, third)) = tokio::join!(served.chat("assistant"), late);
    assert_eq!(first.content(), "a");
    let mut codes = [second.code(), third.code()];
    codes.sort();
    assert_eq!(codes, ["SEMAPHORE_QUEUE_FULL", "SEMAPHORE_TIMEOUT"]);
    for got in [second, third] {
        assert_eq!((got.status, got.header("x-omniroute-origin"), got.header("retry-after")), (429, Some("gateway"), Some("1")));
    }
    let state = served.connection("a").await;
    assert_eq!((&state["state"], &state["backoffLevel"]), (&json!("Active"), &json!(0)));
    assert_eq!(vendor.calls().len(), 1);
}

#[tokio::test]
async fn an_execution_has_its_own_clock() {
    let (vendor, served) = two_accounts(|s| {
        s.connections.truncate(1);
        s.connections[0].rate_limit_protection = true;
        s.connections[0].rate_limits.execution_max_wait_ms = 50;
    })
    .await;
    vendor.script("a", [Reply::chat("a").after(20_000)]);
    let got = served.chat("assistant").await;
    assert_eq!((got.status, got.code().as_str()), (504, "RATE_LIMIT_EXECUTION_TIMEOUT"));
    assert_eq!(served.connection("a").await["state"], "Active");
}

#[tokio::test]
async fn an_execution_that_ran_out_of_its_time_is_an_attempt() {
    let (vendor, served) = two_accounts(|s| {
        s.combos[0].attempts.max = 1;
        for connection in &mut s.connections {
            connection.rate_limit_protection = true;
            connection.rate_limits.execution_max_wait_ms = 50;
        }
    })
    .await;
    vendor.script("a", [Reply::chat("a").after(20_000)]);
    let got = served.chat("assistant").await;
    assert_eq!((got.status, got.header("x-omniroute-combo-attempted")), (503, Some("1")), "{}", got.text());
    assert_eq!(vendor.calls(), ["a"]);
}

#[tokio::test]
async fn declared_pacing_spaces_dispatches() {
    let (_vendor, served) = two_accounts(|s| {
        s.connections.truncate(1);
        s.connections[0].rate_limit_protection = true;
        s.connections[0].rate_limits.min_interval_ms = Some(150);
    })
    .await;
    let begin = Instant::now();
    let (first, second, third) = tokio::join!(served.chat("assistant"), served.chat("assistant"), served.chat("assistant"));
    assert_eq!([first.status, second.status, third.status], [200; 3]);
    assert!(begin.elapsed() >= Duration::from_millis(300), "{:?}", begin.elapsed());
}

#[tokio::test]
async fn a_limit_whose_end_is_known_says_it() {
    let (_vendor, served) = two_accounts(|s| {
        s.connections.truncate(1);
        s.connections[0].rate_limit_protection = true;
        s.connections[0].rate_limits.requests_per_minute = Some(1);
        s.connections[0].rate_limits.max_wait_ms = 1;
    })
    .await;
    assert_eq!(served.chat("assistant").await.content(), "a");
    let got = served.chat("assistant").await;
    assert_eq!((got.status, got.code().as_str()), (503, "RATE_LIMIT_QUEUE_TIMEOUT"));
    let wait: u64 = got.header("retry-after").unwrap().parse().unwrap();
    assert!((30..=60).contains(&wait), "{wait}: the minute of the first request");
}

#[tokio::test]
async fn who_may_not_fall_back_waits_in_the_queue_like_any_other() {
    let (vendor, served) = two_accounts(|s| s.connections.iter_mut().for_each(|c| c.max_concurrent = 1)).await;
    vendor.script("a", [Reply::chat("a").after(300), Reply::error(503, "later")]);
    vendor.script("b", [Reply::chat("b").after(20_000)]);
    let only_one = async {
        vendor.called(2).await;
        let body = Full::new(Bytes::from_static(br#"{"model":"assistant","messages":[]}"#));
        served.send(request("POST", "/v1/chat/completions", "client").header("x-omniroute-fallback", "none").body(body).unwrap()).await
    };
    let slow = async {
        vendor.called(1).await;
        served.chat("assistant").await
    };
    let got = tokio::select! {
        (_, got) = async { tokio::join!(served.chat("assistant"), only_one) } => got,
        _ = slow => panic!("it takes twenty seconds"),
    };
    assert_eq!((got.status, got.json()["error"]["message"].as_str()), (503, Some("later")));
    assert_eq!(vendor.calls(), ["a", "b", "a"], "one call, after the wait");
}

#[tokio::test]
async fn the_gateway_as_a_whole_is_bounded() {
    let (vendor, served) = two_accounts(|s| s.settings.max_concurrent_requests = 1).await;
    vendor.script("a", [Reply::chat("a").after(300)]);
    let (first, second) = tokio::join!(served.chat("assistant"), async {
        vendor.called(1).await;
        served.chat("assistant").await
    });
    assert_eq!(first.status, 200);
    assert_eq!((second.status, second.code().as_str(), second.header("retry-after")), (503, "admission_queue_full", Some("1")));
    assert_eq!(served.chat("assistant").await.status, 200);
}

#[tokio::test]
async fn a_key_reaches_what_it_allows() {
    let (vendor, served) = two_accounts(|s| {
        let key = s.api_keys.iter_mut().find(|key| key.name == "client").unwrap();
        key.allowed_connections = Some(vec!["b".to_owned()]);
        key.allowed_models = Some(vec!["assistant".to_owned()]);
    })
    .await;
    assert_eq!(served.chat("assistant").await.content(), "b");
    let direct = served.chat("one/m1").await;
    assert_eq!((direct.status, direct.code().as_str(), direct.header("x-omniroute-origin")), (403, "model_not_allowed", Some("policy")));
    assert_eq!(vendor.calls(), ["b"]);
    let list = served.get("/v1/models").await.json();
    assert_eq!(list["data"].as_array().map(Vec::len), Some(1), "{list}");
}

#[tokio::test]
async fn the_list_of_models_has_what_a_request_could_name() {
    let (_vendor, served) = two_accounts(|s| {
        let key = s.api_keys.iter_mut().find(|key| key.name == "client").unwrap();
        key.allowed_models = Some(vec!["one/m1".to_owned()]);
    })
    .await;
    assert_eq!(served.chat("assistant").await.status, 200, "the combo by its one target that the key allows");
    let list = served.get("/v1/models").await.json();
    let names: Vec<&str> = list["data"].as_array().unwrap().iter().filter_map(|model| model["id"].as_str()).collect();
    assert!(names.contains(&"assistant"), "{list}");
}

async fn in_session(served: &Served, session: &str) -> Got {
    let body = Full::new(Bytes::from_static(br#"{"model":"assistant","messages":[{"role":"user","content":"hi"}]}"#));
    served.send(request("POST", "/v1/chat/completions", "client").header("x-session-id", session).body(body).unwrap()).await
}

#[tokio::test]
async fn a_session_stays_where_it_is_and_leaves_what_fails() {
    let (vendor, served) = two_accounts(|s| s.settings.session_affinity_ttl_ms = 60_000).await;
    vendor.script("a", [Reply::error(429, "slow").header("retry-after", 1), Reply::chat("a")]);
    assert_eq!(in_session(&served, "s").await.content(), "b");
    served.manage("POST", "/api/resilience/cooldowns", r#"{"all": true}"#).await;
    assert_eq!(in_session(&served, "other").await.content(), "a");
    assert_eq!(in_session(&served, "s").await.content(), "b", "it does not flap back");
    vendor.script("b", [Reply::error(500, "broken")]);
    assert_eq!(in_session(&served, "s").await.content(), "a");
}

#[tokio::test]
async fn a_conversation_goes_on_where_its_last_answer_was_made() {
    let (vendor, served) = two_accounts(|s| s.combos[0].strategy = Strategy::Priority).await;
    let answer = |id: &str| {
        Reply::new(
            200,
            json!({"id": id, "object": "response", "status": "completed", "output": [
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hi"}]}]}),
        )
    };
    vendor.script("a", [Reply::error(500, "broken"), answer("resp_a")]);
    vendor.script("b", [answer("resp_b")]);
    let ask = async |previous: Option<&str>| {
        let mut body = json!({"model": "assistant", "input": "hi"});
        if let Some(id) = previous {
            body["previous_response_id"] = json!(id);
        }
        served.post("/v1/responses", &body).await
    };
    assert_eq!(ask(None).await.json()["id"], "resp_b");
    served.manage("POST", "/api/resilience/cooldowns", r#"{"all": true}"#).await;
    assert_eq!(ask(Some("resp_b")).await.json()["id"], "resp_b");
    assert_eq!(ask(Some("resp_unknown")).await.json()["id"], "resp_a", "an unknown one is asked for in order");
    assert_eq!(vendor.calls(), ["a", "b", "b", "a"]);
}

#[tokio::test]
async fn a_client_that_does_not_read_its_answer_holds_nothing_for_long() {
    use tokio::io::AsyncWriteExt;
    let vendor = Vendor::start().await;
    let served = Setup::new()
        .provider("one", &vendor.base_url())
        .connection("one", "a", 1)
        .combo("assistant", Strategy::Priority, &["one/m1"])
        .change(|s| {
            s.connections[0].max_concurrent = 1;
            s.connections[0].rate_limits.max_wait_ms = 20_000;
        })
        .start_with(|options| options.write_stall = Duration::from_millis(300));
    // More than all buffers between here and there hold.
    vendor.script("a", [Reply::chat(&"x".repeat(64 << 20)), Reply::chat("a")]);
    let body = json!({"model": "assistant", "messages": [{"role": "user", "content": "hi"}]}).to_string();
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\nauthorization: Bearer client\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let mut idle = tokio::net::TcpStream::connect(served.running.listen_addr()).await.unwrap();
    idle.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
    vendor.called(1).await;
    assert_eq!(served.chat("assistant").await.content(), "a");
    assert_eq!(served.connection("a").await["state"], "Active", "nobody is to blame");
}

/// Answers count among the bytes that may be held: without room they are passed on as they come, unread.
#[tokio::test]
async fn memory_for_answers_is_bounded() {
    let empty = json!({"id": "x", "choices": [], "padding": "x".repeat(200_000)});
    for (room, checked) in [(1 << 20, true), (20_000, false)] {
        let (vendor, served) = two_accounts(|s| s.settings.max_buffered_bytes = room).await;
        vendor.script("a", [Reply::new(200, &empty)]);
        let got = served.chat("assistant").await;
        if checked {
            assert_eq!(got.content(), "b", "an answer without choices is none");
        } else {
            assert_eq!(got.json(), empty);
        }
        assert_eq!(served.chat("assistant").await.status, 200, "the memory came back");
    }
}
