//! The OmniRoute operator and gateway.
//!
//! Imports point downwards only: `cli -> operator, gateway -> oauth, dial -> compile, routing -> resilience, classify, snapshot -> api, protocol`.
//! Only `operator`, `gateway`, `cli` and what they share to reach the outside, `oauth` and
//! `dial`, may touch sockets, files, clocks, random sources or
//! the API server.

/// The five kinds, shared types, conditions and reasons, schema normaliser. Pure.
pub mod api;
/// One failed attempt -> verdict: hints, detectors, catalog, operator rules, restatement. Pure.
pub mod classify;
/// The subcommands. IO.
pub mod cli;
/// Resources -> snapshot + findings: references, merging of defaults, rule order, limits. Pure.
pub mod compile;
/// Opening connections to providers: names, the address guard, proxies, TLS. IO.
pub mod dial;
/// Server, auth, pipeline, upstream client, admission, streams, store, admin, metrics. IO.
pub mod gateway;
/// YAML documents -> resources, with the CRD's own schema and CEL rules applied offline. Pure.
pub mod manifest;
/// Refreshing OAuth tokens at the token endpoints of vendors. IO.
pub mod oauth;
/// Gather, build, apply, observe, status, leader, events, metrics. IO (build and the status mapping are pure).
pub mod operator;
/// Chat completions, responses, messages, SSE framing, error bodies per dialect. Pure.
pub mod protocol;
/// Breaker, window gate, connection cooldown, terminal states, model lockout, the ledger. Pure.
pub mod resilience;
/// Name resolution, capability filters, strategies, the plan, attempt rules. Pure.
pub mod routing;
/// The compiled configuration: types, canonical JSON, hash, version. Pure.
pub mod snapshot;
/// Logging setup.
pub mod telemetry;
