//! The only place that knows breakers, cooldowns, terminal states and lockouts: it answers whether a target may be used now, and hands
//! out permits. What a failure or a success changes is in [`super::apply`], operator's commands in [`super::commands`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use arc_swap::ArcSwap;

use super::breaker::Admission;
use super::cell::{ConnectionCell, ConnectionConfig, ProviderCell, lock};
use super::commands::AppliedCommands;
use super::effect::Cause;
use super::permit::Permit;
use super::{ConnectionPhase, ConnectionState, Effect, Exclusion, ProviderState, RuleState, SkipReason, WindowState, terminal};
use crate::api::time::EpochMs;
use crate::classify::{History, Reason};
use crate::snapshot::{ModelLockout, ProviderCooldown, Rotation, Snapshot};

/// What of the settings the ledger reads.
#[derive(Clone, Debug, Default)]
pub(super) struct LedgerSettings {
    pub lockout: ModelLockout,
    pub provider_cooldown: ProviderCooldown,
    pub rotation: Rotation,
    pub stream_stall_cooldown: bool,
}

/// Counters of one operator rule.
#[derive(Debug, Default)]
pub(super) struct RuleCell {
    pub matches: AtomicU64,
    pub shadow_matches: AtomicU64,
    pub last_match: AtomicI64,
}

/// The cells of one snapshot.
#[derive(Debug, Default)]
pub(super) struct Index {
    pub settings: LedgerSettings,
    pub providers: BTreeMap<Arc<str>, Arc<ProviderCell>>,
    pub connections: BTreeMap<Arc<str>, Arc<ConnectionCell>>,
    pub by_provider: BTreeMap<Arc<str>, Vec<Arc<ConnectionCell>>>,
    /// Connections of egress-bucketed providers by egress group.
    pub egress: BTreeMap<String, Vec<Arc<ConnectionCell>>>,
    pub rules: BTreeMap<Arc<str>, Arc<RuleCell>>,
}

impl Index {
    pub(super) fn of_provider(&self, name: &str) -> &[Arc<ConnectionCell>] {
        self.by_provider.get(name).map_or(&[], Vec::as_slice)
    }
}

/// What `/state` shows of the ledger.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Report {
    /// Providers by name.
    pub providers: Vec<ProviderState>,
    /// Connections by name.
    pub connections: Vec<ConnectionState>,
    /// Rules by name.
    pub rules: Vec<RuleState>,
    /// The last value of each command that was applied, by `Kind/name/verb`.
    pub commands: BTreeMap<String, String>,
}

/// The live state of everything that a snapshot names. Shared by all threads; no lock is taken per request unless something failed,
/// rests or ends.
#[derive(Debug, Default)]
pub struct Ledger {
    pub(super) index: ArcSwap<Index>,
    pub(super) applied: Mutex<AppliedCommands>,
    configuring: Mutex<()>,
    version: AtomicU64,
    /// When what is shown changes by itself next, milliseconds since the epoch.
    next_change: AtomicI64,
}

impl Ledger {
    /// An empty ledger.
    #[must_use]
    pub fn new() -> Self {
        Self { next_change: AtomicI64::new(i64::MAX), ..Self::default() }
    }

    /// Takes over a snapshot: [`Self::stage`] and [`Staged::commit`] in one.
    pub fn configure(&self, snapshot: &Snapshot, now: EpochMs) -> Vec<Effect> {
        self.stage(snapshot).commit(now)
    }

    /// Finds or makes the cells of a snapshot, and changes nothing yet. Others who stage wait until this one is committed or dropped.
    pub fn stage<'a>(&'a self, snapshot: &'a Snapshot) -> Staged<'a> {
        let one_at_a_time = lock(&self.configuring);
        let old = self.index.load_full();
        let mut index = Index { settings: settings(snapshot), ..Index::default() };
        for provider in &snapshot.providers {
            let kept = old.providers.get(provider.name.as_str()).map(Arc::clone);
            let cell = kept.unwrap_or_else(|| Arc::new(ProviderCell::new(provider)));
            index.providers.insert(Arc::clone(cell.name()), cell);
        }
        let mut cells = Vec::new();
        for connection in &snapshot.connections {
            let Some(provider) = index.providers.get(connection.provider.as_str()) else { continue };
            let kept = old.connections.get(connection.name.as_str()).filter(|cell| Arc::ptr_eq(cell.provider(), provider)).map(Arc::clone);
            let cell = kept.unwrap_or_else(|| Arc::new(ConnectionCell::new(connection, Arc::clone(provider))));
            index.by_provider.entry(Arc::clone(provider.name())).or_default().push(Arc::clone(&cell));
            index.connections.insert(Arc::clone(cell.name()), Arc::clone(&cell));
            let changes = cell.config().fingerprint != connection.credential_fingerprint;
            cells.push(StagedCell { credential: cell.credential() + u64::from(changes), cell });
        }
        for rule in &snapshot.rules {
            let cell = old.rules.get(rule.name.as_str()).map_or_else(Arc::default, Arc::clone);
            index.rules.insert(Arc::from(rule.name.as_str()), cell);
        }
        Staged { ledger: self, snapshot, index, cells, _one_at_a_time: one_at_a_time }
    }

