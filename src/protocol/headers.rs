//! Headers that are the business of one connection, or of the gateway, and never cross it.

use http::header::{
    ACCEPT_ENCODING, AUTHORIZATION, CONNECTION, CONTENT_LENGTH, COOKIE, HOST, HeaderName, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE,
    TRAILER, TRANSFER_ENCODING, UPGRADE,
};

/// Hop-by-hop headers: they belong to one connection.
pub static HOP: [HeaderName; 9] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// Session headers of interface.md 3: they are ours and reach no provider.
const SESSION: [&str; 3] = ["x-codex-session-id", "x-session-id", "x_session_id"];

/// True for a header that says how one request is sent, and is therefore said by whoever sends it: `Provider.spec.headers` cannot set it.
#[must_use]
pub fn set_by_sender(name: &HeaderName) -> bool {
    HOP.contains(name) || [HOST, CONTENT_LENGTH, ACCEPT_ENCODING].contains(name)
}

/// True for a header that `Provider.spec.forwardHeaders` cannot open: credentials, framing, sessions and everything of ours.
#[must_use]
pub fn never_forwarded(name: &HeaderName) -> bool {
    set_by_sender(name)
        || [AUTHORIZATION, COOKIE].contains(name)
        || matches!(name.as_str(), "x-api-key" | "api-key" | "forwarded")
        || name.as_str().starts_with("x-omniroute-")
        || name.as_str().starts_with("x-forwarded-")
        || SESSION.contains(&name.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_and_our_own_headers_cannot_be_forwarded() {
        for name in
            ["authorization", "x-api-key", "cookie", "host", "x-omniroute-fallback", "x-session-id", "transfer-encoding", "x-forwarded-for"]
        {
            assert!(never_forwarded(&HeaderName::from_static(name)), "{name}");
        }
        assert!(!never_forwarded(&HeaderName::from_static("x-tenant")));
    }
}
