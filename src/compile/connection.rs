//! Connections: the credential from its Secret, defaults from the settings.

use std::collections::{BTreeMap, BTreeSet};

use hmac::{Hmac, KeyInit, Mac};
use k8s_openapi::api::core::v1::Secret as KubeSecret;
use kube::ResourceExt;
use sha2::Sha256;

use super::convert::unsigned;
use super::finding::hint;
use super::oauth::{self, Grant};
use super::{Finding, Index, Options, Severity};
use crate::api;
use crate::api::connection::RateLimitProtection;
use crate::api::time::EpochMs;
use crate::classify::{AuthClass, CooldownProfile};
use crate::snapshot::{self, ClaudeOptions, RateLimits, Secret, Snapshot, UnusableConnection, hex};

const KIND: &str = "Connection";

/// Answers what is to be refreshed.
pub(super) fn compile(index: &Index<'_>, options: &Options, snapshot: &mut Snapshot, findings: &mut Vec<Finding>) -> Vec<Grant> {
    let mut grants = Vec::new();
    for (name, resource) in &index.connections {
        match one(name, resource, index, options, snapshot) {
            Ok((connection, grant, warnings)) => {
                findings.extend(warnings);
                grants.extend(grant);
                snapshot.connections.push(connection);
            }
            Err(finding) => {
                snapshot.unusable_connections.push(UnusableConnection {
                    name: name.clone(),
                    provider: resource.spec.provider_ref.name.clone(),
                    reason: finding.reason.clone(),
                });
                findings.push(*finding);
            }
        }
    }
    same_value(snapshot, findings);
    grants
}

type Outcome<T> = Result<T, Box<Finding>>;

fn one(
    name: &str,
    resource: &api::Connection,
    index: &Index<'_>,
    options: &Options,
    snapshot: &Snapshot,
) -> Outcome<(snapshot::Connection, Option<Grant>, Vec<Finding>)> {
    let spec = &resource.spec;
    let fail = |field: &str, reason: &str, severity: Severity, message: String| {
        Err(Box::new(Finding::new((KIND, name), field, reason, severity, message)))
    };
    if !spec.enabled {
        // Switched off on purpose: nothing is wrong, so the finding only says why it takes no traffic.
        return fail(
            "spec.enabled",
            "Disabled",
            Severity::Warning,
            "the connection is switched off by `enabled: false` and takes no traffic".to_owned(),
        );
    }
    let wanted = &spec.provider_ref.name;
    let Some(provider) = snapshot.providers.iter().find(|p| p.name == *wanted) else {
        if index.providers.contains_key(wanted) {
            let message = format!("Provider `{wanted}` has errors of its own: see its conditions");
            return fail("spec.providerRef.name", "ProviderNotFound", Severity::Unresolved, message);
        }
        let message =
            format!("Provider `{wanted}` is not found in this namespace{}", hint(wanted, index.providers.keys().map(String::as_str)));
        return fail("spec.providerRef.name", "ProviderNotFound", Severity::Unresolved, message);
    };
    let mut warnings = Vec::new();
    if spec.proxy_url.as_deref().is_some_and(|url| !url.starts_with("http://")) {
        let message = "`proxyURL` must start with http://: the gateway speaks plain HTTP to its proxy, and TLS to the vendor through it";
        return fail("spec.proxyURL", "InvalidSpec", Severity::Error, message.to_owned());
    }
    let credential = credential(name, resource, index, options, provider, &mut warnings)?;
    let settings = &snapshot.settings;
    let cooldown = cooldown(*settings.connection_cooldown.get(provider.traits.auth_class), spec.connection_cooldown.as_ref());
    Ok((
        snapshot::Connection {
            name: name.to_owned(),
            provider: provider.name.clone(),
            credential: credential.value,
            token_expires: credential.expires,
            refresh_refused: credential.grant.as_ref().is_some_and(Grant::is_refused),
            credential_fingerprint: credential.fingerprint,
            priority: spec.priority,
            weight: unsigned(spec.weight),
            tags: spec.tags.iter().map(|t| t.to_lowercase()).collect::<BTreeSet<_>>().into_iter().collect(),
            max_concurrent: unsigned(spec.max_concurrent),
            rate_limits: rate_limits(spec, snapshot),
            rate_limit_protection: is_protected(spec, provider, snapshot),
            disable_cooling: spec.disable_cooling,
            // The URL may carry a password, and groups are shown.
            egress_group: spec
                .egress_group
                .clone()
                .or_else(|| spec.proxy_url.as_ref().map(|url| fingerprint(&options.fingerprint_key, &[url.as_bytes()]))),
            proxy_url: spec.proxy_url.as_deref().map(Secret::new),
            models_allow: spec.models.as_ref().map(|m| m.allow.clone()).unwrap_or_default(),
            models_deny: spec.models.as_ref().map(|m| m.deny.clone()).unwrap_or_default(),
            cooldown,
            claude: spec.claude.as_ref().map_or_else(ClaudeOptions::default, |c| ClaudeOptions {
                low_priority_mode: c.low_priority_mode,
                auto_limit_reset: c.auto_limit_reset && c.organization_uuid.is_some(),
                organization_uuid: c.organization_uuid.clone(),
            }),
            allowed_hosts: credential.allowed_hosts,
        },
        credential.grant,
        warnings,
    ))
}

