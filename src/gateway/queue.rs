//! Waiting for the gates of [`super::gates`]: fair, bounded in length and time, and undone when the client goes away.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::timeout;

use super::clock;
use super::gates::{Blocked, GateId, Gates, Want};
use crate::api::time::EpochMs;

/// Why a request did not get through the gates. A local limit: never anybody's failure (decisions 5.5).
#[derive(thiserror::Error, Clone, Copy, PartialEq, Eq, Debug)]
pub enum QueueError {
    /// The queue of a paced connection is as long as it may be; its pacing lets the next one pass at this time.
    #[error("the queue of the connection is full (rateLimits.maxQueueDepth)")]
    PaceFull(EpochMs),
    /// The queue of a busy connection is as long as it may be.
    #[error("all slots of the connection are taken and its queue is full (maxConcurrent, maxQueueDepth)")]
    SlotsFull,
    /// The turn did not come in time on a paced connection; its pacing lets the next one pass at this time.
    #[error("the request's turn did not come within the longest wait of the connection's queue (rateLimits.maxWait)")]
    PaceTimeout(EpochMs),
    /// No slot became free in time.
    #[error("no slot of the connection became free within the longest wait (rateLimits.maxWait)")]
    SlotsTimeout,
}

impl QueueError {
    /// The machine-readable code (interface 4).
    #[must_use]
    pub const fn code(self) -> &'static str {
        match self {
            Self::PaceFull(_) => "RATE_LIMIT_QUEUE_FULL",
            Self::SlotsFull => "SEMAPHORE_QUEUE_FULL",
            Self::PaceTimeout(_) => "RATE_LIMIT_QUEUE_TIMEOUT",
            Self::SlotsTimeout => "SEMAPHORE_TIMEOUT",
        }
    }

    /// The status of the answer.
    #[must_use]
    pub const fn status(self) -> u16 {
        match self {
            Self::PaceFull(_) | Self::SlotsFull | Self::SlotsTimeout => 429,
            Self::PaceTimeout(_) => 503,
        }
    }

    /// The earliest time at which another try makes sense, where that is known: a slot may become free at any time.
    #[must_use]
    pub const fn until(self) -> Option<EpochMs> {
        match self {
            Self::PaceFull(at) | Self::PaceTimeout(at) => Some(at),
            Self::SlotsFull | Self::SlotsTimeout => None,
        }
    }
}

/// How long a queue may be, and how long one may stand in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Patience {
    /// Longest wait.
    pub max_wait: Duration,
    /// Longest queue of one gate; 0 = never queue, `None` = unbounded.
    pub max_depth: Option<u32>,
}

/// The gates of connections that have any in common, with their queue.
#[derive(Debug, Default)]
pub struct Queue {
    state: Mutex<State>,
    /// Tells the timer that what it waits for has changed.
    changed: Notify,
    /// Somebody may wait at a gate that keeps a pace; without it nobody has to look.
    paced: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    gates: Gates,
    callers: HashMap<u64, (oneshot::Sender<Pass>, Arc<[Want]>)>,
    /// When pacing lets somebody pass, as it was seen last.
    due: Option<EpochMs>,
    /// The queue's one timer runs.
    timed: bool,
    /// How often the queue was walked along.
    #[cfg(test)]
    pumped: usize,
}

/// The right to dispatch once; gives its slots back when it is dropped.
#[derive(Debug)]
pub struct Pass {
    queue: Arc<Queue>,
    wants: Arc<[Want]>,
}

impl Drop for Pass {
    fn drop(&mut self) {
        let now = clock::now();
        let mut state = self.queue.state();
        state.gates.leave(&self.wants, now);
        self.queue.pump(state, now);
    }
}

/// The task that keeps a queue's time; another one may start when it is gone.
struct Timer {
    queue: Arc<Queue>,
    /// It did not come to its own end.
    runs: bool,
}

impl Drop for Timer {
    fn drop(&mut self) {
        if self.runs {
            self.queue.state().timed = false;
        }
    }
}

/// A place in the queue; given up when it is dropped.
struct Place<'a> {
    queue: &'a Arc<Queue>,
    ticket: u64,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut state = self.queue.state();
        let kept = state.gates.give_up(self.ticket);
        let caller = state.callers.remove(&self.ticket);
        if state.callers.is_empty() {
            self.queue.changed.notify_one();
        }
        if kept {
            self.queue.pump(state, clock::now());
        } else {
            drop(state);
        }
        drop(caller);
    }
}

impl Queue {
    /// Passes at once or not at all.
    ///
    /// # Errors
    /// What is in the way.
    pub fn try_pass(self: &Arc<Self>, wants: &Arc<[Want]>) -> Result<Pass, Blocked> {
        self.enter(wants, clock::now()).1?;
        Ok(Pass { queue: Arc::clone(self), wants: Arc::clone(wants) })
    }