    /// The cell of a connection; resolve it once per snapshot.
    #[must_use]
    pub fn connection(&self, name: &str) -> Option<Arc<ConnectionCell>> {
        self.index.load().connections.get(name).cloned()
    }

    /// The cell of a provider.
    #[must_use]
    pub fn provider(&self, name: &str) -> Option<Arc<ProviderCell>> {
        self.index.load().providers.get(name).cloned()
    }

    /// May this connection be used for this model now? A few atomic reads when nothing rests.
    ///
    /// # Errors
    /// What holds it back longest, so that its end is the earliest time at which asking again makes sense (decisions 3.8).
    pub fn check(&self, connection: &ConnectionCell, model: Option<&str>, now: EpochMs) -> Result<(), Exclusion> {
        let (provider, own) = (connection.provider().exclusion(now), connection.exclusion(model, now));
        provider.into_iter().chain(own).reduce(Exclusion::longer).map_or(Ok(()), Err)
    }

    /// Starts a request on a connection. Half open, this takes the provider's probe; cooldowns are not asked again, because a request may
    /// ignore a computed one that it set itself (decisions 9.1).
    ///
    /// # Errors
    /// The breaker is open, or all its probes are running.
    pub fn begin(&self, connection: &Arc<ConnectionCell>, now: EpochMs) -> Result<Permit, Exclusion> {
        let provider = connection.provider();
        let admission = if provider.is_guarded() {
            provider.update(now, |record, config| record.breaker.admit(now, &config.breaker))
        } else {
            Admission::Free
        };
        let retry_override_ms = self.retry_override_ms(connection);
        match admission {
            Admission::Free => Ok(Permit::new(connection, None, retry_override_ms, now)),
            Admission::Probe(token) => Ok(Permit::new(connection, Some(token), retry_override_ms, now)),
            Admission::Refused { until } => Err(Exclusion { until: Some(until), ..Exclusion::without_timer(SkipReason::CircuitOpen) }),
        }
    }

    /// What the classifier must know about a connection and model now. For a request in flight use `Permit::history`.
    #[must_use]
    pub fn history(&self, connection: &ConnectionCell, model: Option<&str>, now: EpochMs) -> History {
        history_at(connection, model, connection.sequence(), self.retry_override_ms(connection), now)
    }

    /// Counts a rule that matched, for verdicts that are not handed to `failure`.
    pub fn rule_matched(&self, name: &str, shadow: bool, now: EpochMs) {
        if let Some(cell) = self.index.load().rules.get(name) {
            let counter = if shadow { &cell.shadow_matches } else { &cell.matches };
            counter.fetch_add(1, Ordering::Relaxed);
            cell.last_match.fetch_max(now.0, Ordering::Relaxed);
            self.changed(None);
        }
    }

    /// What is shown: expired timers are gone from it, whether or not anything looked at them.
    #[must_use]
    pub fn report(&self, now: EpochMs) -> Report {
        let index = self.index.load_full();
        Report {
            providers: index.providers.values().map(|cell| provider_state(cell, now)).collect(),
            connections: index.connections.values().map(|cell| connection_state(cell, now)).collect(),
            rules: index.rules.iter().map(|(name, cell)| rule_state(name, cell)).collect(),
            commands: lock(&self.applied).values(),
        }
    }

