//! Calls to providers: HTTP/1.1 on pooled connections whose protocol runs inside the calling task (decisions 9.13 and 9.15).

mod body;
mod client;
pub mod headers;
mod pool;
mod route;
mod wire;

pub use body::{BodyError, Collected, DecodeError, UpstreamBody, collect, decode};
pub use client::{Call, Client, Errand};
pub use pool::PoolLimits;
pub use route::{Upstream, UpstreamConfigError};

use crate::classify::TransportError;
use crate::dial::DialError;

/// A call that brought no answer.
#[derive(thiserror::Error, Clone, PartialEq, Eq, Debug)]
#[error("{message}")]
pub struct SendError {
    /// How it failed, for the classifier.
    pub transport: TransportError,
    /// The connection's own proxy failed, not the provider.
    pub via_proxy: bool,
    /// What was being attempted and what came of it. Never contains a credential.
    pub message: String,
}

impl SendError {
    fn new(transport: TransportError, message: impl Into<String>) -> Self {
        Self { transport, via_proxy: false, message: message.into() }
    }

    fn proxy(message: impl Into<String>) -> Self {
        Self { transport: TransportError::Connect, via_proxy: true, message: message.into() }
    }
}

impl From<DialError> for SendError {
    fn from(error: DialError) -> Self {
        let transport = if error.tls { TransportError::Tls } else { TransportError::Connect };
        Self { transport, via_proxy: error.via_proxy, message: error.message }
    }
}
