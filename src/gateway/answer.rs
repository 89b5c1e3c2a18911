//! Answers that the gateway writes itself, and the headers that every answer carries (interface 4).

use http::header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HeaderName, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, Response, StatusCode};

use super::body::Body;
use super::metrics::Origin;
use crate::protocol::Dialect;
use crate::protocol::errors::ErrorBody;

/// `x-omniroute-request-id`.
pub static REQUEST_ID: HeaderName = HeaderName::from_static("x-omniroute-request-id");
/// The two names under which the SDKs look for an id.
static SDK_IDS: [HeaderName; 2] = [HeaderName::from_static("x-request-id"), HeaderName::from_static("request-id")];
/// `x-omniroute-origin`.
pub const ORIGIN: HeaderName = HeaderName::from_static("x-omniroute-origin");
/// `x-should-retry`: the official SDKs obey it.
pub const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");
/// Waits beyond this are not worth sleeping through inside an SDK (decisions 9.11).
pub const MAX_SDK_WAIT_SECONDS: u64 = 60;

/// An answer that the gateway writes itself.
#[derive(Debug)]
pub struct Refusal {
    /// Status, code, message and everything beside them.
    pub body: Box<ErrorBody>,
    /// Who refuses.
    pub origin: Origin,
    /// The real earliest retry, in seconds.
    pub retry_after: Option<u64>,
    /// A retry of the same request cannot help.
    pub hopeless: bool,
    /// The client may still be sending: the connection is not used again.
    pub close: bool,
    /// Further headers.
    pub headers: Vec<(HeaderName, HeaderValue)>,
}

impl Refusal {
    /// A refusal of the gateway itself.
    #[must_use]
    pub fn new(status: u16, code: &str, message: impl Into<String>) -> Self {
        Self {
            body: Box::new(ErrorBody::new(status, code, message)),
            origin: Origin::Gateway,
            retry_after: None,
            hopeless: false,
            close: false,
            headers: Vec::new(),
        }
    }

    /// A refusal by a rule about who may do what: a retry cannot help.
    #[must_use]
    pub fn policy(status: u16, code: &str, message: impl Into<String>) -> Self {
        Self { origin: Origin::Policy, hopeless: true, ..Self::new(status, code, message) }
    }

    /// Says when a retry makes sense, in seconds; at least 1.
    #[must_use]
    pub fn retry_after(mut self, seconds: u64) -> Self {
        self.retry_after = Some(seconds.max(1));
        self
    }

    /// Says that a retry of the same request cannot help.
    #[must_use]
    pub const fn hopeless(mut self) -> Self {
        self.hopeless = true;
        self
    }

    /// Closes the connection after the answer.
    #[must_use]
    pub const fn close(mut self) -> Self {
        self.close = true;
        self
    }

    /// Names the member of the request at fault.
    #[must_use]
    pub fn param(mut self, param: &str) -> Self {
        self.body = Box::new(self.body.param(param));
        self
    }

    /// Adds a header; a value that is no header value is left out.
    #[must_use]
    pub fn header(mut self, name: HeaderName, value: &str) -> Self {
        if let Ok(value) = HeaderValue::from_str(value) {
            self.headers.push((name, value));
        }
        self
    }

