//! Leader election on a `coordination.k8s.io/v1` Lease. At most one replica writes.
//!
//! The rules are those of client-go: a candidate judges the age of a lease by its own monotonic clock since it *saw* the lease change,
//! never by the timestamps in it, so clocks may differ. Every change is an update with the resourceVersion that was seen, so two
//! candidates cannot both win. A leader that cannot renew stops writing at its own deadline, which lies before the end of the lease.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures::StreamExt;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::api::PostParams;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Resource};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::error::{CALL_TIMEOUT, Error, WRITE_TIMEOUT, call};
use super::store::Pauses;

/// Times of the election.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// How long others wait after the last renewal that they saw.
    pub lease: Duration,
    /// How long the leader writes after the start of its last successful renewal. Shorter than `lease` by more than a write takes.
    pub renew_deadline: Duration,
    /// Pause between renewals, and between looks of a candidate.
    pub retry: Duration,
}

impl Timing {
    /// The usual proportions: a leader writes for two thirds of the lease after a renewal, and renews five times meanwhile.
    #[must_use]
    pub fn of(lease: Duration) -> Self {
        Self { lease, renew_deadline: lease * 2 / 3, retry: lease * 2 / 15 }
    }

    /// Longest time that a write may take: one that began in time must not land in the term of the next leader.
    #[must_use]
    pub fn write_limit(&self) -> Duration {
        WRITE_TIMEOUT.min(self.lease.saturating_sub(self.renew_deadline) * 4 / 5)
    }
}

impl Default for Timing {
    fn default() -> Self {
        Self::of(Duration::from_secs(15))
    }
}

/// Whether this replica may write, for everything that writes. Cheap to clone and to ask.
#[derive(Clone, Debug)]
pub struct Leadership {
    start: Instant,
    /// Milliseconds after `start` until which writes may begin; 0 = not the leader.
    deadline: Arc<AtomicU64>,
    /// Times that this replica began to lead.
    terms: Arc<AtomicU64>,
    leading: watch::Sender<bool>,
    write_limit: Duration,
}

impl Leadership {
    /// Nobody leads yet.
    #[must_use]
    pub fn none(timing: &Timing) -> Self {
        Self {
            start: Instant::now(),
            deadline: Arc::new(AtomicU64::new(0)),
            terms: Arc::default(),
            leading: watch::Sender::new(false),
            write_limit: timing.write_limit(),
        }
    }

    /// The only replica: `--leader-elect=false`.
    #[must_use]
    pub fn always() -> Self {
        let leadership = Self::none(&Timing::default());
        leadership.deadline.store(u64::MAX, Ordering::Release);
        leadership.leading.send_replace(true);
        leadership
    }

    /// Whether a write may begin now. Ask right before each write.
    #[must_use]
    pub fn may_write(&self) -> bool {
        self.millis(Instant::now()) < self.deadline.load(Ordering::Acquire)
    }

    /// Whether this replica leads. It may for a moment not write all the same, while its renewal is late.
    #[must_use]
    pub fn leads(&self) -> bool {
        *self.leading.borrow()
    }

    /// Which of this replica's times as the leader it is, or was last.
    #[must_use]
    pub fn term(&self) -> u64 {
        self.terms.load(Ordering::Acquire)
    }

    /// As [`Self::may_write`], as an error that says what was not written.
    ///
    /// # Errors
    /// [`Error::NotLeader`].
    pub fn check(&self, doing: impl FnOnce() -> String) -> Result<(), Error> {
        if self.may_write() { Ok(()) } else { Err(Error::NotLeader { doing: doing() }) }
    }

    /// Longest time that one write may take.
    #[must_use]
    pub fn write_limit(&self) -> Duration {
        self.write_limit
    }

    /// Changes between leading and not leading.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<bool> {
        self.leading.subscribe()
    }

    fn millis(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.start).as_millis()).unwrap_or(u64::MAX)
    }

    pub(super) fn lead_until(&self, until: Instant) {
        if !self.leads() {
            self.terms.fetch_add(1, Ordering::AcqRel);
        }
        self.deadline.store(self.millis(until), Ordering::Release);
        self.leading.send_if_modified(|leading| !std::mem::replace(leading, true));
    }

    pub(super) fn stop(&self) {
        self.deadline.store(0, Ordering::Release);
        self.leading.send_if_modified(|leading| std::mem::replace(leading, false));
    }
}

