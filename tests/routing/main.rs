//! Routing without sockets: plans, walks and strategies with a controlled clock.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod cases;
mod composed;
mod hedging;
mod properties;
mod support;
mod walk;
