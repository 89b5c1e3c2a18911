//! `/api/resilience`, `/api/monitoring/health`, and the answers to those who would write configuration here.

use axum::extract::{Path, State};
use axum::http::{Method, StatusCode};
use axum::response::Response;
use serde_json::{Map, Value, json};

use super::{Shared, json_of, problem};
use crate::gateway::clock;
use crate::snapshot::Settings;

/// Every section of the settings with its effective value, where it comes from, and the source of each field that was set.
pub(super) async fn settings(State(gateway): Shared) -> Response {
    let Some(loaded) = gateway.config() else {
        return problem(StatusCode::SERVICE_UNAVAILABLE, "no_configuration", "the gateway has no configuration yet");
    };
    match sections(&loaded.snapshot.settings) {
        Ok(sections) => json_of(&sections),
        Err(error) => problem(StatusCode::INTERNAL_SERVER_ERROR, "settings", error.to_string()),
    }
}

fn sections(settings: &Settings) -> Result<Map<String, Value>, serde_json::Error> {
    let Value::Object(mut values) = serde_json::to_value(settings)? else { return Ok(Map::new()) };
    values.remove("sources");
    let section = |(name, value): (String, Value)| {
        let stem = name.strip_suffix("Ms").unwrap_or(&name);
        let inside = |path: &str| {
            // The manifest groups what concerns the process under `gateway`, and writes `drain.deadline` for `drainDeadline`.
            let path = path.strip_prefix("gateway.").unwrap_or(path);
            path == name || path == stem || camel(path) == stem || path.strip_prefix(stem).is_some_and(|rest| rest.starts_with('.'))
        };
        let sources: Map<String, Value> =
            settings.sources.iter().filter(|(path, _)| inside(path)).map(|(path, source)| (path.clone(), source.as_str().into())).collect();
        let mut distinct: Vec<&Value> = sources.values().collect();
        distinct.sort_by_key(|source| source.as_str());
        distinct.dedup();
        let source = match distinct.as_slice() {
            [] => json!("default"),
            [one] => (*one).clone(),
            _ => json!("mixed"),
        };
        (name, json!({"value": value, "source": source, "sources": sources}))
    };
    Ok(values.into_iter().map(section).collect())
}

/// `drain.deadline` -> `drainDeadline`.
fn camel(path: &str) -> String {
    let capital = |part: &str| {
        part.chars().next().map(|first| first.to_ascii_uppercase()).into_iter().chain(part.chars().skip(1)).collect::<String>()
    };
    let mut parts = path.split('.');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |joined, part| joined + &capital(part))
}

/// Resources are the only source of truth: this names the one to edit.
pub(super) async fn write_settings(method: Method) -> Response {
    refuse(&method, "ResilienceSettings", "spec")
}

/// See [`write_settings`].
pub(super) async fn write_provider(method: Method, Path(id): Path<String>) -> Response {
    let name: String = id.chars().take(64).collect();
    refuse(&method, &format!("Connection or Provider `{name}`"), "spec")
}

/// See [`write_settings`].
pub(super) async fn write_provider_limits(method: Method) -> Response {
    refuse(&method, "Connection", "spec.rateLimitProtection, spec.rateLimits")
}

/// See [`write_settings`].
pub(super) async fn write_combo(method: Method) -> Response {
    refuse(&method, "Combo", "spec.targets, spec.strategy")
}

fn refuse(method: &Method, kind: &str, field: &str) -> Response {
    let message = format!("{method} does not change configuration here: edit {field} of the resource {kind} with kubectl or in its file");
    let mut response = problem(StatusCode::METHOD_NOT_ALLOWED, "read_only", message);
    response.headers_mut().insert(axum::http::header::ALLOW, axum::http::HeaderValue::from_static("GET"));
    response
}

/// Closes all breakers. Cooldowns, lockouts and terminal states stay (spec: resilience 15).
pub(super) async fn reset(State(gateway): Shared, method: Method) -> Response {
    if method != Method::POST {
        return super::method_not_allowed(method, axum::http::Uri::from_static("/api/resilience/reset")).await;
    }
    let effects = gateway.ledger().reset_breakers(clock::now());
    gateway.apply(&effects);
    let count = effects.len();
    json_of(&json!({"ok": true, "resetCount": count, "message": format!("{count} breakers were reset")}))
}

/// Breakers per provider, and what rests.
pub(super) async fn health(State(gateway): Shared) -> Response {
    let state = gateway.state();
    let lockouts: usize = state.connections.iter().map(|c| c.lockouts.len()).sum();
    let resting = state.connections.iter().filter(|c| c.state != crate::resilience::ConnectionPhase::Active).count();
    let breakers: Map<String, Value> = state.providers.iter().map(|p| (p.name.clone(), json!(p.breaker))).collect();
    json_of(&json!({
        "status": if gateway.ready() { "ok" } else { "degraded" },
        "providers": breakers,
        "connections": {"total": state.connections.len(), "outOfRotation": resting},
        "lockouts": lockouts,
        "requestsInFlight": gateway.metrics().in_flight(),
        "snapshot": state.snapshot,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_says_where_it_comes_from() {
        let mut settings = Settings { max_concurrent_requests: 7, ..Settings::default() };
        settings.sources.insert("requestQueue.maxWait".to_owned(), "env:RATE_LIMIT_MAX_WAIT_MS".to_owned());
        settings.sources.insert("rotation.on429".to_owned(), "settings".to_owned());
        settings.sources.insert("rotation.on500".to_owned(), "default".to_owned());
        settings.sources.insert("heartbeat".to_owned(), "settings".to_owned());
        settings.sources.insert("gateway.drain.deadline".to_owned(), "settings".to_owned());
        settings.sources.insert("gateway.auth.mode".to_owned(), "settings".to_owned());
        let sections = sections(&settings).unwrap();
        assert_eq!((&sections["drainDeadlineMs"]["source"], &sections["auth"]["source"]), (&json!("settings"), &json!("settings")));
        assert_eq!(sections["maxConcurrentRequests"], json!({"value": 7, "source": "default", "sources": {}}));
        assert_eq!(sections["requestQueue"]["source"], "env:RATE_LIMIT_MAX_WAIT_MS");
        assert_eq!(sections["requestQueue"]["value"]["maxWaitMs"], 30_000);
        assert_eq!(sections["rotation"]["source"], "mixed");
        assert_eq!(sections["heartbeatMs"]["source"], "settings");
        assert!(!sections.contains_key("sources"));
    }
}
