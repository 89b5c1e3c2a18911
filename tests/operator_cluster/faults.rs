//! A door between the operator and the API server that can hold back what watches say.

use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{Method, Response, StatusCode};
use futures::StreamExt;
use kube::Client;
use tokio::sync::watch;

/// The door; requests go through it with the rights of this process.
#[derive(Clone)]
pub struct Door {
    client: Client,
    held: watch::Sender<bool>,
    answers: Arc<Mutex<Vec<(Method, String, StatusCode)>>>,
}

impl Door {
    /// An open door, and a client that uses it.
    pub async fn open(client: Client) -> (Self, Client) {
        let door = Self { client, held: watch::Sender::new(false), answers: Arc::default() };
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

    /// Status codes of the writes to a path that ends like this.
    pub fn writes(&self, path: &str) -> Vec<u16> {
        let answers = self.answers.lock().unwrap();
        answers.iter().filter(|(method, p, _)| *method != Method::GET && p.ends_with(path)).map(|(.., status)| status.as_u16()).collect()
    }
}

async fn pass(State(door): State<Door>, request: Request) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let is_watch = parts.uri.query().is_some_and(|q| q.contains("watch=true"));
    let mut onward = http::Request::builder().method(parts.method.clone()).uri(parts.uri.clone());
    for (name, value) in parts.headers.iter().filter(|(name, _)| !matches!(name.as_str(), "host" | "authorization")) {
        onward = onward.header(name, value);
    }
    let body = axum::body::to_bytes(body, 8 << 20).await.unwrap();
    let answer = door.client.send(onward.body(kube::client::Body::from(body.to_vec())).unwrap()).await.unwrap();
    door.answers.lock().unwrap().push((parts.method, parts.uri.path().to_owned(), answer.status()));
    if !is_watch {
        return answer.map(Body::new);
    }
    answer.map(|body| {
        let held = door.held.subscribe();
        Body::from_stream(Body::new(body).into_data_stream().then(move |chunk| {
            let mut held = held.clone();
            async move {
                let _ = held.wait_for(|held| !held).await;
                chunk
            }
        }))
    })
}
