//! What the demo plays on: two fake vendors, the gateway with the quickstart's manifests, and a client that keeps asking.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::HeaderMap;
use http_body_util::BodyExt;
use tokio::task::JoinHandle;

use super::DemoError;
use crate::cli::fake::{Answer, Match};
use crate::cli::fake::{FakeUpstream, Reply, Rule, Script};
use crate::compile::{Options, compile};
use crate::dial::tls::TlsConfigs;
use crate::gateway::server::{self, Running, ServerOptions};
use crate::gateway::store::Memory;
use crate::gateway::upstream::{Call, Client, Upstream};
use crate::gateway::{Gateway, clock};
use crate::manifest::{self, Source};
use crate::protocol::{Dialect, Endpoint};
use crate::snapshot::{Connection, Provider, Secret};

/// The manifests of the five-minute path, as they are shipped.
const QUICKSTART: &str = include_str!("../../../config/samples/quickstart.yaml");
/// The credentials in it.
pub(super) const KEY_A: &str = "sk-replace-me-a";
const CLIENT_KEY: &str = "client-key-replace-me";
/// Between two requests of the client.
const PACE: Duration = Duration::from_millis(150);

/// A request of the client, answered.
#[derive(Clone, Debug)]
pub(super) struct Served {
    pub status: u16,
    /// The whole answer arrived in good shape.
    pub good: bool,
    pub streamed: bool,
    /// `PROVIDER/MODEL`.
    pub target: String,
    pub connection: String,
    pub attempts: u32,
    pub took: Duration,
}

/// Everything that runs.
pub(super) struct Stage {
    pub openai: FakeUpstream,
    pub anthropic: FakeUpstream,
    pub gateway: Arc<Gateway>,
    pub address: SocketAddr,
    pub served: Arc<Mutex<Vec<Served>>>,
    pub started: Instant,
    _running: Running,
    traffic: JoinHandle<()>,
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.traffic.abort();
    }
}

impl Stage {
    pub async fn build() -> Result<Self, DemoError> {
        let openai = vendor("Hello from openai.").await?;
        let anthropic = vendor("Hello from anthropic.").await?;
        let gateway = Gateway::new(Box::new(Memory)).map_err(|e| DemoError::start("the gateway", e))?;
        let manifests = point_at(&point_at(QUICKSTART, "openai", &openai.base_url())?, "anthropic", &anthropic.base_url())?;
        load(&gateway, manifests)?;
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let running =
            server::start(Arc::clone(&gateway), ServerOptions::local(any, any)).map_err(|e| DemoError::start("the gateway", e))?;
        let address = running.listen_addr();
        let served = Arc::default();
        let traffic = tokio::spawn(keep_asking(caller(address)?, Arc::clone(&served)));
        Ok(Self { openai, anthropic, gateway, address, served, started: Instant::now(), _running: running, traffic })
    }

