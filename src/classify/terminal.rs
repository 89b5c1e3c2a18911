//! Terminal resolution (6.2) with strikes instead of instant expiry (decisions 1.7, 9.3).

use super::Terminal;

/// Strikes that are forgiven; the next one is terminal.
pub const FORGIVEN_STRIKES: u32 = 2;
/// An access token that is good for longer than this was not the problem.
const TOKEN_STILL_GOOD_MS: i64 = 60_000;
/// Types that never lead to a terminal state at once.
const EXEMPT: &[&str] =
    &["project_route_error", "geo_blocked", "oauth_invalid_token", "fingerprint_rejection", "request_rejected", "model_not_found"];

/// What terminal resolution looks at.
#[derive(Clone, Copy, Debug, Default)]
pub struct TerminalInput<'a> {
    /// Status after restatement.
    pub status: u16,
    /// Type of 6.7.
    pub error_type: Option<&'a str>,
    /// The verdict says that the account is dead.
    pub dead: bool,
    /// The verdict says that the account has no money.
    pub credits: bool,
    /// The provider has an allowance per model: a 402 concerns one model.
    pub per_model_quota: bool,
    /// The provider authenticates with a browser's cookie.
    pub web_cookie: bool,
    /// How long the access token is still good, milliseconds.
    pub token_expires_in_ms: Option<i64>,
    /// Strikes before this failure.
    pub strikes: u32,
}

/// The terminal state to enter, if any.
#[must_use]
pub fn resolve(input: TerminalInput<'_>) -> Option<Terminal> {
    if input.credits || (input.status == 402 && !input.per_model_quota) {
        return Some(Terminal::CreditsExhausted);
    }
    let third = input.strikes >= FORGIVEN_STRIKES;
    match input.error_type {
        // A refused OAuth token is refreshed first; only strikes make it final.
        Some("oauth_invalid_token") if third && input.status == 401 => {}
        Some(kind) if EXEMPT.contains(&kind) => return None,
        _ => {}
    }
    if input.dead {
        return Some(Terminal::Banned);
    }
    if input.error_type == Some("account_deactivated") {
        return Some(Terminal::Expired);
    }
    let token_good = input.token_expires_in_ms.is_some_and(|ms| ms > TOKEN_STILL_GOOD_MS);
    let auth = input.status == 401 || input.error_type == Some("unauthorized");
    (auth && third && !input.web_cookie && !token_good).then_some(Terminal::Expired)
}
