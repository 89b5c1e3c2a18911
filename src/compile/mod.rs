//! Resources -> [`Snapshot`] + [`Finding`]s. Pure: the operator feeds it from the API server, `run` and `validate` feed it from files.
//!
//! The same resources in any order give a byte-identical snapshot. Whatever is wrong with one object is a finding on it; everything else
//! still compiles.

mod combo;
mod composed;
mod connection;
mod convert;
mod environment;
mod finding;
mod keys;
pub mod oauth;
mod presets;
mod provider;
pub mod reference;
mod rule;
mod settings;
mod store;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, Secret as KubeSecret};
use kube::{Resource, ResourceExt};
use sha2::{Digest, Sha256};

pub use crate::api::Resources;
pub use environment::Environment;
pub use finding::{Finding, Severity};
pub use keys::digest as api_key_digest;
pub use presets::{Preset, micro_usd, preset, presets};
pub use settings::{ROWS as SETTINGS, Row as Setting, Unit};

use crate::api;
use crate::api::time::EpochMs;
use crate::snapshot::{ApiKey, Command, CommandKind, CommandVerb, KeyScope, SCHEMA_VERSION, Snapshot, hex};

/// What the compiler needs to know beside the objects.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Defaults from the environment of this process.
    pub environment: Environment,
    /// Key for fingerprints of credentials: one per installation, so that fingerprints of two installations say nothing about each other.
    pub fingerprint_key: Vec<u8>,
    /// Who shares a store takes this key from it: `true` where the one above is known to this process only (`run`).
    pub fingerprints_by_store: bool,
    /// The commands of the snapshot before this one: a value that was accepted keeps its time.
    pub accepted: Vec<Command>,
    /// Now; only the accepted time of a new command depends on it.
    pub now: EpochMs,
    /// Digest (hex SHA-256) of the operator's own management token.
    pub internal_key: Option<String>,
}

/// What the compiler answers.
#[derive(Clone, Debug, Default)]
pub struct Compiled {
    /// The configuration.
    pub snapshot: Snapshot,
    /// What is wrong, sorted.
    pub findings: Vec<Finding>,
    /// Name of the ResilienceSettings that is the gateway; `None` without any.
    pub gateway: Option<String>,
    /// OAuth tokens that are to be refreshed before they end; none of it is part of the snapshot.
    pub grants: Vec<oauth::Grant>,
}

/// Compiles the objects of one namespace.
#[must_use]
pub fn compile(resources: &Resources, options: &Options) -> Compiled {
    let mut findings = Vec::new();
    let index = Index::new(resources, &mut findings);
    let gateway = index.settings.first().copied();
    let spec = gateway.and_then(|g| serde_json::to_value(&g.spec).ok()).unwrap_or_default();
    let (settings, problems) = settings::settings(&spec, &options.environment);
    if let Some(gateway) = gateway {
        let name = gateway.name_any();
        for (path, message) in problems {
            findings.push(Finding::new(("ResilienceSettings", &name), path, "InvalidSpec", Severity::Error, message));
        }
    }
    let state_store = gateway.and_then(|gateway| store::compile(&index, gateway, options, &mut findings));
    let options = &*store::keyed(options, state_store.as_ref().map(|store| &store.url));
    let mut snapshot = Snapshot { schema_version: SCHEMA_VERSION, settings, state_store, ..Snapshot::default() };
    provider::compile(&index, options, &mut snapshot, &mut findings);
    if let Some(gateway) = gateway {
        emergency_fallback(gateway, &index, &snapshot, &mut findings);
    }
    let grants = connection::compile(&index, options, &mut snapshot, &mut findings);
    combo::compile(&index, &mut snapshot, &mut findings);
    rule::compile(&index, &mut snapshot, &mut findings);
    keys::compile(&index, gateway.map(|g| g.name_any()).as_deref(), &mut snapshot, &mut findings);
    if let Some(sha256) = &options.internal_key {
        snapshot.api_keys.push(ApiKey {
            name: "omniroute-gateway-management".to_owned(),
            sha256: sha256.clone(),
            scopes: vec![KeyScope::Internal],
            allowed_connections: None,
            allowed_models: None,
        });
    }
    snapshot.api_keys.sort_by(|a, b| a.name.cmp(&b.name));
    snapshot.commands = commands(&index, options);
    snapshot.fragments = fragments(&snapshot);
    findings.sort();
    findings.dedup();
    Compiled { snapshot, findings, gateway: gateway.map(|g| g.name_any()), grants }
}

/// Says when the model of last resort is not there, which would be found out in the emergency.
fn emergency_fallback(gateway: &api::ResilienceSettings, index: &Index<'_>, snapshot: &Snapshot, findings: &mut Vec<Finding>) {
    let fallback = gateway.spec.emergency_fallback.as_ref().filter(|fallback| fallback.enabled == Some(true));
    if let Some(target) = fallback.and_then(|fallback| fallback.target.as_ref()) {
        let at = ("ResilienceSettings", &*gateway.name_any(), "spec.emergencyFallback.target");
        // `None` is told by the finding: the settings hold for everything else.
        let _ = combo::known_model(at, (&target.provider, &target.model), index, snapshot, findings);
    }
}

