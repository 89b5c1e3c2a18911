//! Asks every gateway pod for its state, once per second, at no cost while nothing changes.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::metrics::Metrics;
use crate::resilience::{Checkpoint, StateReport};
use crate::snapshot::Secret;

/// Pause between two looks at a pod.
pub const INTERVAL: Duration = Duration::from_secs(1);
/// Longest wait for an answer.
pub const TIMEOUT: Duration = Duration::from_secs(1);
/// Pods asked at a time.
pub const CONCURRENCY: usize = 16;
/// Longest answer that is read: 2,000 connections with 32 lockouts each stay far below it.
pub const MAX_BYTES: usize = 16 << 20;
/// A pod that has not answered for this long is silent: what it knows is unknown (decisions 10.7).
pub const SILENCE: Duration = Duration::from_secs(10);

/// A gateway pod to ask.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Target {
    /// Namespace.
    pub namespace: String,
    /// Unique id of the pod: a successor of the same name is another one.
    pub uid: String,
    /// Where it listens.
    pub ip: IpAddr,
}

/// What is known of a pod.
#[derive(Clone, Debug)]
pub struct Observation {
    /// Its last answer.
    pub state: Arc<StateReport>,
    /// When it last answered, changed or not.
    pub at: Instant,
}

/// Where to ask and what to do with the answers.
pub trait Pods: Send + Sync {
    /// The pods there are.
    fn targets(&self) -> Vec<Target>;
    /// The token of a namespace's gateway.
    fn token(&self, namespace: &str) -> Option<Secret>;
    /// The state of a pod changed, or it answered again after a silence.
    fn changed(&self, namespace: &str);
}

#[derive(Debug, Default)]
struct Known {
    etag: Option<String>,
    observation: Option<Observation>,
    asking: bool,
    silent: bool,
    first_seen: Option<Instant>,
}

/// The observer; cheap to clone.
#[derive(Clone)]
pub struct Observer {
    shared: Arc<Shared>,
}

struct Shared {
    client: Client<HttpConnector, Empty<Bytes>>,
    port: u16,
    metrics: Arc<Metrics>,
    pods: Arc<dyn Pods>,
    known: Mutex<HashMap<String, Known>>,
    permits: Semaphore,
}

/// Why a pod did not answer.
#[derive(thiserror::Error, Debug)]
enum AskError {
    #[error("no answer within {} ms", TIMEOUT.as_millis())]
    Timeout,
    #[error("connecting: {0}")]
    Connect(#[from] hyper_util::client::legacy::Error),
    #[error("building the request: {0}")]
    Request(#[from] http::Error),
    #[error("status {0}")]
    Status(StatusCode),
    #[error("reading the answer: {0}")]
    Body(String),
    #[error("the answer is no state report: {0}")]
    Parse(#[from] serde_json::Error),
    #[error("the namespace has no management token yet")]
    NoToken,
}

enum Answer {
    Unchanged,
    Changed(Box<StateReport>, Option<String>),
}

impl Observer {
    /// Asks pods on their management `port`.
    #[must_use]
    pub fn new(pods: Arc<dyn Pods>, port: u16, metrics: Arc<Metrics>) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(TIMEOUT));
        connector.set_nodelay(true);
        let client =
            Client::builder(TokioExecutor::new()).pool_max_idle_per_host(1).pool_idle_timeout(Duration::from_secs(30)).build(connector);
        let known = Mutex::new(HashMap::new());
        Self { shared: Arc::new(Shared { client, port, metrics, pods, known, permits: Semaphore::new(CONCURRENCY) }) }
    }

    /// The last answer of a pod.
    #[must_use]
    pub fn get(&self, uid: &str) -> Option<Observation> {
        self.shared.known().get(uid).and_then(|k| k.observation.clone())
    }

    /// Whether a pod has been silent for [`SILENCE`] since it was first seen or last answered.
    #[must_use]
    pub fn is_silent(&self, uid: &str) -> bool {
        self.shared.known().get(uid).is_some_and(|k| k.silent)
    }

    /// The checkpoint of a pod.
    pub async fn checkpoint(&self, target: &Target) -> Option<Checkpoint> {
        let _permit = self.shared.permits.acquire().await.ok()?;
        let body = match self.shared.get(target, "/checkpoint", None).await {
            Ok((StatusCode::OK, _, body)) => body,
            Ok((status, ..)) => {
                tracing::warn!(namespace = %target.namespace, pod = %target.ip, %status, "a gateway pod did not tell its checkpoint");
                return None;
            }
            Err(error) => {
                tracing::warn!(namespace = %target.namespace, pod = %target.ip, %error, "a gateway pod did not tell its checkpoint");
                return None;
            }
        };
        Checkpoint::from_json(&body)
            .inspect_err(|error| tracing::warn!(namespace = %target.namespace, pod = %target.ip, %error, "a gateway pod's checkpoint"))
            .ok()
    }

    /// Asks until `stop`. A standby asks as well: it must know everything in the moment it takes over.
    pub async fn run(self, stop: CancellationToken) {
        let mut ticks = tokio::time::interval(INTERVAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = ticks.tick() => self.round(),
            }
        }
    }

