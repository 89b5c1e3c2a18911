//! The Service and who may reach the pods.

use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::api::networking::v1::{NetworkPolicy, NetworkPolicyIngressRule, NetworkPolicyPeer, NetworkPolicyPort, NetworkPolicySpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::{Intent, MANAGEMENT_PORT, Meta, names};
use crate::api::gateway::{Gateway, ServiceType};
use crate::operator::child::{Child, ChildKind};

/// The Service: `http` for clients, `management` for scrapers and people.
pub(super) fn service(meta: &Meta<'_>, gateway: &Gateway) -> serde_json::Result<Child> {
    let port = |name: &str, port: i32| ServicePort {
        name: Some(name.to_owned()),
        port,
        target_port: Some(IntOrString::String(name.to_owned())),
        protocol: Some("TCP".to_owned()),
        app_protocol: Some("http".to_owned()),
        ..ServicePort::default()
    };
    let type_ = match gateway.service.type_ {
        ServiceType::ClusterIP => "ClusterIP",
        ServiceType::NodePort => "NodePort",
        ServiceType::LoadBalancer => "LoadBalancer",
    };
    let mut metadata = meta.object(names::GATEWAY);
    if !gateway.service.annotations.is_empty() {
        metadata.annotations = Some(gateway.service.annotations.clone());
    }
    let service = Service {
        metadata,
        spec: Some(ServiceSpec {
            type_: Some(type_.to_owned()),
            selector: Some(meta.selector()),
            ports: Some(vec![port("http", gateway.service.port), port("management", i32::from(MANAGEMENT_PORT))]),
            ..ServiceSpec::default()
        }),
        ..Service::default()
    };
    Child::new(ChildKind::Service, names::GATEWAY, &service)
}

/// Everybody may reach the proxy; the management port only the operator and the declared scrapers.
pub(super) fn policy(meta: &Meta<'_>, intent: &Intent<'_>) -> serde_json::Result<Option<Child>> {
    if !intent.gateway.network_policy.enabled {
        return Ok(None);
    }
    let port = |name: &str| {
        Some(vec![NetworkPolicyPort {
            port: Some(IntOrString::String(name.to_owned())),
            protocol: Some("TCP".to_owned()),
            ..NetworkPolicyPort::default()
        }])
    };
    let labelled = |label: &str, value: &str| LabelSelector {
        match_labels: Some([(label.to_owned(), value.to_owned())].into()),
        ..LabelSelector::default()
    };
    let namespace = |name: &str| NetworkPolicyPeer {
        namespace_selector: Some(labelled("kubernetes.io/metadata.name", name)),
        ..NetworkPolicyPeer::default()
    };
    // Not its neighbours: who serves the management port trusts the network with the token.
    let operator = NetworkPolicyPeer {
        pod_selector: Some(labelled("app.kubernetes.io/name", names::OPERATOR)),
        ..namespace(intent.operator_namespace)
    };
    let mut scrapers = intent.gateway.network_policy.scraper_namespaces.clone();
    scrapers.sort();
    scrapers.dedup();
    let askers: Vec<NetworkPolicyPeer> = std::iter::once(operator).chain(scrapers.iter().map(|s| namespace(s))).collect();
    let policy = NetworkPolicy {
        metadata: meta.object(names::GATEWAY),
        spec: Some(NetworkPolicySpec {
            pod_selector: Some(LabelSelector { match_labels: Some(meta.selector()), ..LabelSelector::default() }),
            policy_types: Some(vec!["Ingress".to_owned()]),
            ingress: Some(vec![
                NetworkPolicyIngressRule { ports: port("http"), ..NetworkPolicyIngressRule::default() },
                NetworkPolicyIngressRule { ports: port("management"), from: Some(askers) },
            ]),
            ..NetworkPolicySpec::default()
        }),
    };
    Child::new(ChildKind::NetworkPolicy, names::GATEWAY, &policy).map(Some)
}
