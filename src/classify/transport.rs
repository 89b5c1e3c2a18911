//! No HTTP answer, or a broken one (decisions 9.7, spec: resilience 5.6).

use super::Reason::{ServerError, StreamInterrupted};
use super::TransportError;
use super::row::Rest::{Backoff, None as NoRest};
use super::row::{Outcome, rest};

/// Id and meaning of a transport failure. All of them may fail over; what happened before a commit concerns nobody else.
pub(super) fn outcome(kind: TransportError) -> (&'static str, Outcome) {
    match kind {
        TransportError::Connect => ("transport.connect", rest(ServerError, Backoff)),
        TransportError::Tls => ("transport.tls", rest(ServerError, Backoff)),
        TransportError::Reset => ("transport.reset", rest(ServerError, Backoff)),
        TransportError::Timeout => ("transport.timeout", rest(ServerError, Backoff)),
        TransportError::StreamInterrupted => ("transport.stream-interrupted", rest(StreamInterrupted, Backoff)),
        // A slow start says nothing about the account.
        TransportError::StreamNotReady => ("transport.stream-not-ready", rest(ServerError, NoRest)),
        // The gateway's own judgement of one answer of one model.
        TransportError::Quality => ("transport.quality", rest(ServerError, Backoff).model().no_breaker()),
    }
}

/// Every id, for `disabledBuiltins` and documentation. They cannot be switched off.
pub(super) const IDS: &[&str] = &[
    "transport.connect",
    "transport.tls",
    "transport.reset",
    "transport.timeout",
    "transport.stream-interrupted",
    "transport.stream-not-ready",
    "transport.quality",
];