    fn round(&self) {
        let targets = self.shared.pods.targets();
        let now = Instant::now();
        let mut ask = Vec::new();
        let mut fell_silent = HashSet::new();
        {
            let mut known = self.shared.known();
            let uids: HashSet<&str> = targets.iter().map(|t| t.uid.as_str()).collect();
            known.retain(|uid, _| uids.contains(uid.as_str()));
            let (mut reporting, mut silent, mut oldest) = (0, 0, Duration::ZERO);
            for target in &targets {
                let k = known.entry(target.uid.clone()).or_default();
                let last = k.observation.as_ref().map(|o| o.at).unwrap_or(*k.first_seen.get_or_insert(now));
                let age = now.saturating_duration_since(last);
                oldest = oldest.max(age);
                if age >= SILENCE {
                    silent += 1;
                    if !std::mem::replace(&mut k.silent, true) {
                        fell_silent.insert(target.namespace.clone());
                    }
                } else {
                    reporting += 1;
                }
                if !std::mem::replace(&mut k.asking, true) {
                    ask.push(target.clone());
                }
            }
            self.shared.metrics.pods(reporting, silent, oldest.as_secs_f64());
        }
        for namespace in fell_silent {
            self.shared.pods.changed(&namespace);
        }
        for target in ask {
            let shared = self.shared.clone();
            tokio::spawn(async move { shared.look(target).await });
        }
    }
}

impl Shared {
    fn known(&self) -> MutexGuard<'_, HashMap<String, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn look(&self, target: Target) {
        let Ok(_permit) = self.permits.acquire().await else { return };
        let etag = self.known().get(&target.uid).and_then(|k| k.etag.clone());
        let answer = self.ask(&target, etag).await;
        let mut changed = false;
        {
            let mut known = self.known();
            let Some(k) = known.get_mut(&target.uid) else { return };
            k.asking = false;
            match answer {
                Ok(answer) => {
                    self.metrics.observation(if matches!(answer, Answer::Unchanged) { "Unchanged" } else { "Changed" });
                    changed = std::mem::replace(&mut k.silent, false);
                    let now = Instant::now();
                    match answer {
                        Answer::Unchanged => {
                            if let Some(o) = k.observation.as_mut() {
                                o.at = now;
                            }
                        }
                        Answer::Changed(state, etag) => {
                            k.etag = etag;
                            changed |= k.observation.as_ref().is_none_or(|o| *o.state != *state);
                            k.observation = Some(Observation { state: Arc::new(*state), at: now });
                        }
                    }
                }
                Err(error) => {
                    self.metrics.observation("Failed");
                    tracing::debug!(namespace = %target.namespace, pod = %target.ip, %error, "a gateway pod did not tell its state");
                }
            }
        }
        if changed {
            self.pods.changed(&target.namespace);
        }
    }

    async fn ask(&self, target: &Target, etag: Option<String>) -> Result<Answer, AskError> {
        let (status, headers, body) = self.get(target, "/state", etag.as_deref()).await?;
        match status {
            StatusCode::NOT_MODIFIED => Ok(Answer::Unchanged),
            StatusCode::OK => {
                let etag = headers.get(header::ETAG).and_then(|v| v.to_str().ok()).map(str::to_owned);
                Ok(Answer::Changed(Box::new(serde_json::from_slice(&body)?), etag))
            }
            other => Err(AskError::Status(other)),
        }
    }

    async fn get(&self, target: &Target, path: &str, etag: Option<&str>) -> Result<(StatusCode, http::HeaderMap, Bytes), AskError> {
        let token = self.pods.token(&target.namespace).ok_or(AskError::NoToken)?;
        let host = std::net::SocketAddr::new(target.ip, self.port);
        let mut request = Request::get(format!("http://{host}{path}")).header(header::AUTHORIZATION, format!("Bearer {}", token.expose()));
        if let Some(etag) = etag {
            request = request.header(header::IF_NONE_MATCH, etag);
        }
        let request = request.body(Empty::new())?;
        let exchange = async {
            let response = self.client.request(request).await?;
            let (parts, body) = response.into_parts();
            let body = Limited::new(body, MAX_BYTES).collect().await.map_err(|e| AskError::Body(e.to_string()))?.to_bytes();
            Ok((parts.status, parts.headers, body))
        };
        tokio::time::timeout(TIMEOUT, exchange).await.map_err(|_| AskError::Timeout)?
    }
}
