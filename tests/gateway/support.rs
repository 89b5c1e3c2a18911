//! What the gateway's tests share: snapshots built by hand, a scripted provider, a client that keeps everything it got.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use omniroute::gateway::Gateway;
use omniroute::gateway::server::{Running, ServerOptions, start};
use omniroute::gateway::store::Memory;
use omniroute::snapshot::{
    ApiKey, AuthMode, Combo, Connection, Dialect, KeyScope, Provider, SCHEMA_VERSION, Secret, Settings, Snapshot, Strategy, Target,
    TargetKind, hex,
};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::sync::watch;

/// What a scripted provider saw.
#[derive(Clone, Debug)]
pub struct Seen {
    pub path: String,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Seen {
    pub fn key(&self) -> &str {
        self.headers.get("authorization").and_then(|v| v.to_str().ok()).and_then(|v| v.strip_prefix("Bearer ")).unwrap_or_default()
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

/// One scripted answer.
#[derive(Clone, Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(&'static str, String)>,
    pub body: String,
    pub delay_ms: u64,
}

impl Reply {
    pub fn new(status: u16, body: impl ToString) -> Self {
        Self { status, headers: vec![("content-type", "application/json".to_owned())], body: body.to_string(), delay_ms: 0 }
    }

    pub fn header(mut self, name: &'static str, value: impl ToString) -> Self {
        self.headers.retain(|(n, _)| *n != name);
        self.headers.push((name, value.to_string()));
        self
    }

    pub fn after(mut self, delay_ms: u64) -> Self {
        self.delay_ms = delay_ms;
        self
    }

    pub fn error(status: u16, message: &str) -> Self {
        Self::new(status, json!({"error": {"message": message, "type": "x", "code": null}}))
    }

    pub fn chat(text: &str) -> Self {
        Self::new(
            200,
            json!({"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m",
                "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}}),
        )
    }

    pub fn chat_stream(text: &str) -> Self {
        let chunk = |delta: Value, finish: Value| {
            let frame = json!({"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m",
                "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]});
            format!("data: {frame}\n\n")
        };
        let body = format!(
            "{}{}{}data: [DONE]\n\n",
            chunk(json!({"role": "assistant", "content": ""}), Value::Null),
            chunk(json!({"content": text}), Value::Null),
            chunk(json!({}), json!("stop"))
        );
        Self::new(200, body).header("content-type", "text/event-stream")
    }
}

/// A provider that answers by the key it is called with: each key has a list of answers, the last of which repeats.
#[derive(Clone)]
pub struct Vendor {
    pub addr: SocketAddr,
    state: Arc<Mutex<VendorState>>,
    /// Number of calls so far.
    count: watch::Sender<usize>,
}

#[derive(Default)]
struct VendorState {
    replies: Vec<(String, VecDeque<Reply>)>,
    seen: Vec<Seen>,
}

impl Vendor {
    pub async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let vendor = Self { addr: listener.local_addr().unwrap(), state: Arc::default(), count: watch::Sender::new(0) };
        let serving = vendor.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let vendor = serving.clone();
                tokio::spawn(async move {
                    let service = hyper::service::service_fn(move |request| {
                        let vendor = vendor.clone();
                        async move { Ok::<_, Infallible>(vendor.answer(request).await) }
                    });
                    let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        vendor
    }

    pub fn base_url(&self) -> String {
        format!("http://{}/v1", self.addr)
    }

    /// Replaces the answers for a key.
    pub fn script(&self, key: &str, replies: impl IntoIterator<Item = Reply>) {
        let mut state = self.state.lock().unwrap();
        state.replies.retain(|(k, _)| k != key);
        state.replies.push((key.to_owned(), replies.into_iter().collect()));
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.state.lock().unwrap().seen.clone()
    }

    /// The keys of all calls so far, in order.
    pub fn calls(&self) -> Vec<String> {
        self.seen().iter().map(|seen| seen.key().to_owned()).collect()
    }

    /// Waits until so many calls have come.
    pub async fn called(&self, calls: usize) {
        let mut count = self.count.subscribe();
        let reached = tokio::time::timeout(std::time::Duration::from_secs(20), count.wait_for(|count| *count >= calls)).await;
        assert!(reached.is_ok(), "{calls} calls were expected, these came: {:?}", self.calls());
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let (parts, body) = request.into_parts();
        let Ok(body) = body.collect().await else { return Response::new(Full::default()) };
        let seen = Seen { path: parts.uri.path().to_owned(), headers: parts.headers, body: body.to_bytes() };
        let key = seen.key().to_owned();
        let stream = serde_json::from_slice::<Value>(&seen.body).is_ok_and(|body| body["stream"] == true);
        let reply = {
            let mut state = self.state.lock().unwrap();
            state.seen.push(seen);
            self.count.send_replace(state.seen.len());
            match state.replies.iter_mut().find(|(k, _)| *k == key) {
                Some((_, replies)) if replies.len() > 1 => replies.pop_front().unwrap(),
                Some((_, replies)) if !replies.is_empty() => replies[0].clone(),
                _ if stream => Reply::chat_stream(&key),
                _ => Reply::chat(&key),
            }
        };
        if reply.delay_ms > 0 {
            tokio::time::sleep(std::time::Duration::from_millis(reply.delay_ms)).await;
        }
        let mut response = Response::new(Full::new(Bytes::from(reply.body)));
        *response.status_mut() = StatusCode::from_u16(reply.status).unwrap();
        for (name, value) in reply.headers {
            response.headers_mut().insert(name, value.parse().unwrap());
        }
        response
    }
}

/// A snapshot of one key (`client`), one management key (`boss`) and whatever is added.
#[derive(Clone)]
pub struct Setup(pub Snapshot);

impl Setup {
    pub fn new() -> Self {
        let key = |name: &str, scope| ApiKey {
            name: name.to_owned(),
            sha256: hex(&Sha256::digest(name)),
            scopes: vec![scope],
            allowed_connections: None,
            allowed_models: None,
        };
        let settings = Settings {
            auth: AuthMode::ApiKey,
            max_request_bytes: 1 << 20,
            max_buffered_bytes: 1 << 26,
            drain_deadline_ms: 5_000,
            ..Settings::default()
        };
        let mut snapshot = Snapshot { schema_version: SCHEMA_VERSION, settings, ..Snapshot::default() };
        snapshot.api_keys = vec![key("boss", KeyScope::Management), key("client", KeyScope::Inference)];
        // Tests that expect an answer now do not want to wait for a timer.
        snapshot.settings.combo_cooldown_wait.enabled = false;
        snapshot.settings.wait_for_cooldown.enabled = false;
        Self(snapshot)
    }

    /// The accounts `a` and `b` of one provider behind the combo `assistant`.
    pub async fn two_accounts() -> (Vendor, Self) {
        let vendor = Vendor::start().await;
        let setup = Self::new().provider("one", &vendor.base_url()).connection("one", "a", 1).connection("one", "b", 2);
        (vendor, setup.combo("assistant", Strategy::Priority, &["one/m1"]))
    }

    pub fn provider(mut self, name: &str, base_url: &str) -> Self {
        let mut provider = Provider {
            name: name.to_owned(),
            base_url: base_url.to_owned(),
            dialects: vec![Dialect::ChatCompletions, Dialect::Responses, Dialect::Messages, Dialect::Embeddings],
            open_model_list: true,
            ..Provider::default()
        };
        provider.traits.catalog_id = name.to_owned();
        self.0.providers.push(provider);
        self.0.providers.sort_by(|a, b| a.name.cmp(&b.name));
        self
    }

    /// A connection whose name is also its credential.
    pub fn connection(mut self, provider: &str, name: &str, priority: i32) -> Self {
        self.0.connections.push(Connection {
            name: name.to_owned(),
            provider: provider.to_owned(),
            credential: Some(Secret::new(name)),
            credential_fingerprint: name.to_owned(),
            priority,
            weight: 1,
            ..Connection::default()
        });
        self.0.connections.sort_by(|a, b| a.name.cmp(&b.name));
        self
    }

    /// A combo of `provider/model` targets.
    pub fn combo(mut self, name: &str, strategy: Strategy, targets: &[&str]) -> Self {
        let target = |text: &&str| {
            let (provider, model) = text.split_once('/').unwrap();
            let kind = TargetKind::Model { provider: provider.to_owned(), model: model.to_owned(), connections: vec![] };
            Target { name: (*text).to_owned(), kind, weight: 1, fallback_only_on_quota_exhaustion: false, prompt: None }
        };
        self.0.combos.push(Combo {
            name: name.to_owned(),
            model_names: vec![name.to_owned()],
            strategy,
            targets: targets.iter().map(target).collect(),
            cooldown_wait: true,
            ..Combo::default()
        });
        self
    }

    pub fn change(mut self, change: impl FnOnce(&mut Snapshot)) -> Self {
        change(&mut self.0);
        self
    }

    /// A gateway on ports of its own.
    pub fn start(self) -> Served {
        self.start_with(|_| ())
    }

    /// The same with options of its own.
    pub fn start_with(self, change: impl FnOnce(&mut ServerOptions)) -> Served {
        let gateway = Gateway::new(Box::new(Memory)).unwrap();
        gateway.load(self.0, Vec::new()).unwrap();
        Served::start_with(gateway, change)
    }
}

/// A running gateway.
pub struct Served {
    pub gateway: Arc<Gateway>,
    pub running: Running,
}

impl Served {
    pub fn start(gateway: Arc<Gateway>) -> Self {
        Self::start_with(gateway, |_| ())
    }

    pub fn start_with(gateway: Arc<Gateway>, change: impl FnOnce(&mut ServerOptions)) -> Self {
        let local: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let mut options = ServerOptions::local(local, local);
        options.threads = std::num::NonZeroUsize::new(1);
        change(&mut options);
        let running = start(Arc::clone(&gateway), options).unwrap();
        Self { gateway, running }
    }

    /// Sends a chat request with the client's key.
    pub async fn chat(&self, model: &str) -> Got {
        self.post("/v1/chat/completions", &json!({"model": model, "messages": [{"role": "user", "content": "hi"}]})).await
    }

    pub async fn chat_stream(&self, model: &str) -> Got {
        self.post("/v1/chat/completions", &json!({"model": model, "stream": true, "messages": [{"role": "user", "content": "hi"}]})).await
    }

    /// Asks for exactly one upstream call.
    pub async fn only_once(&self, model: &str) -> Got {
        let body = json!({"model": model, "messages": []}).to_string();
        let request = request("POST", "/v1/chat/completions", "client").header("x-omniroute-fallback", "none");
        self.send(request.body(Full::new(Bytes::from(body))).unwrap()).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Got {
        self.send(request("POST", path, "client").body(Full::new(Bytes::from(body.to_string()))).unwrap()).await
    }

    pub async fn get(&self, path: &str) -> Got {
        self.send(request("GET", path, "client").body(Full::default()).unwrap()).await
    }

    pub async fn send(&self, request: Request<Full<Bytes>>) -> Got {
        call(self.running.listen_addr(), request).await
    }

    /// Asks the management port with the management key.
    pub async fn manage(&self, method: &str, path: &str, body: &str) -> Got {
        let request = request(method, path, "boss").body(Full::new(Bytes::from(body.to_owned()))).unwrap();
        call(self.running.management_addr(), request).await
    }

    /// One connection of `/state`.
    pub async fn connection(&self, name: &str) -> Value {
        let state = self.manage("GET", "/state", "").await.json();
        state["connections"].as_array().unwrap().iter().find(|c| c["name"] == name).unwrap().clone()
    }
}

pub fn request(method: &str, path: &str, key: &str) -> http::request::Builder {
    Request::builder().method(method).uri(path).header("authorization", format!("Bearer {key}")).header("content-type", "application/json")
}

/// One exchange on a connection of its own.
pub async fn call(addr: SocketAddr, mut request: Request<Full<Bytes>>) -> Got {
    let stream = tokio::net::TcpStream::connect(addr).await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    let driver = tokio::spawn(connection);
    request.headers_mut().insert("host", "gateway".parse().unwrap());
    let response = sender.send_request(request).await.unwrap();
    let (parts, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    drop(sender);
    let _ = driver.await;
    Got { status: parts.status.as_u16(), headers: parts.headers, body }
}

/// What a client got.
#[derive(Debug)]
pub struct Got {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Got {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|v| v.to_str().ok())
    }

    pub fn text(&self) -> String {
        String::from_utf8(self.body.to_vec()).unwrap()
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.text()))
    }

    /// The text of a chat answer.
    pub fn content(&self) -> String {
        assert_eq!(self.status, 200, "{}", self.text());
        self.json()["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
    }

    pub fn code(&self) -> String {
        self.json()["error"]["code"].as_str().unwrap_or_default().to_owned()
    }
}
