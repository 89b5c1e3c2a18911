//! The gateway: server, authentication, pipeline, upstream client, admission, streams, sessions, store, management, metrics.

pub mod admission;
pub mod answer;
pub mod body;
pub mod clock;
pub mod gates;
pub mod ingest;
pub mod metrics;
pub mod queue;
pub mod relay;
pub mod sniff;
pub mod store;
pub mod tls;
pub mod upstream;

/// Any error, for bodies.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;
