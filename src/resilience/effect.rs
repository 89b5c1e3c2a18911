//! Transitions of the ledger: what logs, events and metrics are made of.

use std::fmt;
use std::sync::Arc;

use serde::Serialize;

use crate::api::time::EpochMs;
use crate::classify::{Reason, Terminal, WaitSource};

/// One transition. Serialised as one object with a member `effect` that names it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(tag = "effect", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Effect {
    /// A connection began to rest, or rests longer.
    CooldownStarted {
        /// Its provider.
        provider: Arc<str>,
        /// Which.
        connection: Arc<str>,
        /// Why.
        reason: Reason,
        /// End.
        until: EpochMs,
        /// Where the wait comes from.
        source: WaitSource,
        /// Backoff level afterwards.
        level: u32,
        /// True when it rested already and the end moved.
        extended: bool,
    },
    /// A connection is back before its timer ran out.
    CooldownEnded {
        /// Its provider.
        provider: Arc<str>,
        /// Which.
        connection: Arc<str>,
        /// By what.
        by: Cause,
    },
    /// A model, or a family of models, began to rest on a connection, or rests longer.
    LockoutStarted {
        /// Its provider.
        provider: Arc<str>,
        /// Which connection.
        connection: Arc<str>,
        /// Model or family.
        model: String,
        /// One literal id, not a family.
        exact: bool,
        /// Why.
        reason: Reason,
        /// End.
        until: EpochMs,
        /// Where the wait comes from.
        source: WaitSource,
    },
    /// A model is back before its timer ran out.
    LockoutEnded {
        /// Its provider.
        provider: Arc<str>,
        /// Which connection.
        connection: Arc<str>,
        /// Model or family.
        model: String,
        /// By what.
        by: Cause,
    },
    /// A connection has as many running locks as are remembered; this one was not added.
    LockoutOmitted {
        /// Its provider.
        provider: Arc<str>,
        /// Which connection.
        connection: Arc<str>,
        /// Model or family.
        model: String,
    },
    /// An auth failure was counted.
    StrikeCounted {
        /// Its provider.
        provider: Arc<str>,
        /// Which connection.
        connection: Arc<str>,
        /// Strikes so far.
        strikes: u32,
    },
    /// A connection is out until an operator or a changed credential brings it back.
    TerminalEntered {
        /// Its provider.
        provider: Arc<str>,
        /// Which connection.
        connection: Arc<str>,
        /// State.
        state: Terminal,
        /// Why.
        reason: Reason,
        /// Status of the answer.
        status: u16,
    },
    /// A terminal state ended.
    TerminalCleared {
        /// Its provider.
        provider: Arc<str>,
        /// Which connection.
        connection: Arc<str>,
        /// State.
        state: Terminal,
        /// By what.
        by: Cause,
    },
    /// The failure was noted; nothing rests.
    ErrorRecorded {
        /// Its provider.
        provider: Arc<str>,
        /// Which connection.
        connection: Arc<str>,
        /// Why.
        reason: Reason,
        /// Status of the answer.
        status: u16,
    },
    /// The provider's breaker shows a warning.
    BreakerDegraded {
        /// Which.
        provider: Arc<str>,
        /// Failures counted.
        failures: u32,
    },
    /// The provider's breaker lets nothing through.
    BreakerOpened {
        /// Which.
        provider: Arc<str>,
        /// Failures counted.
        failures: u32,
        /// When a probe may go.
        until: EpochMs,
        /// Failed probes since it last closed.
        open_cycles: u32,
    },
    /// The provider's breaker is closed again.
    BreakerClosed {
        /// Which.
        provider: Arc<str>,
        /// By what.
        by: Cause,
    },
    /// The window gate lets a provider rest.
    ProviderCooldownStarted {
        /// Which.
        provider: Arc<str>,
        /// End.
        until: EpochMs,
    },
    /// A provider is back before its timer ran out.
    ProviderCooldownEnded {
        /// Which.
        provider: Arc<str>,
        /// By what.
        by: Cause,
    },
}

/// What ended a rest before its time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Cause {
    /// A request went well.
    Success,
    /// An operator's command.
    Operator,
    /// The credential was changed by its owner.
    CredentialChanged,
    /// The settings changed (`disableCooling`, the window gate).
    Settings,
}

impl Effect {
    /// The provider it concerns.
    #[must_use]
    pub fn provider(&self) -> &Arc<str> {
        match self {
            Self::CooldownStarted { provider, .. }
            | Self::CooldownEnded { provider, .. }
            | Self::LockoutStarted { provider, .. }
            | Self::LockoutEnded { provider, .. }
            | Self::LockoutOmitted { provider, .. }
            | Self::StrikeCounted { provider, .. }
            | Self::TerminalEntered { provider, .. }
            | Self::TerminalCleared { provider, .. }
            | Self::ErrorRecorded { provider, .. }
            | Self::BreakerDegraded { provider, .. }
            | Self::BreakerOpened { provider, .. }
            | Self::BreakerClosed { provider, .. }
            | Self::ProviderCooldownStarted { provider, .. }
            | Self::ProviderCooldownEnded { provider, .. } => provider,
        }
    }

