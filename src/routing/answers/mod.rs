//! The answer when no target served: data for the gateway, which writes it in the client's dialect (routing spec 6; decisions 4.2, 4.3,
//! 9.3, 9.11; interface 4).

mod ending;
pub mod refuse;
mod summary;

use serde::Serialize;

use super::live::{Exclusion, ExclusionReason};
use crate::api::time::EpochMs;

pub use ending::Ending;
pub(super) use ending::{Why, after, is_quota};
pub use summary::{FailureKind, FailureRecord, mixed_status, redact, summary};

/// Excluded targets that an answer names.
pub const MAX_EXCLUDED: usize = 64;
/// Attempts and skips that an answer names.
pub const MAX_SKIPPED: usize = 32;
/// Waits longer than this are not slept through by the official SDKs: they are told not to retry.
const MAX_SDK_WAIT_SECONDS: u64 = 60;

/// The answer to the client.
#[derive(Clone, PartialEq, Debug)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// Machine-readable code (`error.code`).
    pub code: String,
    /// Family of the error; the gateway maps it to the dialect's own `error.type`.
    pub family: Family,
    /// Sentence for people; redacted.
    pub message: String,
    /// Who speaks.
    pub origin: Origin,
    /// True: the last upstream answer goes to the client as it is (with its own status, code and message); the rest here are headers.
    pub pass_upstream: bool,
    /// The earliest instant at which a retry can succeed.
    pub retry_at: Option<EpochMs>,
    /// `Retry-After`: whole seconds, rounded up, at least 1.
    pub retry_after_seconds: Option<u64>,
    /// `x-should-retry: false` goes with it.
    pub no_retry: bool,
    /// Why it ended (`x-omniroute-combo-terminal-reason`).
    pub terminal_reason: &'static str,
    /// What the client may do (`x-omniroute-recovery-action`).
    pub recovery: Recovery,
    /// What was looked at.
    pub diagnostics: Diagnostics,
}

/// Families of errors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Family {
    /// The request cannot be served as it is.
    InvalidRequest,
    /// The name means nothing.
    NotFound,
    /// The key may not do that.
    Permission,
    /// Too much.
    RateLimit,
    /// A deadline ended.
    Timeout,
    /// Nothing can serve now.
    Unavailable,
    /// The upstream failed.
    Upstream,
}

/// Who made the answer (`x-omniroute-origin`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// This gateway.
    Gateway,
    /// The provider.
    Provider,
    /// A policy of the operator.
    Policy,
}

impl Origin {
    /// The header's value.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Gateway => "gateway",
            Self::Provider => "provider",
            Self::Policy => "policy",
        }
    }
}

/// What the client may do (routing spec 6.4).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Recovery {
    /// Ask for something else that picks by itself.
    TryAuto,
    /// Wait.
    Wait,
    /// Send it again.
    Retry,
    /// Ask for another combo.
    SwitchCombo,
}

impl Recovery {
    /// The header's value.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::TryAuto => "try-auto",
            Self::Wait => "wait",
            Self::Retry => "retry",
            Self::SwitchCombo => "switch-combo",
        }
    }

    /// One step in words (`x-omniroute-next-step`), at most 128 characters.
    #[must_use]
    pub const fn next_step(self) -> &'static str {
        match self {
            Self::TryAuto => "ask for a combo that has other providers in it",
            Self::Wait => "wait until Retry-After has passed and send the request again",
            Self::Retry => "send the request again",
            Self::SwitchCombo => "ask for another combo or model; this one needs its operator",
        }
    }
}

/// What was looked at (body field `diagnostics`).
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Diagnostics {
    /// Targets below the combo.
    pub pool_size: usize,
    /// Dispatches.
    pub attempted: u32,
    /// Targets that are out, with the earliest end of what keeps them out.
    pub excluded: Vec<Excluded>,
    /// `provider/model` of every dispatch, in order.
    pub attempt_order: Vec<String>,
    /// Connections that were skipped.
    #[serde(rename = "skippedTargets")]
    pub skipped: Vec<Excluded>,
    /// Why it ended.
    pub terminal_reason: &'static str,
}

/// A target or connection that is out.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Excluded {
    /// Name of the target inside its combo.
    pub target: String,
    /// Provider.
    pub provider: String,
    /// Model.
    pub model: String,
    /// Connection, when it is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connection: Option<String>,
    /// Why.
    pub reason: ExclusionReason,
    /// When it ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<EpochMs>,
    /// More about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// For the decisions of this module.
    #[serde(skip)]
    pub exclusion: Exclusion,
}

impl Diagnostics {
    /// The header `x-omniroute-combo-excluded`: `openai/a: model_lockout (58s), claude/b: circuit_open`, at most 900 characters.
    #[must_use]
    pub fn excluded_header(&self, now: EpochMs) -> String {
        let mut text = String::new();
        for excluded in &self.excluded {
            let left = excluded.until.map(|until| seconds_until(until, now));
            let seconds = left.map_or_else(String::new, |s| format!(" ({s}s)"));
            let entry = format!("{}/{}: {}{seconds}", excluded.provider, excluded.model, excluded.reason.as_str());
            if text.len() + entry.len() + 2 > 900 {
                break;
            }
            if !text.is_empty() {
                text.push_str(", ");
            }
            text.push_str(&entry);
        }
        text
    }
}

/// Whole seconds until an instant, rounded up, at least 1.
#[must_use]
pub fn seconds_until(until: EpochMs, now: EpochMs) -> u64 {
    until.since(now).div_ceil(1_000).max(1)
}

impl Answer {
    /// An answer without a wait.
    pub(super) fn new(status: u16, code: &str, family: Family, message: String) -> Self {
        Self {
            status,
            code: code.to_owned(),
            family,
            message,
            origin: Origin::Gateway,
            pass_upstream: false,
            retry_at: None,
            retry_after_seconds: None,
            no_retry: matches!(family, Family::InvalidRequest | Family::NotFound | Family::Permission),
            terminal_reason: "",
            recovery: Recovery::Retry,
            diagnostics: Diagnostics::default(),
        }
    }

    /// Says when a retry can succeed.
    pub(super) fn retry_at(mut self, until: Option<EpochMs>, now: EpochMs) -> Self {
        let seconds = until.map(|u| seconds_until(u, now));
        self.no_retry |= seconds.is_some_and(|s| s > MAX_SDK_WAIT_SECONDS);
        (self.retry_at, self.retry_after_seconds) = (until, seconds);
        self
    }

    /// Says why it ended, and what helps.
    pub(super) fn because(mut self, terminal_reason: &'static str, recovery: Recovery) -> Self {
        (self.terminal_reason, self.recovery) = (terminal_reason, recovery);
        self.diagnostics.terminal_reason = terminal_reason;
        self
    }
}
