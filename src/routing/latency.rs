//! What is remembered about how fast and how reliably something answered.

use std::collections::VecDeque;

use crate::api::time::EpochMs;

/// Attempts that are remembered.
const MAX_SAMPLES: usize = 20;
/// How long they count, milliseconds.
const MAX_AGE_MS: u64 = 15 * 60 * 1_000;
/// Both sides need as many before they are compared.
const MIN_SAMPLES: usize = 3;

/// The last attempts of a connection: time to the first byte, and whether it failed (resilience spec 5.8, routing spec 11).
#[derive(Clone, Debug, Default)]
pub(crate) struct Samples(VecDeque<(EpochMs, u64, bool)>);

impl Samples {
    pub(crate) fn push(&mut self, latency_ms: u64, failed: bool, now: EpochMs) {
        if self.0.len() >= MAX_SAMPLES {
            self.0.pop_front();
        }
        self.0.push_back((now, latency_ms, failed));
    }

    /// Average latency of the successes and error rate, when there is enough to say.
    fn summary(&self, now: EpochMs) -> Option<(f64, f64)> {
        let fresh: Vec<&(EpochMs, u64, bool)> = self.0.iter().filter(|(at, ..)| now.since(*at) <= MAX_AGE_MS).collect();
        if fresh.len() < MIN_SAMPLES {
            return None;
        }
        let count = |n: usize| f64::from(u32::try_from(n).unwrap_or(u32::MAX));
        let failed = fresh.iter().filter(|(.., failed)| *failed).count();
        #[allow(clippy::cast_precision_loss)]
        let sum: f64 = fresh.iter().map(|(_, latency, _)| *latency as f64).sum();
        Some((sum / count(fresh.len()), count(failed) / count(fresh.len())))
    }

    /// Penalty points of both sides: half of the weight from the latency relative to the faster one (twice as slow = full half), half
    /// from the error rate.
    pub(crate) fn penalties(&self, other: &Self, weight: u32, now: EpochMs) -> (f64, f64) {
        let (Some(a), Some(b)) = (self.summary(now), other.summary(now)) else { return (0.0, 0.0) };
        let half = f64::from(weight) / 2.0;
        let fastest = a.0.min(b.0).max(1.0);
        let points = |(latency, errors): (f64, f64)| half * (latency.max(1.0) / fastest - 1.0).clamp(0.0, 1.0) + half * errors;
        (points(a), points(b))
    }
}

/// An average in which old samples fade: a sample weighs at least a fifth, and more the longer the last one is ago.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faded {
    value: Option<f64>,
    at: EpochMs,
}

/// Time constant, milliseconds.
const FADE_MS: f64 = 60_000.0;

impl Faded {
    pub(crate) fn push(&mut self, sample: f64, now: EpochMs) {
        #[allow(clippy::cast_precision_loss)]
        let elapsed = now.since(self.at) as f64;
        let share = (1.0 - (-elapsed / FADE_MS).exp()).max(0.2);
        self.value = Some(self.value.map_or(sample, |old| old + share * (sample - old)));
        self.at = now;
    }

    pub(crate) const fn get(&self) -> Option<f64> {
        self.value
    }
}
