//! Client API keys: Secrets with the label `omniroute.dev/api-key=true`. Only digests reach the snapshot.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Secret as KubeSecret;
use kube::ResourceExt;
use sha2::{Digest, Sha256};

use super::connection::data;
use super::finding::hint;
use super::{Finding, Index, Severity, age};
use crate::api;
use crate::api::near::suggest;
use crate::snapshot::{ApiKey, KeyScope, Snapshot, hex};

/// The least length of a key: shorter ones can be guessed.
const MIN_LENGTH: usize = 8;

/// Findings about keys are shown on the ResilienceSettings, because Secrets have no status; without one they carry the Secret's name.
pub(super) fn compile(index: &Index<'_>, gateway: Option<&str>, snapshot: &mut Snapshot, findings: &mut Vec<Finding>) {
    let mut secrets: Vec<&&KubeSecret> =
        index.secrets.values().filter(|s| s.labels().get(api::LABEL_API_KEY).is_some_and(|v| v == "true")).collect();
    secrets.sort_by_key(|s| age(**s));
    let mut seen: BTreeMap<String, String> = BTreeMap::new();
    for secret in secrets {
        let name = secret.name_any();
        let mut problem = |field: &str, reason: &str, severity: Severity, message: String| {
            let object = gateway.map_or(("Secret", name.as_str()), |g| ("ResilienceSettings", g));
            findings.push(Finding::new(object, field, reason, severity, format!("API key of Secret `{name}`: {message}")));
        };
        let Some(raw) = data(secret, "key") else {
            problem(
                "data.key",
                "SecretKeyNotFound",
                Severity::Warning,
                "the data key `key` is missing; put the client key there".to_owned(),
            );
            continue;
        };
        let value = raw.trim_ascii();
        if value.len() < MIN_LENGTH || !value.iter().all(|b| (0x21..=0x7e).contains(b)) {
            problem(
                "data.key",
                "InvalidSpec",
                Severity::Warning,
                format!(
                    "a key has at least {MIN_LENGTH} visible ASCII characters and no white space; nobody can use this one, store another"
                ),
            );
            continue;
        }
        let sha256 = digest(value);
        if let Some(first) = seen.get(&sha256) {
            problem(
                "data.key",
                "DuplicateName",
                Severity::Warning,
                format!("has the same value as Secret `{first}`, which is older and counts; give it a value of its own"),
            );
            continue;
        }
        seen.insert(sha256.clone(), name.clone());
        let annotations = secret.annotations();
        let list = |annotation: &str| annotations.get(annotation).map(|text| split(text));
        let scopes = scopes(list(api::ANNOTATION_SCOPES), |message| {
            let field = format!("metadata.annotations[{}]", api::ANNOTATION_SCOPES);
            problem(&field, "InvalidSpec", Severity::Warning, message);
        });
        let allowed_connections = list(api::ANNOTATION_ALLOWED_CONNECTIONS);
        for wanted in allowed_connections.iter().flatten().filter(|c| !index.connections.contains_key(*c)) {
            let field = format!("metadata.annotations[{}]", api::ANNOTATION_ALLOWED_CONNECTIONS);
            let hint = hint(wanted, index.connections.keys().map(String::as_str));
            problem(&field, "ConnectionNotFound", Severity::Warning, format!("Connection `{wanted}` is not found in this namespace{hint}"));
        }
        snapshot.api_keys.push(ApiKey { name, sha256, scopes, allowed_connections, allowed_models: list(api::ANNOTATION_ALLOWED_MODELS) });
    }
}

/// What a key may do: without the annotation, inference. `unknown` is told of words that grant nothing.
fn scopes(words: Option<Vec<String>>, mut unknown: impl FnMut(String)) -> Vec<KeyScope> {
    const KNOWN: [(&str, KeyScope); 3] =
        [("inference", KeyScope::Inference), ("lease:exclusive", KeyScope::LeaseExclusive), ("management", KeyScope::Management)];
    let Some(words) = words else { return vec![KeyScope::Inference] };
    let mut scopes = BTreeSet::new();
    for word in words {
        if let Some((_, scope)) = KNOWN.iter().find(|(known, _)| *known == word) {
            scopes.insert(*scope);
        } else {
            let near = suggest(&word, KNOWN.map(|(known, _)| known)).map(|n| format!("; did you mean `{n}`?")).unwrap_or_default();
            unknown(format!("scope `{word}` is unknown and grants nothing ({}){near}", KNOWN.map(|(known, _)| known).join(", ")));
        }
    }
    scopes.into_iter().collect()
}

/// Hex SHA-256 of a client key.
#[must_use]
pub fn digest(key: &[u8]) -> String {
    hex(&Sha256::digest(key))
}

/// The words of a comma-separated annotation; an empty one is an empty list, which allows nothing (decisions 9.20).
fn split(text: &str) -> Vec<String> {
    text.split(',').map(str::trim).filter(|w| !w.is_empty()).map(str::to_owned).collect::<BTreeSet<_>>().into_iter().collect()
}
