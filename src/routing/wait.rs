//! Whether a request waits for a timer instead of failing (routing spec 7.1, 7.2; decisions 4.9, 9.10).

use crate::snapshot::CooldownWait;

/// Added to every wait, so that the timer has really ended, milliseconds.
pub const MARGIN_MS: u64 = 50;

/// What a request may still wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Patience {
    enabled: bool,
    max_wait_ms: u64,
    waits_left: u32,
    budget_ms: u64,
}

impl Patience {
    /// The patience of a fresh request. `enabled` is the combo's own switch; the settings must allow it as well.
    #[must_use]
    pub const fn new(settings: &CooldownWait, enabled: bool) -> Self {
        Self {
            enabled: enabled && settings.enabled && settings.max_wait_ms > 0 && settings.max_attempts > 0,
            max_wait_ms: settings.max_wait_ms,
            waits_left: settings.max_attempts,
            budget_ms: settings.budget_ms,
        }
    }

    /// A request that never waits.
    #[must_use]
    pub const fn none() -> Self {
        Self { enabled: false, max_wait_ms: 0, waits_left: 0, budget_ms: 0 }
    }

    /// Whether timers need to be looked at, at all.
    #[must_use]
    pub const fn is_left(&self) -> bool {
        self.enabled && self.waits_left > 0 && self.budget_ms > 0
    }

    /// Whether a wait of this length, margin included, is within all bounds (inclusive).
    #[must_use]
    pub const fn fits(&self, wait_ms: u64) -> bool {
        self.is_left() && wait_ms > 0 && wait_ms <= self.max_wait_ms && wait_ms <= self.budget_ms
    }

    /// Decides on a transient timer that has `remaining_ms` left: the wait with its margin, or `None`. A timer that has ended is no reason
    /// to wait.
    #[must_use]
    pub const fn decide(&self, remaining_ms: u64) -> Option<u64> {
        let wait = remaining_ms.saturating_add(MARGIN_MS);
        if remaining_ms > 0 && self.fits(wait) { Some(wait) } else { None }
    }

    /// Takes a wait out of the budget.
    pub const fn spend(&mut self, wait_ms: u64) {
        self.waits_left = self.waits_left.saturating_sub(1);
        self.budget_ms = self.budget_ms.saturating_sub(wait_ms);
    }
}
