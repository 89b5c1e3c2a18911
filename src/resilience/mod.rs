//! Breaker, window gate, connection cooldown, terminal states, model lockout, the ledger. Pure: clock and jitter come in as values.

mod apply;
pub mod breaker;
mod cell;
mod checkpoint;
pub mod claude_lane;
pub mod claude_reset;
mod commands;
pub mod cooldown;
mod effect;
mod ended;
mod exclusion;
mod ledger;
pub mod lockout;
mod merge;
mod opt_in;
mod permit;
mod report;
pub mod rotation;
pub mod scope;
pub mod terminal;
pub mod window_gate;

pub use cell::{ConnectionCell, ProviderCell};
pub use checkpoint::{CHECKPOINT_VERSION, Checkpoint, CheckpointError, ConnectionMemory, LockMemory, ProviderMemory, RuleMemory};
pub use commands::{AppliedCommand, Cleared};
pub use effect::{Cause, Effect};
pub use ended::{Ended, EndedLock};
pub use exclusion::{Exclusion, SkipReason};
pub use ledger::{Ledger, Report, Selection, Staged, StagedCell};
pub use merge::{merge_connections, merge_providers, merge_rules};
pub use permit::Permit;
pub use report::*;
