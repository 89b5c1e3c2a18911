//! Attempts whose answer is streamed: opened, opened again when it breaks before anything went to the client (routing spec 10.3), and recorded
//! once, whenever it ends.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::header::CONTENT_ENCODING;
use http::response::Parts;
use http::{HeaderMap, Response, StatusCode};
use http_body_util::BodyExt;

use super::again::{Again, Rest};
use super::record::{Evidence, record_failure, record_success, shown};
use super::{Outcome, Running, millis, send};
use crate::classify::TransportError;
use crate::gateway::BoxError;
use crate::gateway::body::Body;
use crate::gateway::metrics::{Origin, RecoveryKind};
use crate::gateway::pipeline::{Elsewhere, Shared};
use crate::gateway::relay::{
    self, Hooks, MAX_RECOVERIES, OnEnd, Opened, RECOVERY_HOLD, Recovered, Resume, StreamEnd, StreamFailure, StreamOutcome, StreamPolicy,
};
use crate::gateway::upstream::{SendError, UpstreamBody, headers};
use crate::protocol::Endpoint;
use crate::resilience::Permit;
use crate::routing::{Exclusion, ExclusionReason};
use crate::snapshot::StreamRecovery;

/// The permit of a streamed attempt. Whoever takes it records the attempt; nobody else can.
#[derive(Debug)]
pub(super) struct SharedPermit(Mutex<Option<Permit>>);

impl SharedPermit {
    const fn new(permit: Permit) -> Self {
        Self(Mutex::new(Some(permit)))
    }

    fn lock(&self) -> MutexGuard<'_, Option<Permit>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Option<Permit> {
        self.lock().take()
    }

    /// True when it is the probe of a half-open breaker.
    pub fn is_probe(&self) -> bool {
        self.lock().as_ref().is_some_and(Permit::is_probe)
    }

    /// The same attempt goes on with another permit.
    pub fn replace(&self, permit: Permit) {
        let old = self.lock().replace(permit);
        drop(old);
    }
}

/// How an attempt to get a stream went wrong.
enum Broken {
    Stream(Box<Parts>, StreamFailure),
    NoAnswer(SendError),
}

