//! Which tokens are refreshed next. Pure: time and chance come in as values.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Included, Unbounded};
use std::time::Duration;

use crate::api::time::EpochMs;
use crate::compile::oauth::Grant;

/// Pauses between the attempts: three bounded retries, well within the time that the old token still lives.
pub const PAUSES: [Duration; 3] = [Duration::from_secs(5), Duration::from_secs(30), Duration::from_secs(90)];

/// Longest pause while the access token is still good after all of them.
const LONGEST: Duration = Duration::from_secs(300);
/// Token endpoints asked at a time.
const CONCURRENCY: usize = 16;
/// The same for one namespace: endpoints that never answer hold up their own only.
const PER_NAMESPACE: usize = 8;

/// Namespace (empty in files) and Connection.
pub(super) type Key = (String, String);

#[derive(Debug)]
struct Job {
    grant: Grant,
    failures: usize,
    not_before: EpochMs,
    running: bool,
    /// It counts among those that ask.
    asking: bool,
    /// When this process last sent the refresh token.
    asked: Option<EpochMs>,
    /// Nobody wants it any more; it goes when it has run.
    abandoned: bool,
}

/// What follows from a failed attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Retry {
    /// It is made again.
    Later,
    /// That was the last one.
    Never,
}

/// All connections whose tokens are refreshed.
#[derive(Debug)]
pub(super) struct Jobs {
    by_namespace: BTreeMap<String, BTreeMap<String, Job>>,
    pauses: [Duration; 3],
    /// Whose turn it was last.
    last: String,
}

impl Jobs {
    pub fn new(pauses: [Duration; 3]) -> Self {
        Self { by_namespace: BTreeMap::new(), pauses, last: String::new() }
    }

    /// What a namespace needs from now on. Attempts at the same tokens go on counting.
    pub fn set(&mut self, namespace: &str, grants: Vec<Grant>) {
        let mut wanted: BTreeMap<String, Grant> = grants.into_iter().map(|grant| (grant.connection.clone(), grant)).collect();
        let jobs = self.by_namespace.entry(namespace.to_owned()).or_default();
        jobs.retain(|name, job| {
            let Some(grant) = wanted.remove(name) else {
                job.abandoned = true;
                return job.running;
            };
            job.abandoned = false;
            let same = job.grant.tokens.is_pair(&grant.tokens) && job.grant.tokens.refused == grant.tokens.refused;
            if !same || job.grant.attempt != grant.attempt {
                (job.failures, job.not_before) = (0, EpochMs(0));
            }
            job.grant = grant;
            true
        });
        jobs.extend(wanted.into_iter().map(|(name, grant)| (name, Job::new(grant))));
        if jobs.is_empty() {
            self.by_namespace.remove(namespace);
        }
    }

    /// Nothing is to be done any more; what runs is let finish.
    pub fn clear(&mut self) {
        for namespace in self.by_namespace.keys().cloned().collect::<Vec<_>>() {
            self.set(&namespace, Vec::new());
        }
    }

    /// Takes jobs that are due, as many as may ask at a time, one of each namespace in turn; each runs until [`Self::done`], [`Self::failed`] or
    /// [`Self::postpone`].
    pub fn take(&mut self, now: EpochMs) -> Vec<(Key, Grant)> {
        let mut places = CONCURRENCY.saturating_sub(self.asking());
        // By namespace: how many more may ask, and who waits, longest last.
        let mut waiting: BTreeMap<String, (usize, Vec<(EpochMs, String)>)> = BTreeMap::new();
        for (namespace, jobs) in &self.by_namespace {
            let mut due: Vec<_> =
                jobs.iter().filter_map(|(name, job)| Some((job.due().filter(|due| *due <= now)?, name.clone()))).collect();
            due.sort_unstable_by(|a, b| b.cmp(a));
            waiting.insert(namespace.clone(), (PER_NAMESPACE.saturating_sub(asking(jobs)), due));
        }
        let mut taken = Vec::new();
        while places > 0 {
            let after = waiting.range::<str, _>((Excluded(self.last.as_str()), Unbounded));
            let mut turns = after.chain(waiting.range::<str, _>((Unbounded, Included(self.last.as_str()))));
            let Some(namespace) = turns.find(|(_, (free, due))| *free > 0 && !due.is_empty()).map(|(ns, _)| ns.clone()) else { break };
            self.last.clone_from(&namespace);
            places -= 1;
            let name = waiting.get_mut(&namespace).and_then(|(free, due)| {
                *free -= 1;
                due.pop()
            });
            let key = (namespace, name.map(|(_, name)| name).unwrap_or_default());
            if let Some(job) = self.job(&key) {
                (job.running, job.asking) = (true, true);
                let grant = job.grant.clone();
                taken.push((key, grant));
            }
        }
        taken
    }

