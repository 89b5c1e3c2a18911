//! `Combo`: a named virtual model.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::common::{ModelRef, NAME_PATTERN, rule, yes};
use super::duration::Duration;
use super::status::ComboStatus;

/// A named virtual model: targets, the order in which they are tried, and the bounds of trying.
#[derive(CustomResource, Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[kube(group = "omniroute.dev", version = "v1alpha1", kind = "Combo", namespaced, schema = "disabled")]
#[kube(status = "ComboStatus", category = "omniroute", shortname = "ormcombo", derive = "PartialEq", derive = "Default")]
#[kube(printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type=='Ready')].status"}"#)]
#[kube(printcolumn = r#"{"name":"Strategy","type":"string","jsonPath":".spec.strategy"}"#)]
#[kube(printcolumn = r#"{"name":"Available","type":"string","jsonPath":".status.available"}"#)]
#[kube(printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    rule("fusion", "!has(self.fusion) || self.strategy == 'Fusion'", "must only be given with `strategy: Fusion`"),
    rule("auto", "!has(self.auto) || self.strategy == 'Auto'", "must only be given with `strategy: Auto`"),
    rule("targets", "self.strategy == 'Pipeline' || self.targets.all(t, !has(t.prompt))", "must only have a `prompt` with `strategy: Pipeline`"),
    rule("handoffModel", "!has(self.handoffModel) || self.strategy == 'ContextRelay'", "must only be given with `strategy: ContextRelay`"),
    rule("hedging", "!has(self.hedging) || !self.hedging || (has(self.zeroLatencyOptimizationsEnabled) && self.zeroLatencyOptimizationsEnabled)",
        "must go with `zeroLatencyOptimizationsEnabled: true`, because hedging sends some requests twice"),
]))]
pub struct ComboSpec {
    /// What it is for.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2000))]
    pub description: Option<String>,
    /// Names that clients may send as `model`, without regard to case and context suffixes such as [500k]. Without it: the name of the object.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 32), inner(length(min = 1, max = 100), regex(pattern = r"^[A-Za-z0-9_/.:\[\] -]+$")), extend("x-kubernetes-list-type" = "set"))]
    pub model_names: Vec<String>,
    /// Order in which targets are tried.
    #[serde(default)]
    pub strategy: Strategy,
    /// Models and combos to try, in declared order.
    #[schemars(length(min = 1, max = 100))]
    pub targets: Vec<Target>,
    /// Bounds of attempts.
    #[serde(default)]
    pub attempts: Attempts,
    /// Deadlines of a request to this combo.
    #[serde(default)]
    pub timeouts: ComboTimeouts,
    /// Waiting for a timer instead of failing.
    #[serde(default)]
    pub cooldown_wait: ComboWait,
    /// Rules about context windows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context: Option<ContextRules>,
    /// Checks of a successful answer; one that fails them counts as a failed attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub validate_response: Option<ValidateResponse>,
    /// Named tiers that reorder the targets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub composite_tiers: Option<CompositeTiers>,
    /// Weighted: successes on a target before a new draw.
    #[serde(default = "one")]
    #[schemars(range(min = 0, max = 1000))]
    pub sticky_weighted_limit: i32,
    /// RoundRobin: successes on a target before the next one. Without it: `comboStickyRoundRobinLimit` of the ResilienceSettings.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1000))]
    pub sticky_round_robin_limit: Option<i32>,
    /// Ignores session pins.
    #[serde(default)]
    pub disable_session_stickiness: bool,
    /// Client keys share accounts: requests wait for their turn on the chosen one; with QuotaWeighted, accounts take turns by weight.
    #[serde(default)]
    pub quota_share: bool,
    /// RoundRobin and quota share: longest queue; 0 = never queue.
    #[serde(default = "queue_depth")]
    #[schemars(range(min = 0, max = 100))]
    pub queue_depth: i32,
    /// RoundRobin and quota share: longest time in the queue.
    #[serde(default = "half_a_minute")]
    #[schemars(extend("x-duration" = ["1ms", "2m"]))]
    pub queue_timeout: Duration,
    /// RoundRobin: concurrent requests per target.
    #[serde(default = "three")]
    #[schemars(range(min = 1, max = 32))]
    pub concurrency_per_model: i32,
    /// Permits optimizations that trade money for latency, such as `hedging` and `predictiveTtft`.
    #[serde(default)]
    pub zero_latency_optimizations_enabled: bool,
    /// Starts the next target beside one that is slow; the first acceptable answer wins. Never beside or past a protected target.
    #[serde(default)]
    pub hedging: bool,
    /// Hedging: how long a target may be silent before the next one is started; the first content of a stream counts as an answer.
    #[serde(default = "hedge_delay")]
    #[schemars(extend("x-duration" = ["1ms", "1m"]))]
    pub hedge_delay: Duration,
    /// Skips targets that were slower than this on average; `0s` = off.
    #[serde(default = "zero")]
    #[schemars(extend("x-duration" = ["1ms", "5m", "0s"]))]
    pub predictive_ttft: Duration,
    /// ResetAware: targets within this many percent of the best count as equal.
    #[serde(default = "five")]
    #[schemars(range(min = 0, max = 100))]
    pub reset_aware_tie_band_percent: i32,
    /// ResetAware: targets with less quota left than this many percent go last.
    #[serde(default = "ten")]
    #[schemars(range(min = 0, max = 100))]
    pub reset_aware_exhaustion_guard_percent: i32,
    /// ResetWindow: resets within this time of the earliest count as equal.
    #[serde(default = "minute")]
    #[schemars(extend("x-duration" = ["1ms", "24h", "0s"]))]
    pub reset_window_tie_band: Duration,
    /// QuotaWeighted: least share of a target in percent.
    #[serde(default = "one")]
    #[schemars(range(min = 0, max = 100))]
    pub quota_weighted_floor_percent: i32,
    /// Deepest nesting of combos.
    #[serde(default = "three")]
    #[schemars(range(min = 1, max = 10))]
    pub max_combo_depth: i32,
    /// ContextRelay: share of an account's quota in percent that must be used before a summary of the conversation is made for the next account.
    #[serde(default = "mostly_used")]
    #[schemars(range(min = 50, max = 94))]
    pub handoff_threshold_percent: i32,
    /// ContextRelay: the model that writes the summary. Without it: the model that served the conversation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub handoff_model: Option<ModelRef>,
    /// ContextRelay: Providers, by name or preset, whose accounts hand over. An empty list: none.
    #[serde(default = "codex")]
    #[schemars(length(max = 10), inner(length(min = 1, max = 100)), extend("x-kubernetes-list-type" = "set"))]
    pub handoff_providers: Vec<String>,
    /// ContextRelay: newest messages that the summary is made of.
    #[serde(default = "thirty")]
    #[schemars(range(min = 5, max = 100))]
    pub max_messages_for_summary: i32,
    /// Options of `strategy: Fusion`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fusion: Option<Fusion>,
    /// Options of `strategy: Auto`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto: Option<Auto>,
}