/// What a candidate knows about the lease.
#[derive(Clone, PartialEq, Debug, Default)]
struct Record {
    holder: String,
    transitions: i32,
    renewed: Option<Timestamp>,
    duration: Option<Duration>,
    resource_version: Option<String>,
}

impl Record {
    fn of(lease: &Lease) -> Self {
        let spec = lease.spec.clone().unwrap_or_default();
        Self {
            holder: spec.holder_identity.unwrap_or_default(),
            transitions: spec.lease_transitions.unwrap_or(0),
            renewed: spec.renew_time.map(|t| t.0),
            duration: spec.lease_duration_seconds.and_then(|s| u64::try_from(s).ok()).map(Duration::from_secs),
            resource_version: lease.metadata.resource_version.clone(),
        }
    }
}

/// What to do about the lease now.
#[derive(Clone, PartialEq, Debug)]
enum Step {
    /// Take or renew it: write this holder with these transitions.
    Write { transitions: i32 },
    /// Somebody else holds it; look again then at the latest.
    Wait(Duration),
}

/// The pure part: observations in, steps out.
#[derive(Debug)]
struct Elector {
    identity: String,
    timing: Timing,
    seen: Option<(Record, Instant)>,
}

impl Elector {
    fn new(identity: String, timing: Timing) -> Self {
        Self { identity, timing, seen: None }
    }

    /// Takes note of the lease as the API server has it. Only a change restarts the clock.
    fn observe(&mut self, record: Option<Record>, now: Instant) {
        match (record, &self.seen) {
            (Some(new), Some((old, _))) if new == *old => {}
            (Some(new), _) => self.seen = Some((new, now)),
            (None, _) => self.seen = None,
        }
    }

    fn step(&self, now: Instant) -> Step {
        let Some((record, at)) = &self.seen else { return Step::Write { transitions: 0 } };
        if record.holder == self.identity {
            return Step::Write { transitions: record.transitions };
        }
        let taken = Step::Write { transitions: record.transitions.saturating_add(1) };
        if record.holder.is_empty() {
            return taken;
        }
        let left = (*at + record.duration.unwrap_or(self.timing.lease)).saturating_duration_since(now);
        if left.is_zero() { taken } else { Step::Wait(left.min(self.timing.retry)) }
    }

    /// The lease to write: ours from now on.
    fn lease(&self, namespace: &str, name: &str, transitions: i32, acquired: Timestamp, now: Timestamp) -> Lease {
        let seen = self.seen.as_ref().map(|(record, _)| record);
        Lease {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                namespace: Some(namespace.to_owned()),
                resource_version: seen.and_then(|r| r.resource_version.clone()),
                ..ObjectMeta::default()
            },
            spec: Some(LeaseSpec {
                holder_identity: Some(self.identity.clone()),
                lease_duration_seconds: i32::try_from(self.timing.lease.as_secs()).ok(),
                lease_transitions: Some(transitions),
                renew_time: Some(MicroTime(now)),
                acquire_time: Some(MicroTime(acquired)),
                ..LeaseSpec::default()
            }),
        }
    }
}

/// One replica's part in the election.
pub struct Election {
    api: Api<Lease>,
    namespace: String,
    name: String,
    elector: Elector,
    acquired: Option<Timestamp>,
    leadership: Leadership,
    recorder: Recorder,
    /// The Lease as an event names it.
    reference: ObjectReference,
}

impl Election {
    /// A candidate. `identity` must differ between replicas (pod name and a random suffix).
    #[must_use]
    pub fn new(client: Client, namespace: &str, name: &str, identity: String, timing: Timing) -> Self {
        let reporter = Reporter { controller: "omniroute-operator".to_owned(), instance: Some(identity.clone()) };
        Self {
            recorder: Recorder::new(client.clone(), reporter),
            reference: ObjectReference::default(),
            api: Api::namespaced(client, namespace),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            elector: Elector::new(identity, timing),
            acquired: None,
            leadership: Leadership::none(&timing),
        }
    }

    /// The handle for writers.
    #[must_use]
    pub fn leadership(&self) -> Leadership {
        self.leadership.clone()
    }

    /// Takes part until `stop`, then gives the lease back, so that the next replica takes over at once.
    pub async fn run(mut self, stop: CancellationToken) {
        let config = watcher::Config::default().fields(&format!("metadata.name={}", self.name)).timeout(240);
        let mut events = watcher(self.api.clone(), config).backoff(Pauses::default()).boxed();
        loop {
            let pause = self.turn().await;
            tokio::select! {
                () = stop.cancelled() => break,
                () = tokio::time::sleep(pause) => {}
                // A leader has no interest in the echo of its own renewals.
                () = released(&mut events), if !self.leads() => {}
            }
        }
        self.release().await;
    }