    /// When something is due next of what may ask.
    pub fn next(&self) -> Option<EpochMs> {
        if self.asking() >= CONCURRENCY {
            return None;
        }
        let free = self.by_namespace.values().filter(|jobs| asking(jobs) < PER_NAMESPACE);
        free.flat_map(BTreeMap::values).filter_map(Job::due).min()
    }

    fn asking(&self) -> usize {
        self.by_namespace.values().map(asking).sum()
    }

    fn job(&mut self, key: &Key) -> Option<&mut Job> {
        self.by_namespace.get_mut(&key.0)?.get_mut(&key.1)
    }

    /// This process is about to send the refresh token.
    pub fn asks(&mut self, key: &Key, at: EpochMs) {
        if let Some(job) = self.job(key) {
            job.asked = Some(at);
        }
    }

    /// When this process last sent it.
    pub fn asked(&mut self, key: &Key) -> Option<EpochMs> {
        self.job(key)?.asked
    }

    /// The endpoint has answered; the job goes on, but others may ask.
    pub fn answered(&mut self, key: &Key) {
        if let Some(job) = self.job(key) {
            job.asking = false;
        }
    }

    /// The job has these tokens now.
    pub fn done(&mut self, key: &Key, grant: Grant) {
        if let Some(job) = self.job(key) {
            // What was set meanwhile is of the owner's making, or an older view of ours.
            if job.grant.tokens.seed == grant.tokens.seed && job.grant.attempt == grant.attempt {
                job.grant = grant;
            }
            (job.failures, job.asked) = (0, None);
            job.end(EpochMs(0));
        }
        self.drop_abandoned(key);
    }

    /// An attempt failed, with a token that lives until `expires` (`None` = nobody knows). After the last pause it is made again only as long as the
    /// token is good, and once more at its end. `jitter` in -1.0..=1.0 spreads the next one.
    pub fn failed(&mut self, key: &Key, expires: Option<EpochMs>, jitter: f64, now: EpochMs) -> Retry {
        let (pauses, left) = (self.pauses, expires.map_or(Duration::ZERO, |at| Duration::from_millis(at.since(now))));
        let Some(job) = self.job(key) else { return Retry::Later };
        let jittered = |pause: Duration| pause.mul_f64(1.0 + 0.1 * jitter.clamp(-1.0, 1.0));
        let [.., last] = pauses;
        let pause = match pauses.get(job.failures) {
            Some(pause) => jittered(*pause),
            None if left.is_zero() => return Retry::Never,
            None => {
                let doublings = u32::try_from(job.failures - pauses.len()).unwrap_or(u32::MAX).saturating_add(1).min(16);
                jittered(last.saturating_mul(1 << doublings).min(LONGEST)).min(left)
            }
        };
        job.failures += 1;
        job.end(now.plus(u64::try_from(pause.as_millis()).unwrap_or(u64::MAX)));
        self.drop_abandoned(key);
        Retry::Later
    }

    /// Nothing was tried; it is looked at again then.
    pub fn postpone(&mut self, key: &Key, until: EpochMs) {
        if let Some(job) = self.job(key) {
            job.end(until);
        }
        self.drop_abandoned(key);
    }

