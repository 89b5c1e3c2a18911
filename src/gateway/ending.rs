//! From what routing decided to the answer that the client gets.

use http::header::{HeaderName, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, Response};
use serde_json::json;

use super::answer::{MAX_SDK_WAIT_SECONDS, ORIGIN, Refusal, SHOULD_RETRY, whole_seconds};
use super::attempt::Kept;
use super::body::Body;
use super::clock;
use super::metrics::Origin;
use super::service::Answered;
use crate::api::time::EpochMs;
use crate::classify::hints;
use crate::protocol::Dialect;
use crate::routing::{self, Answer, Diagnostics, Family, Recovery};

const DECISION: HeaderName = HeaderName::from_static("x-omniroute-decision");
/// Says that the emergency fallback of the settings served the request (decisions 4.8).
const EMERGENCY: HeaderName = HeaderName::from_static("x-omniroute-emergency-fallback");

/// A good answer of a provider.
pub(super) fn served(
    mut response: Response<Body>,
    origin: Origin,
    decision: Option<String>,
    emergency: bool,
    combo: Option<usize>,
) -> Answered {
    add(&mut response, DECISION, decision.as_deref());
    add(&mut response, EMERGENCY, emergency.then_some("used"));
    Answered { response, origin, combo }
}

/// The answer at the end of a walk that found nothing: the provider's own where routing says so, otherwise ours.
pub(super) fn answered(answer: &Answer, kept: Option<Kept>, decision: Option<String>, dialect: Dialect) -> Answered {
    let origin = origin(answer);
    let now = clock::now();
    let mut response = match kept.filter(|_| answer.pass_upstream) {
        Some(kept) => {
            let mut response = Response::new(Body::held(kept.body, kept.room));
            *response.status_mut() = kept.status;
            *response.headers_mut() = kept.headers;
            let headers = response.headers_mut();
            headers.insert(ORIGIN, HeaderValue::from_static(origin.as_str()));
            if let Some(seconds) = answer.retry_after_seconds {
                headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
                // SDKs prefer this one, and it says what the vendor knows, not when somebody here can serve.
                headers.remove("retry-after-ms");
            }
            if answer.no_retry || waits_long(headers, now) {
                headers.insert(SHOULD_RETRY, HeaderValue::from_static("false"));
            }
            response
        }
        None => refusal(answer).into_response(dialect),
    };
    add(&mut response, DECISION, decision.as_deref());
    diagnostics(&mut response, answer, now);
    Answered { response, origin, combo: None }
}

/// True when the provider's own wait is longer than an SDK should sleep (decisions 9.11).
fn waits_long(headers: &HeaderMap, now: EpochMs) -> bool {
    let stated = headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok());
    let wait = stated.and_then(|value| hints::from_headers(&[("retry-after", value)], 429, now));
    wait.is_some_and(|wait| wait.ms > MAX_SDK_WAIT_SECONDS * 1000)
}

/// An answer of ours as it is said in the client's dialect.
pub(super) fn refusal(answer: &Answer) -> Refusal {
    let mut refusal = Refusal::new(answer.status, &answer.code, &answer.message);
    refusal.origin = origin(answer);
    refusal.hopeless = answer.no_retry;
    refusal.retry_after = answer.retry_after_seconds;
    let mut body = *refusal.body;
    if let Some(kind) = kind(answer.family) {
        body = body.kind(kind);
    }
    if let Some(seconds) = answer.retry_after_seconds {
        body = body.field("reset_seconds", seconds);
    }
    if let Some(at) = answer.retry_at {
        body = body.field("retry_after", at.rfc3339());
    }
    if !answer.terminal_reason.is_empty() {
        let mut hint = json!({"action": answer.recovery.as_str(), "next_step": answer.recovery.next_step()});
        if let (Some(seconds), Some(hint)) = (answer.retry_after_seconds, hint.as_object_mut()) {
            hint.insert("retry_after_seconds".to_owned(), seconds.into());
        }
        body = body.beside("diagnostics", json!(answer.diagnostics)).beside("recovery_hint", hint);
    }
    if matches!(answer.code.as_str(), "model_not_found" | "model_not_allowed") {
        body = body.param("model");
    }
    refusal.body = Box::new(body);
    match answer.code.as_str() {
        "provider_circuit_open" => {
            refusal.headers.push((HeaderName::from_static("x-omniroute-provider-breaker"), HeaderValue::from_static("open")))
        }
        "model_cooldown" => {
            refusal.headers.push((HeaderName::from_static("x-omniroute-local-cooldown"), HeaderValue::from_static("model")))
        }
        _ => {}
    }
    refusal
}

