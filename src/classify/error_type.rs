//! The fine type of an error (6.7): the second opinion that terminal resolution and logs use. First match wins.

use super::Reason;
use super::context::Sight;
use super::evidence::Evidence::*;
use super::evidence::Seen;

/// Credit evidence.
const MONEY: Seen = Seen::of(&[Credits, Balance]);
/// Evidence of a subscription's limit.
const SUBSCRIPTION: Seen = Seen::of(&[Subscription, Weekly, Session]);
/// Evidence of a daily quota.
const DAILY: Seen = Seen::of(&[Daily, Tomorrow, TpdLimit]);

/// The type, named as in the specification. `reason` is that of the verdict: the wording that Google also uses for short limits says
/// nothing about money where the verdict is a rate limit.
pub(super) fn error_type(status: u16, reason: Reason, ctx: &Sight<'_>) -> Option<&'static str> {
    let seen = ctx.seen;
    let money = seen.any(MONEY) || (seen.has(CreditsWeak) && reason != Reason::RateLimitExceeded);
    let oauth = ctx.oauth_or_unknown;
    let subscription = seen.any(SUBSCRIPTION) || (seen.has(SubscriptionClaude) && ctx.is(&["claude", "claude-code", "cc"]));
    match status {
        400..=403 | 429 if money || subscription => return Some("quota_exhausted"),
        500.. if money => return Some("quota_exhausted"),
        429 if oauth && seen.any(DAILY) => return Some("quota_exhausted"),
        429 => return Some("rate_limited"),
        404 if seen.has(RequestResource) && seen.has(NotFoundText) => return None,
        404 => return Some("model_not_found"),
        401 if seen.has(OAuthInvalid) => return Some("oauth_invalid_token"),
        401 if seen.has(ModelNotSupported) => return Some("model_not_found"),
        401 if seen.has(AccountDead) => return Some("account_deactivated"),
        401 => return Some("unauthorized"),
        402 => return Some("quota_exhausted"),
        400 | 403 if seen.has(Geo) && ctx.google_cloud() => return Some("geo_blocked"),
        _ => {}
    }
    match status {
        403 => forbidden(ctx),
        500.. => Some("server_error"),
        422 if seen.has(GcpProject) => Some("gcp_project_required"),
        400 | 422 if seen.any(Seen::of(&[ModelNotFoundCode])) => Some("model_not_found"),
        400 | 413 | 422 if seen.has(ContextOverflow) || (seen.has(TokenLimit) && !seen.has(Parameter)) => Some("context_overflow"),
        400 | 422 if seen.has(ModelAccess) && !seen.has(KeyProblem) => Some("model_not_found"),
        _ => None,
    }
}

/// Rows 11–17.
fn forbidden(ctx: &Sight<'_>) -> Option<&'static str> {
    let seen = ctx.seen;
    if seen.any(Seen::of(&[Fingerprint, Challenge])) {
        return Some("fingerprint_rejection");
    }
    if seen.has(AccountDead) {
        return Some("account_deactivated");
    }
    if seen.has(RequestRejected) && ctx.is(&["claude", "claude-code", "cc"]) {
        return Some("request_rejected");
    }
    let project = seen.has(Project)
        || (seen.has(ProjectDisabled) && ctx.google_cloud())
        || (seen.has(ProjectKiro) && ctx.is(&["kiro", "amazon-q"]))
        || (seen.has(FreeTierOnly) && ctx.is(&["opencode-zen", "opencode-go", "opencode-cli", "opencode"]));
    if project {
        return Some("project_route_error");
    }
    if seen.has(Sentinel) { Some("forbidden") } else { ctx.oauth_or_unknown.then_some("forbidden") }
}
