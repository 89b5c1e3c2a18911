//! Where the requests of one connection go, worked out once when a snapshot is loaded.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::Uri;
use http::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue, PROXY_AUTHORIZATION};
use sha2::{Digest, Sha256};

use super::headers::constant;
use crate::classify::AuthClass;
use crate::dial::tls::{TlsConfigs, TlsError};
use crate::dial::{Guard, Origin, OriginError, Proxy, Way};
use crate::protocol::Endpoint;
use crate::protocol::headers::{never_forwarded, set_by_sender};
use crate::snapshot::{Connection, Provider, UpstreamAuth, hex};

/// Why a connection cannot be called. Messages name the field and never a secret.
#[derive(thiserror::Error, Debug)]
pub enum UpstreamConfigError {
    /// The base URL is none.
    #[error("Provider/{provider}: baseURL `{url}` {problem}")]
    BaseUrl {
        /// Provider name.
        provider: String,
        /// The URL.
        url: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The Secret may not be sent there (decisions 10.19).
    #[error(
        "Connection/{connection}: its Secret allows the hosts {allowed:?} only, but Provider/{provider} sends it to `{host}`; correct baseURL or the annotation omniroute.dev/allowed-hosts"
    )]
    HostNotAllowed {
        /// Connection name.
        connection: String,
        /// Provider name.
        provider: String,
        /// Where it would go.
        host: String,
        /// Where it may go.
        allowed: Vec<String>,
    },
    /// No credential, or one that cannot be a header.
    #[error("Connection/{connection}: the credential {problem}")]
    Credential {
        /// Connection name.
        connection: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// The proxy URL cannot be used.
    #[error("Connection/{connection}: proxyURL {problem}")]
    Proxy {
        /// Connection name.
        connection: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// A header name or value of the provider is none.
    #[error("Provider/{provider}: header `{header}` is no HTTP header, or says how a request is sent, which the gateway decides")]
    Header {
        /// Provider name.
        provider: String,
        /// Header name.
        header: String,
    },
    /// TLS.
    #[error("Provider/{provider}: tls.caBundle: {source}")]
    Tls {
        /// Provider name.
        provider: String,
        /// What is wrong with it.
        source: TlsError,
    },
}

impl UpstreamConfigError {
    /// The field of the connection that leads to what is wrong.
    #[must_use]
    pub const fn connection_field(&self) -> &'static str {
        match self {
            Self::Proxy { .. } => "spec.proxyURL",
            Self::Credential { .. } => "spec.credentials",
            Self::BaseUrl { .. } | Self::HostNotAllowed { .. } | Self::Header { .. } | Self::Tls { .. } => "spec.providerRef.name",
        }
    }
}

/// One endpoint of a connection, ready to be called.
pub(super) struct Prepared {
    /// Equal for endpoints that may share connections.
    pub key: Arc<str>,
    pub origin: Arc<Origin>,
    pub uri: Uri,
    /// What every request says ([`constant`]); the credential is marked as sensitive.
    pub headers: HeaderMap,
}

/// Everything that calls of one connection have in common.
pub struct Upstream {
    prepared: [Option<Prepared>; Endpoint::ALL.len()],
    pub(super) forward: Vec<HeaderName>,
}

impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.prepared.iter().flatten().map(|p| &p.uri)).finish()
    }
}

impl Upstream {
    /// Works out URLs, credentials, headers and trust of one connection.
    ///
    /// # Errors
    /// The field that makes calls impossible.
    pub fn new(provider: &Provider, connection: &Connection, tls: &TlsConfigs) -> Result<Self, UpstreamConfigError> {
        let proxy = proxy(connection)?;
        let header_error = |header: &str| UpstreamConfigError::Header { provider: provider.name.clone(), header: header.to_owned() };
        let mut fixed = HeaderMap::new();
        for (name, value) in &provider.headers {
            let parsed = (name.parse::<HeaderName>(), value.parse::<HeaderValue>());
            let (Ok(name), Ok(value)) = parsed else { return Err(header_error(name)) };
            fixed.insert(name, value);
        }
        let mut prepared = [const { None }; Endpoint::ALL.len()];
        for (slot, endpoint) in prepared.iter_mut().zip(Endpoint::ALL) {
            if provider.dialects.contains(&endpoint.dialect()) {
                *slot = Some(prepare(provider, connection, tls, proxy.as_ref(), &fixed, endpoint)?);
            }
        }
        let mut forward = Vec::new();
        for name in &provider.forward_headers {
            let parsed = name.parse::<HeaderName>().map_err(|_| header_error(name))?;
            if !never_forwarded(&parsed) {
                forward.push(parsed);
            }
        }
        Ok(Self { prepared, forward })
    }

    pub(super) fn endpoint(&self, endpoint: Endpoint) -> Option<&Prepared> {
        self.prepared.get(endpoint as usize).and_then(Option::as_ref)
    }
}

