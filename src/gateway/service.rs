//! From an HTTP request to a call of the pipeline: paths, methods, keys, limits, bodies.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use http::header::{ALLOW, CONNECTION, CONTENT_LENGTH, EXPECT, TRANSFER_ENCODING};
use http::request::Parts;
use http::{HeaderValue, Method, Request, Response, Version};
use hyper::body::Incoming;
use hyper::service::Service;

use super::admission::RequestSlot;
use super::answer::{self, Refusal};
use super::body::Body;
use super::config::Loaded;
use super::metrics::{EndpointLabel, Origin, RequestCounters};
use super::pipeline::{Clock, Elsewhere, Work};
use super::sniff::{Head, HeadWatch, Unfinished};
use super::upstream::{Client, PoolLimits};
use super::{Gateway, ingest, leases, models, pipeline};
use crate::protocol::{Dialect, Endpoint};
use crate::snapshot::KeyScope;

/// Longest body of a lease operation.
const MAX_LEASE_BODY: u64 = 16 * 1024;

/// What one serving thread has of its own beside the gateway that all share.
#[derive(Debug)]
pub struct Worker {
    /// Shared by all threads.
    pub gateway: Arc<Gateway>,
    /// The upstream connections of this thread.
    pub client: Client,
}

impl Worker {
    /// A worker with an empty pool.
    #[must_use]
    pub fn new(gateway: Arc<Gateway>) -> Self {
        Self { gateway, client: Client::new(PoolLimits::default()) }
    }
}

/// The service of one client connection.
#[derive(Debug)]
pub struct ClientConnection {
    worker: Arc<Worker>,
    watch: Arc<HeadWatch>,
}

impl ClientConnection {
    /// A service for a connection whose heads are watched.
    #[must_use]
    pub const fn new(worker: Arc<Worker>, watch: Arc<HeadWatch>) -> Self {
        Self { worker, watch }
    }
}

impl Service<Request<Incoming>> for ClientConnection {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let (head, unfinished) = self.watch.begin_request();
        let worker = Arc::clone(&self.worker);
        Box::pin(async move { Ok(serve(worker, unfinished, request, head).await) })
    }
}

/// What a path stands for.
#[derive(Clone, Copy, Debug)]
enum Route {
    Inference(Endpoint),
    Models,
    Leases,
    Nothing,
}

impl Route {
    fn of(path: &str) -> Self {
        if let Some(endpoint) = Endpoint::from_path(path) {
            return Self::Inference(endpoint);
        }
        match path {
            "/v1/models" => Self::Models,
            "/api/v1/session-leases" => Self::Leases,
            _ if path.strip_prefix("/v1/models/").is_some_and(|id| !id.is_empty()) => Self::Models,
            _ => Self::Nothing,
        }
    }

    fn label(self) -> EndpointLabel {
        match self {
            Self::Inference(endpoint) => endpoint.into(),
            Self::Models => EndpointLabel::Models,
            Self::Leases | Self::Nothing => EndpointLabel::Other,
        }
    }

    /// The dialect in which the client expects an error.
    fn dialect(self, parts: &Parts) -> Dialect {
        match self {
            Self::Inference(endpoint) => endpoint.dialect(),
            _ if parts.uri.path().starts_with("/v1/messages") || parts.headers.contains_key("anthropic-version") => Dialect::Messages,
            _ => Dialect::ChatCompletions,
        }
    }

    const fn method(self) -> Option<Method> {
        match self {
            Self::Inference(_) | Self::Leases => Some(Method::POST),
            Self::Models => Some(Method::GET),
            Self::Nothing => None,
        }
    }
}

/// Lives from the head of a request to the end of its answer.
struct Span {
    gateway: Arc<Gateway>,
    unfinished: Unfinished,
    label: EndpointLabel,
    started: Instant,
    /// The request's place among those that the gateway runs at once.
    slot: Option<RequestSlot>,
}

impl Drop for Span {
    fn drop(&mut self) {
        drop(self.slot.take());
        self.gateway.metrics().finished(self.label, self.started.elapsed().as_secs_f64());
    }
}

/// An answer, and what is needed to count it.
pub(super) struct Answered {
    /// The answer.
    pub response: Response<Body>,
    /// Who made it.
    pub origin: Origin,
    /// Position of the combo that was asked for.
    pub combo: Option<usize>,
}

