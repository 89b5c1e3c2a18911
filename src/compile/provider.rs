//! Providers: preset, then the fields of the resource over it.

use std::collections::BTreeMap;

use super::convert::unsigned;
use super::finding::hint;
use super::presets::{Preset, micro_usd, preset, presets};
use super::{Finding, Index, Options, Severity};
use crate::api;
use crate::classify::{AuthClass, ProviderTraits, QuotaReset};
use crate::protocol::headers::{never_forwarded, set_by_sender};
use crate::snapshot::{self, Model, Price, QuotaFamily, Snapshot, Timeouts};

const KIND: &str = "Provider";

/// Field, reason, severity and message of the finding that keeps a provider out.
pub(super) type Refused = (String, &'static str, Severity, String);

pub(super) fn compile(index: &Index<'_>, options: &Options, snapshot: &mut Snapshot, findings: &mut Vec<Finding>) {
    for (name, resource) in &index.providers {
        match one(name, &resource.spec, index, options, snapshot, findings) {
            Ok(provider) => snapshot.providers.push(provider),
            Err((field, reason, severity, message)) => findings.push(Finding::new((KIND, name), field, reason, severity, message)),
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
) -> Result<snapshot::Provider, Refused> {
    let known = known(spec)?;
    let base_url = base_url(spec, known)?;
    let dialects = dialects(spec, known)?;
    let preset_traits = known.map(Preset::traits).unwrap_or_default();
    let class: AuthClass = spec.auth_class.map_or_else(|| preset_traits.auth_class, Into::into);
    let trusted = spec.tls.as_ref().map(|tls| ("spec.tls.caBundle", &tls.ca_bundle));
    let ca_bundle = trusted.map(|(field, bundle)| ca_bundle(field, bundle, index)).transpose()?;
    let quota_reset = quota_reset(spec, &preset_traits)?;
    carrier("spec.auth.header", spec.auth.as_ref())?;
    let mut auth_by_dialect = known.map(Preset::auth_by_dialect).unwrap_or_default();
    if spec.auth.is_some() {
        auth_by_dialect.clear();
    }
    for (at, endpoint) in spec.endpoints.iter().enumerate() {
        carrier(&format!("spec.endpoints[{at}].auth.header"), endpoint.auth.as_ref())?;
        if let Some(auth) = &endpoint.auth {
            auth_by_dialect.insert(endpoint.dialect.into(), auth.into());
        }
    }
    let mut headers = known.map(|k| k.headers.clone()).unwrap_or_default();
    headers.extend(static_headers(name, spec, findings));
    let quota_families = match spec.capabilities.as_ref().map(|c| &c.quota_families) {
        Some(families) if !families.is_empty() => {
            families.iter().map(|f| QuotaFamily { name: f.name.clone(), models: f.models.clone() }).collect()
        }
        _ => known.map(Preset::quota_families).unwrap_or_default(),
    };
    Ok(snapshot::Provider {
        name: name.to_owned(),
        base_url: trim(base_url),
        base_urls: spec.endpoints.iter().filter_map(|e| Some((e.dialect.into(), trim(e.base_url.as_deref()?)))).collect(),
        auth: spec.auth.as_ref().map_or_else(|| known.map(Preset::auth).unwrap_or_default(), Into::into),
        auth_by_dialect,
        query: spec.query.clone(),
        dialects,
        headers,
        forward_headers: forward_headers(name, spec, findings),
        traits: traits(name, spec, known, &preset_traits, class, quota_reset),
        quota_families,
        open_model_list: known.is_some()
            || spec.models.is_empty()
            || spec.capabilities.as_ref().and_then(|c| c.passthrough_models).unwrap_or(false),
        models: models(spec, known),
        timeouts: timeouts(spec.timeouts.as_ref(), options),
        account_strategy: spec.account_strategy.into(),
        ca_bundle,
        breaker: *snapshot.settings.provider_breaker.get(class),
        window_gate: *snapshot.settings.provider_window.get(class),
        max_concurrent: unsigned(spec.max_concurrent),
    })
}

/// The preset that is named.
fn known(spec: &api::ProviderSpec) -> Result<Option<&'static Preset>, Refused> {
    let Some(id) = spec.preset.as_deref() else { return Ok(None) };
    if let Some(known) = preset(id) {
        return Ok(Some(known));
    }
    let hint = hint(id, presets().iter().map(|p| p.id.as_str()));
    let message = format!("there is no preset `{id}`: name a known vendor, or give `baseURL` and `dialects` instead{hint}");
    Err(("spec.preset".to_owned(), "InvalidSpec", Severity::Error, message))
}

/// The address of its own, once no address carries a credential.
fn base_url<'a>(spec: &'a api::ProviderSpec, known: Option<&'a Preset>) -> Result<&'a str, Refused> {
    let refused = |field: String, message: String| (field, "InvalidSpec", Severity::Error, message);
    let field = || "spec.baseURL".to_owned();
    let Some(base_url) = spec.base_url.as_deref().or(known.and_then(|k| k.base_url.as_deref())) else {
        let shape = known.and_then(|k| k.needs_base_url.as_deref()).unwrap_or("https://HOST/v1");
        let message = format!("`baseURL` is missing: this provider has no address of its own, give one like {shape}");
        return Err(refused(field(), message));
    };
    let endpoints = spec.endpoints.iter().enumerate();
    let endpoints = endpoints.filter_map(|(i, e)| Some((format!("spec.endpoints[{i}].baseURL"), e.base_url.as_deref()?)));
    let holds_credential =
        |url: &str| url.parse::<http::Uri>().ok().and_then(|u| u.authority().map(|a| a.as_str().contains('@'))).unwrap_or(true);
    if let Some((field, _)) = std::iter::once((field(), base_url)).chain(endpoints).find(|(_, url)| holds_credential(url)) {
        let message = "`baseURL` must be a URL without user or password: put the credential into a Secret and name it in a Connection";
        return Err(refused(field, message.to_owned()));
    }
    Ok(base_url)
}

/// What it speaks.
fn dialects(spec: &api::ProviderSpec, known: Option<&Preset>) -> Result<Vec<snapshot::Dialect>, Refused> {
    let dialects: Vec<snapshot::Dialect> = if spec.dialects.is_empty() {
        known.map(|k| k.dialects.clone()).unwrap_or_default()
    } else {
        spec.dialects.iter().map(|d| (*d).into()).collect()
    };
    if dialects.is_empty() {
        let message = "`dialects` is empty: list what the provider speaks, such as ChatCompletions".to_owned();
        return Err(("spec.dialects".to_owned(), "InvalidSpec", Severity::Error, message));
    }
    Ok(dialects)
}

/// The certificates to trust. They may come from another controller; without them TLS would fail closed, so who asks for them stays out until
/// they are there.
pub(super) fn ca_bundle(field: &str, bundle: &api::provider::CaBundle, index: &Index<'_>) -> Result<String, Refused> {
    let (name, key) = (&bundle.config_map_ref.name, &bundle.config_map_ref.key);
    let refused = |part: &str, message: String| Err((format!("{field}.configMapRef.{part}"), "InvalidSpec", Severity::Unresolved, message));
    let Some(map) = index.config_maps.get(name) else {
        let message = format!("ConfigMap `{name}` is not found: create it with the key `{key}`");
        return refused("name", message);
    };
    let found = map.data.as_ref().and_then(|d| d.get(key));
    if let Some(pem) = found.filter(|pem| trusted(pem)) {
        return Ok(pem.clone());
    }
    let message = if found.is_some() {
        format!("key `{key}` of ConfigMap `{name}` holds no usable PEM certificate: put the CA certificates there in PEM form")
    } else {
        let keys = map.data.iter().flat_map(BTreeMap::keys).map(String::as_str);
        format!("ConfigMap `{name}` has no key `{key}`: put the CA certificates there in PEM form{}", hint(key, keys))
    };
    refused("key", message)
}

/// When the vendor's day begins.
fn quota_reset(spec: &api::ProviderSpec, preset: &ProviderTraits) -> Result<Option<QuotaReset>, Refused> {
    let given = spec.quota_reset.as_ref();
    let reset = given
        .map(|r| QuotaReset { time_zone: r.time_zone.clone(), hour: u8::try_from(r.hour).unwrap_or(0) })
        .or_else(|| preset.quota_reset.clone());
    match reset {
        Some(reset) if jiff::tz::TimeZone::get(&reset.time_zone).is_err() => {
            let message = format!("`{}` is no IANA time zone: use one like Asia/Shanghai or UTC", reset.time_zone);
            Err(("spec.quotaReset.timeZone".to_owned(), "InvalidSpec", Severity::Error, message))
        }
        reset => Ok(reset),
    }
}

/// Refuses a credential in a header that says how a request is sent.
fn carrier(field: &str, auth: Option<&api::provider::UpstreamAuth>) -> Result<(), Refused> {
    let header = auth.and_then(|auth| auth.header.as_deref());
    match header.filter(|header| header.parse().is_ok_and(|name| set_by_sender(&name))) {
        None => Ok(()),
        Some(header) => {
            let message = format!(
                "`{header}` says how a request is sent and cannot carry a credential: name the provider's header, such as x-api-key"
            );
            Err((field.to_owned(), "InvalidSpec", Severity::Error, message))
        }
    }
}

/// The headers that are added to every request; those that say how it is sent are findings.
fn static_headers(name: &str, spec: &api::ProviderSpec, findings: &mut Vec<Finding>) -> Vec<(String, String)> {
    let mut headers = Vec::new();
    for (at, header) in spec.headers.iter().enumerate() {
        let lower = header.name.to_ascii_lowercase();
        if lower.parse().is_ok_and(|name| set_by_sender(&name)) {
            let message = format!(
                "`{lower}` says how a request is sent, which the gateway decides: remove it; the host stands in `baseURL`, and answers are asked for uncompressed"
            );
            findings.push(Finding::new((KIND, name), format!("spec.headers[{at}].name"), "InvalidSpec", Severity::Error, message));
        } else {
            headers.push((lower, header.value.clone()));
        }
    }
    headers
}

/// The client's headers that may go on, sorted; others are findings.
fn forward_headers(name: &str, spec: &api::ProviderSpec, findings: &mut Vec<Finding>) -> Vec<String> {
    let mut forwarded = Vec::new();
    for (at, header) in spec.forward_headers.iter().enumerate() {
        let header = header.to_ascii_lowercase();
        if header.parse().is_ok_and(|name| never_forwarded(&name)) {
            let message = format!(
                "`{header}` is never forwarded (it carries credentials, frames one connection, or is the gateway's own): remove it; what a provider needs of its own stands in `auth` and `headers`"
            );
            let field = format!("spec.forwardHeaders[{at}]");
            findings.push(Finding::new((KIND, name), field, "InvalidSpec", Severity::Error, message));
        } else {
            forwarded.push(header);
        }
    }
    forwarded.sort_unstable();
    forwarded.dedup();
    forwarded
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
