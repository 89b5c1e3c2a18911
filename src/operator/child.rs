//! The objects that the operator makes, and what it remembers of those that exist.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::snapshot::hex;

/// Kinds of children.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ChildKind {
    /// Identity of the gateway pods.
    ServiceAccount,
    /// What that identity may do: read its config.
    Role,
    /// Binds the two.
    RoleBinding,
    /// The config Secret and the management token.
    Secret,
    /// The checkpoint.
    ConfigMap,
    /// The proxy and management ports.
    Service,
    /// Who may reach them.
    NetworkPolicy,
    /// The gateway pods.
    Deployment,
    /// How many may be evicted at once.
    PodDisruptionBudget,
    /// Scales the Deployment.
    HorizontalPodAutoscaler,
}

impl ChildKind {
    /// All kinds in the order in which they are applied.
    pub const ALL: [Self; 10] = [
        Self::ServiceAccount,
        Self::Role,
        Self::RoleBinding,
        Self::Secret,
        Self::ConfigMap,
        Self::Service,
        Self::NetworkPolicy,
        Self::Deployment,
        Self::PodDisruptionBudget,
        Self::HorizontalPodAutoscaler,
    ];

    /// The kind as manifests spell it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.identity().2
    }

    /// Group, version, kind and plural.
    #[must_use]
    pub fn resource(self) -> ApiResource {
        let (group, version, kind, plural) = self.identity();
        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural)
    }

    const fn identity(self) -> (&'static str, &'static str, &'static str, &'static str) {
        match self {
            Self::ServiceAccount => ("", "v1", "ServiceAccount", "serviceaccounts"),
            Self::Role => ("rbac.authorization.k8s.io", "v1", "Role", "roles"),
            Self::RoleBinding => ("rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings"),
            Self::Secret => ("", "v1", "Secret", "secrets"),
            Self::ConfigMap => ("", "v1", "ConfigMap", "configmaps"),
            Self::Service => ("", "v1", "Service", "services"),
            Self::NetworkPolicy => ("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies"),
            Self::Deployment => ("apps", "v1", "Deployment", "deployments"),
            Self::PodDisruptionBudget => ("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets"),
            Self::HorizontalPodAutoscaler => ("autoscaling", "v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers"),
        }
    }

    /// Lists whose elements may also come from others (injected sidecars, environment, ports); elements are found by content.
    /// Every other list is one value.
    fn shares_list(self, field: &str) -> bool {
        match self {
            Self::Deployment => matches!(
                field,
                "containers"
                    | "initContainers"
                    | "env"
                    | "ports"
                    | "volumes"
                    | "volumeMounts"
                    | "topologySpreadConstraints"
                    | "imagePullSecrets"
                    | "ownerReferences"
            ),
            Self::Service => matches!(field, "ports" | "ownerReferences"),
            _ => field == "ownerReferences",
        }
    }
}

/// A child as it should be.
#[derive(Clone, PartialEq, Debug)]
pub struct Child {
    /// Its kind.
    pub kind: ChildKind,
    /// Its name.
    pub name: String,
    /// The whole intent: apiVersion, kind, metadata and content.
    pub body: Value,
}

/// A child as the API server has it; what is large or secret is kept as digests.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Live {
    /// Unique id of the object.
    pub uid: String,
    /// Version of the object.
    pub resource_version: String,
    /// Who controls it.
    pub controller: Option<OwnerReference>,
    /// Marked for deletion.
    pub deleting: bool,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
    /// The object without managed fields, status and values of `data`.
    pub content: Value,
    /// Status, of a Deployment only.
    pub status: Option<Value>,
}

/// Annotation with the digest of the intent that was applied last. It tells that a field was dropped from the intent, which the
/// object itself cannot.
pub const ANNOTATION_APPLIED: &str = "omniroute.dev/applied";

impl Child {
    /// Builds a child from a typed object, adds the digest of the intent.
    ///
    /// # Errors
    /// If the object cannot be represented in JSON.
    pub fn new(kind: ChildKind, name: &str, object: &impl serde::Serialize) -> serde_json::Result<Self> {
        let mut body = serde_json::to_value(object)?;
        let digest = digest(&body);
        if let Some(annotations) = body.pointer_mut("/metadata").and_then(Value::as_object_mut) {
            let annotations = annotations.entry("annotations").or_insert_with(|| json!({}));
            if let Some(map) = annotations.as_object_mut() {
                map.insert(ANNOTATION_APPLIED.to_owned(), Value::String(digest));
            }
        }
        Ok(Self { kind, name: name.to_owned(), body })
    }

    /// The digest of the intent.
    #[must_use]
    pub fn digest(&self) -> &str {
        self.body.pointer("/metadata/annotations").and_then(|a| a.get(ANNOTATION_APPLIED)).and_then(Value::as_str).unwrap_or_default()
    }

