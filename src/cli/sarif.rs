//! A validation report as SARIF 2.1.0, which code hosts show beside the lines of a change.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::validate::{Entry, Report};
use crate::manifest::Level;

/// The log of one run.
#[must_use]
pub fn log(report: &Report) -> Value {
    let ids: BTreeSet<&str> = report.problems.iter().map(|p| p.reason.as_str()).collect();
    let rules: Vec<Value> = ids.iter().map(|id| json!({"id": id, "shortDescription": {"text": words(id)}})).collect();
    json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": {"driver": {"name": "omniroute", "version": env!("CARGO_PKG_VERSION"), "rules": rules}},
            "columnKind": "unicodeCodePoints",
            "results": report.problems.iter().map(|p| result(p, &ids)).collect::<Vec<_>>(),
        }],
    })
}

fn result(p: &Entry, ids: &BTreeSet<&str>) -> Value {
    let object = if p.kind.is_empty() { String::new() } else { format!("{} `{}`: ", p.kind, p.name) };
    let field = if p.field.is_empty() { String::new() } else { format!("{}: ", p.field) };
    let mut out = json!({
        "ruleId": p.reason,
        "ruleIndex": ids.iter().position(|id| *id == p.reason).unwrap_or_default(),
        "level": if p.level == Level::Error { "error" } else { "warning" },
        "message": {"text": format!("{object}{field}{}", p.message)},
    });
    let mut location = json!({});
    if !p.place.source.is_empty() {
        location["physicalLocation"] =
            json!({"artifactLocation": {"uri": uri(&p.place.source)}, "region": {"startLine": p.place.line.max(1)}});
    }
    if !p.kind.is_empty() {
        location["logicalLocations"] = json!([{"fullyQualifiedName": format!("{}/{}/{}", p.kind, p.name, p.field), "kind": "object"}]);
    }
    out["locations"] = json!([location]);
    out
}

/// A path as a relative or absolute URI.
fn uri(path: &str) -> String {
    if path == "-" {
        return "stdin".to_owned();
    }
    let escaped: String = path
        .trim_start_matches("./")
        .bytes()
        .map(|b| if b.is_ascii_alphanumeric() || b"/-._~".contains(&b) { char::from(b).to_string() } else { format!("%{b:02X}") })
        .collect();
    if escaped.starts_with('/') { format!("file://{escaped}") } else { escaped }
}

/// `UnknownField` -> `unknown field`.
fn words(id: &str) -> String {
    id.chars().fold(String::new(), |mut out, c| {
        if c.is_uppercase() && !out.is_empty() {
            out.push(' ');
        }
        out.extend(c.to_lowercase());
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uris_and_words() {
        assert_eq!(uri("a b/ü.yaml"), "a%20b/%C3%BC.yaml");
        assert_eq!(uri("/x.yaml"), "file:///x.yaml");
        assert_eq!(uri("./x.yaml"), "x.yaml");
        assert_eq!(uri("-"), "stdin");
        assert_eq!(words("UnknownField"), "unknown field");
    }
}