const fn one() -> i32 {
    1
}
const fn three() -> i32 {
    3
}
const fn five() -> i32 {
    5
}
const fn ten() -> i32 {
    10
}
const fn queue_depth() -> i32 {
    20
}
const fn thirty() -> i32 {
    30
}
const fn mostly_used() -> i32 {
    85
}
fn codex() -> Vec<String> {
    vec!["codex".to_owned()]
}
fn zero() -> Duration {
    "0s".into()
}
fn half_a_minute() -> Duration {
    "30s".into()
}
fn minute() -> Duration {
    "1m".into()
}
fn hedge_delay() -> Duration {
    "500ms".into()
}

impl Default for ComboSpec {
    fn default() -> Self {
        Self {
            description: None,
            model_names: Vec::new(),
            strategy: Strategy::default(),
            targets: Vec::new(),
            attempts: Attempts::default(),
            timeouts: ComboTimeouts::default(),
            cooldown_wait: ComboWait::default(),
            context: None,
            validate_response: None,
            composite_tiers: None,
            sticky_weighted_limit: one(),
            sticky_round_robin_limit: None,
            disable_session_stickiness: false,
            quota_share: false,
            queue_depth: queue_depth(),
            queue_timeout: half_a_minute(),
            concurrency_per_model: three(),
            zero_latency_optimizations_enabled: false,
            hedging: false,
            hedge_delay: hedge_delay(),
            predictive_ttft: zero(),
            reset_aware_tie_band_percent: five(),
            reset_aware_exhaustion_guard_percent: ten(),
            reset_window_tie_band: minute(),
            quota_weighted_floor_percent: one(),
            max_combo_depth: three(),
            handoff_threshold_percent: mostly_used(),
            handoff_model: None,
            handoff_providers: codex(),
            max_messages_for_summary: thirty(),
            fusion: None,
            auto: None,
        }
    }
}

