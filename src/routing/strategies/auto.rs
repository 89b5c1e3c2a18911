//! `Auto`: scores what is known about each candidate and shows how (routing spec 4.15; decisions 4.5). Only what the gateway measures or
//! the manifests say goes in; nothing is excluded by a score.

use std::sync::atomic::AtomicUsize;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::super::latency::Samples;
use super::bounded::Bounded;
use super::by_facts::expected_cost;
use super::reset_aware::rotate_band;
use super::{Candidate, Event, EventKind, OrderContext, Ranked, Strategy, Traits, split};
use crate::api::time::EpochMs;
use crate::snapshot::{Auto, AutoRouter};

/// Share of the requests that try something else than the best.
const EXPLORATION: f64 = 0.05;
/// Candidates below this score go last.
const POOR: f64 = 0.2;
/// Scores this close are equal.
const EPSILON: f64 = 1e-4;
/// Answers before the measured speed is believed.
const MIN_SAMPLES: usize = 5;
/// Speed of a candidate that was not measured yet, milliseconds.
const DEFAULT_P95_MS: f64 = 1_500.0;
/// Error rate of a candidate that was not measured yet.
const DEFAULT_ERRORS: f64 = 0.05;

/// Settings and measurements of one combo.
#[derive(Debug)]
pub struct AutoOrder {
    router: AutoRouter,
    target_p95_ms: f64,
    max_errors: f64,
    hard: bool,
    turn: AtomicUsize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    entries: Bounded<Entry>,
    last_good: Option<u64>,
}

#[derive(Debug, Default)]
struct Entry {
    samples: Samples,
    last: EpochMs,
}

/// What is known about one candidate.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Metrics {
    /// Average time until the answer starts, milliseconds; `None` = not measured.
    pub average_ms: Option<f64>,
    /// 95th percentile of it, milliseconds.
    pub p95_ms: f64,
    /// Standard deviation of it, milliseconds.
    pub deviation_ms: f64,
    /// Share of failures, 0–1; `None` = not measured.
    pub errors: Option<f64>,
    /// 1 = well, 0.5 = being probed, 0 = out.
    pub health: f64,
    /// Expected cost of the request; `None` = unknown.
    pub cost: Option<f64>,
    /// Share of the tightest allowance that is left, 0–1.
    pub quota: f64,
    /// 1 = the session's connection, 0.1 = another one, 0.5 = no session.
    pub affinity: f64,
}

/// The largest of each metric among the candidates: what the others are measured against.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Scale {
    p95_ms: f64,
    deviation_ms: f64,
    cost: f64,
    average_ms: f64,
}

impl Scale {
    /// Of these candidates.
    #[must_use]
    pub fn of(metrics: &[Metrics]) -> Self {
        let max = |value: fn(&Metrics) -> f64| metrics.iter().map(value).fold(0.0, f64::max);
        Self {
            p95_ms: max(|m| m.p95_ms),
            deviation_ms: max(|m| m.deviation_ms),
            cost: max(|m| m.cost.unwrap_or(0.0)),
            average_ms: max(|m| m.average_ms.unwrap_or(0.0)),
        }
    }
}

/// 1 for nothing, 0 for as much as the worst; 1 when nobody has any.
fn inverse(value: f64, max: f64) -> f64 {
    if max <= 0.0 { 1.0 } else { (1.0 - value / max).clamp(0.0, 1.0) }
}

