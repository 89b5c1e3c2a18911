//! Turns a schema of schemars into a structural schema as an API server stores it: no `nullable`, no unsigned formats, no float bounds, no
//! titles, no defaults inside status, a list type on every list.
//!
//! Two short forms of our own are expanded: `x-duration: [min, max, off?]` becomes a CEL rule that names the field, and `x-values` are the
//! bounds of the values of a map.

use serde_json::{Map, Value, json};

/// Which part of an object a schema describes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// `spec`: defaults are kept.
    Spec,
    /// `status`: defaults are dropped, because the API server would write them over what a report leaves out.
    Status,
}

/// Normalises a root schema.
pub fn normalise(mut schema: Value, part: Part) -> Value {
    node(&mut schema, "", part);
    schema
}

fn node(value: &mut Value, name: &str, part: Part) {
    let Some(map) = value.as_object_mut() else { return };
    flatten_optional(map);
    flatten_enum(map);
    for gone in ["title", "$schema", "nullable", "examples"] {
        map.remove(gone);
    }
    if map.get("format").and_then(Value::as_str).is_some_and(|f| f.starts_with("uint") || f == "uint8" || f == "int8" || f == "int16") {
        map.remove("format");
    }
    for bound in ["minimum", "maximum"] {
        if let Some(integral) = map.get(bound).and_then(Value::as_f64).filter(|f| f.fract() == 0.0 && f.abs() < 9.1e15) {
            #[allow(clippy::cast_possible_truncation)] // checked above
            map.insert(bound.to_owned(), json!(integral as i64));
        }
    }
    duration_rule(map, name);
    if let Some(values) = map.remove("x-values")
        && let (Some(target), Some(bounds)) = (map.get_mut("additionalProperties").and_then(Value::as_object_mut), values.as_object())
    {
        target.extend(bounds.clone());
    }
    children(map, part);
    if map.get("type").and_then(Value::as_str) == Some("array") && !map.contains_key("x-kubernetes-list-type") {
        map.insert("x-kubernetes-list-type".to_owned(), json!("atomic"));
    }
    if map.get("required").and_then(Value::as_array).is_some_and(Vec::is_empty) {
        map.remove("required");
    }
    tidy_default(map, part);
}

fn children(map: &mut Map<String, Value>, part: Part) {
    if let Some(properties) = map.get_mut("properties").and_then(Value::as_object_mut) {
        for (name, child) in properties {
            node(child, name, part);
        }
    }
    for inner in ["items", "additionalProperties"] {
        if let Some(child) = map.get_mut(inner) {
            node(child, "", part);
        }
    }
}

/// `Option<T>`: `anyOf: [T, null]` becomes T, `type: [t, null]` becomes t.
fn flatten_optional(map: &mut Map<String, Value>) {
    if let Some(Value::Array(branches)) = map.remove("anyOf") {
        for branch in branches {
            if let (Value::Object(inner), false) = (&branch, branch.get("type").and_then(Value::as_str) == Some("null")) {
                for (key, value) in inner {
                    map.entry(key.clone()).or_insert_with(|| value.clone());
                }
            }
        }
    }
    if let Some(Value::Array(types)) = map.get("type") {
        let kept: Vec<Value> = types.iter().filter(|t| t.as_str() != Some("null")).cloned().collect();
        if let [one] = kept.as_slice() {
            let one = one.clone();
            map.insert("type".to_owned(), one);
        }
    }
    if let Some(Value::Array(values)) = map.get_mut("enum") {
        values.retain(|v| !v.is_null());
    }
}

/// An enum whose variants are documented comes as `oneOf` of constants: it becomes one `enum`, and the descriptions of the variants move
/// into the description of the field, so that `kubectl explain` shows them.
fn flatten_enum(map: &mut Map<String, Value>) {
    let Some(Value::Array(branches)) = map.remove("oneOf") else { return };
    let (mut values, mut notes) = (Vec::new(), String::new());
    for branch in &branches {
        let note = branch.get("description").and_then(Value::as_str).unwrap_or_default();
        let constants = branch.get("const").into_iter().chain(branch.get("enum").and_then(Value::as_array).into_iter().flatten());
        for constant in constants {
            if let (Some(text), false) = (constant.as_str(), note.is_empty()) {
                notes.push_str(&format!(" `{text}`: {note}"));
            }
            values.push(constant.clone());
        }
    }
    let description = map.get("description").and_then(Value::as_str).unwrap_or_default().to_owned() + &notes;
    map.insert("type".to_owned(), json!("string"));
    map.insert("enum".to_owned(), Value::Array(values));
    map.insert("description".to_owned(), json!(description));
}

