//! The built-in provider rules (9.2). They see the whole attempt, and their scope is always acted upon (decisions 2.4, W-15).

use super::super::evidence::Evidence::{self, *};
use super::super::status::Statuses::{self, Of};
use super::super::{Reason, Scope};

/// One rule of the catalog.
#[derive(Clone, Copy, Debug)]
pub struct CatalogRule {
    /// Stable id.
    pub id: &'static str,
    /// Providers, by catalog id.
    pub providers: &'static [&'static str],
    /// Statuses.
    pub on: Statuses,
    /// What must be seen; `None` = any body.
    pub seen: Option<Evidence>,
    /// Reason.
    pub reason: Reason,
    /// Scope.
    pub scope: Scope,
    /// Rest.
    pub cooldown: CatalogCooldown,
}

/// The rest of a catalog rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CatalogCooldown {
    /// The engine's own computation.
    Normal,
    /// Milliseconds.
    Fixed(u64),
    /// What `resets in N …` says; the rule needs it.
    Stated,
}

const OPENCODE: &[&str] = &["opencode-zen", "opencode-go", "opencode-cli", "opencode"];

const fn rule(
    id: &'static str,
    providers: &'static [&'static str],
    on: &'static [u16],
    seen: Option<Evidence>,
    reason: Reason,
    scope: Scope,
    cooldown: CatalogCooldown,
) -> CatalogRule {
    CatalogRule { id, providers, on: Of(on), seen, reason, scope, cooldown }
}

/// The catalog, rules of one provider in the order in which they are asked.
#[rustfmt::skip]
pub static CATALOG: &[CatalogRule] = {
    use CatalogCooldown::{Fixed, Normal, Stated};
    use Reason::{AuthError, ModelCapacity, QuotaExhausted};
    use Scope::{Connection, Model};
    &[
        rule("catalog.opencode.1", OPENCODE, &[400, 429], Some(EndpointUnavailable), ModelCapacity, Model, Fixed(300_000)),
        rule("catalog.opencode.2", OPENCODE, &[429], Some(MonthlyUsage), QuotaExhausted, Connection, Stated),
        rule("catalog.opencode.3", OPENCODE, &[429], Some(NoRequestsLeft), QuotaExhausted, Connection, Normal),
        rule("catalog.opencode.4", OPENCODE, &[429], Some(NoTokensLeft), QuotaExhausted, Connection, Normal),
        rule("catalog.opencode.5", OPENCODE, &[429], Some(PlanQuotaCode), QuotaExhausted, Connection, Normal),
        rule("catalog.opencode.6", OPENCODE, &[400], Some(ModelUnavailable), ModelCapacity, Model, Fixed(3_600_000)),
        rule("catalog.minimax.1", &["minimax", "minimax-passthrough"], &[429], Some(ModelQuotaSpent), QuotaExhausted, Model, Normal),
        rule("catalog.cloudflare-ai.1", &["cloudflare-ai"], &[429], Some(FreeAllocation), QuotaExhausted, Connection, Normal),
        rule("catalog.openrouter.1", &["openrouter"], &[402], None, QuotaExhausted, Connection, Fixed(120_000)),
        rule("catalog.agentrouter.user-quota-exhausted", &["agentrouter"], &[400, 403, 429], Some(UserQuota), QuotaExhausted, Connection, Normal),
        rule("catalog.agentrouter.model-access-denied", &["agentrouter"], &[403], Some(ModelDenied), AuthError, Model, Fixed(21_600_000)),
    ]
};
