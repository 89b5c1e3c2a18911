//! The operator with 2,000 Connections and 200 Combos. Prints what it measures; run it with a release build (or OMNIROUTE_BINARY):
//! `e2e/cluster/with-cluster cargo test --offline --release --test operator_cluster -- --ignored --nocapture scale`

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use futures::StreamExt;
use kube::api::{ListParams, Patch, PatchParams};
use omniroute::api::time::EpochMs;
use omniroute::resilience::ConnectionPhase;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::{Cluster, FakePod, condition, eventually, text};

const CONNECTIONS: usize = 2_000;
const COMBOS: usize = 200;
const MANAGEMENT: &str = "127.0.0.1:19199";

struct Operator(Child);

impl Operator {
    /// A process of its own, so that its memory can be read.
    fn start(namespace: &str) -> Self {
        let binary = std::env::var("OMNIROUTE_BINARY").unwrap_or_else(|_| env!("CARGO_BIN_EXE_omniroute").to_owned());
        let mut command = Command::new(binary);
        command.args(["operator", "--namespace", namespace, "--watch-namespaces", namespace, "--management", MANAGEMENT]);
        command.args(["--gateway-image", "localhost/none:1"]).env("OMNIROUTE_LOG", "warn").stderr(Stdio::inherit());
        Self(command.spawn().unwrap())
    }

    fn memory_mb(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0.id())).unwrap();
        let line = status.lines().find(|l| l.starts_with("VmRSS")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
    }

    fn cpu_seconds(&self) -> f64 {
        cpu_seconds(self.0.id())
    }

    /// The sum of the series that begin like this.
    async fn metric(series: &str) -> u64 {
        let Ok(mut stream) = tokio::net::TcpStream::connect(MANAGEMENT).await else { return 0 };
        stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        text.lines().filter(|l| l.starts_with(series)).filter_map(|l| l.rsplit(' ').next()?.parse::<u64>().ok()).sum()
    }

    /// All status writes so far.
    async fn status_writes() -> u64 {
        Self::metric("omniroute_operator_status_writes_total").await
    }

    /// Whether it believes that everything is ready, and has said so.
    async fn is_done() -> bool {
        let ready = |kind: &str| format!("omniroute_operator_objects{{kind=\"{kind}\",ready=\"True\"}}");
        Self::metric(&ready("Connection")).await == CONNECTIONS as u64
            && Self::metric(&ready("Combo")).await == COMBOS as u64
            && Self::metric("omniroute_operator_status_queue_depth").await == 0
    }
}

/// Processor time of a process; the kernel counts it in hundredths of a second.
fn cpu_seconds(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<f64> = stat.rsplit(')').next().unwrap().split_whitespace().filter_map(|f| f.parse().ok()).collect();
    // After the state, which is a letter: utime and stime are the 11th and 12th numbers.
    (fields[10] + fields[11]) / 100.0
}

/// The processes of the control plane that status writes cost: API server and etcd.
fn control_plane_seconds() -> f64 {
    let run = std::path::PathBuf::from(std::env::var_os("CLUSTER_DIR").unwrap()).join("run");
    let pid = |name: &str| std::fs::read_to_string(run.join(format!("{name}.pid"))).unwrap().trim().parse().unwrap();
    ["kube-apiserver", "etcd"].into_iter().map(|name| cpu_seconds(pid(name))).sum()
}

/// Processes that want a processor, which tells how much a figure is worth.
fn load() -> String {
    std::fs::read_to_string("/proc/loadavg").unwrap().split(' ').next().unwrap().to_owned()
}

