//! Combos.

use serde::{Deserialize, Serialize};

use super::{StrategyOptions, ValidateResponse};

/// A named virtual model.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Combo {
    /// Name of the resource.
    pub name: String,
    /// Names that clients may send.
    pub model_names: Vec<String>,
    /// Strategy.
    pub strategy: Strategy,
    /// Declared order; nested combos are references here, the plan expands them.
    pub targets: Vec<Target>,
    /// Bounds of attempts.
    pub attempts: Attempts,
    /// Deadline of one target until the commit, milliseconds; 0 = off.
    pub target_timeout_ms: u64,
    /// Deadline of the request until the commit, milliseconds; 0 = the 10 min ceiling.
    pub total_timeout_ms: u64,
    /// Whether a request may wait for a timer.
    pub cooldown_wait: bool,
    /// Context window rules.
    pub context: ContextRules,
    /// Checks of a 2xx answer.
    pub validate_response: ValidateResponse,
    /// Composite tiers: target names in order of the tiers; empty = declared order.
    pub tier_order: Vec<String>,
    /// Options that only some strategies read.
    pub options: StrategyOptions,
}

/// The twenty strategies.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
#[allow(missing_docs)] // the names are the specification's; docs/reference describes each
pub enum Strategy {
    #[default]
    Priority,
    Weighted,
    RoundRobin,
    ContextRelay,
    FillFirst,
    P2C,
    Random,
    LeastUsed,
    CostOptimized,
    ResetAware,
    ResetWindow,
    Headroom,
    QuotaWeighted,
    StrictRandom,
    Auto,
    Lkgp,
    ContextOptimized,
    CacheOptimized,
    Fusion,
    Pipeline,
}

impl Strategy {
    /// All of them.
    pub const ALL: [Self; 20] = [
        Self::Priority,
        Self::Weighted,
        Self::RoundRobin,
        Self::ContextRelay,
        Self::FillFirst,
        Self::P2C,
        Self::Random,
        Self::LeastUsed,
        Self::CostOptimized,
        Self::ResetAware,
        Self::ResetWindow,
        Self::Headroom,
        Self::QuotaWeighted,
        Self::StrictRandom,
        Self::Auto,
        Self::Lkgp,
        Self::ContextOptimized,
        Self::CacheOptimized,
        Self::Fusion,
        Self::Pipeline,
    ];

    /// Whether one request becomes several calls.
    #[must_use]
    pub const fn is_composed(self) -> bool {
        matches!(self, Self::Fusion | Self::Pipeline)
    }
}

/// One entry of a combo.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Target {
    /// Stable name inside the combo: given, else `PROVIDER/MODEL` or the combo's name, made unique with `#2`.
    pub name: String,
    /// What it is.
    pub kind: TargetKind,
    /// Share in weighted choices; 0 allowed.
    pub weight: u32,
    /// Move past this target only when every failure on it was quota exhaustion.
    pub fallback_only_on_quota_exhaustion: bool,
    /// Pipeline: what the model of this step is told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
}

/// A target is a model of a provider or another combo.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum TargetKind {
    /// One model.
    #[serde(rename_all = "camelCase")]
    Model {
        /// Provider name.
        provider: String,
        /// Upstream model id.
        model: String,
        /// Connections that may serve it, by name; empty = all of the provider.
        connections: Vec<String>,
    },
    /// Another combo.
    Combo {
        /// Its name.
        combo: String,
    },
}

/// Bounds of attempts (decisions 9.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Attempts {
    /// Dispatches per request, at most 30.
    pub max: u32,
    /// Dispatches on the same connection; 0 = 1 while anything else is left, otherwise 2.
    pub per_target: u32,
    /// Pause before a retry on the same connection, milliseconds.
    pub retry_delay_ms: u64,
    /// Extra passes over the whole list.
    pub max_set_retries: u32,
    /// Pause between passes, milliseconds.
    pub set_retry_delay_ms: u64,
    /// Longest pause before the next target after 502, 503, 504, milliseconds.
    pub fallback_delay_ms: u64,
}

impl Default for Attempts {
    fn default() -> Self {
        Self { max: 30, per_target: 0, retry_delay_ms: 2_000, max_set_retries: 0, set_retry_delay_ms: 2_000, fallback_delay_ms: 0 }
    }
}

/// Context window rules of a combo.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContextRules {
    /// Drop targets with a known smaller window.
    pub min_window: Option<u64>,
    /// Drop targets with a known larger window.
    pub max_window: Option<u64>,
    /// Drop targets whose window is unknown (`unknown: Drop`).
    pub drop_unknown: bool,
    /// Larger windows first.
    pub prefer_large: bool,
}