/// The score of the `Rules` router: weighted factors, their names and values.
#[must_use]
pub fn rules(metrics: &Metrics, scale: &Scale) -> (f64, [(&'static str, f64); 6]) {
    let cost = metrics.cost.map_or(0.5, |cost| inverse(cost, scale.cost));
    let factors = [
        ("quota", 0.1429, metrics.quota),
        ("health", 0.1605, metrics.health),
        ("cost", 0.1429, cost),
        ("latency", 0.1143, inverse(metrics.p95_ms, scale.p95_ms)),
        ("stability", 0.0476, inverse(metrics.deviation_ms, scale.deviation_ms)),
        ("affinity", 0.0476, metrics.affinity),
    ];
    let total: f64 = factors.iter().map(|(_, weight, _)| weight).sum();
    let score = factors.iter().map(|(_, weight, value)| weight * value).sum::<f64>() / total;
    (score, factors.map(|(name, _, value)| (name, value)))
}

/// The score of the `Latency` router. What was not measured counts half; reliability, stability and health lower the whole.
#[must_use]
pub fn latency(metrics: &Metrics, scale: &Scale) -> f64 {
    let ttft = metrics.average_ms.map_or(0.5, |ms| inverse(ms, scale.average_ms));
    let p95 = if metrics.average_ms.is_some() { inverse(metrics.p95_ms, scale.p95_ms) } else { 0.5 };
    let reliability = 1.0 - metrics.errors.unwrap_or(0.0);
    let stability = if metrics.average_ms.is_some() { inverse(metrics.deviation_ms, scale.deviation_ms) } else { 1.0 };
    // Output speed and the time of the whole answer are not measured: they count half for everybody.
    let sum = 0.25 * ttft + (0.20 + 0.18) * 0.5 + 0.12 * p95 + 0.05 * metrics.health + 0.15 * reliability + 0.05 * stability;
    let penalty = |value: f64| (0.25 + 0.75 * value).powi(2).max(0.05);
    sum * penalty(reliability) * penalty(stability) * metrics.health.max(0.25)
}

/// The score of the `SlaAware` router, and how far the targets are missed (0 = met). Full credit at or under a target.
#[must_use]
pub fn sla(metrics: &Metrics, scale: &Scale, target_p95_ms: f64, max_errors: f64) -> (f64, f64) {
    let errors = metrics.errors.unwrap_or(DEFAULT_ERRORS);
    let credit = |value: f64, target: f64| if value <= target { 1.0 } else { target / value };
    let cost = metrics.cost.map_or(1.0, |cost| if scale.cost <= 0.0 { 1.0 } else { 1.0 - 0.5 * cost / scale.cost });
    let score = 0.35 * credit(metrics.p95_ms, target_p95_ms)
        + 0.35 * credit(errors, max_errors)
        + 0.15 * metrics.health
        + 0.10 * cost
        + 0.05 * inverse(metrics.deviation_ms, scale.deviation_ms.max(1.0));
    let over = |value: f64, target: f64| if value <= target { 0.0 } else { value / target.max(1e-9) - 1.0 };
    (score, over(metrics.p95_ms, target_p95_ms) + over(errors, max_errors))
}

impl AutoOrder {
    /// From the combo's options; without any: the `Rules` router.
    #[must_use]
    pub fn new(options: Option<&Auto>) -> Self {
        let router = options.map_or_else(AutoRouter::default, |o| o.router_strategy);
        #[allow(clippy::cast_precision_loss)]
        let target_p95_ms = options.map_or(2_000.0, |o| o.sla_target_p95_ms as f64);
        let max_errors = options.map_or(0.05, |o| f64::from(o.sla_max_error_rate_percent) / 100.0);
        let hard = options.is_some_and(|o| o.sla_hard_constraints);
        Self { router, target_p95_ms, max_errors, hard, turn: AtomicUsize::new(0), state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn metrics(state: &State, candidate: &Candidate, ctx: &OrderContext<'_>) -> Metrics {
        let samples = state.entries.get(candidate.key).map(|e| &e.samples);
        let summary = samples.and_then(|s| s.summary(MIN_SAMPLES, ctx.now));
        let spread = samples.and_then(|s| s.spread(MIN_SAMPLES, ctx.now));
        let p95_ms = spread.map_or(DEFAULT_P95_MS, |(p95, _)| p95);
        #[allow(clippy::cast_precision_loss)]
        let cost = candidate.price.map(|price| expected_cost(price, &ctx.request.needs) as f64);
        Metrics {
            average_ms: spread.and(summary).map(|(average, _)| average),
            p95_ms,
            deviation_ms: spread.map_or(p95_ms / 10.0, |(_, deviation)| deviation).max(10.0),
            errors: summary.map(|(_, errors)| errors),
            health: if candidate.measured.probing { 0.5 } else { 1.0 },
            cost,
            quota: candidate.measured.quota.as_ref().map_or(1.0, |q| q.remaining(ctx.now)),
            affinity: candidate.measured.pinned.map_or(0.5, |pinned| if pinned { 1.0 } else { 0.1 }),
        }
    }

    /// Score and explanation of a candidate: higher is better.
    fn score(&self, metrics: &Metrics, scale: &Scale, is_last_good: bool) -> (f64, String) {
        let explained = |factors: [(&'static str, f64); 6]| factors.map(|(name, value)| format!("{name} {value:.2}")).join(", ");
        match self.router {
            AutoRouter::Rules => {
                let (score, factors) = rules(metrics, scale);
                (score, explained(factors))
            }
            AutoRouter::Lkgp => {
                let (score, factors) = rules(metrics, scale);
                if is_last_good { (score + 1.0, "served last".to_owned()) } else { (score, explained(factors)) }
            }
            AutoRouter::Cost => {
                let note = metrics.cost.map_or_else(|| "price unknown".to_owned(), |cost| format!("${:.6}", cost / 1e12));
                (metrics.cost.map_or(0.0, |cost| 1.0 / (1.0 + cost / 1e9)), note)
            }
            AutoRouter::Latency => {
                let note = metrics.average_ms.map_or_else(|| "not measured".to_owned(), |ms| format!("{ms:.0} ms"));
                (latency(metrics, scale), note)
            }
            AutoRouter::SlaAware => {
                let (score, missed) = sla(metrics, scale, self.target_p95_ms, self.max_errors);
                let note =
                    if missed > 0.0 { format!("misses its targets by {:.0} %", missed * 100.0) } else { "meets its targets".to_owned() };
                (if self.hard { score - 10.0 * missed } else { score }, note)
            }
        }
    }
}

impl Strategy for AutoOrder {
    fn order(&self, candidates: &[Candidate], ctx: &mut OrderContext<'_>) -> Vec<Ranked> {
        let (mut available, rest) = split(candidates);
        let state = self.state();
        let metrics: Vec<Metrics> = candidates.iter().map(|c| Self::metrics(&state, c, ctx)).collect();
        let last_good = state.last_good;
        drop(state);
        let scale = Scale::of(&metrics);
        let mut scored: Vec<(f64, String)> = candidates
            .iter()
            .zip(&metrics)
            .map(|(candidate, metrics)| self.score(metrics, &scale, Some(candidate.key) == last_good))
            .collect();
        let score = |i: usize| scored.get(i).map_or(0.0, |(score, _)| *score);
        available.sort_by(|a, b| score(*b).total_cmp(&score(*a)));
        rotate_band(&mut available, |best, i| score(*best) - score(*i) <= EPSILON, &self.turn);
        available.sort_by_key(|i| self.router == AutoRouter::Rules && score(*i) < POOR);
        // While most of the pool is out or being probed nobody experiments.
        let well = available.iter().filter(|i| metrics.get(**i).is_some_and(|m| m.health >= 1.0)).count();
        let incident = well * 2 < candidates.len();
        let explores = !incident && self.router == AutoRouter::Rules && available.len() > 1 && ctx.rng.unit() < EXPLORATION;
        if explores {
            let chosen = ctx.rng.below(available.len());
            available.get_mut(..=chosen).into_iter().for_each(|front| front.rotate_right(1));
            if let Some((_, note)) = available.first().and_then(|i| scored.get_mut(*i)) {
                note.push_str(", chosen to learn about it");
            }
        }
        let mut place = |i: usize| {
            let (score, note) = scored.get_mut(i).map(std::mem::take).unwrap_or_default();
            Ranked { candidate: i, score: Some(score), note: Some(note) }
        };
        available.into_iter().chain(rest).map(&mut place).collect()
    }

    fn observe(&self, event: &Event) {
        let (latency_ms, failed) = match event.kind {
            EventKind::Succeeded { latency_ms } => (latency_ms, false),
            EventKind::Failed { latency_ms } => (latency_ms, true),
            EventKind::Entered | EventKind::Left => return,
        };
        let mut state = self.state();
        let entry = state.entries.entry(event.key, |e| e.last);
        entry.samples.push(latency_ms, failed, event.now);
        entry.last = event.now;
        if !failed {
            state.last_good = Some(event.key);
        } else if state.last_good == Some(event.key) {
            state.last_good = None;
        }
    }

    fn traits(&self) -> Traits {
        Traits { availability: true, load: true, quota: true, session: true, per_connection: true, protects_first: true }
    }
}
