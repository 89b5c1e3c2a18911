//! What is read of the core kinds: metadata, Secrets, ConfigMaps.

use std::sync::LazyLock;

use serde_json::{Value, json};

use crate::api::common::NAME_PATTERN;

/// The metadata of any object: what people write, bounded as the API server does it; what only the API server writes is let through.
pub fn metadata() -> &'static Value {
    static SCHEMA: LazyLock<Value> = LazyLock::new(|| {
        let any = json!({"x-kubernetes-preserve-unknown-fields": true});
        json!({"type": "object", "required": ["name"], "properties": {
            "name": {"type": "string", "minLength": 1, "maxLength": 253, "pattern": NAME_PATTERN, "description": "The name of the object."},
            "namespace": {"type": "string", "minLength": 1, "maxLength": 63, "pattern": NAME_PATTERN},
            "labels": {"type": "object", "additionalProperties": {"type": "string", "maxLength": 63, "pattern": "^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$"}},
            "annotations": {"type": "object", "additionalProperties": {"type": "string", "maxLength": 262_144}},
            "creationTimestamp": any, "deletionTimestamp": any, "deletionGracePeriodSeconds": any, "finalizers": any, "generateName": any,
            "generation": any, "managedFields": any, "ownerReferences": any, "resourceVersion": any, "selfLink": any, "uid": any,
        }})
    });
    &SCHEMA
}

/// A Secret.
pub fn secret() -> &'static Value {
    static SCHEMA: LazyLock<Value> = LazyLock::new(|| {
        json!({"type": "object", "properties": {
            "apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {"x-kubernetes-preserve-unknown-fields": true},
            "type": {"type": "string", "maxLength": 253}, "immutable": {"type": "boolean"},
            "data": values(), "stringData": values(),
        }})
    });
    &SCHEMA
}

/// A ConfigMap.
pub fn config_map() -> &'static Value {
    static SCHEMA: LazyLock<Value> = LazyLock::new(|| {
        json!({"type": "object", "properties": {
            "apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {"x-kubernetes-preserve-unknown-fields": true},
            "immutable": {"type": "boolean"}, "data": values(), "binaryData": values(),
        }})
    });
    &SCHEMA
}

fn values() -> Value {
    json!({"type": "object", "additionalProperties": {"type": "string", "maxLength": 1_048_576}})
}

/// Whether a text can be a key of a Secret or ConfigMap ([`crate::api::common::KEY_PATTERN`]).
pub fn is_key(text: &str) -> bool {
    !text.is_empty() && text.len() <= 253 && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b))
}