/// The answer to a request that a local limit kept from the only connections that were left (interface 4). `until` is when the limit lets
/// somebody pass again, where that is known.
pub(super) fn local(status: u16, code: &str, message: &str, until: Option<EpochMs>) -> Answer {
    Answer {
        status,
        code: code.to_owned(),
        family: if status == 429 { Family::RateLimit } else { Family::Unavailable },
        message: message.to_owned(),
        origin: routing::Origin::Gateway,
        pass_upstream: false,
        retry_at: until,
        retry_after_seconds: Some(until.map_or(1, |at| whole_seconds(at.since(clock::now())))),
        no_retry: false,
        terminal_reason: "local_limit",
        recovery: Recovery::Retry,
        diagnostics: Diagnostics::default(),
    }
}

/// Says how many attempts all calls of a composed request took, where the answer names those of one.
pub(super) fn count_attempts(response: &mut Response<Body>, attempts: u32) {
    let given = response.headers().get(DECISION).and_then(|value| value.to_str().ok());
    let whole = given.and_then(|decision| decision.rsplit_once("attempts=")).map(|(before, _)| format!("{before}attempts={attempts}"));
    add(response, DECISION, whole.as_deref());
}

/// The headers of routing spec 6.4.
fn diagnostics(response: &mut Response<Body>, answer: &Answer, now: EpochMs) {
    if answer.terminal_reason.is_empty() {
        return;
    }
    let found = &answer.diagnostics;
    let header = HeaderName::from_static;
    add(response, header("x-omniroute-combo-pool-size"), Some(&found.pool_size.to_string()));
    add(response, header("x-omniroute-combo-attempted"), Some(&found.attempted.to_string()));
    add(response, header("x-omniroute-combo-excluded"), Some(&found.excluded_header(now)));
    add(response, header("x-omniroute-combo-terminal-reason"), Some(answer.terminal_reason));
    add(response, header("x-omniroute-recovery-action"), Some(answer.recovery.as_str()));
    add(response, header("x-omniroute-next-step"), Some(answer.recovery.next_step()));
    let seconds = answer.retry_after_seconds.map(|s| s.to_string());
    add(response, header("x-omniroute-retry-after-seconds"), seconds.as_deref());
}

fn add(response: &mut Response<Body>, name: HeaderName, value: Option<&str>) {
    if let Some(value) = value.filter(|v| !v.is_empty()).and_then(|v| HeaderValue::from_str(v).ok()) {
        response.headers_mut().insert(name, value);
    }
}

const fn origin(answer: &Answer) -> Origin {
    match answer.origin {
        routing::Origin::Gateway => Origin::Gateway,
        routing::Origin::Provider => Origin::Provider,
        routing::Origin::Policy => Origin::Policy,
    }
}

/// `error.type` of the OpenAI dialects where it does not follow from the status.
const fn kind(family: Family) -> Option<&'static str> {
    match family {
        Family::RateLimit => Some("rate_limit_error"),
        Family::Timeout | Family::Upstream => Some("server_error"),
        Family::InvalidRequest | Family::NotFound | Family::Permission | Family::Unavailable => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_provider_s_long_wait_is_noticed_in_every_form() {
        let now = EpochMs(1_796_000_000_000);
        let long = |value: &'static str| waits_long(&HeaderMap::from_iter([(RETRY_AFTER, HeaderValue::from_static(value))]), now);
        assert!(long("61") && long("Fri, 31 Dec 2027 23:59:59 GMT"));
        assert!(!long("60") && !long("soon") && !long("Wed, 21 Oct 2015 07:28:00 GMT"));
        assert!(!waits_long(&HeaderMap::new(), now));
    }
}
