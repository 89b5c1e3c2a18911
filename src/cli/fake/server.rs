//! The server of the fake upstream.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinHandle;

use super::control;
use super::record::{Ending, KEEP_BODY, Log, Outcome, Recorded};
use super::reply::{Content, body, error};
use super::script::{Answer, Fault, FaultKind, Rule, Script, Seen};
use super::streams::{error_frame, frames};
use crate::api::time::EpochMs;
use crate::protocol::{Dialect, Endpoint};

/// Largest request body.
const MAX_BODY: usize = 64 * 1024 * 1024;

pub(super) type FakeBody = BoxBody<Bytes, Infallible>;

/// Why a fake upstream cannot be started.
#[derive(thiserror::Error, Debug)]
#[error("listening on {listen}: {source}")]
pub struct StartError {
    listen: String,
    source: std::io::Error,
}

/// A running fake upstream; dropping it closes all its connections.
#[derive(Debug)]
pub struct FakeUpstream {
    addr: SocketAddr,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

/// What all connections share.
#[derive(Debug)]
pub(super) struct Shared {
    script: Mutex<Arc<Script>>,
    pub log: Arc<Log>,
    count: AtomicU64,
    drop_all: watch::Sender<u64>,
}

impl Shared {
    pub fn script(&self) -> Arc<Script> {
        Arc::clone(&self.script.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub fn set_script(&self, script: Script) {
        *self.script.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(script);
    }

    /// Puts a rule before the others, which start again from their first answers.
    pub fn push_rule(&self, rule: Rule) {
        let mut slot = self.script.lock().unwrap_or_else(PoisonError::into_inner);
        let mut script = (**slot).clone();
        script.rules.insert(0, rule);
        *slot = Arc::new(script);
    }

    pub fn drop_connections(&self) {
        self.drop_all.send_modify(|n| *n += 1);
    }
}

impl FakeUpstream {
    /// Starts one. `listen` with port 0 takes a free port.
    ///
    /// # Errors
    /// The address cannot be had.
    pub async fn start(listen: &str, script: Script) -> Result<Self, StartError> {
        let bound = async { TcpListener::bind(listen).await.and_then(|l| l.local_addr().map(|a| (l, a))) };
        let (listener, addr) = bound.await.map_err(|source| StartError { listen: listen.to_owned(), source })?;
        let shared = Arc::new(Shared {
            script: Mutex::new(Arc::new(script)),
            log: Arc::default(),
            count: AtomicU64::new(0),
            drop_all: watch::Sender::new(0),
        });
        let accepting = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Ok(Self { addr, shared, accepting })
    }

    /// Where it listens.
    #[must_use]
    pub const fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The base URL for a Provider.
    #[must_use]
    pub fn base_url(&self) -> String {
        format!("http://{}/v1", self.addr)
    }

    /// Replaces the script.
    pub fn set_script(&self, script: Script) {
        self.shared.set_script(script);
    }

    /// Puts a rule before the others, which start again from their first answers.
    pub fn push_rule(&self, rule: Rule) {
        self.shared.push_rule(rule);
    }

    /// All requests so far.
    #[must_use]
    pub fn requests(&self) -> Vec<Recorded> {
        self.shared.log.all()
    }

    /// Forgets the requests so far.
    pub fn clear(&self) {
        self.shared.log.clear();
    }

    /// Waits until `good` holds for the requests so far; answers whether it did within 10 s.
    pub async fn wait(&self, good: impl Fn(&[Recorded]) -> bool) -> bool {
        self.shared.log.wait(good, Duration::from_secs(10)).await
    }

    /// Closes all connections, idle ones as well.
    pub fn drop_connections(&self) {
        self.shared.drop_connections();
    }
}

impl Drop for FakeUpstream {
    fn drop(&mut self) {
        self.accepting.abort();
        self.shared.drop_connections();
    }
}

/// The way to end a connection from inside an answer.
#[derive(Default)]
struct Hangup {
    now: Notify,
    reset: AtomicBool,
}

impl Hangup {
    fn hang_up(&self, reset: bool) {
        self.reset.store(reset, Ordering::Relaxed);
        self.now.notify_one();
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                tokio::spawn(serve(stream, Arc::clone(&shared)));
            }
            // Out of descriptors: others may be freed.
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

async fn serve(stream: TcpStream, shared: Arc<Shared>) {
    let _ = stream.set_nodelay(true);
    let hangup = Arc::new(Hangup::default());
    let mut drop_all = shared.drop_all.subscribe();
    let service = {
        let hangup = Arc::clone(&hangup);
        service_fn(move |request| {
            let (shared, hangup) = (Arc::clone(&shared), Arc::clone(&hangup));
            async move { Ok::<_, Infallible>(handle(request, shared, hangup).await) }
        })
    };
    let mut connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    // The connection first: what was written before a hang-up still goes out.
    tokio::select! {
        biased;
        _ = &mut connection => return,
        () = hangup.now.notified() => {}
        _ = drop_all.changed() => {}
    }
    if hangup.reset.load(Ordering::Relaxed) {
        let stream = connection.into_parts().io.into_inner();
        let _ = socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO));
    }
}

async fn handle(request: Request<Incoming>, shared: Arc<Shared>, hangup: Arc<Hangup>) -> Response<FakeBody> {
    let (head, incoming) = request.into_parts();
    let Ok(bytes) = Limited::new(incoming, MAX_BODY).collect().await.map(http_body_util::Collected::to_bytes) else {
        return plain(StatusCode::PAYLOAD_TOO_LARGE, "the request body cannot be read");
    };
    if head.uri.path().starts_with("/_control/") {
        return control::handle(&head, &bytes, &shared).await;
    }
    let path = head.uri.path();
    if head.method == Method::GET && path.ends_with("/models") {
        return json(StatusCode::OK, &control::models(&shared.script().models));
    }
    let text = String::from_utf8_lossy(&bytes);
    let body: Value = serde_json::from_str(&text).unwrap_or_default();
    let key = credential(&head.headers);
    let model = body.get("model").and_then(Value::as_str).unwrap_or_default();
    let endpoint = Endpoint::ALL.into_iter().find(|e| path.ends_with(e.path()));
    let stream = endpoint.is_some_and(Endpoint::may_stream) && body.get("stream") == Some(&Value::Bool(true));
    let seen = Seen { path, model, key: &key, stream, body: &text };
    let script = shared.script();
    let (rule, answer) = script.choose(&seen).map_or_else(Default::default, |(rule, answer)| (rule.name.clone(), answer.clone()));
    let id = shared.log.arrived(Recorded {
        id: 0,
        time: EpochMs(0),
        path: head.uri.to_string(),
        key: key.clone(),
        model: model.to_owned(),
        stream,
        headers: head.headers.iter().map(|(n, v)| (n.to_string(), String::from_utf8_lossy(v.as_bytes()).into_owned())).collect(),
        body: text.chars().take(KEEP_BODY).collect(),
        rule,
        status: 0,
        outcome: Outcome::Running,
        after_ms: None,
    });
    let ending = Ending { log: Arc::clone(&shared.log), id, outcome: Outcome::Aborted };
    let order = Order { endpoint, stream, answer, body, number: shared.count.fetch_add(1, Ordering::Relaxed) + 1 };
    order.serve(script.text.as_deref(), ending, hangup).await
}

/// A request together with the answer that it gets.
struct Order {
    endpoint: Option<Endpoint>,
    stream: bool,
    answer: Answer,
    body: Value,
    number: u64,
}

impl Order {
    async fn serve(self, text: Option<&str>, mut ending: Ending, hangup: Arc<Hangup>) -> Response<FakeBody> {
        if let Some(delay) = self.answer.delay {
            tokio::time::sleep(delay).await;
        }
        let fault = self.answer.fault.clone();
        match fault.as_ref().map(|f| (f.kind, f.after)) {
            Some((FaultKind::Hang, _)) => return std::future::pending().await,
            Some((kind @ (FaultKind::Close | FaultKind::Reset), 0)) => {
                ending.outcome = Outcome::Fault;
                drop(ending);
                hangup.hang_up(kind == FaultKind::Reset);
                return std::future::pending().await;
            }
            _ => {}
        }
        let status = self.answer.status.unwrap_or(if self.endpoint.is_some() { 200 } else { 404 });
        let (content_type, chunks) = self.chunks(status, text.unwrap_or("Hello from the fake upstream."), fault.is_some());
        ending.log.note(ending.id, |r| r.status = status);
        let body = if chunks.len() <= 1 && fault.is_none() {
            ending.outcome = Outcome::Answered;
            Full::new(chunks.into_iter().next().unwrap_or_default()).boxed()
        } else {
            let (sender, receiver) = mpsc::channel(1);
            let dialect = self.endpoint.map_or(Dialect::ChatCompletions, Endpoint::dialect);
            tokio::spawn(produce(sender, chunks, self.answer.interval, fault, dialect, ending, hangup));
            Channel(receiver).boxed()
        };
        let mut response = Response::new(body);
        *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        if let Ok(id) = HeaderValue::from_str(&format!("req_fake{:012}", self.number)) {
            // As the vendors name it.
            let name = if self.endpoint.map(Endpoint::dialect) == Some(Dialect::Messages) { "request-id" } else { "x-request-id" };
            headers.insert(name, id);
        }
        put(headers, &self.answer.headers);
        response
    }

