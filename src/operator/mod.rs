//! The operator: gather, compile, build, apply, observe, report.

pub mod apply;
pub mod build;
pub mod child;
pub mod error;
pub mod events;
pub mod gather;
pub mod leader;
pub mod metrics;
pub mod object;
pub mod observe;
pub mod queue;
pub mod references;
pub mod schedule;
pub mod server;
pub mod store;
pub mod writer;
