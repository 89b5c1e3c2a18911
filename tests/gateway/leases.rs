//! Exclusive leases: one session owns one connection, and the fences say so.

use std::time::Duration;

use crate::eventually::eventually;
use crate::support::{Got, Reply, Served, Setup, Vendor, request};
use bytes::Bytes;
use http_body_util::Full;
use omniroute::snapshot::{KeyScope, Snapshot, Strategy};
use serde_json::{Value, json};

const ONE: &str = "vlo_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
const TWO: &str = "vlo_BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB";

async fn serve(change: impl FnOnce(&mut Snapshot)) -> (Vendor, Served) {
    let vendor = Vendor::start().await;
    let setup = Setup::new().provider("one", &vendor.base_url()).connection("one", "a", 1).connection("one", "b", 2).combo(
        "assistant",
        Strategy::Priority,
        &["one/m1"],
    );
    let setup = setup.change(|s| {
        s.settings.session_lease_ttl_ms = 60_000;
        let key = s.api_keys.iter_mut().find(|key| key.name == "client").unwrap();
        key.scopes.push(KeyScope::LeaseExclusive);
        key.allowed_connections = Some(vec!["a".to_owned(), "b".to_owned()]);
    });
    (vendor, setup.change(change).start())
}

async fn lease(served: &Served, owner: &str, body: Value) -> Got {
    let request = request("POST", "/api/v1/session-leases", "client").header("x-omniroute-lease-owner", owner);
    served.send(request.body(Full::new(Bytes::from(body.to_string()))).unwrap()).await
}

async fn acquire(served: &Served, owner: &str) -> Got {
    lease(served, owner, json!({"action": "acquire", "model": "assistant"})).await
}

