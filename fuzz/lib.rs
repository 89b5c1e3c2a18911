//! The rooms that read what strangers send, for the fuzzers: the same files as in the crate, without what talks to the world.

#[path = "../src/api"]
pub mod api {
    pub mod near;
    pub mod time;
}
#[path = "../src/classify/mod.rs"]
pub mod classify;
#[path = "../src/protocol/mod.rs"]
pub mod protocol;
#[path = "../src/resilience/mod.rs"]
pub mod resilience;
#[path = "../src/routing/mod.rs"]
pub mod routing;
#[path = "../src/snapshot/mod.rs"]
pub mod snapshot;

pub mod checks;
