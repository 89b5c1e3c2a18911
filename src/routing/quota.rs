//! What providers say about what is left of an account's allowances, in the headers of their answers, and what that is worth to the
//! quota-aware strategies (routing spec 4.10–4.13). Nothing is asked for: the gateway learns from the answers that it gets anyway.

use std::sync::{Mutex, PoisonError};

use crate::api::time::EpochMs;
use crate::classify::hints;

/// What is known about a connection's allowances.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Quota {
    /// Known windows, one of each kind at most.
    pub windows: Vec<QuotaWindow>,
    /// The vendor said that a limit is reached.
    pub limit_reached: bool,
    /// When this was learned.
    pub observed: EpochMs,
}

/// One allowance.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct QuotaWindow {
    /// Which one.
    pub kind: WindowKind,
    /// Share that is left, 0–1.
    pub remaining: f64,
    /// When it starts again.
    pub resets: Option<EpochMs>,
}

/// Kinds of allowances that the quota-aware strategies tell apart.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum WindowKind {
    /// Some hours (the five-hour window of subscriptions), or shorter.
    Session,
    /// Seven days.
    Weekly,
    /// A month.
    Monthly,
}

impl WindowKind {
    /// Length, milliseconds.
    const fn length_ms(self) -> f64 {
        match self {
            Self::Session => 18_000_000.0,
            Self::Weekly => 604_800_000.0,
            Self::Monthly => 2_592_000_000.0,
        }
    }

    /// Weights of what is left and of the pressure of a near reset.
    const fn weights(self) -> (f64, f64) {
        match self {
            Self::Session => (0.45, 0.55),
            Self::Weekly | Self::Monthly => (0.25, 0.75),
        }
    }

    /// The kind of a window that is so many minutes long.
    const fn of_minutes(minutes: u64) -> Self {
        match minutes {
            0..=1_440 => Self::Session,
            1_441..=11_520 => Self::Weekly,
            _ => Self::Monthly,
        }
    }
}

impl Quota {
    /// The window of a kind. One whose reset has passed is full again.
    #[must_use]
    pub fn window(&self, kind: WindowKind, now: EpochMs) -> Option<QuotaWindow> {
        let window = self.windows.iter().find(|w| w.kind == kind)?;
        let full = window.resets.is_some_and(|at| at <= now);
        Some(QuotaWindow { remaining: if full { 1.0 } else { window.remaining.clamp(0.0, 1.0) }, ..*window })
    }

    fn known(&self, now: EpochMs) -> impl Iterator<Item = QuotaWindow> {
        [WindowKind::Session, WindowKind::Weekly, WindowKind::Monthly].into_iter().filter_map(move |kind| self.window(kind, now))
    }

    /// Share of the tightest window that is left, 0–1; 1 when nothing is known.
    #[must_use]
    pub fn remaining(&self, now: EpochMs) -> f64 {
        if self.is_reached(now) {
            return 0.0;
        }
        self.known(now).map(|w| w.remaining).fold(1.0, f64::min)
    }

    /// The vendor said that a limit is reached, and no window has started again since.
    #[must_use]
    pub fn is_reached(&self, now: EpochMs) -> bool {
        self.limit_reached && !self.windows.iter().any(|w| w.resets.is_some_and(|at| at <= now && at > self.observed))
    }

    /// When the tightest window starts again.
    #[must_use]
    pub fn tightest_reset(&self, now: EpochMs) -> Option<EpochMs> {
        let tightest = self.known(now).min_by(|a, b| a.remaining.total_cmp(&b.remaining))?;
        tightest.resets.filter(|at| *at > now)
    }

    /// Takes over what an answer says; windows that it does not mention stay.
    pub fn merge(&mut self, newer: Self) {
        for window in newer.windows {
            self.windows.retain(|w| w.kind != window.kind);
            self.windows.push(window);
        }
        self.limit_reached = newer.limit_reached;
        self.observed = newer.observed;
    }
}

