//! The management Secret of a gateway: the operator's token for the management port, and the key of credential fingerprints.
//! Both are minted once and read back ever after.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret as KubeSecret;
use rand::TryRng;
use rand::rngs::SysRng;

use super::apply::Owner;
use super::build::{ANNOTATION_CLAIM, Meta, names};
use super::child::{Child, ChildKind};
use super::error::Error;
use crate::compile::api_key_digest;
use crate::snapshot::Secret;

/// Bytes of the token and of the fingerprint key.
const BYTES: usize = 32;

/// What the management Secret holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Keys {
    /// Token for the management port.
    pub token: Secret,
    /// Key of the fingerprints of credentials.
    pub fingerprint_key: Secret,
}

impl Keys {
    /// Digest of the token as the snapshot carries it.
    #[must_use]
    pub fn digest(&self) -> String {
        api_key_digest(self.token.expose().as_bytes())
    }

    /// Reads what is there; `None` unless both values are.
    #[must_use]
    pub fn read(secret: &KubeSecret) -> Option<Self> {
        Some(Self { token: value(secret, names::TOKEN_KEY)?, fingerprint_key: value(secret, names::SALT_KEY)? })
    }

    /// Keeps what is there and mints what is missing.
    ///
    /// # Errors
    /// If the operating system gives no random bytes.
    pub fn complete(secret: Option<&KubeSecret>) -> Result<Self, Error> {
        let there = |key| secret.and_then(|s| value(s, key));
        Ok(Self {
            token: there(names::TOKEN_KEY).map_or_else(|| mint("a management token"), Ok)?,
            fingerprint_key: there(names::SALT_KEY).map_or_else(|| mint("a fingerprint key"), Ok)?,
        })
    }

    /// The Secret, which is the first child of a gateway: with it `installation` claims the namespace.
    ///
    /// # Errors
    /// If it cannot be represented in JSON.
    pub fn child(&self, owner: &Owner, installation: &str) -> Result<Child, Error> {
        let data = BTreeMap::from([
            (names::TOKEN_KEY.to_owned(), ByteString(self.token.expose().as_bytes().to_vec())),
            (names::SALT_KEY.to_owned(), ByteString(self.fingerprint_key.expose().as_bytes().to_vec())),
        ]);
        let mut metadata = Meta::new(owner).object(names::MANAGEMENT);
        metadata.annotations = Some([(ANNOTATION_CLAIM.to_owned(), installation.to_owned())].into());
        let object = KubeSecret { metadata, type_: Some("Opaque".to_owned()), data: Some(data), ..KubeSecret::default() };
        Child::new(ChildKind::Secret, names::MANAGEMENT, &object)
            .map_err(|source| Error::Encode { what: format!("Secret `{}`", names::MANAGEMENT), source })
    }
}

/// The installation that has claimed the namespace of this management Secret.
#[must_use]
pub fn claim(secret: &KubeSecret) -> Option<&str> {
    secret.metadata.annotations.as_ref()?.get(ANNOTATION_CLAIM).map(String::as_str).filter(|claim| !claim.is_empty())
}

fn value(secret: &KubeSecret, key: &str) -> Option<Secret> {
    let bytes = &secret.data.as_ref()?.get(key)?.0;
    let text = std::str::from_utf8(bytes).ok()?.trim();
    (!text.is_empty()).then(|| Secret::new(text))
}

fn mint(what: &'static str) -> Result<Secret, Error> {
    let mut bytes = [0u8; BYTES];
    SysRng.try_fill_bytes(&mut bytes).map_err(|e| Error::Random { what, message: e.to_string() })?;
    Ok(Secret::new(URL_SAFE_NO_PAD.encode(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(child: &Child) -> KubeSecret {
        serde_json::from_value(child.body.clone()).unwrap()
    }

    #[test]
    fn minted_once_and_read_back_ever_after() {
        let owner = Owner { namespace: "a".into(), name: "default".into(), uid: "u".into() };
        let first = Keys::complete(None).unwrap();
        assert!(first.token.expose().len() >= 43 && first.token != first.fingerprint_key);
        let secret = stored(&first.child(&owner, "ns/lease").unwrap());
        assert_eq!(Keys::read(&secret).as_ref(), Some(&first));
        assert_eq!((claim(&secret), claim(&KubeSecret::default())), (Some("ns/lease"), None));
        assert_eq!(Keys::complete(Some(&secret)).unwrap(), first);
        assert_eq!(
            first.child(&owner, "ns/lease").unwrap(),
            Keys::complete(Some(&secret)).unwrap().child(&owner, "ns/lease").unwrap(),
            "the same bytes"
        );
        assert!(!format!("{first:?}").contains(first.token.expose()));
    }

    #[test]
    fn a_lost_half_is_replaced_and_the_other_stays() {
        let owner = Owner { namespace: "a".into(), name: "default".into(), uid: "u".into() };
        let first = Keys::complete(None).unwrap();
        let mut secret = stored(&first.child(&owner, "ns/lease").unwrap());
        secret.data.as_mut().unwrap().remove(names::SALT_KEY);
        assert_eq!(Keys::read(&secret), None);
        let second = Keys::complete(Some(&secret)).unwrap();
        assert!(second.token == first.token && second.fingerprint_key != first.fingerprint_key);
    }
}
