//! The gateway: server, authentication, pipeline, upstream client, admission, streams, sessions, store, management, metrics.

pub mod admin;
pub mod admission;
pub mod answer;
mod attempt;
pub mod auth;
pub mod body;
pub mod clock;
mod compose;
pub mod config;
mod ending;
mod engine;
pub mod gates;
mod handoff;
pub mod ingest;
mod lane;
pub mod learned;
mod leases;
pub mod limits;
mod live;
pub mod metrics;
mod models;
mod pipeline;
pub mod queue;
pub mod relay;
pub mod server;
pub mod service;
pub mod sessions;
mod shared;
pub mod sniff;
mod state;
pub mod stats;
pub mod store;
pub mod upstream;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use self::admission::{Buffers, Requests};
use self::config::{Checked, Lasting, LoadError, Loaded};
use self::metrics::Metrics;
use self::sessions::Sessions;
use self::shared::Shared;
use self::store::{Document, Store, StoreError};
use crate::api::time::EpochMs;
use crate::compile::oauth::Tokens;
use crate::resilience::{Checkpoint, Effect, FindingState, Ledger};
use crate::routing::leases::LeaseTable;
use crate::snapshot::{Command, Snapshot};

/// Any error, for bodies.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Between a change and its write to the store; well below the promised second.
const SAVE_PAUSE: Duration = Duration::from_millis(250);
/// Between two writes of session pins and answer ids.
const SESSIONS_PAUSE: Duration = Duration::from_secs(5);

/// What the compiler of `run` remembers between two runs of the process.
#[derive(Clone, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Identity {
    /// Key of the fingerprints of credentials.
    pub fingerprint_key: Vec<u8>,
    commands: Vec<Accepted>,
}

/// A command with its time to the millisecond: JSON of a [`Command`] has whole seconds, and what failed within the same second as a command
/// must still be told from what the command ended.
#[derive(Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
struct Accepted {
    command: Command,
    accepted_ms: i64,
}

impl Identity {
    /// The commands that were accepted, with their times.
    #[must_use]
    pub fn accepted(&self) -> Vec<Command> {
        let exact = |accepted: &Accepted| Command { accepted_time: EpochMs(accepted.accepted_ms), ..accepted.command.clone() };
        self.commands.iter().map(exact).collect()
    }
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity").field("commands", &self.commands.len()).finish_non_exhaustive()
    }
}

/// Why the stored state could not be taken over.
#[derive(thiserror::Error, Debug)]
pub enum RestoreError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// It holds something else.
    #[error("reading the stored state: {0}; remove the state file to start without it")]
    Content(String),
}

/// Why the state could not be written.
#[derive(thiserror::Error, Debug)]
pub enum SaveError {
    /// It has no JSON form.
    #[error("writing the state as JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// One gateway: what all serving threads share.
#[derive(Debug)]
pub struct Gateway {
    config: ArcSwapOption<Loaded>,
    /// One load at a time.
    loading: Mutex<()>,
    /// What the first load takes over.
    to_restore: Mutex<Option<Checkpoint>>,
    lasting: Lasting,
    sessions: Sessions,
    leases: LeaseTable,
    /// Tells those who wait for a lease that one may be free.
    lease_changes: Notify,
    metrics: Metrics,
    requests: Requests,
    buffers: Buffers,
    serving: AtomicBool,
    refused: ArcSwapOption<String>,
    /// Grows when something changes that the ledger does not know: snapshots, refusals, findings.
    config_version: AtomicU64,
    /// Tells `/state?wait` and the store that something changed.
    changed: Notify,
    /// See [`Self::state_version`].
    first_version: u64,
    store: Box<dyn Store>,
    /// What the replicas of this gateway share.
    shared: Shared,
}

impl Gateway {
    /// A gateway without a snapshot: it serves only its management port until [`Self::load`].
    ///
    /// # Errors
    /// Only when two metrics of the product had the same name.
    pub fn new(store: Box<dyn Store>) -> Result<Arc<Self>, prometheus::Error> {
        Ok(Arc::new(Self {
            config: ArcSwapOption::empty(),
            loading: Mutex::new(()),
            to_restore: Mutex::new(None),
            lasting: Lasting::default(),
            sessions: Sessions::default(),
            leases: LeaseTable::default(),
            lease_changes: Notify::new(),
            metrics: Metrics::new()?,
            requests: Requests::default(),
            buffers: Buffers::default(),
            serving: AtomicBool::new(false),
            refused: ArcSwapOption::empty(),
            config_version: AtomicU64::new(0),
            changed: Notify::new(),
            first_version: clock::now().since(EpochMs(0)),
            store,
            shared: Shared::default(),
        }))
    }