/// The score of `ResetAware`: what is left of an allowance, and what would be lost by its reset. `None` = a limit is reached. `guard` is
/// the share of the session window below which an account is spared (0–1).
#[must_use]
pub fn reset_aware_score(quota: Option<&Quota>, guard: f64, now: EpochMs) -> Option<f64> {
    const SESSION_SHARE: f64 = 0.35;
    const MONTHLY_SHARE: f64 = 0.25;
    const UNKNOWN: f64 = 0.5;
    let Some(quota) = quota else { return Some(UNKNOWN) };
    if quota.is_reached(now) {
        return None;
    }
    let score = |kind| quota.window(kind, now).map_or(UNKNOWN, |window| window_score(&window, now));
    let mixed = SESSION_SHARE * score(WindowKind::Session) + (1.0 - SESSION_SHARE) * score(WindowKind::Weekly);
    let with_month = match quota.window(WindowKind::Monthly, now) {
        Some(window) => (1.0 - MONTHLY_SHARE) * mixed + MONTHLY_SHARE * window_score(&window, now),
        None => mixed,
    };
    let left = quota.window(WindowKind::Session, now).map_or(1.0, |w| w.remaining);
    Some(if left < guard { with_month * (left / guard).max(0.05) } else { with_month })
}

fn window_score(window: &QuotaWindow, now: EpochMs) -> f64 {
    let (left, pressure) = window.kind.weights();
    #[allow(clippy::cast_precision_loss)]
    let urgency = window.resets.map_or(0.5, |at| (1.0 - at.since(now) as f64 / window.kind.length_ms()).clamp(0.0, 1.0));
    left * window.remaining + pressure * (urgency * (1.0 - window.remaining))
}

/// What is learned about one connection.
#[derive(Debug, Default)]
pub(super) struct QuotaCell(Mutex<Option<Quota>>);

impl QuotaCell {
    pub(super) fn get(&self) -> Option<Quota> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn learn(&self, newer: Quota) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default().merge(newer);
    }
}

/// Reads the headers of an answer; `None` when they say nothing about allowances. `header` looks one up by its lower-case name.
#[must_use]
pub fn from_headers<'h>(header: impl Fn(&str) -> Option<&'h str>, now: EpochMs) -> Option<Quota> {
    let mut quota = Quota { observed: now, ..Quota::default() };
    unified(&header, &mut quota);
    codex(&header, &mut quota);
    if !quota.windows.iter().any(|w| w.kind == WindowKind::Session) {
        buckets(&header, &mut quota);
    }
    (!quota.windows.is_empty() || quota.limit_reached).then_some(quota)
}

fn number(text: Option<&str>) -> Option<f64> {
    text?.trim().parse::<f64>().ok().filter(|n| n.is_finite() && *n >= 0.0)
}

fn instant(text: Option<&str>, now: EpochMs) -> Option<EpochMs> {
    hints::until_reset(text?, now).map(|ms| now.plus(ms))
}

/// Subscriptions of Anthropic: utilisation of the five-hour and the seven-day window, 0–1.
fn unified<'h>(header: &impl Fn(&str) -> Option<&'h str>, quota: &mut Quota) {
    let windows = [
        (WindowKind::Session, "anthropic-ratelimit-unified-5h-utilization", "anthropic-ratelimit-unified-5h-reset"),
        (WindowKind::Weekly, "anthropic-ratelimit-unified-7d-utilization", "anthropic-ratelimit-unified-7d-reset"),
    ];
    for (kind, used, reset) in windows {
        if let Some(used) = number(header(used)) {
            let remaining = (1.0 - used).clamp(0.0, 1.0);
            quota.windows.push(QuotaWindow { kind, remaining, resets: instant(header(reset), quota.observed) });
        }
    }
    quota.limit_reached |= header("anthropic-ratelimit-unified-status").is_some_and(|s| s.trim() == "rejected");
}

/// Subscriptions of OpenAI: percent used of two windows of stated length.
fn codex<'h>(header: &impl Fn(&str) -> Option<&'h str>, quota: &mut Quota) {
    let windows = [
        (
            WindowKind::Session,
            "x-codex-primary-used-percent",
            "x-codex-primary-window-minutes",
            ["x-codex-primary-reset-after-seconds", "x-codex-primary-reset-at"],
        ),
        (
            WindowKind::Weekly,
            "x-codex-secondary-used-percent",
            "x-codex-secondary-window-minutes",
            ["x-codex-secondary-reset-after-seconds", "x-codex-secondary-reset-at"],
        ),
    ];
    for (otherwise, used, minutes, resets) in windows {
        let Some(used) = number(header(used)) else { continue };
        let kind = header(minutes).and_then(|m| m.trim().parse().ok()).map_or(otherwise, WindowKind::of_minutes);
        let resets = resets.into_iter().find_map(|name| instant(header(name), quota.observed));
        quota.windows.retain(|w| w.kind != kind);
        quota.windows.push(QuotaWindow { kind, remaining: (1.0 - used / 100.0).clamp(0.0, 1.0), resets });
    }
}

