//! One attempt: a permit, the call, the check of what came back, and the record of it in the ledger.

mod again;
mod record;
mod streaming;

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, Response, StatusCode};

use self::again::Slot;
use self::record::{Evidence, record_failure, record_success, shown};
use self::streaming::SharedPermit;
use super::admission::Buffered;
use super::body::{Body, Chained};
use super::clock;
use super::config::{Account, Loaded};
use super::gates::Blocked;
use super::lane;
use super::leases;
use super::limits::Gated;
use super::metrics::{Metrics, Origin};
use super::pipeline::{Context, Elsewhere, Purpose, Shared};
use super::queue::Pass;
use super::relay;
use super::upstream::{Call, Collected, SendError, UpstreamBody, collect, decode, headers};
use crate::api::time::EpochMs;
use crate::classify::{self, Attempt, Reason, Scope, TransportError, Verdict};
use crate::protocol::quality::{Expectations, QualityFailure, ValidateResponse, check_answer};
use crate::protocol::scan::splice_model;
use crate::resilience::Permit;
use crate::routing::leases::LeaseError;
use crate::routing::{Dispatch, Exclusion, ExclusionReason, Failure};
use crate::snapshot::{Combo, Provider};

/// Longest error body that is read and passed on.
const MAX_ERROR_BODY: usize = 256 * 1024;
/// Without a deadline of the provider's own for the start of an answer that is not streamed.
const RESPONSE_START: Duration = Duration::from_secs(600);

/// What became of an attempt.
#[allow(clippy::large_enum_variant)] // one per attempt, taken apart at once: a box would cost more than the move
pub(super) enum Outcome {
    /// Nothing was sent: a gate closed in the meantime.
    Refused(Exclusion),
    /// Nothing was sent: the connection has no slot now.
    Capped(Gated, Blocked),
    /// Nothing was sent: the lease is no longer good.
    Fenced(LeaseError),
    /// The longest execution of a protected connection is over; nobody is to blame.
    Expired(Duration),
    /// The answer, ready to go to the client.
    Served {
        /// The answer.
        response: Response<Body>,
        /// Who made it.
        origin: Origin,
        /// Until it started.
        latency_ms: u64,
        /// What it holds until the answer has ended.
        holds: Holds,
    },
    /// No answer that can be used.
    Failed(Box<Failed>),
}

/// What an attempt holds while it runs: its slots, and its lease.
#[derive(Debug, Default)]
pub(super) struct Holds {
    /// Never looked at: it gives its slots back when the last of those who share it is dropped.
    _slot: Slot,
    /// The turn on a shared account, given back likewise.
    _turn: Option<Pass>,
    /// The lease.
    pub lease: Option<leases::Running>,
}

/// A failed attempt.
#[derive(Debug)]
pub(super) struct Failed {
    pub verdict: Verdict,
    /// As the upstream answered; 0 = it did not.
    pub status: u16,
    pub message: String,
    pub quality: bool,
    pub timeout: bool,
    /// The upstream's answer, for the client if nothing better comes.
    pub kept: Option<Kept>,
    pub latency_ms: u64,
}

impl Failed {
    pub fn as_failure(&self) -> Failure<'_> {
        Failure {
            verdict: &self.verdict,
            status: self.status,
            message: &self.message,
            quality: self.quality,
            timeout: self.timeout,
            passable: self.kept.is_some(),
            latency_ms: self.latency_ms,
        }
    }
}

/// An upstream's error answer.
#[derive(Debug)]
pub(super) struct Kept {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
    /// The body's share of the memory that all bodies may use.
    pub room: Option<Buffered>,
}

