//! Combos with `quotaShare`: accounts take turns by weight, and a request waits for its turn on the account that was chosen.

use std::time::{Duration, Instant};

use crate::support::{Got, Reply, Served, Setup, Vendor};
use omniroute::snapshot::{Combo, Snapshot, Strategy};

async fn shared(change: impl FnOnce(&mut Snapshot)) -> (Vendor, Served) {
    let vendor = Vendor::start().await;
    let setup = Setup::new()
        .provider("one", &vendor.base_url())
        .connection("one", "a", 1)
        .connection("one", "b", 2)
        .combo("shared", Strategy::QuotaWeighted, &["one/m1"])
        .change(|s| {
            s.settings.quota_share_concurrency_limit = true;
            let options = &mut s.combos[0].options;
            (options.quota_share, options.queue_depth, options.queue_timeout_ms) = (true, 20, 30_000);
        });
    (vendor, setup.change(change).start())
}

#[tokio::test]
async fn accounts_take_turns() {
    let (vendor, served) = shared(|_| {}).await;
    for _ in 0..6 {
        assert_eq!(served.chat("shared").await.status, 200);
    }
    let calls = vendor.calls();
    assert_eq!(calls.iter().filter(|key| *key == "a").count(), 3, "{calls:?}");
    assert!(calls.windows(2).all(|pair| pair[0] != pair[1]), "{calls:?}");
}

/// One request runs on the only account with a slot when another one comes.
async fn two_at_once(vendor: &Vendor, served: &Served) -> (String, String) {
    let (first, second) = tokio::join!(served.chat("shared"), async {
        vendor.called(1).await;
        served.chat("shared").await
    });
    (first.content(), second.content())
}

fn one_slot_and_a_fallback(s: &mut Snapshot) {
    s.combos[0].strategy = Strategy::Priority;
    s.connections[0].max_concurrent = 1;
}

#[tokio::test]
async fn a_request_waits_for_its_turn_instead_of_moving_on() {
    let (vendor, served) = shared(one_slot_and_a_fallback).await;
    vendor.script("a", [Reply::chat("a").after(300)]);
    assert_eq!(two_at_once(&vendor, &served).await, ("a".to_owned(), "a".to_owned()));
    assert_eq!(vendor.calls(), ["a", "a"]);
}

/// A request of another combo holds the only turn when one comes whose combo has a deadline.
async fn late(vendor: &Vendor, served: &Served) -> Got {
    let holder = async {
        let _ = served.chat("holder").await;
        std::future::pending::<Got>().await
    };
    let late = async {
        vendor.called(1).await;
        served.chat("shared").await
    };
    tokio::select! {
        got = holder => got,
        got = late => got,
    }
}

fn a_deadline(total_ms: u64) -> impl FnOnce(&mut Snapshot) {
    move |s| {
        one_slot_and_a_fallback(s);
        s.connections.truncate(1);
        let holder = Combo { name: "holder".to_owned(), model_names: vec!["holder".to_owned()], ..s.combos[0].clone() };
        s.combos.push(holder);
        s.combos[0].total_timeout_ms = total_ms;
    }
}

#[tokio::test]
async fn no_turn_is_waited_for_beyond_the_time_of_the_request() {
    let (vendor, served) = shared(a_deadline(300)).await;
    vendor.script("a", [Reply::chat("a").after(20_000)]);
    let got = late(&vendor, &served).await;
    assert_eq!((got.status, got.code().as_str(), vendor.calls().len()), (504, "COMBO_TIMEOUT", 1), "{}", got.text());
    let metrics = served.manage("GET", "/metrics", "").await.text();
    let counted: Vec<&str> = metrics.lines().filter(|line| line.starts_with("omniroute_attempts_total{")).collect();
    assert!(counted.iter().all(|line| line.contains("outcome=\"cancelled\"")), "nothing was sent: {counted:?}");
}

#[tokio::test]
async fn the_time_of_the_request_holds_whatever_the_turn_took() {
    let (vendor, served) = shared(a_deadline(3_000)).await;
    vendor.script("a", [Reply::chat("a").after(2_000), Reply::chat("a").after(20_000)]);
    let begin = Instant::now();
    let got = late(&vendor, &served).await;
    assert_eq!((got.status, got.code().as_str(), vendor.calls().len()), (504, "COMBO_TIMEOUT", 2), "{}", got.text());
    assert!(begin.elapsed() < Duration::from_millis(4_500), "{:?}", begin.elapsed());
}

#[tokio::test]
async fn without_a_turn_in_time_it_moves_on() {
    for change in [
        (|s: &mut Snapshot| s.combos[0].options.queue_timeout_ms = 20) as fn(&mut Snapshot),
        |s| s.combos[0].options.queue_depth = 0,
        |s| s.settings.quota_share_concurrency_limit = false,
    ] {
        let (vendor, served) = shared(|s| {
            one_slot_and_a_fallback(s);
            change(s);
        })
        .await;
        vendor.script("a", [Reply::chat("a").after(1_000)]);
        assert_eq!(two_at_once(&vendor, &served).await, ("a".to_owned(), "b".to_owned()));
    }
}
