//! The live state of one provider and of one connection. What requests read on the hot path is mirrored in atomics; the records behind
//! them are locked per cell, and only when something failed, rests, or ends.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;

use super::breaker::{Breaker, Origin, ProbeToken};
use super::claude_lane::ClaudeLane;
use super::cooldown::Cooldown;
use super::ended::Ended;
use super::lockout::Lockouts;
use super::rotation::RotationWindows;
use super::terminal::{Strikes, TerminalState};
use super::window_gate::{ConnectionGate, WindowGate};
use super::{Exclusion, SkipReason};
use crate::api::time::EpochMs;
use crate::classify::{CooldownProfile, ProviderTraits, Reason};
use crate::snapshot::{self, BreakerProfile, ClaudeOptions, QuotaFamily, WindowGateProfile};

/// Locks a record; a thread that panicked while it held the lock leaves a record that is still valid, because every method keeps it so.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the snapshot says about a provider.
#[derive(Clone, Debug, Default)]
pub(super) struct ProviderConfig {
    pub traits: ProviderTraits,
    pub families: Vec<QuotaFamily>,
    pub breaker: BreakerProfile,
    pub window: WindowGateProfile,
}

impl From<&snapshot::Provider> for ProviderConfig {
    fn from(provider: &snapshot::Provider) -> Self {
        Self {
            traits: provider.traits.clone(),
            families: provider.quota_families.clone(),
            breaker: provider.breaker,
            window: provider.window_gate,
        }
    }
}

/// What a provider's failures left behind.
#[derive(Debug, Default)]
pub(super) struct ProviderRecord {
    pub breaker: Breaker,
    pub window: WindowGate,
    /// Sequence of the failure that opened the breaker.
    pub opened_by: u64,
    /// Sequence of the failure that made the window gate rest.
    pub gated_by: u64,
    /// Openings of the breaker from before are over, milliseconds since the epoch.
    pub breaker_ended_ms: i64,
    /// Failures in the window from before are over, milliseconds since the epoch.
    pub window_ended_ms: i64,
}

/// The live state of one provider.
#[derive(Debug)]
pub struct ProviderCell {
    name: Arc<str>,
    config: ArcSwap<ProviderConfig>,
    /// Grows with each counted failure.
    sequence: AtomicU64,
    /// True while the breaker may refuse.
    guarded: AtomicBool,
    /// True while a success has something to clear.
    dirty: AtomicBool,
    /// End of the window gate's rest, milliseconds since the epoch.
    gate_until: AtomicI64,
    record: Mutex<ProviderRecord>,
}

impl ProviderCell {
    pub(super) fn new(provider: &snapshot::Provider) -> Self {
        Self {
            name: Arc::from(provider.name.as_str()),
            config: ArcSwap::from_pointee(ProviderConfig::from(provider)),
            sequence: AtomicU64::new(0),
            guarded: AtomicBool::new(false),
            dirty: AtomicBool::new(false),
            gate_until: AtomicI64::new(0),
            record: Mutex::default(),
        }
    }

    /// Name of the resource.
    #[must_use]
    pub const fn name(&self) -> &Arc<str> {
        &self.name
    }

    pub(super) fn config(&self) -> Arc<ProviderConfig> {
        self.config.load_full()
    }

    pub(super) fn configure(&self, provider: &snapshot::Provider) {
        self.config.store(Arc::new(ProviderConfig::from(provider)));
    }

    pub(super) fn sequence(&self) -> u64 {
        self.sequence.load(Ordering::Acquire)
    }

    pub(super) fn next_sequence(&self) -> u64 {
        self.sequence.fetch_add(1, Ordering::AcqRel) + 1
    }

    pub(super) fn is_guarded(&self) -> bool {
        self.guarded.load(Ordering::Acquire)
    }

    pub(super) fn is_dirty(&self) -> bool {
        self.dirty.load(Ordering::Acquire)
    }

    /// Changes the record and publishes what requests read.
    pub(super) fn update<T>(&self, now: EpochMs, change: impl FnOnce(&mut ProviderRecord, &ProviderConfig) -> T) -> T {
        let config = self.config();
        let mut record = lock(&self.record);
        let answer = change(&mut record, &config);
        let phase = record.breaker.phase(now, &config.breaker);
        let flows = matches!(phase, super::BreakerPhase::Closed | super::BreakerPhase::Degraded);
        let gate = record.window.until(now, &config.window).map_or(0, |t| t.0);
        self.guarded.store(!flows, Ordering::Release);
        self.dirty.store(!flows || record.breaker.failures() > 0 || record.window.memory().next().is_some(), Ordering::Release);
        self.gate_until.store(gate, Ordering::Release);
        answer
    }

