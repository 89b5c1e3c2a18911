//! What can go wrong with the store. Messages name the server, never its password.

/// Why state is not shared now.
#[derive(thiserror::Error, Debug)]
pub enum SharedError {
    /// The server cannot be reached, or refuses us.
    #[error("connecting to the state store: {0}; check the URL in the Secret of stateStore, the server, and the network policy between")]
    Connect(#[source] redis::RedisError),
    /// The server was reached and is lost.
    #[error("asking the state store: {0}")]
    Ask(#[from] redis::RedisError),
    /// The server does not answer.
    #[error("the state store does not answer within {0:?}")]
    Silent(std::time::Duration),
    /// The messages of the others no longer come.
    #[error("the state store has closed the connection")]
    Closed,
    /// A document of ours has no JSON form, or one of theirs is something else.
    #[error("reading or writing a document of the state store: {0}")]
    Document(#[from] serde_json::Error),
    /// Others changed the leases each time before we could.
    #[error("the leases in the state store change too fast: {0} attempts failed")]
    Contended(u32),
}