    /// Grows with each change of what is shown, the end of a timer included.
    pub fn version(&self, now: EpochMs) -> u64 {
        if self.next_change.load(Ordering::Acquire) <= now.0 {
            // Changes that land while the cells are read lower the value again, so none is lost.
            self.next_change.store(i64::MAX, Ordering::Release);
            let index = self.index.load_full();
            self.changed(self.earliest_change(&index, now));
        }
        self.version.load(Ordering::Acquire)
    }

    /// When the version grows by itself next.
    #[must_use]
    pub fn next_change(&self) -> Option<EpochMs> {
        Some(self.next_change.load(Ordering::Acquire)).filter(|t| *t != i64::MAX).map(EpochMs)
    }

    /// Records that something shown has changed, and when it changes by itself next.
    pub(super) fn changed(&self, next: Option<EpochMs>) {
        self.version.fetch_add(1, Ordering::AcqRel);
        if let Some(next) = next {
            self.next_change.fetch_min(next.0, Ordering::AcqRel);
        }
    }

    fn earliest_change(&self, index: &Index, now: EpochMs) -> Option<EpochMs> {
        let providers = index.providers.values().filter_map(|cell| {
            cell.update(now, |record, config| {
                let gate = record.window.until(now, &config.window);
                record.breaker.next_change(now, &config.breaker).into_iter().chain(gate).min()
            })
        });
        let connections = index.connections.values().filter_map(|cell| cell.read(|record| record.next_change(now)));
        providers.chain(connections).min()
    }

    /// The wait for rate limits without a stated one (spec: resilience 5.3): connection, provider, settings.
    fn retry_override_ms(&self, connection: &ConnectionCell) -> Option<u64> {
        let general = self.index.load().settings.rotation.rate_limit_reset_ms;
        let provider = || connection.provider().config().traits.retry_delay_ms;
        connection.config().retry_delay_ms.or_else(provider).or_else(|| (general > 0).then_some(general))
    }
}

/// A snapshot whose cells are there, and whose changes are not yet in force. Dropping it changes nothing.
#[derive(Debug)]
pub struct Staged<'a> {
    ledger: &'a Ledger,
    snapshot: &'a Snapshot,
    index: Index,
    cells: Vec<StagedCell>,
    _one_at_a_time: MutexGuard<'a, ()>,
}

/// The cell of a connection in a staged snapshot.
#[derive(Debug)]
pub struct StagedCell {
    /// The cell.
    pub cell: Arc<ConnectionCell>,
    /// What [`ConnectionCell::credential`] is going to be.
    pub credential: u64,
}

impl Staged<'_> {
    /// The cells of all connections that name a provider of the snapshot, in the order of the snapshot.
    #[must_use]
    pub fn cells(&self) -> &[StagedCell] {
        &self.cells
    }

    /// Brings the snapshot into force: cells of unchanged connections survive, those of removed ones are dropped, a changed credential clears terminal state and strikes,
    /// commands with a new value are carried out once.
    pub fn commit(self, now: EpochMs) -> Vec<Effect> {
        let Self { ledger, snapshot, mut index, _one_at_a_time, .. } = self;
        let mut effects = Vec::new();
        for provider in &snapshot.providers {
            if let Some(cell) = index.providers.get(provider.name.as_str()) {
                cell.configure(provider);
            }
        }
        for connection in &snapshot.connections {
            let Some(cell) = index.connections.get(connection.name.as_str()) else { continue };
            effects.extend(reconfigure(cell, &cell.configure(connection), now));
            if connection.refresh_refused {
                effects.extend(super::commands::expire(cell, now));
            }
            if let Some(group) = connection.egress_group.as_ref().filter(|_| cell.provider().config().traits.egress_bucketed) {
                index.egress.entry(group.clone()).or_default().push(Arc::clone(cell));
            }
        }
        if !index.settings.provider_cooldown.enabled {
            effects.extend(open_gates(&index, now));
        }
        let index = Arc::new(index);
        ledger.index.store(Arc::clone(&index));
        effects.extend(ledger.apply_commands(&snapshot.commands, now));
        ledger.changed(ledger.earliest_change(&index, now));
        effects
    }
}

fn settings(snapshot: &Snapshot) -> LedgerSettings {
    LedgerSettings {
        lockout: snapshot.settings.model_lockout.clone(),
        provider_cooldown: snapshot.settings.provider_cooldown,
        rotation: snapshot.settings.rotation,
        stream_stall_cooldown: snapshot.settings.stream_stall_cooldown,
    }
}

