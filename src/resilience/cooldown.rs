//! The cooldown of one connection (spec: resilience 5; decisions 3.2, 3.3): its end, where it comes from, and the backoff level.

use serde::{Deserialize, Serialize};

use crate::api::time::EpochMs;
use crate::classify::{CooldownProfile, LevelChange, Reason, WaitSource};

/// The level drops one step per interval of the last cooldown, and not faster than this (decisions 3.2), milliseconds.
const MIN_DECAY_INTERVAL_MS: u64 = 60_000;

/// Levels above this change nothing: 2^32 times any base exceeds every cap.
const MAX_LEVEL: u32 = 32;

/// Share of a computed wait that jitter may add or take (decisions 1.12).
const JITTER: f64 = 0.1;

/// A rest that begins: what a verdict asks for, after jitter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rest {
    /// Why.
    pub reason: Reason,
    /// Where the wait comes from.
    pub source: WaitSource,
    /// The wait, milliseconds.
    pub wait_ms: u64,
}

/// What happened when a rest was applied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Applied {
    /// The connection was free and rests now.
    Started,
    /// It rested already; the end moved to a later instant.
    Extended,
    /// It rests already at least as long.
    Kept,
}

/// Cooldown and backoff level of one connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cooldown {
    until: EpochMs,
    since: EpochMs,
    reason: Reason,
    source: WaitSource,
    length_ms: u64,
    level: u32,
    level_before: u32,
    /// From here the level decays: the end of the last rest, or the time of the last change without one.
    decay_from: EpochMs,
    /// Sequence of the failure that last changed the level (herd guard).
    changed_by: u64,
}

impl Default for Cooldown {
    fn default() -> Self {
        Self {
            until: EpochMs(0),
            since: EpochMs(0),
            reason: Reason::Unknown,
            source: WaitSource::Fixed,
            length_ms: 0,
            level: 0,
            level_before: 0,
            decay_from: EpochMs(0),
            changed_by: 0,
        }
    }
}

/// What a checkpoint keeps of a cooldown. Ordered so that the later end wins a merge.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CooldownMemory {
    /// End, milliseconds since the epoch; 0 = only a level.
    pub until_ms: i64,
    /// Backoff level at `decay_from_ms`.
    pub level: u32,
    /// From when the level decays, milliseconds since the epoch.
    pub decay_from_ms: i64,
    /// Length of the rest, milliseconds.
    pub length_ms: u64,
    /// When it began, or the level changed without a rest, milliseconds since the epoch.
    pub since_ms: i64,
    /// Why.
    pub reason: Reason,
    /// Where the wait comes from.
    pub source: WaitSource,
}

impl Cooldown {
    /// The end, while it lies ahead.
    #[must_use]
    pub fn until(&self, now: EpochMs) -> Option<EpochMs> {
        (self.until > now).then_some(self.until)
    }

    /// Why it rests (or rested).
    #[must_use]
    pub const fn reason(&self) -> Reason {
        self.reason
    }

    /// Where the wait comes from.
    #[must_use]
    pub const fn source(&self) -> WaitSource {
        self.source
    }

    /// The backoff level at `now`: it is not reset by the end of a rest, it decays step by step (decisions 3.2).
    #[must_use]
    pub fn level(&self, now: EpochMs) -> u32 {
        let steps = now.since(self.decay_from) / self.decay_interval_ms();
        self.level.saturating_sub(u32::try_from(steps).unwrap_or(u32::MAX))
    }

    /// When the level drops next.
    #[must_use]
    pub fn next_decay(&self, now: EpochMs) -> Option<EpochMs> {
        if self.level(now) == 0 {
            return None;
        }
        let interval = self.decay_interval_ms();
        let steps = now.since(self.decay_from) / interval;
        Some(self.decay_from.plus(interval.saturating_mul(steps + 1)))
    }

    /// The level from which a failure of a request that began at `sequence` is to be computed: concurrent failures all start from the
    /// level before the first of them (herd guard, decisions 3.3).
    #[must_use]
    pub fn level_for(&self, sequence: u64, now: EpochMs) -> u32 {
        if sequence < self.changed_by { self.level_before } else { self.level(now) }
    }

    /// True when a failure of a request that began at `sequence` must not change the level: another one did after the request began, or
    /// the connection rests already (spec: resilience 5.5).
    #[must_use]
    pub fn is_herd(&self, sequence: u64, now: EpochMs) -> bool {
        sequence < self.changed_by || self.until > now
    }

