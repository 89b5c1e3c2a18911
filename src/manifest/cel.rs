//! The CRDs, ready to check objects with: schemas with their CEL rules compiled once.

use std::collections::BTreeMap;

use kube_cel::{CompiledSchema, ErrorKind, Validator, apply_defaults, compile_schema};
use serde_json::Value;

use super::core;
use super::problem::Reason;
use super::schema::{Patterns, Violation, check, drop_nulls};
use crate::api::schema::definitions;

/// Checks objects of the five kinds against their CRDs.
pub struct Checker {
    kinds: BTreeMap<String, Kind>,
    patterns: Patterns,
    validator: Validator,
}

struct Kind {
    schema: Value,
    compiled: CompiledSchema,
}

impl std::fmt::Debug for Checker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Checker").field("kinds", &self.kinds.keys()).finish_non_exhaustive()
    }
}

impl Default for Checker {
    fn default() -> Self {
        Self::new()
    }
}

impl Checker {
    /// Compiles the rules of all definitions.
    #[must_use]
    pub fn new() -> Self {
        let mut patterns = Patterns::default();
        let kinds = definitions()
            .into_iter()
            .map(|d| {
                let mut schema = d.schema().clone();
                // Metadata has checks of its own, for all kinds alike.
                schema["properties"]["metadata"]["x-kubernetes-preserve-unknown-fields"] = Value::Bool(true);
                patterns.learn(&schema);
                let compiled = compile_schema(&schema);
                (d.kind, Kind { schema, compiled })
            })
            .collect();
        for schema in [core::metadata(), core::secret(), core::config_map()] {
            patterns.learn(schema);
        }
        Self { kinds, patterns, validator: Validator::new() }
    }

    /// The kinds it knows.
    pub fn kinds(&self) -> impl Iterator<Item = &str> {
        self.kinds.keys().map(String::as_str)
    }

    /// Checks an object against a schema of [`core`]; no value of it is quoted.
    pub(super) fn check_core(&self, schema: &Value, object: &Value) -> Vec<Violation> {
        check(schema, object, "", &self.patterns, true)
    }

    /// Checks a value against a schema of [`core`] that holds no secrets.
    pub(super) fn check_plain(&self, schema: &Value, value: &Value) -> Vec<Violation> {
        check(schema, value, "", &self.patterns, false)
    }

    /// Checks an object of one of the kinds and fills in its defaults, as an API server does. `status` must have been taken away.
    pub(super) fn check(&self, kind: &str, object: &mut Value) -> Vec<Violation> {
        let Some(known) = self.kinds.get(kind) else { return Vec::new() };
        drop_nulls(object);
        let mut violations = check(&known.schema, object, "", &self.patterns, false);
        *object = apply_defaults(&known.schema, object);
        if let Some(map) = object.as_object_mut() {
            map.remove("status");
        }
        // An API server asks the rules only when the object has the right shape.
        let shaped = |v: &Violation| v.reason == Reason::UnknownField;
        if violations.iter().all(shaped)
            && let Err(errors) = self.validator.validate_compiled(&known.compiled, object, None)
        {
            violations.extend(errors.into_vec().into_iter().map(|e| {
                let message = match e.kind {
                    ErrorKind::ValidationFailure => e.message,
                    _ => format!("the rule `{}` could not be evaluated: {}", e.rule, e.message),
                };
                Violation { path: e.field_path.trim_start_matches('.').to_owned(), reason: Reason::Rule, message }
            }));
        }
        violations
    }
}
