//! The gateway: server, authentication, pipeline, upstream client, admission, streams, sessions, store, management, metrics.

pub mod tls;
pub mod upstream;
