//! The right to send one request to a connection, and the memory of when it was given.

use std::sync::Arc;

use super::breaker::ProbeToken;
use super::cell::ConnectionCell;
use super::ledger::history_at;
use crate::api::time::EpochMs;
use crate::classify::History;

/// One request in flight. Give it back with `Ledger::failure` or `Ledger::success`; dropping it says that nothing was learnt (the client
/// left, a local error), and a half-open probe goes back to the breaker.
#[derive(Debug)]
pub struct Permit {
    connection: Arc<ConnectionCell>,
    probe: Option<ProbeToken>,
    /// Failures of the connection that were recorded before this request began.
    pub(super) began: u64,
    /// The same of its provider.
    pub(super) provider_began: u64,
    /// The credential that it was sent with.
    pub(super) credential: u64,
    pub(super) started: EpochMs,
    pub(super) retry_override_ms: Option<u64>,
}

impl Permit {
    pub(super) fn new(connection: &Arc<ConnectionCell>, probe: Option<ProbeToken>, retry_override_ms: Option<u64>, now: EpochMs) -> Self {
        connection.enter();
        Self {
            connection: Arc::clone(connection),
            probe,
            began: connection.sequence(),
            provider_began: connection.provider().sequence(),
            credential: connection.credential(),
            started: now,
            retry_override_ms,
        }
    }

    /// Where the request goes.
    #[must_use]
    pub const fn connection(&self) -> &Arc<ConnectionCell> {
        &self.connection
    }

    /// True when this request is the probe of a half-open breaker.
    #[must_use]
    pub const fn is_probe(&self) -> bool {
        self.probe.is_some()
    }

    /// Says which credential the request really carries ([`ConnectionCell::credential`] when the configuration that it runs on was loaded): a rotation
    /// that came before `begin`, but after that configuration, must not be blamed for the old one.
    #[must_use]
    pub const fn carries(mut self, credential: u64) -> Self {
        self.credential = credential;
        self
    }

    /// What the classifier must know about this connection and model, as it was for requests that began when this one did: failures of
    /// requests that ran at the same time are left out, so that a herd is judged as one failure (decisions 3.3).
    #[must_use]
    pub fn history(&self, model: Option<&str>, now: EpochMs) -> History {
        history_at(&self.connection, model, self.began, self.retry_override_ms, now)
    }

    /// Hands the probe over to whoever records the result.
    pub(super) const fn take_probe(&mut self) -> Option<ProbeToken> {
        self.probe.take()
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.connection.leave();
        if let Some(token) = self.probe.take() {
            self.connection.provider().release(token);
        }
    }
}
