//! `Provider`: one upstream vendor or gateway.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::common::{AuthClass, ConfigMapKeyRef, Dialect, HEADER_PATTERN, NAME_PATTERN, URL_PATTERN, rule};
use super::duration::Duration;
use super::status::ProviderStatus;

/// One upstream vendor or gateway: where it is, what it speaks, which models it has.
#[derive(CustomResource, Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[kube(group = "omniroute.dev", version = "v1alpha1", kind = "Provider", namespaced, schema = "disabled")]
#[kube(status = "ProviderStatus", category = "omniroute", shortname = "ormprov", derive = "PartialEq", derive = "Default")]
#[kube(printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type=='Ready')].status"}"#)]
#[kube(printcolumn = r#"{"name":"Breaker","type":"string","jsonPath":".status.breaker.state"}"#)]
#[kube(printcolumn = r#"{"name":"Active","type":"integer","jsonPath":".status.connections.active"}"#)]
#[kube(printcolumn = r#"{"name":"Cooling","type":"integer","jsonPath":".status.connections.cooling"}"#)]
#[kube(printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    rule("baseURL", "has(self.preset) || has(self.baseURL)", "must be given, unless a `preset` names a known vendor"),
    rule("dialects", "has(self.preset) || has(self.dialects)", "must be listed (such as ChatCompletions), unless a `preset` names a known vendor"),
    rule("allowInsecureHTTP",
        "!has(self.baseURL) || !self.baseURL.startsWith('http://') || (has(self.allowInsecureHTTP) && self.allowInsecureHTTP)",
        "must be true when `baseURL` starts with http://, because credentials travel in clear; or use https://"),
    rule("allowInsecureHTTP",
        "!has(self.endpoints) || self.endpoints.all(e, !has(e.baseURL) || !e.baseURL.startsWith('http://')) || (has(self.allowInsecureHTTP) && self.allowInsecureHTTP)",
        "must be true when a `baseURL` of `endpoints` starts with http://, because credentials travel in clear; or use https://"),
]))]
pub struct ProviderSpec {
    /// Name for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 200))]
    pub display_name: Option<String>,
    /// Known vendor whose base URL, dialects, auth class, capabilities and models are the defaults of this resource; every field given here overrides it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63), regex(pattern = NAME_PATTERN))]
    pub preset: Option<String>,
    /// How its accounts authenticate; selects the defaults of breaker, cooldowns and retry hints. Without it: the class of the preset, else `ApiKey`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auth_class: Option<AuthClass>,
    /// Base URL; the path of the dialect (such as `/chat/completions`) is appended. Without it: that of the preset.
    #[serde(rename = "baseURL", skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 2048), regex(pattern = URL_PATTERN))]
    pub base_url: Option<String>,
    /// Permits http:// addresses; credentials and prompts then travel in clear.
    #[serde(default, rename = "allowInsecureHTTP")]
    pub allow_insecure_http: bool,
    /// Dialects it speaks. Without it: those of the preset.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 4), extend("x-kubernetes-list-type" = "set"))]
    pub dialects: Vec<Dialect>,
    /// How the credential is sent. Without it: as the preset says, else `Authorization: Bearer`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auth: Option<UpstreamAuth>,
    /// Dialects whose base URL or authentication differ from the rest of the provider.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 4), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["dialect"]))]
    pub endpoints: Vec<Endpoint>,
    /// Query string that is appended to every request, without the question mark (`api-version=2024-10-21`). Without it: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024), regex(pattern = r"^[^\s#?]+$"))]
    pub query: Option<String>,
    /// Static headers that are added to every request.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub headers: Vec<Header>,
    /// Names of client headers that are passed on beside the built-in list.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(min = 1, max = 128), regex(pattern = HEADER_PATTERN)), extend("x-kubernetes-list-type" = "set"))]
    pub forward_headers: Vec<String>,
    /// How a connection is chosen inside the provider.
    #[serde(default)]
    pub account_strategy: AccountStrategy,
    /// Concurrent requests to the provider over all its connections; 0 = no cap.
    #[serde(default)]
    #[schemars(range(min = 0, max = 100_000))]
    pub max_concurrent: i32,
    /// Wait for a rate limit that names no time of its own. Without it: exponential backoff.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-duration" = ["1ms", "6h"]))]
    pub retry_delay: Option<Duration>,
    /// When the daily allowance starts again. Without it: as the preset says, else midnight UTC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quota_reset: Option<QuotaReset>,
    /// How limits of this provider behave; each capability without a value is taken from the preset, else false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capabilities: Option<Capabilities>,
    /// Known models; without any, every model name is passed on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 500), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub models: Vec<Model>,
    /// Deadlines of one attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeouts: Option<Timeouts>,
    /// TLS to the provider.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<ProviderTls>,
}

/// How a credential is sent.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    rule("header", "self.scheme == 'Header' ? has(self.header) : !has(self.header)",
        "must be given with `scheme: Header` (such as x-api-key), and only then"),
]))]
pub struct UpstreamAuth {
    /// Where the credential goes.
    pub scheme: AuthScheme,
    /// Name of the header that carries the credential with `scheme: Header`; no default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128), regex(pattern = HEADER_PATTERN))]
    pub header: Option<String>,
}

/// Where a credential goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub enum AuthScheme {
    /// `Authorization: Bearer`.
    #[default]
    Bearer,
    /// The header that `header` names.
    Header,
    /// Nowhere.
    None,
}

/// A dialect that differs from the rest of the provider.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Endpoint {
    /// The dialect.
    pub dialect: Dialect,
    /// Base URL of this dialect. Without it: that of the provider.
    #[serde(rename = "baseURL", skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 2048), regex(pattern = URL_PATTERN))]
    pub base_url: Option<String>,
    /// How the credential is sent with this dialect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auth: Option<UpstreamAuth>,
}

