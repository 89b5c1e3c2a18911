//! Providers: preset, then the fields of the resource over it.

use std::collections::BTreeMap;

use super::convert::unsigned;
use super::finding::hint;
use super::presets::{Preset, micro_usd, preset, presets};
use super::{Finding, Index, Options, Severity};
use crate::api;
use crate::classify::{AuthClass, ProviderTraits, QuotaReset};
use crate::protocol::headers::never_forwarded;
use crate::snapshot::{self, Model, Price, QuotaFamily, Snapshot, Timeouts};

const KIND: &str = "Provider";

pub(super) fn compile(index: &Index<'_>, options: &Options, snapshot: &mut Snapshot, findings: &mut Vec<Finding>) {
    for (name, resource) in &index.providers {
        if let Some(provider) = one(name, &resource.spec, index, options, snapshot, findings) {
            snapshot.providers.push(provider);
        }
    }
}

fn one(
    name: &str,
    spec: &api::ProviderSpec,
    index: &Index<'_>,
    options: &Options,
    snapshot: &Snapshot,
    findings: &mut Vec<Finding>,
) -> Option<snapshot::Provider> {
    let mut problem = |field: &str, reason: &str, severity: Severity, message: String| {
        findings.push(Finding::new((KIND, name), field, reason, severity, message))
    };
    let known = match spec.preset.as_deref() {
        None => None,
        Some(id) => match preset(id) {
            Some(known) => Some(known),
            None => {
                let hint = hint(id, presets().iter().map(|p| p.id.as_str()));
                problem(
                    "spec.preset",
                    "InvalidSpec",
                    Severity::Error,
                    format!("there is no preset `{id}`{hint}; without a preset give `baseURL` and `dialects`"),
                );
                return None;
            }
        },
    };
    let Some(base_url) = spec.base_url.as_deref().or(known.and_then(|k| k.base_url.as_deref())) else {
        let shape = known.and_then(|k| k.needs_base_url.as_deref()).unwrap_or("https://HOST/v1");
        problem(
            "spec.baseURL",
            "InvalidSpec",
            Severity::Error,
            format!("`baseURL` is missing: this provider has no address of its own, give one like {shape}"),
        );
        return None;
    };
    let addresses = std::iter::once(base_url).chain(spec.endpoints.iter().filter_map(|e| e.base_url.as_deref()));
    if addresses
        .into_iter()
        .any(|url| url.parse::<http::Uri>().ok().and_then(|u| u.authority().map(|a| a.as_str().contains('@'))).unwrap_or(true))
    {
        problem(
            "spec.baseURL",
            "InvalidSpec",
            Severity::Error,
            "`baseURL` must be a URL without user or password: put the credential into a Secret and name it in a Connection".to_owned(),
        );
        return None;
    }
    let dialects: Vec<snapshot::Dialect> = if spec.dialects.is_empty() {
        known.map(|k| k.dialects.clone()).unwrap_or_default()
    } else {
        spec.dialects.iter().map(|d| (*d).into()).collect()
    };
    if dialects.is_empty() {
        problem(
            "spec.dialects",
            "InvalidSpec",
            Severity::Error,
            "`dialects` is empty: list what the provider speaks, such as ChatCompletions".to_owned(),
        );
        return None;
    }
    let preset_traits = known.map(Preset::traits).unwrap_or_default();
    let class: AuthClass = spec.auth_class.map_or_else(|| preset_traits.auth_class, Into::into);
    let ca_bundle = match spec.tls.as_ref().map(|t| &t.ca_bundle.config_map_ref) {
        None => None,
        Some(reference) => match index.config_maps.get(&reference.name) {
            None => {
                // The bundle may come from another controller; without it TLS would fail closed, so the provider stays out until it is there.
                problem(
                    "spec.tls.caBundle.configMapRef.name",
                    "InvalidSpec",
                    Severity::Unresolved,
                    format!("ConfigMap `{}` is not found: create it with the key `{}`", reference.name, reference.key),
                );
                return None;
            }
            Some(map) => match map.data.as_ref().and_then(|d| d.get(&reference.key)) {
                Some(pem) if trusted(pem) => Some(pem.clone()),
                found => {
                    let what = if found.is_some() { "holds no usable PEM certificate" } else { "is missing" };
                    problem(
                        "spec.tls.caBundle.configMapRef.key",
                        "InvalidSpec",
                        Severity::Unresolved,
                        format!(
                            "key `{}` of ConfigMap `{}` {what}: put the CA certificates there in PEM form",
                            reference.key, reference.name
                        ),
                    );
                    return None;
                }
            },
        },
    };
    let quota_reset = spec
        .quota_reset
        .as_ref()
        .map(|r| QuotaReset { time_zone: r.time_zone.clone(), hour: u8::try_from(r.hour).unwrap_or(0) })
        .or_else(|| preset_traits.quota_reset.clone());
    if let Some(reset) = &quota_reset
        && jiff::tz::TimeZone::get(&reset.time_zone).is_err()
    {
        problem(
            "spec.quotaReset.timeZone",
            "InvalidSpec",
            Severity::Error,
            format!("`{}` is no IANA time zone: use one like Asia/Shanghai or UTC", reset.time_zone),
        );
        return None;
    }
    let models = models(spec, known);
    let mut base_urls = BTreeMap::new();
    let mut auth_by_dialect = known.map(Preset::auth_by_dialect).unwrap_or_default();
    if spec.auth.is_some() {
        auth_by_dialect.clear();
    }
    for endpoint in &spec.endpoints {
        if let Some(url) = &endpoint.base_url {
            base_urls.insert(endpoint.dialect.into(), trim(url));
        }
        if let Some(auth) = &endpoint.auth {
            auth_by_dialect.insert(endpoint.dialect.into(), auth.into());
        }
    }
    let mut headers = known.map(|k| k.headers.clone()).unwrap_or_default();
    headers.extend(spec.headers.iter().map(|h| (h.name.to_ascii_lowercase(), h.value.clone())));
    let mut forward_headers = Vec::new();
    for (at, header) in spec.forward_headers.iter().enumerate() {
        let header = header.to_ascii_lowercase();
        if header.parse().is_ok_and(|name| never_forwarded(&name)) {
            let message = format!(
                "`{header}` is never forwarded (it carries credentials, frames one connection, or is the gateway's own): remove it; what a provider needs of its own stands in `auth` and `headers`"
            );
            problem(&format!("spec.forwardHeaders[{at}]"), "InvalidSpec", Severity::Error, message);
        } else {
            forward_headers.push(header);
        }
    }
    forward_headers.sort_unstable();
    forward_headers.dedup();
    let quota_families = match spec.capabilities.as_ref().map(|c| &c.quota_families) {
        Some(families) if !families.is_empty() => {
            families.iter().map(|f| QuotaFamily { name: f.name.clone(), models: f.models.clone() }).collect()
        }
        _ => known.map(Preset::quota_families).unwrap_or_default(),
    };
    Some(snapshot::Provider {
        name: name.to_owned(),
        base_url: trim(base_url),
        base_urls,
        auth: spec.auth.as_ref().map_or_else(|| known.map(Preset::auth).unwrap_or_default(), Into::into),
        auth_by_dialect,
        query: spec.query.clone(),
        dialects,
        headers,
        forward_headers,
        traits: traits(name, spec, known, &preset_traits, class, quota_reset),
        quota_families,
        open_model_list: known.is_some()
            || spec.models.is_empty()
            || spec.capabilities.as_ref().and_then(|c| c.passthrough_models).unwrap_or(false),
        models,
        timeouts: timeouts(spec.timeouts.as_ref(), options),
        account_strategy: spec.account_strategy.into(),
        ca_bundle,
        breaker: *snapshot.settings.provider_breaker.get(class),
        window_gate: *snapshot.settings.provider_window.get(class),
        max_concurrent: unsigned(spec.max_concurrent),
    })
}

