//! The load: slices of requests and streams against each proxy in turn.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use http::{Method, Request};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::BenchError;
use super::cores::OneCore;
use super::subject::{CLIENT_KEY, Child, Subject};
use super::upstream::IDLE_MARK;

/// What is measured, and for how long.
pub(super) struct Plan {
    pub slice: Duration,
    pub rounds: usize,
    pub idle_streams: usize,
}

/// The figures of one proxy; medians over the rounds.
#[derive(Clone, Debug)]
pub(super) struct Figures {
    pub name: &'static str,
    /// Processor time of one request, µs, at 32 connections.
    pub cpu_per_request: f64,
    /// Requests per second at 32 connections.
    pub rps: f64,
    /// Median latency on one connection with load, upstream and proxy on one core, µs; or why they could not be held there.
    pub p50: Result<f64, String>,
    /// The same with the cores left to the scheduler, µs.
    pub p50_free: f64,
    /// 99th percentile at 128 connections, µs.
    pub p99: f64,
    /// Processor time of one stream, µs, at 64 streams.
    pub cpu_per_stream: f64,
    /// Streams per second at 64 streams.
    pub streams: f64,
    /// Memory of an idle stream, bytes.
    pub memory_per_stream: f64,
    /// From the start of the process until it listened, ms.
    pub cold_start: f64,
}

#[derive(Default)]
struct Samples {
    cpu_per_request: Vec<f64>,
    rps: Vec<f64>,
    p50: Vec<Result<f64, String>>,
    p50_free: Vec<f64>,
    p99: Vec<f64>,
    cpu_per_stream: Vec<f64>,
    streams: Vec<f64>,
}

pub(super) async fn run(plan: &Plan, upstream: &Child, subjects: &[Subject]) -> Result<Vec<Figures>, BenchError> {
    let mut samples: Vec<Samples> = subjects.iter().map(|_| Samples::default()).collect();
    for subject in subjects {
        slice(subject, 32, false, plan.slice / 4).await?;
    }
    for _ in 0..plan.rounds {
        for (subject, samples) in subjects.iter().zip(&mut samples) {
            let many = slice(subject, 32, false, plan.slice).await?;
            samples.cpu_per_request.push(many.cpu_each());
            samples.rps.push(many.per_second());
            samples.p50_free.push(slice(subject, 1, false, plan.slice / 2).await?.percentile(50));
            samples.p50.push(p50_on_one_core(subject, upstream, plan.slice / 2).await?);
            samples.p99.push(slice(subject, 128, false, plan.slice).await?.percentile(99));
            let streams = slice(subject, 64, true, plan.slice).await?;
            samples.cpu_per_stream.push(streams.cpu_each());
            samples.streams.push(streams.per_second());
        }
    }
    let mut figures = Vec::new();
    for (subject, mut samples) in subjects.iter().zip(samples) {
        figures.push(Figures {
            name: subject.name,
            cpu_per_request: median(&mut samples.cpu_per_request),
            rps: median(&mut samples.rps),
            // One that was taken elsewhere would not be the same figure.
            p50: samples.p50.into_iter().collect::<Result<Vec<_>, _>>().map(|mut all| median(&mut all)),
            p50_free: median(&mut samples.p50_free),
            p99: median(&mut samples.p99),
            cpu_per_stream: median(&mut samples.cpu_per_stream),
            streams: median(&mut samples.streams),
            memory_per_stream: idle(subject, plan.idle_streams).await?,
            cold_start: subject.child.started_in.as_secs_f64() * 1000.0,
        });
    }
    Ok(figures)
}

