//! The Deployment of the gateway pods. They satisfy the Pod Security level `restricted`.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::{Deployment, DeploymentSpec, DeploymentStrategy, RollingUpdateDeployment};
use k8s_openapi::api::core::v1::{
    Capabilities, ConfigMapVolumeSource, Container, ContainerPort, EmptyDirVolumeSource, EnvVar, EnvVarSource, HTTPGetAction, Lifecycle,
    LifecycleHandler, LocalObjectReference, ObjectFieldSelector, PodSecurityContext, PodSpec, PodTemplateSpec, Probe, ResourceRequirements,
    SeccompProfile, SecretKeySelector, SecretVolumeSource, SecurityContext, SleepAction, Toleration, TopologySpreadConstraint, Volume,
    VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::{ANNOTATION_SCALING, Intent, MANAGEMENT_PORT, Meta, PROXY_PORT, names};
use crate::api::gateway::{Gateway, PodTemplate, Resources, TaintEffect, TolerationOperator};
use crate::operator::child::{Child, ChildKind};

/// Time between the pod's removal from endpoints and SIGTERM, seconds: proxies on other nodes learn of it with a delay.
const PRE_STOP_SECONDS: i64 = 5;
/// Time to end after the drain deadline, seconds.
const END_SECONDS: i64 = 10;
/// Unprivileged user of the pods.
const USER: i64 = 65_532;

const CONFIG_PATH: &str = "/etc/omniroute/config";
const CHECKPOINT_PATH: &str = "/etc/omniroute/checkpoint";
const STATE_PATH: &str = "/var/lib/omniroute";

/// The Deployment.
pub(super) fn deployment(meta: &Meta<'_>, intent: &Intent<'_>) -> serde_json::Result<Child> {
    let gateway = intent.gateway;
    let mut metadata = meta.object(names::GATEWAY);
    let scaling = if gateway.autoscaling.is_some() { "Autoscaled" } else { "Fixed" };
    metadata.annotations = Some([(ANNOTATION_SCALING.to_owned(), scaling.to_owned())].into());
    let deployment = Deployment {
        metadata,
        spec: DeploymentSpec {
            replicas: gateway.autoscaling.is_none().then(|| gateway.replicas.unwrap_or(1)),
            selector: LabelSelector { match_labels: Some(meta.selector()), ..LabelSelector::default() },
            strategy: Some(DeploymentStrategy {
                type_: Some("RollingUpdate".to_owned()),
                rolling_update: Some(RollingUpdateDeployment {
                    max_surge: Some(IntOrString::Int(1)),
                    max_unavailable: Some(IntOrString::Int(0)),
                }),
            }),
            revision_history_limit: Some(3),
            template: template(meta, intent),
            ..DeploymentSpec::default()
        }
        .into(),
        ..Deployment::default()
    };
    Child::new(ChildKind::Deployment, names::GATEWAY, &deployment)
}

fn template(meta: &Meta<'_>, intent: &Intent<'_>) -> PodTemplateSpec {
    let nothing = PodTemplate::default();
    let wishes = intent.gateway.pod_template.as_ref().unwrap_or(&nothing);
    // Ours come last: a selector label must not be replaced.
    let mut labels = wishes.labels.clone();
    labels.extend(meta.pod_labels());
    PodTemplateSpec {
        metadata: Some(ObjectMeta {
            labels: Some(labels),
            annotations: (!wishes.annotations.is_empty()).then(|| wishes.annotations.clone()),
            ..ObjectMeta::default()
        }),
        spec: Some(PodSpec {
            service_account_name: Some(names::GATEWAY.to_owned()),
            automount_service_account_token: Some(true),
            enable_service_links: Some(false),
            security_context: Some(PodSecurityContext {
                run_as_non_root: Some(true),
                run_as_user: Some(USER),
                run_as_group: Some(USER),
                fs_group: Some(USER),
                seccomp_profile: Some(SeccompProfile { type_: "RuntimeDefault".to_owned(), ..SeccompProfile::default() }),
                ..PodSecurityContext::default()
            }),
            termination_grace_period_seconds: Some(PRE_STOP_SECONDS + drain_seconds(intent.gateway) + END_SECONDS),
            containers: vec![container(intent, wishes)],
            volumes: Some(volumes()),
            image_pull_secrets: list(wishes.image_pull_secrets.iter().map(|s| LocalObjectReference { name: s.name.clone() })),
            node_selector: (!wishes.node_selector.is_empty()).then(|| wishes.node_selector.clone()),
            tolerations: list(wishes.tolerations.iter().map(toleration)),
            affinity: wishes.affinity.clone(),
            topology_spread_constraints: Some(spread(meta, wishes)),
            priority_class_name: wishes.priority_class_name.clone(),
            ..PodSpec::default()
        }),
    }
}

/// Whole seconds of the drain deadline, rounded up; what cannot be read is the default, and `compile` has a finding about it.
fn drain_seconds(gateway: &Gateway) -> i64 {
    let ms = gateway.drain.deadline.ms().unwrap_or(300_000);
    i64::try_from(ms.div_ceil(1_000)).unwrap_or(300)
}

fn container(intent: &Intent<'_>, wishes: &PodTemplate) -> Container {
    Container {
        name: "gateway".to_owned(),
        image: Some(intent.image().to_owned()),
        image_pull_policy: Some(intent.pull_policy.to_owned()),
        args: Some(
            [
                "gateway",
                &format!("--listen=0.0.0.0:{PROXY_PORT}"),
                &format!("--management=0.0.0.0:{MANAGEMENT_PORT}"),
                &format!("--config-secret={}", names::CONFIG),
                &format!("--config-file={CONFIG_PATH}/{}", names::CONFIG_KEY),
                &format!("--checkpoint-file={CHECKPOINT_PATH}/{}", names::CHECKPOINT_KEY),
                &format!("--state-file={STATE_PATH}/state.db"),
            ]
            .map(str::to_owned)
            .to_vec(),
        ),
        env: Some(environment(wishes)),
        ports: Some(vec![port("http", PROXY_PORT), port("management", i32::from(MANAGEMENT_PORT))]),
        resources: Some(resources(intent.gateway.resources.as_ref())),
        security_context: Some(SecurityContext {
            allow_privilege_escalation: Some(false),
            read_only_root_filesystem: Some(true),
            run_as_non_root: Some(true),
            capabilities: Some(Capabilities { drop: Some(vec!["ALL".to_owned()]), ..Capabilities::default() }),
            ..SecurityContext::default()
        }),
        startup_probe: Some(probe("/livez", 1, 60)),
        // The process itself: neither the API server nor an upstream may make the kubelet kill it.
        liveness_probe: Some(probe("/livez", 10, 3)),
        readiness_probe: Some(probe("/readyz", 2, 2)),
        lifecycle: Some(Lifecycle {
            pre_stop: Some(LifecycleHandler { sleep: Some(SleepAction { seconds: PRE_STOP_SECONDS }), ..LifecycleHandler::default() }),
            ..Lifecycle::default()
        }),
        volume_mounts: Some(vec![
            mount("config", CONFIG_PATH, true),
            mount("checkpoint", CHECKPOINT_PATH, true),
            mount("state", STATE_PATH, false),
        ]),
        ..Container::default()
    }
}

fn environment(wishes: &PodTemplate) -> Vec<EnvVar> {
    let field = |name: &str, path: &str| EnvVar {
        name: name.to_owned(),
        value_from: Some(EnvVarSource {
            field_ref: Some(ObjectFieldSelector { field_path: path.to_owned(), api_version: Some("v1".to_owned()) }),
            ..EnvVarSource::default()
        }),
        ..EnvVar::default()
    };
    let mut env = vec![
        field("OMNIROUTE_NAMESPACE", "metadata.namespace"),
        field("OMNIROUTE_POD_NAME", "metadata.name"),
        EnvVar { name: "OMNIROUTE_LOG_FORMAT".to_owned(), value: Some("json".to_owned()), ..EnvVar::default() },
    ];
    for wish in &wishes.extra_env {
        env.retain(|e| e.name != wish.name);
        env.push(EnvVar {
            name: wish.name.clone(),
            value: wish.value.clone(),
            value_from: wish.secret_key_ref.as_ref().map(|s| EnvVarSource {
                secret_key_ref: Some(SecretKeySelector { name: s.name.clone(), key: s.key.clone(), optional: None }),
                ..EnvVarSource::default()
            }),
        });
    }
    env
}

fn port(name: &str, port: i32) -> ContainerPort {
    ContainerPort { name: Some(name.to_owned()), container_port: port, protocol: Some("TCP".to_owned()), ..ContainerPort::default() }
}

fn mount(name: &str, path: &str, read_only: bool) -> VolumeMount {
    VolumeMount { name: name.to_owned(), mount_path: path.to_owned(), read_only: read_only.then_some(true), ..VolumeMount::default() }
}

fn probe(path: &str, period: i32, failures: i32) -> Probe {
    Probe {
        http_get: Some(HTTPGetAction {
            path: Some(path.to_owned()),
            port: IntOrString::String("management".to_owned()),
            ..HTTPGetAction::default()
        }),
        period_seconds: Some(period),
        failure_threshold: Some(failures),
        timeout_seconds: Some(2),
        ..Probe::default()
    }
}

fn volumes() -> Vec<Volume> {
    vec![
        Volume {
            name: "config".to_owned(),
            // A pod that finds no config yet waits for it by itself; a missing mount must not keep it from starting.
            secret: Some(SecretVolumeSource {
                secret_name: Some(names::CONFIG.to_owned()),
                optional: Some(true),
                ..SecretVolumeSource::default()
            }),
            ..Volume::default()
        },
        Volume {
            name: "checkpoint".to_owned(),
            config_map: Some(ConfigMapVolumeSource {
                name: names::CHECKPOINT.to_owned(),
                optional: Some(true),
                ..ConfigMapVolumeSource::default()
            }),
            ..Volume::default()
        },
        Volume {
            name: "state".to_owned(),
            empty_dir: Some(EmptyDirVolumeSource { size_limit: Some(Quantity("256Mi".to_owned())), ..EmptyDirVolumeSource::default() }),
            ..Volume::default()
        },
    ]
}

fn resources(wanted: Option<&Resources>) -> ResourceRequirements {
    let of = |pairs: &[(&str, &str)]| -> BTreeMap<String, Quantity> {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), Quantity((*v).to_owned()))).collect()
    };
    let (requests, limits) = match wanted {
        None => (of(&[("cpu", "100m"), ("memory", "64Mi")]), of(&[("memory", "512Mi")])),
        Some(r) => {
            let quantities = |map: &BTreeMap<String, crate::api::gateway::Quantity>| -> BTreeMap<String, Quantity> {
                map.iter().map(|(k, v)| (k.clone(), Quantity(v.text()))).collect()
            };
            (quantities(&r.requests), quantities(&r.limits))
        }
    };
    let some = |map: BTreeMap<String, Quantity>| (!map.is_empty()).then_some(map);
    ResourceRequirements { requests: some(requests), limits: some(limits), ..ResourceRequirements::default() }
}

