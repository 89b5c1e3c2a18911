//! One document -> one object (or the items of a List), checked and added to what was read so far.

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::cel::Checker;
use super::problem::{Level, Place, Problem, Reason};
use super::schema::Violation;
use super::split::Document;
use super::yaml::{Composed, Note, compose};
use super::{Identity, Parsed, Written, core};
use crate::api::near::suggest;
use crate::api::{API_VERSION, GROUP};

/// Reads one document.
pub fn read(checker: &Checker, document: Document<'_>, place: &Place, parsed: &mut Parsed) {
    if document.is_empty() {
        return;
    }
    let composed = match compose(document.text) {
        Ok(composed) => composed,
        Err(failure) => match serde_json::from_str(document.text) {
            // JSON is YAML, but for oddities like tabs: what a JSON parser takes is good.
            Ok(value) => Composed { value, ..Composed::default() },
            Err(_) => {
                let place = Place { line: shift(failure.line, place), ..place.clone() };
                parsed.problems.push(problem(place, Level::Error, Reason::Syntax, failure.message));
                return;
            }
        },
    };
    let Composed { value, lines, notes } = composed;
    if value.is_null() {
        return;
    }
    let lines: BTreeMap<String, u32> = lines.into_iter().map(|(path, line)| (path, shift(line, place))).collect();
    let notes: Vec<Note> = notes.into_iter().map(|n| Note { line: shift(n.line, place), ..n }).collect();
    let is_list = value["kind"].as_str().is_some_and(|k| k.ends_with("List")) && value["items"].is_array();
    if !is_list {
        one(checker, value, Written { place: at(place, &lines, ""), lines }, notes, parsed);
        return;
    }
    let Value::Array(items) = value["items"].clone() else { return };
    for (i, item) in items.into_iter().enumerate() {
        let prefix = format!("items[{i}]");
        let own: BTreeMap<String, u32> =
            lines.iter().filter_map(|(path, line)| Some((path.strip_prefix(&prefix)?.trim_start_matches('.').to_owned(), *line))).collect();
        let notes =
            notes.iter().filter_map(|n| Some(Note { path: n.path.strip_prefix(&format!("{prefix}."))?.to_owned(), ..n.clone() })).collect();
        one(checker, item, Written { place: at(place, &own, ""), lines: own }, notes, parsed);
    }
}

fn shift(line: u32, place: &Place) -> u32 {
    place.line.saturating_add(line).saturating_sub(1)
}

fn at(place: &Place, lines: &BTreeMap<String, u32>, path: &str) -> Place {
    Place { line: lines.get(path).copied().unwrap_or(place.line), ..place.clone() }
}

fn problem(place: Place, level: Level, reason: Reason, message: impl Into<String>) -> Problem {
    Problem { place, level, reason, kind: String::new(), name: String::new(), field: String::new(), message: message.into() }
}

/// What a document says it is.
enum Known {
    Ours(String),
    Secret,
    ConfigMap,
}

fn one(checker: &Checker, mut object: Value, written: Written, notes: Vec<Note>, parsed: &mut Parsed) {
    let known = match recognise(checker, &object) {
        Ok(known) => known,
        Err((level, reason, message)) => {
            parsed.problems.push(problem(written.place, level, reason, message));
            return;
        }
    };
    let kind = match &known {
        Known::Ours(kind) => kind.clone(),
        Known::Secret => "Secret".to_owned(),
        Known::ConfigMap => "ConfigMap".to_owned(),
    };
    let secret = matches!(known, Known::Secret);
    let metadata = &object["metadata"];
    let identity = Identity {
        kind: kind.clone(),
        namespace: metadata["namespace"].as_str().map(str::to_owned),
        name: metadata["name"].as_str().unwrap_or_default().to_owned(),
    };
    let mut found: Vec<Violation> = notes.into_iter().map(|note| from_note(note, secret)).collect();
    found.extend(metadata_violations(checker, metadata));
    match &known {
        Known::Ours(kind) => {
            if let Some(map) = object.as_object_mut() {
                // Status belongs to the operator; an API server ignores it in what people send.
                map.remove("status");
            }
            found.extend(checker.check(kind, &mut object));
        }
        Known::Secret => found.extend(core_violations(checker, core::secret(), &object, &["data"])),
        Known::ConfigMap => found.extend(core_violations(checker, core::config_map(), &object, &["binaryData"])),
    }
    if let Some(first) = parsed.objects.get(&identity).filter(|_| !identity.name.is_empty()) {
        let message = format!("{} `{}` is defined twice, first at {}; keep one of them", identity.kind, identity.name, first.place);
        found.push(Violation { path: "metadata.name".to_owned(), reason: Reason::DuplicateObject, message });
    }
    let good = found.iter().all(|v| level(v.reason) == Level::Warning);
    for violation in found {
        parsed.problems.push(Problem {
            place: written.at(&violation.path),
            level: level(violation.reason),
            reason: violation.reason,
            kind: kind.clone(),
            name: identity.name.clone(),
            field: violation.path,
            message: violation.message,
        });
    }
    if good && let Err(message) = add(&known, object, parsed) {
        let problem = problem(written.place.clone(), Level::Error, Reason::WrongType, message);
        parsed.problems.push(Problem { kind, name: identity.name.clone(), ..problem });
    }
    parsed.objects.entry(identity).or_insert(written);
}

/// Values that YAML versions read differently are no reason to refuse an object; everything else is.
fn level(reason: Reason) -> Level {
    if reason == Reason::YamlVersion { Level::Warning } else { Level::Error }
}

