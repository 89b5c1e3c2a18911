//! What traffic brought: counts per combo, limits that providers state.

use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Shared, json_of, problem};
use crate::api::time::EpochMs;
use crate::gateway::{clock, stats};

#[derive(Deserialize)]
pub(super) struct Wanted {
    combo: Option<String>,
}

/// Counts since the start of the process, of one combo or of all.
pub(super) async fn combos(State(gateway): Shared, Query(wanted): Query<Wanted>) -> Response {
    let Some(loaded) = gateway.config() else { return no_configuration() };
    match stats::render(&loaded.snapshot.combos, &loaded.combo_stats, wanted.combo.as_deref()) {
        Some(counts) => json_of(&counts),
        None => unknown(&wanted),
    }
}

/// Starts the counts anew.
pub(super) async fn clear_combos(State(gateway): Shared, Query(wanted): Query<Wanted>) -> Response {
    let Some(loaded) = gateway.config() else { return no_configuration() };
    match stats::clear(&loaded.snapshot.combos, &loaded.combo_stats, wanted.combo.as_deref()) {
        0 if wanted.combo.is_some() => unknown(&wanted),
        count => json_of(&json!({"ok": true, "cleared": count})),
    }
}

/// The limits that providers stated, by connection: in the headers of their last answers, and in the words of a 429.
pub(super) async fn rate_limits(State(gateway): Shared) -> Response {
    let Some(loaded) = gateway.config() else { return no_configuration() };
    let now = clock::now();
    let limits = loaded.accounts.iter().flat_map(|account| {
        let of = |window: Value, limit: Option<u64>, remaining: Option<u64>, reset: Option<EpochMs>| {
            json!({
                "connection": account.cell.name(), "provider": account.cell.provider().name(), "window": window,
                "limit": limit, "remaining": remaining, "resetTime": reset,
            })
        };
        let buckets = account.learned.buckets(now).into_iter();
        let stated = buckets.map(|bucket| of(bucket.window.into(), bucket.limit, bucket.remaining, bucket.reset_time));
        let ceiling = account.learned.ceiling(now);
        let words = ceiling.map(|ceiling| of(format!("{} ms", ceiling.window_ms).into(), Some(ceiling.requests.into()), None, None));
        stated.chain(words).collect::<Vec<Value>>()
    });
    json_of(&json!({"limits": limits.collect::<Vec<Value>>()}))
}

fn unknown(wanted: &Wanted) -> Response {
    let name: String = wanted.combo.iter().flat_map(|name| name.chars()).take(64).collect();
    problem(StatusCode::NOT_FOUND, "unknown_combo", format!("there is no combo `{name}`"))
}

fn no_configuration() -> Response {
    problem(StatusCode::SERVICE_UNAVAILABLE, "no_configuration", "the gateway has no configuration yet")
}