fn toleration(wish: &crate::api::gateway::Toleration) -> Toleration {
    Toleration {
        key: wish.key.clone(),
        operator: wish.operator.map(|o| {
            match o {
                TolerationOperator::Equal => "Equal",
                TolerationOperator::Exists => "Exists",
            }
            .to_owned()
        }),
        value: wish.value.clone(),
        effect: wish.effect.map(|e| {
            match e {
                TaintEffect::NoSchedule => "NoSchedule",
                TaintEffect::PreferNoSchedule => "PreferNoSchedule",
                TaintEffect::NoExecute => "NoExecute",
            }
            .to_owned()
        }),
        toleration_seconds: wish.toleration_seconds,
    }
}

fn spread(meta: &Meta<'_>, wishes: &PodTemplate) -> Vec<TopologySpreadConstraint> {
    if !wishes.topology_spread_constraints.is_empty() {
        return wishes.topology_spread_constraints.clone();
    }
    ["topology.kubernetes.io/zone", "kubernetes.io/hostname"]
        .map(|key| TopologySpreadConstraint {
            topology_key: key.to_owned(),
            max_skew: 1,
            when_unsatisfiable: "ScheduleAnyway".to_owned(),
            label_selector: Some(LabelSelector { match_labels: Some(meta.selector()), ..LabelSelector::default() }),
            match_label_keys: Some(vec!["pod-template-hash".to_owned()]),
            ..TopologySpreadConstraint::default()
        })
        .to_vec()
}

fn list<T>(items: impl Iterator<Item = T>) -> Option<Vec<T>> {
    let items: Vec<T> = items.collect();
    (!items.is_empty()).then_some(items)
}
