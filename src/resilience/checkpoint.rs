//! What survives a restart (decisions 3.4, 10.2), and how the memories of several pods become one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde::{Deserialize, Serialize};

use super::BreakerPhase;
use super::breaker::BreakerMemory;
use super::cell::{ConnectionCell, ConnectionRecord, ProviderCell, ProviderRecord, lock};
use super::commands::{AppliedCommand, AppliedCommands};
use super::cooldown::CooldownMemory;
use super::ended::{self, Ended, never};
use super::ledger::Ledger;
use super::lockout::{Lock, LockKey};
use super::terminal::{StrikesMemory, TerminalState};
use super::window_gate::ConnectionGate;
use crate::api::time::EpochMs;
use crate::snapshot::CommandKind;

/// The version of the document that this binary writes; it reads older ones.
pub const CHECKPOINT_VERSION: u32 = 1;

/// Unexpired deadlines, terminal states, strikes and counters. All times are milliseconds since the epoch.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Checkpoint {
    /// Version of the document.
    pub version: u32,
    /// When it was written.
    pub exported_ms: i64,
    /// Providers by name.
    pub providers: BTreeMap<String, ProviderMemory>,
    /// Connections by name, then by fingerprint of the credential.
    pub connections: BTreeMap<String, BTreeMap<String, ConnectionMemory>>,
    /// Rules by name.
    pub rules: BTreeMap<String, RuleMemory>,
    /// Commands by `Kind/name/verb`.
    pub commands: BTreeMap<String, AppliedCommand>,
}

/// A provider's memory.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ProviderMemory {
    /// Its breaker, unless it is closed and without failures.
    pub breaker: Option<BreakerMemory>,
    /// Failures in the window of the window gate.
    pub window: Vec<i64>,
    /// Openings of the breaker from before are over, milliseconds since the epoch; 0 = never.
    #[serde(skip_serializing_if = "never")]
    pub breaker_ended_ms: i64,
    /// Failures in the window from before are over, milliseconds since the epoch; 0 = never.
    #[serde(skip_serializing_if = "never")]
    pub window_ended_ms: i64,
}

/// A connection's memory.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ConnectionMemory {
    /// Cooldown and backoff level.
    pub cooldown: Option<CooldownMemory>,
    /// Terminal state.
    pub terminal: Option<TerminalState>,
    /// Auth strikes.
    pub strikes: Option<StrikesMemory>,
    /// Rest of the window gate.
    pub gate: Option<ConnectionGate>,
    /// Locks of models, by key.
    pub locks: Vec<LockMemory>,
    /// What was ended before its time.
    pub ended: Ended,
}

/// One lock.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LockMemory {
    /// What.
    pub key: LockKey,
    /// Until when, and why.
    pub lock: Lock,
}

/// A rule's counters.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RuleMemory {
    /// Times it acted.
    pub matches: u64,
    /// Times it would have acted.
    pub shadow_matches: u64,
    /// Last time of either.
    pub last_match_ms: i64,
}

/// Why a checkpoint was refused.
#[derive(thiserror::Error, Debug)]
pub enum CheckpointError {
    /// Not a checkpoint.
    #[error("reading the checkpoint: {0}")]
    Parse(#[source] serde_json::Error),
    /// Written by a newer version of the product.
    #[error("reading the checkpoint: version {found} is newer than this gateway ({CHECKPOINT_VERSION}); its state starts empty")]
    Version {
        /// Version of the document.
        found: u32,
    },
}

impl Checkpoint {
    /// Reads a checkpoint.
    ///
    /// # Errors
    /// Says what is wrong: no JSON of this shape, or a newer version.
    pub fn from_json(json: &[u8]) -> Result<Self, CheckpointError> {
        let checkpoint: Self = serde_json::from_slice(json).map_err(CheckpointError::Parse)?;
        match checkpoint.version {
            found if found > CHECKPOINT_VERSION => Err(CheckpointError::Version { found }),
            _ => Ok(checkpoint),
        }
    }

