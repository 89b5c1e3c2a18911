//! One call to a token endpoint.

use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, HOST, USER_AGENT};
use http::{Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde_json::Value;
use tokio_util::task::AbortOnDropHandle;

use crate::compile::oauth::Grant;
use crate::dial::tls::TlsConfigs;
use crate::dial::{Guard, Origin, Proxy, Way, connect};
use crate::snapshot::Secret;

/// Longest time for TCP, proxy and TLS.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest time for the whole call.
pub(super) const TIMEOUT: Duration = Duration::from_secs(30);
/// Longest answer that is read.
const MAX_BYTES: usize = 64 * 1024;
/// Longest lifetime that is believed.
const MAX_LIFETIME_S: f64 = 365.0 * 86_400.0;

/// What the endpoint issued.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Renewed {
    /// The access token.
    pub access: Secret,
    /// The refresh token, when it was rotated.
    pub refresh: Option<Secret>,
    /// Lifetime of the access token, when it was told.
    pub lifetime_ms: Option<i64>,
}

/// Why the endpoint issued nothing. Messages carry neither tokens nor what the endpoint wrote beside its error code.
#[derive(thiserror::Error, Clone, PartialEq, Eq, Debug)]
pub enum RefreshError {
    /// It refused, and would refuse again.
    #[error("the token endpoint {host} refused with status {status} and `{code}`")]
    Refused {
        /// Where it was asked.
        host: String,
        /// HTTP status.
        status: u16,
        /// Error code of RFC 6749.
        code: String,
    },
    /// There is no verified way to it; that may pass. Whoever writes a Connection reads this, and must not learn from it which ports of our network
    /// are open: what happened is for the log alone.
    #[error("the token endpoint {host} could not be reached over verified TLS")]
    Unreachable {
        /// Where it was to be asked.
        host: String,
        /// What happened.
        detail: String,
    },
    /// It did not answer as it should; that may pass.
    #[error("asking the token endpoint: {0}")]
    Failed(String),
    /// It was asked, and nobody knows whether it heard; that may pass.
    #[error("asking the token endpoint: {0}")]
    Unanswered(String),
}

impl RefreshError {
    /// What only the log of this process may say.
    #[must_use]
    pub fn detail(&self) -> Option<&str> {
        match self {
            Self::Unreachable { detail, .. } => Some(detail),
            Self::Refused { .. } | Self::Failed(_) | Self::Unanswered(_) => None,
        }
    }
}

/// The codes of RFC 6749, section 5.2, after which the same request fails again.
const FINAL: [&str; 6] =
    ["invalid_grant", "invalid_client", "unauthorized_client", "unsupported_grant_type", "invalid_scope", "invalid_request"];

/// Asks for new tokens.
///
/// # Errors
/// See [`RefreshError`].
pub async fn refresh(grant: &Grant, tls: &TlsConfigs) -> Result<Renewed, RefreshError> {
    match tokio::time::timeout(TIMEOUT, exchange(grant, tls)).await {
        Ok(result) => result,
        Err(_) => Err(RefreshError::Unanswered(format!("no answer within {} s", TIMEOUT.as_secs()))),
    }
}

async fn exchange(grant: &Grant, tls: &TlsConfigs) -> Result<Renewed, RefreshError> {
    let (failed, unanswered) = (RefreshError::Failed, RefreshError::Unanswered);
    let url: Uri = grant.token_url.parse().map_err(|e| failed(format!("`tokenURL` is not a URL: {e}")))?;
    if url.scheme_str() != Some("https") {
        return Err(failed("`tokenURL` must start with https://, because a refresh token is as good as the account".to_owned()));
    }
    let proxy = grant.proxy_url.as_ref().map(|url| Proxy::parse(url.expose())).transpose();
    let proxy = proxy.map_err(|problem| failed(format!("`proxyURL` {problem}")))?;
    // Also for a provider of class Local: the call may come from the operator, whose place in the network its author does not have.
    let guard = Guard::Everything;
    let way = Way { tls, ca_bundle: grant.ca_bundle.as_deref(), proxy: proxy.as_ref(), guard, connect_timeout: CONNECT_TIMEOUT };
    let origin = Origin::new(&url, &way).map_err(|e| failed(format!("`tokenURL` {e}")))?;
    let connected = connect(&origin).await;
    let socket = connected.map_err(|error| RefreshError::Unreachable { host: origin.to_string(), detail: error.to_string() })?;
    let handshake = http1::handshake(TokioIo::new(socket)).await;
    let (mut sender, driver) = handshake.map_err(|e| failed(format!("starting HTTP with {origin}: {e}")))?;
    let _driver = AbortOnDropHandle::new(tokio::spawn(driver));
    let request = Request::builder()
        .method(Method::POST)
        .uri(url.path_and_query().map_or("/", |path| path.as_str()))
        .header(HOST, url.authority().map_or("", |authority| authority.as_str()))
        .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
        .header(ACCEPT, "application/json")
        .header(USER_AGENT, concat!("omniroute/", env!("CARGO_PKG_VERSION")))
        .body(Full::new(Bytes::from(form(grant))))
        .map_err(|e| failed(format!("building the request: {e}")))?;
    let response = sender.send_request(request).await.map_err(|e| unanswered(format!("{origin} did not answer: {e}")))?;
    let (head, body) = response.into_parts();
    let body = Limited::new(body, MAX_BYTES).collect().await.map_err(|e| unanswered(format!("reading the answer of {origin}: {e}")))?;
    answer(&origin.host, head.status, &body.to_bytes())
}

