//! Files -> snapshot, again whenever they change. A file or object that has become unusable keeps its last good version.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use base64::Engine as _;
use k8s_openapi::api::core::v1::Secret;
use kube::{Resource, ResourceExt};

use crate::api::{Connection, Resources};
use crate::cli::files;
use crate::compile::oauth::{Grant, Tokens};
use crate::compile::{self, Environment, Options, Severity, api_key_digest, compile};
use crate::gateway::{Identity, clock};
use crate::manifest::{self, Level, Parsed, Problem, Written};
use crate::resilience::FindingState;
use crate::snapshot::{ApiKey, AuthMode, KeyScope, Snapshot};

/// Why the manifests could not be read at all.
#[derive(thiserror::Error, Debug)]
pub enum ManifestError {
    /// A path that was named does not exist or cannot be read.
    #[error("{0}; name files or folders that exist with -f")]
    Unreadable(String),
    /// Several namespaces, none chosen.
    #[error("the manifests hold objects of several namespaces ({0}): choose one with --namespace")]
    Namespaces(String),
}

/// What looking at the files found.
#[derive(Debug)]
pub enum News {
    /// No change.
    Nothing,
    /// They changed, and cannot be used as a whole.
    Unreadable(String),
    /// They changed.
    Loaded(Box<Compiled>),
}

/// A compiled set of manifests.
#[derive(Debug)]
pub struct Compiled {
    /// The configuration.
    pub snapshot: Snapshot,
    /// What is wrong, for `/state`.
    pub findings: Vec<FindingState>,
    /// OAuth tokens to refresh.
    pub grants: Vec<Grant>,
    /// The generated management key, in clear, when none is among the manifests.
    pub generated_key: Option<String>,
    lines: Vec<(Level, String)>,
}

impl Compiled {
    /// Logs what is wrong.
    pub fn log(&self) {
        for (level, line) in &self.lines {
            match level {
                Level::Error => tracing::error!("{line}"),
                Level::Warning => tracing::warn!("{line}"),
            }
        }
    }
}

/// The manifests of `run`.
#[derive(Debug)]
pub struct Manifests {
    paths: Vec<PathBuf>,
    namespace: Option<String>,
    options: Options,
    generated_key: String,
    signature: Vec<Signature>,
    good: Option<Parsed>,
    tokens: BTreeMap<String, Tokens>,
}

/// By what a changed file is recognised. A rename brings another inode, a write another time or length.
type Signature = (PathBuf, Option<(SystemTime, u64, u64)>);

impl Manifests {
    /// Manifests in files and folders.
    #[must_use]
    pub fn new(paths: Vec<PathBuf>, namespace: Option<String>, identity: Identity, tokens: BTreeMap<String, Tokens>) -> Self {
        let random: [u8; 32] = rand::random();
        let options = Options {
            environment: std::env::vars().collect::<Environment>(),
            accepted: identity.accepted(),
            fingerprint_key: identity.fingerprint_key,
            fingerprints_by_store: true,
            ..Options::default()
        };
        let generated_key = format!("omr_{}", base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(random));
        Self { paths, namespace, options, generated_key, signature: Vec::new(), good: None, tokens }
    }

    /// Reads the files for the first time.
    ///
    /// # Errors
    /// A path that cannot be read, or a choice that is missing. Objects that are wrong are findings.
    pub fn read(&mut self) -> Result<Compiled, ManifestError> {
        self.signature = signature(&self.paths);
        let (sources, unreadable) = files::read(&self.paths);
        if let Some(first) = unreadable.first() {
            return Err(ManifestError::Unreadable(first.to_string()));
        }
        self.compile(manifest::parse(&sources), Vec::new())
    }

    /// Looks whether the files changed, and reads them again if so.
    pub fn changed(&mut self) -> News {
        let signature = signature(&self.paths);
        if signature == self.signature {
            return News::Nothing;
        }
        self.signature = signature;
        let (sources, unreadable) = files::read(&self.paths);
        let unreadable: Vec<String> = unreadable.iter().map(ToString::to_string).collect();
        if sources.is_empty() && !unreadable.is_empty() {
            return News::Unreadable(unreadable.join("; "));
        }
        match self.compile(manifest::parse(&sources), unreadable) {
            Ok(compiled) => News::Loaded(Box::new(compiled)),
            Err(error) => News::Unreadable(error.to_string()),
        }
    }

