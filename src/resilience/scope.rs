//! Where a verdict lands: the persistence procedure (spec: resilience 6.4, 9.3, 11, 12.2), expressed by declared capabilities only
//! (decisions 3.7). Pure: it names the place, the ledger writes there.

use super::lockout::{LockScope, LockWait, is_quota};
use crate::classify::{AuthClass, ProviderTraits, Reason, Scope, Strike, Verdict, WaitSource};
use crate::snapshot::ModelLockout;

/// First rest of a model that a self-hosted server does not have, milliseconds.
const LOCAL_404_MS: u64 = 5_000;

/// What rests after a failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Landing {
    /// Nothing; the failure is not recorded on the connection at all.
    Nowhere,
    /// Nothing; the failure is shown on the connection.
    RecordOnly,
    /// The model, or its family, on this connection.
    Model(LockScope),
    /// The connection.
    Connection,
    /// The connection and all that share its egress address.
    EgressGroup,
    /// Every connection of the provider.
    Provider,
}

/// Answers where a verdict lands. `model` says whether the failed request named one.
#[must_use]
pub fn landing(verdict: &Verdict, status: u16, model: bool, traits: &ProviderTraits, lockout: &ModelLockout) -> Landing {
    match verdict.scope {
        Scope::Request => Landing::Nowhere,
        _ if verdict.strike == Some(Strike::RequestRejected) => rejected(model),
        Scope::Model if model => Landing::Model(LockScope::of_status(status)),
        Scope::Provider => Landing::Provider,
        Scope::Model | Scope::Connection if verdict.scope_declared => Landing::Connection,
        Scope::Model | Scope::Connection => undeclared(verdict, status, model, traits, lockout),
    }
}

/// The vendor refuses this client: the model rests, or the connection when the model is unknown (decisions 1.8).
const fn rejected(model: bool) -> Landing {
    if model { Landing::Model(LockScope::Exact) } else { Landing::Connection }
}

/// The account's limits, narrowed or widened by what the provider declares.
fn undeclared(verdict: &Verdict, status: u16, model: bool, traits: &ProviderTraits, lockout: &ModelLockout) -> Landing {
    if traits.egress_bucketed && status == 429 && matches!(verdict.reason, Reason::QuotaExhausted | Reason::RateLimitExceeded) {
        return Landing::EgressGroup;
    }
    if verdict.strike.is_some() || (traits.shared_wallet && is_wallet(verdict, status)) {
        return Landing::Connection;
    }
    if is_local_404(status, traits) && model {
        return Landing::Model(LockScope::RawModel);
    }
    if traits.per_model_quota && per_model_status(status) {
        return match status {
            500 => Landing::RecordOnly,
            _ if model => Landing::Model(LockScope::of_status(status)),
            _ => Landing::Connection,
        };
    }
    if lockout.enabled && model && lockout.error_codes.contains(&status) {
        return Landing::Model(LockScope::of_status(status));
    }
    Landing::Connection
}

/// Statuses that concern one model where every model has an allowance of its own (spec: resilience 6.4 rows 11 and 16).
const fn per_model_status(status: u16) -> bool {
    matches!(status, 402 | 403 | 404 | 410 | 429 | 500..)
}

/// A self-hosted server without this model: it may be loaded any moment (spec: resilience 6.4 row 17).
fn is_local_404(status: u16, traits: &ProviderTraits) -> bool {
    status == 404 && traits.auth_class == AuthClass::Local
}

/// True when the failure says that the account's money is gone.
fn is_wallet(verdict: &Verdict, status: u16) -> bool {
    status == 402 || verdict.reason == Reason::CreditsExhausted
}

/// The reason that a lock shows: a 404 that says nothing more is about the model (spec: resilience 6.4 row 11), and a rejection of this
/// client is told from a rate limit. Declared reasons stay (decisions 2.4).
#[must_use]
pub fn lock_reason(verdict: &Verdict, status: u16) -> Reason {
    match verdict.reason {
        _ if verdict.strike == Some(Strike::RequestRejected) => Reason::RequestRejected,
        Reason::Unknown if status == 404 => Reason::NotFound,
        reason => reason,
    }
}

/// How long a lock lasts that a verdict asks for (spec: resilience 12.4), and where that comes from. `until_reset_ms` is the time to the
/// provider's daily reset.
#[must_use]
pub fn lock_wait(
    verdict: &Verdict,
    status: u16,
    traits: &ProviderTraits,
    lockout: &ModelLockout,
    until_reset_ms: u64,
) -> Option<(LockWait, WaitSource)> {
    // A reset that was seen counts for locks even where `retryHints` keep it from the connection.
    let reset = verdict.quota_reset_ms.filter(|ms| is_quota(verdict.reason) && !verdict.exact_wait && *ms > verdict.cooldown_ms);
    if let Some(ms) = reset {
        return Some((LockWait::Exact { ms }, verdict.wait_source.filter(|s| !s.computed()).unwrap_or(WaitSource::Body)));
    }
    let source = verdict.wait_source.filter(|_| verdict.cooldown_ms > 0)?;
    Some(match source {
        _ if is_local_404(status, traits) && source.computed() => (LockWait::Escalating { base_ms: LOCAL_404_MS }, WaitSource::Scaled),
        WaitSource::Scaled if verdict.reason == Reason::QuotaExhausted => {
            (LockWait::Exact { ms: until_reset_ms.min(lockout.quota_max_cooldown_ms) }, WaitSource::DailyReset)
        }
        WaitSource::Scaled if lockout.enabled => (LockWait::Escalating { base_ms: lockout.base_cooldown_ms }, source),
        WaitSource::Scaled => (LockWait::Escalating { base_ms: verdict.cooldown_ms }, source),
        _ => (LockWait::Exact { ms: verdict.cooldown_ms }, source),
    })
}