/// The twenty strategies.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub enum Strategy {
    /// In declared order.
    #[default]
    Priority,
    /// Drawn by `weight`.
    Weighted,
    /// In turn.
    RoundRobin,
    /// In declared order, with a summary handed to the next account when one has nearly used up its quota.
    ContextRelay,
    /// In declared order until a target is full.
    FillFirst,
    /// The better of two random ones.
    P2C,
    /// Uniformly random.
    Random,
    /// The least used one.
    LeastUsed,
    /// The cheapest one.
    CostOptimized,
    /// The one whose quota resets soonest for what is left.
    ResetAware,
    /// The one whose quota window ends first.
    ResetWindow,
    /// The one with the most quota left.
    Headroom,
    /// Drawn by the quota left.
    QuotaWeighted,
    /// Random without repetition until all were used.
    StrictRandom,
    /// Scored by health, cost, latency and quota.
    Auto,
    /// The last one that worked.
    Lkgp,
    /// The largest context window first.
    ContextOptimized,
    /// The one that has the prompt in its cache.
    CacheOptimized,
    /// Several at once, judged by one.
    Fusion,
    /// One after the other, each working on the answer of the one before.
    Pipeline,
}

/// One entry of a combo: a model of a provider, or another combo.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    rule("", "has(self.combo) ? !has(self.provider) && !has(self.model) : has(self.provider) && has(self.model)",
        "must have `provider` and `model`, or `combo` alone"),
    rule("connections", "!(has(self.connection) && has(self.connections))", "must not stand beside `connection`; list all of them in `connections`"),
    rule("combo", "!has(self.combo) || (!has(self.connection) && !has(self.connections))", "must not stand beside `connection` or `connections`; narrow the targets of that combo instead"),
]))]
pub struct Target {
    /// Name of the target inside the combo. Without it: `PROVIDER/MODEL` or the name of the combo.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 200))]
    pub name: Option<String>,
    /// Name of the Provider.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253), regex(pattern = NAME_PATTERN))]
    pub provider: Option<String>,
    /// Model as the provider calls it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 300))]
    pub model: Option<String>,
    /// The one Connection that may serve it. Without it and without `connections`: all of the provider.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253), regex(pattern = NAME_PATTERN))]
    pub connection: Option<String>,
    /// The Connections that may serve it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 100), inner(length(min = 1, max = 253), regex(pattern = NAME_PATTERN)), extend("x-kubernetes-list-type" = "set"))]
    pub connections: Vec<String>,
    /// Name of another Combo.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253), regex(pattern = NAME_PATTERN))]
    pub combo: Option<String>,
    /// Share in weighted choices; 0 = only as a fallback, unless all are 0.
    #[serde(default)]
    #[schemars(range(min = 0, max = 10_000))]
    pub weight: i32,
    /// Moves past this target only when every failure on it was a spent quota.
    #[serde(default)]
    pub fallback_only_on_quota_exhaustion: bool,
    /// Pipeline: what the model of this step is told, as a system turn beside what it works on.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 20_000))]
    pub prompt: Option<String>,
}

