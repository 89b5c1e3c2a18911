//! What is remembered about how fast and how reliably something answered.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

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

    fn fresh(&self, now: EpochMs) -> impl Iterator<Item = &(EpochMs, u64, bool)> + Clone {
        self.0.iter().filter(move |(at, ..)| now.since(*at) <= MAX_AGE_MS)
    }

    /// Average latency and error rate, when there are at least `min` samples.
    pub(crate) fn summary(&self, min: usize, now: EpochMs) -> Option<(f64, f64)> {
        let count = self.fresh(now).count();
        if count < min {
            return None;
        }
        let count = f64::from(u32::try_from(count).unwrap_or(u32::MAX));
        let failed = self.fresh(now).filter(|(.., failed)| *failed).count();
        #[allow(clippy::cast_precision_loss)]
        let sum: f64 = self.fresh(now).map(|(_, latency, _)| *latency as f64).sum();
        Some((sum / count, f64::from(u32::try_from(failed).unwrap_or(u32::MAX)) / count))
    }

    /// 95th percentile and standard deviation of the latency of successes, when there are at least `min` of them.
    pub(crate) fn spread(&self, min: usize, now: EpochMs) -> Option<(f64, f64)> {
        #[allow(clippy::cast_precision_loss)]
        let mut values: Vec<f64> = self.fresh(now).filter(|(.., failed)| !failed).map(|(_, latency, _)| *latency as f64).collect();
        if values.len() < min.max(1) {
            return None;
        }
        values.sort_by(f64::total_cmp);
        let count = f64::from(u32::try_from(values.len()).unwrap_or(u32::MAX));
        let mean = values.iter().sum::<f64>() / count;
        let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / count;
        let p95 = values.get((values.len() * 95).div_ceil(100).saturating_sub(1)).copied()?;
        Some((p95, variance.sqrt()))
    }

    /// Penalty points of both sides: half of the weight from the latency relative to the faster one (twice as slow = full half), half
    /// from the error rate.
    pub(crate) fn penalties(&self, other: &Self, weight: u32, now: EpochMs) -> (f64, f64) {
        let (Some(a), Some(b)) = (self.summary(MIN_SAMPLES, now), other.summary(MIN_SAMPLES, now)) else { return (0.0, 0.0) };
        let half = f64::from(weight) / 2.0;
        let fastest = a.0.min(b.0).max(1.0);
        let points = |(latency, errors): (f64, f64)| half * (latency.max(1.0) / fastest - 1.0).clamp(0.0, 1.0) + half * errors;
        (points(a), points(b))
    }
}

/// How fast a target answered lately. Shared by the combos that name it; survives reloads.
#[derive(Debug, Default)]
pub(crate) struct Speed(Mutex<Samples>);

impl Speed {
    pub(crate) fn push(&self, latency_ms: u64, failed: bool, now: EpochMs) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(latency_ms, failed, now);
    }

    /// Whether it takes longer than `limit_ms` on average, by at least five answers (routing spec 5.2 gate 12).
    pub(crate) fn is_slower_than(&self, limit_ms: u64, now: EpochMs) -> bool {
        const MIN_ANSWERS: usize = 5;
        let samples = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        #[allow(clippy::cast_precision_loss)]
        samples.summary(MIN_ANSWERS, now).is_some_and(|(average, _)| average > limit_ms as f64)
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
