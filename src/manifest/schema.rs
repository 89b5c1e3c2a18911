//! The structural part of what an API server checks: types, bounds, patterns, enums, required and unknown fields.

use std::collections::BTreeMap;

use regex::Regex;
use serde_json::{Map, Value};

use super::problem::Reason;
use crate::api::near::suggest;
use crate::api::{common, duration, gateway, provider};

/// One violation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// Path of the field.
    pub path: String,
    /// Which check.
    pub reason: Reason,
    /// What is wrong and the way out.
    pub message: String,
}

/// The patterns of schemas, compiled once. The engine is that of Go in all that matters here (RE2).
#[derive(Default)]
pub struct Patterns(BTreeMap<String, Regex>);

impl Patterns {
    /// Compiles every pattern of a schema.
    pub fn learn(&mut self, schema: &Value) {
        if let Some(map) = schema.as_object() {
            if let Some((text, pattern)) = map.get("pattern").and_then(Value::as_str).and_then(|p| Some((p, Regex::new(p).ok()?))) {
                self.0.insert(text.to_owned(), pattern);
            }
            map.values().for_each(|child| self.learn(child));
        }
    }

    fn matches(&self, pattern: &str, text: &str) -> bool {
        self.0.get(pattern).is_none_or(|p| p.is_match(text))
    }
}

/// Checks `value` against a structural schema. With `secret`, no value is quoted.
pub fn check(schema: &Value, value: &Value, path: &str, patterns: &Patterns, secret: bool) -> Vec<Violation> {
    let mut walk = Walk { out: Vec::new(), patterns, secret };
    walk.node(schema, value, path);
    walk.out
}

/// Drops what an API server drops before it fills in defaults: members that are null.
pub fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, v| !v.is_null());
            map.values_mut().for_each(drop_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

struct Walk<'a> {
    out: Vec<Violation>,
    patterns: &'a Patterns,
    secret: bool,
}