    /// All requests so far.
    pub fn served(&self) -> Vec<Served> {
        self.served.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

async fn vendor(text: &str) -> Result<FakeUpstream, DemoError> {
    let reply = Reply { text: Some(text.to_owned()), ..Reply::default() };
    let good = Answer { reply: Some(reply), ..Answer::default() };
    let script = Script { rules: vec![Rule::new("good", Match::default(), good)], ..Script::default() };
    FakeUpstream::start("127.0.0.1:0", script).await.map_err(|e| DemoError::start("a fake vendor", e))
}

/// The quickstart with the base URL of one provider added: the only change that it needs.
fn point_at(manifests: &str, preset: &str, base_url: &str) -> Result<String, DemoError> {
    let mut out = String::new();
    let mut found = false;
    for line in manifests.lines() {
        out.push_str(line);
        out.push('\n');
        let value = line.split('#').next().unwrap_or_default().trim();
        if value.strip_prefix("preset:").is_some_and(|v| v.trim() == preset) {
            let indent = line.get(..line.len() - line.trim_start().len()).unwrap_or_default();
            out.push_str(&format!("{indent}baseURL: {base_url}\n{indent}allowInsecureHTTP: true\n"));
            found = true;
        }
    }
    if found { Ok(out) } else { Err(DemoError::start("the quickstart", format!("it has no provider with the preset {preset}"))) }
}

fn load(gateway: &Gateway, manifests: String) -> Result<(), DemoError> {
    let parsed = manifest::parse(&[Source { name: "quickstart.yaml".to_owned(), text: manifests }]);
    if let Some(problem) = parsed.problems.first() {
        return Err(DemoError::start("the quickstart", problem));
    }
    let resources = parsed.resources.by_namespace().into_values().next().unwrap_or_default();
    let compiled = compile(&resources, &Options { now: clock::now(), ..Options::default() });
    if let Some(finding) = compiled.findings.first() {
        return Err(DemoError::start("the quickstart", format!("{} {}: {}", finding.kind, finding.name, finding.message)));
    }
    gateway.load(compiled.snapshot, Vec::new()).map_err(|e| DemoError::start("the gateway", e))
}

/// The client speaks to the gateway as to any provider.
fn caller(address: SocketAddr) -> Result<Upstream, DemoError> {
    let provider = Provider {
        name: "gateway".to_owned(),
        base_url: format!("http://{address}/v1"),
        dialects: vec![Dialect::ChatCompletions],
        ..Provider::default()
    };
    let connection = Connection { name: "client".to_owned(), credential: Some(Secret::new(CLIENT_KEY)), ..Connection::default() };
    Upstream::new(&provider, &connection, &TlsConfigs::default()).map_err(|e| DemoError::start("the client", e))
}

/// One request after the other, every second one streamed.
async fn keep_asking(gateway: Upstream, served: Arc<Mutex<Vec<Served>>>) {
    let client = Client::default();
    for streamed in [false, true].into_iter().cycle() {
        let answer = ask(&client, &gateway, streamed).await;
        served.lock().unwrap_or_else(PoisonError::into_inner).push(answer);
        tokio::time::sleep(PACE).await;
    }
}

async fn ask(client: &Client, gateway: &Upstream, streamed: bool) -> Served {
    let body = format!(r#"{{"model":"assistant","stream":{streamed},"messages":[{{"role":"user","content":"Who answers?"}}]}}"#);
    let headers = HeaderMap::new();
    let call = Call {
        endpoint: Endpoint::ChatCompletions,
        headers: &headers,
        body: Bytes::from(body).into(),
        response_start: Duration::from_secs(20),
        extra: None,
    };
    let began = Instant::now();
    let failed =
        Served { status: 0, good: false, streamed, target: String::new(), connection: String::new(), attempts: 0, took: Duration::ZERO };
    let Ok(response) = client.send(gateway, call).await else { return failed };
    let (head, body) = response.into_parts();
    let decision = head.headers.get("x-omniroute-decision").and_then(|v| v.to_str().ok()).unwrap_or_default();
    let part = |name: &str| decision.split(';').find_map(|p| p.trim().strip_prefix(name)?.strip_prefix('=')).unwrap_or_default().to_owned();
    let text = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    let whole = if streamed { text.ends_with(b"data: [DONE]\n\n") } else { memchr::memmem::find(&text, b"Hello from ").is_some() };
    Served {
        status: head.status.as_u16(),
        good: head.status.is_success() && whole,
        streamed,
        target: part("target"),
        connection: part("connection"),
        attempts: part("attempts").parse().unwrap_or(0),
        took: began.elapsed(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shipped_quickstart_takes_other_base_urls() {
        let one = point_at(QUICKSTART, "openai", "http://127.0.0.1:1/v1").expect("openai");
        assert!(one.contains("  baseURL: http://127.0.0.1:1/v1\n  allowInsecureHTTP: true\n"));
        assert!(point_at(QUICKSTART, "unknown", "x").is_err());
    }
}
