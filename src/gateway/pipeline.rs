//! One request: resolve ▶ plan ▶ gate ▶ dispatch ▶ classify ▶ record ▶ relay. Every strategy and every direct request takes this road.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::HeaderMap;
use http::request::Parts;

use super::answer::Refusal;
use super::attempt::Outcome;
use super::auth::Caller;
use super::config::Loaded;
use super::ingest::Held;
use super::live::Present;
use super::service::{Answered, Worker};
use super::{attempt, clock, ending};
use crate::protocol::Endpoint;
use crate::protocol::scan::{RequestHead, scan_request};
use crate::routing::{Dispatch, Hop, Needs, Request, Step, Walk};

/// `x-omniroute-fallback: none` asks for exactly one upstream call.
const FALLBACK: &str = "x-omniroute-fallback";

/// What stays the same for all attempts of a request.
#[derive(Debug)]
pub(super) struct Context {
    /// The serving thread.
    pub worker: Arc<Worker>,
    /// The configuration that the request started with.
    pub loaded: Arc<Loaded>,
    /// What was called.
    pub endpoint: Endpoint,
    /// The client's headers.
    pub headers: HeaderMap,
    /// What the body asks for.
    pub head: RequestHead,
    /// The body.
    pub body: Bytes,
    /// When the head of the request was there.
    pub started: Instant,
}

/// Time of a request that the gateway does not account for: clients, providers, queues, timers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Elsewhere(pub Duration);

impl Elsewhere {
    /// Runs something that is not the gateway's own work.
    pub async fn during<T>(&mut self, work: impl Future<Output = T>) -> T {
        let begin = Instant::now();
        let result = work.await;
        self.0 += begin.elapsed();
        result
    }
}

/// The times of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    /// When its head was there.
    pub started: Instant,
    /// What of the time since then was not the gateway's.
    pub elsewhere: Elsewhere,
}

/// Serves a request whose body was read.
pub(super) async fn run(
    worker: &Arc<Worker>,
    loaded: &Arc<Loaded>,
    caller: Caller<'_>,
    endpoint: Endpoint,
    parts: Parts,
    held: Held,
    clock: Clock,
) -> Result<Answered, Refusal> {
    let head = scan_request(&held.bytes).map_err(|error| {
        let refusal = Refusal::new(400, error.code(), error.to_string()).hopeless();
        match error.param() {
            Some(param) => refusal.param(param),
            None => refusal,
        }
    })?;
    let now = super::clock::now();
    let resolved = loaded.router.resolve_for(&head.model, caller.policy).map_err(|answer| ending::refusal(&answer, now))?;
    let mut request = Request::new(endpoint.dialect(), now);
    request.key = Arc::clone(caller.policy);
    request.single_call = parts.headers.get(FALLBACK).is_some_and(|v| v.as_bytes().eq_ignore_ascii_case(b"none"));
    request.needs = Needs {
        tools: head.tools > 0,
        vision: head.images,
        structured_output: head.structured_output,
        input_tokens: head.estimated_input_tokens(),
        output_tokens: head.max_output_tokens,
    };
    let Some(walk) = Walk::new(&loaded.router, &resolved, &head.model, request) else {
        return Err(Refusal::new(404, "model_not_found", format!("there is no model `{}` here", head.model)).param("model").hopeless());
    };
    let combo = walk.combo();
    let context = Arc::new(Context {
        worker: Arc::clone(worker),
        loaded: Arc::clone(loaded),
        endpoint,
        headers: parts.headers,
        head,
        body: held.bytes,
        started: clock.started,
    });
    let engine = Engine { context, walk, elsewhere: clock.elsewhere, previous: None, last: None };
    // Held for replays until here; an answer that streams needs none of it.
    let _buffered = held.buffered;
    Ok(Answered { combo, ..engine.run().await })
}

/// Where the loop stands after a dispatch.
enum Progress {
    Answered(Answered),
    Open(Engine),
}

/// The attempt loop.
struct Engine {
    context: Arc<Context>,
    walk: Walk,
    elsewhere: Elsewhere,
    /// The connection that failed last, and why, for the failover metric.
    previous: Option<(Arc<str>, crate::classify::Reason)>,
    /// The last dispatch and, of the last failure, the upstream's answer.
    last: Option<(Dispatch, Option<attempt::Kept>)>,
}

impl Engine {
    async fn run(mut self) -> Answered {
        loop {
            let context = Arc::clone(&self.context);
            let present = Present { loaded: &context.loaded, ledger: context.worker.gateway.ledger(), pinned: None };
            let step = self.walk.next(&present, clock::now(), &mut rand::random::<u64>);
            match step {
                Step::Dispatch(dispatch) => {
                    self = match self.dispatch(*dispatch).await {
                        Progress::Answered(answered) => return answered,
                        Progress::Open(engine) => engine,
                    };
                }
                Step::Wait { ms, .. } => self.elsewhere.during(tokio::time::sleep(Duration::from_millis(ms))).await,
                Step::Stop(answer) => {
                    self.overhead();
                    let decision = self.last.as_ref().and_then(|(dispatch, _)| self.decision(dispatch));
                    let kept = self.last.and_then(|(_, kept)| kept);
                    return ending::answered(&answer, kept, decision, context.endpoint.dialect());
                }
            }
        }
    }

    async fn dispatch(mut self, dispatch: Dispatch) -> Progress {
        if dispatch.delay_ms > 0 {
            self.elsewhere.during(tokio::time::sleep(Duration::from_millis(dispatch.delay_ms))).await;
        }
        let gateway = &self.context.worker.gateway;
        if let Some((from, reason)) = self.previous.take().filter(|_| dispatch.hop != Hop::SameConnection) {
            gateway.metrics().failover(&from, &dispatch.connection.name, reason);
        }
        let context = Arc::clone(&self.context);
        let outcome = attempt::run(&context, &dispatch, &mut self.elsewhere).await;
        let now = clock::now();
        match outcome {
            Outcome::Refused(exclusion) => {
                self.walk.refused_locally(exclusion, None);
                Progress::Open(self)
            }
            Outcome::Served { response, latency_ms, origin } => {
                self.walk.succeeded(latency_ms, now);
                self.overhead();
                let decision = self.decision(&dispatch);
                Progress::Answered(ending::served(response, origin, decision, self.walk))
            }
            Outcome::Failed(failed) => {
                self.walk.failed(&failed.as_failure(), now);
                self.previous = Some((Arc::clone(&dispatch.connection.name), failed.verdict.reason));
                self.last = Some((dispatch, failed.kept));
                Progress::Open(self)
            }
        }
    }

    /// The gateway's own share of the time until now.
    fn overhead(&self) {
        let own = self.context.started.elapsed().saturating_sub(self.elsewhere.0);
        self.context.worker.gateway.metrics().overhead(own.as_secs_f64());
    }

    /// `x-omniroute-decision` of a combo's answer.
    fn decision(&self, dispatch: &Dispatch) -> Option<String> {
        let combo = self.context.loaded.snapshot.combos.get(self.walk.combo()?)?;
        let (strategy, attempts) = (combo.strategy, self.walk.attempts());
        Some(format!("strategy={strategy:?}; target={}; connection={}; attempts={attempts}", dispatch.label, dispatch.connection.name))
    }
}
