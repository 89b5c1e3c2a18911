//! Operator rules.

use serde::{Deserialize, Serialize};

use crate::classify::{Reason, Scope};

/// One operator rule, ready to be matched.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Rule {
    /// Name of the resource.
    pub name: String,
    /// Providers it applies to, by name; `None` = all.
    pub providers: Option<Vec<String>>,
    /// Statuses; empty = any. Match the original or the restated one.
    pub statuses: Vec<u16>,
    /// Literal, case-insensitive text that must appear.
    pub text: Option<String>,
    /// Literal, case-insensitive text that must not appear.
    pub not_text: Option<String>,
    /// Structured error code, case-insensitive.
    pub code: Option<String>,
    /// Structured error type, case-insensitive.
    pub error_type: Option<String>,
    /// Header name (lower case) and, optionally, its exact value.
    pub header: Option<(String, Option<String>)>,
    /// Transport kind: `Connect`, `Timeout`, `Reset`, `Tls`.
    pub transport: Option<RuleTransport>,
    /// True = count, do not act.
    pub shadow: bool,
    /// True = the provider default (spec: resilience 9.5).
    pub catch_all: bool,
    /// What it says.
    pub verdict: RuleVerdict,
}

/// Transport failures that a rule can match.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum RuleTransport {
    Connect,
    Timeout,
    Reset,
    Tls,
}

/// What an operator rule says.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RuleVerdict {
    /// Reason; `None` = derived from the status (catch-all only).
    pub reason: Option<Reason>,
    /// Scope.
    pub scope: Scope,
    /// Rest, milliseconds; `None` = the engine's own computation.
    pub cooldown_ms: Option<u64>,
    /// True = a longer typed hint of the upstream wins (`AtLeast`).
    pub at_least: bool,
    /// Status to continue with.
    pub restate_status: Option<u16>,
}
