//! The present as routing asks for it, answered from the ledger and the session pins.

use super::pipeline::Shared;
use super::{clock, leases};
use crate::api::time::EpochMs;
use crate::routing::{Exclusion, ExclusionReason, Live, Load};

/// The present as seen by one request.
#[derive(Debug)]
pub(super) struct Present<'a> {
    /// The request.
    pub shared: &'a Shared,
    /// Owned connections count like free ones.
    pub ignore_leases: bool,
}

impl Live for Present<'_> {
    fn check(&self, connection: usize, model: &str, now: EpochMs) -> Result<(), Exclusion> {
        let Some(account) = self.shared.loaded.accounts.get(connection) else { return Err(Exclusion::of(ExclusionReason::Unavailable)) };
        if !self.ignore_leases && leases::held(self.shared, account.cell.name(), now) {
            return Err(Exclusion::of(ExclusionReason::Leased));
        }
        self.shared.gateway().ledger().check(&account.cell, Some(model), now).map_err(Into::into)
    }

    fn load(&self, connection: usize) -> Load {
        let Some(account) = self.shared.loaded.accounts.get(connection) else { return Load::default() };
        let now = clock::now();
        let history = self.shared.gateway().ledger().history(&account.cell, None, now);
        Load {
            in_flight: account.cell.in_flight(),
            backoff_level: history.backoff_level,
            last_status: account.cell.last_status(),
            probing: account.cell.provider().is_probing(now),
        }
    }

    fn pinned(&self, provider: usize) -> Option<usize> {
        let session = self.shared.session.as_ref()?;
        let provider = self.shared.loaded.snapshot.providers.get(provider)?;
        let connection = self.shared.gateway().sessions().pinned(&session.key(&provider.name), clock::now())?;
        self.shared.loaded.by_name.get(&connection).copied()
    }
}
