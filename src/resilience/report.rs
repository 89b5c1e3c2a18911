//! What a gateway says about its state: the body of `GET /state`, and what the operator merges over pods.

use serde::{Deserialize, Serialize};

use crate::api::time::EpochMs;

/// The body of `GET /state` (interface 6).
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StateReport {
    /// Grows with every change; also the `ETag`.
    pub version: u64,
    /// What the gateway runs.
    pub snapshot: SnapshotInfo,
    /// Why the newest snapshot was refused, if it was.
    pub refused: Option<String>,
    /// Providers by name.
    pub providers: Vec<ProviderState>,
    /// Connections by name.
    pub connections: Vec<ConnectionState>,
    /// Rules by name.
    pub rules: Vec<RuleState>,
    /// Findings of the compiler that concern this gateway (`run` only; in a cluster they are conditions).
    pub findings: Vec<FindingState>,
    /// Fragment hashes that this gateway runs, by `Kind/name`.
    pub fragments: std::collections::BTreeMap<String, String>,
    /// The last value of each command that was applied, by `Kind/name/verb`.
    pub commands: std::collections::BTreeMap<String, String>,
}

/// The snapshot that a gateway runs.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SnapshotInfo {
    /// Its hash; empty before the first.
    pub hash: String,
    /// When it was loaded.
    pub loaded_time: Option<EpochMs>,
}

/// A provider's live state.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ProviderState {
    /// Name.
    pub name: String,
    /// Its breaker.
    pub breaker: BreakerState,
    /// The window gate, when it rests.
    pub window: Option<WindowState>,
}

/// States of a breaker.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
pub enum BreakerPhase {
    /// Traffic flows.
    #[default]
    Closed,
    /// Traffic flows; a visible warning.
    Degraded,
    /// Probes only.
    HalfOpen,
    /// No traffic.
    Open,
}

/// A breaker's live state.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BreakerState {
    /// State.
    pub state: BreakerPhase,
    /// Failures counted.
    pub failures: u32,
    /// When an open one lets a probe through.
    pub until: Option<EpochMs>,
    /// Failed probes since it last closed.
    pub open_cycles: u32,
}

/// The window gate's rest.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct WindowState {
    /// End of the rest.
    pub until: Option<EpochMs>,
}

/// States of a connection (interface 6).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
pub enum ConnectionPhase {
    /// In rotation.
    #[default]
    Active,
    /// Rests until a deadline.
    Cooling,
    /// Rests because the vendor rejects this client.
    RequestRejected,
    /// Terminal: no money.
    CreditsExhausted,
    /// Terminal: credential no longer accepted.
    Expired,
    /// Terminal: account closed or key revoked.
    Banned,
}

/// A connection's live state.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ConnectionState {
    /// Name.
    pub name: String,
    /// Its provider.
    pub provider: String,
    /// State.
    pub state: ConnectionPhase,
    /// Why (`RateLimitExceeded`), while it is not active.
    pub reason: Option<String>,
    /// End of the cooldown.
    pub until: Option<EpochMs>,
    /// Where the wait comes from (`header`).
    pub wait_source: Option<String>,
    /// Backoff level.
    pub backoff_level: u32,
    /// Auth strikes.
    pub strikes: u32,
    /// Requests in flight.
    pub in_flight: u32,
    /// Status of the last failure.
    pub last_status: Option<u16>,
    /// Locked models, soonest last to expire first.
    pub lockouts: Vec<LockoutState>,
    /// Locks that found no room.
    pub lockouts_omitted: u32,
}

/// A locked model.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LockoutState {
    /// Model or family.
    pub model: String,
    /// Why.
    pub reason: String,
    /// End of the lock.
    pub until: Option<EpochMs>,
    /// One literal id, not a family.
    pub exact: bool,
}

/// Counters of an operator rule.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RuleState {
    /// Name.
    pub name: String,
    /// Times it acted.
    pub matches: u64,
    /// Times it would have acted.
    pub shadow_matches: u64,
    /// Last time of either.
    pub last_match_time: Option<EpochMs>,
}

/// A finding of the compiler.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FindingState {
    /// Kind of the object.
    pub kind: String,
    /// Name of the object.
    pub name: String,
    /// Dotted path of the field.
    pub field: String,
    /// Condition reason.
    pub reason: String,
    /// What is wrong and the way out.
    pub message: String,
}