    /// Renders the refusal in the client's dialect.
    #[must_use]
    pub fn into_response(self, dialect: Dialect) -> Response<Body> {
        let mut response = Response::new(Body::full(self.body.render(dialect)));
        *response.status_mut() = StatusCode::from_u16(self.body.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let headers = response.headers_mut();
        headers.extend(self.headers);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(ORIGIN, HeaderValue::from_static(self.origin.as_str()));
        if let Some(seconds) = self.retry_after {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.hopeless || self.body.status() == 409 || self.retry_after.is_some_and(|s| s > MAX_SDK_WAIT_SECONDS) {
            headers.insert(SHOULD_RETRY, HeaderValue::from_static("false"));
        }
        if self.close {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

/// A new request id: `req_` and 128 random bits in hex.
#[must_use]
pub fn request_id() -> HeaderValue {
    let mut text = *b"req_00000000000000000000000000000000";
    let mut bits = rand::random::<u128>();
    for to in text.iter_mut().skip(4) {
        let digit = bits as u8 & 15;
        *to = digit + if digit < 10 { b'0' } else { b'a' - 10 };
        bits >>= 4;
    }
    HeaderValue::from_bytes(&text).unwrap_or_else(|_| HeaderValue::from_static("req_0"))
}

/// Puts the request id on an answer. The ids of provider answers stay (decisions 9.13): ours goes beside them, and into the two names
/// that the SDKs read only where the provider set none.
pub fn stamp(headers: &mut HeaderMap, id: &HeaderValue) {
    headers.insert(&REQUEST_ID, id.clone());
    if !SDK_IDS.iter().any(|name| headers.contains_key(name)) {
        for name in &SDK_IDS {
            headers.insert(name, id.clone());
        }
    }
}

/// A whole answer on the wire, for requests that no service gets to see. The connection is closed behind it.
#[must_use]
pub fn bytes(status: u16, reason: &str, code: &str, message: &str, dialect: Dialect) -> Vec<u8> {
    let body = ErrorBody::new(status, code, message).render(dialect);
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(ORIGIN, HeaderValue::from_static(Origin::Gateway.as_str()));
    // The same head would be refused again; a slow one may be faster the next time.
    if status != 408 {
        headers.insert(SHOULD_RETRY, HeaderValue::from_static("false"));
    }
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    headers.insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
    stamp(&mut headers, &request_id());
    let mut out = format!("HTTP/1.1 {status} {reason}\r\n").into_bytes();
    for (name, value) in &headers {
        out.extend_from_slice(name.as_str().as_bytes());
        out.extend_from_slice(b": ");
        out.extend_from_slice(value.as_bytes());
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(&body);
    out
}

/// Milliseconds as whole seconds for people and headers: rounded up, at least 1.
#[must_use]
pub const fn whole_seconds(ms: u64) -> u64 {
    let seconds = ms.div_ceil(1000);
    if seconds == 0 { 1 } else { seconds }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_who_why_and_when() {
        let response = Refusal::new(503, "admission_queue_full", "full").retry_after(1).into_response(Dialect::ChatCompletions);
        let header = |name: &str| response.headers().get(name).map(|v| v.to_str().unwrap().to_owned());
        assert_eq!(response.status(), 503);
        assert_eq!(header("retry-after").as_deref(), Some("1"));
        assert_eq!(header("x-omniroute-origin").as_deref(), Some("gateway"));
        assert_eq!(header("x-should-retry"), None);
    }

    #[test]
    fn a_retry_is_discouraged_where_it_cannot_help_or_takes_too_long() {
        let discouraged = |refusal: Refusal| refusal.into_response(Dialect::Messages).headers().contains_key("x-should-retry");
        assert!(discouraged(Refusal::policy(403, "model_not_allowed", "no")));
        assert!(discouraged(Refusal::new(409, "lease", "no")));
        assert!(discouraged(Refusal::new(429, "model_cooldown", "wait").retry_after(61)));
        assert!(!discouraged(Refusal::new(429, "model_cooldown", "wait").retry_after(60)));
    }

    #[test]
    fn the_ids_of_a_provider_stay() {
        let mut headers = HeaderMap::new();
        headers.insert("request-id", HeaderValue::from_static("req_vendor"));
        stamp(&mut headers, &request_id());
        assert_eq!(headers["request-id"], "req_vendor");
        assert!(!headers.contains_key("x-request-id") && headers.contains_key("x-omniroute-request-id"));
        let mut headers = HeaderMap::new();
        stamp(&mut headers, &HeaderValue::from_static("req_1"));
        assert_eq!((&headers["request-id"], &headers["x-request-id"]), (&headers[&REQUEST_ID], &headers[&REQUEST_ID]));
    }

    #[test]
    fn waits_are_rounded_up() {
        assert_eq!([0, 1, 1000, 1001].map(whole_seconds), [1, 1, 1, 2]);
    }
}
