//! The road of a request: accounts and targets take over from one another, what rests is skipped, and the answer says so when all rest.

use crate::support::{Reply, Setup, Vendor, request};
use bytes::Bytes;
use http_body_util::Full;
use omniroute::snapshot::Strategy;
use serde_json::json;

async fn two_vendors() -> (Vendor, Vendor, Setup) {
    let (one, two) = (Vendor::start().await, Vendor::start().await);
    let setup = Setup::new()
        .provider("one", &one.base_url())
        .provider("two", &two.base_url())
        .connection("one", "a", 1)
        .connection("one", "b", 2)
        .connection("two", "c", 1)
        .combo("assistant", Strategy::Priority, &["one/m1", "two/m2"]);
    (one, two, setup)
}

#[tokio::test]
async fn a_limited_account_is_left_within_the_request_and_skipped_by_the_next() {
    let (one, _two, setup) = two_vendors().await;
    one.script("a", [Reply::error(429, "slow down").header("retry-after", 30)]);
    let served = setup.start();
    let got = served.chat("assistant").await;
    assert_eq!(got.content(), "b");
    assert_eq!(got.header("x-omniroute-decision"), Some("strategy=Priority; target=one/m1; connection=b; attempts=2"));
    assert_eq!(one.calls(), ["a", "b"]);
    assert_eq!(one.seen()[1].json()["model"], "m1");
    assert_eq!(served.chat("assistant").await.content(), "b");
    assert_eq!(one.calls(), ["a", "b", "b"]);
    let state = served.connection("a").await;
    assert_eq!(
        (&state["state"], &state["reason"], &state["waitSource"]),
        (&"Cooling".into(), &"RateLimitExceeded".into(), &"header".into())
    );
    assert!(state["until"].is_string(), "{state}");
}

#[tokio::test]
async fn every_kind_of_failure_moves_on_and_streams_do_as_well() {
    for status in [401, 402, 403, 404, 408, 429, 500, 502, 503, 504, 529] {
        for stream in [false, true] {
            let (one, two, setup) = two_vendors().await;
            one.script("a", [Reply::error(status, "no")]);
            one.script("b", [Reply::error(status, "no")]);
            let served = setup.start();
            let got = if stream { served.chat_stream("assistant").await } else { served.chat("assistant").await };
            assert_eq!(got.status, 200, "{status} {stream}: {}", got.text());
            assert_eq!(two.calls(), ["c"], "{status} {stream}");
            if stream {
                assert_eq!(got.body, Reply::chat_stream("c").body, "byte for byte");
            }
        }
    }
}

#[tokio::test]
async fn a_malformed_request_is_the_clients_own() {
    let (one, two, setup) = two_vendors().await;
    let body = r#"{"error":{"message":"messages: at least one message is required","type":"invalid_request_error","code":null}}"#;
    one.script("a", [Reply::new(400, body)]);
    let served = setup.start();
    let got = served.chat("assistant").await;
    assert_eq!((got.status, got.text().as_str()), (400, body));
    assert_eq!(got.header("x-omniroute-origin"), Some("provider"));
    assert_eq!((one.calls().len(), two.calls().len()), (1, 0));
    assert_eq!(served.connection("a").await["state"], "Active");
}

#[tokio::test]
async fn when_everything_cools_the_answer_says_until_when() {
    let (one, two, setup) = two_vendors().await;
    for (vendor, key, wait) in [(&one, "a", 50), (&one, "b", 20), (&two, "c", 90)] {
        vendor.script(key, [Reply::error(429, "slow down").header("retry-after", wait)]);
    }
    let served = setup.start();
    let first = served.chat("assistant").await;
    assert_eq!(first.status, 429, "{}", first.text());
    let second = served.chat("assistant").await;
    assert_eq!(second.status, 429, "{}", second.text());
    for got in [&first, &second] {
        let wait: u64 = got.header("retry-after").unwrap().parse().unwrap();
        assert!((19..=20).contains(&wait), "{wait}: the earliest of all, not the last one's");
    }
    assert_eq!(second.header("x-omniroute-origin"), Some("gateway"));
    assert_eq!(second.json()["error"]["type"], "rate_limit_error");
    assert_eq!((one.calls().len(), two.calls().len()), (2, 1), "nothing is called while it rests");
    let excluded = second.json()["diagnostics"]["excluded"].clone();
    assert!(excluded.as_array().is_some_and(|list| !list.is_empty()), "{excluded}");
}

