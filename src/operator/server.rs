//! The operator's own port: `/metrics`, `/livez`, `/readyz`.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::error::Error;
use super::metrics::Metrics;

/// What the port tells.
pub struct Health {
    /// Metrics.
    pub metrics: Arc<Metrics>,
    /// Whether the caches have been filled once: a standby is ready as well.
    pub ready: Box<dyn Fn() -> bool + Send + Sync>,
    /// Called before metrics are read, for values that are measured when asked.
    pub refresh: Box<dyn Fn(&Metrics) + Send + Sync>,
}

/// Listens; answers the address.
///
/// # Errors
/// If the address cannot be bound.
pub async fn serve(listen: SocketAddr, health: Health, stop: CancellationToken) -> Result<SocketAddr, Error> {
    let failed = |source| Error::Io { doing: format!("listening on {listen} (--management)"), source };
    let listener = TcpListener::bind(listen).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let routes = Router::new()
        .route("/livez", get(|| async { "ok" }))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .with_state(Arc::new(health));
    tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, routes).with_graceful_shutdown(stop.cancelled_owned()).await {
            tracing::error!(%error, "the management port failed");
        }
    });
    Ok(address)
}

async fn readyz(State(health): State<Arc<Health>>) -> Response {
    if (health.ready)() { "ok".into_response() } else { (StatusCode::SERVICE_UNAVAILABLE, "caches are being filled").into_response() }
}

async fn metrics(State(health): State<Arc<Health>>) -> Response {
    (health.refresh)(&health.metrics);
    match health.metrics.text() {
        Ok(text) => ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}
