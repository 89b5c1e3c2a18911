//! The part of `ResilienceSettings` that describes the gateway's workload.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Affinity, TopologySpreadConstraint};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::common::{KEY_PATTERN, LocalRef, NAME_PATTERN, SecretKeyRef, rule, yes};
use super::duration::Duration;
use super::provider::CaBundle;

/// The workload: pods, service, limits, client authentication.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = [
    rule("replicas", "!has(self.replicas) || !has(self.autoscaling) || (self.replicas >= self.autoscaling.minReplicas && self.replicas <= self.autoscaling.maxReplicas)",
        "must lie between `autoscaling.minReplicas` and `autoscaling.maxReplicas`, or be left out: the autoscaler decides"),
]))]
pub struct Gateway {
    /// Pods. Default 1, or `autoscaling.minReplicas`; with `autoscaling` it is only where the fleet starts.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1000))]
    pub replicas: Option<i32>,
    /// Lets the number of pods follow their CPU load.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub autoscaling: Option<Autoscaling>,
    /// Image of the gateway. Without it: the one that the operator was installed with.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512), regex(pattern = r"^\S+$"))]
    pub image: Option<String>,
    /// Requests and limits of a pod. Without it: 100m CPU and 64Mi memory are requested, 512Mi memory is the limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,
    /// The Service in front of the pods.
    pub service: Service,
    /// How many pods must stay while nodes are drained. Without it: none is created for a single pod, otherwise one may be missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_disruption_budget: Option<DisruptionBudget>,
    /// Which traffic may reach the pods.
    pub network_policy: NetworkPolicy,
    /// Additions to the pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_template: Option<PodTemplate>,
    /// Requests in flight per pod; 0 = no cap. More are answered 503 with `Retry-After` before their body is read.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub max_concurrent_requests: i32,
    /// Largest request body in bytes.
    #[schemars(range(min = 1024, max = 1_073_741_824))]
    pub max_request_bytes: i64,
    /// All held request and answer bodies of a pod together, in bytes.
    #[schemars(range(min = 1024, max = 1_099_511_627_776_i64))]
    pub max_buffered_bytes: i64,
    /// Comments to clients while a stream is silent; `0s` = off.
    #[schemars(extend("x-duration" = ["1s", "10m", "0s"]))]
    pub heartbeat: Duration,
    /// End of a pod.
    pub drain: Drain,
    /// Whether clients need a key.
    pub auth: GatewayAuth,
}

impl Default for Gateway {
    fn default() -> Self {
        Self {
            replicas: None,
            autoscaling: None,
            image: None,
            resources: None,
            service: Service::default(),
            pod_disruption_budget: None,
            network_policy: NetworkPolicy::default(),
            pod_template: None,
            max_concurrent_requests: 5_000,
            max_request_bytes: 33_554_432,
            max_buffered_bytes: 268_435_456,
            heartbeat: "0s".into(),
            drain: Drain::default(),
            auth: GatewayAuth::default(),
        }
    }
}

/// Lets the number of pods follow their CPU load.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    rule("maxReplicas", "self.maxReplicas >= self.minReplicas", "must be at least `minReplicas`"),
]))]
pub struct Autoscaling {
    /// Fewest pods.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 1000))]
    pub min_replicas: i32,
    /// Most pods.
    #[schemars(range(min = 1, max = 1000))]
    pub max_replicas: i32,
    /// Wanted CPU load in percent of the requested CPU.
    #[serde(default = "seventy", rename = "targetCPUUtilization")]
    #[schemars(range(min = 1, max = 1000))]
    pub target_cpu_utilization: i32,
}

const fn one() -> i32 {
    1
}
const fn seventy() -> i32 {
    70
}

/// Requests and limits of a pod.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Resources {
    /// What a pod is promised, by resource (`cpu: 250m`).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 16, "x-values" = {"maxLength": 32, "pattern": QUANTITY_PATTERN}))]
    pub requests: BTreeMap<String, Quantity>,
    /// What a pod may use at most, by resource.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 16, "x-values" = {"maxLength": 32, "pattern": QUANTITY_PATTERN}))]
    pub limits: BTreeMap<String, Quantity>,
}

/// The pattern of quantities that the API server itself uses.
pub const QUANTITY_PATTERN: &str =
    r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$";

/// A quantity, written as a string or an integer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Quantity {
    /// `250m`.
    Text(String),
    /// `1`.
    Number(i64),
}

impl Quantity {
    /// The text that Kubernetes takes.
    #[must_use]
    pub fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Number(number) => number.to_string(),
        }
    }
}

impl JsonSchema for Quantity {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Quantity".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"x-kubernetes-int-or-string": true})
    }
}

/// The Service in front of the pods.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Service {
    /// How it can be reached.
    #[serde(rename = "type")]
    pub type_: ServiceType,
    /// Port of the proxy.
    #[schemars(range(min = 1, max = 65_535))]
    pub port: i32,
    /// Annotations of the Service.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 64, "x-values" = {"maxLength": 4096}))]
    pub annotations: BTreeMap<String, String>,
}

impl Default for Service {
    fn default() -> Self {
        Self { type_: ServiceType::default(), port: 80, annotations: BTreeMap::new() }
    }
}