    fn drop_abandoned(&mut self, key: &Key) {
        let Some(jobs) = self.by_namespace.get_mut(&key.0) else { return };
        if jobs.get(&key.1).is_some_and(|job| job.abandoned) {
            jobs.remove(&key.1);
        }
        if jobs.is_empty() {
            self.by_namespace.remove(&key.0);
        }
    }
}

fn asking(jobs: &BTreeMap<String, Job>) -> usize {
    jobs.values().filter(|job| job.asking).count()
}

impl Job {
    const fn new(grant: Grant) -> Self {
        Self { grant, failures: 0, not_before: EpochMs(0), running: false, asking: false, asked: None, abandoned: false }
    }

    fn due(&self) -> Option<EpochMs> {
        self.grant.due().filter(|_| !self.running).map(|due| due.max(self.not_before))
    }

    const fn end(&mut self, not_before: EpochMs) {
        (self.not_before, self.running, self.asking) = (not_before, false, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compile::oauth::Tokens;
    use crate::snapshot::Secret;

    fn grant(connection: &str, access: &str, expires_ms: i64) -> Grant {
        let tokens = Tokens { seed: "s".into(), access: Secret::new(access), expires: Some(EpochMs(expires_ms)), ..Tokens::default() };
        Grant { connection: connection.into(), tokens, ..Grant::default() }
    }

    fn names(taken: &[(Key, Grant)]) -> Vec<&str> {
        taken.iter().map(|((_, name), _)| name.as_str()).collect()
    }

    #[test]
    fn three_bounded_retries_and_then_no_more() {
        let mut jobs = Jobs::new(PAUSES);
        jobs.set("a", vec![grant("x", "1", 0)]);
        let (mut now, mut pauses) = (EpochMs(0), Vec::new());
        loop {
            let taken = jobs.take(now);
            assert_eq!(names(&taken), ["x"]);
            assert!(jobs.take(now).is_empty(), "never twice at once");
            // The caches repeat what they know: that is no new beginning.
            jobs.set("a", vec![grant("x", "1", 0)]);
            if jobs.failed(&taken[0].0, None, 0.0, now) == Retry::Never {
                break;
            }
            let next = jobs.next().unwrap();
            pauses.push(next.0 - now.0);
            now = next;
        }
        assert_eq!(pauses, [5_000, 30_000, 90_000]);
        jobs.done(&("a".into(), "x".into()), grant("x", "2", 10_000_000));
        assert_eq!(jobs.next(), Some(EpochMs(10_000_000 - 300_000)));
    }

    #[test]
    fn new_tokens_of_the_owner_begin_anew_and_what_is_gone_is_forgotten() {
        let mut jobs = Jobs::new(PAUSES);
        jobs.set("a", vec![grant("x", "1", 0), grant("y", "1", i64::MAX)]);
        jobs.set("b", vec![grant("x", "1", 0)]);
        let key = ("a".to_owned(), "x".to_owned());
        assert_eq!(jobs.take(EpochMs(0)).len(), 2);
        jobs.failed(&key, None, 0.0, EpochMs(0));
        jobs.set("a", vec![grant("x", "other", 0)]);
        assert_eq!(names(&jobs.take(EpochMs(0))), ["x"], "at once");
        // The answer to the attempt with the old tokens comes late.
        let mut late = grant("x", "late", 50);
        late.tokens.seed = "old".into();
        jobs.done(&key, late);
        assert_eq!(jobs.by_namespace["a"]["x"].grant.tokens.access.expose(), "other");
        jobs.set("a", vec![]);
        jobs.set("b", vec![]);
        assert_eq!(jobs.by_namespace.keys().collect::<Vec<_>>(), ["b"], "what runs is let finish");
        jobs.postpone(&("b".into(), "x".into()), EpochMs(9));
        assert!(jobs.by_namespace.is_empty() && jobs.next().is_none());
    }

    #[test]
    fn an_outage_costs_no_account_whose_token_is_good() {
        const MIN: i64 = 60_000;
        // Expiry of the token, and when attempts are made from minute 0 on: three bounded retries, then as long as the token lives.
        for (expires, attempts) in [
            (None, vec![0, 5, 35, 125]),
            (Some(-1), vec![0, 5, 35, 125]),
            (Some(2 * MIN), vec![0, 5, 35, 125]),
            (Some(5 * MIN), vec![0, 5, 35, 125, 300]),
            (Some(20 * MIN), vec![0, 5, 35, 125, 305, 605, 905, 1_200]),
        ] {
            let mut jobs = Jobs::new(PAUSES);
            let token = Grant { tokens: Tokens { expires: expires.map(EpochMs), ..Tokens::default() }, ..grant("x", "1", 0) };
            jobs.set("a", vec![token]);
            let key = ("a".to_owned(), "x".to_owned());
            let (mut now, mut made) = (EpochMs(0), Vec::new());
            loop {
                jobs.job(&key).unwrap().running = true;
                made.push(now.0 / 1_000);
                if jobs.failed(&key, expires.map(EpochMs), 0.0, now) == Retry::Never {
                    break;
                }
                now = jobs.job(&key).unwrap().not_before;
            }
            assert_eq!(made, attempts, "{expires:?}");
        }
    }

    #[test]
    fn every_namespace_has_its_turn_and_none_takes_all_places() {
        let mut jobs = Jobs::new(PAUSES);
        jobs.set("a", (0..3_000).map(|i| grant(&format!("a{i:04}"), "1", i64::from(i))).collect());
        let taken = jobs.take(EpochMs(0));
        assert_eq!(taken.len(), PER_NAMESPACE, "half of the places");
        assert_eq!(names(&taken)[..3], ["a0000", "a0001", "a0002"], "longest due first");
        assert!(jobs.take(EpochMs(0)).is_empty() && jobs.next().is_none(), "nothing to wake up for");
        jobs.set("b", vec![grant("b0", "1", 0), grant("b1", "1", 0)]);
        jobs.set("c", vec![grant("c0", "1", 0)]);
        assert_eq!(names(&jobs.take(EpochMs(0))), ["b0", "c0", "b1"]);
        // A place of "a" is free: the others had theirs, it is its turn.
        jobs.answered(&taken[0].0);
        assert_eq!(names(&jobs.take(EpochMs(0))), ["a0008"]);
        jobs.set("d", (0..9).map(|i| grant(&format!("d{i}"), "1", 0)).collect());
        assert_eq!(names(&jobs.take(EpochMs(0))), ["d0", "d1", "d2", "d3", "d4"]);
        assert!(jobs.take(EpochMs(0)).is_empty() && jobs.next().is_none(), "all places are taken");
        jobs.failed(&taken[1].0, None, 0.0, EpochMs(0));
        jobs.postpone(&taken[2].0, EpochMs(1_000));
        assert_eq!(names(&jobs.take(EpochMs(0))), ["a0009", "d5"], "in turn");
    }

    #[test]
    fn a_token_that_is_being_sent_is_no_other_token() {
        let mut jobs = Jobs::new(PAUSES);
        jobs.set("a", vec![grant("x", "1", 0)]);
        let (key, mut grant) = jobs.take(EpochMs(0)).remove(0);
        jobs.asks(&key, EpochMs(7));
        jobs.failed(&key, None, 0.0, EpochMs(0));
        grant.tokens.asked = Some(EpochMs(7));
        jobs.set("a", vec![grant.clone()]);
        assert_eq!((jobs.next(), jobs.asked(&key)), (Some(EpochMs(5_000)), Some(EpochMs(7))), "the pause stays");
        jobs.done(&key, grant);
        assert_eq!(jobs.asked(&key), None);
        jobs.clear();
        assert!(jobs.by_namespace.is_empty());
    }
}