impl Walk<'_> {
    fn add(&mut self, path: &str, reason: Reason, message: impl Into<String>) {
        self.out.push(Violation { path: path.to_owned(), reason, message: message.into() });
    }

    /// A value for a message: short, or nothing at all where it may be a secret.
    fn show(&self, value: &Value, path: &str) -> String {
        if self.secret || may_hold_a_secret(path) {
            return String::new();
        }
        let text = value.to_string();
        let cut: String = text.chars().take(80).collect();
        if cut.len() < text.len() { format!(" `{cut}…`") } else { format!(" `{cut}`") }
    }

    fn node(&mut self, schema: &Value, value: &Value, path: &str) {
        if schema["x-kubernetes-int-or-string"] == true {
            if let Value::String(text) = value {
                self.string(schema, text, path);
            } else if !value.is_i64() {
                self.add(path, Reason::WrongType, format!("must be a text or a whole number, not{}", self.show(value, path)));
            }
            return;
        }
        match (schema["type"].as_str().unwrap_or_default(), value) {
            ("object", Value::Object(map)) => self.object(schema, map, path),
            ("array", Value::Array(items)) => self.array(schema, items, path),
            ("string", Value::String(text)) => self.string(schema, text, path),
            ("boolean", Value::Bool(_)) => {}
            ("integer", Value::Number(n)) if n.is_i64() || n.is_u64() => self.integer(schema, value, path),
            ("", _) => {}
            (wanted, _) => {
                let hint = type_hint(wanted, value);
                self.add(
                    path,
                    Reason::WrongType,
                    format!("must be {}, not {}{}{hint}", article(wanted), kind_of(value), self.show(value, path)),
                );
            }
        }
    }

    fn object(&mut self, schema: &Value, map: &Map<String, Value>, path: &str) {
        if schema["x-kubernetes-preserve-unknown-fields"] == true {
            return;
        }
        if let Some(max) = schema["maxProperties"].as_u64().filter(|max| map.len() as u64 > *max) {
            self.add(path, Reason::InvalidValue, format!("must have at most {max} entries, not {}", map.len()));
        }
        if let Some(min) = schema["minProperties"].as_u64().filter(|min| (map.len() as u64) < *min) {
            self.add(path, Reason::InvalidValue, format!("must have at least {min} entries; leave it out otherwise"));
        }
        let properties = schema["properties"].as_object();
        let values = schema.get("additionalProperties").filter(|a| a.is_object());
        for (key, value) in map {
            let field = join(path, key);
            if let Some(property) = properties.and_then(|p| p.get(key)) {
                self.node(property, value, &field);
            } else if let Some(values) = values {
                self.node(values, value, &field);
            } else {
                let message = unknown_field(key, properties);
                self.add(&field, Reason::UnknownField, message);
            }
        }
        for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            if !map.contains_key(name) {
                let about = schema["properties"][name]["description"].as_str().unwrap_or_default();
                self.add(path, Reason::RequiredField, format!("`{name}` is required: {}", lower_first(about)));
            }
        }
    }

    fn array(&mut self, schema: &Value, items: &[Value], path: &str) {
        if let Some(max) = schema["maxItems"].as_u64().filter(|max| items.len() as u64 > *max) {
            self.add(path, Reason::InvalidValue, format!("must have at most {max} entries, not {}", items.len()));
        }
        if let Some(min) = schema["minItems"].as_u64().filter(|min| (items.len() as u64) < *min) {
            self.add(
                path,
                Reason::InvalidValue,
                format!("must have at least {min} {}, or be left out", if min == 1 { "entry" } else { "entries" }),
            );
        }
        for (i, item) in items.iter().enumerate() {
            self.node(&schema["items"], item, &format!("{path}[{i}]"));
        }
        self.unique(schema, items, path);
    }

    /// `set` and `map` lists hold every value or key once.
    fn unique(&mut self, schema: &Value, items: &[Value], path: &str) {
        let list_type = schema["x-kubernetes-list-type"].as_str().unwrap_or_default();
        let keys: Vec<&str> = schema["x-kubernetes-list-map-keys"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let key_of = |item: &Value| match list_type {
            "set" => Some(item.to_string()),
            "map" => Some(keys.iter().map(|k| item[*k].to_string()).collect::<Vec<_>>().join(", ")),
            _ => None,
        };
        let mut seen: BTreeMap<String, usize> = BTreeMap::new();
        for (i, item) in items.iter().enumerate() {
            let Some(key) = key_of(item) else { return };
            let Some(first) = seen.get(&key) else {
                seen.insert(key, i);
                continue;
            };
            let what = match (self.secret, keys.as_slice()) {
                (true, _) => String::new(),
                (false, []) => format!(" {key}"),
                (false, keys) => format!(" `{}` {key}", keys.join("`, `")),
            };
            let message = format!("repeats{what} of entry {first}; keep one of them");
            self.add(&format!("{path}[{i}]"), Reason::InvalidValue, message);
        }
    }

    fn string(&mut self, schema: &Value, text: &str, path: &str) {
        let shown = self.show(&Value::String(text.to_owned()), path);
        if let Some(values) = schema["enum"].as_array() {
            let values: Vec<&str> = values.iter().filter_map(Value::as_str).collect();
            if !values.contains(&text) {
                let hint = match suggest(text, values.iter().copied()) {
                    Some(near) => format!("did you mean `{near}`? The values are {}", values.join(", ")),
                    None => format!("the values are {}", values.join(", ")),
                };
                self.add(path, Reason::InvalidValue, format!("{shown} is not allowed here; {hint}").trim_start().to_owned());
            }
            return;
        }
        let length = text.chars().count() as u64;
        if let Some(max) = schema["maxLength"].as_u64().filter(|max| length > *max) {
            self.add(path, Reason::InvalidValue, format!("must have at most {max} characters, not {length}"));
        } else if let Some(min) = schema["minLength"].as_u64().filter(|min| length < *min) {
            let empty =
                if length == 0 { "must not be empty".to_owned() } else { format!("must have at least {min} characters, not {length}") };
            self.add(path, Reason::InvalidValue, empty);
        } else if let Some(pattern) = schema["pattern"].as_str()
            && !self.patterns.matches(pattern, text)
        {
            self.add(path, Reason::InvalidValue, format!("{shown} {}", pattern_hint(pattern)).trim_start().to_owned());
        }
    }

    fn integer(&mut self, schema: &Value, value: &Value, path: &str) {
        let number = value.as_i64().map_or(i128::from(u64::MAX), i128::from);
        let (min, max) = (schema["minimum"].as_i64(), schema["maximum"].as_i64());
        if min.is_some_and(|m| number < i128::from(m)) || max.is_some_and(|m| number > i128::from(m)) {
            let range = match (min, max) {
                (Some(min), Some(max)) => format!("must lie between {min} and {max}"),
                (Some(min), None) => format!("must be at least {min}"),
                (_, max) => format!("must be at most {}", max.unwrap_or_default()),
            };
            self.add(path, Reason::InvalidValue, format!("{range}, not {value}"));
        }
    }
}