/// Sends the request once. `reserved` is the slot that this request waited for, if it is for this connection.
pub(super) async fn run(context: &Context, dispatch: &Dispatch, reserved: Option<Pass>, elsewhere: &mut Elsewhere) -> Outcome {
    let told = context.shared.relay.as_ref().and_then(|relay| relay.told(context, dispatch));
    let context = told.as_ref().map_or(context, |(told, _)| told);
    let loaded = &context.shared.loaded;
    let Some((account, provider)) =
        loaded.accounts.get(dispatch.connection.index).and_then(|account| Some((account, loaded.provider(account)?)))
    else {
        return Outcome::Refused(Exclusion::of(ExclusionReason::Unavailable));
    };
    let combo = dispatch.combo.and_then(|index| loaded.snapshot.combos.get(index));
    let (turn, waited) = turn(account, combo, reserved.is_some(), dispatch.ends, elsewhere).await;
    // Waiting for a turn is no part of the target's time; of the whole request's it is.
    let (deadline, now) = (dispatch.deadline.plus(waited).min(dispatch.ends), clock::now());
    if waited > 0 && deadline <= now {
        return target_timeout(context, account, provider, dispatch, Duration::from_millis(waited)).1;
    }
    let pass = match reserved {
        Some(pass) => Some(pass),
        None => match gates(&context.shared, account, dispatch, now).map(|gated| (gated.queue.try_pass(&gated.wants), gated)) {
            None => None,
            Some((Ok(pass), _)) => Some(pass),
            Some((Err(blocked), gated)) => return Outcome::Capped(gated, blocked),
        },
    };
    let permit = match context.shared.gateway().ledger().begin(&account.cell, now) {
        Ok(permit) => permit,
        Err(exclusion) => return Outcome::Refused(exclusion.into()),
    };
    // A rotation may have come since the request began: the ledger already speaks of the new credential, so that one is sent.
    let rotated = (account.credential != account.cell.credential()).then(|| context.shared.gateway().config()).flatten();
    let newer = rotated.as_ref().and_then(|loaded| Some((loaded.account(account.cell.name())?, loaded)));
    let newer = newer.filter(|(newer, _)| Arc::ptr_eq(&newer.cell, &account.cell));
    let newer = newer.and_then(|(newer, loaded)| Some((newer, loaded.provider(newer)?, loaded)));
    let (account, provider, loaded) = newer.unwrap_or((account, provider, loaded));
    // What this attempt proves is about the credential that it carries.
    let permit = permit.carries(account.credential);
    let recovery = loaded.snapshot.settings.stream_recovery;
    let slot = Slot::new(pass, context.head.stream && (recovery.enabled || recovery.continue_mid_stream));
    let ttl = loaded.snapshot.settings.session_lease_ttl_ms;
    let lease = context.shared.lease.as_ref().map(|lease| lease.enter(context.shared.gateway(), account.cell.name(), ttl));
    let holds = match lease.transpose() {
        Ok(lease) => Holds { _slot: slot.clone(), _turn: turn, lease },
        Err(error) => return Outcome::Fenced(error),
    };
    context.shared.loaded.router.dispatched(dispatch, now);
    let begun = Instant::now();
    let running = Running { context, loaded, account, provider, dispatch, slot, begun };
    let total = Some(provider.timeouts.total_ms).filter(|ms| *ms > 0).map_or(Duration::MAX, Duration::from_millis);
    let limit = Duration::from_millis(deadline.since(now)).min(total);
    let execution = account.limits.execution().filter(|execution| *execution < limit);
    let mut unsettled = Unsettled { account, metrics: context.shared.gateway().metrics(), armed: true };
    let timed = {
        // Pinned here, so that it is not moved into the timer.
        let exchange = pin!(running.exchange(permit, elsewhere));
        tokio::time::timeout(execution.unwrap_or(limit), exchange).await
    };
    unsettled.armed = false;
    match (timed, execution) {
        (Ok(Outcome::Served { response, origin, latency_ms, .. }), _) => Outcome::Served { response, origin, latency_ms, holds },
        (Ok(outcome), _) => outcome,
        (Err(_), Some(execution)) => {
            elsewhere.0 += begun.elapsed();
            Outcome::Expired(execution)
        }
        (Err(_), None) => {
            elsewhere.0 += begun.elapsed();
            let (reason, outcome) = target_timeout(context, account, provider, dispatch, limit);
            account.attempts.failure(context.shared.gateway().metrics(), reason);
            outcome
        }
    }
}

/// The turn of a combo that shares the account's quota, waited for until `ends` at the latest, and how long that took, milliseconds. Without a
/// turn in time the request goes on: the caps of the connection hold anyway. Who holds a slot already does not keep it idle.
async fn turn(account: &Account, combo: Option<&Combo>, has_slot: bool, ends: EpochMs, elsewhere: &mut Elsewhere) -> (Option<Pass>, u64) {
    let Some(gated) = account.limits.turn(combo).map(|gated| gated.until(ends, clock::now())) else { return (None, 0) };
    if has_slot {
        return (gated.queue.try_pass(&gated.wants).ok(), 0);
    }
    let begin = Instant::now();
    let pass = elsewhere.during(gated.queue.pass(&gated.wants, gated.patience)).await.ok();
    (pass, millis(begin.elapsed()))
}

