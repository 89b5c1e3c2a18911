//! The present as routing asks for it, answered from the ledger and the session pins.

use super::clock;
use super::pipeline::Shared;
use crate::api::time::EpochMs;
use crate::resilience::{self, SkipReason};
use crate::routing::{Exclusion, ExclusionReason, Live, Load};

/// The present as seen by one request.
#[derive(Debug)]
pub(super) struct Present<'a> {
    /// The request.
    pub shared: &'a Shared,
}

impl Live for Present<'_> {
    fn check(&self, connection: usize, model: &str, now: EpochMs) -> Result<(), Exclusion> {
        let Some(account) = self.shared.loaded.accounts.get(connection) else { return Err(Exclusion::of(ExclusionReason::Unavailable)) };
        self.shared.gateway().ledger().check(&account.cell, Some(model), now).map_err(exclusion)
    }

    fn load(&self, connection: usize) -> Load {
        let Some(account) = self.shared.loaded.accounts.get(connection) else { return Load::default() };
        let history = self.shared.gateway().ledger().history(&account.cell, None, clock::now());
        Load { in_flight: account.cell.in_flight(), backoff_level: history.backoff_level, ..Load::default() }
    }

    fn pinned(&self, provider: usize) -> Option<usize> {
        let session = self.shared.session.as_ref()?;
        let provider = self.shared.loaded.snapshot.providers.get(provider)?;
        let connection = self.shared.gateway().sessions().pinned(&session.key(&provider.name), clock::now())?;
        self.shared.loaded.by_name.get(&connection).copied()
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