    /// Stores the level that a failure asks for, once for all failures of the same herd. `began` is the sequence at which the request
    /// began, `sequence` that of this failure.
    pub fn change_level(&mut self, change: LevelChange, began: u64, sequence: u64, now: EpochMs) {
        let LevelChange::Set(level) = change else { return };
        if self.is_herd(began, now) {
            return;
        }
        self.level_before = self.level(now);
        self.level = level.min(MAX_LEVEL);
        self.changed_by = sequence;
        self.decay_from = self.decay_from.max(now);
        self.since = now;
    }

    /// Starts a rest, or moves its end to a later instant; never to an earlier one.
    pub fn apply(&mut self, rest: &Rest, now: EpochMs) -> Applied {
        let until = now.plus(rest.wait_ms);
        if until <= self.until.max(now) {
            return Applied::Kept;
        }
        let applied = if self.until > now { Applied::Extended } else { Applied::Started };
        if applied == Applied::Started {
            self.since = now;
        }
        self.until = until;
        self.reason = rest.reason;
        self.source = rest.source;
        self.length_ms = rest.wait_ms;
        self.decay_from = until;
        applied
    }

    /// Ends the rest; the level stays.
    pub fn end(&mut self, now: EpochMs) {
        if self.until > now {
            self.until = now;
            self.decay_from = now;
        }
    }

    /// Forgets everything (success, reset).
    pub fn clear(&mut self) {
        *self = Self { changed_by: self.changed_by, ..Self::default() };
    }

    /// What a checkpoint keeps; `None` when there is nothing to keep at `now`.
    #[must_use]
    pub fn memory(&self, now: EpochMs) -> Option<CooldownMemory> {
        (self.until > now || self.level(now) > 0).then_some(CooldownMemory {
            until_ms: self.until.0,
            level: self.level,
            decay_from_ms: self.decay_from.0,
            length_ms: self.length_ms,
            since_ms: self.since.0,
            reason: self.reason,
            source: self.source,
        })
    }

    /// Takes over what a checkpoint, or a replica, remembers: a later end and a higher level win. Two that take over from each other come to
    /// the same, and a level goes on decaying from where it began to.
    pub fn restore(&mut self, memory: &CooldownMemory, now: EpochMs) {
        let remembered = Self {
            until: EpochMs(memory.until_ms),
            since: EpochMs(memory.since_ms),
            reason: memory.reason,
            source: memory.source,
            length_ms: memory.length_ms,
            level: memory.level.min(MAX_LEVEL),
            level_before: memory.level.min(MAX_LEVEL),
            decay_from: EpochMs(memory.decay_from_ms),
            changed_by: self.changed_by,
        };
        let (own, theirs) = (self.level(now), remembered.level(now));
        if remembered.until <= self.until && theirs <= own {
            return;
        }
        let rest = if remembered.until > self.until { remembered } else { *self };
        let higher = if theirs > own { remembered } else { *self };
        *self = if rest.until > now {
            Self { level: own.max(theirs), level_before: own.max(theirs), decay_from: rest.until, ..rest }
        } else {
            Self { level: higher.level, level_before: higher.level, decay_from: higher.decay_from, length_ms: higher.length_ms, ..rest }
        };
    }

    fn decay_interval_ms(&self) -> u64 {
        self.length_ms.max(MIN_DECAY_INTERVAL_MS)
    }
}

/// The scaled cooldown of a level, milliseconds (spec: resilience 5.2).
#[must_use]
pub fn scaled_ms(level: u32, profile: &CooldownProfile) -> u64 {
    backoff_ms(profile.base_cooldown_ms, level, profile.max_backoff_steps, profile.max_cooldown_ms)
}

/// `base × 2^min(exponent, steps)`, at most `max`; milliseconds.
#[must_use]
pub fn backoff_ms(base: u64, exponent: u32, steps: u32, max: u64) -> u64 {
    base.saturating_mul(1u64 << exponent.min(steps).min(MAX_LEVEL)).min(max)
}

/// A computed wait with jitter; `jitter` in −1..=1 stands for −10 % to +10 %.
#[must_use]
#[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)] // waits are below 2^53 ms; the result is ≥ 0
pub fn jittered_ms(wait_ms: u64, jitter: f64) -> u64 {
    let jitter = if jitter.is_finite() { jitter.clamp(-1.0, 1.0) } else { 0.0 };
    (wait_ms as f64).mul_add(JITTER * jitter, wait_ms as f64).round() as u64
}