    /// The memory of both: the latest deadline, the graver state, the higher count. Commutative, associative and idempotent, so that the
    /// order in which pods are asked does not matter.
    #[must_use]
    pub fn merge(&self, other: &Self) -> Self {
        Self {
            version: self.version.max(other.version),
            exported_ms: self.exported_ms.max(other.exported_ms),
            providers: union(&self.providers, &other.providers, ProviderMemory::merge),
            connections: union(&self.connections, &other.connections, |a, b| union(a, b, ConnectionMemory::merge)),
            rules: union(&self.rules, &other.rules, RuleMemory::merge),
            commands: union(&self.commands, &other.commands, |a, b| a.max(b).clone()),
        }
    }

    /// The part that replicas share while they run: what holds targets back, and what was ended. Counts that each keeps for itself are not in
    /// it, nor is anything that changes without an event.
    #[must_use]
    pub fn shared(mut self) -> Self {
        for provider in self.providers.values_mut() {
            provider.breaker = provider.breaker.filter(|b| matches!(b.phase, BreakerPhase::Open | BreakerPhase::HalfOpen));
        }
        self.providers.retain(|_, provider| *provider != ProviderMemory::default());
        Self { exported_ms: 0, rules: BTreeMap::new(), commands: BTreeMap::new(), ..self }
    }

    /// True when nothing is remembered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.providers.is_empty() && self.connections.is_empty() && self.rules.is_empty() && self.commands.is_empty()
    }
}

impl ProviderMemory {
    fn merge(&self, other: &Self) -> Self {
        // The list with the later end wins; both are sorted, and the comparison is total.
        let window = |m: &Self| (m.window.last().copied(), m.window.clone());
        Self {
            breaker: self.breaker.max(other.breaker),
            window: window(self).max(window(other)).1,
            breaker_ended_ms: self.breaker_ended_ms.max(other.breaker_ended_ms),
            window_ended_ms: self.window_ended_ms.max(other.window_ended_ms),
        }
    }
}

impl ConnectionMemory {
    fn merge(&self, other: &Self) -> Self {
        let mut locks: BTreeMap<&LockKey, Lock> = self.locks.iter().map(|m| (&m.key, m.lock)).collect();
        for memory in &other.locks {
            locks.entry(&memory.key).and_modify(|lock| *lock = (*lock).max(memory.lock)).or_insert(memory.lock);
        }
        Self {
            cooldown: self.cooldown.max(other.cooldown),
            terminal: self.terminal.max(other.terminal),
            strikes: self.strikes.max(other.strikes),
            gate: self.gate.max(other.gate),
            locks: locks.into_iter().map(|(key, lock)| LockMemory { key: key.clone(), lock }).collect(),
            ended: self.ended.merge(&other.ended),
        }
    }

    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl RuleMemory {
    fn merge(&self, other: &Self) -> Self {
        Self {
            matches: self.matches.max(other.matches),
            shadow_matches: self.shadow_matches.max(other.shadow_matches),
            last_match_ms: self.last_match_ms.max(other.last_match_ms),
        }
    }
}

/// The union of two maps; what both have is merged.
fn union<V: Clone>(a: &BTreeMap<String, V>, b: &BTreeMap<String, V>, merge: impl Fn(&V, &V) -> V) -> BTreeMap<String, V> {
    let mut out = a.clone();
    for (key, value) in b {
        let merged = a.get(key).map_or_else(|| value.clone(), |mine| merge(mine, value));
        out.insert(key.clone(), merged);
    }
    out
}

impl Ledger {
    /// What is worth keeping at `now`.
    #[must_use]
    pub fn export(&self, now: EpochMs) -> Checkpoint {
        let index = self.index.load_full();
        let window_ms = index.settings.lockout.escalation_window_ms;
        let providers = index.providers.iter().filter_map(|(name, cell)| Some((name.to_string(), provider_memory(cell, now)?)));
        let connections = index.connections.iter().filter_map(|(name, cell)| {
            let memory = cell.read(|record| connection_memory(record, window_ms, now));
            let fingerprint = cell.config().fingerprint.clone();
            (!memory.is_empty()).then(|| (name.to_string(), BTreeMap::from([(fingerprint, memory)])))
        });
        let rules = index.rules.iter().map(|(name, cell)| {
            let memory = RuleMemory {
                matches: cell.matches.load(Ordering::Relaxed),
                shadow_matches: cell.shadow_matches.load(Ordering::Relaxed),
                last_match_ms: cell.last_match.load(Ordering::Relaxed),
            };
            (name.to_string(), memory)
        });
        Checkpoint {
            version: CHECKPOINT_VERSION,
            exported_ms: now.0,
            providers: providers.collect(),
            connections: connections.collect(),
            rules: rules.filter(|(_, memory)| *memory != RuleMemory::default()).collect(),
            commands: lock(&self.applied).memory(),
        }
    }

