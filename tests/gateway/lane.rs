//! The usage-wall lane of a Claude subscription, on the wire.

use crate::support::{Reply, Served, Setup, Vendor};
use omniroute::snapshot::Strategy;

const PREFIX: &str = "anthropic-ratelimit-unified-";

fn wall(offer: &'static str) -> Reply {
    let reset = omniroute::gateway::clock::now().0 / 1_000 + 3_600;
    Reply::error(429, "usage limit reached")
        .header("anthropic-ratelimit-unified-status", "rejected")
        .header("anthropic-ratelimit-unified-slow-offer", offer)
        .header("anthropic-ratelimit-unified-reset", reset)
}

async fn served(low_priority: bool) -> (Vendor, Served) {
    let vendor = Vendor::start().await;
    let setup = Setup::new().provider("one", &vendor.base_url()).connection("one", "a", 1).connection("one", "b", 2).combo(
        "assistant",
        Strategy::Priority,
        &["one/m"],
    );
    let served = setup.change(|s| s.connections[0].claude.low_priority_mode = low_priority).start();
    (vendor, served)
}

fn slow(vendor: &Vendor) -> Vec<(String, bool)> {
    vendor
        .seen()
        .iter()
        .map(|call| (call.key().to_owned(), call.headers.get("anthropic-usage-limit").is_some_and(|v| v == "slow")))
        .collect()
}

fn call(key: &str, slow: bool) -> (String, bool) {
    (key.to_owned(), slow)
}

#[tokio::test]
async fn an_offer_at_the_wall_is_taken_by_the_same_account_and_nothing_cools() {
    let (vendor, served) = served(true).await;
    vendor.script(
        "a",
        [wall("treatment"), Reply::chat("slow but there").header("anthropic-ratelimit-unified-slow-status", "active"), Reply::chat("next")],
    );
    assert_eq!(served.chat("assistant").await.content(), "slow but there");
    assert_eq!(served.connection("a").await["state"], "Active");
    assert_eq!(served.chat("assistant").await.content(), "next", "the lane stays open");
    assert_eq!(slow(&vendor), [call("a", false), call("a", true), call("a", true)]);
}

#[tokio::test]
async fn without_the_opt_in_or_without_an_offer_the_wall_is_an_ordinary_limit() {
    for (low_priority, offer) in [(false, "treatment"), (true, "control")] {
        let (vendor, served) = served(low_priority).await;
        vendor.script("a", [wall(offer)]);
        vendor.script("b", [Reply::chat("b")]);
        assert_eq!(served.chat("assistant").await.content(), "b");
        assert_eq!(served.connection("a").await["state"], "Cooling", "{PREFIX}{offer}");
        assert_eq!(slow(&vendor), [call("a", false), call("b", false)]);
    }
}

#[tokio::test]
async fn a_client_that_asks_for_one_call_gets_the_wall() {
    let (vendor, served) = served(true).await;
    vendor.script("a", [wall("treatment"), Reply::chat("slow but there")]);
    assert_eq!(served.only_once("assistant").await.status, 429);
    assert_eq!(slow(&vendor), [call("a", false)]);
}

const ORGANIZATION: &str = "00000000-0000-4000-8000-000000000001";

/// A gateway whose first account may use its weekly reset, and the answers to the question for it and to the claim.
async fn resetting(usage: Reply, claim: Reply) -> (Vendor, Served) {
    let vendor = Vendor::start().await;
    let setup = Setup::new().provider("one", &vendor.base_url()).connection("one", "a", 1).connection("one", "b", 2).combo(
        "assistant",
        Strategy::Priority,
        &["one/m"],
    );
    let setup = setup.change(|s| {
        s.connections[0].claude.auto_limit_reset = true;
        s.connections[0].claude.organization_uuid = Some(ORGANIZATION.to_owned());
    });
    vendor.script("a", [wall("control"), usage, claim, Reply::chat("full speed")]);
    (vendor, setup.start())
}

fn paths(vendor: &Vendor) -> Vec<(String, String)> {
    vendor.seen().iter().map(|seen| (seen.key().to_owned(), seen.path.clone())).collect()
}

fn offer(available: bool) -> Reply {
    Reply::new(200, serde_json::json!({"juniper_tide": {"eligible": true, "arm": "reset", "available": available}}))
}

#[tokio::test]
async fn the_weekly_reset_opens_the_wall_for_the_same_account() {
    let (vendor, served) = resetting(offer(true), Reply::new(200, r#"{"result":"reset"}"#)).await;
    assert_eq!(served.chat("assistant").await.content(), "full speed");
    assert_eq!(served.connection("a").await["state"], "Active");
    let a = |path: &str| ("a".to_owned(), path.to_owned());
    let claim = format!("/api/organizations/{ORGANIZATION}/reset_rate_limits");
    // Everything at the provider's own address, with the account's own token.
    assert_eq!(paths(&vendor), [a("/v1/chat/completions"), a("/api/oauth/usage"), a(&claim), a("/v1/chat/completions")]);
    assert_eq!(&vendor.seen()[2].body[..], br#"{"program":"juniper_tide"}"#);
    let metrics = served.manage("GET", "/metrics", "").await.text();
    assert!(metrics.contains("omniroute_claude_limit_resets_total{connection=\"a\",result=\"granted\"} 1"), "{metrics}");
}

#[tokio::test]
async fn without_a_reset_the_wall_is_an_ordinary_limit_and_nobody_asks_again() {
    for (usage, claim, asked) in
        [(offer(false), Reply::error(500, "never asked"), 1), (offer(true), Reply::new(200, r#"{"result":"already_used"}"#), 2)]
    {
        let (vendor, served) = resetting(usage, claim).await;
        assert_eq!(served.chat("assistant").await.content(), "b");
        assert_eq!(served.connection("a").await["state"], "Cooling");
        let errands = |vendor: &Vendor| paths(vendor).iter().filter(|(_, path)| path.starts_with("/api/")).count();
        assert_eq!(errands(&vendor), asked);
        served.gateway.ledger().clear_cooldowns(&omniroute::resilience::Selection::All, omniroute::gateway::clock::now());
        vendor.script("a", [wall("control")]);
        assert_eq!(served.chat("assistant").await.content(), "b");
        assert_eq!(errands(&vendor), asked, "not before the next one is announced");
    }
}
