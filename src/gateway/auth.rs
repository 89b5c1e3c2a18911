//! Who may call: client keys by SHA-256 digest, their scopes and what they may ask for.

use std::collections::HashMap;
use std::sync::Arc;

use http::{HeaderMap, header};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::routing::KeyPolicy;
use crate::snapshot::{ApiKey, AuthMode, KeyScope, Snapshot};

/// Why a caller was turned away.
#[derive(thiserror::Error, Clone, Copy, PartialEq, Eq, Debug)]
pub enum AuthError {
    /// No key in the request.
    #[error("this gateway needs an API key: send it as `Authorization: Bearer KEY` or in `x-api-key`")]
    Missing,
    /// A key that is not known.
    #[error("the API key is not known to this gateway")]
    Unknown,
    /// A known key without the scope that the endpoint needs.
    #[error("the API key lacks the scope that this endpoint needs; the annotation `omniroute.dev/scopes` of its Secret grants scopes")]
    Scope,
}

impl AuthError {
    /// The HTTP status of the answer.
    #[must_use]
    pub const fn status(self) -> u16 {
        match self {
            Self::Missing | Self::Unknown => 401,
            Self::Scope => 403,
        }
    }

    /// The machine-readable code of the answer.
    #[must_use]
    pub const fn code(self) -> &'static str {
        match self {
            Self::Missing => "missing_api_key",
            Self::Unknown => "invalid_api_key",
            Self::Scope => "insufficient_scope",
        }
    }
}

/// A caller that was let in.
#[derive(Clone, Copy, Debug)]
pub struct Caller<'a> {
    /// The name that scopes sessions and pins; empty for anonymous callers.
    pub name: &'a str,
    /// What may be asked for and over which connections.
    pub policy: &'a Arc<KeyPolicy>,
    /// The key; `None` for anonymous callers.
    pub key: Option<&'a ApiKey>,
}

#[derive(Debug)]
struct Known {
    digest: [u8; 32],
    key: ApiKey,
    policy: Arc<KeyPolicy>,
}

/// The client keys of a snapshot, looked up by digest.
#[derive(Debug, Default)]
pub struct KeyRing {
    open: bool,
    anybody: Arc<KeyPolicy>,
    by_prefix: HashMap<[u8; 8], Vec<Known>>,
}

impl KeyRing {
    /// Indexes the keys of a snapshot. A digest that is no SHA-256 in hex is left out: no key can match it.
    #[must_use]
    pub fn new(snapshot: &Snapshot) -> Self {
        let mut by_prefix: HashMap<[u8; 8], Vec<Known>> = HashMap::new();
        for key in &snapshot.api_keys {
            if let Some(digest) = unhex(&key.sha256) {
                let known = Known { digest, key: key.clone(), policy: Arc::new(KeyPolicy::new(key, snapshot)) };
                by_prefix.entry(prefix(&digest)).or_default().push(known);
            }
        }
        Self { open: snapshot.settings.auth == AuthMode::None, anybody: Arc::default(), by_prefix }
    }

    /// True when no key is needed for inference.
    #[must_use]
    pub const fn open(&self) -> bool {
        self.open
    }

    /// Finds the caller of a request. The digests are compared in constant time; the map sees only digests, from which nothing about a
    /// key can be learned by timing.
    ///
    /// # Errors
    /// No key, an unknown key, or one without `scope`.
    pub fn authenticate(&self, headers: &HeaderMap, scope: KeyScope) -> Result<Caller<'_>, AuthError> {
        let anonymous = Caller { name: "", policy: &self.anybody, key: None };
        let Some(presented) = presented_key(headers) else {
            return if self.open { Ok(anonymous) } else { Err(AuthError::Missing) };
        };
        match self.find(presented) {
            Some(known) if known.key.scopes.contains(&scope) => {
                Ok(Caller { name: &known.key.name, policy: &known.policy, key: Some(&known.key) })
            }
            _ if self.open => Ok(anonymous),
            Some(_) => Err(AuthError::Scope),
            None => Err(AuthError::Unknown),
        }
    }

    /// True when the request's key has one of these scopes, whatever the settings say about inference.
    #[must_use]
    pub fn has_scope(&self, headers: &HeaderMap, scopes: &[KeyScope]) -> bool {
        let known = presented_key(headers).and_then(|presented| self.find(presented));
        known.is_some_and(|known| known.key.scopes.iter().any(|scope| scopes.contains(scope)))
    }

    fn find(&self, presented: &[u8]) -> Option<&Known> {
        let digest: [u8; 32] = Sha256::digest(presented).into();
        self.by_prefix.get(&prefix(&digest))?.iter().find(|known| bool::from(known.digest.ct_eq(&digest)))
    }
}