async fn serve(worker: Arc<Worker>, unfinished: Unfinished, request: Request<Incoming>, head: Head) -> Response<Body> {
    let gateway = Arc::clone(&worker.gateway);
    let route = Route::of(request.uri().path());
    gateway.metrics().started();
    let mut span = Span { gateway: Arc::clone(&gateway), unfinished, label: route.label(), started: Instant::now(), slot: None };
    let id = answer::request_id();
    let (parts, body) = request.into_parts();
    let dialect = route.dialect(&parts);
    let last = parts.version == Version::HTTP_10 || head == Head::Last;
    let loaded = gateway.config();
    let answered = match accept(route, &parts, head, loaded.as_ref()) {
        Ok(loaded) => match prepare(&worker, Arc::clone(loaded), route, parts, body, &mut span).await {
            Ok(work) => Ok(work.run().await),
            Err(refusal) => Err(refusal),
        },
        Err(refusal) => {
            // A client that waits for `100 Continue` sends nothing: there is nothing to read.
            if !parts.headers.contains_key(EXPECT) && head != Head::Conflict {
                ingest::linger(body, span.unfinished.clone());
            }
            Err(refusal)
        }
    };
    let mut answered = answered.unwrap_or_else(|refusal| {
        let origin = refusal.origin;
        Answered { response: refusal.into_response(dialect), origin, combo: None }
    });
    if last {
        answered.response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    answer::stamp(answered.response.headers_mut(), &id);
    let status = answered.response.status().as_u16();
    count(&gateway, loaded.as_deref(), answered.combo, span.label, answered.origin, status);
    answered.response.map(|body| body.guarded(span))
}

fn count(gateway: &Gateway, loaded: Option<&Loaded>, combo: Option<usize>, label: EndpointLabel, origin: Origin, status: u16) {
    let counters = |loaded: &Loaded| {
        let counters = combo.and_then(|index| loaded.combo_counters.get(index)).unwrap_or(&loaded.direct_counters);
        counters.count(gateway.metrics(), label, origin, status);
    };
    match loaded {
        Some(loaded) => counters(loaded),
        None => RequestCounters::new("").count(gateway.metrics(), label, origin, status),
    }
}

/// What can be refused from the head alone.
fn accept<'a>(route: Route, parts: &Parts, head: Head, loaded: Option<&'a Arc<Loaded>>) -> Result<&'a Arc<Loaded>, Refusal> {
    if head == Head::Conflict || (parts.headers.contains_key(TRANSFER_ENCODING) && parts.headers.contains_key(CONTENT_LENGTH)) {
        let message = "the request has both transfer-encoding and content-length: two readers could disagree about where it ends";
        return Err(Refusal::new(400, "ambiguous_length", message).hopeless().close());
    }
    let shown = || parts.uri.path().chars().take(128).collect::<String>();
    match route.method() {
        None => Err(Refusal::new(404, "unknown_endpoint", format!("there is no {} {} here", parts.method, shown())).hopeless()),
        Some(method) if method != parts.method && !(method == Method::GET && parts.method == Method::HEAD) => {
            let message = format!("{} takes {method}, not {}", shown(), parts.method);
            Err(Refusal::new(405, "method_not_allowed", message).header(ALLOW, method.as_str()).hopeless())
        }
        Some(_) => loaded.ok_or_else(|| Refusal::new(503, "no_configuration", "the gateway has no configuration yet").retry_after(1)),
    }
}

/// Reads what a request asks for, and finds out what is to be done about it.
async fn prepare(
    worker: &Arc<Worker>,
    loaded: Arc<Loaded>,
    route: Route,
    parts: Parts,
    body: Incoming,
    span: &mut Span,
) -> Result<Work, Refusal> {
    let unfinished = span.unfinished.clone();
    let refuse = |body: Incoming, refusal: Refusal| {
        if !parts.headers.contains_key(EXPECT) {
            ingest::linger(body, unfinished.clone());
        }
        Err(refusal)
    };
    if let Route::Leases = route {
        let caller = match leases::authenticate(&loaded, &parts.headers) {
            Ok(caller) => caller,
            Err(refusal) => return refuse(body, refusal),
        };
        let held = ingest::read(body, MAX_LEASE_BODY, worker.gateway.buffers(), &unfinished).await?;
        return Box::pin(leases::answer(worker, &loaded, caller, &parts, &held.bytes)).await.map(Work::Done);
    }
    let caller = match loaded.keys.authenticate(&parts.headers, KeyScope::Inference) {
        Ok(caller) => caller,
        Err(error) => return refuse(body, Refusal::policy(error.status(), error.code(), error.to_string())),
    };
    if let Route::Models = route {
        ingest::linger(body, unfinished);
        return models::answer(&loaded, caller, &parts).map(Work::Done);
    }
    let Route::Inference(endpoint) = route else {
        return refuse(body, Refusal::new(404, "unknown_endpoint", "there is nothing here").hopeless());
    };
    let Some(slot) = worker.gateway.requests().enter() else {
        let message = "the gateway runs as many requests as gateway.maxConcurrentRequests allows";
        return refuse(body, Refusal::new(503, "admission_queue_full", message).retry_after(1));
    };
    span.slot = Some(slot);
    if let Err(refusal) = ingest::check_type(&parts.headers) {
        return refuse(body, refusal);
    }
    let limit = loaded.snapshot.settings.max_request_bytes;
    let mut elsewhere = Elsewhere::default();
    let held = elsewhere.during(ingest::read(body, limit, worker.gateway.buffers(), &unfinished)).await?;
    pipeline::prepare(worker, &loaded, caller, endpoint, parts, held, Clock { started: span.started, elsewhere }).await
}