/// Limit, remaining, reset of requests and tokens: the tightest counts as the session window.
fn buckets<'h>(header: &impl Fn(&str) -> Option<&'h str>, quota: &mut Quota) {
    const BUCKETS: [[&str; 3]; 6] = [
        ["x-ratelimit-limit-requests", "x-ratelimit-remaining-requests", "x-ratelimit-reset-requests"],
        ["x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"],
        ["anthropic-ratelimit-requests-limit", "anthropic-ratelimit-requests-remaining", "anthropic-ratelimit-requests-reset"],
        ["anthropic-ratelimit-tokens-limit", "anthropic-ratelimit-tokens-remaining", "anthropic-ratelimit-tokens-reset"],
        ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"],
        ["ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"],
    ];
    let read = BUCKETS.into_iter().filter_map(|[limit, left, reset]| {
        let (limit, left) = (number(header(limit)).filter(|n| *n > 0.0)?, number(header(left))?);
        let resets = instant(header(reset), quota.observed);
        Some(QuotaWindow { kind: WindowKind::Session, remaining: (left / limit).clamp(0.0, 1.0), resets })
    });
    if let Some(tightest) = read.min_by(|a, b| a.remaining.total_cmp(&b.remaining)) {
        quota.windows.push(tightest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: EpochMs = EpochMs(1_800_000_000_000);

    fn read(headers: &[(&'static str, &'static str)]) -> Option<Quota> {
        from_headers(|name| headers.iter().find(|(n, _)| *n == name).map(|(_, v)| *v), NOW)
    }

    #[test]
    fn every_vendor_in_its_own_words() {
        let quota = read(&[
            ("anthropic-ratelimit-unified-5h-utilization", "0.98"),
            ("anthropic-ratelimit-unified-5h-reset", "1800003600"),
            ("anthropic-ratelimit-unified-7d-utilization", "0.5"),
            ("anthropic-ratelimit-unified-status", "allowed"),
        ])
        .unwrap();
        let session = quota.window(WindowKind::Session, NOW).unwrap();
        assert!((session.remaining - 0.02).abs() < 1e-9);
        assert_eq!(session.resets, Some(NOW.plus(3_600_000)));
        assert!(!quota.limit_reached && quota.window(WindowKind::Monthly, NOW).is_none());

        let quota = read(&[
            ("x-codex-primary-used-percent", "25"),
            ("x-codex-primary-window-minutes", "300"),
            ("x-codex-primary-reset-after-seconds", "60"),
            ("x-codex-secondary-used-percent", "100"),
            ("x-codex-secondary-window-minutes", "10080"),
        ])
        .unwrap();
        assert!((quota.window(WindowKind::Session, NOW).unwrap().remaining - 0.75).abs() < 1e-9);
        assert!(quota.remaining(NOW).abs() < 1e-9);

        let quota = read(&[
            ("x-ratelimit-limit-requests", "100"),
            ("x-ratelimit-remaining-requests", "90"),
            ("x-ratelimit-limit-tokens", "1000"),
            ("x-ratelimit-remaining-tokens", "100"),
            ("x-ratelimit-reset-tokens", "6m0s"),
        ])
        .unwrap();
        assert!((quota.remaining(NOW) - 0.1).abs() < 1e-9);
        assert_eq!(quota.tightest_reset(NOW), Some(NOW.plus(360_000)));
        assert!((quota.remaining(NOW.plus(360_001)) - 1.0).abs() < 1e-9, "a window that started again is full");
        assert_eq!(read(&[("content-type", "application/json"), ("x-ratelimit-limit", "0"), ("x-ratelimit-remaining", "0")]), None);
    }

    #[test]
    fn what_an_answer_does_not_mention_stays() {
        let window = |kind, remaining| QuotaWindow { kind, remaining, resets: None };
        let mut quota = Quota { windows: vec![window(WindowKind::Weekly, 0.3), window(WindowKind::Session, 0.1)], ..Quota::default() };
        quota.merge(Quota { windows: vec![window(WindowKind::Session, 0.9)], observed: NOW, ..Quota::default() });
        assert_eq!(quota.windows.len(), 2);
        assert!((quota.remaining(NOW) - 0.3).abs() < 1e-9);
    }
}
