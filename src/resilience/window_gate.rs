//! The opt-in provider cooldown window gate (spec: resilience 4): a provider that failed often rests for a while, and so does one of
//! its connections after each failure.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use crate::api::time::EpochMs;
use crate::snapshot::{ProviderCooldown, WindowGateProfile};

/// Most failures a window remembers; thresholds above are cut to it.
const MAX_REMEMBERED: u32 = 1_000;

/// Largest exponent of a connection's rest.
const MAX_EXPONENT: u32 = 10;

/// Failures of one provider inside its window.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WindowGate {
    failures: VecDeque<i64>,
}

impl WindowGate {
    /// Records a failure; answers the end of the rest when the provider rests now.
    pub fn failure(&mut self, now: EpochMs, profile: &WindowGateProfile) -> Option<EpochMs> {
        let threshold = threshold(profile);
        while self.failures.len() >= threshold {
            self.failures.pop_front();
        }
        self.failures.push_back(now.0);
        self.until(now, profile)
    }

    /// One success empties the window.
    pub fn success(&mut self) {
        self.failures.clear();
    }

    /// End of the rest at `now`, if the provider rests.
    #[must_use]
    pub fn until(&self, now: EpochMs, profile: &WindowGateProfile) -> Option<EpochMs> {
        let last = EpochMs(*self.failures.back()?);
        let until = last.plus(profile.cooldown_ms);
        (until > now && self.reached(last, profile)).then_some(until)
    }

    /// The times of the failures that are remembered, oldest first, milliseconds since the epoch.
    pub fn memory(&self) -> impl Iterator<Item = i64> + '_ {
        self.failures.iter().copied()
    }

    /// Adds failures that somebody else remembers. What both remember of one instant is the same.
    pub fn restore(&mut self, times: impl IntoIterator<Item = i64>) {
        let (mut own, mut theirs) = (BTreeMap::new(), BTreeMap::new());
        self.failures.iter().for_each(|failed| *own.entry(*failed).or_insert(0_usize) += 1);
        times.into_iter().for_each(|failed| *theirs.entry(failed).or_insert(0_usize) += 1);
        for (failed, count) in theirs {
            own.entry(failed).and_modify(|known| *known = count.max(*known)).or_insert(count);
        }
        let all: Vec<i64> = own.into_iter().flat_map(|(failed, count)| std::iter::repeat_n(failed, count)).collect();
        let skip = all.len().saturating_sub(MAX_REMEMBERED as usize);
        self.failures = all.into_iter().skip(skip).collect();
    }

    /// Forgets failures from before an instant.
    pub fn end(&mut self, before_ms: i64) {
        self.failures.retain(|failed| *failed >= before_ms);
    }

    /// Whether the failures up to `last` reached the threshold inside the window.
    fn reached(&self, last: EpochMs, profile: &WindowGateProfile) -> bool {
        let inside = self.failures.iter().filter(|t| last.since(EpochMs(**t)) <= profile.failure_window_ms).count();
        inside >= threshold(profile)
    }
}

fn threshold(profile: &WindowGateProfile) -> usize {
    profile.failure_threshold.clamp(1, MAX_REMEMBERED) as usize
}

/// The rest of one connection after failures in a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConnectionGate {
    /// End of the rest, milliseconds since the epoch; 0 = none.
    pub until_ms: i64,
    /// Failures since the last success.
    pub failures: u32,
    /// The last failure, milliseconds since the epoch.
    #[serde(default)]
    pub last_ms: i64,
}

impl ConnectionGate {
    /// Records a failure; answers the end of the rest.
    pub fn failure(&mut self, now: EpochMs, settings: &ProviderCooldown) -> EpochMs {
        self.failures = self.failures.saturating_add(1);
        self.last_ms = now.0;
        let until = now.plus(rest_ms(self.failures, settings));
        self.until_ms = self.until_ms.max(until.0);
        EpochMs(self.until_ms)
    }

    /// A success ends the rest and the count.
    pub fn success(&mut self) {
        *self = Self::default();
    }

    /// End of the rest at `now`, if the connection rests.
    #[must_use]
    pub fn until(&self, now: EpochMs) -> Option<EpochMs> {
        (self.until_ms > now.0).then_some(EpochMs(self.until_ms))
    }
}

/// The rest after `failures` failures in a row, milliseconds.
#[must_use]
pub fn rest_ms(failures: u32, settings: &ProviderCooldown) -> u64 {
    let exponent = failures.saturating_sub(1).min(MAX_EXPONENT);
    settings.min_retry_cooldown_ms.saturating_mul(1 << exponent).min(settings.max_retry_cooldown_ms)
}
