//! The attempt loop: asks routing what comes next, does it, and tells routing what came of it.

mod hedge;

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use http::header::HeaderName;
use http::{HeaderValue, Response};

use super::answer::Refusal;
use super::attempt::{self, Holds, Outcome};
use super::body::Body;
use super::limits::Gated;
use super::live::Present;
use super::metrics::Origin;
use super::pipeline::{Clock, Context};
use super::queue::{self, Pass, QueueError};
use super::service::Answered;
use super::{clock, ending, leases};
use crate::classify::Reason;
use crate::routing::{Answer, Dispatch, Exclusion, ExclusionReason, Hop, Request, Resolved, Step, Walk};

/// Changes when a lease has moved to another connection (decisions 6).
const LEASE_BINDING: HeaderName = HeaderName::from_static("x-omniroute-lease-binding");

/// How often a request may stand in queues, so that it ends whatever happens.
const MAX_QUEUED: u32 = 16;

/// A dispatch that had no slot.
#[derive(Debug)]
struct Capped {
    dispatch: Box<Dispatch>,
    gated: Gated,
}

/// The slot that came for one of them.
#[derive(Debug)]
struct Reserved {
    connection: usize,
    target: Arc<str>,
    pass: Pass,
}

/// Where the loop stands after a dispatch.
enum Progress {
    Answered(Answered),
    Open(Box<Engine>),
}

/// Which of two attempts at the same time an outcome belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Side {
    /// The one that was started last.
    Last,
    /// The one that the last one was started beside, if it was.
    Aside,
}

/// The attempt loop of one request.
#[derive(Debug)]
pub(super) struct Engine {
    context: Context,
    walk: Walk,
    times: Clock,
    /// The connection that failed last, and why, for the failover metric.
    previous: Option<(Arc<str>, Reason)>,
    /// The last dispatch and, of the last failure, the upstream's answer.
    last: Option<(Box<Dispatch>, Option<attempt::Kept>)>,
    /// Dispatches that would be made if they had a slot.
    capped: Vec<Capped>,
    /// The slot that was waited for; the next step uses it or gives it back.
    reserved: Option<Reserved>,
    queued: u32,
}

impl Engine {
    /// Prepares the walk of a request.
    ///
    /// # Errors
    /// The name means nothing.
    pub fn new(context: Context, resolved: &Resolved, request: Request, times: Clock) -> Result<Box<Self>, Refusal> {
        let name = &context.head.model;
        let walk = Walk::new(&context.shared.loaded.router, resolved, name, request)
            .ok_or_else(|| Refusal::new(404, "model_not_found", format!("there is no model `{name}` here")).param("model").hopeless())?;
        // In a box from the beginning: a future that held it would be copied with it.
        Ok(Box::new(Self { context, walk, times, previous: None, last: None, capped: Vec::new(), reserved: None, queued: 0 }))
    }

    /// Walks until there is an answer.
    pub async fn run(mut self: Box<Self>) -> Answered {
        loop {
            match self.next() {
                Step::Dispatch(dispatch) => {
                    self = match self.dispatch(dispatch).await {
                        Progress::Answered(answered) => return answered,
                        Progress::Open(engine) => engine,
                    };
                }
                Step::Wait { ms, .. } => Box::pin(self.wait(Duration::from_millis(ms))).await,
                Step::Stop(answer) => match Box::pin(self.wait_for_slot(&answer)).await {
                    Some(Ok(())) => {}
                    Some(Err(error)) => return self.end(&limited(error)),
                    None => return self.end(&answer),
                },
            }
        }
    }

    fn next(&mut self) -> Step {
        let shared = &self.context.shared;
        let present = Present { shared, ignore_leases: false };
        let step = self.walk.next(&present, clock::now(), &mut rand::random::<u64>);
        // A slot that the walk does not go on with is for somebody else.
        let unused = |reserved: &mut Reserved| match &step {
            Step::Dispatch(dispatch) => dispatch.connection.index != reserved.connection || dispatch.target != reserved.target,
            Step::Wait { .. } | Step::Stop(_) => true,
        };
        drop(self.reserved.take_if(unused));
        step
    }

    async fn dispatch(mut self: Box<Self>, dispatch: Box<Dispatch>) -> Progress {
        if dispatch.delay_ms > 0 {
            self.times.elsewhere.during(tokio::time::sleep(Duration::from_millis(dispatch.delay_ms))).await;
        }
        let reserved = self.reserved.take().map(|reserved| reserved.pass);
        if let Some(delay) = self.hedge_delay(&dispatch) {
            return Box::pin(self.race(dispatch, reserved, delay)).await;
        }
        let outcome = attempt::run(&self.context, &dispatch, reserved, &mut self.times.elsewhere).await;
        self.settle(dispatch, outcome, Side::Last)
    }

