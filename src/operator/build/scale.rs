//! How many pods: the disruption budget and the autoscaler.

use k8s_openapi::api::autoscaling::v2::{
    CrossVersionObjectReference, HorizontalPodAutoscaler, HorizontalPodAutoscalerSpec, MetricSpec, MetricTarget, ResourceMetricSource,
};
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::{Meta, names};
use crate::api::gateway::Gateway;
use crate::operator::child::{Child, ChildKind};

/// The fewest pods that the gateway is meant to have.
pub(super) fn fewest(gateway: &Gateway) -> i32 {
    gateway.autoscaling.as_ref().map_or(gateway.replicas.unwrap_or(1), |a| a.min_replicas)
}

/// The budget that was asked for; without one, one pod of several may be missing, and a single pod has none, because a budget for it
/// would block the draining of its node for ever.
pub(super) fn disruption_budget(meta: &Meta<'_>, gateway: &Gateway) -> serde_json::Result<Option<Child>> {
    let (min_available, max_unavailable) = match &gateway.pod_disruption_budget {
        Some(budget) => (budget.min_available, budget.max_unavailable),
        None if fewest(gateway) > 1 => (None, Some(1)),
        None => return Ok(None),
    };
    let budget = PodDisruptionBudget {
        metadata: meta.object(names::GATEWAY),
        spec: Some(PodDisruptionBudgetSpec {
            min_available: min_available.map(IntOrString::Int),
            max_unavailable: max_unavailable.map(IntOrString::Int),
            selector: Some(LabelSelector { match_labels: Some(meta.selector()), ..LabelSelector::default() }),
            // A pod that is not ready serves nobody: it must not hold up a drain.
            unhealthy_pod_eviction_policy: Some("AlwaysAllow".to_owned()),
        }),
        ..PodDisruptionBudget::default()
    };
    Child::new(ChildKind::PodDisruptionBudget, names::GATEWAY, &budget).map(Some)
}

/// The autoscaler, when it was asked for.
pub(super) fn autoscaler(meta: &Meta<'_>, gateway: &Gateway) -> serde_json::Result<Option<Child>> {
    let Some(scaling) = &gateway.autoscaling else { return Ok(None) };
    let autoscaler = HorizontalPodAutoscaler {
        metadata: meta.object(names::GATEWAY),
        spec: HorizontalPodAutoscalerSpec {
            min_replicas: Some(scaling.min_replicas),
            max_replicas: scaling.max_replicas,
            scale_target_ref: CrossVersionObjectReference {
                api_version: Some("apps/v1".to_owned()),
                kind: "Deployment".to_owned(),
                name: names::GATEWAY.to_owned(),
            },
            metrics: Some(vec![MetricSpec {
                type_: "Resource".to_owned(),
                resource: Some(ResourceMetricSource {
                    name: "cpu".to_owned(),
                    target: MetricTarget {
                        type_: "Utilization".to_owned(),
                        average_utilization: Some(scaling.target_cpu_utilization),
                        ..MetricTarget::default()
                    },
                }),
                ..MetricSpec::default()
            }]),
            ..HorizontalPodAutoscalerSpec::default()
        }
        .into(),
        ..HorizontalPodAutoscaler::default()
    };
    Child::new(ChildKind::HorizontalPodAutoscaler, names::GATEWAY, &autoscaler).map(Some)
}
