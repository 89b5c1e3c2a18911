//! The management port: probes, state, clearing, metrics, and who may see them.

use std::time::{Duration, Instant};

use crate::support::{Reply, Setup, call, request};
use bytes::Bytes;
use http_body_util::Full;
use omniroute::snapshot::AuthMode;
use serde_json::{Value, json};

#[tokio::test]
async fn probes_and_metrics_need_no_key_everything_else_does() {
    let (_vendor, setup) = Setup::two_accounts().await;
    let served = setup.start();
    let ask = async |path: &str, key: Option<&str>| {
        let mut request = http::Request::builder().uri(path);
        if let Some(key) = key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        call(served.running.management_addr(), request.body(Full::<Bytes>::default()).unwrap()).await.status
    };
    for path in ["/livez", "/readyz", "/metrics"] {
        assert_eq!(ask(path, None).await, 200, "{path}");
    }
    let guarded = [
        "/state",
        "/checkpoint",
        "/api/monitoring/health",
        "/api/resilience",
        "/api/resilience/cooldowns",
        "/api/resilience/model-cooldowns",
        "/api/combos/metrics",
        "/api/rate-limits",
    ];
    for path in guarded {
        assert_eq!((ask(path, None).await, ask(path, Some("client")).await, ask(path, Some("boss")).await), (401, 403, 200), "{path}");
    }
}

