//! Breaker, window gate, connection cooldown, terminal states, model lockout, the ledger. Pure: clock and jitter come in as values.

mod report;

pub use report::*;