    /// What holds the whole provider back, without taking a probe.
    pub(super) fn exclusion(&self, now: EpochMs) -> Option<Exclusion> {
        if self.is_guarded() {
            let config = self.config();
            if let Some(until) = lock(&self.record).breaker.retry_at(now, &config.breaker) {
                return Some(Exclusion { until: Some(until), ..Exclusion::without_timer(SkipReason::CircuitOpen) });
            }
        }
        let until = self.gate_until.load(Ordering::Acquire);
        (until > now.0).then(|| Exclusion { until: Some(EpochMs(until)), ..Exclusion::without_timer(SkipReason::ProviderCooldown) })
    }

    /// True while its breaker is half open: only probes go there.
    #[must_use]
    pub fn is_probing(&self, now: EpochMs) -> bool {
        self.is_guarded() && {
            let config = self.config();
            lock(&self.record).breaker.phase(now, &config.breaker) == super::BreakerPhase::HalfOpen
        }
    }

    /// Gives a probe back without a result.
    pub(super) fn release(&self, token: ProbeToken) {
        lock(&self.record).breaker.release(token);
    }

    /// Where a result of a request that began at `began` comes from, seen from the breaker.
    pub(super) fn origin(record: &ProviderRecord, probe: Option<ProbeToken>, began: u64) -> Origin {
        match probe {
            Some(token) => Origin::Probe(token),
            None if began >= record.opened_by => Origin::Current,
            None => Origin::BeforeOpening,
        }
    }
}

/// What the snapshot says about a connection.
#[derive(Clone, Debug, Default)]
pub(super) struct ConnectionConfig {
    pub fingerprint: String,
    pub disable_cooling: bool,
    pub profile: CooldownProfile,
    pub egress_group: Option<String>,
    pub token_expires: Option<EpochMs>,
    pub retry_delay_ms: Option<u64>,
    pub claude: ClaudeOptions,
}

impl From<&snapshot::Connection> for ConnectionConfig {
    fn from(connection: &snapshot::Connection) -> Self {
        Self {
            fingerprint: connection.credential_fingerprint.clone(),
            disable_cooling: connection.disable_cooling,
            profile: connection.cooldown,
            egress_group: connection.egress_group.clone(),
            token_expires: connection.token_expires,
            retry_delay_ms: connection.rate_limits.retry_delay_ms,
            claude: connection.claude.clone(),
        }
    }
}

/// What a connection's failures left behind.
#[derive(Debug, Default)]
pub(super) struct ConnectionRecord {
    pub cooldown: Cooldown,
    pub terminal: Option<TerminalState>,
    pub strikes: Strikes,
    pub locks: Lockouts,
    pub gate: ConnectionGate,
    pub rotation: RotationWindows,
    pub ended: Ended,
    pub last_status: Option<u16>,
    pub last_reason: Option<Reason>,
}

impl ConnectionRecord {
    /// What holds the connection back, whatever the model.
    fn exclusion(&self, now: EpochMs) -> Option<Exclusion> {
        if let Some(terminal) = &self.terminal {
            return Some(Exclusion {
                terminal: Some(terminal.state),
                cause: Some(terminal.reason),
                ..Exclusion::without_timer(SkipReason::Terminal)
            });
        }
        let cooldown = self.cooldown.until(now).map(|until| Exclusion {
            reason: SkipReason::ConnectionCooldown,
            until: Some(until),
            cause: Some(self.cooldown.reason()),
            stated: !self.cooldown.source().computed(),
            terminal: None,
        });
        let gate = self.gate.until(now).map(|until| Exclusion {
            reason: SkipReason::ProviderCooldown,
            until: Some(until),
            cause: self.last_reason,
            stated: false,
            terminal: None,
        });
        cooldown.into_iter().chain(gate).reduce(Exclusion::longer)
    }

    /// True while the connection shows an error.
    pub(super) fn has_errors(&self, now: EpochMs) -> bool {
        self.last_status.is_some()
            || self.last_reason.is_some()
            || self.terminal.is_some()
            || self.strikes.count() > 0
            || self.gate.failures > 0
            || self.cooldown.memory(now).is_some()
    }

    /// True while a success has something to clear.
    fn is_dirty(&self, now: EpochMs) -> bool {
        self.has_errors(now) || !self.locks.is_empty()
    }

    /// When the shown state changes by itself next.
    pub(super) fn next_change(&self, now: EpochMs) -> Option<EpochMs> {
        [self.cooldown.until(now), self.cooldown.next_decay(now), self.gate.until(now), self.locks.earliest(now)]
            .into_iter()
            .flatten()
            .min()
    }
}