#[tokio::test]
async fn without_auth_reading_is_free_on_loopback_and_clearing_is_not() {
    let (_vendor, setup) = Setup::two_accounts().await;
    let served = setup.change(|s| s.settings.auth = AuthMode::None).start();
    let ask = async |method: &str| {
        let request = http::Request::builder().method(method).uri("/api/resilience/cooldowns");
        call(served.running.management_addr(), request.body(Full::from(r#"{"all":true}"#)).unwrap()).await.status
    };
    assert_eq!((ask("GET").await, ask("POST").await), (200, 401));
}

#[tokio::test]
async fn state_is_conditional_and_can_be_waited_for() {
    let (vendor, setup) = Setup::two_accounts().await;
    vendor.script("a", [Reply::error(429, "slow").header("retry-after", 60)]);
    let served = setup.start();
    let first = served.manage("GET", "/state", "").await;
    let tag = first.header("etag").unwrap().to_owned();
    assert_eq!(tag, format!("\"{}\"", first.json()["version"]));
    let conditional = |path: &str, tag: &str| {
        let request = request("GET", path, "boss").header("if-none-match", tag).body(Full::<Bytes>::default()).unwrap();
        call(served.running.management_addr(), request)
    };
    assert_eq!(conditional("/state", &tag).await.status, 304);
    let begin = Instant::now();
    assert_eq!(conditional("/state?wait=50ms", &tag).await.status, 304);
    assert!(begin.elapsed() >= Duration::from_millis(50));
    let (changed, got) = tokio::join!(conditional("/state?wait=30s", &tag), served.chat("assistant"));
    assert_eq!(got.content(), "b");
    assert_eq!(changed.status, 200);
    let cooling = |state: &Value| state["connections"][0]["state"] == "Cooling";
    assert!(cooling(&changed.json()), "{}", changed.text());
    assert!(begin.elapsed() < Duration::from_secs(20), "the change ends the wait");
}

#[tokio::test]
async fn cooldowns_are_listed_and_cleared_and_terminal_states_stay() {
    let (vendor, setup) = Setup::two_accounts().await;
    vendor.script("a", [Reply::error(429, "slow").header("retry-after", 60)]);
    let dead = json!({"error": {"message": "This key has been revoked", "type": "invalid_request_error", "code": "account_deactivated"}});
    vendor.script("b", [Reply::new(401, dead)]);
    let served = setup.start();
    assert!(served.chat("assistant").await.status >= 400);
    let list = served.manage("GET", "/api/resilience/cooldowns?provider=one", "").await.json();
    assert_eq!(list["connections"][0]["status"], "Cooling");
    assert!(list["connections"][0]["remainingMs"].as_u64().is_some_and(|ms| (50_000..=60_000).contains(&ms)), "{list}");
    assert_eq!(list["connections"][1]["status"], "Banned", "{list}");
    let cleared = served.manage("POST", "/api/resilience/cooldowns", r#"{"all": true}"#).await.json();
    assert_eq!(cleared, json!({"cleared": 1, "unchanged": 0, "skippedTerminal": 1, "lockoutsCleared": 0}));
    assert_eq!(served.connection("a").await["state"], "Active");
    let wrong = served.manage("POST", "/api/resilience/cooldowns", r#"{"all": false}"#).await;
    assert_eq!((wrong.status, wrong.code().as_str()), (400, "invalid_body"));
}

#[tokio::test]
async fn a_locked_model_is_listed_and_unlocked() {
    let (vendor, setup) = Setup::two_accounts().await;
    vendor.script(
        "a",
        [Reply::new(
            404,
            json!({"error": {"message": "The model `m1` does not exist", "type": "invalid_request_error", "code": "model_not_found"}}),
        )],
    );
    let served = setup.start();
    served.chat("assistant").await;
    let locks = served.manage("GET", "/api/resilience/model-cooldowns", "").await.json();
    assert_eq!((&locks["lockouts"][0]["connection"], &locks["lockouts"][0]["model"]), (&json!("a"), &json!("m1")), "{locks}");
    let gone = served.manage("DELETE", "/api/resilience/model-cooldowns", r#"{"provider":"one","connection":"a","model":"m1"}"#).await;
    assert_eq!(gone.json()["cleared"], 1);
    let locks = served.manage("GET", "/api/resilience/model-cooldowns", "").await.json();
    assert_eq!(locks["lockouts"], json!([]));
}

#[tokio::test]
async fn configuration_is_written_in_resources_only() {
    let (_vendor, setup) = Setup::two_accounts().await;
    let served = setup.start();
    for (method, path, kind) in [
        ("PATCH", "/api/resilience", "ResilienceSettings"),
        ("PUT", "/api/providers/a", "Connection"),
        ("POST", "/api/rate-limits", "Connection"),
        ("POST", "/api/combos", "Combo"),
        ("DELETE", "/api/combos/assistant", "Combo"),
    ] {
        let got = served.manage(method, path, "{}").await;
        assert_eq!(got.status, 405, "{method} {path}");
        assert!(got.text().contains(kind), "{}", got.text());
    }
    let settings = served.manage("GET", "/api/resilience", "").await.json();
    assert_eq!(settings["maxRequestBytes"]["value"], 1 << 20);
    assert!(settings["requestQueue"]["source"].is_string());
}

#[tokio::test]
async fn metrics_follow_the_traffic_and_stay_bounded_whatever_clients_send() {
    let (vendor, setup) = Setup::two_accounts().await;
    vendor.script("a", [Reply::error(503, "later"), Reply::chat("a")]);
    let served = setup.start();
    served.chat("assistant").await;
    for n in 0..50 {
        assert_eq!(served.chat(&format!("junk-{n}")).await.status, 404);
        served.get(&format!("/junk/{n}")).await;
    }
    let text = call(served.running.management_addr(), http::Request::builder().uri("/metrics").body(Full::<Bytes>::default()).unwrap())
        .await
        .text();
    for line in [
        "omniroute_requests_total{code_class=\"2xx\",combo=\"assistant\",endpoint=\"chat_completions\",origin=\"provider\"} 1",
        "omniroute_requests_total{code_class=\"4xx\",combo=\"\",endpoint=\"chat_completions\",origin=\"gateway\"} 50",
        "omniroute_requests_total{code_class=\"4xx\",combo=\"\",endpoint=\"other\",origin=\"gateway\"} 50",
        "omniroute_attempts_total{connection=\"a\",outcome=\"server_error\",provider=\"one\"} 1",
        "omniroute_attempts_total{connection=\"b\",outcome=\"success\",provider=\"one\"} 1",
        "omniroute_failovers_total{from=\"a\",reason=\"server_error\",to=\"b\"} 1",
        "omniroute_provider_breaker_state{provider=\"one\",state=\"Closed\"} 1",
        "omniroute_requests_in_flight 0",
        "omniroute_gateway_overhead_seconds_count 1",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    assert!(
        text.contains("omniroute_connection_cooldown_until_timestamp_seconds{connection=\"a\",provider=\"one\",reason=\"ServerError\"}"),
        "{text}"
    );
    assert!(text.contains("omniroute_snapshot_info{hash=\""), "{text}");
    assert!(!text.contains("junk"), "{text}");
}

#[tokio::test]
async fn combos_count_requests_and_targets() {
    let (vendor, setup) = Setup::two_accounts().await;
    vendor.script("a", [Reply::error(500, "broken")]);
    let served = setup.start();
    served.chat("assistant").await;
    let counts = served.manage("GET", "/api/combos/metrics?combo=assistant", "").await.json();
    let expected =
        json!({"totalRequests": 1, "totalSuccesses": 1, "strategy": "Priority", "byTarget": {"one/m1": {"successes": 1, "failures": 1}}});
    assert_eq!(counts, expected);
    assert_eq!(served.manage("GET", "/api/combos/metrics?combo=nope", "").await.status, 404);
}

#[tokio::test]
async fn limits_that_a_provider_states_are_shown() {
    let (vendor, setup) = Setup::two_accounts().await;
    let reply = Reply::chat("a")
        .header("x-ratelimit-limit-requests", 60)
        .header("x-ratelimit-remaining-requests", 59)
        .header("x-ratelimit-reset-requests", "30s");
    vendor.script("a", [reply]);
    let served = setup.start();
    let got = served.chat("assistant").await;
    assert_eq!(got.content(), "a");
    assert_eq!(got.header("x-ratelimit-limit-requests"), None, "the limits of our account are nobody's business");
    let limits = served.manage("GET", "/api/rate-limits", "").await.json();
    let first = &limits["limits"][0];
    assert_eq!(
        (&first["connection"], &first["window"], &first["limit"], &first["remaining"]),
        (&json!("a"), &json!("requests"), &json!(60), &json!(59))
    );
    assert!(first["resetTime"].is_string());
}

#[tokio::test]
async fn a_ceiling_that_a_provider_states_in_words_is_kept_to() {
    let (vendor, mut setup) = Setup::two_accounts().await;
    setup.0.settings.request_queue.max_wait_ms = 30_000;
    setup.0.combos[0].attempts.max = 1;
    setup.0.connections.truncate(1);
    let one = &mut setup.0.connections[0];
    // Without a cooldown nothing but the pace keeps the next request.
    (one.rate_limit_protection, one.disable_cooling) = (true, true);
    vendor.script("a", [Reply::error(429, "Rate limit: maximum 2 requests within 2 seconds"), Reply::chat("a")]);
    let served = setup.start();
    let begin = std::time::Instant::now();
    assert_ne!(served.chat("assistant").await.status, 200, "its one attempt was refused");
    let limits = served.manage("GET", "/api/rate-limits", "").await.json();
    let expected = json!([{"connection": "a", "provider": "one", "window": "2000 ms", "limit": 2, "remaining": null, "resetTime": null}]);
    assert_eq!(limits["limits"], expected);
    assert_eq!(served.chat("assistant").await.content(), "a");
    assert!(begin.elapsed().as_millis() >= 1_000, "it waited for its turn");
}