#[tokio::test]
async fn round_robin_takes_turns() {
    let (one, two, setup) = two_vendors().await;
    let served = setup.combo("turns", Strategy::RoundRobin, &["one/m1", "two/m2"]).start();
    for _ in 0..4 {
        assert_eq!(served.chat("turns").await.status, 200);
    }
    assert_eq!((one.calls().len(), two.calls().len()), (2, 2));
}

#[tokio::test]
async fn what_the_client_sent_reaches_the_provider_unchanged_but_for_the_model() {
    let (one, _two, setup) = two_vendors().await;
    let served = setup.start();
    let body =
        "{ \"messages\" : [ {\"role\":\"user\",\"content\":\"h\\u00e9 \\ud83d\\ude00\"} ],\t\"model\" : \"assistant\", \"x\":1.0e2 }";
    let request = crate::support::request("POST", "/v1/chat/completions", "client")
        .header("cookie", "a=b")
        .header("x-session-id", "s")
        .header("x-omniroute-session", "s")
        .body(http_body_util::Full::new(bytes::Bytes::from_static(body.as_bytes())))
        .unwrap();
    assert_eq!(served.send(request).await.status, 200);
    let seen = one.seen().remove(0);
    assert_eq!(String::from_utf8_lossy(&seen.body), body.replace("\"assistant\"", "\"m1\""));
    assert_eq!((seen.path.as_str(), seen.key()), ("/v1/chat/completions", "a"));
    for name in ["cookie", "x-session-id", "x-omniroute-session", "x-api-key"] {
        assert!(!seen.headers.contains_key(name), "{name}");
    }
}

#[tokio::test]
async fn direct_models_rotate_over_accounts_too() {
    let (one, two, setup) = two_vendors().await;
    one.script("a", [Reply::error(500, "broken")]);
    let served = setup.start();
    let got = served.chat("one/m1").await;
    assert_eq!(got.content(), "b");
    assert_eq!(got.header("x-omniroute-decision"), None);
    assert_eq!(two.calls().len(), 0);
}

#[tokio::test]
async fn fallback_none_is_exactly_one_call() {
    let (one, two, setup) = two_vendors().await;
    one.script("a", [Reply::error(503, "later")]);
    let served = setup.start();
    let got = served.only_once("assistant").await;
    assert_eq!((got.status, got.json()["error"]["message"].as_str()), (503, Some("later")));
    assert_eq!((one.calls().len(), two.calls().len()), (1, 0));
}