    fn leads(&self) -> bool {
        self.acquired.is_some()
    }

    /// Looks at the lease, takes or renews it if that is allowed; answers how long to sleep.
    async fn turn(&mut self) -> Duration {
        let retry = self.elector.timing.retry;
        // What a renewal knows is what its last write answered; a candidate has to look.
        if !self.leads()
            && let Err(error) = self.look().await
        {
            tracing::warn!(lease = %self.name, %error, "the lease could not be read");
            return retry;
        }
        let transitions = match self.elector.step(Instant::now()) {
            Step::Wait(left) => return left,
            Step::Write { transitions } => transitions,
        };
        let begun = Instant::now();
        match self.write(transitions).await {
            Ok(lease) => {
                self.elector.observe(Some(Record::of(&lease)), begun);
                self.leadership.lead_until(begun + self.elector.timing.renew_deadline);
                if !self.leads() {
                    tracing::info!(lease = %self.name, identity = %self.elector.identity, transitions, "became the leader");
                    self.acquired = Some(Timestamp::now());
                    self.reference = lease.object_ref(&());
                    self.tell(EventType::Normal, "LeaderElected", format!("{} became the leader", self.elector.identity));
                }
                retry
            }
            Err(error) => self.failed(&error, begun).await,
        }
    }

    /// A renewal or take-over did not succeed.
    async fn failed(&mut self, error: &Error, now: Instant) -> Duration {
        if self.leads() {
            if error.status().is_some_and(|s| s.is_conflict() || s.is_not_found()) {
                // Somebody wrote the lease: read who holds it now. Until then nothing is written.
                self.leadership.stop();
                if self.look().await.is_ok()
                    && self.elector.seen.as_ref().is_some_and(|(r, _)| r.holder != self.elector.identity && !r.holder.is_empty())
                {
                    self.lost("another replica holds it");
                }
                return Duration::from_millis(100);
            }
            let expired =
                self.elector.seen.as_ref().is_none_or(|(_, at)| now.saturating_duration_since(*at) >= self.elector.timing.renew_deadline);
            tracing::warn!(lease = %self.name, %error, "the lease could not be renewed");
            if expired {
                self.lost("it could not be renewed in time");
            }
            return Duration::from_millis(500).min(self.elector.timing.retry);
        }
        tracing::debug!(lease = %self.name, %error, "another candidate was faster");
        self.elector.timing.retry
    }

    fn lost(&mut self, why: &str) {
        tracing::warn!(lease = %self.name, why, "lost the lease, writing stopped");
        self.acquired = None;
        self.leadership.stop();
        self.tell(EventType::Warning, "LeaderLost", format!("{} lost the lease and stopped writing: {why}", self.elector.identity));
    }

    /// Publishes an event on the Lease, beside the election: whoever votes must not wait for it.
    fn tell(&self, type_: EventType, reason: &str, note: String) {
        let (recorder, reference) = (self.recorder.clone(), self.reference.clone());
        let event = Event { type_, reason: reason.to_owned(), note: Some(note), action: "Elect".to_owned(), secondary: None };
        tokio::spawn(async move {
            match tokio::time::timeout(CALL_TIMEOUT, recorder.publish(&event, &reference)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::warn!(reason = %event.reason, %error, "an event on the lease could not be published"),
                Err(_) => tracing::warn!(reason = %event.reason, "an event on the lease could not be published in time"),
            }
        });
    }

    async fn look(&mut self) -> Result<(), Error> {
        let lease = call(|| format!("reading lease `{}`", self.name), self.elector.timing.retry * 2, self.api.get_opt(&self.name)).await?;
        self.elector.observe(lease.as_ref().map(Record::of), Instant::now());
        Ok(())
    }

    async fn write(&self, transitions: i32) -> Result<Lease, Error> {
        let now = Timestamp::now();
        let lease = self.elector.lease(&self.namespace, &self.name, transitions, self.acquired.unwrap_or(now), now);
        let doing = || format!("writing lease `{}`", self.name);
        let limit = self.elector.timing.renew_deadline / 2;
        if lease.metadata.resource_version.is_some() {
            call(doing, limit, self.api.replace(&self.name, &PostParams::default(), &lease)).await
        } else {
            call(doing, limit, self.api.create(&PostParams::default(), &lease)).await
        }
    }