/// Whether TLS would take this bundle: at least one certificate, and no broken one.
fn trusted(pem: &str) -> bool {
    use rustls::pki_types::pem::PemObject as _;
    let mut roots = rustls::RootCertStore::empty();
    rustls::pki_types::CertificateDer::pem_slice_iter(pem.as_bytes()).all(|der| der.is_ok_and(|der| roots.add(der).is_ok()))
        && !roots.is_empty()
}

fn trim(url: &str) -> String {
    url.trim_end_matches('/').to_owned()
}

fn traits(
    name: &str,
    spec: &api::ProviderSpec,
    known: Option<&Preset>,
    preset: &ProviderTraits,
    auth_class: AuthClass,
    quota_reset: Option<QuotaReset>,
) -> ProviderTraits {
    let given = spec.capabilities.as_ref();
    ProviderTraits {
        name: name.to_owned(),
        // Only a preset says which vendor this is: a provider that happens to be called like one is not taken for it.
        catalog_id: known.map(|k| k.id.clone()).unwrap_or_default(),
        auth_class,
        // Models of a self-hosted server fail one by one: an absent model says nothing about the others.
        per_model_quota: given
            .and_then(|c| c.per_model_quota)
            .unwrap_or(preset.per_model_quota || (known.is_none() && auth_class == AuthClass::Local)),
        passthrough_models: given.and_then(|c| c.passthrough_models).unwrap_or(preset.passthrough_models),
        shared_wallet: given.and_then(|c| c.shared_wallet).unwrap_or(preset.shared_wallet),
        egress_bucketed: given.and_then(|c| c.egress_bucketed).unwrap_or(preset.egress_bucketed),
        empty_stop_is_valid: given.and_then(|c| c.empty_stop_is_valid).unwrap_or(known.is_some_and(|k| k.official)),
        quota_reset,
        retry_delay_ms: spec.retry_delay.as_ref().and_then(|d| d.ms().ok()),
    }
}

