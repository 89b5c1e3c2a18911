//! A duration as a field of a resource.

use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::time::{format_duration, parse_duration};

/// A Gateway API duration (`500ms`, `30s`, `1h30m`) as written by its owner.
///
/// Deserialising never fails on a bad text: the schema refuses it at admission, and a reader that meets one anyway gets the
/// error from [`Self::ms`] where it can name the object and the field.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Duration(String);

/// The pattern of Gateway API durations (GEP-2257).
pub const PATTERN: &str = "^([0-9]{1,5}(h|m|s|ms)){1,4}$";

impl Duration {
    /// A duration of so many milliseconds.
    #[must_use]
    pub fn from_ms(ms: u64) -> Self {
        Self(format_duration(ms))
    }

    /// Milliseconds.
    ///
    /// # Errors
    /// A sentence that quotes the value and shows valid ones.
    pub fn ms(&self) -> Result<u64, String> {
        parse_duration(&self.0)
    }

    /// The text as written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Duration {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl JsonSchema for Duration {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Duration".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "pattern": PATTERN, "maxLength": 28})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_text_and_knows_its_length() {
        let d: Duration = serde_json::from_str("\"90s\"").unwrap();
        assert_eq!(d.ms(), Ok(90_000));
        assert_eq!(serde_json::to_string(&d).unwrap(), "\"90s\"");
        assert_eq!(Duration::from_ms(90_000).as_str(), "1m30s");
        assert!(Duration::from("soon").ms().is_err());
    }
}
