//! Operator rules, as the compiler makes them.

use omniroute::classify::{Reason, Scope};
use omniroute::snapshot::{Rule, RuleVerdict};

/// A rule that matches whatever it is asked about, and rests the connection for a second because of a quota.
pub fn rule(name: &str) -> Rule {
    Rule {
        name: name.to_owned(),
        providers: None,
        statuses: Vec::new(),
        text: None,
        not_text: None,
        code: None,
        error_type: None,
        header: None,
        transport: None,
        shadow: false,
        catch_all: false,
        verdict: RuleVerdict {
            reason: Some(Reason::QuotaExhausted),
            scope: Scope::Connection,
            cooldown_ms: Some(1_000),
            at_least: false,
            restate_status: None,
        },
    }
}