/// The inner result says why nothing could be held on a core.
async fn p50_on_one_core(subject: &Subject, upstream: &Child, length: Duration) -> Result<Result<f64, String>, BenchError> {
    let processes = [vec![std::process::id()], upstream.processes(), subject.child.processes()].concat();
    let _held = match OneCore::hold(&processes) {
        Ok(held) => held,
        Err(why) => return Ok(Err(why)),
    };
    Ok(Ok(slice(subject, 1, false, length).await?.percentile(50)))
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// What a slice brought.
struct Slice {
    latencies: Vec<u32>,
    took: Duration,
    cpu: f64,
}

impl Slice {
    fn cpu_each(&self) -> f64 {
        self.cpu * 1e6 / self.latencies.len().max(1) as f64
    }

    fn per_second(&self) -> f64 {
        self.latencies.len() as f64 / self.took.as_secs_f64().max(1e-9)
    }

    fn percentile(mut self, p: usize) -> f64 {
        self.latencies.sort_unstable();
        let last = self.latencies.len().saturating_sub(1);
        self.latencies.get(last * p / 100).map_or(0.0, |l| f64::from(*l))
    }
}

async fn slice(subject: &Subject, connections: usize, stream: bool, length: Duration) -> Result<Slice, BenchError> {
    let failed = |why: String| BenchError::Load { what: subject.name.to_owned(), why };
    let before = subject.cpu()?;
    let began = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..connections {
        tasks.spawn(ask(subject.child.address, stream, began + length));
    }
    let mut latencies = Vec::new();
    while let Some(done) = tasks.join_next().await {
        latencies.extend(done.map_err(|e| failed(e.to_string()))?.map_err(failed)?);
    }
    let took = began.elapsed();
    Ok(Slice { latencies, took, cpu: subject.cpu()? - before })
}

type Sender = SendRequest<Full<Bytes>>;

async fn connect(address: SocketAddr) -> Result<Sender, String> {
    let stream = TcpStream::connect(address).await.map_err(|e| e.to_string())?;
    stream.set_nodelay(true).map_err(|e| e.to_string())?;
    let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|e| e.to_string())?;
    tokio::spawn(connection);
    Ok(sender)
}

fn request(stream: bool, text: &str) -> Result<Request<Full<Bytes>>, String> {
    let body = format!(
        r#"{{"model":"assistant","stream":{stream},"messages":[{{"role":"system","content":"You are a helpful assistant."}},{{"role":"user","content":"{text}"}}]}}"#
    );
    Request::builder()
        .method(Method::POST)
        .uri("/v1/chat/completions")
        .header(HOST, "gateway")
        .header(CONTENT_TYPE, "application/json")
        .header(AUTHORIZATION, format!("Bearer {CLIENT_KEY}"))
        .body(Full::new(Bytes::from(body)))
        .map_err(|e| e.to_string())
}

/// Asks on one connection until `end`, and answers the latencies in µs.
async fn ask(address: SocketAddr, stream: bool, end: Instant) -> Result<Vec<u32>, String> {
    let mut sender = connect(address).await?;
    let mut latencies = Vec::with_capacity(4096);
    let text = "word ".repeat(100);
    while Instant::now() < end {
        let began = Instant::now();
        let request = request(stream, &text)?;
        sender.ready().await.map_err(|e| e.to_string())?;
        let response = sender.send_request(request).await.map_err(|e| e.to_string())?;
        if response.status() != 200 {
            return Err(format!("it answered {}", response.status()));
        }
        let mut body = response.into_body();
        let mut last = Bytes::new();
        while let Some(frame) = body.frame().await {
            if let Ok(data) = frame.map_err(|e| e.to_string())?.into_data() {
                last = data;
            }
        }
        if stream && !last.ends_with(b"data: [DONE]\n\n") {
            return Err("a stream did not come to its end".to_owned());
        }
        latencies.push(u32::try_from(began.elapsed().as_micros()).unwrap_or(u32::MAX));
    }
    Ok(latencies)
}

/// Opens streams that say two words and fall silent; answers the memory that each one costs.
async fn idle(subject: &Subject, count: usize) -> Result<f64, BenchError> {
    let failed = |why: String| BenchError::Load { what: subject.name.to_owned(), why };
    if count == 0 {
        return Ok(0.0);
    }
    let before = subject.memory()?;
    let mut open = Vec::with_capacity(count);
    for _ in 0..count {
        let mut sender = connect(subject.child.address).await.map_err(failed)?;
        let response = sender.send_request(request(true, IDLE_MARK).map_err(failed)?).await.map_err(|e| failed(e.to_string()))?;
        let mut body = response.into_body();
        if body.frame().await.is_none() {
            return Err(failed("an idle stream ended".to_owned()));
        }
        open.push((sender, body));
    }
    let after = subject.memory()?;
    Ok(after.saturating_sub(before) as f64 / count as f64)
}
