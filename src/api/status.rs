//! Status of every kind (interface.md 8). Only the operator writes it, and nothing reads it as an input. A member that an older version did not
//! write has a default: a status must never make its object unreadable.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::conditions::Condition;

/// `observedGeneration` of an object that no operator has touched.
pub const UNTOUCHED: i64 = -1;

fn untouched() -> i64 {
    UNTOUCHED
}

/// Status of a Provider.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProviderStatus {
    /// Generation of the spec that this status is about; -1 = no operator has seen the object yet.
    #[serde(default = "untouched")]
    #[schemars(range(min = -1, max = 9_007_199_254_740_991_i64))]
    pub observed_generation: i64,
    /// Ready, Programmed and Available; Reconciling and Stalled only while they are true.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// The circuit breaker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub breaker: Option<BreakerStatus>,
    /// The window gate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<WindowStatus>,
    /// Counts of its connections.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connections: Option<ConnectionCounts>,
    /// Commands that all ready gateway pods have confirmed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commands: Option<Commands>,
}

/// The circuit breaker of a provider.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct BreakerStatus {
    /// Closed, Degraded, Open or HalfOpen.
    #[schemars(length(max = 32))]
    pub state: String,
    /// Counted failures.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub failures: i32,
    /// When an open breaker lets a probe through.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time", "maxLength" = 64))]
    pub until: Option<String>,
    /// Times it opened again since it was last closed.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub open_cycles: i32,
}

/// The window gate of a provider.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WindowStatus {
    /// When the rest ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time", "maxLength" = 64))]
    pub until: Option<String>,
}

/// Counts of connections.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ConnectionCounts {
    /// All of them.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub total: i32,
    /// Those that can serve.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub active: i32,
    /// Those that rest until a deadline.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub cooling: i32,
    /// Those in a terminal state.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub terminal: i32,
}

/// The last value of each command annotation that all ready gateway pods have confirmed.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Commands {
    /// Value of `omniroute.dev/clear-cooldown`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub clear_cooldown: Option<String>,
    /// Value of `omniroute.dev/reset`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub reset: Option<String>,
}

/// Most lockouts that a status lists.
pub const MAX_LOCKOUTS: usize = 32;
/// Most findings that a status lists.
pub const MAX_FINDINGS: usize = 20;

/// Status of a Connection.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConnectionStatus {
    /// Generation of the spec that this status is about; -1 = no operator has seen the object yet.
    #[serde(default = "untouched")]
    #[schemars(range(min = -1, max = 9_007_199_254_740_991_i64))]
    pub observed_generation: i64,
    /// Ready, Programmed and Available; Reconciling and Stalled only while they are true.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// Active, Cooling, Banned, Expired, CreditsExhausted or RequestRejected.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub state: Option<String>,
    /// Why it is not active.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub reason: Option<String>,
    /// When it may be used again.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time", "maxLength" = 64))]
    pub until: Option<String>,
    /// Where the wait comes from.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub wait_source: Option<String>,
    /// Step of the exponential backoff.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1000))]
    pub backoff_level: Option<i32>,
    /// Failures of the credential without a success in between.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1000))]
    pub strikes: Option<i32>,
    /// HTTP status of the last error.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 999))]
    pub last_error_status: Option<i32>,
    /// When `state` last changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time", "maxLength" = 64))]
    pub last_transition_time: Option<String>,
    /// Models that rest, the soonest last to expire first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub lockouts: Vec<LockoutStatus>,
    /// Lockouts that the list had no room for.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1_000_000))]
    pub lockouts_omitted: Option<i32>,
    /// Gateway pods behind this status.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pods: Option<PodCounts>,
    /// Commands that all ready gateway pods have confirmed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commands: Option<Commands>,
}

/// A model that rests.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct LockoutStatus {
    /// The model or quota family.
    #[schemars(length(max = 300))]
    pub model: String,
    /// Why.
    #[schemars(length(max = 64))]
    pub reason: String,
    /// Until when.
    #[schemars(extend("format" = "date-time", "maxLength" = 64))]
    pub until: String,
    /// True = this model only, not its quota family.
    pub exact: bool,
}

/// Gateway pods behind a status.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PodCounts {
    /// Pods that report.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub reporting: i32,
    /// All pods.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub total: i32,
}

