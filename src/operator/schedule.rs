//! When which namespace is brought up to date. Pure: time and jitter come in as values.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Quiet time after a change before work begins.
pub const DEBOUNCE: Duration = Duration::from_millis(100);
/// Longest delay of work by further changes.
pub const MAX_DELAY: Duration = Duration::from_secs(1);
/// A namespace is looked at this often without any event, ± 10 %.
pub const RESYNC: Duration = Duration::from_secs(600);
/// First and longest pause after failures.
pub const BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));

/// How much has to be done.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Work {
    /// Live state changed: status only.
    Report,
    /// Objects changed: compile and apply as well.
    Full,
}

#[derive(Debug)]
struct Entry {
    /// What is asked for, since when, and when last.
    asked: Option<(Work, Instant, Instant)>,
    /// Work at a known time (a deadline passes).
    timer: Option<(Instant, Work)>,
    resync: Instant,
    failures: u32,
    not_before: Instant,
    running: bool,
}

/// The schedule of all namespaces. At most one piece of work per namespace runs at a time.
#[derive(Debug, Default)]
pub struct Schedule {
    entries: HashMap<String, Entry>,
}

impl Schedule {
    /// Something changed in a namespace. New work does not wait for the end of a pause after a failure.
    pub fn mark(&mut self, namespace: &str, work: Work, now: Instant) {
        let entry = self.entry(namespace, now);
        if work == Work::Full {
            entry.not_before = now;
        }
        entry.asked = Some(match entry.asked {
            Some((before, first, _)) => (before.max(work), first, now),
            None => (work, now, now),
        });
    }

    /// Something has to be done at this time.
    pub fn at(&mut self, namespace: &str, work: Work, at: Instant, now: Instant) {
        let entry = self.entry(namespace, now);
        entry.timer = Some(match entry.timer {
            Some((time, before)) => (time.min(at), before.max(work)),
            None => (at, work),
        });
    }

    fn entry(&mut self, namespace: &str, now: Instant) -> &mut Entry {
        self.entries.entry(namespace.to_owned()).or_insert(Entry {
            asked: None,
            timer: None,
            resync: now + RESYNC,
            failures: 0,
            not_before: now,
            running: false,
        })
    }

    /// The namespace has nothing of ours any more, unless something came while that was found out.
    pub fn gone(&mut self, namespace: &str) {
        match self.entries.get_mut(namespace) {
            Some(entry) if entry.asked.is_some() => entry.running = false,
            _ => drop(self.entries.remove(namespace)),
        }
    }

    /// Namespaces with work that has not begun.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.entries.values().filter(|e| e.asked.is_some() && !e.running).count()
    }

    /// Takes a piece of work that is due; it runs until [`Self::done`].
    pub fn take(&mut self, now: Instant) -> Option<(String, Work)> {
        let (namespace, _) = self
            .entries
            .iter()
            .filter(|(_, e)| !e.running)
            .map(|(namespace, e)| (namespace, e.due()))
            .filter(|(_, due)| *due <= now)
            .min_by(|a, b| (a.1, a.0).cmp(&(b.1, b.0)))?;
        let namespace = namespace.clone();
        let entry = self.entries.get_mut(&namespace)?;
        let mut work = entry.asked.take().map(|(work, ..)| work);
        if let Some((at, timer)) = entry.timer
            && at <= now
        {
            entry.timer = None;
            work = work.max(Some(timer));
        }
        if entry.resync <= now {
            entry.resync = now + RESYNC;
            work = Some(Work::Full);
        }
        entry.running = true;
        Some((namespace, work.unwrap_or(Work::Report)))
    }

    /// When something is due next.
    #[must_use]
    pub fn next(&self) -> Option<Instant> {
        self.entries.values().filter(|e| !e.running).map(Entry::due).min()
    }

    /// The work ended well. `jitter` in -1.0..=1.0 spreads the next resync.
    pub fn done(&mut self, namespace: &str, jitter: f64, now: Instant) {
        if let Some(entry) = self.entries.get_mut(namespace) {
            entry.running = false;
            entry.failures = 0;
            entry.not_before = now;
            entry.resync = now + RESYNC.mul_f64(1.0 + 0.1 * jitter.clamp(-1.0, 1.0));
        }
    }

    /// The work failed: again after a growing pause; at once when `soon`, because the caches only have to catch up.
    pub fn failed(&mut self, namespace: &str, soon: bool, jitter: f64, now: Instant) {
        let Some(entry) = self.entries.get_mut(namespace) else { return };
        entry.running = false;
        let pause = BACKOFF.0.saturating_mul(1 << entry.failures.min(9)).min(BACKOFF.1).mul_f64(1.0 + 0.1 * jitter.clamp(-1.0, 1.0));
        // A conflict that does not go away is a failure like any other.
        let pause = if soon && entry.failures < 5 { Duration::from_millis(200) } else { pause };
        entry.failures += 1;
        entry.not_before = now + pause;
        let asked = entry.asked.map_or(now, |(_, first, _)| first);
        entry.asked = Some((Work::Full, asked, now));
    }

    /// The work was given up (this replica ceased to lead).
    pub fn given_up(&mut self, namespace: &str) {
        if let Some(entry) = self.entries.get_mut(namespace) {
            entry.running = false;
        }
    }
}

