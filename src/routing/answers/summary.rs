//! Several failures in one answer (routing spec 6.1).

use std::sync::Arc;

use crate::classify::{Failover, Reason, Verdict};

/// Failures that a message names.
const MAX_NAMED: usize = 5;
/// Characters of an upstream's message that are repeated.
const MAX_REASON: usize = 160;

/// What kind of failure it was, for the status of several.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum FailureKind {
    /// The credential.
    Auth,
    /// A rate limit or used-up quota.
    RateLimit,
    /// No answer in time.
    Timeout,
    /// The upstream failed.
    Provider,
    /// The request or the model.
    Model,
    /// A 2xx that was no answer.
    Quality,
}

impl FailureKind {
    /// The kind of a failed attempt.
    #[must_use]
    pub fn of(verdict: &Verdict, status: u16, quality: bool, timeout: bool) -> Self {
        if quality {
            return Self::Quality;
        }
        if timeout {
            return Self::Timeout;
        }
        match verdict.reason {
            Reason::AuthError | Reason::CreditsExhausted => Self::Auth,
            _ if matches!(status, 401..=403) && verdict.failover == Failover::OtherConnection => Self::Auth,
            Reason::RateLimitExceeded | Reason::QuotaExhausted | Reason::ConcurrencyLimited => Self::RateLimit,
            _ => match status {
                429 => Self::RateLimit,
                408 | 499 | 504 => Self::Timeout,
                400..=499 => Self::Model,
                _ => Self::Provider,
            },
        }
    }

    /// As it stands in messages.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Auth => "auth",
            Self::RateLimit => "rate_limit",
            Self::Timeout => "timeout",
            Self::Provider => "provider",
            Self::Model => "model",
            Self::Quality => "quality",
        }
    }
}

/// One failed attempt, as answers need it.
#[derive(Clone, PartialEq, Debug)]
pub struct FailureRecord {
    /// `provider/model`.
    pub label: Arc<str>,
    /// Provider.
    pub provider: Arc<str>,
    /// Connection.
    pub connection: Arc<str>,
    /// Kind.
    pub kind: FailureKind,
    /// The status that the client would see; 502 or 504 when the upstream gave none.
    pub status: u16,
    /// Verdict's reason.
    pub reason: Reason,
    /// What the upstream said, or what happened; not yet redacted.
    pub message: String,
    /// An allowance is used up, with evidence.
    pub quota: bool,
    /// The gateway holds an upstream answer that may go to the client.
    pub passable: bool,
    /// The verdict said `Stop`.
    pub stop: bool,
}

/// The status of several failures: all of the same kind, or all the request's own fault: the last one's; otherwise 504 if a timeout is
/// among them, else 502. Without any: `otherwise`.
#[must_use]
pub fn mixed_status(failures: &[FailureRecord], otherwise: u16) -> u16 {
    let Some(last) = failures.last() else { return otherwise };
    if failures.iter().all(|f| f.kind == last.kind) {
        last.status
    } else if failures.iter().any(|f| f.kind == FailureKind::Timeout) {
        504
    } else {
        502
    }
}

/// The failures in words: `provider/model: kind — reason (HTTP s)`, five at most.
#[must_use]
pub fn summary(failures: &[FailureRecord]) -> String {
    let mut parts: Vec<String> = failures.iter().take(MAX_NAMED).map(entry).collect();
    if failures.len() > MAX_NAMED {
        parts.push(format!("(+{} more)", failures.len() - MAX_NAMED));
    }
    parts.join("; ")
}

fn entry(failure: &FailureRecord) -> String {
    // What an upstream says about a credential may quote it.
    let reason = if failure.kind == FailureKind::Auth || failure.message.is_empty() {
        failure.reason.snake().to_owned()
    } else {
        redact(&failure.message)
    };
    format!("{}: {} — {reason} (HTTP {})", redact(&failure.label), failure.kind.as_str(), failure.status)
}

/// Shortens text and takes out what looks like an account id (`conn:` and eight characters) or a credential.
#[must_use]
pub fn redact(text: &str) -> String {
    let mut out = String::with_capacity(text.len().min(MAX_REASON * 2));
    let mut word = String::new();
    for character in text.chars().take(MAX_REASON).chain(std::iter::once('\0')) {
        if character.is_ascii_alphanumeric() || matches!(character, '-' | '_') {
            word.push(character);
            continue;
        }
        out.push_str(&redact_word(&word));
        word.clear();
        match character {
            '\0' => {}
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    if text.chars().nth(MAX_REASON).is_some() {
        out.push('…');
    }
    out
}

fn redact_word(word: &str) -> String {
    const CREDENTIAL_PREFIXES: [&str; 8] = ["sk-", "sk_", "gsk_", "xai-", "AIza", "pk-", "ya29", "eyJ"];
    if CREDENTIAL_PREFIXES.iter().any(|p| word.starts_with(p)) && word.len() > 8 {
        return "[redacted]".to_owned();
    }
    let hex: String = word.chars().filter(|c| *c != '-').collect();
    let is_hex = hex.len() >= 16 && hex.chars().all(|c| c.is_ascii_hexdigit());
    // A run of digits is a number, a date or a size; an id has letters among them.
    if is_hex && hex.chars().any(|c| c.is_ascii_alphabetic()) {
        return format!("conn:{}", hex.chars().take(8).collect::<String>());
    }
    word.to_owned()
}