    /// Tells routing what came of a dispatch.
    fn settle(mut self: Box<Self>, dispatch: Box<Dispatch>, outcome: Outcome, side: Side) -> Progress {
        let now = clock::now();
        // It was dispatched anew: the slot that it lacked in an earlier pass is not waited for any more.
        let same = |other: &Dispatch| other.connection.index == dispatch.connection.index && other.target == dispatch.target;
        self.capped.retain(|capped| !same(&capped.dispatch));
        match outcome {
            Outcome::Refused(exclusion) => self.tell(side, |walk| walk.refused_locally(exclusion, None)),
            Outcome::Capped(gated, blocked) => {
                let answer = limited(queue::full(blocked));
                self.tell(side, |walk| walk.refused_locally(Exclusion::of(ExclusionReason::ConcurrencyCap), Some(answer)));
                self.capped.push(Capped { dispatch, gated });
            }
            Outcome::Expired(limit) => {
                let message = format!("the request ran longer than the {} ms that rateLimits.executionMaxWait allows", limit.as_millis());
                let answer = ending::local(504, "RATE_LIMIT_EXECUTION_TIMEOUT", &message, None);
                self.count(&dispatch, false);
                self.tell(side, |walk| walk.expired(answer));
            }
            Outcome::Fenced(error) => {
                let response = leases::refusal(&error).into_response(self.context.shared.endpoint.dialect());
                return Progress::Answered(Answered { response, origin: Origin::Policy, combo: self.walk.combo() });
            }
            Outcome::Served { response, latency_ms, origin, holds } => {
                self.hopped(&dispatch);
                self.count(&dispatch, true);
                if let Some(relay) = &self.context.shared.relay {
                    relay.served(&self.context, &dispatch);
                }
                self.walk.decide(side == Side::Aside, now);
                self.walk.succeeded(latency_ms, now);
                return Progress::Answered(self.served(&dispatch, response, origin, holds));
            }
            Outcome::Failed(failed) => {
                self.hopped(&dispatch);
                self.count(&dispatch, false);
                self.tell(side, |walk| walk.failed(&failed.as_failure(), now));
                self.previous = Some((Arc::clone(&dispatch.connection.name), failed.verdict.reason));
                self.last = Some((dispatch, failed.kept));
            }
        }
        Progress::Open(self)
    }

    fn tell(&mut self, side: Side, outcome: impl FnOnce(&mut Walk)) {
        match side {
            Side::Last => outcome(&mut self.walk),
            Side::Aside => self.walk.settle_aside(clock::now(), outcome),
        }
    }

    /// Counts a move from the connection that failed before to this one.
    fn hopped(&mut self, dispatch: &Dispatch) {
        if let Some((from, reason)) = self.previous.take().filter(|_| dispatch.hop != Hop::SameConnection) {
            self.context.shared.gateway().metrics().failover(&from, &dispatch.connection.name, reason);
        }
    }

    fn count(&self, dispatch: &Dispatch, good: bool) {
        if let Some(stats) = self.walk.combo().and_then(|combo| self.context.shared.loaded.combo_stats.get(combo)) {
            stats.attempt(&dispatch.target, good);
        }
    }

    fn served(mut self: Box<Self>, dispatch: &Dispatch, response: Response<Body>, origin: Origin, holds: Holds) -> Answered {
        self.account_for(true);
        let decision = self.decision(dispatch);
        let (combo, entered) = (self.walk.combo(), self.walk.entered());
        let mut answered = ending::served(response, origin, decision, dispatch.emergency, combo);
        if let Some(lease) = &holds.lease {
            answered.response.headers_mut().insert(LEASE_BINDING, HeaderValue::from(lease.binding));
        }
        answered.response = answered.response.map(|body| body.guarded((entered, holds)));
        answered
    }

    fn end(mut self, answer: &Answer) -> Answered {
        self.account_for(false);
        let (decision, kept) = match self.last.take() {
            Some((dispatch, kept)) => (self.decision(&dispatch), kept),
            None => (None, None),
        };
        let combo = self.walk.combo();
        Answered { combo, ..ending::answered(answer, kept, decision, self.context.shared.endpoint.dialect()) }
    }

