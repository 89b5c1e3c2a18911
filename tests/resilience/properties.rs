//! Long random histories: the breaker against a naive reference, the ledger against its invariants (spec: resilience 17; decisions 3), and
//! the laws of merging.

mod breaker_model;
mod histories;
mod merge_laws;
