//! Chat completions, responses, messages and embeddings on the wire: what a request asks for, how a stream is framed and what its frames
//! mean, what a good answer looks like, and how an error is said in each dialect. Pure.

pub mod conversation;
mod dialect;
pub mod errors;
mod glance;
pub mod handoff;
pub mod headers;
pub mod http1;
pub mod json;
pub mod panel;
pub mod progress;
pub mod quality;
pub mod restream;
pub mod resume;
pub mod scan;
pub mod sse;

pub use dialect::{Dialect, Endpoint};