#[tokio::test]
async fn the_answer_of_the_one_call_comes_as_it_is() {
    let too_short = r#"{"choices":[{"message":{"role":"assistant","content":"no"},"finish_reason":"stop"}]}"#;
    let inside = r#"{"error":{"message":"broken inside","code":500}}"#;
    for (reply, status, body) in [
        (Reply::new(200, inside), 200, inside),
        (Reply::new(200, too_short), 200, too_short),
        (Reply::new(418, r#"{"error":{"message":"house on fire"}}"#), 418, r#"{"error":{"message":"house on fire"}}"#),
    ] {
        let (one, two, setup) = two_vendors().await;
        one.script("a", [reply]);
        let served = setup
            .change(|s| {
                s.combos[0].validate_response.min_content_length = 10;
                s.rules = vec![crate::bugs::rule("house on fire", Some(429))];
            })
            .start();
        let got = served.only_once("assistant").await;
        assert_eq!((got.status, got.text().as_str(), got.header("x-omniroute-origin")), (status, body, Some("provider")));
        assert_eq!((one.calls().len(), two.calls().len()), (1, 0));
    }
}

#[tokio::test]
async fn a_stream_that_is_none_comes_as_it_is_to_who_asked_for_one_call() {
    let begin = "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\"}}]}\n\n";
    let error = "data: {\"error\":{\"message\":\"house on fire\",\"code\":500}}\n\n";
    let stop = "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";
    for (body, kind) in [
        (format!("{begin}{error}"), "text/event-stream"),
        (format!("{begin}{stop}"), "text/event-stream"),
        (begin.to_owned(), "text/event-stream"),
        (r#"{"error":{"message":"house on fire"}}"#.to_owned(), "application/json"),
        (r#"{"half":"an answer"}"#.to_owned(), "application/json"),
    ] {
        let (one, two, setup) = two_vendors().await;
        one.script("a", [Reply::new(200, &body).header("content-type", kind).header("x-vendor", "v")]);
        let served = setup.start();
        let once = request("POST", "/v1/chat/completions", "client").header("x-omniroute-fallback", "none");
        let asked = json!({"model": "assistant", "stream": true, "messages": []}).to_string();
        let got = served.send(once.body(Full::new(Bytes::from(asked))).unwrap()).await;
        assert_eq!((got.status, got.text(), got.header("content-type"), got.header("x-vendor")), (200, body, Some(kind), Some("v")));
        assert_eq!((one.calls().len(), two.calls().len()), (1, 0));
    }
}

#[tokio::test]
async fn a_redirect_is_a_failure_of_the_provider_and_reaches_nobody() {
    for stream in [false, true] {
        let (one, two, setup) = two_vendors().await;
        let away = Reply::new(302, "").header("location", format!("{}/chat/completions", two.base_url()));
        one.script("a", [away.clone()]);
        one.script("b", [away.clone()]);
        two.script("c", [away]);
        let served = setup.start();
        let got = if stream { served.chat_stream("assistant").await } else { served.chat("assistant").await };
        assert_eq!((got.status, got.header("location")), (502, None), "{}", got.text());
        assert_eq!(one.calls(), ["a", "b"]);
        assert!(two.calls().iter().all(|key| key == "c"), "nobody follows it: {:?}", two.calls());
    }
}

#[tokio::test]
async fn an_error_that_cannot_be_decoded_is_not_passed_on() {
    let (one, _two, setup) = two_vendors().await;
    one.script("a", [Reply::new(400, "no gzip at all").header("content-encoding", "gzip")]);
    let served = setup.start();
    let got = served.chat("one/m1").await;
    assert_eq!((got.header("content-encoding"), got.json()["error"].is_object()), (None, true), "{}", got.text());
}

/// What vendors say about an error inside a 200 means the same as an error of its own status.
#[tokio::test]
async fn errors_inside_a_success_are_classified() {
    let limited = "Rate limit reached for requests";
    for body in [
        json!({"base_resp": {"status_code": 1002, "status_msg": limited}, "choices": null}),
        json!({"errors": [{"message": limited}]}),
        json!({"error": {"message": limited}}),
    ] {
        for stream in [false, true] {
            let frame = format!("data: {body}\n\n");
            let streamed = Reply::new(200, frame).header("content-type", "text/event-stream");
            for reply in [Reply::new(200, &body)].into_iter().chain(stream.then_some(streamed)) {
                let (one, _two, setup) = two_vendors().await;
                one.script("a", [reply]);
                let served = setup.start();
                let got = if stream { served.chat_stream("assistant").await } else { served.chat("assistant").await };
                assert!(got.status == 200 && got.text().contains("\"b\""), "{body}: {}", got.text());
                assert_eq!(served.connection("a").await["reason"], "RateLimitExceeded", "{body} {stream}");
            }
        }
    }
}