/// Bounds of attempts.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Attempts {
    /// Dispatches per request; rotation over dead credentials does not count.
    #[schemars(range(min = 1, max = 30))]
    pub max: i32,
    /// Dispatches on the same connection; 1 = no retry. Without it: 1 while anything else is left, otherwise 2.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 11))]
    pub per_target: Option<i32>,
    /// Pause before a retry on the same connection.
    #[schemars(extend("x-duration" = ["1ms", "1m", "0s"]))]
    pub retry_delay: Duration,
    /// Extra passes over the whole list.
    #[schemars(range(min = 0, max = 10))]
    pub max_set_retries: i32,
    /// Pause between passes.
    #[schemars(extend("x-duration" = ["1ms", "1m", "0s"]))]
    pub set_retry_delay: Duration,
    /// Longest pause before the next target after 502, 503 and 504; `0s` = off.
    #[schemars(extend("x-duration" = ["1ms", "1m", "0s"]))]
    pub fallback_delay: Duration,
}

impl Default for Attempts {
    fn default() -> Self {
        Self {
            max: 30,
            per_target: None,
            retry_delay: "2s".into(),
            max_set_retries: 0,
            set_retry_delay: "2s".into(),
            fallback_delay: "0s".into(),
        }
    }
}

/// Deadlines of a request to a combo.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ComboTimeouts {
    /// One target, until the first content reaches the client; `0s` = off.
    #[schemars(extend("x-duration" = ["1s", "24h", "0s"]))]
    pub target: Duration,
    /// All targets together, until the first content reaches the client; `0s` = a ceiling of 10m.
    #[schemars(extend("x-duration" = ["1s", "24h", "0s"]))]
    pub total: Duration,
}

impl Default for ComboTimeouts {
    fn default() -> Self {
        Self { target: "10m".into(), total: "0s".into() }
    }
}

/// Waiting of a combo for a timer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ComboWait {
    /// Whether a request may wait for the earliest timer, within the limits of `comboCooldownWait` of the ResilienceSettings.
    #[serde(default = "yes")]
    pub enabled: bool,
}

impl Default for ComboWait {
    fn default() -> Self {
        Self { enabled: true }
    }
}

/// Rules about context windows.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    rule("maxWindow", "!has(self.minWindow) || !has(self.maxWindow) || self.maxWindow >= self.minWindow", "must be at least `minWindow`"),
]))]
pub struct ContextRules {
    /// Drops targets with a known smaller window, in tokens. Without it: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 10_000_000))]
    pub min_window: Option<i32>,
    /// Drops targets with a known larger window, in tokens. Without it: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 10_000_000))]
    pub max_window: Option<i32>,
    /// What happens to targets whose window is not known.
    #[serde(default)]
    pub unknown: UnknownWindow,
    /// Larger windows first.
    #[serde(default)]
    pub prefer_large: bool,
}

/// What happens to targets whose window is not known.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub enum UnknownWindow {
    /// They stay.
    #[default]
    Keep,
    /// They are dropped.
    Drop,
}

/// Checks of a successful answer.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ValidateResponse {
    /// Least characters of content.
    #[serde(default)]
    #[schemars(range(min = 0, max = 1_000_000))]
    pub min_content_length: i32,
    /// Literal texts that must not appear.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 50), inner(length(min = 1, max = 500)), extend("x-kubernetes-list-type" = "set"))]
    pub forbidden: Vec<String>,
    /// Literal texts that must appear.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 50), inner(length(min = 1, max = 500)), extend("x-kubernetes-list-type" = "set"))]
    pub required: Vec<String>,
    /// Conditions on the JSON of the answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20))]
    pub json: Vec<JsonPredicate>,
}

