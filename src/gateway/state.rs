//! What the gateway says about itself: the body of `/state`, its version, and waiting for the next one.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::{Gateway, clock};
use crate::resilience::{SnapshotInfo, StateReport};

/// Longest sleep between two looks at the clock while a client waits for a change.
const LOOK: Duration = Duration::from_secs(1);

impl Gateway {
    /// The version of the state: grows with every change of the ledger, of a timer and of the configuration. It starts at the time of the
    /// process's start, so that a version from before a restart is never taken for a later one.
    #[must_use]
    pub fn state_version(&self) -> u64 {
        self.first_version + self.ledger().version(clock::now()) + self.config_version.load(Ordering::Acquire)
    }

    /// The body of `/state`.
    #[must_use]
    pub fn state(&self) -> StateReport {
        // Read first: a change in between makes the next version differ, never this one claim too much.
        let version = self.state_version();
        let report = self.ledger().report(clock::now());
        let loaded = self.config();
        let snapshot = loaded.as_ref().map(|l| SnapshotInfo { hash: l.hash.clone(), loaded_time: Some(l.loaded_time) });
        StateReport {
            version,
            snapshot: snapshot.unwrap_or_default(),
            refused: self.refused.load().as_ref().map(|why| why.as_ref().clone()),
            providers: report.providers,
            connections: report.connections,
            rules: report.rules,
            findings: loaded.iter().flat_map(|l| l.findings.clone()).chain(self.shared.finding()).collect(),
            fragments: loaded.map(|l| l.snapshot.fragments.clone()).unwrap_or_default(),
            commands: report.commands,
        }
    }

    /// Waits until the version differs from `known`, at most `patience`.
    pub async fn state_changed(&self, known: u64, patience: Duration) {
        let deadline = Instant::now() + patience;
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // Registered before the look, so that a change in between is not missed.
            changed.as_mut().enable();
            let now = Instant::now();
            if self.state_version() != known || now >= deadline {
                return;
            }
            let timer = self.ledger().next_change().map_or(LOOK, |at| Duration::from_millis(at.since(clock::now()).saturating_add(1)));
            // Elapsed or notified: both mean "look again".
            let _ = timeout_at(deadline.min(now + timer.min(LOOK)), changed).await;
        }
    }
}
