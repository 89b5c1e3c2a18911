//! The status restatement registry (10): a wrong HTTP status is corrected before anything is classified.

use super::evidence::Evidence::{self, AccessDenied, UserQuota};

/// One restatement.
#[derive(Clone, Copy, Debug)]
pub struct Restatement {
    /// Stable id.
    pub id: &'static str,
    /// The id of the specification.
    pub rule_id: &'static str,
    /// Providers, by catalog id.
    pub providers: &'static [&'static str],
    /// Statuses that are wrong.
    pub from: &'static [u16],
    /// The right one.
    pub to: u16,
    /// Marker that must be there.
    pub marker: Evidence,
    /// Marker that vetoes.
    pub veto: Evidence,
    /// The wait when the upstream states none, milliseconds; it is the cooldown (decisions 9.5).
    pub default_wait_ms: u64,
}

/// The registry. A new one needs markers of its vendor, never generic English.
pub static RESTATEMENTS: &[Restatement] = &[Restatement {
    id: "restatement.agentrouter-quota-misstatus",
    rule_id: "agentrouter-quota-misstatus",
    providers: &["agentrouter"],
    from: &[403, 400],
    to: 429,
    marker: UserQuota,
    veto: AccessDenied,
    default_wait_ms: 60_000,
}];
