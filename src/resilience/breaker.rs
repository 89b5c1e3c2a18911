//! The provider's circuit breaker (spec: resilience 3; decisions 3.1, 9.7): a pure state machine over a clock that is passed in.
//!
//! What counts is decided elsewhere (one predicate, `Verdict::counts_for_breaker`); here a counted failure or a success only moves the state.

use serde::{Deserialize, Serialize};

use super::{BreakerPhase, BreakerState};
use crate::api::time::EpochMs;
use crate::classify::FailureKind;
use crate::snapshot::BreakerProfile;

/// The right to send one probe through a half-open breaker. A probe that takes longer than the reset timeout gives its place to another one, but its
/// result still counts as long as the breaker has not closed or opened again since: otherwise answers that take longer could never close it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProbeToken {
    generation: u64,
    /// The opening that it probes.
    opening: u64,
}

/// What a breaker says to a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Admission {
    /// Traffic flows.
    Free,
    /// Half open: go, and report with this token.
    Probe(ProbeToken),
    /// Not now.
    Refused {
        /// When it is worth asking again.
        until: EpochMs,
    },
}

/// Where a result comes from, seen from the breaker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// A request that was sent before the breaker opened: says nothing about the time since.
    BeforeOpening,
    /// A request that was sent after it (a test of the connection, or traffic while it is closed).
    Current,
    /// The probe with this token.
    Probe(ProbeToken),
}

/// One running probe.
#[derive(Clone, Copy, Debug)]
struct Probe {
    generation: u64,
    started: EpochMs,
}

/// A circuit breaker. Reading always goes through a method that takes `now`: the stored phase alone may be out of date.
#[derive(Clone, Debug)]
pub struct Breaker {
    phase: BreakerPhase,
    failures: u32,
    last_failure: EpochMs,
    last_kind: FailureKind,
    opened: EpochMs,
    open_cycles: u32,
    generation: u64,
    /// Number of the last opening; closing is the beginning of the next one, so that no token outlives it.
    opening: u64,
    probes: Vec<Probe>,
}

impl Default for Breaker {
    fn default() -> Self {
        Self {
            phase: BreakerPhase::Closed,
            failures: 0,
            last_failure: EpochMs(0),
            last_kind: FailureKind::Transient,
            opened: EpochMs(0),
            open_cycles: 0,
            generation: 0,
            opening: 0,
            probes: Vec::new(),
        }
    }
}

/// What survives a restart: everything but the probes, whose requests died with the process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BreakerMemory {
    /// When it opened, milliseconds since the epoch; 0 = never. First, because the later opening wins a merge.
    pub opened_ms: i64,
    /// State; an open window that has passed is half open.
    pub phase: BreakerPhase,
    /// Failures counted.
    pub failures: u32,
    /// Failed probes since it last closed.
    pub open_cycles: u32,
    /// The last counted failure, milliseconds since the epoch.
    pub last_failure_ms: i64,
    /// Its kind.
    pub last_kind: FailureKind,
}

impl Breaker {
    /// The state at `now`.
    pub fn phase(&mut self, now: EpochMs, profile: &BreakerProfile) -> BreakerPhase {
        self.refresh(now, profile);
        self.phase
    }

    /// Counted failures.
    #[must_use]
    pub const fn failures(&self) -> u32 {
        self.failures
    }

    /// Failed probes since it last closed.
    #[must_use]
    pub const fn open_cycles(&self) -> u32 {
        self.open_cycles
    }

    /// Length of an open window with the failures so far, milliseconds (spec: resilience 3.3).
    #[must_use]
    pub fn open_duration_ms(&self, profile: &BreakerProfile) -> u64 {
        let growth = self.open_cycles.saturating_sub(profile.backoff_escalation_count);
        let factor = if growth == 0 { 1 } else { 1u64.checked_shl(growth.min(32)).unwrap_or(u64::MAX) };
        self.base_ms(profile).saturating_mul(factor.min(u64::from(profile.max_backoff_multiplier.max(1))))
    }