impl Running<'_> {
    pub(super) async fn stream(&self, permit: Permit, response: Response<UpstreamBody>, elsewhere: &mut Elsewhere) -> Outcome {
        let settings = &self.context.shared.loaded.snapshot.settings;
        let recovery = self.recovery();
        let policy = StreamPolicy {
            hold: if recovery.enabled { RECOVERY_HOLD } else { Duration::ZERO },
            heartbeat: Duration::from_millis(settings.heartbeat_ms),
            throughput: recovery.throughput_watchdog,
            empty_stop_is_valid: self.provider.traits.empty_stop_is_valid,
            ..StreamPolicy::new(self.context.shared.endpoint.dialect(), self.begun.into(), &self.provider.timeouts, &self.context.head)
        };
        let again = Arc::new(Again {
            shared: Arc::clone(&self.context.shared),
            loaded: Arc::clone(self.loaded),
            account: self.account.index,
            dispatch: self.dispatch.clone(),
            permit: SharedPermit::new(permit),
            slot: self.slot.clone(),
        });
        let continues = recovery.continue_mid_stream && self.context.shared.endpoint == Endpoint::ChatCompletions;
        let rest = if continues { Rest::new(&again, self.context, self.response_start()) } else { None };
        let (mut response, mut left) = (response, if recovery.enabled { MAX_RECOVERIES } else { 0 });
        loop {
            let (parts, body) = response.into_parts();
            let hooks = Hooks {
                on_end: recorder(Arc::clone(&again)),
                buffers: self.context.shared.gateway().buffers().clone(),
                resume: rest.clone().map(|rest| -> Arc<dyn Resume<UpstreamBody>> { rest }),
            };
            let failure = match elsewhere.during(relay::open_stream(body, &parts.headers, policy, hooks)).await {
                Opened::Failed(failure) => failure,
                Opened::Unchecked(body) => {
                    let Some(permit) = again.permit.take() else { return nothing_known() };
                    return self.succeed(permit, parts.status, headers::down(&parts.headers), Body::stream(body), None);
                }
                Opened::Committed(body) => {
                    if recovery.enabled && left < MAX_RECOVERIES {
                        again.settled(RecoveryKind::Reopen, Recovered::Yes);
                    }
                    let shown = body.headers(&parts.headers);
                    return self.served(parts.status, shown, Body::stream(body.map_err(BoxError::from)));
                }
            };
            response = match self.reopen(&again, &mut left, Broken::Stream(Box::new(parts), failure), elsewhere).await {
                Ok(response) => response,
                Err(outcome) => return *outcome,
            };
        }
    }

    /// Asks the same account again, as long as there are attempts left and it makes sense. Otherwise the attempt has failed with what broke last.
    async fn reopen(
        &self,
        again: &Again,
        left: &mut u32,
        mut broken: Broken,
        elsewhere: &mut Elsewhere,
    ) -> Result<Response<UpstreamBody>, Box<Outcome>> {
        loop {
            let worth_it = match &broken {
                Broken::Stream(_, failure) => failure.is_truncation(),
                Broken::NoAnswer(_) => true,
            };
            if *left < MAX_RECOVERIES && self.recovery().enabled {
                again.settled(RecoveryKind::Reopen, Recovered::No);
            }
            if *left == 0 || !worth_it {
                return Err(Box::new(self.broken(again, broken)));
            }
            *left -= 1;
            if let Err(why) = elsewhere.during(again.admitted()).await {
                tracing::debug!("opening a stream again: {why}");
                again.settled(RecoveryKind::Reopen, Recovered::Refused);
                return Err(Box::new(self.broken(again, broken)));
            }
            match send(&self.context.shared, self.account, self.dispatch, self.call(), false, elsewhere).await {
                Ok(response) if response.status().is_success() => return Ok(response),
                Ok(response) => {
                    again.settled(RecoveryKind::Reopen, Recovered::No);
                    let Some(permit) = again.permit.take() else { return Err(Box::new(nothing_known())) };
                    return Err(Box::new(self.error_answer(permit, response, elsewhere).await));
                }
                Err(error) => broken = Broken::NoAnswer(error),
            }
        }
    }

    /// What is to be done about a stream that breaks: nothing that asks again, where the client wants one call.
    fn recovery(&self) -> StreamRecovery {
        let (set, again) = (self.context.shared.loaded.snapshot.settings.stream_recovery, !self.context.shared.single_call);
        StreamRecovery { enabled: set.enabled && again, continue_mid_stream: set.continue_mid_stream && again, ..set }
    }

    fn broken(&self, again: &Again, broken: Broken) -> Outcome {
        let Some(permit) = again.permit.take() else { return nothing_known() };
        match broken {
            Broken::NoAnswer(error) => self.no_answer(permit, &error),
            Broken::Stream(parts, failure) => self.stream_failed(permit, parts.status, &parts.headers, failure),
        }
    }

    fn stream_failed(&self, permit: Permit, status: StatusCode, given: &HeaderMap, failure: StreamFailure) -> Outcome {
        // Only for whom it is kept its pieces are joined.
        let kept = failure.whole.filter(|_| self.context.shared.single_call).and_then(|whole| {
            let mut shown = headers::down(given);
            if whole.decoded {
                shown.remove(CONTENT_ENCODING);
            }
            self.as_it_is(status, shown, &whole.bytes(), whole.room)
        });
        let evidence =
            Evidence { status: status.as_u16(), headers: Some(given), body: &failure.body, transport: failure.transport, via_proxy: false };
        self.fail(permit, evidence, failure.message, kept)
    }

    fn served(&self, status: StatusCode, headers: HeaderMap, body: Body) -> Outcome {
        let mut response = Response::new(body);
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        Outcome::Served { response, origin: Origin::Provider, latency_ms: millis(self.begun.elapsed()), holds: super::Holds::default() }
    }
}

/// The attempt was recorded already.
fn nothing_known() -> Outcome {
    Outcome::Refused(Exclusion::of(ExclusionReason::Unavailable))
}

/// Records how a committed stream ended, whenever that is.
fn recorder(again: Arc<Again>) -> OnEnd {
    Box::new(move |outcome| record(&again, &outcome))
}

fn record(again: &Again, outcome: &StreamOutcome) {
    let shared: &Shared = &again.shared;
    let metrics = shared.gateway().metrics();
    let Some((account, provider)) = again.account().and_then(|account| Some((account, again.loaded.provider(account)?))) else { return };
    let Some(permit) = again.permit.take() else { return };
    metrics.first_token(shared.endpoint.into(), outcome.first_content_after.as_secs_f64());
    metrics.skipped_frames(outcome.facts.malformed);
    match &outcome.end {
        StreamEnd::Complete(_) => {
            record_success(shared, account, permit, &again.dispatch.model, outcome.facts.response_id.as_deref());
        }
        StreamEnd::Aborted => account.attempts.cancelled(metrics),
        StreamEnd::Interrupted(why) => {
            let evidence =
                Evidence { status: 200, transport: Some(TransportError::StreamInterrupted), body: &why.frame, ..Evidence::default() };
            let verdict = record_failure(shared, account, provider, permit, &again.dispatch.model, &evidence);
            tracing::info!(connection = %account.cell.name(), reason = verdict.reason.snake(), "stream broke: {}", shown(&verdict, &why.message));
        }
    }
}
