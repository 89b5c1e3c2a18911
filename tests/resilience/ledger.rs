//! What failures, successes, commands and snapshots do to the ledger, case by case.

mod connections;
mod memory;
mod providers;
mod replicas;
mod scopes;

use crate::support::{NOW, state};
use omniroute::api::time::EpochMs;
use omniroute::resilience::Ledger;

fn until(ledger: &Ledger, name: &str, now: EpochMs) -> Option<u64> {
    state(ledger, name, now).until.map(|t| t.since(NOW))
}

fn locked(ledger: &Ledger, name: &str, now: EpochMs) -> Vec<(String, u64)> {
    let locks = state(ledger, name, now).lockouts;
    locks.into_iter().map(|l| (l.model, l.until.expect("a running lock").since(NOW))).collect()
}