/// The preset's models with the resource's over them, field by field.
fn models(spec: &api::ProviderSpec, known: Option<&Preset>) -> Vec<Model> {
    let mut models: BTreeMap<String, Model> =
        known.map(Preset::models).unwrap_or_default().into_iter().map(|m| (m.name.clone(), m)).collect();
    for given in &spec.models {
        let model = models.entry(given.name.clone()).or_insert_with(|| Model { name: given.name.clone(), ..Model::default() });
        let size = |n: i32| u64::from(unsigned(n));
        model.context_window = given.context_window.map(size).or(model.context_window);
        model.max_output_tokens = given.max_output_tokens.map(size).or(model.max_output_tokens);
        if let Some(features) = &given.features {
            let mut features: Vec<snapshot::Feature> = features.iter().map(|f| (*f).into()).collect();
            features.sort_unstable();
            features.dedup();
            model.features = Some(features);
        }
        if let Some(price) = &given.price {
            model.price = Some(Price {
                input: micro_usd(&price.input).unwrap_or_default(),
                output: micro_usd(&price.output).unwrap_or_default(),
                cached_input: price.cached_input.as_deref().and_then(micro_usd),
            });
        }
    }
    models.into_values().collect()
}

fn timeouts(given: Option<&api::provider::Timeouts>, options: &Options) -> Timeouts {
    let ms = |d: &Option<api::Duration>| d.as_ref().and_then(|d| d.ms().ok());
    let mut timeouts = Timeouts::default();
    if let Some(idle) = options.environment.number("STREAM_IDLE_TIMEOUT_MS") {
        timeouts.stream_idle_ms = idle;
    }
    timeouts.stream_content_stall_ms = options.environment.number("STREAM_CONTENT_STALL_TIMEOUT_MS");
    if let Some(total) = options.environment.number("STREAM_ACTIVE_TIMEOUT_MS") {
        timeouts.total_ms = total;
    }
    if let Some(given) = given {
        timeouts.connect_ms = ms(&given.connect).unwrap_or(timeouts.connect_ms);
        timeouts.response_start_ms = ms(&given.response_start);
        timeouts.stream_idle_ms = ms(&given.stream_idle).unwrap_or(timeouts.stream_idle_ms);
        timeouts.stream_content_stall_ms = ms(&given.stream_content_stall).or(timeouts.stream_content_stall_ms);
        timeouts.total_ms = ms(&given.total).unwrap_or(timeouts.total_ms);
    }
    timeouts
}