fn duration_rule(map: &mut Map<String, Value>, name: &str) {
    let Some(Value::Array(bounds)) = map.remove("x-duration") else { return };
    let text = |i: usize| bounds.get(i).and_then(Value::as_str).unwrap_or_default();
    let (min, max) = (text(0), text(1));
    let inside = format!("duration(self) >= duration('{min}') && duration(self) <= duration('{max}')");
    let (rule, message) = if bounds.len() > 2 {
        (format!("duration(self) == duration('0s') || ({inside})"), format!("`{name}` must be 0s, or lie between {min} and {max}"))
    } else {
        (inside, format!("`{name}` must lie between {min} and {max}"))
    };
    map.insert("x-kubernetes-validations".to_owned(), json!([{"rule": rule, "message": message, "reason": "FieldValueInvalid"}]));
}

/// Drops defaults that say nothing (null, empty lists and maps) and, from a default object, the members that the defaults of its
/// properties say already.
fn tidy_default(map: &mut Map<String, Value>, part: Part) {
    let Some(default) = map.remove("default") else { return };
    let empty = default.is_null() || default.as_array().is_some_and(Vec::is_empty);
    let bare_map = default.as_object().is_some_and(Map::is_empty) && !map.contains_key("properties");
    if part == Part::Status || empty || bare_map {
        return;
    }
    let kept = match (default, map.get("properties").and_then(Value::as_object)) {
        (Value::Object(members), Some(properties)) => Value::Object(
            members.into_iter().filter(|(key, value)| properties.get(key).and_then(expand_default).as_ref() != Some(value)).collect(),
        ),
        (other, _) => other,
    };
    map.insert("default".to_owned(), kept);
}

/// The value that an API server puts in where the field is absent: its default, with the defaults of its members filled in.
#[must_use]
pub fn expand_default(schema: &Value) -> Option<Value> {
    let mut default = schema.get("default")?.clone();
    if let (Some(members), Some(properties)) = (default.as_object_mut(), schema.get("properties").and_then(Value::as_object)) {
        for (name, property) in properties {
            if let (false, Some(value)) = (members.contains_key(name), expand_default(property)) {
                members.insert(name.clone(), value);
            }
        }
    }
    Some(default)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(schema: Value) -> Value {
        normalise(schema, Part::Spec)
    }

    #[test]
    fn options_lose_their_null() {
        assert_eq!(spec(json!({"type": ["string", "null"], "default": null})), json!({"type": "string"}));
        assert_eq!(
            spec(json!({"description": "Mine.", "anyOf": [{"type": "integer", "description": "Its."}, {"type": "null"}]})),
            json!({"type": "integer", "description": "Mine."})
        );
    }

    #[test]
    fn documented_enums_become_one_enum() {
        let out = spec(
            json!({"description": "How.", "oneOf": [{"const": "A", "type": "string", "description": "In turn."}, {"const": "B", "type": "string", "description": "OpenAI first."}]}),
        );
        assert_eq!(out, json!({"type": "string", "enum": ["A", "B"], "description": "How. `A`: In turn. `B`: OpenAI first."}));
    }

    #[test]
    fn bounds_are_integers_and_lists_have_a_type() {
        assert_eq!(
            spec(json!({"type": "array", "items": {"type": "integer", "format": "uint16", "minimum": 1.0, "maximum": 599.0}})),
            json!({"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 599}, "x-kubernetes-list-type": "atomic"})
        );
    }

    #[test]
    fn durations_get_a_rule_that_names_the_field() {
        let out = spec(json!({"type": "object", "properties": {"ttl": {"type": "string", "x-duration": ["1s", "5m", "0s"]}}}));
        let rule = &out["properties"]["ttl"]["x-kubernetes-validations"][0];
        assert_eq!(rule["message"], "`ttl` must be 0s, or lie between 1s and 5m");
        assert_eq!(
            rule["rule"],
            "duration(self) == duration('0s') || (duration(self) >= duration('1s') && duration(self) <= duration('5m'))"
        );
    }

    #[test]
    fn a_default_says_nothing_twice() {
        let schema = json!({"type": "object", "default": {"a": 1, "b": {"c": 2}}, "properties": {
            "a": {"type": "integer", "default": 1},
            "b": {"type": "object", "default": {"c": 2}, "properties": {"c": {"type": "integer", "default": 2}}}}});
        let out = spec(schema.clone());
        assert_eq!(out["default"], json!({}));
        assert_eq!(out["properties"]["b"]["default"], json!({}));
        assert_eq!(expand_default(&out), Some(json!({"a": 1, "b": {"c": 2}})));
        assert_eq!(normalise(schema, Part::Status).get("default"), None);
    }
}
