//! Which tokens are refreshed next. Pure: time and chance come in as values.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::api::time::EpochMs;
use crate::compile::oauth::Grant;

/// Pauses between the attempts: three bounded retries, well within the time that the old token still lives.
pub const PAUSES: [Duration; 3] = [Duration::from_secs(5), Duration::from_secs(30), Duration::from_secs(90)];

/// Namespace (empty in files) and Connection.
pub(super) type Key = (String, String);

#[derive(Debug)]
struct Job {
    grant: Grant,
    failures: usize,
    not_before: EpochMs,
    running: bool,
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
    jobs: BTreeMap<Key, Job>,
    pauses: [Duration; 3],
}

impl Jobs {
    pub fn new(pauses: [Duration; 3]) -> Self {
        Self { jobs: BTreeMap::new(), pauses }
    }

    /// What a namespace needs from now on. Attempts at the same tokens go on counting.
    pub fn set(&mut self, namespace: &str, grants: Vec<Grant>) {
        let mut wanted: BTreeMap<String, Grant> = grants.into_iter().map(|grant| (grant.connection.clone(), grant)).collect();
        self.jobs.retain(|(ns, name), job| {
            if ns != namespace {
                return true;
            }
            let Some(grant) = wanted.remove(name) else {
                job.abandoned = true;
                return job.running;
            };
            job.abandoned = false;
            if job.grant.tokens != grant.tokens || job.grant.attempt != grant.attempt {
                (job.failures, job.not_before) = (0, EpochMs(0));
            }
            job.grant = grant;
            true
        });
        for (name, grant) in wanted {
            self.jobs
                .insert((namespace.to_owned(), name), Job { grant, failures: 0, not_before: EpochMs(0), running: false, abandoned: false });
        }
    }

    /// Takes the jobs that are due; each runs until [`Self::done`], [`Self::failed`] or [`Self::postpone`].
    pub fn take(&mut self, now: EpochMs) -> Vec<(Key, Grant)> {
        let due = self.jobs.iter_mut().filter(|(_, job)| job.due().is_some_and(|due| due <= now));
        due.map(|(key, job)| {
            job.running = true;
            (key.clone(), job.grant.clone())
        })
        .collect()
    }

    /// When something is due next.
    pub fn next(&self) -> Option<EpochMs> {
        self.jobs.values().filter_map(Job::due).min()
    }

    /// The job has these tokens now.
    pub fn done(&mut self, key: &Key, grant: Grant) {
        if let Some(job) = self.jobs.get_mut(key) {
            // What was set meanwhile is of the owner's making, or an older view of ours.
            if job.grant.tokens.seed == grant.tokens.seed && job.grant.attempt == grant.attempt {
                job.grant = grant;
            }
            (job.failures, job.not_before, job.running) = (0, EpochMs(0), false);
        }
        self.drop_abandoned(key);
    }

    /// An attempt failed. `jitter` in -1.0..=1.0 spreads the next one.
    pub fn failed(&mut self, key: &Key, jitter: f64, now: EpochMs) -> Retry {
        let Some(job) = self.jobs.get_mut(key) else { return Retry::Later };
        let Some(pause) = self.pauses.get(job.failures) else { return Retry::Never };
        job.failures += 1;
        job.running = false;
        let pause = pause.mul_f64(1.0 + 0.1 * jitter.clamp(-1.0, 1.0));
        job.not_before = now.plus(u64::try_from(pause.as_millis()).unwrap_or(u64::MAX));
        self.drop_abandoned(key);
        Retry::Later
    }

    /// Nothing was tried; it is looked at again then.
    pub fn postpone(&mut self, key: &Key, until: EpochMs) {
        if let Some(job) = self.jobs.get_mut(key) {
            (job.not_before, job.running) = (until, false);
        }
        self.drop_abandoned(key);
    }

    fn drop_abandoned(&mut self, key: &Key) {
        if self.jobs.get(key).is_some_and(|job| job.abandoned) {
            self.jobs.remove(key);
        }
    }
}

impl Job {
    fn due(&self) -> Option<EpochMs> {
        self.grant.due().filter(|_| !self.running).map(|due| due.max(self.not_before))
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
            if jobs.failed(&taken[0].0, 0.0, now) == Retry::Never {
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
        jobs.failed(&key, 0.0, EpochMs(0));
        jobs.set("a", vec![grant("x", "other", 0)]);
        assert_eq!(names(&jobs.take(EpochMs(0))), ["x"], "at once");
        // The answer to the attempt with the old tokens comes late.
        let mut late = grant("x", "late", 50);
        late.tokens.seed = "old".into();
        jobs.done(&key, late);
        assert_eq!(jobs.jobs[&key].grant.tokens.access.expose(), "other");
        jobs.set("a", vec![]);
        jobs.set("b", vec![]);
        assert_eq!(jobs.jobs.len(), 1, "what runs is let finish");
        jobs.postpone(&("b".into(), "x".into()), EpochMs(9));
        assert!(jobs.jobs.is_empty() && jobs.next().is_none());
    }
}
