//! The configuration that is served: one immutable value with everything resolved, swapped as a whole (DESIGN.md).

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::auth::KeyRing;
use super::metrics::{AttemptCounters, Kind, RequestCounters};
use super::tls::TlsConfigs;
use super::upstream::{Upstream, UpstreamConfigError};
use crate::api::time::EpochMs;
use crate::classify::RuleSet;
use crate::resilience::{ConnectionCell, FindingState, Ledger};
use crate::routing::Router;
use crate::snapshot::{Connection, Provider, Snapshot};

/// Why a snapshot was refused; the one before it stays.
#[derive(thiserror::Error, Debug)]
pub enum LoadError {
    /// It cannot be hashed.
    #[error("hashing the snapshot: {0}")]
    Hash(#[from] serde_json::Error),
    /// A connection names a provider that is not in the snapshot.
    #[error("loading connection `{connection}`: its provider `{provider}` is not in the snapshot")]
    NoProvider {
        /// The connection.
        connection: String,
        /// What it names.
        provider: String,
    },
    /// A connection's upstream cannot be set up.
    #[error("loading connection `{connection}`: {source}")]
    Upstream {
        /// The connection.
        connection: String,
        /// What is wrong.
        source: UpstreamConfigError,
    },
    /// The ledger does not know a connection that it was just given.
    #[error("loading connection `{0}`: the ledger has no cell for it")]
    NoCell(String),
}

/// One connection, ready for the request path: nothing is looked up by name any more.
#[derive(Debug)]
pub struct Account {
    /// Position in `Snapshot::connections`, by which routing names it.
    pub index: usize,
    /// Position of its provider in `Snapshot::providers`.
    pub provider: usize,
    /// Its cell in the ledger.
    pub cell: Arc<ConnectionCell>,
    /// Where and how it is reached.
    pub upstream: Upstream,
    /// Its counters.
    pub attempts: AttemptCounters,
}

/// A snapshot with everything resolved.
#[derive(Debug)]
pub struct Loaded {
    /// Names, strategies and their state; holds the snapshot.
    pub router: Arc<Router>,
    /// The snapshot.
    pub snapshot: Arc<Snapshot>,
    /// Its hash.
    pub hash: String,
    /// When it was loaded.
    pub loaded_time: EpochMs,
    /// What the compiler found (`run` only).
    pub findings: Vec<FindingState>,
    /// Client keys.
    pub keys: KeyRing,
    /// Rules and detectors.
    pub rules: Arc<RuleSet>,
    /// By position in `Snapshot::connections`.
    pub accounts: Vec<Account>,
    /// Counters by position in `Snapshot::combos`.
    pub combo_counters: Vec<RequestCounters>,
    /// Counters of requests that name no combo.
    pub direct_counters: RequestCounters,
}

impl Loaded {
    /// Resolves a snapshot. The ledger must have been configured with it before.
    ///
    /// # Errors
    /// Names the object that cannot be served; the caller keeps what it had.
    pub fn new(
        snapshot: Arc<Snapshot>,
        findings: Vec<FindingState>,
        ledger: &Ledger,
        previous: Option<&Self>,
        now: EpochMs,
    ) -> Result<Self, LoadError> {
        let hash = snapshot.hash()?;
        let positions: HashMap<&str, usize> = snapshot.providers.iter().enumerate().map(|(i, p)| (p.name.as_str(), i)).collect();
        let tls = TlsConfigs::default();
        let accounts = snapshot.connections.iter().enumerate().map(|(index, connection)| {
            let provider = positions.get(connection.provider.as_str()).copied();
            account(index, connection, provider.and_then(|p| Some((p, snapshot.providers.get(p)?))), ledger, &tls)
        });
        let accounts = accounts.collect::<Result<Vec<_>, _>>()?;
        Ok(Self {
            keys: KeyRing::new(&snapshot),
            rules: rules(&snapshot, previous),
            combo_counters: snapshot.combos.iter().map(|combo| RequestCounters::new(&combo.name)).collect(),
            direct_counters: RequestCounters::new(""),
            router: Arc::new(Router::new(Arc::clone(&snapshot), previous.map(|p| p.router.as_ref()))),
            snapshot,
            hash,
            loaded_time: now,
            findings,
            accounts,
        })
    }

    /// The definition of an account.
    #[must_use]
    pub fn connection(&self, account: &Account) -> Option<&Connection> {
        self.snapshot.connections.get(account.index)
    }

    /// The provider of an account.
    #[must_use]
    pub fn provider(&self, account: &Account) -> Option<&Provider> {
        self.snapshot.providers.get(account.provider)
    }

    /// Whether an object of this name exists, for metrics.
    #[must_use]
    pub fn names(&self) -> impl Fn(Kind, &str) -> bool + use<> {
        let set = |names: Vec<String>| names.into_iter().collect::<HashSet<String>>();
        let combos = set(self.snapshot.combos.iter().map(|c| c.name.clone()).collect());
        let connections = set(self.snapshot.connections.iter().map(|c| c.name.clone()).collect());
        let rules = set(self.snapshot.rules.iter().map(|r| r.name.clone()).collect());
        move |kind, name| match kind {
            Kind::Combo => combos.contains(name),
            Kind::Connection => connections.contains(name),
            Kind::Rule => rules.contains(name),
        }
    }
}

/// The rules of the snapshot before, when they say the same: building the automaton is the costly part of a load.
fn rules(snapshot: &Snapshot, previous: Option<&Loaded>) -> Arc<RuleSet> {
    let settings = &snapshot.settings;
    let same = previous.filter(|previous| {
        let before = &previous.snapshot.settings;
        previous.snapshot.rules == snapshot.rules
            && before.disabled_builtins == settings.disabled_builtins
            && before.custom_banned_signals == settings.custom_banned_signals
    });
    match same {
        Some(previous) => Arc::clone(&previous.rules),
        None => Arc::new(RuleSet::new(&snapshot.rules, &settings.disabled_builtins, &settings.custom_banned_signals)),
    }
}

fn account(
    index: usize,
    connection: &Connection,
    provider: Option<(usize, &Provider)>,
    ledger: &Ledger,
    tls: &TlsConfigs,
) -> Result<Account, LoadError> {
    let name = || connection.name.clone();
    let Some((position, provider)) = provider else {
        return Err(LoadError::NoProvider { connection: name(), provider: connection.provider.clone() });
    };
    let cell = ledger.connection(&connection.name).ok_or_else(|| LoadError::NoCell(name()))?;
    let upstream = Upstream::new(provider, connection, tls).map_err(|source| LoadError::Upstream { connection: name(), source })?;
    Ok(Account { index, provider: position, cell, upstream, attempts: AttemptCounters::new(&connection.provider, &connection.name) })
}