/// The form of RFC 6749, section 6; a confidential client sends its secret in it.
fn form(grant: &Grant) -> String {
    let mut fields = vec![("grant_type", "refresh_token"), ("refresh_token", grant.tokens.refresh.expose())];
    fields.extend(grant.client_id.as_deref().map(|id| ("client_id", id)));
    fields.extend(grant.client_secret.as_ref().map(|secret| ("client_secret", secret.expose())));
    fields.iter().map(|(name, value)| format!("{name}={}", encode(value))).collect::<Vec<_>>().join("&")
}

fn encode(value: &str) -> String {
    value.bytes().fold(String::with_capacity(value.len()), |mut out, byte| {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(char::from(byte)),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
        out
    })
}

#[derive(Deserialize)]
struct Issued {
    access_token: Secret,
    #[serde(default)]
    refresh_token: Option<Secret>,
    /// A number by the standard, a string with some vendors.
    #[serde(default)]
    expires_in: Value,
}

fn answer(host: &str, status: StatusCode, body: &[u8]) -> Result<Renewed, RefreshError> {
    if !status.is_success() {
        let code = serde_json::from_slice::<Value>(body).ok().and_then(|v| Some(v.get("error")?.as_str()?.to_owned()));
        let known = FINAL.iter().find(|known| code.as_deref() == Some(**known));
        return Err(match known {
            Some(code) if matches!(status.as_u16(), 400 | 401) => {
                RefreshError::Refused { host: host.to_owned(), status: status.as_u16(), code: (*code).to_owned() }
            }
            _ => RefreshError::Failed(format!("{host} answered with status {}", status.as_u16())),
        });
    }
    let issued: Issued =
        serde_json::from_slice(body).map_err(|_| RefreshError::Failed(format!("{host} answered without an access token")))?;
    let usable = |token: &Secret| !token.expose().is_empty() && token.expose().bytes().all(|b| (0x21..=0x7e).contains(&b));
    if !usable(&issued.access_token) {
        return Err(RefreshError::Failed(format!("{host} answered with an access token that no HTTP header can carry")));
    }
    let seconds = issued.expires_in.as_f64().or_else(|| issued.expires_in.as_str()?.trim().parse().ok());
    let lifetime = seconds.filter(|s| *s >= 1.0).map(|s| Duration::from_secs_f64(s.min(MAX_LIFETIME_S)));
    Ok(Renewed {
        access: issued.access_token,
        refresh: issued.refresh_token.filter(usable),
        lifetime_ms: lifetime.and_then(|l| i64::try_from(l.as_millis()).ok()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compile::oauth::Tokens;

    #[test]
    fn the_form_is_that_of_the_standard() {
        let mut grant = Grant { tokens: Tokens { refresh: Secret::new("r+t/1 ü"), ..Tokens::default() }, ..Grant::default() };
        assert_eq!(form(&grant), "grant_type=refresh_token&refresh_token=r%2Bt%2F1%20%C3%BC");
        grant.client_id = Some("app_1".into());
        grant.client_secret = Some(Secret::new("s&t"));
        assert!(form(&grant).ends_with("&client_id=app_1&client_secret=s%26t"));
    }

    #[test]
    fn every_answer_is_tokens_a_refusal_or_something_that_may_pass() {
        let of = |status: u16, body: &str| answer("auth.example", StatusCode::from_u16(status).unwrap(), body.as_bytes());
        let good = of(200, r#"{"access_token":"at2","refresh_token":"rt2","expires_in":3600,"token_type":"Bearer"}"#).unwrap();
        assert_eq!((good.access.expose(), good.refresh.unwrap().expose(), good.lifetime_ms), ("at2", "rt2", Some(3_600_000)));
        let plain = of(200, r#"{"access_token":"at2","expires_in":"90"}"#).unwrap();
        assert_eq!((plain.refresh, plain.lifetime_ms), (None, Some(90_000)));
        assert_eq!(of(200, r#"{"access_token":"at2","expires_in":-1,"refresh_token":""}"#).unwrap().lifetime_ms, None);
        for (status, body) in
            [(400, r#"{"error":"invalid_grant","error_description":"rt1 revoked"}"#), (401, r#"{"error":"invalid_client"}"#)]
        {
            let error = of(status, body).unwrap_err();
            assert!(matches!(error, RefreshError::Refused { .. }) && !error.to_string().contains("rt1"), "{error}");
        }
        for (status, body) in [
            (500, r#"{"error":"invalid_grant"}"#),
            (429, "slow down"),
            (403, "<html>"),
            (400, r#"{"error":"temporarily_unavailable"}"#),
            (302, ""),
            (200, "{}"),
            (200, r#"{"access_token":""}"#),
            (200, r#"{"access_token":"a b"}"#),
        ] {
            assert!(matches!(of(status, body), Err(RefreshError::Failed(_))), "{status} {body}");
        }
    }
}
