//! The configuration that is served: one immutable value with everything resolved, swapped as a whole (DESIGN.md).

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use super::auth::KeyRing;
use super::learned::Learned;
use super::limits::{Limits, Queues};
use super::metrics::{AttemptCounters, Kind, RequestCounters};
use super::queue::Queue;
use super::stats::{ComboStats, Stats};
use super::upstream::{Upstream, UpstreamConfigError};
use crate::api::time::EpochMs;
use crate::classify::RuleSet;
use crate::dial::tls::TlsConfigs;
use crate::resilience::{ConnectionCell, FindingState, Ledger, Staged, StagedCell};
use crate::routing::Router;
use crate::snapshot::{Connection, Provider, Snapshot, Strategy, UnusableConnection};

/// Why a snapshot was refused; the one before it stays.
#[derive(thiserror::Error, Debug)]
pub enum LoadError {
    /// It cannot be hashed.
    #[error("hashing the snapshot: {0}")]
    Hash(#[from] serde_json::Error),
    /// It has connections, and none of them can be set up: what ran before serves better.
    #[error("none of the {connections} connections can be used; the first, `{first}`: {why}")]
    Nothing {
        /// How many there are.
        connections: usize,
        /// The first by name.
        first: String,
        /// What is wrong with it.
        why: String,
    },
}

/// A snapshot of which everything that can fail was built. What lasts beyond a snapshot was not touched yet.
#[derive(Debug)]
pub struct Checked {
    hash: String,
    /// Without the connections that cannot be set up; those are among its unusable ones.
    snapshot: Arc<Snapshot>,
    /// Position of the provider, and the way to it, by position in `snapshot.connections`.
    upstreams: Vec<(usize, Upstream)>,
    left_out: Vec<FindingState>,
}

impl Checked {
    /// Builds what a snapshot needs. A connection that cannot be set up is left out, with a finding; the others serve. `instead` says that
    /// there is something else to serve, should nothing of this snapshot be of use.
    ///
    /// # Errors
    /// It has no hash, or nothing in it can be served.
    pub fn new(mut snapshot: Snapshot, instead: bool) -> Result<Self, LoadError> {
        // Of what was delivered: it is by this hash that the sender knows it.
        let hash = snapshot.hash()?;
        let tls = TlsConfigs::default();
        let (mut good, mut upstreams, mut left_out) = (Vec::new(), Vec::new(), Vec::new());
        for connection in std::mem::take(&mut snapshot.connections) {
            match upstream(&snapshot.providers, &connection, &tls) {
                Ok(upstream) => {
                    upstreams.push(upstream);
                    good.push(connection);
                }
                Err((field, message)) => {
                    tracing::error!(connection = %connection.name, field, "the connection is left out: {message}");
                    snapshot.fragments.remove(&format!("Connection/{}", connection.name));
                    left_out.push(FindingState {
                        kind: "Connection".to_owned(),
                        name: connection.name.clone(),
                        field: field.to_owned(),
                        reason: "InvalidSpec".to_owned(),
                        message,
                    });
                    let (name, provider) = (connection.name, connection.provider);
                    snapshot.unusable_connections.push(UnusableConnection { name, provider, reason: "InvalidSpec".to_owned() });
                }
            }
        }
        if let Some(first) = left_out.first().filter(|_| instead && good.is_empty()) {
            return Err(LoadError::Nothing { connections: left_out.len(), first: first.name.clone(), why: first.message.clone() });
        }
        snapshot.connections = good;
        snapshot.unusable_connections.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(Self { hash, snapshot: Arc::new(snapshot), upstreams, left_out })
    }

    /// What is going to be served.
    #[must_use]
    pub fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.snapshot)
    }
}

/// The way to a connection's provider; or the field of the connection that is to blame, and what is wrong.
fn upstream(providers: &[Provider], connection: &Connection, tls: &TlsConfigs) -> Result<(usize, Upstream), (&'static str, String)> {
    let found = providers.iter().enumerate().find(|(_, provider)| provider.name == connection.provider);
    let (position, provider) =
        found.ok_or_else(|| ("spec.providerRef.name", format!("its Provider `{}` is not in the configuration", connection.provider)))?;
    Upstream::new(provider, connection, tls)
        .map(|upstream| (position, upstream))
        .map_err(|error: UpstreamConfigError| (error.connection_field(), error.to_string()))
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
    /// Resolves a snapshot over the cells that the ledger has staged for it. Nothing of this can fail.
    #[must_use]
    pub fn new(
        checked: Checked,
        mut findings: Vec<FindingState>,
        lasting: &Lasting,
        staged: &Staged<'_>,
        previous: Option<&Self>,
        now: EpochMs,
    ) -> Self {
        let Checked { hash, snapshot, upstreams, left_out } = checked;
        findings.extend(left_out);
        let queues = lasting.queues.lock().unwrap_or_else(PoisonError::into_inner).of(&snapshot);
        let resolver = Resolver { snapshot: &snapshot, queues, previous };
        // Both lists follow `snapshot.connections`, all of which have a provider.
        let pairs = upstreams.into_iter().zip(staged.cells());
        let accounts: Vec<Account> = pairs.enumerate().filter_map(|(index, (way, cell))| resolver.account(index, way, cell)).collect();
        Self {
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
        }
    }

    /// The account of a connection, by its name.
    #[must_use]
    pub fn account(&self, name: &str) -> Option<&Account> {
        self.accounts.get(*self.by_name.get(name)?)
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
    queues: HashMap<String, Arc<Queue>>,
    previous: Option<&'a Loaded>,
}

impl Resolver<'_> {
    fn account(&self, index: usize, (position, upstream): (usize, Upstream), staged: &StagedCell) -> Option<Account> {
        let (connection, provider) = (self.snapshot.connections.get(index)?, self.snapshot.providers.get(position)?);
        let queue = self.queues.get(&provider.name).cloned().unwrap_or_default();
        Some(Account {
            index,
            provider: position,
            cell: Arc::clone(&staged.cell),
            credential: staged.credential,
            upstream,
            attempts: AttemptCounters::new(&connection.provider, &connection.name),
            limits: Limits::new(provider, connection, &self.snapshot.settings, queue),
            learned: self.learned(connection),
        })
    }

    /// What was learned about the same credential before.
    fn learned(&self, connection: &Connection) -> Arc<Learned> {
        let known = self.previous.and_then(|previous| {
            let account = previous.account(&connection.name)?;
            let same = previous.connection(account)?.credential_fingerprint == connection.credential_fingerprint;
            same.then(|| Arc::clone(&account.learned))
        });
        known.unwrap_or_default()
    }
}
