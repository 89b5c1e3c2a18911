//! Which headers go up to a provider and which come down to a client (decisions 9.13).

use http::header::{
    ACCEPT, ACCEPT_ENCODING, ALT_SVC, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue, SERVER,
    SET_COOKIE, USER_AGENT,
};

use crate::protocol::headers::{HOP, set_by_sender};

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

/// What every request to an endpoint says, whatever the client says. The credentials prevail over the provider's headers.
pub(super) fn constant(
    fixed: &HeaderMap,
    host: HeaderValue,
    credentials: impl IntoIterator<Item = (HeaderName, HeaderValue)>,
) -> HeaderMap {
    let mut out = HeaderMap::with_capacity(fixed.len() + 4);
    out.extend(fixed.iter().filter(|(name, _)| !set_by_sender(name)).map(|(name, value)| (name.clone(), value.clone())));
    out.insert(HOST, host);
    out.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    for (name, value) in credentials {
        out.insert(name, value);
    }
    out
}

/// The headers of one request to a provider.
pub(super) struct Up<'a> {
    /// Those of the client: only the listed ones go up.
    pub client: &'a HeaderMap,
    /// Listed by the provider.
    pub forward: &'a [HeaderName],
    /// Those that [`constant`] made.
    pub constant: &'a HeaderMap,
    /// One of the gateway's own, which prevails.
    pub extra: Option<(&'static str, &'static str)>,
    /// The endpoint speaks the Messages dialect.
    pub messages: bool,
}

impl Up<'_> {
    /// Writes them, a line each.
    pub fn write(&self, out: &mut Vec<u8>) {
        let (version, default_version) = ANTHROPIC_VERSION;
        let (mut typed, mut named, mut versioned) = (false, false, !self.messages);
        let mut say = |name: &HeaderName, value: &HeaderValue| {
            typed |= name == CONTENT_TYPE;
            named |= name == USER_AGENT;
            versioned |= *name == version;
            line(out, name.as_str(), value.as_bytes());
        };
        let taken = |name: &HeaderName| self.extra.is_some_and(|(extra, _)| name == extra);
        for (name, value) in self.constant.iter().filter(|(name, _)| !taken(name)) {
            say(name, value);
        }
        for (name, value) in self.client {
            if (UP.contains(name) || self.forward.contains(name)) && !self.constant.contains_key(name) && !taken(name) {
                say(name, value);
            }
        }
        if let Some((name, value)) = self.extra {
            line(out, name, value.as_bytes());
        }
        let missing = |name: &HeaderName, said: bool| !said && !taken(name);
        if missing(&CONTENT_TYPE, typed) {
            line(out, CONTENT_TYPE.as_str(), b"application/json");
        }
        if missing(&USER_AGENT, named) {
            line(out, USER_AGENT.as_str(), concat!("omniroute/", env!("CARGO_PKG_VERSION")).as_bytes());
        }
        if missing(&version, versioned) {
            line(out, version.as_str(), default_version.as_bytes());
        }
    }
}

fn line(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    for part in [name.as_bytes(), b": ", value, b"\r\n"] {
        out.extend_from_slice(part);
    }
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

    /// What the provider hears.
    fn up(
        client: &HeaderMap,
        forward: &[HeaderName],
        fixed: &[(&'static str, &'static str)],
        extra: Option<(&'static str, &'static str)>,
        messages: bool,
    ) -> HeaderMap {
        let ours = (http::header::AUTHORIZATION, HeaderValue::from_static("Bearer ours"));
        let constant = constant(&map(fixed), HeaderValue::from_static("there"), [ours]);
        let mut text = Vec::new();
        Up { client, forward, constant: &constant, extra, messages }.write(&mut text);
        let text = String::from_utf8(text).expect("text");
        let lines = text.strip_suffix("\r\n").expect("whole lines").split("\r\n").map(|l| l.split_once(": ").expect("a header"));
        lines.map(|(n, v)| (n.parse::<HeaderName>().expect("name"), v.parse::<HeaderValue>().expect("value"))).collect()
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
        let sent = up(&client, &[HeaderName::from_static("x-tenant")], &[("x-client", "omniroute")], None, false);
        assert_eq!(
            names(&sent),
            ["accept-encoding", "anthropic-beta", "authorization", "content-type", "host", "user-agent", "x-client", "x-tenant"]
        );
        let said = |name| sent[name].to_str().expect("text");
        assert_eq!([said("accept-encoding"), said("authorization"), said("host")], ["identity", "Bearer ours", "there"]);
    }

    #[test]
    fn a_version_is_added_for_messages_only_when_the_client_has_none() {
        let version = |client: &HeaderMap, messages| up(client, &[], &[], None, messages).remove("anthropic-version");
        assert_eq!(version(&HeaderMap::new(), true).expect("added"), "2023-06-01");
        assert_eq!(version(&map(&[("anthropic-version", "2099-01-01")]), true).expect("kept"), "2099-01-01");
        assert_eq!(version(&HeaderMap::new(), false), None);
    }

    #[test]
    fn who_prevails_says_a_header_once() {
        let client =
            map(&[("user-agent", "client"), ("content-type", "text/x"), ("anthropic-beta", "client"), ("accept", "a"), ("accept", "b")]);
        let fixed = [
            ("user-agent", "provider"),
            ("anthropic-beta", "provider"),
            ("authorization", "Bearer theirs"),
            ("host", "elsewhere"),
            ("content-length", "7"),
            ("transfer-encoding", "chunked"),
            ("connection", "close"),
        ];
        let sent = up(&client, &[], &fixed, Some(("anthropic-beta", "extra")), true);
        let mut lines: Vec<String> = sent.iter().map(|(n, v)| format!("{n}: {}", v.to_str().expect("text"))).collect();
        lines.sort_unstable();
        assert_eq!(
            lines,
            [
                "accept-encoding: identity",
                "accept: a",
                "accept: b",
                "anthropic-beta: extra",
                "anthropic-version: 2023-06-01",
                "authorization: Bearer ours",
                "content-type: text/x",
                "host: there",
                "user-agent: provider"
            ]
        );
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