/// What stands before this dispatch; nothing in the common case, without a lock.
fn gates(shared: &Shared, account: &Account, dispatch: &Dispatch, now: EpochMs) -> Option<Gated> {
    let combo = dispatch.combo.and_then(|index| shared.loaded.snapshot.combos.get(index));
    let shut = match account.learned.empty(now) {
        Some(empty) => account.limits.while_empty(empty, now),
        None => account.limits.while_paced(),
    };
    let paced = account.learned.ceiling(now).and_then(|ceiling| account.limits.under(ceiling));
    account.limits.of(&dispatch.model, &dispatch.target, combo, shut.into_iter().chain(paced))
}

/// Sends a call of an attempt, `once` if the client wants no more than that, and learns what the answer's head says about limits.
async fn send(
    shared: &Shared,
    account: &Account,
    dispatch: &Dispatch,
    call: Call<'_>,
    once: bool,
    elsewhere: &mut Elsewhere,
) -> Result<Response<UpstreamBody>, SendError> {
    let limit = call.response_start;
    let response = lane::send(&shared.worker.client, account, call, once, limit, elsewhere, shared.gateway().metrics()).await?;
    let (headers, now) = (response.headers(), clock::now());
    if account.learned.read(headers, now) {
        account.limits.refilled();
    }
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    shared.loaded.router.learn_quota(dispatch.connection.index, header, now);
    Ok(response)
}

/// The target's time is over. This says nothing about the connection: nothing is recorded (routing spec 5.8).
fn target_timeout(context: &Context, account: &Account, provider: &Provider, dispatch: &Dispatch, limit: Duration) -> (Reason, Outcome) {
    let history = context.shared.gateway().ledger().history(&account.cell, Some(&dispatch.model), clock::now());
    let attempt = Attempt {
        provider: &provider.traits,
        model: Some(&dispatch.model),
        status: 0,
        headers: &[],
        body: &[],
        transport: Some(TransportError::Timeout),
        via_proxy: false,
    };
    let mut verdict = classify::classify(&attempt, &history, &context.shared.loaded.rules);
    (verdict.scope, verdict.cooldown_ms, verdict.wait_source, verdict.counts_for_breaker) = (Scope::Request, 0, None, false);
    let message = format!("no answer within the target's time of {} ms", limit.as_millis());
    let latency_ms = millis(limit);
    let reason = verdict.reason;
    (reason, Outcome::Failed(Box::new(Failed { verdict, status: 504, message, quality: false, timeout: true, kept: None, latency_ms })))
}

/// Counts an attempt as cancelled when it is dropped before its outcome is known: the client has gone, nobody is blamed.
struct Unsettled<'a> {
    account: &'a Account,
    metrics: &'a Metrics,
    armed: bool,
}

impl Drop for Unsettled<'_> {
    fn drop(&mut self) {
        if self.armed {
            self.account.attempts.cancelled(self.metrics);
        }
    }
}

/// An attempt on its way.
struct Running<'a> {
    context: &'a Context,
    /// The configuration of the account.
    loaded: &'a Arc<Loaded>,
    account: &'a Account,
    provider: &'a Provider,
    dispatch: &'a Dispatch,
    slot: Slot,
    begun: Instant,
}