fn prepare(
    provider: &Provider,
    connection: &Connection,
    tls: &TlsConfigs,
    proxy: Option<&Proxy>,
    fixed: &HeaderMap,
    endpoint: Endpoint,
) -> Result<Prepared, UpstreamConfigError> {
    let dialect = endpoint.dialect();
    let base = provider.base_urls.get(&dialect).unwrap_or(&provider.base_url).trim_end_matches('/');
    let bad =
        |problem: &str| UpstreamConfigError::BaseUrl { provider: provider.name.clone(), url: base.to_owned(), problem: problem.to_owned() };
    let query = provider.query.as_deref().map(|q| format!("?{q}")).unwrap_or_default();
    let url: Uri =
        format!("{base}{}{query}", endpoint.path()).parse().map_err(|e: http::uri::InvalidUri| bad(&format!("is not a URL: {e}")))?;
    let way = Way {
        tls,
        ca_bundle: provider.ca_bundle.as_deref(),
        proxy,
        guard: if provider.traits.auth_class == AuthClass::Local { Guard::Off } else { Guard::Server },
        connect_timeout: Duration::from_millis(match provider.timeouts.connect_ms {
            0 => 600_000,
            ms => ms,
        }),
    };
    let origin = Origin::new(&url, &way).map_err(|error| match error {
        OriginError::Url(problem) => bad(problem),
        OriginError::Tls(source) => UpstreamConfigError::Tls { provider: provider.name.clone(), source },
    })?;
    if !connection.allowed_hosts.is_empty() && !connection.allowed_hosts.iter().any(|h| h.eq_ignore_ascii_case(&origin.host)) {
        return Err(UpstreamConfigError::HostNotAllowed {
            connection: connection.name.clone(),
            provider: provider.name.clone(),
            host: origin.host,
            allowed: connection.allowed_hosts.clone(),
        });
    }
    let authority = url.authority().map_or("", |authority| authority.as_str());
    let secure = origin.tls.is_some();
    let key = pool_key(provider, authority, secure, proxy);
    let host = HeaderValue::from_str(authority).map_err(|_| bad("has a host that is no header value"))?;
    // Towards an HTTP proxy the whole URL is the target, otherwise the path alone.
    let uri = match url.path_and_query() {
        Some(path) if proxy.is_none() || secure => Uri::from(path.clone()),
        _ => url,
    };
    let to_proxy = proxy.filter(|_| !secure).and_then(|p| p.authorization.clone()).map(|value| (PROXY_AUTHORIZATION, value));
    let headers = constant(fixed, host, credential(provider, connection, endpoint)?.into_iter().chain(to_proxy));
    Ok(Prepared { key, origin: Arc::new(origin), uri, headers })
}

/// Origins with the same key share connections: everything that distinguishes them is part of it.
fn pool_key(provider: &Provider, authority: &str, secure: bool, proxy: Option<&Proxy>) -> Arc<str> {
    let mut digest = Sha256::new();
    let guard = if provider.traits.auth_class == AuthClass::Local { "local" } else { "" };
    let proxy_part = proxy.map(|p| (p.host.as_str(), p.port.to_string(), p.authorization.as_ref().map_or(&[][..], HeaderValue::as_bytes)));
    let (proxy_host, proxy_port, proxy_auth) = proxy_part.unwrap_or_default();
    let parts: [&[u8]; 6] = [
        guard.as_bytes(),
        provider.ca_bundle.as_deref().unwrap_or_default().as_bytes(),
        proxy_host.as_bytes(),
        proxy_port.as_bytes(),
        proxy_auth,
        if secure { b"s" } else { b"" },
    ];
    for part in parts {
        digest.update((part.len() as u64).to_be_bytes());
        digest.update(part);
    }
    let way = hex(&digest.finalize());
    format!("{authority} {}", way.get(..16).unwrap_or_default()).into()
}

fn credential(
    provider: &Provider,
    connection: &Connection,
    endpoint: Endpoint,
) -> Result<Option<(HeaderName, HeaderValue)>, UpstreamConfigError> {
    let bad = |problem| UpstreamConfigError::Credential { connection: connection.name.clone(), problem };
    let (name, prefix) = match provider.auth_by_dialect.get(&endpoint.dialect()).unwrap_or(&provider.auth) {
        UpstreamAuth::None => return Ok(None),
        UpstreamAuth::Bearer => (AUTHORIZATION, "Bearer "),
        UpstreamAuth::Header(name) => {
            let parsed = name.parse().ok().filter(|name| !set_by_sender(name));
            (parsed.ok_or_else(|| UpstreamConfigError::Header { provider: provider.name.clone(), header: name.clone() })?, "")
        }
    };
    let Some(secret) = &connection.credential else {
        // `credentials: {none: {}}`: nothing is sent, whatever the provider's default is.
        return Ok(None);
    };
    let secret = secret.expose().trim();
    if secret.is_empty() {
        return Err(bad("is empty"));
    }
    let mut value = HeaderValue::from_str(&format!("{prefix}{secret}")).map_err(|_| bad("has characters that a header cannot carry"))?;
    value.set_sensitive(true);
    Ok(Some((name, value)))
}

fn proxy(connection: &Connection) -> Result<Option<Proxy>, UpstreamConfigError> {
    let parsed = connection.proxy_url.as_ref().map(|url| Proxy::parse(url.expose())).transpose();
    parsed.map_err(|problem| UpstreamConfigError::Proxy { connection: connection.name.clone(), problem })
}

#[cfg(test)]
#[path = "route_tests.rs"]
mod tests;
