//! Golden pairs: resources in (`NAME.in.yaml`), what the compiler makes of them out (`NAME.out.json`). Each pair is about the one thing that
//! it is named by.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use omniroute::api::schema::definitions;
use omniroute::compile::{Compiled, Options, compile};
use serde_json::{Map, Value, json};

use crate::options;
use crate::support::resources;

/// The pair whose objects have nothing but what they must have. It is shown as it is, the others by how they differ from it.
const PLAIN: &str = "plain";

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/compile")
}

/// Name and text of every input.
pub fn inputs() -> Vec<(String, String)> {
    let mut inputs: Vec<(String, String)> = std::fs::read_dir(folder())
        .unwrap()
        .filter_map(|entry| {
            let path = entry.unwrap().path();
            let name = path.file_name()?.to_str()?.strip_suffix(".in.yaml")?.to_owned();
            Some((name, std::fs::read_to_string(&path).unwrap()))
        })
        .collect();
    inputs.sort();
    inputs
}

/// The options of a pair: comments like `# env NAME=VALUE` are the environment.
pub fn options_of(yaml: &str) -> Options {
    let variables = yaml.lines().filter_map(|line| line.strip_prefix("# env ")?.split_once('='));
    Options { environment: variables.map(|(name, value)| (name.to_owned(), value.to_owned())).collect(), ..options() }
}

fn compiled(yaml: &str) -> Compiled {
    compile(&resources(yaml), &options_of(yaml))
}

fn snapshot(compiled: &Compiled) -> Value {
    let mut snapshot = serde_json::to_value(&compiled.snapshot).unwrap();
    snapshot.as_object_mut().unwrap().remove("fragments");
    let sources = snapshot["settings"]["sources"].as_object_mut().unwrap();
    sources.retain(|_, source| source != "default");
    snapshot
}

/// The members of `value` that `plain` has not, or has otherwise; `None` = none.
fn difference(value: &Value, plain: &Value) -> Option<Value> {
    if value == plain {
        return None;
    }
    let (Some(members), Some(plain)) = (value.as_object(), plain.as_object()) else { return Some(value.clone()) };
    let mut shown: Map<String, Value> =
        plain.keys().filter(|key| !members.contains_key(*key)).map(|key| (key.clone(), Value::Null)).collect();
    for (key, member) in members {
        let known = plain.get(key).unwrap_or(&Value::Null);
        shown.extend(difference(member, known).map(|member| (key.clone(), member)));
    }
    Some(Value::Object(shown))
}

/// What a pair shows: each object with its name and how it differs from the plain one of its kind; the settings likewise.
fn shown(compiled: &Compiled, plain: Option<&Value>) -> Value {
    let mut snapshot = snapshot(compiled);
    if let Some(plain) = plain {
        for (list, objects) in snapshot.as_object_mut().unwrap() {
            for object in objects.as_array_mut().into_iter().flatten() {
                let name = object["name"].clone();
                *object = difference(object, &plain[list][0]).unwrap_or_else(|| json!({}));
                object["name"] = name;
            }
        }
        snapshot["settings"] = difference(&snapshot["settings"], &plain["settings"]).unwrap_or_default();
    }
    let empty = |v: &Value| v.is_null() || v.as_array().is_some_and(Vec::is_empty);
    snapshot.as_object_mut().unwrap().retain(|name, value| !empty(value) && (name != "schemaVersion" || plain.is_none()));
    let grants: Vec<Value> = compiled
        .grants
        .iter()
        .map(|grant| {
            json!({
                "connection": grant.connection, "tokenURL": grant.token_url, "clientID": grant.client_id, "due": grant.due(),
                "clientSecret": grant.client_secret.as_ref().map(|secret| secret.expose().to_owned()),
                "proxyURL": grant.proxy_url.as_ref().map(|secret| secret.expose().to_owned()),
                "refreshToken": grant.tokens.refresh.expose(),
            })
        })
        .collect();
    let mut all = json!({"gateway": compiled.gateway, "snapshot": snapshot, "grants": grants, "findings": compiled.findings});
    all.as_object_mut().unwrap().retain(|_, value| !empty(value));
    all
}

/// `UPDATE=1 cargo test --test compile` writes the files; without it they are compared.
#[test]
fn golden_pairs() {
    let plain = snapshot(&compiled(&std::fs::read_to_string(folder().join(format!("{PLAIN}.in.yaml"))).unwrap()));
    let inputs = inputs();
    let mut wrong = Vec::new();
    for (name, yaml) in &inputs {
        let shown = shown(&compiled(yaml), (name != PLAIN).then_some(&plain));
        let got = serde_json::to_string_pretty(&shown).unwrap() + "\n";
        let out = folder().join(format!("{name}.out.json"));
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(&out, &got).unwrap();
        }
        if std::fs::read_to_string(&out).unwrap_or_default() != got {
            wrong.push(format!("{name}: got\n{got}"));
        }
    }
    assert!(wrong.is_empty(), "{}\nif the change is wanted, run UPDATE=1 cargo test --test compile and read the diff", wrong.join("\n"));
    let outputs =
        std::fs::read_dir(folder()).unwrap().filter(|e| e.as_ref().unwrap().path().extension().is_some_and(|e| e == "json")).count();
    assert_eq!(outputs, inputs.len(), "an output without its input");
}

/// The paths of all fields below `spec`, lists and maps without a mark of their own.
fn fields(schema: &Value, path: &str, found: &mut BTreeSet<String>) {
    for (name, child) in schema["properties"].as_object().into_iter().flatten() {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        fields(child, &path, found);
        fields(&child["items"], &path, found);
        found.insert(path);
    }
}

/// The fields that a manifest gives.
fn given(value: &Value, path: &str, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                given(member, &path, found);
                found.insert(path);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| given(item, path, found)),
        _ => {}
    }
}

#[test]
fn every_field_stands_in_a_pair() {
    let mut missing = Vec::new();
    let documents: Vec<Value> = inputs().iter().flat_map(|(_, yaml)| serde_saphyr::from_multiple::<Value>(yaml).unwrap()).collect();
    for definition in definitions() {
        let (mut wanted, mut found) = (BTreeSet::new(), BTreeSet::new());
        fields(&definition.schema()["properties"]["spec"], "", &mut wanted);
        documents.iter().filter(|d| d["kind"] == definition.kind.as_str()).for_each(|d| given(&d["spec"], "", &mut found));
        assert!(wanted.len() > 10, "{}: {wanted:?}", definition.kind);
        missing.extend(wanted.difference(&found).map(|path| format!("{} {path}", definition.kind)));
    }
    assert!(missing.is_empty(), "no golden pair gives {missing:?}");
}
