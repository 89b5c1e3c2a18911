//! The operator with 2,000 Connections and 200 Combos, a real gateway, and a storm of errors. Prints what it measures: `scripts/scale`.

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use kube::api::{ListParams, Patch, PatchParams};
use omniroute::api::time::EpochMs;
use omniroute::classify::{Attempt, RuleSet, classify};
use omniroute::resilience::Ledger;
use omniroute::snapshot::Snapshot;
use serde_json::{Value, json};

use crate::gateways::{CLIENT, Follows, Gateway};
use crate::support::{Cluster, FakePod, binary, condition, eventually, http_get, text};

const CONNECTIONS: usize = 2_000;
const COMBOS: usize = 200;
const MANAGEMENT: &str = "127.0.0.1:19199";
/// Changes that are timed.
const CHANGES: usize = 100;
/// Connections that a storm is about, errors of each per tick, and the tick: 10,000 errors per second.
const STORM: (usize, u64, Duration) = (50, 20, Duration::from_millis(100));

struct Operator(Child);

impl Operator {
    /// A process of its own, so that its memory can be read.
    fn start(namespace: &str) -> Self {
        let mut command = Command::new(binary());
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
        if tokio::net::TcpStream::connect(MANAGEMENT).await.is_err() {
            return 0;
        }
        let (_, text) = http_get(MANAGEMENT.parse().unwrap(), "/metrics", "").await;
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
    let head = r#"
apiVersion: omniroute.dev/v1alpha1
kind: ResilienceSettings
metadata: {name: default}
spec:
  gateway: {replicas: 0}
  # So short that the storm can go on.
  connectionCooldown: {apiKey: {baseCooldown: 80ms, maxBackoffSteps: 0}}
---
apiVersion: omniroute.dev/v1alpha1
kind: Provider
metadata: {name: openai}
spec: {preset: openai}
"#;
    cluster.apply(&[head, CLIENT].concat()).await;
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

/// How long each of some changes takes until a client of the gateway sees it.
async fn changes(cluster: &Cluster, gateway: &Gateway) -> Vec<Duration> {
    let mut times = Vec::new();
    for i in 0..CHANGES {
        let name = format!("changed-{i}");
        let begun = Instant::now();
        cluster.edit("Combo", "m7", json!({"spec": {"modelNames": [&name]}})).await;
        let wanted = format!("\"{name}\"");
        while !gateway.models().await.1.contains(&wanted) {
            assert!(begun.elapsed() < Duration::from_secs(10), "{name}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        times.push(begun.elapsed());
    }
    times.sort();
    times
}

/// One tick of a storm: what waited for the end of a cooldown starts at once, and all of it is rate limited. Answers how many errors that were.
fn tick(ledger: &Ledger, snapshot: &Snapshot, rules: &RuleSet, now: EpochMs) -> u64 {
    let mut errors = 0;
    for connection in snapshot.connections.iter().take(STORM.0) {
        let Some(cell) = ledger.connection(&connection.name) else { continue };
        let provider = snapshot.providers.iter().find(|p| p.name == connection.provider).unwrap();
        let permits: Vec<_> = (0..STORM.1).filter_map(|_| ledger.begin(&cell, now).ok()).collect();
        let Some(history) = permits.first().map(|permit| permit.history(Some("gpt-5.2"), now)) else { continue };
        let attempt = Attempt {
            provider: &provider.traits,
            model: Some("gpt-5.2"),
            status: 429,
            headers: &[],
            body: b"{\"error\":{\"message\":\"Rate limit reached\"}}",
            transport: None,
            via_proxy: false,
        };
        let verdict = classify(&attempt, &history, rules);
        errors += permits.len() as u64;
        for permit in permits {
            ledger.failure(permit, Some("gpt-5.2"), 429, &verdict, now, 0.0);
        }
    }
    errors
}

/// A minute of errors; answers errors and status writes per second.
async fn storm(pod: &FakePod, snapshot: &Snapshot) -> (f64, f64) {
    let (ledger, rules) = (Arc::new(Ledger::new()), RuleSet::new(&[], &[], &[]));
    ledger.configure(snapshot, EpochMs(crate::now_ms()));
    let (written, begun, mut errors) = (Operator::status_writes().await, Instant::now(), 0);
    let mut clock = tokio::time::interval(STORM.2);
    while begun.elapsed() < Duration::from_secs(60) {
        clock.tick().await;
        let now = EpochMs(crate::now_ms());
        errors += tick(&ledger, snapshot, &rules, now);
        let report = ledger.report(now);
        pod.change(|state| (state.providers, state.connections) = (report.providers, report.connections));
    }
    let seconds = begun.elapsed().as_secs_f64();
    (errors as f64 / seconds, (Operator::status_writes().await - written) as f64 / seconds)
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
    // One gateway is real, the other one will be in a storm.
    let (gateway, pod) = tokio::join!(Gateway::start(&cluster, "pod-1", Follows::Secret), FakePod::start(&cluster, "pod-2"));
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

    let times = changes(&cluster, &gateway).await;
    println!(
        "one change until a client of the gateway sees it: median {:?}, p99 {:?}, worst of {CHANGES} {:?} (goal < 1 s p99)",
        times[CHANGES / 2],
        times[CHANGES * 99 / 100 - 1],
        times[CHANGES - 1]
    );

    // Rest is the absence of events, and how much of it is the subject.
    tokio::time::sleep(Duration::from_secs(8)).await;
    let (before, writes) = (cluster.versions().await, Operator::status_writes().await);
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert_eq!(cluster.versions().await, before, "zero writes at rest");
    println!("status writes in 20 s at rest: {}", Operator::status_writes().await - writes);

    let (errors, rate) = storm(&pod, &cluster.snapshot().await.unwrap()).await;
    println!("a storm of {errors:.0} errors per second on {} connections: {rate:.2} status writes per second (goal < 5)", STORM.0);
    println!("memory after it: {} MB", operator.memory_mb());
    assert!(errors > 9_000.0, "the storm was none");
    assert!(rate < 5.0);
}
