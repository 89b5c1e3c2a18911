//! The store in which replicas share state: its URL from a Secret.

use std::borrow::Cow;

use kube::ResourceExt;

use super::connection::{allowed_hosts, data, fingerprint, host, keys};
use super::finding::hint;
use super::provider::{Refused, ca_bundle};
use super::{Finding, Index, Options, Severity};
use crate::api;
use crate::api::common::SecretKeyRef;
use crate::snapshot::{Secret, StateStore};

const FIELD: &str = "spec.stateStore.redis.urlSecretRef";
const TLS_FIELD: &str = "spec.stateStore.redis.tls";

/// The store that the settings ask for; without it each replica keeps its own state.
pub(super) fn compile(
    index: &Index<'_>,
    gateway: &api::ResilienceSettings,
    options: &Options,
    findings: &mut Vec<Finding>,
) -> Option<StateStore> {
    let name = gateway.name_any();
    let Some(wanted) = &gateway.spec.state_store else {
        findings.extend(state_per_pod(&name, &gateway.spec.gateway));
        return None;
    };
    match url(index, &wanted.redis.url_secret_ref).and_then(|url| Ok((authority(index, &wanted.redis, &url)?, url))) {
        Ok((ca_bundle, url)) => {
            let namespace = gateway.namespace().unwrap_or_else(|| "default".to_owned());
            // Installations that share a server must not read each other's state. The braces keep all keys of a gateway together in a cluster.
            let key = keyed(options, Some(&url));
            let installation: String = fingerprint(&key.fingerprint_key, &[b"state store"]).chars().take(8).collect();
            let prefix = format!("omniroute:{{{namespace}:{installation}}}:");
            Some(StateStore { settings: name, url, ca_bundle, prefix })
        }
        Err((field, reason, severity, message)) => {
            findings.push(Finding::new(("ResilienceSettings", &name), field, reason, severity, message));
            None
        }
    }
}

/// The options with the key that all who share the store have: gateways that run from files have no other secret in common.
pub(super) fn keyed<'a>(options: &'a Options, url: Option<&Secret>) -> Cow<'a, Options> {
    match url.filter(|_| options.fingerprints_by_store) {
        Some(url) => {
            let fingerprint_key = fingerprint(url.expose().as_bytes(), &[b"fingerprints of credentials"]).into_bytes();
            Cow::Owned(Options { fingerprint_key, ..options.clone() })
        }
        None => Cow::Borrowed(options),
    }
}

/// The certificates that vouch for the server, where the settings name them.
fn authority(index: &Index<'_>, redis: &api::gateway::RedisStore, url: &Secret) -> Result<Option<String>, Refused> {
    let Some(tls) = &redis.tls else { return Ok(None) };
    if !url.expose().starts_with("rediss:") {
        let message = "the URL of the store is not one for TLS: let it start with rediss://, or leave `tls` out";
        return Err((TLS_FIELD.to_owned(), "InvalidSpec", Severity::Error, message.to_owned()));
    }
    ca_bundle(&format!("{TLS_FIELD}.caBundle"), &tls.ca_bundle, index).map(Some)
}

fn url(index: &Index<'_>, reference: &SecretKeyRef) -> Result<Secret, Refused> {
    let (name, key) = (&reference.name, &reference.key);
    let Some(secret) = index.secrets.get(name) else {
        let message =
            format!("Secret `{name}` is not found in this namespace: create it with the key `{key}`; until then state is per pod");
        return Err((format!("{FIELD}.name"), "SecretNotFound", Severity::Unresolved, message));
    };
    let Some(raw) = data(secret, key) else {
        let message = format!("Secret `{name}` has no key `{key}`{}", hint(key, keys(secret).iter().map(String::as_str)));
        return Err((format!("{FIELD}.key"), "SecretKeyNotFound", Severity::Unresolved, message));
    };
    let invalid = |problem: &str| {
        let message =
            format!("key `{key}` of Secret `{name}` {problem}: store a URL like redis://user:password@host:6379/0, or rediss:// for TLS");
        (format!("{FIELD}.key"), "InvalidSpec", Severity::Error, message)
    };
    let text = std::str::from_utf8(&raw).map(str::trim).map_err(|_| invalid("is no text"))?;
    if text.is_empty() {
        return Err((
            format!("{FIELD}.key"),
            "CredentialMissing",
            Severity::Unresolved,
            format!("key `{key}` of Secret `{name}` is empty: put the URL there"),
        ));
    }
    let uri: http::Uri = text.parse().map_err(|_| invalid("is no URL (special characters of a password are written as %xx)"))?;
    if !matches!(uri.scheme_str(), Some("redis" | "rediss")) {
        return Err(invalid("does not start with redis:// or rediss://"));
    }
    // Options of clients stand there, among them the one that switches the verification of certificates off.
    if text.contains(['#', '?']) {
        return Err(invalid("has a query or a fragment"));
    }
    let Some(address) = uri.host().filter(|host| !host.is_empty()) else { return Err(invalid("has no host")) };
    if !matches!(uri.path().trim_start_matches('/'), "") && uri.path().trim_start_matches('/').parse::<u32>().is_err() {
        return Err(invalid("has a path that is no number of a database"));
    }
    let allowed = secret.annotations().get(api::ANNOTATION_ALLOWED_HOSTS).map(|list| allowed_hosts(list));
    if allowed.is_some_and(|hosts| !host(text).is_some_and(|host| hosts.contains(&host))) {
        let message = format!(
            "Secret `{name}` may not be sent to `{address}`: its owner would have to add the host to the annotation {}",
            api::ANNOTATION_ALLOWED_HOSTS
        );
        return Err((format!("{FIELD}.name"), "InvalidSpec", Severity::Error, message));
    }
    Ok(Secret::new(text))
}

