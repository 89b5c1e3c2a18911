//! The loop: takes namespaces that changed, a few at a time, and brings each up to date.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rand::RngExt as _;
use tokio::sync::{Notify, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument as _;

use super::error::{Error, Retry};
use super::leader::Leadership;
use super::metrics::Metrics;
use super::namespace::Worker;
use super::schedule::{Schedule, Work};

/// Namespaces brought up to date at a time.
const CONCURRENCY: usize = 4;
/// When work is looked at again that a late renewal of the lease has stopped.
const RENEWED_BY: Duration = Duration::from_secs(1);

/// What has to be done, shared by everything that sees changes.
#[derive(Clone, Default)]
pub struct Todo {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    schedule: Mutex<Schedule>,
    wake: Notify,
}

impl Todo {
    fn schedule(&self) -> MutexGuard<'_, Schedule> {
        self.shared.schedule.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something changed in a namespace.
    pub fn mark(&self, namespace: &str, work: Work) {
        self.schedule().mark(namespace, work, Instant::now());
        self.shared.wake.notify_one();
    }

    /// Something has to be done later.
    pub fn at(&self, namespace: &str, work: Work, at: Instant) {
        self.schedule().at(namespace, work, at, Instant::now());
        self.shared.wake.notify_one();
    }

    /// Namespaces that wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.schedule().waiting()
    }
}

/// The loop.
pub struct Engine {
    todo: Todo,
    worker: Arc<Worker>,
    leadership: Leadership,
    metrics: Arc<Metrics>,
}

impl Engine {
    /// A loop over `todo` whose work `worker` does.
    #[must_use]
    pub fn new(todo: Todo, worker: Arc<Worker>, leadership: Leadership, metrics: Arc<Metrics>) -> Self {
        Self { todo, worker, leadership, metrics }
    }

    /// Works until `stop`; what has begun then is finished.
    pub async fn run(self, stop: CancellationToken) {
        let permits = Arc::new(Semaphore::new(CONCURRENCY));
        let running = TaskTracker::new();
        let mut leading = self.leadership.subscribe();
        let mut led = false;
        loop {
            let leads = *leading.borrow_and_update();
            if leads != led {
                led = leads;
                self.metrics.leads(leads);
                self.worker.leadership_changed();
                for namespace in self.worker.namespaces() {
                    self.todo.mark(&namespace, Work::Full);
                }
            }
            while let Ok(permit) = permits.clone().try_acquire_owned() {
                let Some((namespace, work)) = self.todo.schedule().take(Instant::now()) else { break };
                let (todo, worker, metrics) = (self.todo.clone(), self.worker.clone(), self.metrics.clone());
                let leadership = self.leadership.clone();
                let span = tracing::info_span!("reconcile", namespace, ?work);
                let pass = async move {
                    let begun = Instant::now();
                    let outcome = worker.work(&namespace, work).await;
                    finish(&todo, &metrics, &namespace, work, outcome, begun, leadership.leads());
                    // First the place, then the word that it is free.
                    drop(permit);
                    todo.shared.wake.notify_one();
                };
                running.spawn(pass.instrument(span));
            }
            self.metrics.dirty(self.todo.waiting());
            let next = self.todo.schedule().next();
            let pause = match next {
                // Every permit is taken, or something is due later.
                _ if permits.available_permits() == 0 => Duration::from_secs(60),
                Some(at) => at.saturating_duration_since(Instant::now()),
                None => Duration::from_secs(60),
            };
            tokio::select! {
                () = stop.cancelled() => break,
                () = self.todo.shared.wake.notified() => {}
                () = tokio::time::sleep(pause) => {}
                changed = leading.changed() => if changed.is_err() { break },
            }
        }
        running.close();
        running.wait().await;
    }
}

/// What work on a namespace came to.
pub enum Outcome {
    /// Up to date.
    Done,
    /// The namespace has nothing of ours any more.
    Gone,
}

fn finish(todo: &Todo, metrics: &Metrics, namespace: &str, work: Work, outcome: Result<Outcome, Error>, begun: Instant, leads: bool) {
    let now = Instant::now();
    let jitter = rand::rng().random_range(-1.0..=1.0);
    let mut schedule = todo.schedule();
    let label = match &outcome {
        Ok(Outcome::Done) => {
            schedule.done(namespace, jitter, now);
            "Done"
        }
        Ok(Outcome::Gone) => {
            schedule.gone(namespace);
            "Done"
        }
        // Nothing failed: another replica does the work, or this one goes on as soon as its lease is renewed.
        Err(Error::NotLeader { .. }) => {
            schedule.given_up(namespace);
            if leads {
                schedule.at(namespace, Work::Full, now + RENEWED_BY, now);
            }
            return;
        }
        Err(error) => {
            let soon = error.retry() == Retry::Soon;
            schedule.failed(namespace, soon, jitter, now);
            if soon {
                tracing::debug!(%error, "the caches are behind, looking again");
            } else {
                tracing::warn!(reason = error.reason(), %error, "the namespace could not be brought up to date, trying again");
            }
            error.reason()
        }
    };
    drop(schedule);
    if work == Work::Full {
        metrics.reconciled(label, now.saturating_duration_since(begun).as_secs_f64());
    }
}

/// Counts of all namespaces, for metrics.
#[derive(Default)]
pub struct Census {
    by_namespace: Mutex<HashMap<String, super::report::Counts>>,
}

impl Census {
    /// Sets or removes the counts of a namespace.
    pub fn set(&self, namespace: &str, counts: Option<super::report::Counts>) {
        let mut map = self.by_namespace.lock().unwrap_or_else(PoisonError::into_inner);
        match counts {
            Some(counts) => map.insert(namespace.to_owned(), counts),
            None => map.remove(namespace),
        };
    }

    /// Another replica counts from now on.
    pub fn clear(&self) {
        self.by_namespace.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Writes the sums.
    pub fn publish(&self, metrics: &Metrics) {
        let (mut sums, mut not_ready) = (BTreeMap::new(), BTreeMap::new());
        for kind in super::object::ObjectKind::ALL {
            for ready in ["True", "False", "Unknown"] {
                sums.insert((kind.name(), ready), 0);
            }
        }
        for counts in self.by_namespace.lock().unwrap_or_else(PoisonError::into_inner).values() {
            for ((kind, ready, reason), count) in counts {
                *sums.entry((*kind, *ready)).or_default() += count;
                if *ready != "True" {
                    *not_ready.entry((*kind, reason.clone())).or_default() += count;
                }
            }
        }
        for ((kind, ready), count) in sums {
            metrics.objects(kind, ready, count);
        }
        metrics.not_ready(&not_ready);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_late_renewal_stopped_is_done_after_it_and_left_to_another_leader_otherwise() {
        let metrics = Metrics::new().unwrap();
        for (leads, soon) in [(true, true), (false, false)] {
            let todo = Todo::default();
            let now = Instant::now();
            todo.mark("a", Work::Full);
            let taken = todo.schedule().take(now + Duration::from_secs(1));
            assert_eq!(taken, Some(("a".to_owned(), Work::Full)));
            finish(&todo, &metrics, "a", Work::Full, Err(Error::NotLeader { doing: String::new() }), now, leads);
            let next = todo.schedule().next().unwrap();
            assert_eq!(next < now + RENEWED_BY * 2, soon, "{leads}");
        }
    }
}
