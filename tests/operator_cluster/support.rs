//! An operator in this process against a real API server, and gateway pods that this process plays.

use std::collections::BTreeMap;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::Command;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{Namespace, Pod, Secret};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use omniroute::operator::leader::Timing;
use omniroute::operator::namespace::Settings;
use omniroute::operator::status::violations;
use omniroute::operator::{Config, run};
use omniroute::resilience::{Checkpoint, StateReport};
use omniroute::snapshot::Snapshot;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::OnceCell;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub use crate::eventually::eventually;

/// A namespace of a real cluster.
pub struct Cluster {
    pub client: Client,
    pub namespace: String,
}

static CRDS: OnceCell<()> = OnceCell::const_new();

impl Cluster {
    /// A fresh namespace, or nothing where there is no throw-away cluster (`e2e/cluster/with-cluster` sets CLUSTER_DIR).
    pub async fn open(namespace: &str) -> Option<Self> {
        if std::env::var_os("CLUSTER_DIR").is_none() {
            eprintln!("skipped: runs inside e2e/cluster/with-cluster");
            return None;
        }
        let client = client().await;
        CRDS.get_or_init(|| install_crds(client.clone())).await;
        let namespaces: Api<Namespace> = Api::all(client.clone());
        let object = serde_json::from_value(json!({"metadata": {"name": namespace}})).unwrap();
        namespaces.create(&PostParams::default(), &object).await.unwrap();
        Some(Self { client, namespace: namespace.to_owned() })
    }

    /// Applies documents of a YAML text, as a person would with kubectl.
    pub async fn apply(&self, yaml: &str) {
        for object in serde_saphyr::from_multiple::<Value>(yaml).unwrap() {
            let (kind, name) = (text(&object, "/kind"), text(&object, "/metadata/name"));
            let params = PatchParams::apply("person").force();
            self.objects(&kind).patch(&name, &params, &Patch::Apply(&object)).await.unwrap();
        }
    }