    /// Serves this snapshot from now on. State of unchanged connections survives. Requests that run finish with what they started with.
    ///
    /// # Errors
    /// Says what cannot be served; the snapshot before stays, and `/state` shows the refusal.
    pub fn load(&self, snapshot: Snapshot, findings: Vec<FindingState>) -> Result<(), LoadError> {
        let _one_at_a_time = lock(&self.loading);
        let now = clock::now();
        let previous = self.config.load_full();
        let instead = previous.as_ref().is_some_and(|previous| !previous.accounts.is_empty());
        let checked = Checked::new(snapshot, instead).inspect_err(|error| self.refuse(error.to_string()))?;
        // From here on nothing fails.
        let snapshot = checked.snapshot();
        let staged = self.lasting.ledger.stage(&snapshot);
        let loaded = Arc::new(Loaded::new(checked, findings, &self.lasting, &staged, previous.as_deref(), now));
        self.requests.limit(u64::from(loaded.snapshot.settings.max_concurrent_requests));
        self.buffers.limit(loaded.snapshot.settings.max_buffered_bytes);
        self.metrics.loaded(&loaded.hash);
        self.metrics.prune(loaded.names());
        self.leases.invalidate(|lease| leases::outdated(lease, &loaded), now);
        self.shared.configure(loaded.snapshot.state_store.as_ref(), previous.is_none());
        let effects = if previous.is_some() {
            // The new keys are in use before what the old ones caused is forgotten: otherwise a request could still carry an old one then.
            self.config.store(Some(loaded));
            staged.commit(now)
        } else {
            // Nothing is served before what rested is known.
            let effects = staged.commit(now);
            if let Some(checkpoint) = lock(&self.to_restore).take() {
                self.lasting.ledger.restore(&checkpoint, now);
            }
            self.config.store(Some(loaded));
            effects
        };
        self.refused.store(None);
        self.config_version.fetch_add(1, Ordering::Release);
        self.apply(&effects);
        self.notify();
        Ok(())
    }

    /// The newest configuration is the running one again: what was refused in between is history.
    pub fn settle(&self) {
        if self.refused.swap(None).is_some() {
            self.config_version.fetch_add(1, Ordering::Release);
            self.notify();
        }
    }

    /// Remembers that a newer configuration could not be used; the last good one stays.
    pub fn refuse(&self, why: String) {
        tracing::error!(reason = %why, "the new configuration is refused; the last good one stays");
        self.metrics.refused();
        self.refused.store(Some(Arc::new(why)));
        self.config_version.fetch_add(1, Ordering::Release);
        self.notify();
    }

