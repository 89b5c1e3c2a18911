//! Which headers go up to a provider and which come down to a client (decisions 9.13).

use http::header::{
    ACCEPT, ACCEPT_ENCODING, ALT_SVC, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, SERVER, SET_COOKIE,
    USER_AGENT,
};

use crate::protocol::headers::HOP;

/// What a client may say to every provider.
static UP: [HeaderName; 9] = [
    CONTENT_TYPE,
    ACCEPT,
    USER_AGENT,
    HeaderName::from_static("anthropic-version"),
    HeaderName::from_static("anthropic-beta"),
    HeaderName::from_static("openai-beta"),
    HeaderName::from_static("idempotency-key"),
    HeaderName::from_static("traceparent"),
    HeaderName::from_static("tracestate"),
];

/// The version that the Messages dialect asks for when the client names none.
const ANTHROPIC_VERSION: (HeaderName, HeaderValue) = (HeaderName::from_static("anthropic-version"), HeaderValue::from_static("2023-06-01"));

/// The headers of a request to a provider, without `host` and the credential.
pub(super) fn up(client: &HeaderMap, forward: &[HeaderName], fixed: &HeaderMap, messages: bool) -> HeaderMap {
    let mut out = HeaderMap::with_capacity(12);
    for (name, value) in client {
        if UP.contains(name) || forward.contains(name) {
            out.append(name, value.clone());
        }
    }
    for (name, value) in fixed {
        out.insert(name, value.clone());
    }
    if !out.contains_key(CONTENT_TYPE) {
        out.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    }
    if !out.contains_key(USER_AGENT) {
        out.insert(USER_AGENT, HeaderValue::from_static(concat!("omniroute/", env!("CARGO_PKG_VERSION"))));
    }
    let (name, version) = ANTHROPIC_VERSION;
    if messages && !out.contains_key(&name) {
        out.insert(name, version);
    }
    out.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    out
}

/// Headers that the gateway adds to an answer: with room for them a map is not copied to grow.
const OURS: usize = 6;

/// The headers of a provider's answer that a client may see. `content-length` is left out: the body's own length says it.
#[must_use]
pub fn down(provider: &HeaderMap) -> HeaderMap {
    let named: Vec<HeaderName> = provider
        .get_all(CONNECTION)
        .iter()
        .filter_map(|v| v.to_str().ok())
        .flat_map(|v| v.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    let mut out = HeaderMap::with_capacity(provider.len() + OURS);
    for (name, value) in provider {
        if !hidden(name) && !named.contains(name) {
            out.append(name, value.clone());
        }
    }
    out
}

fn hidden(name: &HeaderName) -> bool {
    if HOP.contains(name) || [SET_COOKIE, SERVER, ALT_SVC, CONTENT_LENGTH].contains(name) {
        return true;
    }
    let name = name.as_str();
    name == "set-cookie2"
        || name.starts_with("x-omniroute-")
        || name.contains("ratelimit")
        || name.contains("rate-limit")
        || matches!(name, "openai-organization" | "openai-project" | "anthropic-organization-id")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(n, v)| (HeaderName::from_static(n), HeaderValue::from_static(v))).collect()
    }

    fn names(headers: &HeaderMap) -> Vec<&str> {
        let mut names: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn only_listed_headers_go_up() {
        let client = map(&[
            ("content-type", "application/json"),
            ("user-agent", "sdk"),
            ("authorization", "Bearer client"),
            ("x-api-key", "client"),
            ("cookie", "a=b"),
            ("x-forwarded-for", "1.2.3.4"),
            ("x-session-id", "s"),
            ("x-omniroute-session", "s"),
            ("x-stainless-os", "linux"),
            ("accept-encoding", "gzip"),
            ("connection", "keep-alive"),
            ("anthropic-beta", "x"),
            ("x-tenant", "t"),
        ]);
        let sent = up(&client, &[HeaderName::from_static("x-tenant")], &map(&[("x-client", "omniroute")]), false);
        assert_eq!(names(&sent), ["accept-encoding", "anthropic-beta", "content-type", "user-agent", "x-client", "x-tenant"]);
        assert_eq!(sent[ACCEPT_ENCODING], "identity");
    }

    #[test]
    fn a_version_is_added_for_messages_only_when_the_client_has_none() {
        assert_eq!(up(&HeaderMap::new(), &[], &HeaderMap::new(), true)["anthropic-version"], "2023-06-01");
        let client = map(&[("anthropic-version", "2099-01-01")]);
        assert_eq!(up(&client, &[], &HeaderMap::new(), true)["anthropic-version"], "2099-01-01");
        assert!(!up(&HeaderMap::new(), &[], &HeaderMap::new(), false).contains_key("anthropic-version"));
    }

    #[test]
    fn what_belongs_to_our_account_does_not_come_down() {
        let provider = map(&[
            ("content-type", "application/json"),
            ("x-request-id", "req_1"),
            ("retry-after", "3"),
            ("set-cookie", "a"),
            ("server", "cloud"),
            ("alt-svc", "h3"),
            ("openai-organization", "org"),
            ("x-ratelimit-remaining-requests", "1"),
            ("anthropic-ratelimit-tokens-reset", "x"),
            ("connection", "close, x-internal"),
            ("x-internal", "1"),
            ("transfer-encoding", "chunked"),
            ("x-omniroute-origin", "forged"),
        ]);
        assert_eq!(names(&down(&provider)), ["content-type", "retry-after", "x-request-id"]);
    }
}
