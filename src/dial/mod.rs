//! Opening connections to the outside: names, the guard against addresses that no provider has, proxies, TLS. Whoever calls a provider, on behalf
//! of a client or to refresh a token, goes this way.

mod connect;
mod guard;
mod origin;
pub mod tls;

pub use connect::{Socket, connect};
pub use guard::Guard;
pub use origin::{Origin, OriginError, Proxy, Way};

/// A connection that could not be opened.
#[derive(thiserror::Error, Clone, PartialEq, Eq, Debug)]
#[error("{message}")]
pub struct DialError {
    /// The TLS handshake failed, not the way to the server.
    pub tls: bool,
    /// The proxy failed, not the server.
    pub via_proxy: bool,
    /// What was being attempted and what came of it. Never contains a credential.
    pub message: String,
}

impl DialError {
    fn connect(message: impl Into<String>) -> Self {
        Self { tls: false, via_proxy: false, message: message.into() }
    }

    fn proxy(message: impl Into<String>) -> Self {
        Self { via_proxy: true, ..Self::connect(message) }
    }
}