/// What a changed connection forgets: a new credential clears what the old one caused, `disableCooling` ends all timers.
fn reconfigure(cell: &ConnectionCell, old: &ConnectionConfig, now: EpochMs) -> Vec<Effect> {
    let new = cell.config();
    let mut effects = Vec::new();
    if old.fingerprint != new.fingerprint || old.claude != new.claude {
        cell.close_lane();
    }
    if old.fingerprint != new.fingerprint {
        effects.extend(super::commands::forget_credential(cell, now));
    }
    if new.disable_cooling && !old.disable_cooling {
        effects.extend(super::commands::end_timers(cell, Cause::Settings, now, now).effects);
    }
    effects
}

/// The window gate was switched off: its rests end.
fn open_gates(index: &Index, now: EpochMs) -> Vec<Effect> {
    for cell in index.connections.values().filter(|cell| cell.is_dirty()) {
        cell.update(now, |record| record.gate.success());
    }
    let resting = index.providers.values().filter(|cell| {
        cell.is_dirty()
            && cell.update(now, |record, config| {
                let resting = record.window.until(now, &config.window).is_some();
                record.window.success();
                resting
            })
    });
    resting.map(|cell| Effect::ProviderCooldownEnded { provider: Arc::clone(cell.name()), by: Cause::Settings }).collect()
}

/// The history of a connection as it was for requests that began at a sequence.
pub(super) fn history_at(
    connection: &ConnectionCell,
    model: Option<&str>,
    began: u64,
    retry_override_ms: Option<u64>,
    now: EpochMs,
) -> History {
    let config = connection.config();
    connection.read(|record| History {
        now,
        backoff_level: record.cooldown.level_for(began, now),
        auth_strikes: record.strikes.before(began),
        request_rejections: model.map_or(0, |model| record.locks.rejections(model, began)),
        profile: config.profile,
        token_expires: config.token_expires,
        retry_override_ms,
    })
}

fn provider_state(cell: &ProviderCell, now: EpochMs) -> ProviderState {
    cell.update(now, |record, config| ProviderState {
        name: cell.name().to_string(),
        breaker: record.breaker.state(now, &config.breaker),
        window: record.window.until(now, &config.window).map(|until| WindowState { until: Some(until) }),
    })
}

fn connection_state(cell: &ConnectionCell, now: EpochMs) -> ConnectionState {
    cell.read(|record| {
        let mut state = ConnectionState {
            name: cell.name().to_string(),
            provider: cell.provider().name().to_string(),
            backoff_level: record.cooldown.level(now),
            strikes: record.strikes.count(),
            in_flight: cell.in_flight(),
            last_status: record.last_status,
            lockouts: record.locks.states(now),
            lockouts_omitted: record.locks.omitted(),
            ..ConnectionState::default()
        };
        if let Some(held) = &record.terminal {
            state.state = terminal::phase(held.state);
            state.reason = Some(held.reason.pascal().to_owned());
            return state;
        }
        let cooldown = record.cooldown.until(now);
        let gate = record.gate.until(now).filter(|until| cooldown.is_none_or(|c| *until > c));
        if let Some(until) = gate {
            state.state = ConnectionPhase::Cooling;
            state.reason = record.last_reason.map(|r| r.pascal().to_owned());
            state.until = Some(until);
            state.wait_source = Some(crate::classify::WaitSource::Scaled.as_str().to_owned());
        } else if let Some(until) = cooldown {
            let reason = record.cooldown.reason();
            let rejected = reason == Reason::RequestRejected;
            state.state = if rejected { ConnectionPhase::RequestRejected } else { ConnectionPhase::Cooling };
            state.reason = Some(reason.pascal().to_owned());
            state.until = Some(until);
            state.wait_source = Some(record.cooldown.source().as_str().to_owned());
        }
        state
    })
}

fn rule_state(name: &Arc<str>, cell: &RuleCell) -> RuleState {
    let last = cell.last_match.load(Ordering::Relaxed);
    RuleState {
        name: name.to_string(),
        matches: cell.matches.load(Ordering::Relaxed),
        shadow_matches: cell.shadow_matches.load(Ordering::Relaxed),
        last_match_time: (last > 0).then_some(EpochMs(last)),
    }
}

/// Which objects a command of an operator concerns.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Selection {
    /// Everything.
    All,
    /// A provider and its connections.
    Provider(String),
    /// These connections.
    Connections(BTreeSet<String>),
}