    /// Whether a Deployment would get another image.
    #[must_use]
    pub fn has_another_image(&self, live: &Live) -> bool {
        let image = |content: &Value| content.pointer("/spec/template/spec/containers/0/image").cloned();
        image(&live.content) != image(&self.body)
    }

    /// Whether `live` already is what this child says: same intent applied before, and no field of ours has drifted.
    #[must_use]
    pub fn is_satisfied_by(&self, live: &Live) -> bool {
        if live.annotations.get(ANNOTATION_APPLIED).map(String::as_str) != Some(self.digest()) {
            return false;
        }
        let mut wanted = self.body.clone();
        digest_data(&mut wanted);
        drop_type(&mut wanted);
        covers(self.kind, "", &live.content, &wanted)
    }
}

impl Live {
    /// Keeps what is needed of an object.
    #[must_use]
    pub fn of(kind: ChildKind, object: DynamicObject) -> Self {
        let meta = object.metadata.clone();
        let mut content = serde_json::to_value(object).unwrap_or_default();
        let mut status = None;
        if let Some(map) = content.as_object_mut() {
            let removed = map.remove("status");
            status = if kind == ChildKind::Deployment { removed } else { None };
            if let Some(meta) = map.get_mut("metadata").and_then(Value::as_object_mut) {
                meta.remove("managedFields");
            }
        }
        digest_data(&mut content);
        drop_type(&mut content);
        Self {
            uid: meta.uid.unwrap_or_default(),
            resource_version: meta.resource_version.unwrap_or_default(),
            controller: meta.owner_references.unwrap_or_default().into_iter().find(|o| o.controller == Some(true)),
            deleting: meta.deletion_timestamp.is_some(),
            annotations: meta.annotations.unwrap_or_default(),
            content,
            status,
        }
    }
}

/// Hex SHA-256 (32 characters) of a value's JSON; maps are sorted by `serde_json`.
fn digest(value: &Value) -> String {
    let mut text = hex(&Sha256::digest(value.to_string()));
    text.truncate(32);
    text
}

/// Replaces the values of `data` and `binaryData` by digests, so that neither a secret nor a megabyte stays in memory.
fn digest_data(object: &mut Value) {
    for field in ["data", "binaryData"] {
        if let Some(Value::Object(map)) = object.get_mut(field) {
            for value in map.values_mut() {
                *value = Value::String(digest(value));
            }
        }
    }
}

/// Items of a list carry neither apiVersion nor kind, watch events do.
fn drop_type(object: &mut Value) {
    if let Some(map) = object.as_object_mut() {
        map.remove("apiVersion");
        map.remove("kind");
    }
}

/// Whether every field of `wanted` is in `live` with the same value.
fn covers(kind: ChildKind, field: &str, live: &Value, wanted: &Value) -> bool {
    match (live, wanted) {
        (Value::Object(live), Value::Object(wanted)) => wanted.iter().all(|(key, value)| match live.get(key) {
            Some(live) => covers(kind, key, live, value),
            None => is_nothing(value),
        }),
        (Value::Array(live), Value::Array(wanted)) if kind.shares_list(field) => {
            wanted.iter().all(|value| live.iter().any(|live| covers(kind, field, live, value)))
        }
        (Value::Array(live), Value::Array(wanted)) => {
            live.len() == wanted.len() && live.iter().zip(wanted).all(|(live, value)| covers(kind, field, live, value))
        }
        (Value::String(live), Value::String(wanted)) => live == wanted || (is_quantity(live) && same_quantity(live, wanted)),
        _ => live == wanted,
    }
}

/// The API server leaves out what is empty.
fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(a) => a.is_empty(),
        Value::Object(m) => m == &Map::new(),
        _ => false,
    }
}

fn is_quantity(text: &str) -> bool {
    text.bytes().next().is_some_and(|b| b.is_ascii_digit())
}

/// `0.5` and `500m` are the same CPU: the API server writes the shorter form.
fn same_quantity(a: &str, b: &str) -> bool {
    matches!((milli(a), milli(b)), (Some(a), Some(b)) if a == b)
}

