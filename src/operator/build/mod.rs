//! Builds the children of a gateway. Pure: the same settings give the same objects, byte for byte.
//!
//! Nothing of a snapshot but its bytes is used here, and only in the config Secret: combos, rules and keys never touch a pod.

mod access;
mod delivery;
mod network;
mod scale;
mod workload;

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

pub use delivery::{Delivery, MAX_BYTES, Size, WARN_BYTES, largest};

use super::apply::Owner;
use super::child::{Child, ChildKind};
use crate::api;
use crate::api::gateway::Gateway;

/// Fixed names: one gateway per namespace (decisions 10.1).
pub mod names {
    /// Deployment, Service, ServiceAccount, Role, RoleBinding, PodDisruptionBudget, HorizontalPodAutoscaler, NetworkPolicy.
    pub const GATEWAY: &str = "omniroute-gateway";
    /// Label `app.kubernetes.io/name` of the operator's own pods, in `config` and in the chart.
    pub const OPERATOR: &str = "omniroute-operator";
    /// The config Secret.
    pub const CONFIG: &str = "omniroute-gateway-config";
    /// The Secret with the management token.
    pub const MANAGEMENT: &str = "omniroute-gateway-management";
    /// The checkpoint ConfigMap.
    pub const CHECKPOINT: &str = "omniroute-gateway-checkpoint";
    /// Key of the config Secret: gzip of the canonical JSON of the snapshot.
    pub const CONFIG_KEY: &str = "snapshot.json.gz";
    /// Key of the management Secret.
    pub const TOKEN_KEY: &str = "token";
    /// Key of the fingerprint salt in the management Secret.
    pub const SALT_KEY: &str = "fingerprint-salt";
    /// Key of the checkpoint ConfigMap (binary data): gzip of the JSON.
    pub const CHECKPOINT_KEY: &str = "checkpoint.json.gz";
}

/// Port of the proxy in the pod.
pub const PROXY_PORT: i32 = 8080;
/// Port of management in the pod and in the Service.
pub const MANAGEMENT_PORT: u16 = 9090;

/// Annotation of the config Secret: the hash of the snapshot inside.
pub const ANNOTATION_HASH: &str = "omniroute.dev/snapshot-hash";
/// Annotation of the Deployment: `Fixed` while we set `replicas`, `Autoscaled` while an autoscaler does.
pub const ANNOTATION_SCALING: &str = "omniroute.dev/scaling";

/// Annotation of the management Secret: the installation (`NAMESPACE/LEASE` of the operator) whose gateway this is.
pub const ANNOTATION_CLAIM: &str = "omniroute.dev/claimed-by";

/// Label `app.kubernetes.io/managed-by` of everything the operator makes.
pub const MANAGED_BY: &str = "omniroute-operator";

/// Everything that the objects follow from.
#[derive(Clone, Copy, Debug)]
pub struct Intent<'a> {
    /// The ResilienceSettings in force.
    pub owner: &'a Owner,
    /// Its gateway part.
    pub gateway: &'a Gateway,
    /// Image for pods without `gateway.image`.
    pub default_image: &'a str,
    /// Pull policy of that image.
    pub pull_policy: &'a str,
    /// Namespace of the operator, which may ask the management port.
    pub operator_namespace: &'a str,
    /// The config to deliver.
    pub delivery: &'a Delivery,
}

impl Intent<'_> {
    /// The image of the pods.
    #[must_use]
    pub fn image(&self) -> &str {
        self.gateway.image.as_deref().unwrap_or(self.default_image)
    }
}

/// Metadata that all children share.
pub(super) struct Meta<'a> {
    owner: &'a Owner,
}

impl<'a> Meta<'a> {
    pub(super) const fn new(owner: &'a Owner) -> Self {
        Self { owner }
    }

    /// Labels that select the pods; they never change, because a selector cannot.
    fn selector(&self) -> BTreeMap<String, String> {
        [("app.kubernetes.io/name", names::GATEWAY), ("app.kubernetes.io/instance", &self.instance())]
            .into_iter()
            .map(|(k, v)| (k.to_owned(), v.to_owned()))
            .collect()
    }

    /// The name of the settings, as long as a label value may be.
    fn instance(&self) -> String {
        let name: String = self.owner.name.chars().take(63).collect();
        name.trim_end_matches(['.', '-']).to_owned()
    }

    fn pod_labels(&self) -> BTreeMap<String, String> {
        let mut labels = self.selector();
        for (key, value) in [("component", "gateway"), ("part-of", "omniroute"), ("managed-by", MANAGED_BY)] {
            labels.insert(format!("app.kubernetes.io/{key}"), value.to_owned());
        }
        labels
    }

    pub(super) fn object(&self, name: &str) -> ObjectMeta {
        let mut labels = self.pod_labels();
        labels.insert("app.kubernetes.io/version".to_owned(), env!("CARGO_PKG_VERSION").to_owned());
        ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(self.owner.namespace.clone()),
            labels: Some(labels),
            owner_references: Some(vec![OwnerReference {
                api_version: api::API_VERSION.to_owned(),
                kind: "ResilienceSettings".to_owned(),
                name: self.owner.name.clone(),
                uid: self.owner.uid.clone(),
                controller: Some(true),
                block_owner_deletion: Some(true),
            }]),
            ..ObjectMeta::default()
        }
    }
}

/// The children in the order in which they are applied: what a pod needs comes before the pod.
///
/// # Errors
/// If an object cannot be represented in JSON.
pub fn children(intent: &Intent<'_>) -> serde_json::Result<Vec<Child>> {
    let meta = Meta::new(intent.owner);
    let mut children = access::children(&meta)?;
    children.push(delivery::secret(&meta, intent.delivery)?);
    children.push(network::service(&meta, intent.gateway)?);
    children.extend(network::policy(&meta, intent)?);
    children.push(workload::deployment(&meta, intent)?);
    children.extend(scale::disruption_budget(&meta, intent.gateway)?);
    children.extend(scale::autoscaler(&meta, intent.gateway)?);
    Ok(children)
}

/// Children without which a pod must not start.
pub const NEEDED_BY_PODS: [ChildKind; 4] = [ChildKind::ServiceAccount, ChildKind::Role, ChildKind::RoleBinding, ChildKind::Secret];

/// Children that exist only when they are asked for; one that is not in `children` has to go.
pub const OPTIONAL: [ChildKind; 3] = [ChildKind::NetworkPolicy, ChildKind::PodDisruptionBudget, ChildKind::HorizontalPodAutoscaler];

#[cfg(test)]
mod tests;