impl Running<'_> {
    async fn exchange(self, permit: Permit, elsewhere: &mut Elsewhere) -> Outcome {
        let context = self.context;
        match send(&context.shared, self.account, self.dispatch, self.call(), context.shared.single_call, elsewhere).await {
            Err(error) => self.no_answer(permit, &error),
            // Boxed, so that a request carries room only for what it takes.
            Ok(response) if !response.status().is_success() => Box::pin(self.error_answer(permit, response, elsewhere)).await,
            Ok(response) if context.head.stream => Box::pin(self.stream(permit, response, elsewhere)).await,
            Ok(response) => self.whole(permit, response, elsewhere).await,
        }
    }

    fn call(&self) -> Call<'_> {
        Call {
            endpoint: self.context.shared.endpoint,
            headers: &self.context.headers,
            body: splice_model(&self.context.body, &self.context.head, &self.dispatch.model),
            response_start: self.response_start(),
            extra: None,
        }
    }

    fn response_start(&self) -> Duration {
        match self.provider.timeouts.response_start_ms {
            Some(ms) if ms > 0 => Duration::from_millis(ms),
            Some(_) => Duration::MAX,
            None if self.context.head.stream => relay::readiness_budget(&self.context.head),
            None => RESPONSE_START,
        }
    }

    /// How long an answer may be silent while it is read as a whole.
    fn idle(&self) -> Duration {
        match self.provider.timeouts.stream_idle_ms {
            0 => RESPONSE_START,
            ms => Duration::from_millis(ms),
        }
    }

    /// When the whole answer must have ended, where the provider's timeouts say so.
    fn ends(&self) -> Option<tokio::time::Instant> {
        let total = self.provider.timeouts.total_ms;
        (total > 0).then(|| tokio::time::Instant::from(self.begun) + Duration::from_millis(total))
    }

    fn no_answer(&self, permit: Permit, error: &SendError) -> Outcome {
        let evidence = Evidence { transport: Some(error.transport), via_proxy: error.via_proxy, ..Evidence::default() };
        self.fail(permit, evidence, error.message.clone(), None)
    }

    /// Nobody follows it: not the gateway, which would send the credential elsewhere, and not the client, which would leave the gateway.
    fn redirect(&self, permit: Permit, status: StatusCode) -> Outcome {
        let message = format!(
            "the provider redirects with status {}, which is not followed: its baseURL must name the final address",
            status.as_u16()
        );
        self.fail(permit, Evidence { status: 502, ..Evidence::default() }, message, None)
    }

    async fn error_answer(&self, permit: Permit, response: Response<UpstreamBody>, elsewhere: &mut Elsewhere) -> Outcome {
        let (parts, body) = response.into_parts();
        if parts.status.is_redirection() {
            return self.redirect(permit, parts.status);
        }
        let status = parts.status.as_u16();
        let (bytes, room) =
            match elsewhere.during(collect(body, MAX_ERROR_BODY, self.idle(), self.context.shared.gateway().buffers())).await {
                Ok(Collected::Whole { bytes, room }) => (bytes, room),
                Ok(Collected::TooLarge { prefix, .. }) => (prefix, None),
                // The status says enough; whatever was to follow is lost.
                Err(_) => (Bytes::new(), None),
            };
        let decoded = decode(&parts.headers, &bytes, MAX_ERROR_BODY);
        let readable = decoded.is_ok();
        let mut shown = headers::down(&parts.headers);
        shown.remove(CONTENT_ENCODING);
        let body = decoded.ok().flatten().unwrap_or(bytes);
        // What nobody can decode, a client cannot either.
        let kept = readable.then(|| Kept { status: parts.status, headers: shown, body: body.clone(), room });
        let message = if readable { excerpt(&body) } else { format!("status {status} with a body that cannot be decoded") };
        let evidence = Evidence { status, headers: Some(&parts.headers), body: if readable { &body } else { &[] }, ..Evidence::default() };
        self.fail(permit, evidence, message, kept)
    }

    async fn whole(&self, permit: Permit, response: Response<UpstreamBody>, elsewhere: &mut Elsewhere) -> Outcome {
        let (parts, body) = response.into_parts();
        let most = self.context.purpose.most_held();
        let buffers = self.context.shared.gateway().buffers();
        let (bytes, room) = match elsewhere.during(collect(body, most, self.idle(), buffers)).await {
            Ok(Collected::Whole { bytes, room }) => (bytes, room),
            Ok(Collected::TooLarge { prefix, room, rest }) => {
                let body = Body::stream(Chained::new((prefix, room), rest, self.idle(), self.ends()));
                return self.succeed(permit, parts.status, headers::down(&parts.headers), body, None);
            }
            Err(error) => {
                let evidence = Evidence { transport: Some(error.transport), ..Evidence::default() };
                return self.fail(permit, evidence, error.message, None);
            }
        };
        let decoded = match decode(&parts.headers, &bytes, most) {
            Ok(decoded) => decoded,
            Err(error) => return self.unusable(permit, parts.status, error.to_string(), None),
        };
        let mut shown = headers::down(&parts.headers);
        if decoded.is_some() {
            shown.remove(CONTENT_ENCODING);
        }
        let body = decoded.unwrap_or(bytes);
        let content_type = parts.headers.get(CONTENT_TYPE).and_then(|v| v.to_str().ok());
        let expect = Expectations { validate: self.validation(), empty_stop_is_valid: self.provider.traits.empty_stop_is_valid };
        match check_answer(self.context.shared.endpoint, content_type, &body, expect) {
            Ok(facts) => self.succeed(permit, parts.status, shown, Body::held(body, room), facts.id.as_deref()),
            Err(QualityFailure::ErrorInside) => {
                let evidence =
                    Evidence { status: parts.status.as_u16(), headers: Some(&parts.headers), body: &body, ..Evidence::default() };
                self.fail(permit, evidence, excerpt(&body), self.as_it_is(parts.status, shown, &body, room))
            }
            Err(failure) => {
                let kept = self.as_it_is(parts.status, shown, &body, room);
                self.unusable(permit, parts.status, failure.to_string(), kept)
            }
        }
    }

    /// A 2xx that is no answer, for clients that want it nevertheless.
    fn as_it_is(&self, status: StatusCode, headers: HeaderMap, body: &Bytes, room: Option<Buffered>) -> Option<Kept> {
        self.context.shared.single_call.then(|| Kept { status, headers, body: body.clone(), room })
    }

    /// A 2xx that is no answer.
    fn unusable(&self, permit: Permit, status: StatusCode, message: String, kept: Option<Kept>) -> Outcome {
        let evidence = Evidence { status: status.as_u16(), transport: Some(TransportError::Quality), ..Evidence::default() };
        self.fail(permit, evidence, message, kept)
    }

    fn validation(&self) -> &ValidateResponse {
        static NONE: ValidateResponse =
            ValidateResponse { min_content_length: 0, forbidden: Vec::new(), required: Vec::new(), json: Vec::new() };
        let combo = self
            .dispatch
            .combo
            .filter(|combo| self.context.purpose != Purpose::Step(*combo))
            .and_then(|index| self.context.shared.loaded.snapshot.combos.get(index));
        combo.map_or(&NONE, |combo| &combo.validate_response)
    }

    fn succeed(&self, permit: Permit, status: StatusCode, headers: HeaderMap, body: Body, id: Option<&str>) -> Outcome {
        record_success(&self.context.shared, self.account, permit, &self.dispatch.model, id);
        let mut response = Response::new(body);
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        Outcome::Served { response, origin: Origin::Provider, latency_ms: millis(self.begun.elapsed()), holds: Holds::default() }
    }

    fn fail(&self, permit: Permit, evidence: Evidence<'_>, message: String, kept: Option<Kept>) -> Outcome {
        let quality = evidence.transport == Some(TransportError::Quality);
        let timeout = evidence.transport == Some(TransportError::Timeout) || evidence.transport == Some(TransportError::StreamNotReady);
        let verdict = record_failure(&self.context.shared, self.account, self.provider, permit, &self.dispatch.model, &evidence);
        tracing::info!(
            connection = %self.dispatch.connection.name, dispatched_to = %self.dispatch.label, status = evidence.status,
            reason = verdict.reason.snake(), decided_by = %verdict.decided_by, "attempt failed: {}", shown(&verdict, &message)
        );
        // A restated answer is what the rest of the request, and the client, goes on with; unless the client wants it as it was.
        let error_inside = (200..300).contains(&evidence.status) && !quality;
        let status = verdict.restated_status.unwrap_or(if error_inside { 502 } else { evidence.status });
        let kept = kept.map(|kept| match StatusCode::from_u16(status) {
            Ok(restated) if !self.context.shared.single_call => Kept { status: restated, ..kept },
            _ => kept,
        });
        let latency_ms = millis(self.begun.elapsed());
        Outcome::Failed(Box::new(Failed { verdict, status, message, quality, timeout, kept, latency_ms }))
    }
}

/// The message of an error body, for summaries and logs: the field that holds one, else the start of the text.
pub(super) fn excerpt(body: &[u8]) -> String {
    #[derive(serde::Deserialize)]
    struct Shape<'a> {
        #[serde(borrow)]
        error: Option<Error<'a>>,
        #[serde(borrow)]
        message: Option<std::borrow::Cow<'a, str>>,
    }
    #[derive(serde::Deserialize)]
    #[serde(untagged)]
    enum Error<'a> {
        Object {
            #[serde(borrow)]
            message: std::borrow::Cow<'a, str>,
        },
        Text(#[serde(borrow)] std::borrow::Cow<'a, str>),
        Other(serde::de::IgnoredAny),
    }
    let text = match serde_json::from_slice::<Shape<'_>>(body) {
        Ok(Shape { error: Some(Error::Object { message } | Error::Text(message)), .. } | Shape { message: Some(message), .. }) => {
            message.into_owned()
        }
        _ => String::from_utf8_lossy(body).into_owned(),
    };
    text.chars().filter(|c| !c.is_control()).take(300).collect()
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