/// The key that a request carries: `Authorization: Bearer`, else `x-api-key`.
#[must_use]
pub fn presented_key(headers: &HeaderMap) -> Option<&[u8]> {
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| {
        let (scheme, key) = value.as_bytes().split_at_checked(7)?;
        scheme.eq_ignore_ascii_case(b"bearer ").then(|| key.trim_ascii())
    });
    bearer.or_else(|| headers.get("x-api-key").map(|value| value.as_bytes().trim_ascii())).filter(|key| !key.is_empty())
}

fn prefix(digest: &[u8; 32]) -> [u8; 8] {
    let mut out = [0; 8];
    out.iter_mut().zip(digest).for_each(|(to, from)| *to = *from);
    out
}

fn unhex(text: &str) -> Option<[u8; 32]> {
    let mut out = [0; 32];
    if text.len() != 64 {
        return None;
    }
    for (byte, pair) in out.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::hex;

    fn key(name: &str, value: &str, scopes: &[KeyScope]) -> ApiKey {
        ApiKey {
            name: name.to_owned(),
            sha256: hex(&Sha256::digest(value)),
            scopes: scopes.to_vec(),
            allowed_connections: None,
            allowed_models: None,
        }
    }

    fn ring(auth: AuthMode, keys: Vec<ApiKey>) -> KeyRing {
        let mut snapshot = Snapshot { api_keys: keys, ..Snapshot::default() };
        snapshot.settings.auth = auth;
        KeyRing::new(&snapshot)
    }

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().filter_map(|(name, value)| Some((http::HeaderName::from_static(name), value.parse().ok()?))).collect()
    }

    #[test]
    fn keys_open_what_their_scopes_say() {
        let ring = ring(AuthMode::ApiKey, vec![key("a", "one", &[KeyScope::Inference]), key("m", "two", &[KeyScope::Management])]);
        let ask = |pairs: &[(&'static str, &str)], scope| ring.authenticate(&headers(pairs), scope).map(|c| c.name.to_owned());
        assert_eq!(ask(&[("authorization", "Bearer one")], KeyScope::Inference), Ok("a".to_owned()));
        assert_eq!(ask(&[("authorization", "bearer  one ")], KeyScope::Inference), Ok("a".to_owned()));
        assert_eq!(ask(&[("x-api-key", "one")], KeyScope::Inference), Ok("a".to_owned()));
        assert_eq!(ask(&[("x-api-key", "two")], KeyScope::Inference), Err(AuthError::Scope));
        assert_eq!(ask(&[("authorization", "Bearer three")], KeyScope::Inference), Err(AuthError::Unknown));
        assert_eq!(ask(&[("authorization", "Basic one")], KeyScope::Inference), Err(AuthError::Missing));
        assert_eq!(ask(&[("authorization", "Bearer ")], KeyScope::Inference), Err(AuthError::Missing));
        assert_eq!(ask(&[], KeyScope::Inference), Err(AuthError::Missing));
    }

    #[test]
    fn without_keys_nobody_gets_in_unless_the_settings_say_so() {
        assert!(ring(AuthMode::ApiKey, vec![]).authenticate(&headers(&[("x-api-key", "k")]), KeyScope::Inference).is_err());
        let open = ring(AuthMode::None, vec![key("a", "one", &[KeyScope::Inference])]);
        for (presented, name) in [("junk", ""), ("one", "a")] {
            assert_eq!(open.authenticate(&headers(&[("x-api-key", presented)]), KeyScope::Inference).map(|c| c.name), Ok(name));
        }
        assert_eq!(open.authenticate(&headers(&[]), KeyScope::Inference).map(|c| c.name), Ok(""));
        assert!(!open.has_scope(&headers(&[("x-api-key", "one")]), &[KeyScope::Management]));
    }
}
