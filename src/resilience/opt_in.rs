//! What settings add to a verdict where an operator opted in: rotation on a plain 400 (spec: resilience 5.4) and cooling after a content
//! stall (5.6). The classifier knows no settings; without an opt-in its verdict stands.

use std::sync::Arc;

use super::cooldown::scaled_ms;
use super::ledger::Ledger;
use crate::classify::{Failover, History, LevelChange, Reason, Scope, Verdict, WaitSource};
use crate::snapshot::Rotation;

/// Rest after a plain 400 that has no override, milliseconds.
const PLAIN_400_MS: u64 = 120_000;

/// Rows of the classifier that mean a content stall: a stream that brought nothing within its budget.
const STALL_ROW: &str = "transport.stream-not-ready";

impl Ledger {
    /// Completes a verdict by what the settings opt in to. Call it after `classify`, before the verdict decides about failover and is
    /// recorded.
    pub fn complete(&self, verdict: &mut Verdict, status: u16, history: &History) {
        let index = self.index.load();
        rotate_plain_400(verdict, status, history, &index.settings.rotation);
        if index.settings.stream_stall_cooldown {
            cool_stall(verdict, history);
        }
    }
}

/// A plain 400 is the client's own fault, unless the operator says that this vendor's 400s are limits in disguise.
fn rotate_plain_400(verdict: &mut Verdict, status: u16, history: &History, rotation: &Rotation) {
    let opted_in = rotation.enabled && rotation.on_400.enabled;
    if !opted_in || status != 400 || verdict.failover != Failover::Stop {
        return;
    }
    let (wait, source) = history.retry_override_ms.map_or((PLAIN_400_MS, WaitSource::Fixed), |ms| (ms, WaitSource::Override));
    verdict.failover = Failover::OtherConnection;
    verdict.reason = Reason::RateLimitExceeded;
    verdict.scope = Scope::Connection;
    verdict.cooldown_ms = wait;
    verdict.wait_source = Some(source);
    verdict.level = LevelChange::Set(0);
    verdict.decided_by = Arc::from("rotation.400");
}

fn cool_stall(verdict: &mut Verdict, history: &History) {
    if &*verdict.decided_by != STALL_ROW || verdict.cooldown_ms > 0 {
        return;
    }
    verdict.cooldown_ms = scaled_ms(history.backoff_level, &history.profile);
    verdict.wait_source = Some(WaitSource::Scaled);
    verdict.level = LevelChange::Set((history.backoff_level + 1).min(history.profile.max_backoff_steps));
}
