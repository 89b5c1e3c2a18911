//! The operator as a process of its own: how it ends, what can be done without it, and what it writes into its log.

use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{Cluster, FakePod, condition, eventually, free_port, http_get, text};
use crate::token_endpoint::{AUTHORITY, TokenEndpoint};
use crate::{OBJECTS, QUICKSTART, now_ms};

/// `omniroute operator`, logging everything.
struct Operator {
    child: Child,
    management: SocketAddr,
    log: PathBuf,
}

impl Operator {
    fn start(cluster: &Cluster) -> Self {
        let log = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("operator-{}.log", cluster.namespace));
        let management = free_port();
        let child = Command::new(env!("CARGO_BIN_EXE_omniroute"))
            .args(["operator", "--namespace", &cluster.namespace, "--watch-namespaces", &cluster.namespace, "--lease-duration", "5s"])
            .args(["--management", &management.to_string(), "--gateway-image", "localhost/none:1", "--log-format", "json"])
            .env("OMNIROUTE_LOG", "trace")
            .stderr(File::create(&log).unwrap())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Self { child, management, log }
    }

    /// As the kubelet does; answers how it ended, and how long that took.
    async fn terminate(mut self) -> (ExitStatus, Duration) {
        let begun = Instant::now();
        let told = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status().unwrap();
        assert!(told.success());
        let mut ended = None;
        while ended.is_none() {
            assert!(begun.elapsed() < Duration::from_secs(30), "it does not end");
            tokio::time::sleep(Duration::from_millis(20)).await;
            ended = self.child.try_wait().unwrap();
        }
        (ended.unwrap(), begun.elapsed())
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn leads(lease: &Value) -> bool {
    text(lease, "/spec/holderIdentity").starts_with("omniroute-operator_")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_ends_well_with_and_without_the_lease_and_nobody_needs_it_to_delete() {
    let Some(cluster) = Cluster::open("op-ends").await else { return };
    cluster.apply(QUICKSTART).await;
    let within = Duration::from_secs(20);
    let limit = Duration::from_secs(10);
    let operator = Operator::start(&cluster);
    let answered = |o: &Value| o["status"]["observedGeneration"] == o["metadata"]["generation"];
    cluster.until("Combo", "assistant", "answered", within, answered).await;
    let (status, took) = operator.terminate().await;
    assert!(status.code() == Some(0) && took < limit, "{status} after {took:?}");
    assert_eq!(cluster.leader().await, "", "the lease is given back");

    let operator = Operator::start(&cluster);
    cluster.until("Lease", "omniroute-operator", "taken", within, leads).await;
    cluster.edit("Lease", "omniroute-operator", json!({"spec": {"holderIdentity": "thief", "leaseDurationSeconds": 600}})).await;
    let lost = || async { cluster.events("Lease").await.contains(&"LeaderLost".to_owned()) };
    eventually("the loss is told", within, || async { lost().await }).await;
    let (status, took) = operator.terminate().await;
    assert!(status.code() == Some(0) && took < limit, "{status} after {took:?}");
    assert_eq!(cluster.leader().await, "thief");

    // No operator runs now.
    for (kind, name) in OBJECTS {
        cluster.delete(kind, name).await;
        eventually(&format!("{kind} {name} is gone"), Duration::from_secs(2), || async { cluster.get(kind, name).await.is_none() }).await;
    }
}

/// Begins every token, key and password of the test below.
const CANARY: &str = "canary-7f3c";

/// An account that is refreshed, one that is refused by an endpoint that repeats what it was sent, and one behind a proxy that is not there.
fn accounts(endpoint: &TokenEndpoint) -> String {
    let connection = |name: &str, url: &str, more: &str| {
        format!(
            r#"
---
apiVersion: omniroute.dev/v1alpha1
kind: Connection
metadata: {{name: {name}}}
spec: {{providerRef: {{name: p}}, credentials: {{oauth: {{secretRef: {{name: {name}}}, tokenURL: "{url}", clientID: app}}}}{more}}}
---
apiVersion: v1
kind: Secret
metadata: {{name: {name}}}
stringData:
  accessToken: {CANARY}-{name}-access
  refreshToken: {CANARY}-{name}-refresh
  clientSecret: {CANARY}-{name}-client
  expiresAt: "{}"
"#,
            now_ms() - 1_000
        )
    };
    let url = endpoint.url();
    let authority = json!(AUTHORITY);
    format!(
        r#"
apiVersion: omniroute.dev/v1alpha1
kind: ResilienceSettings
metadata: {{name: default}}
spec: {{gateway: {{replicas: 0}}}}
---
apiVersion: omniroute.dev/v1alpha1
kind: Provider
metadata: {{name: p}}
spec: {{baseURL: "https://api.example/v1", dialects: [Messages], authClass: OAuth, tls: {{caBundle: {{configMapRef: {{name: ca, key: ca.crt}}}}}}}}
---
apiVersion: v1
kind: ConfigMap
metadata: {{name: ca}}
data: {{ca.crt: {authority}}}
"#
    ) + &connection("good", &url, "")
        + &connection("dead", &url, "")
        + &connection("proxied", &url, &format!(r#", proxyURL: "http://user:{CANARY}-proxy@127.0.0.1:1""#))
}

#[tokio::test(flavor = "multi_thread")]
async fn neither_tokens_nor_the_passwords_of_proxies_are_in_logs_statuses_events_or_metrics() {
    let Some(cluster) = Cluster::open("op-canary").await else { return };
    let endpoint = TokenEndpoint::start(&format!("{CANARY}-good-refresh"), 3_600).await.tagged(&format!("{CANARY}-"));
    cluster.apply(&accounts(&endpoint)).await;
    let operator = Operator::start(&cluster);
    let within = Duration::from_secs(30);
    let refreshed = |o: &Value| o["data"].get("refreshedAt").is_some();
    cluster.until("Secret", "omniroute-oauth-good", "refreshed", within, refreshed).await;
    cluster.until("Secret", "omniroute-oauth-dead", "refused", within, |o| o["data"].get("refused").is_some()).await;
    // A finding about what is accepted is told with it.
    let _pod = FakePod::start(&cluster, "pod-1").await;
    let told = |o: &Value| o["status"]["conditions"].to_string().contains("cannot be refreshed");
    let dead = cluster.until("Connection", "dead", "told", within, told).await;
    assert_eq!(condition(&dead, "Stalled").0, "", "a vendor's refusal is no mistake in the configuration");
    let log = || std::fs::read_to_string(&operator.log).unwrap();
    let failed = |log: &str| log.contains("tokens could not be refreshed") && log.contains("connecting to the proxy 127.0.0.1:1");
    eventually("the proxy is missed", within, || async { failed(&log()) }).await;

    let mut places = vec![("the log", log()), ("the metrics", http_get(operator.management, "/metrics", "").await.1)];
    assert!(places[0].1.contains("tokens refreshed") && places[1].1.contains("oauth_refreshes_total"), "there is something to search");
    for kind in ["ResilienceSettings", "Provider", "Connection", "Event", "ConfigMap", "Deployment"] {
        for object in cluster.objects(kind).list(&kube::api::ListParams::default()).await.unwrap() {
            let mut object = serde_json::to_value(object).unwrap();
            // There its owner wrote it.
            object["spec"].as_object_mut().map(|spec| spec.remove("proxyURL"));
            places.push((kind, object.to_string()));
        }
    }
    for (place, text) in places {
        let at = text.find(CANARY);
        assert!(at.is_none(), "{place}: …{}", &text[at.unwrap_or(0).saturating_sub(300)..][..300]);
    }
    assert!(endpoint.seen().iter().any(|form| form.contains(&format!("{CANARY}-good-refresh"))), "the endpoint saw it");
    let (status, _) = operator.terminate().await;
    assert_eq!(status.code(), Some(0));
}