/// Several pods without a store (decisions 10.10): allowed, and worth knowing.
fn state_per_pod(name: &str, gateway: &api::gateway::Gateway) -> Option<Finding> {
    let (field, pods) = match (&gateway.autoscaling, gateway.replicas) {
        (Some(scaling), _) => ("spec.gateway.autoscaling.maxReplicas", scaling.max_replicas),
        (None, replicas) => ("spec.gateway.replicas", replicas.unwrap_or(1)),
    };
    let message = format!(
        "{pods} pods without `stateStore` each keep their own cooldowns, session pins and leases: name a Redis in `stateStore`, or run one pod"
    );
    (pods > 1).then(|| Finding::new(("ResilienceSettings", name), field, "StatePerPod", Severity::Warning, message))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use crate::api::Resources;
    use crate::compile::{Compiled, Options, Severity, compile};

    fn object<K: serde::de::DeserializeOwned>(value: Value) -> Arc<K> {
        Arc::new(serde_json::from_value(value).unwrap())
    }

    /// Settings with a store, and its Secret with this URL.
    fn compiled(spec: &Value, url: Option<&str>, options: &Options) -> Compiled {
        let settings =
            json!({"apiVersion": "omniroute.dev/v1alpha1", "kind": "ResilienceSettings", "metadata": {"name": "default"}, "spec": spec});
        let secret = |url| json!({"metadata": {"name": "redis", "annotations": {"omniroute.dev/allowed-hosts": "redis.example"}}, "stringData": {"url": url}});
        let secrets = url.map(|url| object(secret(url))).into_iter().collect();
        compile(&Resources { settings: vec![object(settings)], secrets, ..Resources::default() }, options)
    }

    fn with_store() -> Value {
        json!({"stateStore": {"redis": {"urlSecretRef": {"name": "redis", "key": "url"}}}, "gateway": {"replicas": 3}})
    }

    #[test]
    fn the_url_is_taken_from_its_secret_and_shown_nowhere() {
        let compiled = compiled(&with_store(), Some(" rediss://user:hush%40@redis.example:6380/2\n"), &Options::default());
        let store = compiled.snapshot.state_store.as_ref().unwrap();
        assert_eq!((store.url.expose(), store.settings.as_str()), ("rediss://user:hush%40@redis.example:6380/2", "default"));
        assert!(store.prefix.starts_with("omniroute:{default:"), "{}", store.prefix);
        assert!(compiled.findings.is_empty(), "{:?}", compiled.findings);
        let shown = format!("{compiled:?}{}", serde_json::to_string(&compiled.snapshot.settings).unwrap());
        assert!(!shown.contains("hush"), "{shown}");
    }

    #[test]
    fn what_cannot_be_used_is_a_finding_without_the_url_and_state_stays_per_pod() {
        let cases = [
            (None, "urlSecretRef.name", "SecretNotFound", Severity::Unresolved),
            (Some(" "), "urlSecretRef.key", "CredentialMissing", Severity::Unresolved),
            (Some("redis.example:6379"), "urlSecretRef.key", "InvalidSpec", Severity::Error),
            (Some("https://:hush@redis.example"), "urlSecretRef.key", "InvalidSpec", Severity::Error),
            (Some("rediss://:hush@redis.example/0#insecure"), "urlSecretRef.key", "InvalidSpec", Severity::Error),
            (Some("rediss://:hush@redis.example/0?protocol=resp3"), "urlSecretRef.key", "InvalidSpec", Severity::Error),
            (Some("redis://:hush@redis.example/data"), "urlSecretRef.key", "InvalidSpec", Severity::Error),
            (Some("redis://:hush@elsewhere.example/0"), "urlSecretRef.name", "InvalidSpec", Severity::Error),
        ];
        for (url, field, reason, severity) in cases {
            let compiled = compiled(&with_store(), url, &Options::default());
            assert_eq!(compiled.snapshot.state_store, None, "{url:?}");
            let [finding] = compiled.findings.as_slice() else { panic!("{url:?}: {:?}", compiled.findings) };
            assert!(finding.field.ends_with(field) && finding.reason == reason && finding.severity == severity, "{url:?}: {finding:?}");
            assert!(!finding.message.contains("hush"), "{finding:?}");
        }
    }

    #[test]
    fn a_server_with_a_certificate_of_its_owners_is_trusted_by_what_is_named() {
        let pem = include_str!("../../tests/data/tls/ca.pem");
        let compiled = |url: &str, data: Option<Value>| {
            let tls = json!({"caBundle": {"configMapRef": {"name": "ca", "key": "ca.crt"}}});
            let store = json!({"redis": {"urlSecretRef": {"name": "redis", "key": "url"}, "tls": tls}});
            let settings = json!({"apiVersion": "omniroute.dev/v1alpha1", "kind": "ResilienceSettings", "metadata": {"name": "default"},
                "spec": {"stateStore": store}});
            let secrets = vec![object(json!({"metadata": {"name": "redis"}, "stringData": {"url": url}}))];
            let config_maps = data.into_iter().map(|data| object(json!({"metadata": {"name": "ca"}, "data": data}))).collect();
            compile(&Resources { settings: vec![object(settings)], secrets, config_maps, ..Resources::default() }, &Options::default())
        };
        let (url, good) = ("rediss://redis.example", json!({"ca.crt": pem}));
        let store = compiled(url, Some(good.clone())).snapshot.state_store.unwrap();
        assert_eq!(store.ca_bundle.as_deref(), Some(pem));
        for (url, data, field) in [
            (url, None, "tls.caBundle.configMapRef.name"),
            (url, Some(json!({"other": pem})), "tls.caBundle.configMapRef.key"),
            (url, Some(json!({"ca.crt": "no PEM"})), "tls.caBundle.configMapRef.key"),
            ("redis://redis.example", Some(good), "tls"),
        ] {
            let compiled = compiled(url, data);
            assert_eq!(compiled.snapshot.state_store, None, "without its certificates nothing is sent there");
            let [finding] = compiled.findings.as_slice() else { panic!("{:?}", compiled.findings) };
            assert_eq!(finding.field, format!("spec.stateStore.redis.{field}"));
        }
    }

    #[test]
    fn several_pods_without_a_store_are_told() {
        let several = [json!({"gateway": {"replicas": 2}}), json!({"gateway": {"autoscaling": {"minReplicas": 1, "maxReplicas": 4}}})];
        for spec in several {
            let findings = compiled(&spec, None, &Options::default()).findings;
            assert!(
                findings.len() == 1 && findings[0].reason == "StatePerPod" && findings[0].severity == Severity::Warning,
                "{findings:?}"
            );
        }
        assert!(compiled(&json!({}), None, &Options::default()).findings.is_empty());
    }

    #[test]
    fn gateways_that_share_a_store_know_credentials_by_the_same_fingerprints() {
        let of = |key: &[u8], by_store, url| {
            let options = Options { fingerprint_key: key.to_vec(), fingerprints_by_store: by_store, ..Options::default() };
            compiled(&with_store(), Some(url), &options).snapshot.state_store.unwrap().prefix
        };
        let (one, two) = ("redis://:a@redis.example/0", "redis://:b@redis.example/0");
        assert_eq!(of(b"k1", true, one), of(b"k2", true, one), "files have no other secret in common");
        assert_ne!(of(b"k1", true, one), of(b"k1", true, two));
        assert_ne!(of(b"k1", false, one), of(b"k2", false, one), "installations keep apart");
        assert_eq!(of(b"k1", false, one), of(b"k1", false, two));
    }
}