    /// Takes over what a checkpoint remembers of the connections and providers that the ledger knows: call it after `configure`. What was
    /// known of another credential, before a command that was accepted since (decisions 10.13), or before it was ended by anybody, is ignored;
    /// beyond that nothing is weakened. Doing it again changes nothing. Answers whether anything changed.
    pub fn restore(&self, checkpoint: &Checkpoint, now: EpochMs) -> bool {
        let index = self.index.load_full();
        let applied = lock(&self.applied).clone();
        let mut changed = false;
        let window_ms = index.settings.lockout.escalation_window_ms;
        for (name, memory) in &checkpoint.providers {
            if let Some(cell) = index.providers.get(name.as_str()) {
                changed |= restore_provider(cell, memory, &applied, index.settings.provider_cooldown.enabled, now);
            }
        }
        for (name, memories) in &checkpoint.connections {
            let Some(cell) = index.connections.get(name.as_str()) else { continue };
            let Some(memory) = memories.get(&cell.config().fingerprint) else { continue };
            changed |= restore_connection(cell, memory, &applied, index.settings.provider_cooldown.enabled, window_ms, now);
        }
        for (name, memory) in &checkpoint.rules {
            if let Some(cell) = index.rules.get(name.as_str()) {
                changed |= cell.matches.fetch_max(memory.matches, Ordering::Relaxed) < memory.matches;
                changed |= cell.shadow_matches.fetch_max(memory.shadow_matches, Ordering::Relaxed) < memory.shadow_matches;
                changed |= cell.last_match.fetch_max(memory.last_match_ms, Ordering::Relaxed) < memory.last_match_ms;
            }
        }
        if changed {
            self.changed(Some(now));
        }
        changed
    }
}

fn provider_memory(cell: &ProviderCell, now: EpochMs) -> Option<ProviderMemory> {
    cell.update(now, |record, config| {
        let untouched = record.breaker.failures() == 0 && record.breaker.can_execute(now, &config.breaker);
        let memory = ProviderMemory {
            breaker: (!untouched).then(|| record.breaker.memory()),
            window: record.window.memory().collect(),
            breaker_ended_ms: ended::recent(record.breaker_ended_ms, now),
            window_ended_ms: ended::recent(record.window_ended_ms, now),
        };
        (memory != ProviderMemory::default()).then_some(memory)
    })
}

fn connection_memory(record: &ConnectionRecord, window_ms: u64, now: EpochMs) -> ConnectionMemory {
    ConnectionMemory {
        cooldown: record.cooldown.memory(now),
        terminal: record.terminal,
        strikes: record.strikes.memory(),
        gate: Some(record.gate).filter(|gate| gate.failures > 0),
        locks: record.locks.memory(window_ms, now).map(|(key, lock)| LockMemory { key, lock }).collect(),
        ended: record.ended.memory(now),
    }
}

fn restore_provider(cell: &Arc<ProviderCell>, memory: &ProviderMemory, applied: &AppliedCommands, gates: bool, now: EpochMs) -> bool {
    let (timers, breakers) = applied.accepted(CommandKind::Provider, cell.name());
    cell.update(now, |record, config| {
        let seen =
            |record: &ProviderRecord| (record.breaker.memory(), record.window.clone(), record.breaker_ended_ms, record.window_ended_ms);
        let before = seen(record);
        record.breaker_ended_ms = record.breaker_ended_ms.max(memory.breaker_ended_ms);
        record.window_ended_ms = record.window_ended_ms.max(memory.window_ended_ms);
        let over = record.breaker_ended_ms;
        let own = record.breaker.memory();
        let flows = matches!(record.breaker.phase(now, &config.breaker), BreakerPhase::Closed | BreakerPhase::Degraded);
        if !flows && own.opened_ms.max(own.last_failure_ms) < over {
            record.breaker.reset();
        }
        record.window.end(record.window_ended_ms);
        let own = record.breaker.memory();
        let newer = memory.breaker.filter(|b| {
            let failed = b.last_failure_ms.max(b.opened_ms);
            // Of one and the same opening each replica knows its own probes best.
            let another = matches!(own.phase, BreakerPhase::Closed | BreakerPhase::Degraded) || b.opened_ms > own.opened_ms;
            failed >= breakers && failed >= over && *b > own && another
        });
        if let Some(breaker) = newer {
            record.breaker.restore(&breaker);
            // Requests that run began before this was known: only a probe says anything about it.
            record.opened_by = cell.next_sequence();
        }
        if gates {
            let rested = record.window.until(now, &config.window).is_some();
            let from = timers.max(record.window_ended_ms);
            record.window.restore(memory.window.iter().copied().filter(|failed| *failed >= from));
            if !rested && record.window.until(now, &config.window).is_some() {
                record.gated_by = cell.next_sequence();
            }
        }
        seen(record) != before
    })
}

fn restore_connection(
    cell: &Arc<ConnectionCell>,
    memory: &ConnectionMemory,
    applied: &AppliedCommands,
    gates: bool,
    window_ms: u64,
    now: EpochMs,
) -> bool {
    let (own_timers, own_reset) = applied.accepted(CommandKind::Connection, cell.name());
    let (all_timers, all_reset) = applied.accepted(CommandKind::Provider, cell.provider().name());
    let (timers, reset) = (own_timers.max(all_timers), own_reset.max(all_reset));
    let cooling = !cell.config().disable_cooling;
    cell.update(now, |record| {
        let before = connection_memory(record, window_ms, now);
        end_elsewhere(record, &memory.ended, now);
        let (timers, reset) = (timers.max(record.ended.rests_ms), reset.max(record.ended.terminal_ms));
        if record.terminal.is_none() {
            record.terminal = memory.terminal.filter(|t| t.since_ms >= reset);
        }
        if let Some(strikes) = memory.strikes.filter(|s| s.last_ms >= reset) {
            record.strikes.restore(&strikes);
        }
        if let Some(cooldown) = memory.cooldown.filter(|c| c.since_ms >= timers && (cooling || c.until_ms <= now.0)) {
            record.cooldown.restore(&cooldown, now);
        }
        if let Some(gate) = memory.gate.filter(|g| gates && cooling && g.last_ms.max(0) >= timers && *g > record.gate) {
            record.gate = gate;
        }
        let lock_timers = own_timers.max(all_timers);
        for LockMemory { key, lock } in memory.locks.iter().filter(|m| cooling && m.lock.last_failure_ms >= lock_timers) {
            if !record.ended.ends_lock(key, lock.last_failure_ms) {
                record.locks.restore(key.clone(), *lock, window_ms, now, cell.sequence() + 1);
            }
        }
        let changed = connection_memory(record, window_ms, now) != before;
        if changed {
            // Requests that run began before this was known: their success says nothing about it.
            cell.next_sequence();
        }
        changed
    })
}

/// What somebody else ended is over here as well.
fn end_elsewhere(record: &mut ConnectionRecord, ended: &Ended, now: EpochMs) {
    record.ended = record.ended.merge(ended);
    let ended = &record.ended;
    if record.cooldown.memory(now).is_some_and(|cooldown| cooldown.since_ms < ended.rests_ms) {
        record.cooldown.clear();
    }
    if record.gate.last_ms < ended.rests_ms {
        record.gate.success();
    }
    if record.strikes.memory().is_some_and(|strikes| strikes.last_ms < ended.terminal_ms) {
        record.strikes.clear();
    }
    if record.terminal.is_some_and(|terminal| terminal.since_ms < ended.terminal_ms) {
        record.terminal = None;
        record.last_status = None;
        record.last_reason = None;
    }
    record.locks.end(ended);
}
