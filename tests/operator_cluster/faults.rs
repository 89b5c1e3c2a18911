//! A door between the operator and the API server: it notes what is asked, can hold back what watches say, and can fall silent altogether.

use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, Response};
use futures::{FutureExt, StreamExt};
use kube::Client;
use serde_json::Value;
use tokio::sync::watch;

/// The door; requests go through it with the rights of this process.
#[derive(Clone)]
pub struct Door {
    client: Client,
    held: watch::Sender<bool>,
    silent: watch::Sender<bool>,
    given_up: Arc<Mutex<Vec<(String, Duration)>>>,
    /// Writes whose path holds this text wait.
    writes_held: watch::Sender<Option<String>>,
    waiting: watch::Sender<u32>,
    calls: Arc<Mutex<Vec<Call>>>,
}

/// A request that was answered.
#[derive(Clone, Debug)]
pub struct Call {
    pub method: Method,
    pub path: String,
    pub query: String,
    pub content_type: String,
    /// What it carried; null for a request without a body.
    pub body: Value,
    pub status: u16,
}

impl Door {
    /// An open door, and a client that uses it.
    pub async fn open(client: Client) -> (Self, Client) {
        let door = Self {
            client,
            held: watch::Sender::new(false),
            writes_held: watch::Sender::new(None),
            waiting: watch::Sender::new(0),
            silent: watch::Sender::new(false),
            given_up: Arc::default(),
            calls: Arc::default(),
        };
        let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let routes = Router::new().fallback(pass).with_state(door.clone());
        tokio::spawn(async move { axum::serve(listener, routes).await });
        let mut config = kube::Config::new(url.parse().unwrap());
        config.default_retry = false;
        (door, Client::try_from(config).unwrap())
    }

    /// From now on watches say nothing (or again what they know).
    pub fn hold_watches(&self, hold: bool) {
        self.held.send_replace(hold);
    }

    /// From now on nothing is answered any more (or again): connections are accepted, requests are read, and that is all. Watches end.
    pub fn silence(&self, silent: bool) {
        self.silent.send_replace(silent);
    }

    /// Requests that were not answered, and how long the asker waited until he gave up.
    pub fn given_up(&self) -> Vec<(String, Duration)> {
        self.given_up.lock().unwrap().clone()
    }

    /// From now on writes whose path holds this text wait until they are let go.
    pub fn hold_writes(&self, path: Option<&str>) {
        self.writes_held.send_replace(path.map(str::to_owned));
    }

    /// Waits for a write that waits.
    pub async fn until_a_write_waits(&self) {
        self.waiting.subscribe().wait_for(|waiting| *waiting > 0).await.unwrap();
    }

    /// Everything that was asked and answered so far, except what only reads.
    pub fn written(&self) -> Vec<Call> {
        self.calls.lock().unwrap().iter().filter(|call| call.method != Method::GET).cloned().collect()
    }

    /// Status codes of the writes to a path that ends like this.
    pub fn writes(&self, path: &str) -> Vec<u16> {
        self.written().iter().filter(|call| call.path.ends_with(path)).map(|call| call.status).collect()
    }
}

/// Somebody who waits; when he gives up, it is noted for how long he did.
struct Waiting {
    door: Door,
    what: String,
    since: Instant,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.door.given_up.lock().unwrap().push((std::mem::take(&mut self.what), self.since.elapsed()));
    }
}

async fn pass(State(door): State<Door>, request: Request) -> Response<Body> {
    let (parts, body) = request.into_parts();
    if *door.silent.borrow() {
        let what = format!("{} {}", parts.method, parts.uri);
        let _waiting = Waiting { door, what, since: Instant::now() };
        return std::future::pending().await;
    }
    let is_watch = parts.uri.query().is_some_and(|q| q.contains("watch=true"));
    let mut onward = http::Request::builder().method(parts.method.clone()).uri(parts.uri.clone());
    for (name, value) in parts.headers.iter().filter(|(name, _)| !matches!(name.as_str(), "host" | "authorization")) {
        onward = onward.header(name, value);
    }
    let body = axum::body::to_bytes(body, 8 << 20).await.unwrap();
    let sent = serde_json::from_slice(&body).unwrap_or_default();
    if parts.method != Method::GET {
        let held = |path: &Option<String>| path.as_ref().is_some_and(|held| parts.uri.path().contains(held.as_str()));
        door.waiting.send_modify(|waiting| *waiting += u32::from(held(&door.writes_held.borrow())));
        let _ = door.writes_held.subscribe().wait_for(|path| !held(path)).await;
    }
    let answer = door.client.send(onward.body(kube::client::Body::from(body.to_vec())).unwrap()).await.unwrap();
    door.calls.lock().unwrap().push(Call {
        method: parts.method,
        path: parts.uri.path().to_owned(),
        query: parts.uri.query().unwrap_or_default().to_owned(),
        content_type: content_type(&parts.headers),
        body: sent,
        status: answer.status().as_u16(),
    });
    if !is_watch {
        return answer.map(Body::new);
    }
    answer.map(|body| {
        let (held, mut silent) = (door.held.subscribe(), door.silent.subscribe());
        let chunks = Body::new(body).into_data_stream().then(move |chunk| {
            let mut held = held.clone();
            async move {
                let _ = held.wait_for(|held| !held).await;
                chunk
            }
        });
        Body::from_stream(chunks.take_until(async move { silent.wait_for(|silent| *silent).await.is_ok() }.boxed()))
    })
}

fn content_type(headers: &HeaderMap) -> String {
    headers.get("content-type").and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned()
}