fn milli(text: &str) -> Option<u128> {
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let factor: u128 = match unit {
        "m" => 1,
        "" => 1_000,
        "k" => 1_000_000,
        "M" => 1_000_000_000,
        "G" => 1_000_000_000_000,
        "T" => 1_000_000_000_000_000,
        "Ki" => 1_000 << 10,
        "Mi" => 1_000 << 20,
        "Gi" => 1_000 << 30,
        "Ti" => 1_000 << 40,
        _ => return None,
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if fraction.len() > 9 {
        return None;
    }
    let scale = 10u128.pow(u32::try_from(fraction.len()).ok()?);
    let digits: u128 = format!("{whole}{fraction}").parse().ok()?;
    digits.checked_mul(factor).map(|v| v / scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn child(kind: ChildKind, content: Value) -> Child {
        let mut body = json!({"apiVersion": "v1", "kind": "X", "metadata": {"name": "x", "labels": {"a": "b"}}});
        for (key, value) in content.as_object().into_iter().flatten() {
            body[key] = value.clone();
        }
        Child::new(kind, "x", &body).unwrap()
    }

    fn live(kind: ChildKind, body: &Value) -> Live {
        Live::of(kind, serde_json::from_value(body.clone()).unwrap())
    }

    /// The object as an API server would answer it: defaults added, our fields as they are.
    fn stored(child: &Child) -> Value {
        let mut body = child.body.clone();
        body["metadata"]["uid"] = json!("u1");
        body["metadata"]["resourceVersion"] = json!("7");
        body["metadata"]["managedFields"] = json!([{"manager": "x", "operation": "Apply"}]);
        body
    }

    #[test]
    fn what_the_server_and_others_add_is_no_drift() {
        let c = child(
            ChildKind::Deployment,
            json!({"spec": {"template": {"spec": {"containers": [{"name": "gateway", "resources": {"requests": {"cpu": "0.5", "memory": "1024Mi"}}, "env": [{"name": "A", "value": "1"}]}]}}, "x": []}}),
        );
        let mut object = stored(&c);
        object["status"] = json!({"readyReplicas": 1});
        object["metadata"]["annotations"]["deployment.kubernetes.io/revision"] = json!("1");
        object["spec"]["replicas"] = json!(7);
        object["spec"].as_object_mut().unwrap().remove("x");
        let containers = object.pointer_mut("/spec/template/spec/containers").unwrap().as_array_mut().unwrap();
        containers[0]["terminationMessagePath"] = json!("/dev/termination-log");
        containers[0]["resources"]["requests"] = json!({"cpu": "500m", "memory": "1Gi"});
        containers[0]["env"].as_array_mut().unwrap().insert(0, json!({"name": "INJECTED", "value": "1"}));
        containers.insert(0, json!({"name": "sidecar"}));
        let l = live(ChildKind::Deployment, &object);
        assert!(c.is_satisfied_by(&l));
        assert_eq!(l.status, Some(json!({"readyReplicas": 1})));
        assert!(l.content.pointer("/metadata/managedFields").is_none());
    }

    #[test]
    fn drift_of_our_fields_is_seen() {
        let c = child(ChildKind::Deployment, json!({"spec": {"template": {"spec": {"containers": [{"name": "gateway", "image": "a"}]}}}}));
        let good = stored(&c);
        for (pointer, value) in [
            ("/spec/template/spec/containers/0/image", json!("b")),
            ("/spec/template/spec/containers", json!([])),
            ("/metadata/labels/a", json!("c")),
            ("/metadata/annotations/omniroute.dev~1applied", json!("old")),
        ] {
            let mut bad = good.clone();
            *bad.pointer_mut(pointer).unwrap() = value;
            assert!(!c.is_satisfied_by(&live(ChildKind::Deployment, &bad)), "{pointer}");
        }
        assert!(c.is_satisfied_by(&live(ChildKind::Deployment, &good)));
    }

    #[test]
    fn lists_of_a_role_are_one_value() {
        let c = child(ChildKind::Role, json!({"rules": [{"verbs": ["get"]}]}));
        let mut wider = stored(&c);
        wider["rules"].as_array_mut().unwrap().push(json!({"verbs": ["delete"]}));
        assert!(!c.is_satisfied_by(&live(ChildKind::Role, &wider)), "an added rule is repaired");
    }

    #[test]
    fn a_dropped_field_changes_the_digest() {
        let with = child(ChildKind::Service, json!({"spec": {"a": 1, "b": 2}}));
        let without = child(ChildKind::Service, json!({"spec": {"a": 1}}));
        assert!(!without.is_satisfied_by(&live(ChildKind::Service, &stored(&with))));
    }

    #[test]
    fn secret_values_are_kept_as_digests_only() {
        let c = child(ChildKind::Secret, json!({"data": {"token": "c2VjcmV0"}}));
        let l = live(ChildKind::Secret, &stored(&c));
        assert!(c.is_satisfied_by(&l));
        assert!(!format!("{l:?}").contains("c2VjcmV0"));
        let mut edited = stored(&c);
        edited["data"]["token"] = json!("b3RoZXI=");
        assert!(!c.is_satisfied_by(&live(ChildKind::Secret, &edited)));
    }

    #[test]
    fn quantities_compare_by_value() {
        for (a, b, same) in [
            ("0.5", "500m", true),
            ("1024Mi", "1Gi", true),
            ("1", "1000m", true),
            ("1", "2", false),
            ("1k", "1Ki", false),
            ("5s", "5s0", false),
        ] {
            assert_eq!(same_quantity(a, b), same, "{a} {b}");
        }
    }
}