async fn chat(served: &Served, owner: &str, generation: &str) -> Got {
    let body = Full::from(r#"{"model":"assistant","messages":[]}"#);
    let request = request("POST", "/v1/chat/completions", "client").header("x-omniroute-lease-owner", owner);
    served.send(request.header("x-omniroute-lease-generation", generation).body(body).unwrap()).await
}

#[tokio::test]
async fn an_owner_has_a_connection_for_itself() {
    let (vendor, served) = serve(|_| {}).await;
    let got = acquire(&served, ONE).await;
    assert_eq!(
        (got.status, got.json()["state"].as_str(), got.json()["generation"].as_u64()),
        (200, Some("ACTIVE"), Some(1)),
        "{}",
        got.text()
    );
    assert_eq!(chat(&served, ONE, "1").await.content(), "a");
    assert_eq!(served.chat("assistant").await.content(), "b", "ordinary requests pass it over");
    assert_eq!(acquire(&served, TWO).await.json()["generation"], 1);
    assert_eq!(chat(&served, TWO, "1").await.content(), "b");
    for name in ["x-omniroute-lease-owner", "x-omniroute-lease-generation"] {
        assert!(vendor.seen().iter().all(|seen| !seen.headers.contains_key(name)));
    }
    let third = acquire(&served, &ONE.replace('A', "C")).await;
    assert_eq!((third.status, third.code().as_str()), (429, "LEASE_CAPACITY_UNAVAILABLE"));
    assert_eq!((third.json()["state"].as_str(), third.json()["eligibleCount"].as_u64()), (Some("WAITING_FOR_CAPACITY"), Some(2)));
    let status = lease(&served, ONE, json!({"action": "status", "generation": 1})).await.json();
    assert_eq!(status["connection"], json!({"displayName": "a", "provider": "one"}));
}

#[tokio::test]
async fn the_fences_say_what_is_wrong() {
    let (vendor, served) = serve(|_| {}).await;
    assert_eq!(chat(&served, ONE, "1").await.code(), "LEASE_REQUIRED");
    acquire(&served, ONE).await;
    let stale = chat(&served, ONE, "2").await;
    assert_eq!((stale.status, stale.code().as_str(), stale.header("x-should-retry")), (409, "LEASE_FENCE_STALE", Some("false")));
    assert_eq!(stale.json()["error"]["type"], "lease_error");
    assert_eq!(chat(&served, "vlo_short", "1").await.code(), "LEASE_CONTEXT_INVALID");
    assert_eq!(chat(&served, ONE, "01").await.code(), "LEASE_CONTEXT_INVALID");
    let released = lease(&served, ONE, json!({"action": "release", "generation": 1, "reason": "OWNER_EXIT"})).await;
    assert_eq!((released.status, released.json()["state"].as_str()), (200, Some("RELEASED")));
    assert_eq!(chat(&served, ONE, "1").await.code(), "LEASE_REQUIRED");
    assert_eq!(acquire(&served, ONE).await.json()["generation"], 2);
    assert_eq!(lease(&served, ONE, json!({"action": "dance"})).await.code(), "LEASE_ACTION_INVALID");
    let body = || Full::from(r#"{"action": "acquire", "model": "assistant"}"#);
    let nobody = served.send(request("POST", "/api/v1/session-leases", "client").body(body()).unwrap()).await;
    assert_eq!((nobody.status, nobody.code().as_str()), (400, "LEASE_CONTEXT_REQUIRED"));
    let mut plain = request("POST", "/api/v1/session-leases", "client").header("x-omniroute-lease-owner", ONE).body(body()).unwrap();
    plain.headers_mut().insert("content-type", "text/plain".parse().unwrap());
    let plain = served.send(plain).await;
    assert_eq!((plain.status, plain.code().as_str()), (415, "LEASE_CONTENT_TYPE_REQUIRED"));
    assert_eq!(lease(&served, ONE, json!({"action": "acquire", "model": "nothing"})).await.code(), "LEASE_MODEL_INVALID");
    assert_eq!(vendor.calls().len(), 0);
}

#[tokio::test]
async fn a_lease_moves_when_its_connection_rests_and_its_binding_tells() {
    let (vendor, served) = serve(|_| {}).await;
    acquire(&served, ONE).await;
    let first = chat(&served, ONE, "1").await;
    assert_eq!((first.content(), first.header("x-omniroute-lease-binding")), ("a".to_owned(), Some("1")));
    vendor.script("a", [Reply::error(429, "slow").header("retry-after", 60)]);
    let limited = chat(&served, ONE, "1").await;
    assert_eq!(limited.status, 429, "it stays on its connection within the request: {}", limited.text());
    let moved = chat(&served, ONE, "1").await;
    assert_eq!((moved.content(), moved.header("x-omniroute-lease-binding")), ("b".to_owned(), Some("2")));
}

#[tokio::test]
async fn who_waits_gets_what_is_given_back() {
    let (_vendor, served) = serve(|s| s.connections.truncate(1)).await;
    acquire(&served, ONE).await;
    let waiting = lease(&served, TWO, json!({"action": "acquire", "model": "assistant", "waitMs": 20_000}));
    let release = async {
        eventually("the other asks", Duration::from_secs(20), async || served.gateway.metrics().in_flight() == 1).await;
        lease(&served, ONE, json!({"action": "release", "generation": 1, "reason": "CLIENT_CANCELLED"})).await
    };
    let (waited, released) = tokio::join!(waiting, release);
    assert_eq!((waited.status, released.status), (200, 200), "{}", waited.text());
}

#[tokio::test]
async fn only_entitled_keys_come_here_and_a_revoked_one_loses_its_lease() {
    let (_vendor, served) = serve(|_| {}).await;
    acquire(&served, ONE).await;
    let mut snapshot = (*served.gateway.config().unwrap().snapshot).clone();
    snapshot.api_keys.iter_mut().for_each(|key| key.allowed_connections = None);
    served.gateway.load(snapshot, Vec::new()).unwrap();
    assert_eq!(acquire(&served, ONE).await.code(), "LEASE_KEY_POLICY_INVALID");
    assert_eq!(served.chat("assistant").await.content(), "a", "nobody owns it any more");
    let body = || Full::from(r#"{"action":"acquire","model":"assistant"}"#);
    let boss = request("POST", "/api/v1/session-leases", "boss").header("x-omniroute-lease-owner", ONE).body(body()).unwrap();
    assert_eq!(served.send(boss).await.code(), "LEASE_SCOPE_REQUIRED");
    let nobody = http::Request::post("/api/v1/session-leases").header("content-type", "application/json").body(body()).unwrap();
    let got = served.send(nobody).await;
    assert_eq!((got.status, got.code().as_str()), (401, "LEASE_AUTHENTICATION_REQUIRED"));
}

#[tokio::test]
async fn an_emergency_fallback_serves_when_the_money_is_gone_and_says_so() {
    let vendor = Vendor::start().await;
    let setup = Setup::new().provider("one", &vendor.base_url()).provider("two", &vendor.base_url());
    let setup = setup.connection("one", "a", 1).connection("two", "c", 1);
    let served = setup.change(|s| s.settings.emergency_fallback = Some("two/last".to_owned())).start();
    vendor.script("a", [Reply::new(402, json!({"error": {"message": "Insufficient credits", "code": "insufficient_credits"}}))]);
    let got = served.chat("one/m1").await;
    assert_eq!(got.content(), "c");
    assert_eq!(got.header("x-omniroute-emergency-fallback"), Some("used"));
    assert_eq!(vendor.seen()[1].json()["model"], "last");
}