/// Whether pacing and queueing act on the connection.
fn is_protected(spec: &api::ConnectionSpec, provider: &snapshot::Provider, snapshot: &Snapshot) -> bool {
    match spec.rate_limit_protection {
        RateLimitProtection::Enabled => true,
        RateLimitProtection::Disabled => false,
        RateLimitProtection::Auto => {
            snapshot.settings.request_queue.auto_enable_api_key_providers && provider.traits.auth_class == AuthClass::ApiKey
        }
    }
}

#[derive(Default)]
struct Credential {
    value: Option<Secret>,
    expires: Option<EpochMs>,
    fingerprint: String,
    allowed_hosts: Vec<String>,
    grant: Option<Grant>,
}

fn credential(
    name: &str,
    resource: &api::Connection,
    index: &Index<'_>,
    options: &Options,
    provider: &snapshot::Provider,
    warnings: &mut Vec<Finding>,
) -> Outcome<Credential> {
    let spec = &resource.spec;
    let fail = |field: &str, reason: &str, severity: Severity, message: String| {
        Err(Box::new(Finding::new((KIND, name), field, reason, severity, message)))
    };
    let (secret_name, field, key) = match (&spec.credentials.api_key, &spec.credentials.oauth, &spec.credentials.none) {
        (Some(key), None, None) => (&key.secret_ref.name, "spec.credentials.apiKey.secretRef", key.secret_ref.key.as_str()),
        (None, Some(oauth), None) => (&oauth.secret_ref.name, "spec.credentials.oauth.secretRef", "accessToken"),
        (None, None, Some(_)) if provider.traits.auth_class == AuthClass::Local => return Ok(Credential::default()),
        (None, None, Some(_)) => {
            let message =
                format!("`none` is for providers with `authClass: Local`, and `{}` is not one: give `apiKey` or `oauth`", provider.name);
            return fail("spec.credentials.none", "InvalidSpec", Severity::Error, message);
        }
        _ => {
            return fail(
                "spec.credentials",
                "InvalidSpec",
                Severity::Error,
                "must have exactly one of `apiKey`, `oauth` and `none`".to_owned(),
            );
        }
    };
    let Some(secret) = index.secrets.get(secret_name) else {
        let message = format!("Secret `{secret_name}` is not found in this namespace: create it with the key `{key}`");
        return fail(&format!("{field}.name"), "SecretNotFound", Severity::Unresolved, message);
    };
    let Some(raw) = data(secret, key) else {
        let message = format!("Secret `{secret_name}` has no key `{key}`{}", hint(key, keys(secret).iter().map(String::as_str)));
        return fail(&format!("{field}.key"), "SecretKeyNotFound", Severity::Unresolved, message);
    };
    let value = match std::str::from_utf8(&raw).map(str::trim) {
        Ok(value) if !value.is_empty() && value.bytes().all(|b| (0x21..=0x7e).contains(&b)) => value.to_owned(),
        Ok("") => {
            let message = format!("key `{key}` of Secret `{secret_name}` is empty: put the credential there");
            return fail(&format!("{field}.key"), "CredentialMissing", Severity::Unresolved, message);
        }
        _ => {
            let message = format!(
                "key `{key}` of Secret `{secret_name}` holds white space or other characters that no HTTP header can carry: store the bare credential"
            );
            return fail(&format!("{field}.key"), "CredentialMissing", Severity::Error, message);
        }
    };
    let refresh = spec.credentials.oauth.as_ref().and_then(|_| data(secret, "refreshToken")).unwrap_or_default();
    let expires = spec.credentials.oauth.as_ref().and_then(|_| data(secret, "expiresAt")).and_then(|raw| expiry(&raw));
    let allowed_hosts = secret.annotations().get(api::ANNOTATION_ALLOWED_HOSTS).map(|list| allowed_hosts(list));
    if let Some(finding) = allowed_hosts.as_ref().and_then(|hosts| misdirected(name, spec, provider, secret_name, hosts)) {
        return Err(Box::new(finding));
    }
    let problem = oauth::cannot_keep(index, resource)
        .map(|(reason, message)| Finding::new((KIND, name), "spec.credentials.oauth.tokenURL", reason, Severity::Warning, message));
    let grant = if problem.is_none() { oauth::grant(index, resource, provider, secret, &value, expires) } else { None };
    warnings.extend(problem.or_else(|| refreshing(name, spec, secret_name, grant.as_ref())));
    if spec.claude.as_ref().is_some_and(|c| c.auto_limit_reset && c.organization_uuid.is_none()) {
        let message =
            "`autoLimitReset` needs the id of the organization whose limit is reset: give `organizationUUID`; until then nothing is reset";
        warnings.push(Finding::new((KIND, name), "spec.claude.organizationUUID", "InvalidSpec", Severity::Error, message));
    }
    Ok(Credential {
        fingerprint: fingerprint(&options.fingerprint_key, &[value.as_bytes(), &refresh]),
        value: Some(grant.as_ref().map_or_else(|| Secret::new(value), |grant| grant.tokens.access.clone())),
        expires: grant.as_ref().map_or(expires, |grant| grant.tokens.expires),
        grant,
        allowed_hosts: allowed_hosts.unwrap_or_default(),
    })
}