    /// Stops writers, then empties the holder.
    async fn release(&mut self) {
        self.leadership.stop();
        if !self.leads() {
            return;
        }
        let now = Timestamp::now();
        let acquired = self.acquired.take().unwrap_or(now);
        let transitions = self.elector.seen.as_ref().map_or(0, |(r, _)| r.transitions);
        let mut lease = self.elector.lease(&self.namespace, &self.name, transitions, acquired, now);
        if let Some(spec) = lease.spec.as_mut() {
            spec.holder_identity = Some(String::new());
            spec.lease_duration_seconds = Some(1);
        }
        let doing = || format!("releasing lease `{}`", self.name);
        match call(doing, Duration::from_secs(2), self.api.replace(&self.name, &PostParams::default(), &lease)).await {
            Ok(_) => tracing::info!(lease = %self.name, "released the lease"),
            Err(error) => tracing::warn!(lease = %self.name, %error, "the lease could not be released; it runs out by itself"),
        }
    }
}

/// Waits until the watch shows a lease without a holder, or its deletion.
async fn released(events: &mut (impl futures::Stream<Item = watcher::Result<watcher::Event<Lease>>> + Unpin)) {
    while let Some(event) = events.next().await {
        match event {
            Ok(watcher::Event::Delete(_)) => return,
            Ok(watcher::Event::Apply(lease)) if Record::of(&lease).holder.is_empty() => return,
            Ok(_) | Err(_) => {}
        }
    }
    std::future::pending::<()>().await;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(holder: &str, version: &str) -> Record {
        Record {
            holder: holder.to_owned(),
            transitions: 3,
            duration: Some(Duration::from_secs(15)),
            resource_version: Some(version.to_owned()),
            ..Record::default()
        }
    }

    fn elector() -> Elector {
        Elector::new("me".to_owned(), Timing::default())
    }

    #[test]
    fn an_absent_or_released_lease_is_taken_at_once() {
        let now = Instant::now();
        let mut e = elector();
        assert_eq!(e.step(now), Step::Write { transitions: 0 });
        e.observe(Some(record("", "1")), now);
        assert_eq!(e.step(now), Step::Write { transitions: 4 });
    }

    #[test]
    fn the_age_of_a_lease_counts_from_when_it_was_seen_to_change() {
        let now = Instant::now();
        let mut e = elector();
        // Its timestamps are an hour old: the other replica's clock may simply be wrong.
        let old = Record { renewed: Timestamp::from_second(1).ok(), ..record("other", "1") };
        e.observe(Some(old.clone()), now);
        assert_eq!(e.step(now), Step::Wait(Duration::from_secs(2)));
        e.observe(Some(old), now + Duration::from_secs(14));
        assert_eq!(e.step(now + Duration::from_secs(14)), Step::Wait(Duration::from_secs(1)), "the same record does not restart the clock");
        assert_eq!(e.step(now + Duration::from_secs(15)), Step::Write { transitions: 4 });
        e.observe(Some(record("other", "2")), now + Duration::from_secs(15));
        assert_eq!(e.step(now + Duration::from_secs(15)), Step::Wait(Duration::from_secs(2)), "a renewal does");
    }

    #[test]
    fn a_renewal_keeps_the_transitions_and_carries_the_version_that_was_seen() {
        let now = Instant::now();
        let mut e = elector();
        e.observe(Some(record("me", "7")), now);
        assert_eq!(e.step(now), Step::Write { transitions: 3 });
        let lease = e.lease("ns", "l", 3, Timestamp::UNIX_EPOCH, Timestamp::UNIX_EPOCH);
        assert_eq!(lease.metadata.resource_version.as_deref(), Some("7"));
        assert_eq!(lease.spec.and_then(|s| s.holder_identity).as_deref(), Some("me"));
    }

    #[test]
    fn a_leader_stops_writing_before_its_lease_ends() {
        let timing = Timing::default();
        for lease in [2, 5, 15, 60].map(Duration::from_secs) {
            let timing = Timing::of(lease);
            assert!(timing.renew_deadline + timing.write_limit() < timing.lease);
        }
        let leadership = Leadership::none(&timing);
        assert!(!leadership.may_write());
        leadership.lead_until(Instant::now() + Duration::from_secs(60));
        assert!(leadership.may_write());
        leadership.lead_until(Instant::now());
        assert!(!leadership.may_write(), "the deadline acts without anybody's help");
        leadership.lead_until(Instant::now() + Duration::from_secs(60));
        leadership.stop();
        assert!(leadership.check(|| "x".to_owned()).is_err());
    }
}