    /// The connection it concerns, if it concerns one.
    #[must_use]
    pub fn connection(&self) -> Option<&Arc<str>> {
        match self {
            Self::CooldownStarted { connection, .. }
            | Self::CooldownEnded { connection, .. }
            | Self::LockoutStarted { connection, .. }
            | Self::LockoutEnded { connection, .. }
            | Self::LockoutOmitted { connection, .. }
            | Self::StrikeCounted { connection, .. }
            | Self::TerminalEntered { connection, .. }
            | Self::TerminalCleared { connection, .. }
            | Self::ErrorRecorded { connection, .. } => Some(connection),
            _ => None,
        }
    }

    /// The end of the timer that started, if one did.
    #[must_use]
    pub const fn until(&self) -> Option<EpochMs> {
        match self {
            Self::CooldownStarted { until, .. }
            | Self::LockoutStarted { until, .. }
            | Self::BreakerOpened { until, .. }
            | Self::ProviderCooldownStarted { until, .. } => Some(*until),
            _ => None,
        }
    }

    /// A short name for metrics (`cooldownStarted`).
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::CooldownStarted { .. } => "cooldownStarted",
            Self::CooldownEnded { .. } => "cooldownEnded",
            Self::LockoutStarted { .. } => "lockoutStarted",
            Self::LockoutEnded { .. } => "lockoutEnded",
            Self::LockoutOmitted { .. } => "lockoutOmitted",
            Self::StrikeCounted { .. } => "strikeCounted",
            Self::TerminalEntered { .. } => "terminalEntered",
            Self::TerminalCleared { .. } => "terminalCleared",
            Self::ErrorRecorded { .. } => "errorRecorded",
            Self::BreakerDegraded { .. } => "breakerDegraded",
            Self::BreakerOpened { .. } => "breakerOpened",
            Self::BreakerClosed { .. } => "breakerClosed",
            Self::ProviderCooldownStarted { .. } => "providerCooldownStarted",
            Self::ProviderCooldownEnded { .. } => "providerCooldownEnded",
        }
    }
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CooldownStarted { connection, reason, until, source, .. } => {
                write!(f, "connection {connection} rests until {until}: {} (wait: {})", reason.snake(), source.as_str())
            }
            Self::CooldownEnded { connection, by, .. } => write!(f, "connection {connection} is back in rotation ({})", by.as_str()),
            Self::LockoutStarted { connection, model, reason, until, source, .. } => {
                write!(f, "model {model} rests on connection {connection} until {until}: {} (wait: {})", reason.snake(), source.as_str())
            }
            Self::LockoutEnded { connection, model, by, .. } => {
                write!(f, "model {model} is back on connection {connection} ({})", by.as_str())
            }
            Self::LockoutOmitted { connection, model, .. } => {
                write!(f, "model {model} is not locked on connection {connection}: too many of its locks are running")
            }
            Self::StrikeCounted { connection, strikes, .. } => write!(f, "connection {connection} has {strikes} auth strikes"),
            Self::TerminalEntered { connection, state, reason, status, .. } => {
                write!(f, "connection {connection} is out ({}): {} with status {status}", state.snake(), reason.snake())
            }
            Self::TerminalCleared { connection, state, by, .. } => {
                write!(f, "connection {connection} is no longer {} ({})", state.snake(), by.as_str())
            }
            Self::ErrorRecorded { connection, reason, status, .. } => {
                write!(f, "connection {connection} failed with status {status}: {}; nothing rests", reason.snake())
            }
            Self::BreakerDegraded { provider, failures } => write!(f, "breaker of {provider} is degraded after {failures} failures"),
            Self::BreakerOpened { provider, failures, until, .. } => {
                write!(f, "breaker of {provider} is open until {until} after {failures} failures")
            }
            Self::BreakerClosed { provider, by } => write!(f, "breaker of {provider} is closed ({})", by.as_str()),
            Self::ProviderCooldownStarted { provider, until } => write!(f, "provider {provider} rests until {until}: too many failures"),
            Self::ProviderCooldownEnded { provider, by } => write!(f, "provider {provider} is back in rotation ({})", by.as_str()),
        }
    }
}

impl Cause {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Operator => "operator",
            Self::CredentialChanged => "credential changed",
            Self::Settings => "settings changed",
        }
    }
}
