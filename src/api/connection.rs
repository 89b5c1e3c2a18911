//! `Connection`: one credential of a provider.

use std::collections::BTreeMap;

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::common::{HTTPS_PATTERN, LocalRef, PROXY_PATTERN, SecretKeyRef, rule, yes};
use super::duration::Duration;
use super::settings::ConnectionCooldown;
use super::status::ConnectionStatus;

/// One credential of a provider: an account, a key, or a local server without any.
#[derive(CustomResource, Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[kube(group = "omniroute.dev", version = "v1alpha1", kind = "Connection", namespaced, schema = "disabled")]
#[kube(status = "ConnectionStatus", category = "omniroute", shortname = "ormconn", derive = "PartialEq", derive = "Default")]
#[kube(printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type=='Ready')].status"}"#)]
#[kube(printcolumn = r#"{"name":"Available","type":"string","jsonPath":".status.conditions[?(@.type=='Available')].status"}"#)]
#[kube(printcolumn = r#"{"name":"Reason","type":"string","jsonPath":".status.conditions[?(@.type=='Available')].reason"}"#)]
#[kube(printcolumn = r#"{"name":"Until","type":"string","jsonPath":".status.until"}"#)]
#[kube(printcolumn = r#"{"name":"Provider","type":"string","jsonPath":".spec.providerRef.name"}"#)]
#[kube(printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#)]
#[kube(selectable = ".spec.providerRef.name")]
#[serde(rename_all = "camelCase")]
pub struct ConnectionSpec {
    /// The Provider whose credential this is.
    pub provider_ref: LocalRef,
    /// The credential: exactly one of `apiKey`, `oauth` and `none`.
    pub credentials: Credentials,
    /// Order among the connections of a provider: lower first.
    #[serde(default = "one")]
    #[schemars(range(min = 0, max = 1_000_000))]
    pub priority: i32,
    /// Share in weighted choices; 0 = only when nothing else is left.
    #[serde(default = "hundred")]
    #[schemars(range(min = 0, max = 10_000))]
    pub weight: i32,
    /// Off = the connection takes no traffic.
    #[serde(default = "yes")]
    pub enabled: bool,
    /// Tags for people and their tools; routing does not read them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20), inner(length(min = 1, max = 100)), extend("x-kubernetes-list-type" = "set"))]
    pub tags: Vec<String>,
    /// Concurrent requests; 0 = no cap.
    #[serde(default)]
    #[schemars(range(min = 0, max = 100_000))]
    pub max_concurrent: i32,
    /// Pacing and caps of this connection; each limit without a value follows `requestQueue` of the ResilienceSettings.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_limits: Option<RateLimits>,
    /// Whether pacing and queueing act on this connection.
    #[serde(default)]
    pub rate_limit_protection: RateLimitProtection,
    /// Records errors but lets nothing rest for a time; terminal states still apply.
    #[serde(default)]
    pub disable_cooling: bool,
    /// Backoff numbers of this connection; each without a value follows `connectionCooldown` of the ResilienceSettings.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connection_cooldown: Option<ConnectionCooldown>,
    /// Wait for a rate limit that names no time of its own. Without it: that of the Provider.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-duration" = ["1ms", "6h"]))]
    pub retry_delay: Option<Duration>,
    /// HTTP proxy for requests of this connection (`http://host:port`). Without it: none.
    #[serde(rename = "proxyURL", skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 2048), regex(pattern = PROXY_PATTERN))]
    pub proxy_url: Option<String>,
    /// Connections of the same group share an egress address. Without it: those with the same `proxyURL` do.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub egress_group: Option<String>,
    /// Models that this connection may serve.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub models: Option<ModelFilter>,
    /// Opt-ins of Claude subscription accounts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claude: Option<ClaudeOptions>,
}

const fn one() -> i32 {
    1
}

const fn hundred() -> i32 {
    100
}

impl Default for ConnectionSpec {
    fn default() -> Self {
        Self {
            provider_ref: LocalRef::default(),
            credentials: Credentials::default(),
            priority: one(),
            weight: hundred(),
            enabled: true,
            tags: Vec::new(),
            max_concurrent: 0,
            rate_limits: None,
            rate_limit_protection: RateLimitProtection::default(),
            disable_cooling: false,
            connection_cooldown: None,
            retry_delay: None,
            proxy_url: None,
            egress_group: None,
            models: None,
            claude: None,
        }
    }
}

