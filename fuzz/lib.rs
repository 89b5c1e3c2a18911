//! The dialects on the wire, for the fuzzers.

#[path = "../src/protocol/mod.rs"]
pub mod protocol;