    /// Reads the files again, because tokens were refreshed.
    pub fn refreshed(&mut self, tokens: BTreeMap<String, Tokens>) -> News {
        self.tokens = tokens;
        self.signature.clear();
        self.changed()
    }

    fn compile(&mut self, mut parsed: Parsed, unreadable: Vec<String>) -> Result<Compiled, ManifestError> {
        let mut lines: Vec<(Level, String)> = unreadable.into_iter().map(|line| (Level::Error, line)).collect();
        lines.extend(parsed.problems.iter().map(|p| (p.level, p.to_string())));
        if let Some(good) = &self.good {
            for name in keep_last_good(&mut parsed, good) {
                lines.push((Level::Warning, format!("{name} is not usable as it stands now: its last good version stays")));
            }
        }
        let (namespace, mut resources) = one_namespace(&parsed.resources, self.namespace.as_deref())?;
        resources.secrets.extend(kept(&resources, &self.tokens));
        self.options.now = clock::now();
        let compile::Compiled { mut snapshot, findings, grants, .. } = compile(&resources, &self.options);
        self.options.accepted.clone_from(&snapshot.commands);
        let mut shown: Vec<FindingState> = parsed.problems.iter().map(of_problem).collect();
        for finding in findings {
            let level = if finding.severity == Severity::Error { Level::Error } else { Level::Warning };
            let place = find(&parsed, &finding.kind, namespace.as_deref(), &finding.name)
                .map(|w| format!("{}: ", w.at(&finding.field)))
                .unwrap_or_default();
            lines.push((level, format!("{place}{} `{}`: {}: {}", finding.kind, finding.name, finding.field, finding.message)));
            let compile::Finding { kind, name, field, reason, message, .. } = finding;
            shown.push(FindingState { kind, name, field, reason, message });
        }
        if snapshot.api_keys.is_empty() && !matches!(snapshot.settings.auth, AuthMode::None) {
            let line = "there is no API key, so nobody gets in: add a Secret with the label omniroute.dev/api-key=true, or say `auth: {mode: None}`";
            lines.push((Level::Warning, line.to_owned()));
        }
        let generated_key = self.management_key(&mut snapshot);
        self.good = Some(parsed);
        Ok(Compiled { snapshot, findings: shown, grants, generated_key, lines })
    }

    /// Adds the generated key unless the manifests bring one of their own (decisions 9.17).
    fn management_key(&self, snapshot: &mut Snapshot) -> Option<String> {
        if snapshot.api_keys.iter().any(|key| key.scopes.contains(&KeyScope::Management)) {
            return None;
        }
        snapshot.api_keys.push(ApiKey {
            name: "omniroute-generated-management".to_owned(),
            sha256: api_key_digest(self.generated_key.as_bytes()),
            scopes: vec![KeyScope::Management],
            allowed_connections: None,
            allowed_models: None,
        });
        snapshot.api_keys.sort_by(|a, b| a.name.cmp(&b.name));
        Some(self.generated_key.clone())
    }
}

/// Refreshed tokens as the Secrets that they are in a cluster.
fn kept(resources: &Resources, tokens: &BTreeMap<String, Tokens>) -> Vec<Arc<Secret>> {
    let of = |connection: &Arc<Connection>| {
        let name = connection.name_any();
        let uid = connection.metadata.uid.as_deref().unwrap_or_default();
        Some(Arc::new(tokens.get(&name)?.secret(&name, uid)))
    };
    resources.connections.iter().filter_map(of).collect()
}

fn of_problem(problem: &Problem) -> FindingState {
    FindingState {
        kind: problem.kind.clone(),
        name: problem.name.clone(),
        field: problem.field.clone(),
        reason: format!("{:?}", problem.reason),
        message: problem.message.clone(),
    }
}

/// Where an object was written; objects without a namespace belong to the one that is served.
fn find<'a>(parsed: &'a Parsed, kind: &str, namespace: Option<&str>, name: &str) -> Option<&'a Written> {
    parsed.find(kind, namespace, name).or_else(|| parsed.find(kind, None, name))
}