    /// Objects of a kind.
    pub fn objects(&self, kind: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &self.namespace, &resource(kind))
    }

    /// One object, if it exists.
    pub async fn get(&self, kind: &str, name: &str) -> Option<Value> {
        self.objects(kind).get_opt(name).await.unwrap().map(|o| serde_json::to_value(o).unwrap())
    }

    /// Merges a patch into an object, as another manager.
    pub async fn edit(&self, kind: &str, name: &str, patch: Value) {
        let params = PatchParams { field_manager: Some("person".to_owned()), ..PatchParams::default() };
        self.objects(kind).patch(name, &params, &Patch::Merge(patch)).await.unwrap();
    }

    /// The same for the status.
    pub async fn edit_status(&self, kind: &str, name: &str, patch: Value) {
        let params = PatchParams { field_manager: Some("person".to_owned()), ..PatchParams::default() };
        self.objects(kind).patch_status(name, &params, &Patch::Merge(patch)).await.unwrap();
    }

    pub async fn delete(&self, kind: &str, name: &str) {
        self.objects(kind).delete(name, &DeleteParams::background()).await.unwrap();
    }

    /// Waits until an object is as wanted; every version of its status that is seen on the way must keep the rules.
    pub async fn until(&self, kind: &str, name: &str, what: &str, within: Duration, good: impl Fn(&Value) -> bool) -> Value {
        let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
        let mut seen = watcher(self.objects(kind), config).default_backoff().applied_objects().boxed();
        let mut last = Value::Null;
        let wait = async {
            while let Some(object) = seen.try_next().await.unwrap() {
                last = serde_json::to_value(object).unwrap();
                check_rules(&last);
                if good(&last) {
                    return;
                }
            }
        };
        let arrived = tokio::time::timeout(within, wait).await;
        assert!(arrived.is_ok(), "{kind} {name}: {what} not within {within:?}; it is {last:#}");
        last
    }

    /// Waits until `Ready` has this status and reason.
    pub async fn until_ready(&self, kind: &str, name: &str, status: &str, reason: &str) -> Value {
        let what = format!("Ready={status}, {reason}");
        self.until(kind, name, &what, Duration::from_secs(20), |o| condition(o, "Ready") == (status.to_owned(), reason.to_owned())).await
    }

    /// The snapshot in the config Secret.
    pub async fn snapshot(&self) -> Option<Snapshot> {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        unpack(&secrets.get_opt("omniroute-gateway-config").await.unwrap()?)
    }

    /// Waits until the config Secret holds a snapshot that is as wanted.
    pub async fn until_snapshot(&self, what: &str, within: Duration, good: impl Fn(&Snapshot) -> bool) -> Snapshot {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        let config = watcher::Config::default().fields("metadata.name=omniroute-gateway-config");
        let mut seen = watcher(secrets, config).default_backoff().applied_objects().boxed();
        let wait = async {
            loop {
                let snapshot = seen.try_next().await.unwrap().as_ref().and_then(unpack);
                if let Some(snapshot) = snapshot.filter(|s| good(s)) {
                    return snapshot;
                }
            }
        };
        tokio::time::timeout(within, wait).await.unwrap_or_else(|_| panic!("{what} not within {within:?}"))
    }

    /// Resource versions of everything in the namespace that the operator may write.
    pub async fn versions(&self) -> BTreeMap<String, String> {
        let mut all = BTreeMap::new();
        for kind in KINDS.iter().map(|k| k.2).filter(|k| !matches!(*k, "Lease" | "Pod" | "Event")) {
            for object in self.objects(kind).list(&kube::api::ListParams::default()).await.unwrap() {
                let name = object.metadata.name.unwrap_or_default();
                all.insert(format!("{kind}/{name}"), object.metadata.resource_version.unwrap_or_default());
            }
        }
        all
    }

    /// Starts an operator for this namespace.
    pub fn operator(&self, identity: &str, lease: Duration) -> Running {
        self.operator_through(self.client.clone(), identity, lease)
    }

    /// Starts an operator for this namespace that uses this client.
    pub fn operator_through(&self, client: Client, identity: &str, lease: Duration) -> Running {
        Running::start(client, self.config(identity, lease))
    }

    /// An operator that lives in this namespace and serves it.
    pub fn config(&self, identity: &str, lease: Duration) -> Config {
        Config {
            settings: Settings {
                namespace: self.namespace.clone(),
                image: "localhost/none:1".to_owned(),
                pull_policy: "Never".to_owned(),
                environment: std::iter::empty().collect(),
                installation: format!("{}/omniroute-operator", self.namespace),
            },
            watch_namespaces: vec![self.namespace.clone()],
            management: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            election: Some(("omniroute-operator".to_owned(), Timing::of(lease))),
            identity: identity.to_owned(),
        }
    }

    /// Reasons of the events about an object of this kind.
    pub async fn events(&self, kind: &str) -> Vec<String> {
        let all = self.objects("Event").list(&kube::api::ListParams::default()).await.unwrap();
        let about = all.items.iter().filter(|e| e.data["regarding"]["kind"] == kind);
        about.map(|e| text(&e.data, "/reason")).collect()
    }

    /// Who holds the lease.
    pub async fn leader(&self) -> String {
        self.get("Lease", "omniroute-operator").await.map(|l| text(&l, "/spec/holderIdentity")).unwrap_or_default()
    }
}