impl Entry {
    fn due(&self) -> Instant {
        let asked = self.asked.map(|(_, first, last)| (last + DEBOUNCE).min(first + MAX_DELAY));
        let timer = self.timer.map(|(at, _)| at);
        let due = asked.into_iter().chain(timer).min().unwrap_or(self.resync).min(self.resync);
        due.max(self.not_before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn changes_are_gathered_but_never_for_longer_than_a_second() {
        let t = Instant::now();
        let mut s = Schedule::default();
        s.mark("a", Work::Report, t);
        assert_eq!(s.take(t + 99 * MS), None);
        s.mark("a", Work::Full, t + 50 * MS);
        assert_eq!(s.take(t + 100 * MS), None, "another change came");
        assert_eq!(s.next(), Some(t + 150 * MS));
        assert_eq!(s.take(t + 150 * MS), Some(("a".into(), Work::Full)));
        s.done("a", 0.0, t + 150 * MS);
        for i in 0..30 {
            s.mark("a", Work::Report, t + 200 * MS + i * 50 * MS);
        }
        assert_eq!(s.next(), Some(t + 1_200 * MS));
    }

    #[test]
    fn a_namespace_never_runs_twice_at_once_and_changes_meanwhile_are_not_lost() {
        let t = Instant::now();
        let mut s = Schedule::default();
        s.mark("a", Work::Full, t);
        let now = t + DEBOUNCE;
        assert!(s.take(now).is_some());
        s.mark("a", Work::Report, now);
        assert_eq!((s.take(now + RESYNC * 2), s.waiting()), (None, 0));
        s.done("a", 0.0, now + DEBOUNCE);
        assert_eq!(s.take(now + DEBOUNCE), Some(("a".into(), Work::Report)));
    }

    #[test]
    fn what_comes_while_a_namespace_is_found_empty_is_not_lost() {
        let t = Instant::now();
        let mut s = Schedule::default();
        s.mark("a", Work::Full, t);
        assert!(s.take(t + DEBOUNCE).is_some());
        s.mark("a", Work::Full, t + DEBOUNCE);
        s.gone("a");
        assert_eq!(s.take(t + DEBOUNCE * 2), Some(("a".into(), Work::Full)));
        s.gone("a");
        assert_eq!((s.next(), s.waiting()), (None, 0));
    }

    #[test]
    fn failures_back_off_until_something_changes() {
        let t = Instant::now();
        let mut s = Schedule::default();
        s.mark("a", Work::Full, t);
        let mut now = t + DEBOUNCE;
        let mut pauses = Vec::new();
        for _ in 0..12 {
            assert!(s.take(now).is_some());
            s.failed("a", false, 0.0, now);
            let next = s.next().unwrap();
            pauses.push((next - now).as_secs());
            now = next;
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]);
        assert!(s.take(now).is_some());
        s.failed("a", false, 1.0, now);
        s.mark("a", Work::Full, now);
        assert!(s.next().unwrap() <= now + MAX_DELAY, "a change is not held back");
        assert!(s.take(now + MAX_DELAY).is_some());
        s.done("a", 0.0, now);
        s.mark("a", Work::Full, now);
        assert!(s.take(now + DEBOUNCE).is_some());
        s.failed("a", true, 0.0, now);
        assert!(s.next().unwrap() <= now + 200 * MS, "a stale object is looked at again soon");
    }

    #[test]
    fn without_any_event_a_namespace_is_looked_at_every_ten_minutes() {
        let t = Instant::now();
        let mut s = Schedule::default();
        s.mark("a", Work::Full, t);
        let t = t + DEBOUNCE;
        s.take(t);
        for (jitter, seconds) in [(-1.0, 540), (1.0, 660), (0.0, 600)] {
            s.done("a", jitter, t);
            assert_eq!(s.next(), Some(t + Duration::from_secs(seconds)));
        }
        assert_eq!(s.take(t + RESYNC), Some(("a".into(), Work::Full)));
    }

    #[test]
    fn a_timer_asks_for_what_it_was_set_for() {
        let t = Instant::now();
        let mut s = Schedule::default();
        s.at("a", Work::Report, t + 5_000 * MS, t);
        s.at("a", Work::Report, t + 3_000 * MS, t);
        assert_eq!(s.take(t + 2_999 * MS), None);
        assert_eq!(s.take(t + 3_000 * MS), Some(("a".into(), Work::Report)));
        s.gone("a");
        assert_eq!(s.next(), None);
    }
}
