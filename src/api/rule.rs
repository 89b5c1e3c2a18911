//! `OperatorErrorRule`: what an error of an upstream means.

use std::collections::BTreeMap;

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::common::{HEADER_PATTERN, LocalRef, rule};
use super::duration::Duration;
use super::status::RuleStatus;

/// One rule that says what a certain error of an upstream means.
#[derive(CustomResource, Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[kube(group = "omniroute.dev", version = "v1alpha1", kind = "OperatorErrorRule", namespaced, schema = "disabled")]
#[kube(status = "RuleStatus", category = "omniroute", shortname = "ormrule", derive = "PartialEq", derive = "Default")]
#[kube(printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type=='Ready')].status"}"#)]
#[kube(printcolumn = r#"{"name":"Mode","type":"string","jsonPath":".spec.mode"}"#)]
#[kube(printcolumn = r#"{"name":"Matches","type":"integer","jsonPath":".status.matches"}"#)]
#[kube(printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    rule("providerSelector", "!(has(self.providerRef) && has(self.providerSelector))", "must not stand beside `providerRef`; keep one of them, or neither for all providers"),
    rule("match", "has(self.match) || (has(self.catchAll) && self.catchAll)", "must be given, unless `catchAll: true` makes this the default of a provider"),
    rule("catchAll", "!(has(self.catchAll) && self.catchAll) || !has(self.match)", "must not stand beside `match`: a catch-all matches whatever no other rule matched"),
    rule("verdict", "!(has(self.catchAll) && self.catchAll) || (has(self.verdict.cooldown) && duration(self.verdict.cooldown) >= duration('1m'))",
        "must have a `cooldown` of at least 1m with `catchAll: true`"),
    rule("verdict", "!(has(self.catchAll) && self.catchAll) || !has(self.verdict.cooldownPolicy) || self.verdict.cooldownPolicy == 'AtLeast'",
        "must have `cooldownPolicy: AtLeast` (or none) with `catchAll: true`"),
    rule("verdict", "!(has(self.catchAll) && self.catchAll) || !has(self.verdict.restateStatus)", "must not have `restateStatus` with `catchAll: true`"),
]))]
pub struct OperatorErrorRuleSpec {
    /// The Provider it applies to. Without it and without `providerSelector`: all providers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider_ref: Option<LocalRef>,
    /// The Providers it applies to, by their labels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider_selector: Option<ProviderSelector>,
    /// Rules with a higher priority are asked first, then older ones, then by name.
    #[serde(default)]
    #[schemars(range(min = -1_000_000, max = 1_000_000))]
    pub priority: i32,
    /// Whether the rule acts.
    #[serde(default)]
    pub mode: RuleMode,
    /// Makes it the default for 402, 403, 408, 429 and 5xx answers that no other rule and no row of the catalog matches.
    #[serde(default)]
    pub catch_all: bool,
    /// What the error must look like; all members must hold.
    #[serde(rename = "match", skip_serializing_if = "Option::is_none")]
    pub matches: Option<RuleMatch>,
    /// What the error means.
    pub verdict: RuleVerdict,
}

/// Providers by their labels.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    rule("", "has(self.matchLabels) || has(self.matchExpressions)", "must have `matchLabels` or `matchExpressions`; leave the selector out for all providers"),
]))]
pub struct ProviderSelector {
    /// Labels that must have these values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 16, "minProperties" = 1, "x-values" = {"maxLength": 63}))]
    pub match_labels: BTreeMap<String, String>,
    /// Conditions on labels.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 16))]
    pub match_expressions: Vec<LabelExpression>,
}

/// A condition on a label.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    rule("values", "(self.operator in ['In', 'NotIn']) == has(self.values)", "must be given with `operator` In or NotIn, and only then"),
]))]
pub struct LabelExpression {
    /// Key of the label.
    #[schemars(length(min = 1, max = 317))]
    pub key: String,
    /// The condition.
    pub operator: LabelOperator,
    /// Values of In and NotIn.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 32), inner(length(max = 63)), extend("x-kubernetes-list-type" = "set"))]
    pub values: Vec<String>,
}

