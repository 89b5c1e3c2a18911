//! A provider that answers as its script says: for `fake-upstream`, `demo` and tests.

mod control;
mod embed;
mod record;
mod reply;
mod script;
mod server;
mod streams;

pub use record::{Outcome, Recorded};
pub use script::{Answer, Fault, FaultKind, Match, Reply, Rule, Script, ScriptError, ToolCall};
pub use server::{FakeUpstream, StartError};