    /// Reads what the store kept, merged with `delivered` (the checkpoint of a cluster). The first [`Self::load`] takes it over before the
    /// gateway is ready, so that a restart never floods what rests.
    ///
    /// # Errors
    /// The first document that cannot be read, or is something else; what the others say is taken over all the same.
    pub fn prepare_restore(&self, delivered: Option<&Checkpoint>) -> Result<(), RestoreError> {
        // Each document on its own: what one of them lost must not take the others with it, nor what the cluster delivered.
        let read = |document| self.store.load(document).map_err(RestoreError::from);
        let content = |error: &dyn std::fmt::Display| RestoreError::Content(error.to_string());
        let now = clock::now();
        let stored = read(Document::Ledger)
            .and_then(|bytes| bytes.map(|bytes| Checkpoint::from_json(&bytes).map_err(|error| content(&error))).transpose());
        let sessions = read(Document::Sessions)
            .and_then(|bytes| bytes.map_or(Ok(()), |bytes| self.sessions.restore(&bytes, now).map_err(|error| content(&error))));
        let leases = read(Document::Leases)
            .and_then(|bytes| bytes.map_or(Ok(()), |bytes| self.leases.restore(&bytes, now).map_err(|error| content(&error))));
        let (stored, unreadable) = match stored {
            Ok(stored) => (stored, None),
            Err(error) => (None, Some(error)),
        };
        *lock(&self.to_restore) = match (stored, delivered) {
            (Some(stored), Some(delivered)) => Some(stored.merge(delivered)),
            (stored, delivered) => stored.or_else(|| delivered.cloned()),
        };
        unreadable.map_or(Ok(()), Err).and(sessions).and(leases)
    }

    /// What the compiler of `run` must remember; made up at the first start.
    ///
    /// # Errors
    /// The store cannot be read or written, or holds something else.
    pub fn identity(&self) -> Result<Identity, RestoreError> {
        if let Some(bytes) = self.store.load(Document::Identity)? {
            return serde_json::from_slice(&bytes).map_err(|error| RestoreError::Content(error.to_string()));
        }
        let identity = Identity { fingerprint_key: rand::random::<[u8; 32]>().to_vec(), commands: Vec::new() };
        self.keep_identity(&identity)?;
        Ok(identity)
    }

    /// Stores which commands were accepted when, so that a restart does not take them for new ones.
    ///
    /// # Errors
    /// The store cannot be read or written.
    pub fn keep_commands(&self) -> Result<(), RestoreError> {
        let accepted = |command: &Command| Accepted { accepted_ms: command.accepted_time.0, command: command.clone() };
        let commands: Vec<Accepted> = self.config().iter().flat_map(|loaded| loaded.snapshot.commands.iter().map(accepted)).collect();
        let identity = self.identity()?;
        if identity.commands == commands { Ok(()) } else { self.keep_identity(&Identity { commands, ..identity }) }
    }

    fn keep_identity(&self, identity: &Identity) -> Result<(), RestoreError> {
        let bytes = serde_json::to_vec(identity).map_err(|error| RestoreError::Content(error.to_string()))?;
        Ok(self.store.save(Document::Identity, &bytes)?)
    }

    /// The OAuth tokens that `run` refreshed before, by Connection.
    ///
    /// # Errors
    /// The store cannot be read, or holds something else.
    pub fn tokens(&self) -> Result<BTreeMap<String, Tokens>, RestoreError> {
        let Some(bytes) = self.store.load(Document::Tokens)? else { return Ok(BTreeMap::new()) };
        serde_json::from_slice(&bytes).map_err(|error| RestoreError::Content(error.to_string()))
    }

    /// Stores refreshed OAuth tokens. Blocks.
    ///
    /// # Errors
    /// The store cannot be written.
    pub fn keep_tokens(&self, tokens: &BTreeMap<String, Tokens>) -> Result<(), SaveError> {
        Ok(self.store.save(Document::Tokens, &serde_json::to_vec(tokens)?)?)
    }

    /// Writes the state to the store. Blocks.
    ///
    /// # Errors
    /// The store cannot be written.
    pub fn save(&self) -> Result<(), SaveError> {
        let now = clock::now();
        self.store.save(Document::Ledger, &serde_json::to_vec(&self.lasting.ledger.export(now))?)?;
        self.store.save(Document::Leases, &self.leases.export()?)?;
        Ok(())
    }