fn from_note(note: Note, secret: bool) -> Violation {
    let message = if secret && note.reason == Reason::YamlVersion {
        "this value without quotes is no text for kubectl, which reads YAML 1.1; put it in quotes".to_owned()
    } else {
        note.message
    };
    Violation { path: note.path, reason: note.reason, message }
}

fn recognise(checker: &Checker, object: &Value) -> Result<Known, (Level, Reason, String)> {
    if !object.is_object() {
        return Err((Level::Error, Reason::Syntax, "a manifest is a mapping with `apiVersion`, `kind`, `metadata` and `spec`".to_owned()));
    }
    let (Some(version), Some(kind)) = (object["apiVersion"].as_str(), object["kind"].as_str()) else {
        let message = "this is no manifest: it has no `apiVersion` and `kind`; move it elsewhere or complete it";
        return Err((Level::Error, Reason::RequiredField, message.to_owned()));
    };
    match (version, kind) {
        ("v1", "Secret") => return Ok(Known::Secret),
        ("v1", "ConfigMap") => return Ok(Known::ConfigMap),
        (API_VERSION, kind) if checker.kinds().any(|k| k == kind) => return Ok(Known::Ours(kind.to_owned())),
        _ => {}
    }
    let group = version.split('/').next().unwrap_or_default();
    if version == API_VERSION {
        let kinds: Vec<&str> = checker.kinds().collect();
        let hint = suggest(kind, kinds.iter().copied())
            .map_or_else(|| format!("the kinds are {}", kinds.join(", ")), |near| format!("did you mean `{near}`?"));
        return Err((Level::Error, Reason::UnknownKind, format!("there is no kind `{kind}` in {API_VERSION}; {hint}")));
    }
    if group == GROUP {
        return Err((Level::Error, Reason::UnknownKind, format!("there is no version `{version}`; write `apiVersion: {API_VERSION}`")));
    }
    let hint = if checker.kinds().any(|k| k == kind) {
        format!("; for the kind of omniroute write `apiVersion: {API_VERSION}`")
    } else {
        String::new()
    };
    Err((Level::Warning, Reason::UnknownKind, format!("{kind} of `{version}` is not read by omniroute and was skipped{hint}")))
}

fn metadata_violations(checker: &Checker, metadata: &Value) -> Vec<Violation> {
    if metadata.is_null() {
        let message = "`metadata` with a `name` is required".to_owned();
        return vec![Violation { path: "metadata".to_owned(), reason: Reason::RequiredField, message }];
    }
    let mut metadata = metadata.clone();
    super::schema::drop_nulls(&mut metadata);
    let wrapped = json!({"type": "object", "properties": {"metadata": core::metadata()}});
    checker.check_plain(&wrapped, &json!({"metadata": metadata}))
}

fn core_violations(checker: &Checker, schema: &Value, object: &Value, binary: &[&str]) -> Vec<Violation> {
    let mut object = object.clone();
    super::schema::drop_nulls(&mut object);
    let mut out = checker.check_core(schema, &object);
    for field in ["data", "stringData", "binaryData"] {
        for (key, value) in object[field].as_object().into_iter().flatten() {
            let path = format!("{field}.{key}");
            if !core::is_key(key) {
                let message = "is no key: letters, digits, `-`, `_` and `.` only, at most 253".to_owned();
                out.push(Violation { path: path.clone(), reason: Reason::InvalidValue, message });
            }
            if binary.contains(&field) && value.as_str().is_some_and(|text| decode(text).is_none()) {
                let way_out = if field == "data" { "put the text itself under `stringData`" } else { "put text under `data`" };
                out.push(Violation { path, reason: Reason::InvalidValue, message: format!("must be base64; {way_out}") });
            }
        }
    }
    out
}

fn decode(text: &str) -> Option<Vec<u8>> {
    let text: String = text.chars().filter(|c| !matches!(c, '\r' | '\n')).collect();
    base64::engine::general_purpose::STANDARD.decode(text).ok()
}

fn add(known: &Known, object: Value, parsed: &mut Parsed) -> Result<(), String> {
    let resources = &mut parsed.resources;
    match known {
        Known::Ours(kind) => match kind.as_str() {
            "Provider" => resources.providers.push(typed(object)?),
            "Connection" => resources.connections.push(typed(object)?),
            "Combo" => resources.combos.push(typed(object)?),
            "ResilienceSettings" => resources.settings.push(typed(object)?),
            "OperatorErrorRule" => resources.rules.push(typed(object)?),
            other => return Err(format!("reading the object: there is no type for kind `{other}`")),
        },
        Known::Secret => resources.secrets.push(Arc::new(merged_secret(object)?)),
        Known::ConfigMap => resources.config_maps.push(typed::<ConfigMap>(object)?),
    }
    Ok(())
}

fn typed<T: DeserializeOwned>(object: Value) -> Result<Arc<T>, String> {
    serde_json::from_value(object).map(Arc::new).map_err(|e| format!("reading the object: {e}"))
}

/// `stringData` is moved into `data`, as the API server does it. The error never quotes a value.
fn merged_secret(mut object: Value) -> Result<Secret, String> {
    super::schema::drop_nulls(&mut object);
    let mut secret: Secret =
        serde_json::from_value(object).map_err(|_| "reading the Secret: its members have the wrong types".to_owned())?;
    let texts = secret.string_data.take().unwrap_or_default();
    let data = secret.data.get_or_insert_default();
    data.extend(texts.into_iter().map(|(key, value)| (key, ByteString(value.into_bytes()))));
    Ok(secret)
}