/// An address to which the owner of the Secret does not let it go.
fn misdirected(name: &str, spec: &api::ConnectionSpec, provider: &snapshot::Provider, secret: &str, hosts: &[String]) -> Option<Finding> {
    let addresses = std::iter::once(&provider.base_url).chain(provider.base_urls.values());
    let addresses = addresses.map(|url| (url, "spec.providerRef.name", format!("the address of Provider `{}`", provider.name)));
    let token_url = spec.credentials.oauth.as_ref().and_then(|oauth| oauth.token_url.as_ref());
    let endpoint = token_url.map(|url| (url, "spec.credentials.oauth.tokenURL", "the token endpoint".to_owned()));
    // Whoever may write a Provider could bring a certificate authority of his own, and read at the proxy what TLS should hide from it.
    let clear = provider.ca_bundle.is_some()
        || std::iter::once(&provider.base_url).chain(provider.base_urls.values()).any(|url| !url.starts_with("https://"));
    let proxy = spec.proxy_url.as_ref().filter(|_| clear).map(|url| (url, "spec.proxyURL", "a proxy that can read it".to_owned()));
    addresses.chain(endpoint).chain(proxy).find_map(|(url, field, what)| {
        let host = host(url).filter(|host| !hosts.contains(host))?;
        let message = format!(
            "Secret `{secret}` may not be sent to `{host}`, {what}: its owner would have to add the host to the annotation {}",
            api::ANNOTATION_ALLOWED_HOSTS
        );
        Some(Finding::new((KIND, name), field, "InvalidSpec", Severity::Error, message))
    })
}

/// What keeps tokens from being refreshed.
fn refreshing(name: &str, spec: &api::ConnectionSpec, secret: &str, grant: Option<&Grant>) -> Option<Finding> {
    let url = spec.credentials.oauth.as_ref()?.token_url.as_ref()?;
    let warn = |field: &str, reason: &str, message: String| Some(Finding::new((KIND, name), field, reason, Severity::Warning, message));
    match grant {
        None => {
            let message = format!("Secret `{secret}` has no key `refreshToken`, so the access token cannot be refreshed at `{url}`");
            warn("spec.credentials.oauth.secretRef", "SecretKeyNotFound", message)
        }
        Some(grant) if grant.is_refused() => {
            let why = grant.tokens.refused.as_ref().map_or("", |refused| refused.why.as_str());
            let message = format!(
                "its tokens cannot be refreshed: {why}; put new ones into Secret `{secret}`, or set the annotation {} to try again",
                api::ANNOTATION_RESET
            );
            warn("spec.credentials.oauth", "Expired", message)
        }
        Some(_) => None,
    }
}

