//! The configuration that is served: one immutable value with everything resolved, swapped as a whole (DESIGN.md).

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use super::auth::KeyRing;
use super::learned::Learned;
use super::limits::{Limits, Queues};
use super::metrics::{AttemptCounters, Kind, RequestCounters};
use super::queue::Queue;
use super::stats::{ComboStats, Stats};
use super::tls::TlsConfigs;
use super::upstream::{Upstream, UpstreamConfigError};
use crate::api::time::EpochMs;
use crate::classify::RuleSet;
use crate::resilience::{ConnectionCell, FindingState, Ledger};
use crate::routing::Router;
use crate::snapshot::{Connection, Provider, Snapshot, Strategy};

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
        source: Box<UpstreamConfigError>,
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
    /// Which credential of the cell `upstream` sends.
    pub credential: u64,
    /// Where and how it is reached.
    pub upstream: Upstream,
    /// Its counters.
    pub attempts: AttemptCounters,
    /// Its caps and pacing.
    pub limits: Limits,
    /// What its provider said about limits.
    pub learned: Arc<Learned>,
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
    /// Counts for people by position in `Snapshot::combos`.
    pub combo_stats: Vec<Arc<ComboStats>>,
    /// Positions in `Snapshot::connections` by name.
    pub by_name: HashMap<Arc<str>, usize>,
    /// Some combo is ordered by what vendors have in their caches.
    pub wants_cache_key: bool,
}

/// What outlives a snapshot and is needed to resolve the next one.
#[derive(Debug, Default)]
pub struct Lasting {
    /// Cells.
    pub ledger: Ledger,
    /// Queues in front of connections.
    pub queues: Mutex<Queues>,
    /// Counts per combo.
    pub stats: Stats,
}

impl Loaded {
    /// Resolves a snapshot. The ledger must have been configured with it before.
    ///
    /// # Errors
    /// Names the object that cannot be served; the caller keeps what it had.
    pub fn new(
        snapshot: Arc<Snapshot>,
        findings: Vec<FindingState>,
        lasting: &Lasting,
        previous: Option<&Self>,
        now: EpochMs,
    ) -> Result<Self, LoadError> {
        let hash = snapshot.hash()?;
        let positions: HashMap<&str, usize> = snapshot.providers.iter().enumerate().map(|(i, p)| (p.name.as_str(), i)).collect();
        let queues = lasting.queues.lock().unwrap_or_else(PoisonError::into_inner).of(&snapshot);
        let resolver = Resolver { snapshot: &snapshot, ledger: &lasting.ledger, queues, tls: TlsConfigs::default(), previous };
        let accounts = snapshot.connections.iter().enumerate().map(|(index, connection)| {
            let provider = positions.get(connection.provider.as_str()).copied();
            resolver.account(index, connection, provider.and_then(|p| Some((p, snapshot.providers.get(p)?))))
        });
        let accounts = accounts.collect::<Result<Vec<_>, _>>()?;
        Ok(Self {
            keys: KeyRing::new(&snapshot),
            rules: rules(&snapshot, previous),
            combo_counters: snapshot.combos.iter().map(|combo| RequestCounters::new(&combo.name)).collect(),
            direct_counters: RequestCounters::new(""),
            combo_stats: lasting.stats.of(&snapshot),
            by_name: accounts.iter().map(|account| (Arc::clone(account.cell.name()), account.index)).collect(),
            wants_cache_key: snapshot.combos.iter().any(|combo| combo.strategy == Strategy::CacheOptimized),
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

/// What is needed to resolve a connection.
struct Resolver<'a> {
    snapshot: &'a Snapshot,
    ledger: &'a Ledger,
    queues: HashMap<String, Arc<Queue>>,
    tls: TlsConfigs,
    previous: Option<&'a Loaded>,
}

impl Resolver<'_> {
    fn account(&self, index: usize, connection: &Connection, provider: Option<(usize, &Provider)>) -> Result<Account, LoadError> {
        let name = || connection.name.clone();
        let Some((position, provider)) = provider else {
            return Err(LoadError::NoProvider { connection: name(), provider: connection.provider.clone() });
        };
        let cell = self.ledger.connection(&connection.name).ok_or_else(|| LoadError::NoCell(name()))?;
        let upstream = Upstream::new(provider, connection, &self.tls)
            .map_err(|source| LoadError::Upstream { connection: name(), source: Box::new(source) })?;
        let queue = self.queues.get(&provider.name).cloned().unwrap_or_default();
        Ok(Account {
            index,
            provider: position,
            credential: cell.credential(),
            cell,
            upstream,
            attempts: AttemptCounters::new(&connection.provider, &connection.name),
            limits: Limits::new(provider, connection, &self.snapshot.settings, queue),
            learned: self.learned(connection),
        })
    }

    /// What was learned about the same credential before.
    fn learned(&self, connection: &Connection) -> Arc<Learned> {
        let known = self.previous.and_then(|previous| {
            let account = previous.accounts.get(*previous.by_name.get(connection.name.as_str())?)?;
            let same = previous.connection(account)?.credential_fingerprint == connection.credential_fingerprint;
            same.then(|| Arc::clone(&account.learned))
        });
        known.unwrap_or_default()
    }
}