    /// The gateway's own share of the time until the answer, and the counts of the combo.
    fn account_for(&self, good: bool) {
        // Of a composed request the whole is accounted for, not each call.
        if self.walk.request().inner.is_some() {
            return;
        }
        let own = self.times.started.elapsed().saturating_sub(self.times.elsewhere.0);
        self.context.shared.gateway().metrics().overhead(own.as_secs_f64());
        if let Some(stats) = self.walk.combo().and_then(|combo| self.context.shared.loaded.combo_stats.get(combo)) {
            stats.request(good);
        }
    }

    /// `x-omniroute-decision` of a combo's answer.
    fn decision(&self, dispatch: &Dispatch) -> Option<String> {
        let combo = self.context.shared.loaded.snapshot.combos.get(self.walk.combo()?)?;
        let (strategy, attempts) = (format!("{:?}", combo.strategy), self.walk.attempts().to_string());
        let (target, connection) = (&*dispatch.label, &*dispatch.connection.name);
        // Joined, not formatted: every good answer carries one.
        Some(["strategy=", &strategy, "; target=", target, "; connection=", connection, "; attempts=", &attempts].concat())
    }

    /// Sleeps until a timer ends; a slot that comes earlier is taken up.
    async fn wait(&mut self, pause: Duration) {
        let pause = tokio::time::sleep(pause);
        let capped = std::mem::take(&mut self.capped);
        if capped.is_empty() || self.queued >= MAX_QUEUED {
            return self.times.elsewhere.during(pause).await;
        }
        self.queued += 1;
        let slot = async {
            match first_slot(&capped).await {
                Ok(slot) => slot,
                // No slot came in time; the timer may still help.
                Err(_) => std::future::pending().await,
            }
        };
        let either = async {
            tokio::select! {
                () = pause => None,
                slot = slot => Some(slot),
            }
        };
        // After the timer the walk looks at everything anew, also at what has no slot.
        if let Some(slot) = self.times.elsewhere.during(either).await {
            self.take_up(capped, slot);
        }
    }

    /// Stands in the queues of all connections that only lacked a slot, when nothing else is left that could serve (decisions 5.3). `None`
    /// when there is nothing to wait for.
    async fn wait_for_slot(&mut self, answer: &Answer) -> Option<Result<(), QueueError>> {
        let over = match answer.terminal_reason {
            "max_attempts_exceeded" | "combo_timeout" => true,
            // Nothing went wrong yet: the protected target is only busy.
            "protected_priority_stop" => self.last.is_some(),
            // Its one call was made.
            _ => self.walk.request().single_call && self.last.is_some(),
        };
        let theirs = answer.status != 429 && answer.status < 500;
        if self.capped.is_empty() || over || theirs || self.queued >= MAX_QUEUED {
            return None;
        }
        self.queued += 1;
        let capped = std::mem::take(&mut self.capped);
        match self.times.elsewhere.during(first_slot(&capped)).await {
            Ok(slot) => {
                self.take_up(capped, slot);
                Some(Ok(()))
            }
            // What failed before says more than the queue.
            Err(_) if self.last.is_some() => None,
            Err(error) => Some(Err(error)),
        }
    }

    /// Goes on with the dispatch whose slot came; the others may still be waited for.
    fn take_up(&mut self, mut capped: Vec<Capped>, (at, pass): (usize, Pass)) {
        let Capped { dispatch, .. } = capped.swap_remove(at);
        self.capped = capped;
        if self.walk.slot_free(&dispatch, clock::now()) {
            self.reserved = Some(Reserved { connection: dispatch.connection.index, target: Arc::clone(&dispatch.target), pass });
        }
    }
}

/// The first slot that any of them gets, by position.
async fn first_slot(capped: &[Capped]) -> Result<(usize, Pass), QueueError> {
    let place = |(at, capped): (usize, &Capped)| {
        let Gated { queue, wants, patience } = capped.gated.clone().until(capped.dispatch.ends, clock::now());
        async move { (at, queue.pass(&wants, patience).await) }
    };
    let mut queues: FuturesUnordered<_> = capped.iter().enumerate().map(place).collect();
    let mut errors = Vec::new();
    while let Some((at, passed)) = queues.next().await {
        match passed {
            Ok(pass) => return Ok((at, pass)),
            Err(error) => errors.push(error),
        }
    }
    // Of several limits, the one that ends first says when a retry makes sense.
    Err(errors.into_iter().min_by_key(|error| error.until()).unwrap_or(QueueError::SlotsTimeout))
}

/// What a client hears when a local limit kept its request from everything that was left.
fn limited(error: QueueError) -> Answer {
    ending::local(error.status(), error.code(), &error.to_string(), error.until())
}