/// A static header.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    rule("name", "!(self.name.lowerAscii() in ['authorization', 'x-api-key', 'host', 'content-length', 'transfer-encoding', 'connection', 'proxy-authorization', 'cookie'])",
        "must not be a header that carries credentials or framing; use a Connection with `credentials` for the first"),
]))]
pub struct Header {
    /// Name of the header.
    #[schemars(length(min = 1, max = 128), regex(pattern = HEADER_PATTERN))]
    pub name: String,
    /// Value of the header; not for secrets.
    #[schemars(length(max = 2048), regex(pattern = r"^[\t -~]*$"))]
    pub value: String,
}

/// How a connection is chosen inside a provider.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub enum AccountStrategy {
    /// Lowest `priority` that is eligible.
    #[default]
    FillFirst,
    /// In turn.
    RoundRobin,
    /// The better of two random ones.
    P2C,
    /// By `weight`.
    Weighted,
    /// Uniformly random.
    Random,
    /// The one unused for longest.
    LeastUsed,
}

/// When a daily allowance starts again.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct QuotaReset {
    /// IANA time zone (`Asia/Shanghai`).
    #[serde(default = "utc")]
    #[schemars(length(min = 1, max = 64), regex(pattern = r"^[A-Za-z0-9_+/-]+$"))]
    pub time_zone: String,
    /// Hour of the day in that zone.
    #[serde(default)]
    #[schemars(range(min = 0, max = 23))]
    pub hour: i32,
}

fn utc() -> String {
    "UTC".to_owned()
}

/// How limits of a provider behave.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Capabilities {
    /// Every model has an allowance of its own: a limit locks the model, not the account. Default: as the preset says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_model_quota: Option<bool>,
    /// Models of other vendors are passed through: one model without credit says nothing about the account. Default: as the preset says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub passthrough_models: Option<bool>,
    /// All models of an account draw on one wallet. Default: as the preset says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shared_wallet: Option<bool>,
    /// Limits count per client address: the whole egress group of a connection rests with it. Default: as the preset says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub egress_bucketed: Option<bool>,
    /// An answer that is empty but ends in order is valid. Default: as the preset says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub empty_stop_is_valid: Option<bool>,
    /// Groups of models that share one allowance.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub quota_families: Vec<QuotaFamily>,
}

/// Models that share one allowance.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct QuotaFamily {
    /// Name of the family.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// Patterns over model names; `*` stands for any text.
    #[schemars(length(min = 1, max = 64), inner(length(min = 1, max = 300)), extend("x-kubernetes-list-type" = "set"))]
    pub models: Vec<String>,
}

/// A known model.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Model {
    /// Model as the provider calls it.
    #[schemars(length(min = 1, max = 300))]
    pub name: String,
    /// Context window in tokens. Without it: as the preset says, else unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000_000))]
    pub context_window: Option<i32>,
    /// Longest output in tokens. Without it: as the preset says, else unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000_000))]
    pub max_output_tokens: Option<i32>,
    /// What it can do; the list is complete when it is given, and without it nothing is assumed to be missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 8), extend("x-kubernetes-list-type" = "set"))]
    pub features: Option<Vec<Feature>>,
    /// Price in USD per million tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub price: Option<Price>,
}

/// What a model can do.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize, JsonSchema)]
pub enum Feature {
    /// Tool calls.
    Tools,
    /// Image input.
    Vision,
    /// Reasoning output.
    Reasoning,
    /// Output by a JSON schema.
    StructuredOutput,
}

/// A decimal amount of money.
pub const MONEY_PATTERN: &str = r"^[0-9]{1,6}(\.[0-9]{1,6})?$";

/// Price in USD per million tokens, as decimal strings.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Price {
    /// Input tokens.
    #[schemars(length(max = 13), regex(pattern = MONEY_PATTERN))]
    pub input: String,
    /// Output tokens.
    #[schemars(length(max = 13), regex(pattern = MONEY_PATTERN))]
    pub output: String,
    /// Input tokens from the vendor's cache. Without it: the price of input.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 13), regex(pattern = MONEY_PATTERN))]
    pub cached_input: Option<String>,
}

/// Deadlines of one attempt.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Timeouts {
    /// TCP and TLS. Default 10s.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-duration" = ["1s", "5m"]))]
    pub connect: Option<Duration>,
    /// Until the answer starts. Default 10m, and for streams an adaptive budget of 80s to 180s; a value replaces both as it stands.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-duration" = ["1s", "24h"]))]
    pub response_start: Option<Duration>,
    /// Without progress inside a stream; `0s` = off. Environment `STREAM_IDLE_TIMEOUT_MS`, default 10m.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-duration" = ["1s", "24h", "0s"]))]
    pub stream_idle: Option<Duration>,
    /// Without content once a stream has started; `0s` = off. Environment `STREAM_CONTENT_STALL_TIMEOUT_MS`; default: the adaptive budget of `responseStart`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-duration" = ["1s", "24h", "0s"]))]
    pub stream_content_stall: Option<Duration>,
    /// The whole attempt including its stream; `0s` = off. Environment `STREAM_ACTIVE_TIMEOUT_MS`, default off.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-duration" = ["1s", "24h", "0s"]))]
    pub total: Option<Duration>,
}

/// TLS to a provider.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProviderTls {
    /// Certificates to trust beside the built-in roots.
    pub ca_bundle: CaBundle,
}

/// Certificates to trust.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CaBundle {
    /// ConfigMap key with PEM certificates.
    pub config_map_ref: ConfigMapKeyRef,
}