/// Fields in which people put, or by mistake could put, a credential: their values are never repeated.
fn may_hold_a_secret(path: &str) -> bool {
    let path = path.to_ascii_lowercase();
    ["credential", "secret", "token", "password", "proxyurl", "headers", "extraenv"].iter().any(|word| path.contains(word))
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

fn article(wanted: &str) -> &'static str {
    match wanted {
        "object" => "a mapping",
        "array" => "a list",
        "string" => "a text",
        "boolean" => "true or false",
        _ => "a whole number",
    }
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "empty",
        Value::Bool(_) => "the boolean",
        Value::Number(_) => "the number",
        Value::String(_) => "the text",
        Value::Array(_) => "the list",
        Value::Object(_) => "the mapping",
    }
}

fn type_hint(wanted: &str, value: &Value) -> &'static str {
    match (wanted, value) {
        ("string", Value::Bool(_) | Value::Number(_)) => "; put it in quotes",
        ("integer" | "boolean", Value::String(_)) => "; write it without quotes",
        ("array", _) => "; write one entry per line, each behind a dash",
        _ => "",
    }
}

fn unknown_field(key: &str, properties: Option<&Map<String, Value>>) -> String {
    let names: Vec<&str> = properties.into_iter().flat_map(|p| p.keys()).map(String::as_str).collect();
    match suggest(key, names.iter().copied()) {
        Some(near) => format!("there is no field `{key}` here; did you mean `{near}`?"),
        None if names.is_empty() => format!("there is no field `{key}` here; this must be empty"),
        None => format!("there is no field `{key}` here; the fields are {}", names.join(", ")),
    }
}

/// What a pattern means, in words.
fn pattern_hint(pattern: &str) -> String {
    let words = match pattern {
        duration::PATTERN => "is no duration: write it like 500ms, 30s, 5m or 1h30m",
        provider::MONEY_PATTERN => "is no amount of money: write it as a text like \"0.60\"",
        common::NAME_PATTERN => "is no name of an object: lower-case letters, digits, `-` and `.` only",
        common::KEY_PATTERN => "is no key: letters, digits, `-`, `_` and `.` only",
        common::HEADER_PATTERN => "is no name of a header",
        common::URL_PATTERN => "is no base URL: write it like https://host/v1, without user, password and query",
        common::HTTPS_PATTERN => "is no address: write it like https://host/path, without user and password",
        common::PROXY_PATTERN => "is no address of a proxy: write it like http://host:3128",
        gateway::QUANTITY_PATTERN => "is no quantity: write it like 250m or 64Mi",
        _ => return format!("does not match {pattern}"),
    };
    words.to_owned()
}

fn lower_first(text: &str) -> String {
    let mut chars = text.chars();
    match (chars.next(), text.chars().nth(1)) {
        (Some(first), Some(second)) if !second.is_uppercase() => first.to_lowercase().chain(chars).collect(),
        _ => text.to_owned(),
    }
}
