//! One call: a connection, the request, the head of the answer.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http::header::{HOST, HeaderMap, PROXY_AUTHORIZATION};
use http::{Method, Request, Response, Uri};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;

use super::body::{Collected, UpstreamBody, collect};
use super::pool::{Conn, Payload, Pool, PoolLimits};
use super::route::{Prepared, Upstream};
use super::{SendError, headers};
use crate::classify::TransportError;
use crate::dial::{Origin, connect};
use crate::gateway::admission::Buffers;
use crate::protocol::scan::RequestBody;
use crate::protocol::{Dialect, Endpoint};

/// What is sent.
#[derive(Clone, Debug)]
pub struct Call<'a> {
    /// Which operation.
    pub endpoint: Endpoint,
    /// The client's headers; only the listed ones go up.
    pub headers: &'a HeaderMap,
    /// The body.
    pub body: RequestBody,
    /// How long the head of the answer may take, from the moment the request goes out.
    pub response_start: Duration,
    /// A header of the gateway's own.
    pub extra: Option<(&'static str, &'static str)>,
}

/// A request of the gateway's own to the server of an endpoint: same address, trust, proxy and credential, another path.
#[derive(Clone, Debug)]
pub struct Errand<'a> {
    /// The endpoint whose server is asked.
    pub endpoint: Endpoint,
    /// How.
    pub method: Method,
    /// Path and query, from the root of the server.
    pub path: &'a str,
    /// The body.
    pub body: Bytes,
    /// How long it may take altogether.
    pub limit: Duration,
}

/// Longest answer to an errand.
const MAX_ERRAND: usize = 64 * 1024;

/// Calls providers. One for each runtime: clones share its pool.
#[derive(Clone)]
pub struct Client {
    pool: Arc<Pool>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}

impl Default for Client {
    fn default() -> Self {
        Self::new(PoolLimits::default())
    }
}

impl Client {
    /// A client with an empty pool.
    #[must_use]
    pub fn new(limits: PoolLimits) -> Self {
        Self { pool: Pool::new(limits) }
    }

    /// Sends a request and waits for the head of the answer, whatever its status. Dropping the future closes the connection.
    ///
    /// A reused connection that dies before a single byte of the answer is replaced once by a fresh one: no attempt is counted and
    /// nobody is to blame (decisions 9.15).
    ///
    /// # Errors
    /// There was no answer: connecting, TLS, the proxy, a reset, or the deadline.
    pub async fn send(&self, upstream: &Upstream, call: Call<'_>) -> Result<Response<UpstreamBody>, SendError> {
        let Some(prepared) = upstream.endpoint(call.endpoint) else {
            let message = format!("this provider does not speak {}", call.endpoint.dialect().name());
            return Err(SendError::new(TransportError::Connect, message));
        };
        let origin = &prepared.origin;
        if let Some(conn) = self.pool.take(&prepared.key) {
            match self.exchange(conn, prepared, request(upstream, prepared, &call), call.response_start).await {
                Err(Failure::Stale) => {}
                Err(Failure::Final(error)) => return Err(error),
                Ok(response) => return Ok(response),
            }
        }
        // Dialling is rare and its state is large: without the box every request would carry room for it.
        let conn = Box::pin(open(origin)).await?;
        match self.exchange(conn, prepared, request(upstream, prepared, &call), call.response_start).await {
            Ok(response) => Ok(response),
            Err(Failure::Final(error)) => Err(error),
            Err(Failure::Stale) => Err(SendError::new(TransportError::Reset, format!("{origin} closed the connection before it answered"))),
        }
    }

    /// Asks the server of an endpoint for something else, and reads the whole answer: its status and its body.
    ///
    /// # Errors
    /// There was no whole answer within the limit.
    pub async fn errand(&self, upstream: &Upstream, errand: Errand<'_>) -> Result<(u16, Bytes), SendError> {
        let Errand { endpoint, method, path, body, limit } = errand;
        let work = async {
            let prepared = upstream.endpoint(endpoint).ok_or_else(|| {
                SendError::new(TransportError::Connect, format!("this provider does not speak {}", endpoint.dialect().name()))
            })?;
            let none = HeaderMap::new();
            let call = Call { endpoint, headers: &none, body: RequestBody::from(body), response_start: limit, extra: None };
            let mut request = request(upstream, prepared, &call);
            *request.method_mut() = method;
            *request.uri_mut() = elsewhere(&prepared.uri, path)
                .ok_or_else(|| SendError::new(TransportError::Connect, format!("`{path}` is no path of a URL")))?;
            let origin = &prepared.origin;
            let answer = self.exchange(open(origin).await?, prepared, request, limit).await.map_err(|failure| match failure {
                Failure::Final(error) => error,
                Failure::Stale => SendError::new(TransportError::Reset, format!("{origin} closed the connection before it answered")),
            })?;
            let (head, body) = answer.into_parts();
            match collect(body, MAX_ERRAND, limit, &Buffers::default()).await {
                Ok(Collected::Whole { bytes, .. }) => Ok((head.status.as_u16(), bytes)),
                Ok(Collected::TooLarge { .. }) => {
                    Err(SendError::new(TransportError::Reset, format!("{origin} answered more than {MAX_ERRAND} bytes")))
                }
                Err(error) => Err(SendError::new(error.transport, error.message)),
            }
        };
        let silent = || SendError::new(TransportError::Timeout, format!("no whole answer within {} ms", limit.as_millis()));
        tokio::time::timeout(limit, work).await.unwrap_or_else(|_| Err(silent()))
    }

