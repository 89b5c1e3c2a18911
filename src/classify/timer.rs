//! How long something rests: stated waits, overrides, backoff, the daily reset, strikes (spec: resilience 5.2, 5.3, 7.4; decisions 9.5).

use super::context::Context;
use super::evidence::{Evidence, Seen};
use super::hints::{self, Wait};
use super::row::{self, Rest};
use super::{LevelChange, Reason, WaitSource};

/// Shortest rest for a stated wait (decisions 9.5).
const SHORTEST_STATED_MS: u64 = 1_000;
/// First rest of a rejected model, doubled each time (5.7).
const FIRST_REJECTION_MS: u64 = 5_000;
/// Longest rest of a rejected model (decisions 1.8).
const LONGEST_REJECTION_MS: u64 = row::HOUR;

/// What a wait is made of.
#[derive(Clone, Copy)]
pub(super) struct Timer {
    /// Milliseconds before jitter.
    pub ms: u64,
    /// Provenance.
    pub source: Option<WaitSource>,
    /// Backoff level afterwards.
    pub level: LevelChange,
    /// It reaches to the daily reset.
    pub daily: bool,
}

impl Timer {
    /// No rest.
    pub(super) const NONE: Self = Self { ms: 0, source: None, level: LevelChange::Unchanged, daily: false };

    /// A rest that is no backoff: the level goes to 0.
    pub(super) fn fixed(ms: u64, source: WaitSource) -> Self {
        Self { ms, source: Some(source), level: LevelChange::Set(0), daily: false }
    }
}

impl Context<'_> {
    /// A stated wait as a timer.
    pub(super) fn stated_timer(&self, reason: Reason) -> Option<Timer> {
        self.honoured(reason).map(stated_wait)
    }

    /// retryable(R) of section 7 with the ranks of 5.3.
    fn backoff(&self, reason: Reason) -> Timer {
        if let Some(timer) = self.stated_timer(reason) {
            return timer;
        }
        if let Some(wait) = self.restated.and_then(|r| r.wait_ms) {
            return Timer::fixed(wait, WaitSource::Catalog);
        }
        let own = self.history.retry_override_ms.or(self.attempt.provider.retry_delay_ms).filter(|ms| *ms > 0);
        if let Some(ms) = own.filter(|_| reason == Reason::RateLimitExceeded) {
            return Timer::fixed(ms, WaitSource::Override);
        }
        let profile = self.history.profile;
        let level = self.history.backoff_level;
        let factor = 1u64.checked_shl(level.min(profile.max_backoff_steps)).unwrap_or(u64::MAX);
        let ms = profile.base_cooldown_ms.saturating_mul(factor).min(profile.max_cooldown_ms);
        let level = level.saturating_add(1).min(profile.max_backoff_steps);
        Timer { ms, source: Some(WaitSource::Scaled), level: LevelChange::Set(level), daily: false }
    }

    /// Until the daily reset: a stated wait, else the provider's clock, else midnight UTC (decisions 1.6).
    fn daily(&self, reason: Reason) -> Timer {
        if let Some(timer) = self.stated_timer(reason) {
            return Timer { daily: true, ..timer };
        }
        let now = self.history.now;
        let declared = self.attempt.provider.quota_reset.as_ref().and_then(|r| hints::until_hour(&r.time_zone, r.hour, now));
        let ms = declared.or_else(|| hints::until_hour("UTC", 0, now)).unwrap_or(row::DAY);
        Timer { ms, source: Some(WaitSource::DailyReset), level: LevelChange::Set(0), daily: true }
    }

    /// The engine's own computation for a rule without a cooldown.
    pub(super) fn normal(&self, reason: Reason) -> Timer {
        let per_day = reason == Reason::QuotaExhausted
            && self.sight.seen.has(Evidence::PerDay)
            && !self.sight.seen.any(Seen::of(&[Evidence::TokensPerDay, Evidence::TpdLimit]));
        if per_day { self.daily(reason) } else { self.backoff(reason) }
    }

    pub(super) fn timer(&self, reason: Reason, rest: Rest) -> Timer {
        let stated = || self.stated_timer(reason);
        match rest {
            Rest::None => Timer::NONE,
            Rest::Fixed(ms) => Timer::fixed(ms, WaitSource::Fixed),
            Rest::Backoff => self.backoff(reason),
            // The deadline of another gateway is its own, whatever `retryHints` says of a vendor's.
            Rest::PeerDeadline => self.stated().map_or_else(|| self.backoff(reason), stated_wait),
            Rest::StatedOr(ms) => stated().unwrap_or_else(|| Timer::fixed(ms, WaitSource::Fixed)),
            Rest::DailyReset => self.daily(reason),
            Rest::Base => stated().unwrap_or(Timer {
                ms: self.history.profile.base_cooldown_ms,
                source: Some(WaitSource::Fixed),
                level: LevelChange::Unchanged,
                daily: false,
            }),
            Rest::LevelKept(ms) => {
                Timer { level: LevelChange::Unchanged, ..stated().unwrap_or_else(|| Timer::fixed(ms, WaitSource::Fixed)) }
            }
            Rest::AuthStrike => {
                let ms = (5 * row::MINUTE) << self.history.auth_strikes.min(2);
                Timer { level: LevelChange::Unchanged, ..Timer::fixed(ms, WaitSource::Fixed) }
            }
            Rest::RejectionStrike => {
                let factor = 1u64.checked_shl(self.history.request_rejections.min(32)).unwrap_or(u64::MAX);
                let ms = FIRST_REJECTION_MS.saturating_mul(factor).min(LONGEST_REJECTION_MS);
                Timer { level: LevelChange::Unchanged, ..Timer::fixed(ms, WaitSource::Fixed) }
            }
        }
    }
}

/// A stated wait as it stands, within its bounds.
fn stated_wait(wait: Wait) -> Timer {
    Timer::fixed(wait.ms.clamp(SHORTEST_STATED_MS, hints::MAX_WAIT_MS), wait.source)
}