    /// Writes session pins and answer ids to the store. Blocks.
    ///
    /// # Errors
    /// The store cannot be written.
    pub fn save_sessions(&self) -> Result<(), SaveError> {
        self.store.save(Document::Sessions, &self.sessions.export(clock::now())?)?;
        Ok(())
    }

    /// Follows the changes of the state and writes each within a second, until `stop`; then once more. Session pins and answer ids change
    /// with the traffic: they are written every few seconds.
    pub async fn keep_saving(self: Arc<Self>, stop: CancellationToken) {
        let (mut ledger, mut sessions) = (0, self.sessions.version());
        let mut sessions_at = Instant::now();
        loop {
            let stopping = stop.is_cancelled();
            let (version, pins) = (self.state_version(), self.sessions.version());
            if version != ledger && self.write(Self::save).await {
                ledger = version;
            }
            if pins != sessions && (stopping || sessions_at.elapsed() >= SESSIONS_PAUSE) && self.write(Self::save_sessions).await {
                (sessions, sessions_at) = (pins, Instant::now());
            }
            if stopping {
                return;
            }
            tokio::select! {
                () = self.state_changed(version, SESSIONS_PAUSE) => {}
                () = stop.cancelled() => continue,
            }
            // Changes come in bursts: one write for each burst.
            tokio::select! {
                () = tokio::time::sleep(SAVE_PAUSE) => {}
                () = stop.cancelled() => {}
            }
        }
    }

    /// Runs a blocking write beside the event loop; answers whether it went well.
    async fn write(self: &Arc<Self>, save: fn(&Self) -> Result<(), SaveError>) -> bool {
        let gateway = Arc::clone(self);
        let written = tokio::task::spawn_blocking(move || save(&gateway)).await;
        match written {
            Ok(Ok(())) => return true,
            Ok(Err(error)) => tracing::error!(%error, "the state is not stored; it is tried again"),
            Err(error) => tracing::error!(%error, "the state is not stored"),
        }
        false
    }

    /// Logs transitions and wakes those who wait for them.
    pub fn apply(&self, effects: &[Effect]) {
        if effects.is_empty() {
            return;
        }
        for effect in effects {
            tracing::info!(target: "omniroute::ledger", connection = effect.connection().map(|name| &**name), provider = &**effect.provider(), "{effect}");
        }
        self.notify();
    }

    /// What is served now.
    #[must_use]
    pub fn config(&self) -> Option<Arc<Loaded>> {
        self.config.load_full()
    }

    /// The ledger.
    #[must_use]
    pub const fn ledger(&self) -> &Ledger {
        &self.lasting.ledger
    }

    const fn leases(&self) -> &LeaseTable {
        &self.leases
    }

    /// A lease began, moved or ended: it is stored, and those who wait for a free connection look again.
    fn leases_changed(&self) {
        self.lease_changes.notify_waiters();
        self.config_version.fetch_add(1, Ordering::Release);
        self.notify();
    }

    /// Session pins and answer ids.
    #[must_use]
    pub const fn sessions(&self) -> &Sessions {
        &self.sessions
    }

    /// The metrics.
    #[must_use]
    pub const fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Requests in flight.
    #[must_use]
    pub const fn requests(&self) -> &Requests {
        &self.requests
    }

    /// Held bodies.
    #[must_use]
    pub const fn buffers(&self) -> &Buffers {
        &self.buffers
    }

    /// True while the proxy port takes requests and there is a snapshot to serve them with, and, where replicas share state, once it is known
    /// what the others know.
    #[must_use]
    pub fn ready(&self) -> bool {
        self.serving.load(Ordering::Acquire) && self.config.load().is_some() && !self.shared.is_joining()
    }

    fn set_serving(&self, serving: bool) {
        self.serving.store(serving, Ordering::Release);
    }

    fn drain_deadline(&self) -> Duration {
        let ms = self.config.load().as_ref().map_or(0, |loaded| loaded.snapshot.settings.drain_deadline_ms);
        Duration::from_millis(ms)
    }

    fn notify(&self) {
        self.changed.notify_waiters();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
