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
