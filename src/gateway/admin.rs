//! The management port: probes, metrics, state, and the reading and clearing endpoints (decisions 8.2, interface 6).

mod cooldowns;
mod resilience;
mod traffic;

use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{ConnectInfo, Query, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::{Gateway, clock};
use crate::api::time::parse_duration;
use crate::snapshot::KeyScope;

/// Longest `?wait=`.
const MAX_WAIT: Duration = Duration::from_secs(60);

type Shared = State<Arc<Gateway>>;

/// Serves the management port until `stop`. The writer of the store, and what replicas share, live here as well: they must not disturb
/// serving threads.
pub(super) async fn serve(gateway: Arc<Gateway>, listener: StdListener, stop: CancellationToken) {
    let listener = match TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "handing the management listener to the event loop"),
    };
    let saving = tokio::spawn(Arc::clone(&gateway).keep_saving(stop.clone()));
    let sharing = tokio::spawn(Arc::clone(&gateway).keep_sharing(stop.clone()));
    let service = router(gateway).into_make_service_with_connect_info::<SocketAddr>();
    tokio::select! {
        served = async { axum::serve(listener, service).await } => {
            if let Err(error) = served {
                tracing::error!(%error, "the management port ended");
            }
        }
        () = stop.cancelled() => {}
    }
    if let Err(error) = saving.await {
        tracing::error!(%error, "the state was not stored at the end");
    }
    if let Err(error) = sharing.await {
        tracing::error!(%error, "sharing the state had ended by a panic");
    }
}

/// All routes. Everything but probes and metrics needs a key.
fn router(gateway: Arc<Gateway>) -> Router {
    let guarded = Router::new()
        .route("/state", get(state))
        .route("/checkpoint", get(checkpoint))
        .route("/api/monitoring/health", get(resilience::health))
        .route("/api/resilience", get(resilience::settings).fallback(resilience::write_settings))
        .route("/api/resilience/reset", any(resilience::reset))
        .route("/api/resilience/model-cooldowns", get(cooldowns::lockouts).delete(cooldowns::clear_lockout).fallback(method_not_allowed))
        .route("/api/resilience/cooldowns", get(cooldowns::list).post(cooldowns::clear).fallback(method_not_allowed))
        .route("/api/combos/metrics", get(traffic::combos).delete(traffic::clear_combos).fallback(method_not_allowed))
        .route("/api/rate-limits", get(traffic::rate_limits).fallback(resilience::write_provider_limits))
        .route("/api/settings", any(resilience::write_settings))
        .route("/api/providers/{id}", any(resilience::write_provider))
        .route("/api/combos", any(resilience::write_combo))
        .route("/api/combos/{id}", any(resilience::write_combo))
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(middleware::from_fn_with_state(Arc::clone(&gateway), authorize));
    Router::new()
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .merge(guarded)
        .with_state(gateway)
}

/// An answer of the management API that is no success: `{error: {message, code}}`.
pub(super) fn problem(status: StatusCode, code: &str, message: impl Into<String>) -> Response {
    let body = json!({"error": {"code": code, "message": message.into()}});
    (status, axum::Json(body)).into_response()
}

async fn authorize(State(gateway): Shared, request: Request, next: Next) -> Response {
    let Some(loaded) = gateway.config() else {
        let mut response = problem(
            StatusCode::SERVICE_UNAVAILABLE,
            "no_configuration",
            "the gateway has no configuration, so it knows no management key yet",
        );
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        return response;
    };
    if loaded.keys.has_scope(request.headers(), &[KeyScope::Management, KeyScope::Internal]) {
        return next.run(request).await;
    }
    let local = request.extensions().get::<ConnectInfo<SocketAddr>>().is_some_and(|ConnectInfo(peer)| peer.ip().is_loopback());
    if loaded.keys.open() && local && request.method() == Method::GET {
        return next.run(request).await;
    }
    if super::auth::presented_key(request.headers()).is_some() {
        return problem(StatusCode::FORBIDDEN, "insufficient_scope", "the key has no scope `management`");
    }
    let mut response =
        problem(StatusCode::UNAUTHORIZED, "missing_api_key", "send a key of scope `management` as `Authorization: Bearer KEY`");
    response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}

async fn not_found(uri: Uri) -> Response {
    let path: String = uri.path().chars().take(128).collect();
    problem(StatusCode::NOT_FOUND, "unknown_endpoint", format!("there is no {path} on the management port"))
}

async fn method_not_allowed(method: Method, uri: Uri) -> Response {
    let path: String = uri.path().chars().take(128).collect();
    problem(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", format!("{path} does not take {method}"))
}

async fn ready(State(gateway): Shared) -> Response {
    if gateway.ready() {
        return "ok\n".into_response();
    }
    let why = match gateway.config() {
        None => "no configuration is loaded yet\n",
        Some(_) if gateway.shared().is_joining() => "the state store was not asked yet for what other replicas know\n",
        Some(_) => "the proxy port does not take new requests\n",
    };
    (StatusCode::SERVICE_UNAVAILABLE, why).into_response()
}

async fn metrics(State(gateway): Shared) -> Response {
    gateway.metrics().store_up(gateway.shared().up());
    match gateway.metrics().render(&gateway.state(), clock::now()) {
        Ok(text) => ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response(),
        Err(error) => problem(StatusCode::INTERNAL_SERVER_ERROR, "metrics", error.to_string()),
    }
}

#[derive(serde::Deserialize)]
struct StateQuery {
    wait: Option<String>,
}

async fn state(State(gateway): Shared, Query(query): Query<StateQuery>, headers: HeaderMap) -> Response {
    let patience = match query.wait.as_deref().map(parse_duration).transpose() {
        Ok(ms) => Duration::from_millis(ms.unwrap_or(0)).min(MAX_WAIT),
        Err(message) => return problem(StatusCode::BAD_REQUEST, "invalid_wait", format!("wait: {message}")),
    };
    let known = headers.get(header::IF_NONE_MATCH).and_then(|value| value.to_str().ok()).and_then(parse_tag);
    if let Some(known) = known {
        gateway.state_changed(known, patience).await;
    } else if !patience.is_zero() {
        gateway.state_changed(gateway.state_version(), patience).await;
    }
    let report = gateway.state();
    let tag = HeaderValue::from_str(&format!("\"{}\"", report.version)).unwrap_or(HeaderValue::from_static("\"0\""));
    if known == Some(report.version) {
        return (StatusCode::NOT_MODIFIED, [(header::ETAG, tag)]).into_response();
    }
    ([(header::ETAG, tag)], axum::Json(report)).into_response()
}

/// `"17"`, `W/"17"` or `17`.
fn parse_tag(text: &str) -> Option<u64> {
    text.trim().trim_start_matches("W/").trim_matches('"').parse().ok()
}

async fn checkpoint(State(gateway): Shared) -> Response {
    json_of(&gateway.ledger().export(clock::now()))
}

/// A JSON answer.
pub(super) fn json_of(value: &impl Serialize) -> Response {
    axum::Json(value).into_response()
}

/// A JSON body, whatever its content type says.
pub(super) fn parse(body: &Bytes) -> Result<Value, Box<Response>> {
    serde_json::from_slice(body)
        .map_err(|error| Box::new(problem(StatusCode::BAD_REQUEST, "invalid_json", format!("the body is no JSON: {error}"))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_in_all_their_forms() {
        for text in ["\"17\"", "W/\"17\"", "17", " \"17\" "] {
            assert_eq!(parse_tag(text), Some(17), "{text}");
        }
        assert_eq!(parse_tag("*"), None);
    }
}