/// The objects of the namespace to serve, and its name if it has one.
fn one_namespace(resources: &Resources, wanted: Option<&str>) -> Result<(Option<String>, Resources), ManifestError> {
    let mut spaces = resources.by_namespace();
    match wanted {
        Some(name) => {
            let name = Some(name.to_owned());
            let chosen = spaces.remove(&name).or_else(|| spaces.remove(&None)).unwrap_or_default();
            Ok((name, chosen))
        }
        None if spaces.len() > 1 => {
            let names: Vec<String> = spaces.keys().map(|name| name.clone().unwrap_or_else(|| "none".to_owned())).collect();
            Err(ManifestError::Namespaces(names.join(", ")))
        }
        None => Ok(spaces.into_iter().next().unwrap_or_default()),
    }
}

/// Puts back what was good before and is now broken: objects with an error of their own, and everything of a file that is no longer read.
/// Objects that are simply gone stay gone. Answers what was put back.
fn keep_last_good(parsed: &mut Parsed, good: &Parsed) -> Vec<String> {
    let errors = || parsed.problems.iter().filter(|p| p.level == Level::Error);
    let objects: BTreeSet<(&str, &str)> = errors().map(|p| (p.kind.as_str(), p.name.as_str())).collect();
    let files: BTreeSet<&str> = errors().filter(|p| p.name.is_empty()).map(|p| p.place.source.as_str()).collect();
    let wanted = |kind: &str, namespace: Option<&str>, name: &str| {
        let in_broken_file = || find(good, kind, namespace, name).is_some_and(|written| files.contains(written.place.source.as_str()));
        objects.contains(&(kind, name)) || in_broken_file()
    };
    let mut kept = Vec::new();
    let (now, before) = (&mut parsed.resources, &good.resources);
    keep("Provider", &mut now.providers, &before.providers, &wanted, &mut kept);
    keep("Connection", &mut now.connections, &before.connections, &wanted, &mut kept);
    keep("Combo", &mut now.combos, &before.combos, &wanted, &mut kept);
    keep("ResilienceSettings", &mut now.settings, &before.settings, &wanted, &mut kept);
    keep("OperatorErrorRule", &mut now.rules, &before.rules, &wanted, &mut kept);
    keep("Secret", &mut now.secrets, &before.secrets, &wanted, &mut kept);
    keep("ConfigMap", &mut now.config_maps, &before.config_maps, &wanted, &mut kept);
    kept
}

/// Whether an object, by kind, namespace and name, is to be kept.
type Wanted<'a> = dyn Fn(&str, Option<&str>, &str) -> bool + 'a;

fn keep<K: Resource>(kind: &str, now: &mut Vec<Arc<K>>, before: &[Arc<K>], wanted: &Wanted<'_>, kept: &mut Vec<String>) {
    let there: BTreeSet<(Option<String>, String)> = now.iter().map(|object| (object.namespace(), object.name_any())).collect();
    for object in before {
        let name = object.name_any();
        if !there.contains(&(object.namespace(), name.clone())) && wanted(kind, object.namespace().as_deref(), &name) {
            kept.push(format!("{kind} `{name}`"));
            now.push(Arc::clone(object));
        }
    }
}

/// All manifests below the paths with what tells a change. Unreadable entries count as they are: they change when they become readable.
fn signature(paths: &[PathBuf]) -> Vec<Signature> {
    let mut all = Vec::new();
    for path in paths.iter().filter(|path| path.as_os_str() != "-") {
        visit(path, 0, &mut all);
    }
    all
}

/// Deeper folders are not looked at; the reader refuses them as well.
const MAX_DEPTH: usize = 16;

fn visit(path: &Path, depth: usize, all: &mut Vec<Signature>) {
    let Ok(meta) = fs::metadata(path) else { return all.push((path.to_owned(), None)) };
    if !meta.is_dir() {
        let modified = meta.modified().unwrap_or(SystemTime::UNIX_EPOCH);
        return all.push((path.to_owned(), Some((modified, meta.len(), meta.ino()))));
    }
    let Ok(entries) = fs::read_dir(path) else { return all.push((path.to_owned(), None)) };
    let mut entries: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).filter(|path| !hidden(path)).collect();
    entries.sort();
    if depth < MAX_DEPTH {
        entries.iter().for_each(|entry| visit(entry, depth + 1, all));
    }
}

fn hidden(path: &Path) -> bool {
    path.file_name().is_none_or(|name| name.as_encoded_bytes().starts_with(b"."))
}