    /// Passes when it is this request's turn.
    ///
    /// # Errors
    /// The queue is full, or the turn does not come in time.
    pub async fn pass(self: &Arc<Self>, wants: &Arc<[Want]>, patience: Patience) -> Result<Pass, QueueError> {
        let (caller, mut called) = oneshot::channel();
        let place = {
            let now = clock::now();
            let (mut state, entered) = self.enter(wants, now);
            let blocked = match entered {
                Ok(()) => return Ok(Pass { queue: Arc::clone(self), wants: Arc::clone(wants) }),
                Err(blocked) => blocked,
            };
            let longest = wants.iter().map(|want| state.gates.waiting(&want.gate)).max().unwrap_or(0);
            if patience.max_depth.is_some_and(|depth| longest >= depth as usize) {
                return Err(full(blocked));
            }
            let ticket = state.gates.wait(Arc::clone(wants), now);
            if wants.iter().any(|want| state.gates.is_paced(&want.gate)) {
                self.paced.store(true, Ordering::Relaxed);
            }
            state.callers.insert(ticket, (caller, Arc::clone(wants)));
            if let Blocked::Pace(at) = blocked
                && state.due.is_none_or(|due| at < due)
            {
                state.due = Some(at);
                self.changed.notify_one();
            }
            if !std::mem::replace(&mut state.timed, true) {
                tokio::spawn(Arc::clone(self).keep_time());
            }
            Place { queue: self, ticket }
        };
        if let Ok(turn) = timeout(patience.max_wait, &mut called).await {
            return turn.map_err(|_| QueueError::SlotsTimeout);
        }
        drop(place);
        // The turn may have come at the last moment.
        called.try_recv().map_err(|_| self.late(wants))
    }

    /// Enters if nothing is in the way. Whose turn came meanwhile goes first.
    fn enter(self: &Arc<Self>, wants: &[Want], now: EpochMs) -> (MutexGuard<'_, State>, Result<(), Blocked>) {
        let mut state = self.state();
        if state.due.is_some_and(|due| due <= now) {
            self.pump(state, now);
            state = self.state();
        }
        let entered = state.gates.try_enter(wants, now);
        (state, entered)
    }

    /// Nobody passes this gate before `until`; those who waited for that, `pace_ms` apart.
    pub fn block(self: &Arc<Self>, gate: &GateId, until: EpochMs, pace_ms: u64) {
        let mut state = self.state();
        let earlier = state.gates.block(gate, until, pace_ms);
        if state.gates.is_paced(gate) {
            self.paced.store(true, Ordering::Relaxed);
        }
        if earlier {
            self.pump(state, clock::now());
        }
    }

    /// Undoes [`Self::block`]: those who wait go at once.
    pub fn unblock(self: &Arc<Self>, gate: &GateId) {
        let mut state = self.state();
        if state.gates.unblock(gate) {
            self.pump(state, clock::now());
        }
    }

    /// Whether those who wait for this gate go at a pace; without a lock as long as nobody does anywhere in this queue.
    pub fn is_paced(&self, gate: &GateId) -> bool {
        if !self.paced.load(Ordering::Relaxed) {
            return false;
        }
        let state = self.state();
        if state.callers.is_empty() {
            self.paced.store(false, Ordering::Relaxed);
        }
        state.gates.is_paced(gate)
    }

    fn late(&self, wants: &[Want]) -> QueueError {
        match self.state().gates.blocked(wants, clock::now()) {
            Some(Blocked::Pace(at)) => QueueError::PaceTimeout(at),
            Some(Blocked::Slots) | None => QueueError::SlotsTimeout,
        }
    }

    /// Lets pass who can, and tells the timer when pacing lets the next one.
    fn pump(self: &Arc<Self>, mut state: MutexGuard<'_, State>, now: EpochMs) {
        let (passed, due) = state.gates.pump(now);
        #[cfg(test)]
        (state.pumped += 1);
        if std::mem::replace(&mut state.due, due) != due || state.callers.len() == passed.len() {
            self.changed.notify_one();
        }
        let calls: Vec<_> = passed.into_iter().filter_map(|ticket| state.callers.remove(&ticket)).collect();
        drop(state);
        for (caller, wants) in calls {
            // Whoever does not listen any more gives the slots back by dropping the pass.
            drop(caller.send(Pass { queue: Arc::clone(self), wants }));
        }
    }