/// The live state of one connection.
#[derive(Debug)]
pub struct ConnectionCell {
    name: Arc<str>,
    provider: Arc<ProviderCell>,
    config: ArcSwap<ConnectionConfig>,
    in_flight: AtomicU32,
    /// Grows with each recorded failure.
    sequence: AtomicU64,
    /// Grows with each change of the credential.
    credential: AtomicU64,
    /// End of whatever holds the connection back, milliseconds since the epoch; `i64::MAX` in a terminal state.
    resting_until: AtomicI64,
    /// Latest end of a lock of any model, milliseconds since the epoch.
    locked_until: AtomicI64,
    dirty: AtomicBool,
    record: Mutex<ConnectionRecord>,
    lane: Mutex<ClaudeLane>,
}

impl ConnectionCell {
    pub(super) fn new(connection: &snapshot::Connection, provider: Arc<ProviderCell>) -> Self {
        Self {
            name: Arc::from(connection.name.as_str()),
            provider,
            config: ArcSwap::from_pointee(ConnectionConfig::from(connection)),
            in_flight: AtomicU32::new(0),
            sequence: AtomicU64::new(0),
            credential: AtomicU64::new(0),
            resting_until: AtomicI64::new(0),
            locked_until: AtomicI64::new(0),
            dirty: AtomicBool::new(false),
            record: Mutex::default(),
            lane: Mutex::default(),
        }
    }

    /// Name of the resource.
    #[must_use]
    pub const fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Its provider.
    #[must_use]
    pub const fn provider(&self) -> &Arc<ProviderCell> {
        &self.provider
    }

    /// Requests in flight.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Status of the last failure, while no success came after it.
    #[must_use]
    pub fn last_status(&self) -> Option<u16> {
        self.read(|record| record.last_status)
    }

    /// The usage-wall lane with its options; `None` unless the connection opted in.
    pub fn claude(&self) -> Option<(MutexGuard<'_, ClaudeLane>, ClaudeOptions)> {
        let options = self.config.load().claude.clone();
        (options.low_priority_mode || options.auto_limit_reset).then(|| (lock(&self.lane), options))
    }

    /// Forgets the lane (its owner opted out, or changed the account).
    pub(super) fn close_lane(&self) {
        *lock(&self.lane) = ClaudeLane::default();
    }

    pub(super) fn config(&self) -> Arc<ConnectionConfig> {
        self.config.load_full()
    }

    /// Stores new settings and answers the ones before.
    pub(super) fn configure(&self, connection: &snapshot::Connection) -> Arc<ConnectionConfig> {
        self.config.swap(Arc::new(ConnectionConfig::from(connection)))
    }

    pub(super) fn enter(&self) {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn leave(&self) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn sequence(&self) -> u64 {
        self.sequence.load(Ordering::Acquire)
    }

    pub(super) fn next_sequence(&self) -> u64 {
        self.sequence.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Which credential requests carry now, counted from the start of the process.
    #[must_use]
    pub fn credential(&self) -> u64 {
        self.credential.load(Ordering::Acquire)
    }

    pub(super) fn next_credential(&self) {
        self.credential.fetch_add(1, Ordering::AcqRel);
    }

    pub(super) fn is_dirty(&self) -> bool {
        self.dirty.load(Ordering::Acquire)
    }

    /// Reads the record.
    pub(super) fn read<T>(&self, read: impl FnOnce(&ConnectionRecord) -> T) -> T {
        read(&lock(&self.record))
    }

    /// Changes the record and publishes what requests read.
    pub(super) fn update<T>(&self, now: EpochMs, change: impl FnOnce(&mut ConnectionRecord) -> T) -> T {
        let mut record = lock(&self.record);
        let answer = change(&mut record);
        let resting = match record.exclusion(now) {
            None => 0,
            Some(exclusion) => exclusion.until.map_or(i64::MAX, |t| t.0),
        };
        self.resting_until.store(resting, Ordering::Release);
        self.locked_until.store(record.locks.latest(now).map_or(0, |t| t.0), Ordering::Release);
        self.dirty.store(record.is_dirty(now), Ordering::Release);
        answer
    }

    /// What holds a model of this connection back. Two atomic reads when nothing rests.
    pub(super) fn exclusion(&self, model: Option<&str>, now: EpochMs) -> Option<Exclusion> {
        let resting = self.resting_until.load(Ordering::Acquire) > now.0;
        let model = model.filter(|_| self.locked_until.load(Ordering::Acquire) > now.0);
        if !resting && model.is_none() {
            return None;
        }
        let config = self.provider.config();
        self.read(|record| {
            let lock = model.and_then(|model| record.locks.holding(model, &config.families, now)).map(|(_, lock)| Exclusion {
                reason: SkipReason::ModelLockout,
                until: Some(EpochMs(lock.until_ms)),
                cause: Some(lock.reason),
                stated: !lock.source.computed(),
                terminal: None,
            });
            record.exclusion(now).into_iter().chain(lock).reduce(Exclusion::longer)
        })
    }
}