/// A running operator.
pub struct Running {
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Running {
    /// Starts an operator.
    pub fn start(client: Client, config: Config) -> Self {
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let task = tokio::spawn(async move { run(config, client, stopped).await.unwrap() });
        Self { stop, task }
    }

    /// As SIGTERM does; answers how long it took.
    pub async fn terminate(self) -> Duration {
        let begun = Instant::now();
        self.stop.cancel();
        self.task.await.unwrap();
        begun.elapsed()
    }
}

/// A client that does not retry.
pub async fn client() -> Client {
    let mut config = kube::Config::infer().await.unwrap();
    config.default_retry = false;
    Client::try_from(config).unwrap()
}

/// The same with the rights of somebody else.
pub async fn client_as(user: &str) -> Client {
    let mut config = kube::Config::infer().await.unwrap();
    config.default_retry = false;
    config.headers.push((HeaderName::from_static("impersonate-user"), HeaderValue::from_str(user).unwrap()));
    Client::try_from(config).unwrap()
}

/// What kubectl prints; it is the one of the cluster.
pub fn kubectl(arguments: &[&str]) -> String {
    let output = Command::new("kubectl").args(arguments).current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
    assert!(output.status.success(), "kubectl {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The program that is tested: the one that cargo has built beside this, or another build of it.
pub fn binary() -> String {
    std::env::var("OMNIROUTE_BINARY").unwrap_or_else(|_| env!("CARGO_BIN_EXE_omniroute").to_owned())
}

/// An address of this machine that nobody listens at.
pub fn free_port() -> SocketAddr {
    std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap()
}

/// Status and body of a GET over a connection of its own.
pub async fn http_get(address: SocketAddr, path: &str, more: &str) -> (u16, String) {
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{more}\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let status = answer.split_whitespace().nth(1).unwrap().parse().unwrap();
    (status, answer.split_once("\r\n\r\n").unwrap().1.to_owned())
}

async fn install_crds(client: Client) {
    let crd = ApiResource::from_gvk(&GroupVersionKind::gvk("apiextensions.k8s.io", "v1", "CustomResourceDefinition"));
    let api: Api<DynamicObject> = Api::all_with(client, &crd);
    let mut files: Vec<_> = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/crds")).unwrap().map(|e| e.unwrap().path()).collect();
    files.retain(|f| f.extension().is_some_and(|e| e == "yaml"));
    assert_eq!(files.len(), 5);
    for file in files {
        let object: Value = serde_saphyr::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
        let name = text(&object, "/metadata/name");
        api.patch(&name, &PatchParams::apply("person").force(), &Patch::Apply(&object)).await.unwrap();
        let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
        let mut seen = watcher(api.clone(), config).default_backoff().applied_objects().boxed();
        while let Some(object) = seen.try_next().await.unwrap() {
            if condition(&serde_json::to_value(object).unwrap(), "Established").0 == "True" {
                break;
            }
        }
    }
}

const OURS: &str = "omniroute.dev";
const KINDS: [(&str, &str, &str, &str); 20] = [
    (OURS, "v1alpha1", "ResilienceSettings", "resiliencesettings"),
    (OURS, "v1alpha1", "Provider", "providers"),
    (OURS, "v1alpha1", "Connection", "connections"),
    (OURS, "v1alpha1", "Combo", "combos"),
    (OURS, "v1alpha1", "OperatorErrorRule", "operatorerrorrules"),
    ("", "v1", "Secret", "secrets"),
    ("", "v1", "ConfigMap", "configmaps"),
    ("", "v1", "Service", "services"),
    ("", "v1", "ServiceAccount", "serviceaccounts"),
    ("", "v1", "Pod", "pods"),
    ("events.k8s.io", "v1", "Event", "events"),
    ("apps", "v1", "Deployment", "deployments"),
    ("rbac.authorization.k8s.io", "v1", "Role", "roles"),
    ("rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings"),
    ("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets"),
    ("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies"),
    ("autoscaling", "v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers"),
    ("coordination.k8s.io", "v1", "Lease", "leases"),
    ("apps", "v1", "ReplicaSet", "replicasets"),
    ("", "v1", "Endpoints", "endpoints"),
];

fn resource(kind: &str) -> ApiResource {
    let (group, version, kind, plural) = KINDS.iter().find(|k| k.2 == kind).unwrap();
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural)
}

pub fn text(value: &Value, pointer: &str) -> String {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// Status and reason of a condition.
pub fn condition(object: &Value, type_: &str) -> (String, String) {
    let all = object.pointer("/status/conditions").and_then(Value::as_array).cloned().unwrap_or_default();
    all.iter().find(|c| c["type"] == type_).map(|c| (text(c, "/status"), text(c, "/reason"))).unwrap_or_default()
}

/// Holds a status against the rules of kstatus and Flux.
fn check_rules(object: &Value) {
    let observed = object.pointer("/status/observedGeneration").and_then(Value::as_i64).unwrap_or(-1);
    if !text(object, "/apiVersion").starts_with(OURS) || observed == -1 {
        return;
    }
    let generation = object.pointer("/metadata/generation").and_then(Value::as_i64).unwrap();
    let conditions: Vec<_> = serde_json::from_value(object["status"]["conditions"].clone()).unwrap();
    assert_eq!(violations(generation, observed, &conditions), Vec::<String>::new(), "{object:#}");
}

fn unpack(secret: &Secret) -> Option<Snapshot> {
    let mut json = Vec::new();
    flate2::read::GzDecoder::new(secret.data.as_ref()?.get("snapshot.json.gz")?.0.as_slice()).read_to_end(&mut json).unwrap();
    Some(Snapshot::from_json(&json).unwrap())
}

/// A gateway pod that this process plays: a Pod object without a node, and a server on a loopback address of its own.
#[derive(Clone)]
pub struct FakePod {
    pub name: String,
    ip: IpAddr,
    inner: Arc<Mutex<Inner>>,
}

struct Inner {
    state: StateReport,
    checkpoint: Checkpoint,
    token: String,
    asked: u64,
    mute: bool,
}

/// A loopback address that no other pod of this process has.
pub fn pod_ip() -> IpAddr {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    IpAddr::from([127, 7, 0, NEXT.fetch_add(1, Ordering::Relaxed)])
}

/// A Pod object as that of a ready gateway; whoever plays the pod listens at its address.
pub async fn create_pod(cluster: &Cluster, name: &str, ip: IpAddr) {
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let labels = json!({"app.kubernetes.io/name": "omniroute-gateway", "app.kubernetes.io/managed-by": "omniroute-operator"});
    let object = json!({
        "metadata": {"name": name, "labels": labels},
        // No scheduler takes it, so no kubelet does.
        "spec": {"schedulerName": "nobody", "containers": [{"name": "gateway", "image": "none"}]},
    });
    pods.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
    let status = json!({"status": {
        "phase": "Running", "podIP": ip.to_string(), "podIPs": [{"ip": ip.to_string()}],
        "conditions": [{"type": "Ready", "status": "True"}],
    }});
    pods.patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
}

impl FakePod {
    /// A ready pod that loads the delivered snapshot by itself, as a gateway does.
    pub async fn start(cluster: &Cluster, name: &str) -> Self {
        let ip = pod_ip();
        let secrets: Api<Secret> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
        let management = cluster
            .until("Secret", "omniroute-gateway-management", "minted", Duration::from_secs(10), |s| !text(s, "/data/token").is_empty())
            .await;
        let management: Secret = serde_json::from_value(management).unwrap();
        let token = String::from_utf8(management.data.unwrap()["token"].0.clone()).unwrap();
        let inner = Inner { state: StateReport::default(), checkpoint: Checkpoint::default(), token, asked: 0, mute: false };
        let pod = Self { name: name.to_owned(), ip, inner: Arc::new(Mutex::new(inner)) };
        pod.serve().await;
        let (loaded, first) = tokio::sync::oneshot::channel();
        tokio::spawn(pod.clone().load(secrets, loaded));
        first.await.unwrap();
        create_pod(cluster, name, ip).await;
        pod
    }

    async fn load(self, secrets: Api<Secret>, loaded: tokio::sync::oneshot::Sender<()>) {
        let mut loaded = Some(loaded);
        let config = watcher::Config::default().fields("metadata.name=omniroute-gateway-config");
        let mut seen = watcher(secrets, config).default_backoff().applied_objects().boxed();
        while let Some(Ok(secret)) = seen.next().await {
            let Some(snapshot) = unpack(&secret) else { continue };
            self.change(|state| {
                state.snapshot.hash = snapshot.hash().unwrap();
                state.fragments = snapshot.fragments.clone();
                for c in &snapshot.connections {
                    if !state.connections.iter().any(|s| s.name == c.name) {
                        state.connections.push(omniroute::resilience::ConnectionState {
                            name: c.name.clone(),
                            provider: c.provider.clone(),
                            ..Default::default()
                        });
                    }
                }
                state.connections.retain(|s| snapshot.connections.iter().any(|c| c.name == s.name));
                state.providers = snapshot
                    .providers
                    .iter()
                    .map(|p| omniroute::resilience::ProviderState { name: p.name.clone(), ..Default::default() })
                    .collect();
                for command in &snapshot.commands {
                    let verb = serde_json::to_value(command.command).unwrap();
                    let verb = if verb == "Reset" { "reset" } else { "clearCooldown" };
                    state.commands.insert(format!("{:?}/{}/{verb}", command.kind, command.name), command.value.clone());
                }
            });
            if let Some(loaded) = loaded.take() {
                let _ = loaded.send(());
            }
        }
    }

    async fn serve(&self) {
        let listener = tokio::net::TcpListener::bind((self.ip, 9090)).await.unwrap();
        let routes = Router::new().route("/state", get(state)).route("/checkpoint", get(checkpoint)).with_state(self.clone());
        tokio::spawn(async move { axum::serve(listener, routes).await });
    }

    /// Changes what it says.
    pub fn change(&self, change: impl FnOnce(&mut StateReport)) {
        let mut inner = self.inner.lock().unwrap();
        change(&mut inner.state);
        inner.state.version += 1;
    }

    /// Changes what it remembers.
    pub fn remember(&self, change: impl FnOnce(&mut Checkpoint)) {
        change(&mut self.inner.lock().unwrap().checkpoint);
        self.change(|_| {});
    }

    /// It stays ready, and tells nobody anything.
    pub fn mute(&self, mute: bool) {
        self.inner.lock().unwrap().mute = mute;
    }

    /// How often it was asked.
    pub fn asked(&self) -> u64 {
        self.inner.lock().unwrap().asked
    }

    fn is_allowed(&self, headers: &HeaderMap) -> bool {
        let (wanted, mute) = {
            let inner = self.inner.lock().unwrap();
            (format!("Bearer {}", inner.token), inner.mute)
        };
        !mute && headers.get("authorization").is_some_and(|v| v.as_bytes() == wanted.as_bytes())
    }
}

async fn state(State(pod): State<FakePod>, headers: HeaderMap) -> Response {
    if !pod.is_allowed(&headers) {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    let mut inner = pod.inner.lock().unwrap();
    inner.asked += 1;
    let etag = format!("\"{}\"", inner.state.version);
    if headers.get("if-none-match").is_some_and(|v| v.as_bytes() == etag.as_bytes()) {
        return StatusCode::NOT_MODIFIED.into_response();
    }
    ([("etag", etag)], axum::Json(inner.state.clone())).into_response()
}

async fn checkpoint(State(pod): State<FakePod>, headers: HeaderMap) -> Response {
    if !pod.is_allowed(&headers) {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    let mut all = pod.inner.lock().unwrap().checkpoint.clone();
    all.version = 1;
    // The time of the export moves with every answer and must not cause a write.
    all.exported_ms = i64::try_from(pod.asked()).unwrap();
    axum::Json(all).into_response()
}
