//! The gateway on real sockets: one binary, because linking it is most of what its build costs.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod bugs;
mod compose;
#[path = "../support/eventually.rs"]
mod eventually;
mod failover;
mod handoff;
mod hedging;
mod input;
mod lane;
mod leases;
mod life;
mod limits;
mod logs;
mod management;
mod quota_share;
mod recovery;
#[path = "../support/rules.rs"]
mod rules;
mod run;
mod shared_store;
mod streams;
mod support;
#[path = "../support/token_endpoint.rs"]
#[allow(dead_code)] // shared with the tests of the operator
mod token_endpoint;
#[path = "../support/tools.rs"]
mod tools;
mod upstream_client;
mod upstream_http;
mod upstream_tls;