/// A value of a Secret, from `data` or (files only) `stringData`.
pub(super) fn data(secret: &KubeSecret, key: &str) -> Option<Vec<u8>> {
    let plain = secret.string_data.as_ref().and_then(|d| d.get(key)).map(|v| v.clone().into_bytes());
    plain.or_else(|| secret.data.as_ref().and_then(|d| d.get(key)).map(|v| v.0.clone()))
}

pub(super) fn keys(secret: &KubeSecret) -> BTreeSet<String> {
    let data = secret.data.iter().flat_map(BTreeMap::keys);
    data.chain(secret.string_data.iter().flat_map(BTreeMap::keys)).cloned().collect()
}

/// RFC 3339, epoch seconds or epoch milliseconds.
pub(super) fn expiry(raw: &[u8]) -> Option<EpochMs> {
    let text = std::str::from_utf8(raw).ok()?.trim();
    match text.parse::<i64>() {
        Ok(number) if number > 100_000_000_000 => Some(EpochMs(number)),
        Ok(number) if number > 0 => Some(EpochMs(number.checked_mul(1_000)?)),
        _ => EpochMs::parse(text),
    }
}

pub(super) fn allowed_hosts(list: &str) -> Vec<String> {
    list.split(',').map(|h| h.trim().to_ascii_lowercase()).filter(|h| !h.is_empty()).collect::<BTreeSet<_>>().into_iter().collect()
}

pub(super) fn host(url: &str) -> Option<String> {
    url.parse::<http::Uri>().ok()?.host().map(str::to_ascii_lowercase)
}

/// A keyed fingerprint: tells whether a value changed, and nothing else.
pub(super) fn fingerprint(key: &[u8], parts: &[&[u8]]) -> String {
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(key) else { return String::new() };
    for part in parts {
        mac.update(&u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
        mac.update(part);
    }
    hex(&mac.finalize().into_bytes()).chars().take(32).collect()
}

fn cooldown(mut profile: CooldownProfile, given: Option<&api::settings::ConnectionCooldown>) -> CooldownProfile {
    let Some(given) = given else { return profile };
    let ms = |d: &Option<api::Duration>| d.as_ref().and_then(|d| d.ms().ok());
    profile.base_cooldown_ms = ms(&given.base_cooldown).unwrap_or(profile.base_cooldown_ms);
    profile.max_cooldown_ms = ms(&given.max_cooldown).unwrap_or(profile.max_cooldown_ms);
    profile.max_backoff_steps = given.max_backoff_steps.map_or(profile.max_backoff_steps, unsigned);
    profile.retry_hints = given.retry_hints.map_or(profile.retry_hints, Into::into);
    profile
}

fn rate_limits(spec: &api::ConnectionSpec, snapshot: &Snapshot) -> RateLimits {
    let queue = &snapshot.settings.request_queue;
    let given = spec.rate_limits.clone().unwrap_or_default();
    let ms = |d: &Option<api::Duration>| d.as_ref().and_then(|d| d.ms().ok());
    RateLimits {
        requests_per_minute: given.requests_per_minute.map(unsigned),
        min_interval_ms: ms(&given.min_interval),
        max_wait_ms: ms(&given.max_wait).unwrap_or(queue.max_wait_ms),
        execution_max_wait_ms: ms(&given.execution_max_wait).unwrap_or(queue.execution_max_wait_ms),
        max_queue_depth: given.max_queue_depth.map_or(queue.max_queue_depth, unsigned),
        model_concurrency: given.model_concurrency.iter().map(|(m, n)| (m.clone(), unsigned(*n))).collect(),
        retry_delay_ms: ms(&spec.retry_delay),
    }
}

/// Two connections of one provider with the same credential share the vendor's limits: worth a look.
fn same_value(snapshot: &Snapshot, findings: &mut Vec<Finding>) {
    let mut seen: BTreeMap<(&str, &str), &str> = BTreeMap::new();
    for connection in snapshot.connections.iter().filter(|c| c.credential.is_some()) {
        let key = (connection.provider.as_str(), connection.credential_fingerprint.as_str());
        if let Some(first) = seen.get(&key) {
            let message = format!("has the same credential as Connection `{first}`: both share its limits and caps, one of them is enough");
            findings.push(Finding::new((KIND, &connection.name), "spec.credentials", "DuplicateName", Severity::Warning, message));
        } else {
            seen.insert(key, &connection.name);
        }
    }
}
