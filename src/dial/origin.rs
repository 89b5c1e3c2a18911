//! Where a connection leads, and how to get there.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use http::Uri;
use http::header::HeaderValue;
use http::uri::Scheme;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;

use super::guard::Guard;
use super::tls::{TlsConfigs, TlsError};

/// An HTTP proxy.
#[derive(Clone)]
pub struct Proxy {
    /// Host name or address.
    pub host: String,
    /// Port.
    pub port: u16,
    /// Its credential, marked as sensitive.
    pub authorization: Option<HeaderValue>,
}

impl Proxy {
    /// Reads `http://user:password@host:port`.
    ///
    /// # Errors
    /// What is wrong with it, without the URL, which may carry a password.
    pub fn parse(url: &str) -> Result<Self, &'static str> {
        let uri: Uri = url.trim().parse().map_err(|_| "is not a URL")?;
        if uri.scheme() != Some(&Scheme::HTTP) {
            return Err("must start with http://; other proxies are not supported");
        }
        let authority = uri.authority().ok_or("has no host")?;
        let authorization = match authority.as_str().rsplit_once('@') {
            Some((user, _)) => {
                let encoded = base64::engine::general_purpose::STANDARD.encode(percent_decode(user));
                let mut value = HeaderValue::from_str(&format!("Basic {encoded}")).map_err(|_| "has an unusable user")?;
                value.set_sensitive(true);
                Some(value)
            }
            None => None,
        };
        Ok(Self { host: bare(authority.host()), port: authority.port_u16().unwrap_or(80), authorization })
    }
}

/// The way to a server.
#[derive(Clone, Copy)]
pub struct Way<'a> {
    /// TLS configurations in use.
    pub tls: &'a TlsConfigs,
    /// Certificates to trust beside the compiled-in roots, PEM.
    pub ca_bundle: Option<&'a str>,
    /// The proxy in between.
    pub proxy: Option<&'a Proxy>,
    /// Which addresses are refused.
    pub guard: Guard,
    /// Longest time for TCP, proxy and TLS together.
    pub connect_timeout: Duration,
}

/// Why a URL leads nowhere.
#[derive(thiserror::Error, Debug)]
pub enum OriginError {
    /// The URL cannot be used.
    #[error("{0}")]
    Url(&'static str),
    /// TLS cannot be set up.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// One server: scheme, host, port, the way to it and the trust in it.
pub struct Origin {
    /// Lower case, without brackets.
    pub host: String,
    /// Port.
    pub port: u16,
    /// TLS, and the name to verify.
    pub tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
    /// The proxy in between.
    pub proxy: Option<Proxy>,
    /// Which addresses are refused.
    pub guard: Guard,
    /// Longest time for TCP, proxy and TLS together.
    pub connect_timeout: Duration,
}

/// Shown in messages: the host and port, nothing else.
impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

impl Origin {
    /// The server of a URL.
    ///
    /// # Errors
    /// What is wrong with the URL or the CA bundle.
    pub fn new(url: &Uri, way: &Way<'_>) -> Result<Self, OriginError> {
        let secure = match url.scheme() {
            Some(s) if *s == Scheme::HTTPS => true,
            Some(s) if *s == Scheme::HTTP => false,
            _ => return Err(OriginError::Url("must start with https:// or http://")),
        };
        let authority = url.authority().ok_or(OriginError::Url("has no host"))?;
        if authority.as_str().contains('@') {
            return Err(OriginError::Url("must not carry a user or password; put the credential into a Secret"));
        }
        let host = bare(authority.host()).to_ascii_lowercase();
        let tls = if secure {
            let name = ServerName::try_from(host.clone()).map_err(|_| OriginError::Url("has a host that TLS cannot verify"))?;
            Some((way.tls.get(way.ca_bundle)?, name))
        } else {
            None
        };
        Ok(Self {
            port: authority.port_u16().unwrap_or(if secure { 443 } else { 80 }),
            host,
            tls,
            proxy: way.proxy.cloned(),
            guard: way.guard,
            connect_timeout: way.connect_timeout,
        })
    }
}

/// A host without the brackets of IPv6.
fn bare(host: &str) -> String {
    host.trim_start_matches('[').trim_end_matches(']').to_owned()
}

/// Decodes `%xx` in the user part of a URL.
fn percent_decode(text: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let decoded = match tail {
            [a, b, ..] if *first == b'%' => std::str::from_utf8(&[*a, *b]).ok().and_then(|h| u8::from_str_radix(h, 16).ok()),
            _ => None,
        };
        out.push(decoded.unwrap_or(*first));
        rest = if decoded.is_some() { tail.get(2..).unwrap_or_default() } else { tail };
    }
    out
}