    /// The body in the pieces in which it is sent, and its content type.
    fn chunks(&self, status: u16, text: &str, faulty: bool) -> (&'static str, Vec<Bytes>) {
        const JSON: &str = "application/json";
        const SSE: &str = "text/event-stream; charset=utf-8";
        let endpoint = self.endpoint.unwrap_or(Endpoint::ChatCompletions);
        if let Some(frames) = &self.answer.frames {
            return (SSE, frames.iter().map(|f| Bytes::from(f.clone())).collect());
        }
        if let Some(body) = &self.answer.body {
            let (kind, text) = match body {
                Value::String(text) if self.stream && status < 300 => (SSE, text.clone()),
                Value::String(text) if text.trim_start().starts_with(['{', '[']) => (JSON, text.clone()),
                Value::String(text) => ("text/plain; charset=utf-8", text.clone()),
                value => (JSON, value.to_string()),
            };
            return (kind, pieces(text, faulty));
        }
        if !(200..300).contains(&status) {
            return (JSON, pieces(error(endpoint.dialect(), status).to_string(), faulty));
        }
        let created =
            SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| i64::try_from(d.as_secs()).unwrap_or(i64::MAX));
        let model = self.body.get("model").and_then(Value::as_str).unwrap_or("fake");
        let chars = self.body.to_string().len();
        let content = Content::new(self.number, created, model, text, self.answer.reply.as_ref(), chars);
        if self.stream {
            return (SSE, frames(endpoint, &content, &self.body).into_iter().map(Bytes::from).collect());
        }
        (JSON, pieces(body(endpoint, &content, &self.body).to_string(), faulty))
    }
}

/// A body in one piece, or in several when something is to go wrong in between.
fn pieces(text: String, faulty: bool) -> Vec<Bytes> {
    let bytes = Bytes::from(text);
    if !faulty || bytes.is_empty() {
        return vec![bytes];
    }
    let size = bytes.len().div_ceil(8);
    (0..bytes.len()).step_by(size).map(|at| bytes.slice(at..bytes.len().min(at + size))).collect()
}

/// Sends the chunks of a body, with what goes wrong on the way.
async fn produce(
    sender: mpsc::Sender<Bytes>,
    chunks: Vec<Bytes>,
    interval: Option<Duration>,
    fault: Option<Fault>,
    dialect: Dialect,
    mut ending: Ending,
    hangup: Arc<Hangup>,
) {
    let pause = interval.unwrap_or_default();
    let count = chunks.len();
    let mut drip = false;
    let end = Bytes::new();
    for (index, chunk) in chunks.into_iter().chain([end]).enumerate() {
        if index > 0 && index < count {
            tokio::time::sleep(pause).await;
        }
        if let Some(fault) = fault.as_ref().filter(|f| f.after.min(count) == index) {
            match fault.kind {
                FaultKind::Drip => drip = true,
                FaultKind::Malformed => {
                    if sender.send(Bytes::from_static(b"data: {\"malformed\n\n")).await.is_err() {
                        return;
                    }
                }
                _ => return break_off(&sender, fault, pause, dialect, ending, &hangup).await,
            }
        }
        for piece in chunk.chunks(if drip { 1 } else { chunk.len().max(1) }) {
            if sender.send(chunk.slice_ref(piece)).await.is_err() {
                return;
            }
            if drip {
                tokio::time::sleep(pause.max(Duration::from_millis(1))).await;
            }
        }
    }
    ending.outcome = Outcome::Answered;
}

/// The end of a body that goes wrong.
async fn break_off(sender: &mpsc::Sender<Bytes>, fault: &Fault, pause: Duration, dialect: Dialect, mut ending: Ending, hangup: &Hangup) {
    match fault.kind {
        FaultKind::Cut | FaultKind::Close | FaultKind::Reset => {
            ending.outcome = Outcome::Fault;
            // Wait until what was sent is on its way.
            let _ = sender.reserve().await;
            hangup.hang_up(fault.kind == FaultKind::Reset);
            sender.closed().await;
        }
        FaultKind::ErrorFrame => {
            let data = fault.body.clone().unwrap_or_else(|| error(dialect, 529));
            ending.outcome = Outcome::Fault;
            let _ = sender.send(Bytes::from(error_frame(dialect, &data))).await;
        }
        FaultKind::Ping => {
            while sender.send(Bytes::from_static(b": ping\n\n")).await.is_ok() {
                tokio::time::sleep(pause.max(Duration::from_millis(20))).await;
            }
        }
        FaultKind::Eof => ending.outcome = Outcome::Fault,
        FaultKind::Hang | FaultKind::Stall | FaultKind::Malformed | FaultKind::Drip => sender.closed().await,
    }
}

/// A body fed by a channel; it ends when the sender is dropped.
struct Channel(mpsc::Receiver<Bytes>);

impl http_body::Body for Channel {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(cx).map(|next| next.map(|bytes| Ok(http_body::Frame::data(bytes))))
    }
}

fn credential(headers: &HeaderMap) -> String {
    let text = |name: HeaderName| headers.get(name).and_then(|v| v.to_str().ok());
    let bearer = text(AUTHORIZATION).map(|v| v.strip_prefix("Bearer ").unwrap_or(v));
    let key = text(HeaderName::from_static("x-api-key")).or_else(|| text(HeaderName::from_static("api-key")));
    bearer.or(key).unwrap_or_default().to_owned()
}

fn put(headers: &mut HeaderMap, wanted: &BTreeMap<String, String>) {
    for (name, value) in wanted {
        if let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), HeaderValue::from_str(value)) {
            headers.insert(name, value);
        }
    }
}

pub(super) fn json(status: StatusCode, value: &Value) -> Response<FakeBody> {
    let mut response = Response::new(Full::new(Bytes::from(value.to_string())).boxed());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn plain(status: StatusCode, text: &'static str) -> Response<FakeBody> {
    let mut response = Response::new(Full::new(Bytes::from_static(text.as_bytes())).boxed());
    *response.status_mut() = status;
    response
}
