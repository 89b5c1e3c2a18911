//! One call: a connection, the request, the head of the answer.

use std::future::{Future, poll_fn};
use std::io::Write;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http::header::HeaderMap;
use http::{Method, Response, Uri};

use super::SendError;
use super::body::{Collected, UpstreamBody, collect};
use super::headers::Up;
use super::pool::{Pool, PoolLimits};
use super::route::{Prepared, Upstream};
use super::wire::{Broken, Conn};
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
            let uri = elsewhere(&prepared.uri, path)
                .ok_or_else(|| SendError::new(TransportError::Connect, format!("`{path}` is no path of a URL")))?;
            let head = head(&method, &uri, upstream, prepared, &call);
            let origin = &prepared.origin;
            let answer = self.exchange(open(origin).await?, prepared, (head, call.body), limit).await.map_err(|failure| match failure {
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
        mut conn: Box<Conn>,
        prepared: &Prepared,
        (head, body): (Bytes, RequestBody),
        limit: Duration,
    ) -> Result<Response<UpstreamBody>, Failure> {
        let origin = &prepared.origin;
        let received = conn.received();
        conn.begin(head, body);
        let mut deadline = pin!(tokio::time::sleep(limit));
        let outcome = poll_fn(|cx| match conn.poll_head(cx) {
            Poll::Ready(result) => Poll::Ready(Some(result)),
            Poll::Pending => deadline.as_mut().poll(cx).map(|()| None),
        })
        .await;
        match outcome {
            Some(Ok(head)) if head.status == 407 && origin.proxy.is_some() && origin.tls.is_none() => {
                Err(Failure::Final(SendError::proxy("the proxy refused its credential with status 407")))
            }
            Some(Ok(head)) => {
                let mut response = Response::new(UpstreamBody::new(conn, Arc::clone(&self.pool), Arc::clone(&prepared.key)));
                *response.status_mut() = head.status;
                *response.headers_mut() = head.headers;
                Ok(response)
            }
            Some(Err(_)) if conn.reused && conn.received() == received => Err(Failure::Stale),
            Some(Err(error)) => {
                let message = match error {
                    Broken::Malformed(mistake) => format!("{origin} answered something that is not HTTP/1.1: {mistake}"),
                    error if conn.received() > received => {
                        format!("the connection to {origin} broke within the head of the answer: {error}")
                    }
                    error => format!("the connection to {origin} broke before the answer: {error}"),
                };
                Err(Failure::Final(SendError::new(TransportError::Reset, message)))
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

async fn open(origin: &Origin) -> Result<Box<Conn>, SendError> {
    Ok(Box::new(Conn::new(connect(origin).await?)))
}

/// Another path on the same server.
fn elsewhere(uri: &Uri, path: &str) -> Option<Uri> {
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(path.parse().ok()?);
    Uri::from_parts(parts).ok()
}

/// The head of a request, and its body.
fn request(upstream: &Upstream, prepared: &Prepared, call: &Call<'_>) -> (Bytes, RequestBody) {
    (head(&Method::POST, &prepared.uri, upstream, prepared, call), call.body.clone())
}

/// Room for the head of a request as clients send them; it grows where it has to.
const USUAL_HEAD: usize = 768;

fn head(method: &Method, uri: &Uri, upstream: &Upstream, prepared: &Prepared, call: &Call<'_>) -> Bytes {
    let mut out = Vec::with_capacity(USUAL_HEAD);
    // Writing to memory does not fail.
    let _ = write!(out, "{method} {uri} HTTP/1.1\r\n");
    let (forward, messages) = (&upstream.forward, call.endpoint.dialect() == Dialect::Messages);
    Up { client: call.headers, forward, constant: &prepared.headers, extra: call.extra, messages }.write(&mut out);
    if !call.body.is_empty() || method == Method::POST {
        let _ = write!(out, "content-length: {}\r\n", call.body.len());
    }
    out.extend_from_slice(b"\r\n");
    out.into()
}
