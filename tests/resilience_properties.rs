//! Long random histories: the breaker against a naive reference, the ledger against its invariants (spec: resilience 17; decisions 3), and
//! the laws of merging.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "support/ledger.rs"]
mod support;

#[path = "properties"]
mod properties {
    pub mod breaker_model;
    pub mod histories;
    pub mod merge_laws;
}
