//! What several kinds share: references, enums, CEL helpers.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// A name of an object: DNS-1123 subdomain, so that it is one safe path segment.
pub const NAME_PATTERN: &str = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$";
/// A key inside a Secret or ConfigMap.
pub const KEY_PATTERN: &str = r"^[-._a-zA-Z0-9]+$";
/// A header name (RFC 9110 token).
pub const HEADER_PATTERN: &str = r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$";
/// An HTTP(S) URL without white space, user and password.
pub const URL_PATTERN: &str = r"^https?://[^\s/?#@]+(/[^\s?#]*)?$";

/// An HTTPS URL without a user or password.
pub const HTTPS_PATTERN: &str = r"^https://[^\s/?#@]+([/?][^\s#]*)?$";
/// The address of a proxy, which speaks plain HTTP up to the tunnel; it may carry a user and a password.
pub const PROXY_PATTERN: &str = r"^http://[^\s/?#]+/?$";

/// One CEL rule about `field`, a member of the annotated object; the message starts with its name. With an empty `field` the rule is about
/// the object itself.
#[must_use]
pub fn rule(field: &str, cel: &str, message: &str) -> Value {
    if field.is_empty() {
        return json!({"rule": cel, "message": message, "reason": "FieldValueInvalid"});
    }
    json!({"rule": cel, "message": format!("`{field}` {message}"), "reason": "FieldValueInvalid", "fieldPath": format!(".{field}")})
}

/// A reference to an object of the same namespace.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LocalRef {
    /// Name of the object in the same namespace.
    #[schemars(length(min = 1, max = 253), regex(pattern = NAME_PATTERN))]
    pub name: String,
}

/// A key of a Secret of the same namespace.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretKeyRef {
    /// Name of the Secret in the same namespace.
    #[schemars(length(min = 1, max = 253), regex(pattern = NAME_PATTERN))]
    pub name: String,
    /// Key inside the Secret.
    #[schemars(length(min = 1, max = 253), regex(pattern = KEY_PATTERN))]
    pub key: String,
}

/// A key of a ConfigMap of the same namespace.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConfigMapKeyRef {
    /// Name of the ConfigMap in the same namespace.
    #[schemars(length(min = 1, max = 253), regex(pattern = NAME_PATTERN))]
    pub name: String,
    /// Key inside the ConfigMap.
    #[schemars(length(min = 1, max = 253), regex(pattern = KEY_PATTERN))]
    pub key: String,
}

/// How accounts authenticate; selects the defaults of every resilience profile.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub enum AuthClass {
    /// Keys.
    #[default]
    ApiKey,
    /// Subscription accounts.
    OAuth,
    /// Self-hosted servers.
    Local,
}

/// A wire protocol.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize, JsonSchema)]
pub enum Dialect {
    /// OpenAI chat completions.
    ChatCompletions,
    /// OpenAI responses.
    Responses,
    /// Anthropic messages.
    Messages,
    /// OpenAI embeddings.
    Embeddings,
}

/// Which waits of an upstream a rate limit honours.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize, JsonSchema)]
pub enum RetryHints {
    /// None of them.
    None,
    /// Headers, Google RetryInfo and structured JSON fields.
    Typed,
    /// Also the wording of messages.
    All,
}

/// A model of a provider.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ModelRef {
    /// Name of the Provider.
    #[schemars(length(min = 1, max = 253), regex(pattern = NAME_PATTERN))]
    pub provider: String,
    /// Model as the provider calls it.
    #[schemars(length(min = 1, max = 300))]
    pub model: String,
}

/// The serde and schema default of a switch that is on.
#[must_use]
pub const fn yes() -> bool {
    true
}
