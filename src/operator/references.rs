//! Which Secrets and ConfigMaps the objects of a namespace refer to.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;

use super::build::names;
use crate::api::{LABEL_API_KEY, Resources};
use crate::compile::oauth;

/// What is referred to.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct References {
    /// Keys by Secret.
    pub secrets: BTreeMap<String, BTreeSet<String>>,
    /// ConfigMaps.
    pub config_maps: BTreeSet<String>,
}

impl References {
    /// The references of all objects.
    #[must_use]
    pub fn of(resources: &Resources) -> Self {
        let mut all = Self::default();
        for connection in &resources.connections {
            let credentials = &connection.spec.credentials;
            if let Some(key) = &credentials.api_key {
                all.secret(&key.secret_ref.name, [key.secret_ref.key.as_str()]);
            }
            if let Some(given) = &credentials.oauth {
                all.secret(&given.secret_ref.name, oauth::OWNER_KEYS);
                if given.token_url.is_some() {
                    all.secret(&oauth::own_secret(&connection.name_any()), oauth::OWN_KEYS);
                }
            }
        }
        for settings in &resources.settings {
            if let Some(store) = &settings.spec.state_store {
                let url = &store.redis.url_secret_ref;
                all.secret(&url.name, [url.key.as_str()]);
                all.config_maps.extend(store.redis.tls.iter().map(|tls| tls.ca_bundle.config_map_ref.name.clone()));
            }
        }
        for provider in &resources.providers {
            if let Some(tls) = &provider.spec.tls {
                all.config_maps.insert(tls.ca_bundle.config_map_ref.name.clone());
            }
        }
        all
    }

    fn secret<'a>(&mut self, name: &str, keys: impl IntoIterator<Item = &'a str>) {
        self.secrets.entry(name.to_owned()).or_default().extend(keys.into_iter().map(str::to_owned));
    }

    /// Whether the value of a key is needed.
    #[must_use]
    pub fn wants(&self, secret: &Secret, key: &str) -> bool {
        let name = name(secret);
        name == names::MANAGEMENT
            || self.secrets.get(name).is_some_and(|keys| keys.contains(key))
            || (key == "key" && is_client_key(secret))
    }

    /// Whether a change of the Secret matters at all: also one without the key that something refers to.
    #[must_use]
    pub fn concerns(&self, secret: &Secret) -> bool {
        let name = name(secret);
        name == names::MANAGEMENT || self.secrets.contains_key(name) || is_client_key(secret)
    }
}

fn name(secret: &Secret) -> &str {
    secret.metadata.name.as_deref().unwrap_or_default()
}

fn is_client_key(secret: &Secret) -> bool {
    secret.metadata.labels.as_ref().and_then(|l| l.get(LABEL_API_KEY)).is_some_and(|v| v == "true")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::sync::Arc;

    fn object<K: serde::de::DeserializeOwned>(kind: &str, spec: serde_json::Value) -> Arc<K> {
        let value = json!({"apiVersion": "omniroute.dev/v1alpha1", "kind": kind, "metadata": {"name": "x"}, "spec": spec});
        Arc::new(serde_json::from_value(value).unwrap())
    }

    #[test]
    fn every_reference_is_found() {
        let resources = Resources {
            connections: vec![
                object(
                    "Connection",
                    json!({"providerRef": {"name": "p"}, "credentials": {"apiKey": {"secretRef": {"name": "llm", "key": "a"}}}}),
                ),
                object(
                    "Connection",
                    json!({"providerRef": {"name": "p"}, "credentials": {"oauth": {"secretRef": {"name": "claude"}, "tokenURL": "https://a/t"}}}),
                ),
            ],
            providers: vec![object("Provider", json!({"tls": {"caBundle": {"configMapRef": {"name": "ca", "key": "ca.crt"}}}}))],
            settings: vec![object(
                "ResilienceSettings",
                json!({"stateStore": {"redis": {
                    "urlSecretRef": {"name": "redis", "key": "url"},
                    "tls": {"caBundle": {"configMapRef": {"name": "redis-ca", "key": "ca.crt"}}}}}}),
            )],
            ..Resources::default()
        };
        let found = References::of(&resources);
        assert_eq!(found.secrets["llm"], ["a".to_owned()].into());
        assert_eq!(found.secrets["claude"], oauth::OWNER_KEYS.map(str::to_owned).into());
        assert_eq!(found.secrets["omniroute-oauth-x"], oauth::OWN_KEYS.map(str::to_owned).into());
        assert_eq!(found.secrets["redis"], ["url".to_owned()].into());
        assert_eq!(found.config_maps, ["ca".to_owned(), "redis-ca".to_owned()].into());
    }
}