/// Status of a Combo.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ComboStatus {
    /// Generation of the spec that this status is about; -1 = no operator has seen the object yet.
    #[serde(default = "untouched")]
    #[schemars(range(min = -1, max = 9_007_199_254_740_991_i64))]
    pub observed_generation: i64,
    /// Ready, Programmed and Available; Reconciling and Stalled only while they are true.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// The strategy in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub strategy: Option<String>,
    /// The targets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub targets: Vec<TargetStatus>,
    /// Targets that can serve.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100))]
    pub targets_available: Option<i32>,
    /// All targets.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100))]
    pub targets_total: Option<i32>,
    /// `targetsAvailable/targetsTotal`, for the printed column.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub available: Option<String>,
}

/// One target of a combo.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TargetStatus {
    /// Name of the target.
    #[schemars(length(max = 560))]
    pub name: String,
    /// Whether it can serve.
    #[serde(default)]
    pub available: bool,
    /// Why it cannot.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub reason: Option<String>,
    /// Until when it cannot.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time", "maxLength" = 64))]
    pub until: Option<String>,
}

/// Status of an OperatorErrorRule.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RuleStatus {
    /// Generation of the spec that this status is about; -1 = no operator has seen the object yet.
    #[serde(default = "untouched")]
    #[schemars(range(min = -1, max = 9_007_199_254_740_991_i64))]
    pub observed_generation: i64,
    /// Ready, Programmed and Available; Reconciling and Stalled only while they are true.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// Errors that it decided.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 9_007_199_254_740_991_i64))]
    pub matches: Option<i64>,
    /// Errors that it would have decided in mode Shadow.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 9_007_199_254_740_991_i64))]
    pub shadow_matches: Option<i64>,
    /// When it last matched.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time", "maxLength" = 64))]
    pub last_match_time: Option<String>,
}

/// Status of a ResilienceSettings.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SettingsStatus {
    /// Generation of the spec that this status is about; -1 = no operator has seen the object yet.
    #[serde(default = "untouched")]
    #[schemars(range(min = -1, max = 9_007_199_254_740_991_i64))]
    pub observed_generation: i64,
    /// Ready, Programmed and Available; Reconciling and Stalled only while they are true.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// The gateway pods and what they run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gateway: Option<GatewayStatus>,
    /// Findings about the configuration that belong to no other object, the first 20.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20))]
    pub findings: Vec<FindingStatus>,
}

/// The gateway pods and what they run.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GatewayStatus {
    /// Wanted pods.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub replicas: i32,
    /// Ready pods.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub ready: i32,
    /// `ready/replicas`, for the printed column.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub pods: Option<String>,
    /// First characters of the hash of the snapshot in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub snapshot_hash: Option<String>,
    /// Version of the gateway.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub version: Option<String>,
}

/// A finding about the configuration.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct FindingStatus {
    /// Kind of the object it is about.
    #[schemars(length(max = 63))]
    pub kind: String,
    /// Name of the object it is about.
    #[schemars(length(max = 253))]
    pub name: String,
    /// Field it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub field: Option<String>,
    /// Reason.
    #[schemars(length(max = 64))]
    pub reason: String,
    /// What is wrong and the way out.
    #[schemars(length(max = 1024))]
    pub message: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn statuses_of_older_versions_can_be_read() {
        let provider: ProviderStatus =
            serde_json::from_value(json!({"breaker": {"state": "Open"}, "window": {}, "connections": {}, "commands": {}})).unwrap();
        assert_eq!((provider.observed_generation, provider.breaker.unwrap().failures), (UNTOUCHED, 0));
        let connection: ConnectionStatus = serde_json::from_value(json!({"lockouts": [{"model": "m"}], "pods": {}, "retired": 1})).unwrap();
        assert_eq!((connection.lockouts[0].model.as_str(), connection.pods), ("m", Some(PodCounts::default())));
        let combo: ComboStatus = serde_json::from_value(json!({"targets": [{"name": "a"}]})).unwrap();
        assert!(!combo.targets[0].available);
        let settings: SettingsStatus = serde_json::from_value(json!({"gateway": {}, "findings": [{}]})).unwrap();
        assert_eq!((settings.gateway, settings.findings.len()), (Some(GatewayStatus::default()), 1));
        assert_eq!(serde_json::from_value::<RuleStatus>(json!({})).unwrap().observed_generation, UNTOUCHED);
    }
}