    /// How many probes may start now; 0 unless half open.
    pub fn probes_allowed(&mut self, now: EpochMs, profile: &BreakerProfile) -> usize {
        self.refresh(now, profile);
        match self.phase {
            BreakerPhase::HalfOpen => slots(profile).saturating_sub(self.probes.len()),
            _ => 0,
        }
    }

    /// Whether a request may start at `now`, without taking a probe.
    pub fn can_execute(&mut self, now: EpochMs, profile: &BreakerProfile) -> bool {
        self.retry_at(now, profile).is_none()
    }

    /// When it is worth asking again; `None` when a request may start at once.
    pub fn retry_at(&mut self, now: EpochMs, profile: &BreakerProfile) -> Option<EpochMs> {
        self.refresh(now, profile);
        match self.phase {
            BreakerPhase::Closed | BreakerPhase::Degraded => None,
            BreakerPhase::Open => Some(self.opened.plus(self.open_duration_ms(profile))),
            BreakerPhase::HalfOpen if self.probes.len() < slots(profile) => None,
            BreakerPhase::HalfOpen => self.probes.iter().map(|p| p.started.plus(profile.reset_timeout_ms)).min(),
        }
    }

    /// Asks for admission; half open, this takes the probe.
    pub fn admit(&mut self, now: EpochMs, profile: &BreakerProfile) -> Admission {
        if let Some(until) = self.retry_at(now, profile) {
            return Admission::Refused { until };
        }
        if self.phase != BreakerPhase::HalfOpen {
            return Admission::Free;
        }
        self.generation += 1;
        self.probes.push(Probe { generation: self.generation, started: now });
        Admission::Probe(ProbeToken { generation: self.generation, opening: self.opening })
    }

    /// Gives a probe back without a result (its client left, or the answer says nothing about the provider).
    pub fn release(&mut self, token: ProbeToken) {
        self.probes.retain(|p| p.generation != token.generation);
    }

    /// Records one counted failure.
    pub fn failure(&mut self, now: EpochMs, kind: FailureKind, origin: Origin, profile: &BreakerProfile) {
        self.refresh(now, profile);
        let probing = self.phase == BreakerPhase::HalfOpen;
        let stands = match origin {
            Origin::Probe(token) => self.judges(token),
            Origin::Current => true,
            Origin::BeforeOpening => !probing,
        };
        if !stands {
            return;
        }
        self.failures = self.failures.saturating_add(1);
        self.last_failure = now;
        if self.phase == BreakerPhase::Open {
            return; // the window runs from the opening and is not prolonged
        }
        self.last_kind = kind;
        if probing {
            self.open_cycles = self.open_cycles.saturating_add(1);
            self.open(now);
        } else if self.failures >= profile.failure_threshold {
            self.open(now);
        } else if self.failures >= profile.degradation_threshold {
            self.phase = BreakerPhase::Degraded;
        }
    }

    /// Records one success.
    pub fn success(&mut self, now: EpochMs, origin: Origin, profile: &BreakerProfile) {
        self.refresh(now, profile);
        match (self.phase, origin) {
            (BreakerPhase::Closed | BreakerPhase::Degraded, _) => {
                self.failures = self.failures.saturating_sub(1);
                if self.failures <= profile.degradation_threshold {
                    self.phase = BreakerPhase::Closed;
                }
            }
            (BreakerPhase::HalfOpen, Origin::Probe(token)) if self.judges(token) => self.reset(),
            (BreakerPhase::Open | BreakerPhase::HalfOpen, Origin::Current) => self.reset(),
            (BreakerPhase::Open | BreakerPhase::HalfOpen, _) => {}
        }
    }

    /// Closes it and forgets everything.
    pub fn reset(&mut self) {
        *self = Self { generation: self.generation, opening: self.opening + 1, ..Self::default() };
    }