/// The objects by name; of two with one name (possible in files only) the first counts.
struct Index<'a> {
    providers: BTreeMap<String, &'a api::Provider>,
    connections: BTreeMap<String, &'a api::Connection>,
    combos: BTreeMap<String, &'a api::Combo>,
    settings: Vec<&'a api::ResilienceSettings>,
    rules: Vec<&'a api::OperatorErrorRule>,
    secrets: BTreeMap<String, &'a KubeSecret>,
    config_maps: BTreeMap<String, &'a ConfigMap>,
}

impl<'a> Index<'a> {
    fn new(resources: &'a Resources, findings: &mut Vec<Finding>) -> Self {
        let mut settings: Vec<&api::ResilienceSettings> = resources.settings.iter().map(AsRef::as_ref).filter(alive).collect();
        settings.sort_by_key(|s| age(*s));
        if let Some((oldest, others)) = settings.split_first() {
            for other in others {
                let message = format!(
                    "this namespace already has the gateway of ResilienceSettings `{}`, which is older; there is one gateway per namespace: delete this object or move it to another namespace",
                    oldest.name_any()
                );
                findings.push(Finding::new(
                    ("ResilienceSettings", &other.name_any()),
                    "metadata.name",
                    "Conflict",
                    Severity::Error,
                    message,
                ));
            }
        }
        let mut rules: Vec<&api::OperatorErrorRule> = resources.rules.iter().map(AsRef::as_ref).filter(alive).collect();
        rules.sort_by_key(|r| (std::cmp::Reverse(r.spec.priority), age(*r)));
        Self {
            providers: by_name(&resources.providers),
            connections: by_name(&resources.connections),
            combos: by_name(&resources.combos),
            settings,
            rules,
            secrets: by_name(&resources.secrets),
            config_maps: by_name(&resources.config_maps),
        }
    }
}

/// Objects that are being deleted no longer count.
fn alive<K: Resource>(object: &&K) -> bool {
    object.meta().deletion_timestamp.is_none()
}

/// Older first, then by name: objects in files have no time and count by name.
fn age<K: Resource>(object: &K) -> (i64, String) {
    (object.meta().creation_timestamp.as_ref().map_or(0, |t| t.0.as_millisecond()), object.name_any())
}

fn by_name<K: Resource>(objects: &[Arc<K>]) -> BTreeMap<String, &K> {
    let mut sorted: Vec<&K> = objects.iter().map(AsRef::as_ref).filter(alive).collect();
    sorted.sort_by_key(|o| age(*o));
    let mut map = BTreeMap::new();
    for object in sorted {
        map.entry(object.name_any()).or_insert(object);
    }
    map
}

fn commands(index: &Index<'_>, options: &Options) -> Vec<Command> {
    let objects = index
        .connections
        .iter()
        .map(|(name, c)| (CommandKind::Connection, name, c.annotations()))
        .chain(index.providers.iter().map(|(name, p)| (CommandKind::Provider, name, p.annotations())));
    let mut commands = Vec::new();
    for (kind, name, annotations) in objects {
        for (verb, annotation) in
            [(CommandVerb::ClearCooldown, api::ANNOTATION_CLEAR_COOLDOWN), (CommandVerb::Reset, api::ANNOTATION_RESET)]
        {
            let Some(value) = annotations.get(annotation).filter(|v| !v.is_empty()) else { continue };
            let value: String = value.chars().take(256).collect();
            let before = options.accepted.iter().find(|c| c.kind == kind && c.name == *name && c.command == verb && c.value == value);
            // Whole seconds, as the snapshot says them: rounded up, the time would lie after a cooldown of the same second.
            let accepted_time = before.map_or(EpochMs(options.now.0.div_euclid(1_000) * 1_000), |c| c.accepted_time);
            commands.push(Command { kind, name: name.clone(), command: verb, value, accepted_time });
        }
    }
    commands.sort_by(|a, b| (a.kind, &a.name, a.command).cmp(&(b.kind, &b.name, b.command)));
    commands
}

/// What each object contributes, as a short hash, so that `Programmed` can be told per object.
fn fragments(snapshot: &Snapshot) -> BTreeMap<String, String> {
    fn short<T: serde::Serialize>(value: &T) -> String {
        let json = serde_json::to_vec(value).unwrap_or_default();
        hex(&Sha256::digest(json)).chars().take(16).collect()
    }
    let mut map = BTreeMap::new();
    map.extend(snapshot.providers.iter().map(|p| (format!("Provider/{}", p.name), short(p))));
    map.extend(snapshot.connections.iter().map(|c| (format!("Connection/{}", c.name), short(c))));
    map.extend(snapshot.combos.iter().map(|c| (format!("Combo/{}", c.name), short(c))));
    map.extend(snapshot.rules.iter().map(|r| (format!("OperatorErrorRule/{}", r.name), short(r))));
    let gateway = (&snapshot.settings, &snapshot.api_keys);
    map.insert(
        "ResilienceSettings".to_owned(),
        snapshot.state_store.as_ref().map_or_else(|| short(&gateway), |store| short(&(gateway, store))),
    );
    map
}

/// The names in `set` as text for messages.
fn names(set: &BTreeSet<&str>) -> String {
    set.iter().map(|n| format!("`{n}`")).collect::<Vec<_>>().join(", ")
}