impl Drop for Operator {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn create(cluster: &Cluster) {
    cluster
        .apply(
            r#"
apiVersion: omniroute.dev/v1alpha1
kind: ResilienceSettings
metadata: {name: default}
spec: {gateway: {replicas: 0}}
---
apiVersion: omniroute.dev/v1alpha1
kind: Provider
metadata: {name: openai}
spec: {preset: openai}
"#,
        )
        .await;
    let data: serde_json::Map<String, Value> = (0..CONNECTIONS).map(|i| (format!("k{i}"), json!(format!("sk-{i:08}")))).collect();
    let mut objects = vec![("Secret", json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "llm"}, "stringData": data}))];
    let object = |kind: &str, name: String, spec: Value| json!({"apiVersion": "omniroute.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec});
    for i in 0..CONNECTIONS {
        let spec =
            json!({"providerRef": {"name": "openai"}, "credentials": {"apiKey": {"secretRef": {"name": "llm", "key": format!("k{i}")}}}});
        objects.push(("Connection", object("Connection", format!("c{i}"), spec)));
    }
    for i in 0..COMBOS {
        let spec = json!({"targets": [{"provider": "openai", "model": "gpt-5.2"}, {"provider": "openai", "model": "gpt-5-mini"}]});
        objects.push(("Combo", object("Combo", format!("m{i}"), spec)));
    }
    let params = PatchParams::apply("person");
    futures::stream::iter(objects)
        .for_each_concurrent(32, |(kind, object)| {
            let (api, params) = (cluster.objects(kind), params.clone());
            async move {
                api.patch(&text(&object, "/metadata/name"), &params, &Patch::Apply(&object)).await.unwrap();
            }
        })
        .await;
}

async fn ready(cluster: &Cluster, kind: &str) -> usize {
    let list = cluster.objects(kind).list(&ListParams::default()).await.unwrap();
    list.items.iter().filter(|o| condition(&serde_json::to_value(o).unwrap(), "Ready").0 == "True").count()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a benchmark of some minutes"]
async fn scale() {
    let Some(cluster) = Cluster::open("op-scale").await else { return };
    create(&cluster).await;
    println!("load before: {} on {} processors", load(), std::thread::available_parallelism().unwrap());
    let begun = Instant::now();
    let control_plane = control_plane_seconds();
    let operator = Operator::start(&cluster.namespace);
    let pod = FakePod::start(&cluster, "pod-1").await;
    eventually("everything is ready", Duration::from_secs(120), || async {
        // Listing 2,000 objects costs the API server more than the operator does: only when it is worth it.
        Operator::is_done().await && ready(&cluster, "Connection").await == CONNECTIONS && ready(&cluster, "Combo").await == COMBOS
    })
    .await;
    println!("cold start to all ready: {:?} (goal < 15 s)", begun.elapsed());
    println!(
        "processor time for it: operator {:.1} s, API server and etcd {:.1} s; load after: {}",
        operator.cpu_seconds(),
        control_plane_seconds() - control_plane,
        load()
    );
    println!("status writes for it: {}", Operator::status_writes().await);
    println!("memory: {} MB (goal < 150)", operator.memory_mb());

    let mut times = Vec::new();
    for i in 0..20 {
        let model = format!("gpt-bench-{i}");
        let begun = Instant::now();
        cluster.edit("Combo", "m7", json!({"spec": {"targets": [{"provider": "openai", "model": model}]}})).await;
        cluster
            .until_snapshot("the edit", Duration::from_secs(10), |s| {
                s.combos.iter().any(|c| c.name == "m7" && format!("{:?}", c.targets).contains(&model))
            })
            .await;
        times.push(begun.elapsed());
    }
    times.sort();
    println!("one change in the config Secret: median {:?}, worst of 20 {:?} (goal < 1 s p99)", times[10], times[19]);

    // Rest is the absence of events, and how much of it is the subject.
    tokio::time::sleep(Duration::from_secs(8)).await;
    let (before, writes) = (cluster.versions().await, Operator::status_writes().await);
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert_eq!(cluster.versions().await, before, "zero writes at rest");
    println!("status writes in 20 s at rest: {}", Operator::status_writes().await - writes);

    let writes = Operator::status_writes().await;
    let storm = Instant::now();
    let mut level = 0;
    while storm.elapsed() < Duration::from_secs(60) {
        level += 1;
        pod.change(|state| {
            for c in state.connections.iter_mut().take(50) {
                c.state = ConnectionPhase::Cooling;
                c.reason = Some("RateLimitExceeded".into());
                c.until = Some(EpochMs(crate::now_ms() + 3_000 + i64::from(level % 10) * 100));
                c.backoff_level = level;
            }
        });
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let rate = (Operator::status_writes().await - writes) as f64 / storm.elapsed().as_secs_f64();
    println!("status writes per second in a storm on 50 connections: {rate:.2} (goal < 5)");
    println!("memory after it: {} MB", operator.memory_mb());
    assert!(rate < 5.0);
}