    /// When the shown state changes by itself next: the end of an open window or of a quiet window.
    pub fn next_change(&mut self, now: EpochMs, profile: &BreakerProfile) -> Option<EpochMs> {
        self.refresh(now, profile);
        match self.phase {
            BreakerPhase::Closed | BreakerPhase::Degraded if self.failures > 0 => Some(self.last_failure.plus(self.quiet_ms(profile))),
            BreakerPhase::Closed | BreakerPhase::Degraded | BreakerPhase::HalfOpen => None,
            BreakerPhase::Open => self.retry_at(now, profile),
        }
    }

    /// What `/state` shows.
    pub fn state(&mut self, now: EpochMs, profile: &BreakerProfile) -> BreakerState {
        // Half open the deadline depends on requests in flight, which is no state to show.
        let until = self.retry_at(now, profile).filter(|_| self.phase == BreakerPhase::Open);
        BreakerState { state: self.phase, failures: self.failures, until, open_cycles: self.open_cycles }
    }

    /// What a checkpoint keeps.
    #[must_use]
    pub const fn memory(&self) -> BreakerMemory {
        BreakerMemory {
            opened_ms: self.opened.0,
            phase: self.phase,
            failures: self.failures,
            open_cycles: self.open_cycles,
            last_failure_ms: self.last_failure.0,
            last_kind: self.last_kind,
        }
    }

    /// Takes over what a checkpoint, or a replica, remembers; probes of before mean nothing any more.
    pub fn restore(&mut self, memory: &BreakerMemory) {
        *self = Self {
            generation: self.generation.wrapping_add(1),
            opening: self.opening + 1,
            phase: memory.phase,
            failures: memory.failures,
            last_failure: EpochMs(memory.last_failure_ms),
            last_kind: memory.last_kind,
            opened: EpochMs(memory.opened_ms),
            open_cycles: memory.open_cycles,
            ..Self::default()
        };
    }

    /// Lets time act: open window, lost probes, quiet window.
    fn refresh(&mut self, now: EpochMs, profile: &BreakerProfile) {
        match self.phase {
            BreakerPhase::Open if now.since(self.opened) >= self.open_duration_ms(profile) => {
                self.phase = BreakerPhase::HalfOpen;
                self.probes.clear();
            }
            BreakerPhase::HalfOpen => self.probes.retain(|p| now.since(p.started) < profile.reset_timeout_ms),
            BreakerPhase::Closed | BreakerPhase::Degraded
                if self.failures > 0 && now.since(self.last_failure) >= self.quiet_ms(profile) =>
            {
                self.phase = BreakerPhase::Closed;
                self.failures = 0;
            }
            _ => {}
        }
    }

    fn open(&mut self, now: EpochMs) {
        self.phase = BreakerPhase::Open;
        self.opened = now;
        self.opening += 1;
        self.probes.clear();
    }

    /// Ends the probe of this token; false when it probed an earlier opening, about which nothing is asked any more.
    fn judges(&mut self, token: ProbeToken) -> bool {
        self.release(token);
        token.opening == self.opening
    }

    /// Cooldown of the last failure's kind, else the reset timeout.
    fn base_ms(&self, profile: &BreakerProfile) -> u64 {
        match self.last_kind {
            FailureKind::RateLimit => profile.rate_limit_cooldown_ms,
            FailureKind::QuotaExhausted => profile.quota_cooldown_ms,
            FailureKind::Transient => None,
        }
        .unwrap_or(profile.reset_timeout_ms)
    }

    /// Without a failure for this long the count is forgotten (spec: resilience 3.2, decisions 3.1).
    fn quiet_ms(&self, profile: &BreakerProfile) -> u64 {
        self.base_ms(profile).saturating_mul(u64::from(profile.max_backoff_multiplier.max(1)))
    }
}

/// Concurrent probes; a profile that says none would never close again.
fn slots(profile: &BreakerProfile) -> usize {
    profile.half_open_requests.max(1) as usize
}
