//! The resilience engine with a controlled clock.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[allow(dead_code)] // the areas of the classifier are run elsewhere
#[path = "../support/cases.rs"]
mod cases;
mod lane;
mod ledger;
mod properties;
#[path = "../support/resilience_cases.rs"]
mod resilience_cases;
#[path = "../support/rules.rs"]
mod rules;
mod support;
mod table;