/// How a Service can be reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub enum ServiceType {
    /// Inside the cluster.
    #[default]
    ClusterIP,
    /// On a port of every node.
    NodePort,
    /// Through a load balancer of the cloud.
    LoadBalancer,
}

/// How many pods must stay while nodes are drained.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    rule("", "has(self.minAvailable) != has(self.maxUnavailable)", "must have exactly one of `minAvailable` and `maxUnavailable`"),
]))]
pub struct DisruptionBudget {
    /// Pods that must stay.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1000))]
    pub min_available: Option<i32>,
    /// Pods that may be missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1000))]
    pub max_unavailable: Option<i32>,
}

/// Which traffic may reach the pods. What pods may reach is not limited.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NetworkPolicy {
    /// Creates the NetworkPolicy.
    #[serde(default = "yes")]
    pub enabled: bool,
    /// Namespaces whose pods may scrape `/metrics` on the management port, by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(min = 1, max = 63), regex(pattern = NAME_PATTERN)), extend("x-kubernetes-list-type" = "set"))]
    pub scraper_namespaces: Vec<String>,
}

impl Default for NetworkPolicy {
    fn default() -> Self {
        Self { enabled: true, scraper_namespaces: Vec::new() }
    }
}

/// End of a pod.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Drain {
    /// How long running requests may take after the pod was told to end.
    #[schemars(extend("x-duration" = ["1s", "1h"]))]
    pub deadline: Duration,
}

impl Default for Drain {
    fn default() -> Self {
        Self { deadline: "5m".into() }
    }
}

/// Whether clients need a key.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GatewayAuth {
    /// Who gets in.
    pub mode: AuthMode,
}

/// Who gets in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub enum AuthMode {
    /// Whoever has a key; without any key in the namespace nobody does.
    #[default]
    ApiKey,
    /// Everybody who reaches the port.
    None,
}

/// Where pods share what they know: cooldowns, lockouts, breakers, terminal states, session pins, leases. Caps on concurrent requests stay per pod.
/// While the store is away, requests are served with what each pod knows itself; only leases are refused.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StateStore {
    /// Redis or Valkey.
    pub redis: RedisStore,
}

/// Redis or Valkey.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RedisStore {
    /// Secret key with the URL: `redis://user:password@host:6379/0`, or `rediss://` for TLS.
    pub url_secret_ref: SecretKeyRef,
    /// TLS to the server; needs a URL with `rediss://`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<StoreTls>,
}

/// TLS to a state store.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StoreTls {
    /// Certificates to trust in place of the built-in roots.
    pub ca_bundle: CaBundle,
}

/// Additions to the pods; a change rolls them.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodTemplate {
    /// Annotations of the pods.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 64, "x-values" = {"maxLength": 4096}))]
    pub annotations: BTreeMap<String, String>,
    /// Labels of the pods beside those of the operator.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 64, "x-values" = {"maxLength": 63}))]
    pub labels: BTreeMap<String, String>,
    /// Secrets for pulling the image.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub image_pull_secrets: Vec<LocalRef>,
    /// Labels that a node must have.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 32, "x-values" = {"maxLength": 63}))]
    pub node_selector: BTreeMap<String, String>,
    /// Taints that the pods tolerate.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub tolerations: Vec<Toleration>,
    /// Affinity of the pods, as in a Pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "opaque_object")]
    pub affinity: Option<Affinity>,
    /// Spread of the pods, as in a Pod. Without it: over nodes and zones where possible.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "opaque_list")]
    pub topology_spread_constraints: Vec<TopologySpreadConstraint>,
    /// Priority class of the pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253), regex(pattern = NAME_PATTERN))]
    pub priority_class_name: Option<String>,
    /// Additional environment variables.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub extra_env: Vec<EnvVar>,
}

/// A taint that is tolerated.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Toleration {
    /// Key of the taint. Without it: every key, with `operator: Exists`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 317))]
    pub key: Option<String>,
    /// Whether the value matters. Default `Equal`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operator: Option<TolerationOperator>,
    /// Value of the taint.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub value: Option<String>,
    /// Effect of the taint. Without it: every effect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effect: Option<TaintEffect>,
    /// How long a NoExecute taint is tolerated. Without it: for ever.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 31_536_000))]
    pub toleration_seconds: Option<i64>,
}

/// Whether the value of a taint matters.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub enum TolerationOperator {
    /// It must be equal.
    Equal,
    /// It does not matter.
    Exists,
}

/// Effect of a taint.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub enum TaintEffect {
    /// New pods stay away.
    NoSchedule,
    /// New pods stay away where possible.
    PreferNoSchedule,
    /// Running pods leave.
    NoExecute,
}

/// An environment variable.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    rule("", "has(self.value) != has(self.secretKeyRef)", "must have exactly one of `value` and `secretKeyRef`"),
]))]
pub struct EnvVar {
    /// Name of the variable.
    #[schemars(length(min = 1, max = 128), regex(pattern = KEY_PATTERN))]
    pub name: String,
    /// Value of the variable; not for secrets.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub value: Option<String>,
    /// Secret key with the value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret_key_ref: Option<SecretKeyRef>,
}

/// A part of the Pod API that the API server checks when the operator applies the Deployment.
fn opaque_object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}

/// A list of such parts.
fn opaque_list(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "array", "maxItems": 16, "items": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}})
}