    /// The one timer of a queue: runs while anybody waits.
    async fn keep_time(self: Arc<Self>) {
        let mut timer = Timer { queue: self, runs: true };
        let queue = Arc::clone(&timer.queue);
        loop {
            let (due, anybody) = {
                let mut state = queue.state();
                // At once: whoever comes after this look starts another one.
                state.timed = !state.callers.is_empty();
                (state.due, state.timed)
            };
            if !anybody {
                timer.runs = false;
                return;
            }
            let Some(due) = due else {
                queue.changed.notified().await;
                continue;
            };
            let pause = Duration::from_millis(due.since(clock::now()));
            if timeout(pause, queue.changed.notified()).await.is_err() {
                let now = clock::now();
                queue.pump(queue.state(), now.max(due));
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The error of somebody who may not wait.
#[must_use]
pub const fn full(blocked: Blocked) -> QueueError {
    match blocked {
        Blocked::Slots => QueueError::SlotsFull,
        Blocked::Pace(at) => QueueError::PaceFull(at),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::gateway::gates::{Limit, joined};

    fn wants(slots: u32, min_interval_ms: u64) -> Arc<[Want]> {
        joined(vec![Want { gate: GateId::Credential("a".into()), limit: Limit { slots, min_interval_ms, per_minute: 0 } }])
    }

    const fn patience(ms: u64, max_depth: u32) -> Patience {
        Patience { max_wait: Duration::from_millis(ms), max_depth: if max_depth == 0 { None } else { Some(max_depth) } }
    }

    #[tokio::test]
    async fn a_slot_goes_to_who_waits_first_and_comes_back() {
        let (queue, wants) = (Arc::new(Queue::default()), wants(1, 0));
        let held = queue.try_pass(&wants).unwrap();
        let waiting = tokio::spawn({
            let (queue, wants) = (Arc::clone(&queue), Arc::clone(&wants));
            async move { queue.pass(&wants, patience(60_000, 0)).await.map(drop) }
        });
        while queue.state().gates.waiting(&GateId::Credential("a".into())) == 0 {
            tokio::task::yield_now().await;
        }
        drop(held);
        waiting.await.unwrap().unwrap();
        assert!(queue.try_pass(&wants).is_ok());
    }

    #[tokio::test]
    async fn limits_of_the_queue_have_their_codes() {
        let queue = Arc::new(Queue::default());
        let _held = queue.try_pass(&wants(1, 0)).unwrap();
        assert_eq!(queue.pass(&wants(1, 0), patience(1, 0)).await.unwrap_err().code(), "SEMAPHORE_TIMEOUT");
        assert_eq!(queue.pass(&wants(0, 60_000), patience(1, 0)).await.unwrap_err().code(), "RATE_LIMIT_QUEUE_TIMEOUT");
        let place = wants(1, 0);
        let (first, second) = tokio::join!(queue.pass(&place, patience(50, 1)), queue.pass(&place, patience(50, 1)));
        assert_eq!([first.unwrap_err().code(), second.unwrap_err().code()], ["SEMAPHORE_TIMEOUT", "SEMAPHORE_QUEUE_FULL"]);
    }

    #[tokio::test]
    async fn a_queue_has_one_timer_however_many_wait() {
        const N: usize = 200;
        let (queue, wants) = (Arc::new(Queue::default()), wants(u32::MAX, 0));
        queue.block(&GateId::Credential("a".into()), clock::now().plus(40), 0);
        let waiting: Vec<_> = (0..N)
            .map(|_| {
                let (queue, wants) = (Arc::clone(&queue), Arc::clone(&wants));
                tokio::spawn(async move { queue.pass(&wants, patience(60_000, 0)).await })
            })
            .collect();
        let passes: Vec<Pass> = futures::future::join_all(waiting).await.into_iter().map(|turn| turn.unwrap().unwrap()).collect();
        // The timer asks once when the block ends; a newcomer at that very instant may ask as well.
        assert!(queue.state().pumped <= 2, "{}", queue.state().pumped);
        assert!(queue.state().gates.looked <= 2 * N + 2, "{}", queue.state().gates.looked);
        drop(passes);
        while queue.state().timed {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn the_timer_of_a_queue_outlives_who_started_it() {
        let (queue, paced) = (Arc::new(Queue::default()), wants(0, 40));
        let _first = queue.try_pass(&paced).unwrap();
        assert!(timeout(Duration::from_millis(1), queue.pass(&paced, patience(60_000, 0))).await.is_err());
        queue.pass(&paced, patience(60_000, 0)).await.unwrap();
    }

    #[tokio::test]
    async fn who_goes_away_holds_nothing() {
        let (queue, wants) = (Arc::new(Queue::default()), wants(1, 0));
        let held = queue.try_pass(&wants).unwrap();
        let gone = tokio::time::timeout(Duration::from_millis(5), queue.pass(&wants, patience(60_000, 0))).await;
        assert!(gone.is_err());
        drop(held);
        assert!(queue.try_pass(&wants).is_ok());
        assert!(queue.state().callers.is_empty());
    }

    #[tokio::test]
    async fn pacing_lets_the_next_one_go_in_time() {
        let (queue, wants) = (Arc::new(Queue::default()), wants(0, 30));
        let begin = Instant::now();
        for _ in 0..3 {
            queue.pass(&wants, patience(60_000, 0)).await.unwrap();
        }
        assert!(begin.elapsed() >= Duration::from_millis(59), "{:?}", begin.elapsed());
    }
}
