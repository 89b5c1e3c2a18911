//! Reading and clearing what rests: connection cooldowns and model lockouts (spec: resilience 15).

use axum::body::Bytes;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Shared, json_of, parse, problem};
use crate::gateway::clock;
use crate::resilience::{Effect, Selection};

#[derive(Deserialize)]
pub(super) struct Filter {
    provider: Option<String>,
}

/// Locked models.
pub(super) async fn lockouts(State(gateway): Shared) -> Response {
    let locks = gateway.state().connections.into_iter().flat_map(|connection| {
        let (provider, name) = (connection.provider, connection.name);
        connection.lockouts.into_iter().map(move |lock| {
            json!({
                "provider": provider, "connection": name, "model": lock.model, "reason": lock.reason,
                "expiresAt": lock.until, "exact": lock.exact,
            })
        })
    });
    json_of(&json!({"lockouts": locks.collect::<Vec<Value>>()}))
}

/// Unlocks one model, or all of them.
pub(super) async fn clear_lockout(State(gateway): Shared, body: Bytes) -> Response {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Wanted {
        All { all: bool },
        One { provider: String, connection: String, model: String },
    }
    let wanted = match parse(&body).map(serde_json::from_value::<Wanted>) {
        Ok(Ok(wanted)) => wanted,
        Ok(Err(_)) => return problem(StatusCode::BAD_REQUEST, "invalid_body", "send {provider, connection, model} or {all: true}"),
        Err(response) => return *response,
    };
    let ledger = gateway.ledger();
    let now = clock::now();
    let report = ledger.report(now);
    let locks = report.connections.iter().flat_map(|c| c.lockouts.iter().map(move |lock| (c, lock.model.as_str())));
    let effects: Vec<Effect> = match wanted {
        Wanted::One { provider, connection, model } => {
            if !report.connections.iter().any(|c| c.name == connection && c.provider == provider) {
                let message = format!("provider `{provider}` has no connection `{connection}`");
                return problem(StatusCode::NOT_FOUND, "unknown_connection", message);
            }
            ledger.clear_lockout(&connection, &model, now)
        }
        Wanted::All { all: true } => locks.flat_map(|(c, model)| ledger.clear_lockout(&c.name, model, now)).collect(),
        Wanted::All { all: false } => Vec::new(),
    };
    gateway.apply(&effects);
    json_of(&json!({"ok": true, "cleared": effects.len()}))
}

/// Every connection with what rests on it.
pub(super) async fn list(State(gateway): Shared, Query(filter): Query<Filter>) -> Response {
    let now = clock::now();
    let connections = gateway.state().connections.into_iter().filter(|c| filter.provider.as_ref().is_none_or(|p| *p == c.provider));
    let shown = connections.map(|c| {
        json!({
            "connectionId": c.name, "provider": c.provider, "status": c.state, "reason": c.reason,
            "until": c.until, "remainingMs": c.until.map(|until| until.since(now)),
            "backoffLevel": c.backoff_level, "strikes": c.strikes, "lastErrorStatus": c.last_status,
            "waitSource": c.wait_source, "modelLocks": c.lockouts,
        })
    });
    json_of(&json!({"connections": shown.collect::<Vec<Value>>()}))
}

/// Ends cooldowns and lockouts; terminal states stay.
pub(super) async fn clear(State(gateway): Shared, body: Bytes) -> Response {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Wanted {
        connection_ids: Option<Vec<String>>,
        #[serde(default)]
        all: bool,
        provider: Option<String>,
    }
    let wanted = match parse(&body).map(serde_json::from_value::<Wanted>) {
        Ok(Ok(wanted)) => wanted,
        Ok(Err(error)) => return problem(StatusCode::BAD_REQUEST, "invalid_body", error.to_string()),
        Err(response) => return *response,
    };
    let selection = match wanted {
        Wanted { connection_ids: Some(ids), all: false, provider: None } => Selection::Connections(ids.into_iter().collect()),
        Wanted { connection_ids: None, all: true, provider: Some(provider) } => Selection::Provider(provider),
        Wanted { connection_ids: None, all: true, provider: None } => Selection::All,
        _ => return problem(StatusCode::BAD_REQUEST, "invalid_body", "send {connectionIds: […]} or {all: true, provider?}"),
    };
    let cleared = gateway.ledger().clear_cooldowns(&selection, clock::now());
    gateway.apply(&cleared.effects);
    json_of(&cleared)
}
