//! The gateway on real sockets: one binary, because linking it is most of what its build costs.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod bugs;
mod failover;
mod input;
mod lane;
mod leases;
mod life;
mod limits;
mod management;
mod quota_share;
mod recovery;
mod run;
mod streams;
mod support;
mod upstream_client;
mod upstream_tls;