/// A credential: exactly one member.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    rule("", "[has(self.apiKey), has(self.oauth), has(self.none)].filter(x, x).size() == 1",
        "must have exactly one of `apiKey`, `oauth` and `none`"),
]))]
pub struct Credentials {
    /// A key in a Secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_key: Option<ApiKeyCredential>,
    /// OAuth tokens in a Secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oauth: Option<OAuthCredential>,
    /// No credential at all, for local providers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub none: Option<NoCredential>,
}

/// A key in a Secret.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ApiKeyCredential {
    /// Secret and key that hold the value.
    pub secret_ref: SecretKeyRef,
}

/// OAuth tokens in a Secret; with `tokenURL` they are refreshed before they end.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    rule("clientID", "!has(self.clientID) || has(self.tokenURL)", "must not be given without `tokenURL`, where it would be used"),
]))]
pub struct OAuthCredential {
    /// Secret with the keys `accessToken`, `refreshToken` (optional), `expiresAt` (optional, RFC 3339 or epoch milliseconds) and `clientSecret` (optional). Refreshed tokens are kept elsewhere; it is never written.
    pub secret_ref: LocalRef,
    /// Token endpoint (RFC 6749) that issues new tokens for the refresh token. Without it: the access token is used until it expires.
    #[serde(rename = "tokenURL", skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 2048), regex(pattern = HTTPS_PATTERN))]
    pub token_url: Option<String>,
    /// Client id for the token endpoint. Without it: none is sent.
    #[serde(rename = "clientID", skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub client_id: Option<String>,
}

/// No credential.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct NoCredential {}

/// Whether pacing and queueing act on a connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub enum RateLimitProtection {
    /// As `requestQueue.autoEnableApiKeyProviders` of the ResilienceSettings says.
    #[default]
    Auto,
    /// Always.
    Enabled,
    /// Never.
    Disabled,
}

/// Pacing and caps of a connection.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RateLimits {
    /// Requests per minute. Without it: only what the upstream states.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub requests_per_minute: Option<i32>,
    /// Least time between two requests. Without it: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-duration" = ["1ms", "1h", "0s"]))]
    pub min_interval: Option<Duration>,
    /// Longest time in the queue. Without it: `requestQueue.maxWait`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-duration" = ["1s", "24h"]))]
    pub max_wait: Option<Duration>,
    /// Longest execution. Without it: `requestQueue.executionMaxWait`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-duration" = ["1ms", "24h"]))]
    pub execution_max_wait: Option<Duration>,
    /// Longest queue; 0 = unbounded. Without it: `requestQueue.maxQueueDepth`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100_000))]
    pub max_queue_depth: Option<i32>,
    /// Concurrent requests by exact model name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 100, "x-values" = {"minimum": 1, "maximum": 100_000}))]
    pub model_concurrency: BTreeMap<String, i32>,
}

/// Models that a connection may serve, as patterns in which `*` stands for any text.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ModelFilter {
    /// Models that it may serve; empty = all.
    #[serde(default)]
    #[schemars(length(max = 100), inner(length(min = 1, max = 300)), extend("x-kubernetes-list-type" = "set"))]
    pub allow: Vec<String>,
    /// Models that it may not serve; stronger than `allow`.
    #[serde(default)]
    #[schemars(length(max = 100), inner(length(min = 1, max = 300)), extend("x-kubernetes-list-type" = "set"))]
    pub deny: Vec<String>,
}

/// Opt-ins of Claude subscription accounts at their usage wall.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClaudeOptions {
    /// Goes on in the low-priority lane when the usage window is spent.
    #[serde(default)]
    pub low_priority_mode: bool,
    /// Uses the weekly reset of the limit when the 5-hour window is spent, before `lowPriorityMode`; needs `organizationUUID`.
    #[serde(default)]
    pub auto_limit_reset: bool,
    /// Organization whose limit `autoLimitReset` resets.
    #[serde(rename = "organizationUUID", skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 36, max = 36), regex(pattern = r"^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"))]
    pub organization_uuid: Option<String>,
}