/// A condition on the JSON of an answer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    rule("value", "(self.condition in ['Equals', 'NotEquals']) == has(self.value)", "must be given with `condition` Equals or NotEquals, and only then"),
]))]
pub struct JsonPredicate {
    /// Dotted path with optional indexes (`choices[0].message.content`).
    #[schemars(length(min = 1, max = 300))]
    pub path: String,
    /// The condition.
    pub condition: JsonCondition,
    /// Value to compare with: JSON text (`"stop"` with its quotes, `3`, `true`); anything that is no JSON is taken as a string.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 500))]
    pub value: Option<String>,
}

/// A condition on a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub enum JsonCondition {
    /// The path exists.
    Exists,
    /// It exists and is neither null nor empty.
    NonEmpty,
    /// It equals `value`.
    Equals,
    /// It differs from `value`.
    NotEquals,
}

/// Named tiers that reorder the targets of a combo.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    rule("defaultTier", "self.tiers.exists(t, t.name == self.defaultTier)", "must be the `name` of one of `tiers`"),
    rule("tiers", "self.tiers.all(t, !has(t.fallbackTier) || self.tiers.exists(u, u.name == t.fallbackTier))", "must only have a `fallbackTier` that is the `name` of one of `tiers`"),
]))]
pub struct CompositeTiers {
    /// The tier to start with.
    #[schemars(length(min = 1, max = 100))]
    pub default_tier: String,
    /// The tiers.
    #[schemars(length(min = 1, max = 32), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub tiers: Vec<Tier>,
}

/// One tier.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Tier {
    /// Name of the tier.
    #[schemars(length(min = 1, max = 100))]
    pub name: String,
    /// Name of the target it stands for.
    #[schemars(length(min = 1, max = 555))]
    pub target: String,
    /// The tier to go on with. Without it: the remaining ones in their order.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 100))]
    pub fallback_tier: Option<String>,
}

/// Options of `strategy: Fusion`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = [
    rule("maxPanel", "!has(self.maxPanel) || !has(self.minPanel) || self.maxPanel >= self.minPanel", "must be at least `minPanel`"),
]))]
pub struct Fusion {
    /// Model that writes the final answer from the answers of the panel. Without it: the first target, or the first one that answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub judge: Option<ModelRef>,
    /// Answers to wait for.
    #[schemars(range(min = 1, max = 50))]
    pub min_panel: i32,
    /// Most targets that the combo may have.
    #[schemars(range(min = 1, max = 200))]
    pub max_panel: i32,
    /// Grace for the rest once enough have answered.
    #[schemars(extend("x-duration" = ["1ms", "2m", "0s"]))]
    pub straggler_grace: Duration,
    /// Hard limit of the panel: what has not answered by then is dropped.
    #[schemars(extend("x-duration" = ["1s", "10m"]))]
    pub timeout: Duration,
}

impl Default for Fusion {
    fn default() -> Self {
        Self { judge: None, min_panel: 2, max_panel: 40, straggler_grace: "8s".into(), timeout: "1m30s".into() }
    }
}

/// Options of `strategy: Auto`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Auto {
    /// How candidates are scored.
    pub router_strategy: RouterStrategy,
    /// Targets of `routerStrategy: SlaAware`.
    pub sla: Sla,
}

/// How candidates of `strategy: Auto` are scored.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub enum RouterStrategy {
    /// The weighted sum of all scores.
    #[default]
    Rules,
    /// The cheapest.
    Cost,
    /// The fastest.
    Latency,
    /// Those that hold the targets of `sla` first.
    SlaAware,
    /// The last one that worked.
    Lkgp,
}

/// Targets of `routerStrategy: SlaAware`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Sla {
    /// Wanted 95th percentile of the latency.
    #[serde(rename = "targetP95")]
    #[schemars(extend("x-duration" = ["1ms", "5m"]))]
    pub target_p95: Duration,
    /// Wanted highest error rate in percent.
    #[schemars(range(min = 0, max = 100))]
    pub max_error_rate_percent: i32,
    /// Violators go last, whatever their score.
    pub hard_constraints: bool,
}

impl Default for Sla {
    fn default() -> Self {
        Self { target_p95: "2s".into(), max_error_rate_percent: 5, hard_constraints: false }
    }
}