/// A condition on a label.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub enum LabelOperator {
    /// The label has one of the values.
    In,
    /// The label is absent or has none of the values.
    NotIn,
    /// The label exists.
    Exists,
    /// The label does not exist.
    DoesNotExist,
}

/// Whether a rule acts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub enum RuleMode {
    /// It decides.
    #[default]
    Enforce,
    /// It is counted and never acts.
    Shadow,
}

/// What an error must look like.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    rule("", "has(self.statuses) || has(self.text) || has(self.code) || has(self.type) || has(self.header) || has(self.transport)",
        "must have at least one of `statuses`, `text`, `code`, `type`, `header` and `transport`"),
]))]
pub struct RuleMatch {
    /// HTTP statuses, as they came or as they were restated; 200 = an error inside a successful answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 64), inner(range(min = 100, max = 599)), extend("x-kubernetes-list-type" = "set"))]
    pub statuses: Vec<i32>,
    /// Literal text that must appear, without regard to case.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 500))]
    pub text: Option<String>,
    /// Literal text that must not appear, without regard to case.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 500))]
    pub not_text: Option<String>,
    /// The error's structured code, without regard to case.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 200))]
    pub code: Option<String>,
    /// The error's structured type, without regard to case.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 200))]
    pub error_type: Option<String>,
    /// A header of the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub header: Option<HeaderMatch>,
    /// How the transport failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transport: Option<RuleTransport>,
}

/// A header of an answer.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HeaderMatch {
    /// Name of the header, without regard to case.
    #[schemars(length(min = 1, max = 128), regex(pattern = HEADER_PATTERN))]
    pub name: String,
    /// Exact value. Without it: any.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 500))]
    pub value: Option<String>,
}

/// How a transport failed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize, JsonSchema)]
pub enum RuleTransport {
    /// Name resolution or TCP connect.
    Connect,
    /// No answer in time.
    Timeout,
    /// The connection broke before the answer.
    Reset,
    /// TLS handshake or certificate.
    Tls,
}

/// What an error means.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RuleVerdict {
    /// Why. Default `QuotaExhausted`; with `catchAll` it follows from the status.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<RuleReason>,
    /// How far it reaches.
    #[serde(default)]
    pub scope: RuleScope,
    /// How long it rests. Without it: as the reason and the upstream's own hints say.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-duration" = ["1ms", "720h"]))]
    pub cooldown: Option<Duration>,
    /// What a longer wait that the upstream states does to `cooldown`. Default `Exact`; with `catchAll` it is `AtLeast`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cooldown_policy: Option<CooldownPolicy>,
    /// Status to continue with instead of the one that came. Without it: that one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 400, max = 599))]
    pub restate_status: Option<i32>,
}

/// Reasons that a rule can declare.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize, JsonSchema)]
pub enum RuleReason {
    /// The credential or its permissions.
    AuthError,
    /// A quota or allowance is used up.
    QuotaExhausted,
    /// The account has no money.
    CreditsExhausted,
    /// Too many requests in a short time.
    RateLimitExceeded,
    /// The model cannot take this request now, or at all.
    ModelCapacity,
    /// The upstream failed.
    ServerError,
    /// The model or endpoint does not exist.
    NotFound,
    /// Too many requests at the same time.
    ConcurrencyLimited,
    /// The vendor refuses requests of this client.
    RequestRejected,
    /// A supervisor says that the service is not running.
    ServiceNotRunning,
    /// Nothing known.
    Unknown,
}

/// How far a rule reaches.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub enum RuleScope {
    /// The model on this connection.
    Model,
    /// The connection.
    #[default]
    Connection,
    /// Every connection of the provider.
    Provider,
}

/// What a longer wait that the upstream states does to a declared cooldown.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub enum CooldownPolicy {
    /// Nothing: the declared one holds.
    #[default]
    Exact,
    /// It wins.
    AtLeast,
}
