//! What failures, successes, commands and snapshots do to the ledger, case by case.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "support/ledger.rs"]
mod support;

#[path = "ledger"]
mod cases {
    mod connections;
    mod memory;
    mod providers;
    mod scopes;
}

use omniroute::api::time::EpochMs;
use omniroute::resilience::Ledger;
use support::{NOW, state};

fn until(ledger: &Ledger, name: &str, now: EpochMs) -> Option<u64> {
    state(ledger, name, now).until.map(|t| t.since(NOW))
}

fn locked(ledger: &Ledger, name: &str, now: EpochMs) -> Vec<(String, u64)> {
    let locks = state(ledger, name, now).lockouts;
    locks.into_iter().map(|l| (l.model, l.until.expect("a running lock").since(NOW))).collect()
}
