//! The present as routing asks for it, answered from the ledger.

use super::config::Loaded;
use crate::api::time::EpochMs;
use crate::resilience::{self, Ledger, SkipReason};
use crate::routing::{Exclusion, ExclusionReason, Live, Load};

/// The ledger as seen by one request.
#[derive(Debug)]
pub(super) struct Present<'a> {
    /// What is served.
    pub loaded: &'a Loaded,
    /// Who rests.
    pub ledger: &'a Ledger,
    /// The connection that the request's session is pinned to, by position in the snapshot.
    pub pinned: Option<usize>,
}

impl Live for Present<'_> {
    fn check(&self, connection: usize, model: &str, now: EpochMs) -> Result<(), Exclusion> {
        let Some(account) = self.loaded.accounts.get(connection) else { return Err(Exclusion::of(ExclusionReason::Unavailable)) };
        self.ledger.check(&account.cell, Some(model), now).map_err(exclusion)
    }

    fn load(&self, connection: usize) -> Load {
        let Some(account) = self.loaded.accounts.get(connection) else { return Load::default() };
        Load { in_flight: account.cell.in_flight(), ..Load::default() }
    }

    fn pinned(&self, provider: usize) -> Option<usize> {
        self.pinned.filter(|pin| self.loaded.accounts.get(*pin).is_some_and(|account| account.provider == provider))
    }
}

/// The ledger's word in routing's terms.
pub(super) const fn exclusion(from: resilience::Exclusion) -> Exclusion {
    let reason = match from.reason {
        SkipReason::CircuitOpen => ExclusionReason::CircuitOpen,
        SkipReason::ProviderCooldown => ExclusionReason::ProviderCooldown,
        SkipReason::ConnectionCooldown => ExclusionReason::ConnectionCooldown,
        SkipReason::ModelLockout => ExclusionReason::ModelLockout,
        SkipReason::Terminal => ExclusionReason::Terminal,
        SkipReason::RequestExhaustion => ExclusionReason::RequestExhaustion,
        SkipReason::QuotaCutoff => ExclusionReason::QuotaCutoff,
        SkipReason::CredentialGate => ExclusionReason::CredentialGate,
        SkipReason::ConcurrencyCap | SkipReason::AdmissionLane => ExclusionReason::ConcurrencyCap,
        SkipReason::PredictiveTtft => ExclusionReason::PredictiveTtft,
        SkipReason::Unavailable => ExclusionReason::Unavailable,
    };
    Exclusion { reason, until: from.until, cause: from.cause, stated: from.stated }
}
