//! The operator: gather, compile, build, apply, observe, report.
//!
//! One unit of work is a namespace ([`engine`], [`schedule`]). [`gather`] takes its objects from the watch caches, `compile` makes a
//! snapshot of them, [`build`] the children, [`apply`] writes those that differ. [`observe`] asks the gateway pods for their state,
//! [`fleet`] makes one of it, [`status`] says what it means for every object, [`writer`] writes that. Only the leader ([`leader`])
//! writes, with one exception that can overrule nobody: tokens that a vendor issued in exchange for those that still stand in the Secret
//! ([`tokens`]).

pub mod apply;
pub mod build;
pub mod checkpoint;
pub mod child;
pub mod claim;
mod clock;
pub mod credentials;
pub mod engine;
pub mod error;
pub mod events;
pub mod fleet;
pub mod gather;
pub mod leader;
pub mod limit;
pub mod metrics;
pub mod namespace;
pub mod notices;
pub mod object;
pub mod observe;
pub mod problems;
pub mod queue;
pub mod references;
pub mod report;
mod run;
pub mod schedule;
pub mod server;
pub mod status;
pub mod store;
pub mod tokens;
pub mod writer;

pub use run::{Config, run};