    async fn exchange(
        &self,
        mut conn: Conn,
        prepared: &Prepared,
        request: Request<Payload>,
        limit: Duration,
    ) -> Result<Response<UpstreamBody>, Failure> {
        let origin = &prepared.origin;
        let received = conn.received();
        let mut answer = pin!(conn.sender.send_request(request));
        let mut deadline = pin!(tokio::time::sleep(limit));
        let outcome = poll_fn(|cx| {
            conn.drive(cx);
            if let Poll::Ready(result) = answer.as_mut().poll(cx) {
                return Poll::Ready(Some(result));
            }
            deadline.as_mut().poll(cx).map(|()| None)
        })
        .await;
        match outcome {
            Some(Ok(response)) => {
                let (head, incoming) = response.into_parts();
                if head.status == 407 && origin.proxy.is_some() && origin.tls.is_none() {
                    return Err(Failure::Final(SendError::proxy("the proxy refused its credential with status 407")));
                }
                Ok(Response::from_parts(head, UpstreamBody::new(incoming, conn, Arc::clone(&self.pool), Arc::clone(&prepared.key))))
            }
            Some(Err(_)) if conn.reused && conn.received() == received => Err(Failure::Stale),
            Some(Err(error)) => {
                Err(Failure::Final(SendError::new(TransportError::Reset, describe(origin, &error, conn.received() > received))))
            }
            None => {
                let message = format!("{origin} sent no answer within {} ms", limit.as_millis());
                Err(Failure::Final(SendError::new(TransportError::Timeout, message)))
            }
        }
    }
}

enum Failure {
    /// A reused connection died before the answer began.
    Stale,
    Final(SendError),
}

async fn open(origin: &Origin) -> Result<Conn, SendError> {
    let (socket, received) = connect(origin).await?;
    // An answer may have 100 headers; any other number than this default would cost memory for each answer.
    let handshake = http1::handshake(TokioIo::new(socket)).await;
    let (sender, driver) = handshake.map_err(|e| SendError::new(TransportError::Reset, format!("starting HTTP with {origin}: {e}")))?;
    Ok(Conn::new(sender, driver, received))
}

/// Another path on the same server.
fn elsewhere(uri: &Uri, path: &str) -> Option<Uri> {
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(path.parse().ok()?);
    Uri::from_parts(parts).ok()
}

fn request(upstream: &Upstream, prepared: &Prepared, call: &Call<'_>) -> Request<Payload> {
    let mut request = Request::new(Payload::from(call.body.clone()));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = prepared.uri.clone();
    let mut headers = headers::up(call.headers, &upstream.forward, &upstream.fixed, call.endpoint.dialect() == Dialect::Messages);
    headers.insert(HOST, prepared.host.clone());
    if let Some((name, value)) = call.extra {
        headers.insert(http::HeaderName::from_static(name), http::HeaderValue::from_static(value));
    }
    if let Some((name, value)) = &prepared.credential {
        headers.insert(name, value.clone());
    }
    let proxy = prepared.origin.proxy.as_ref().filter(|_| prepared.origin.tls.is_none());
    if let Some(authorization) = proxy.and_then(|p| p.authorization.as_ref()) {
        headers.insert(PROXY_AUTHORIZATION, authorization.clone());
    }
    *request.headers_mut() = headers;
    request
}

fn describe(origin: &Origin, error: &hyper::Error, began: bool) -> String {
    let cause = std::error::Error::source(error).map(|s| format!(": {s}")).unwrap_or_default();
    if error.is_parse() {
        format!("{origin} answered something that is not HTTP/1.1: {error}{cause}")
    } else if began {
        format!("the connection to {origin} broke within the head of the answer: {error}{cause}")
    } else {
        format!("the connection to {origin} broke before the answer: {error}{cause}")
    }
}
