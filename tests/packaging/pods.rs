//! Every pod that the chart or the operator makes keeps to the *restricted* Pod Security Standard, and to a little more.

use serde_json::{Value, json};

use super::tools::text;
use super::{children, goldens};

/// Every pod template of the goldens.
fn pods() -> Vec<(String, Value)> {
    let all = goldens::every_object().into_iter().chain(children::every_object());
    all.filter_map(|(golden, object)| Some((golden, object.pointer("/spec/template")?.clone()))).collect()
}

const VOLUMES: [&str; 5] = ["configMap", "downwardAPI", "emptyDir", "projected", "secret"];

/// What a pod does that it must not, one line each.
fn violations(pod: &Value) -> Vec<String> {
    let spec = &pod["spec"];
    let mut wrong = Vec::new();
    let mut claim = |holds: bool, what: String| {
        if !holds {
            wrong.push(what);
        }
    };
    for field in ["hostNetwork", "hostPID", "hostIPC"] {
        claim(spec[field] != json!(true), field.to_owned());
    }
    claim(spec["enableServiceLinks"] == json!(false), "enableServiceLinks".to_owned());
    claim(spec.pointer("/securityContext/sysctls").is_none(), "sysctls".to_owned());
    for volume in spec["volumes"].as_array().into_iter().flatten() {
        let kinds: Vec<&String> = volume.as_object().expect("volume").keys().filter(|key| *key != "name").collect();
        claim(kinds.iter().all(|kind| VOLUMES.contains(&kind.as_str())), format!("volume of kind {kinds:?}"));
    }
    let containers = ["containers", "initContainers", "ephemeralContainers"].iter().filter_map(|list| spec[*list].as_array()).flatten();
    let mut count = 0;
    for container in containers {
        count += 1;
        let name = text(container, "/name");
        let own = &container["securityContext"];
        // A container's own word wins over the pod's.
        let said = |field: &str| if own[field].is_null() { &spec["securityContext"][field] } else { &own[field] };
        claim(said("runAsNonRoot") == &json!(true), format!("{name}: runAsNonRoot"));
        claim(said("runAsUser").as_i64().is_some_and(|user| user > 10_000), format!("{name}: runAsUser"));
        claim(text(said("seccompProfile"), "/type") == "RuntimeDefault", format!("{name}: seccompProfile"));
        for field in ["seLinuxOptions", "windowsOptions", "appArmorProfile"] {
            claim(said(field).is_null(), format!("{name}: {field}"));
        }
        claim(own["privileged"] != json!(true), format!("{name}: privileged"));
        claim(own["allowPrivilegeEscalation"] == json!(false), format!("{name}: allowPrivilegeEscalation"));
        claim(own["readOnlyRootFilesystem"] == json!(true), format!("{name}: readOnlyRootFilesystem"));
        claim(own["capabilities"] == json!({"drop": ["ALL"]}), format!("{name}: capabilities"));
        claim(own["procMount"].is_null(), format!("{name}: procMount"));
        claim(container.pointer("/resources/limits/memory").is_some(), format!("{name}: no memory limit"));
        claim(container.pointer("/resources/requests/cpu").is_some(), format!("{name}: no CPU request"));
        for port in container["ports"].as_array().into_iter().flatten() {
            claim(port.get("hostPort").is_none(), format!("{name}: hostPort"));
        }
        for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
            claim(container[probe].is_object(), format!("{name}: no {probe}"));
            claim(container[probe].pointer("/httpGet/host").is_none(), format!("{name}: the {probe} names a host"));
        }
        for mount in container["volumeMounts"].as_array().into_iter().flatten() {
            let volume = spec["volumes"].as_array().into_iter().flatten().find(|volume| volume["name"] == mount["name"]);
            let scratch = volume.is_some_and(|volume| volume["emptyDir"].is_object());
            claim(scratch || mount["readOnly"] == json!(true), format!("{name}: {} can be written", mount["mountPath"]));
        }
    }
    claim(count > 0, "no container".to_owned());
    wrong
}

#[test]
fn every_pod_is_restricted() {
    let pods = pods();
    assert!(pods.len() > 30);
    for (golden, pod) in pods {
        assert_eq!(violations(&pod), Vec::<String>::new(), "{golden}");
    }
}

#[test]
fn the_check_sees_each_violation() {
    let good = pods().into_iter().find(|(golden, _)| golden == "default").expect("the operator").1;
    for (pointer, key, value) in [
        ("/spec", "hostNetwork", json!(true)),
        ("/spec", "enableServiceLinks", json!(true)),
        ("/spec", "volumes", json!([{"name": "x", "hostPath": {"path": "/"}}])),
        ("/spec", "initContainers", json!([{"name": "x"}])),
        ("/spec/securityContext", "runAsNonRoot", json!(false)),
        ("/spec/securityContext", "runAsUser", json!(0)),
        ("/spec/securityContext", "seccompProfile", json!({"type": "Unconfined"})),
        ("/spec/containers/0/securityContext", "runAsUser", json!(1)),
        ("/spec/containers/0/securityContext", "privileged", json!(true)),
        ("/spec/containers/0/securityContext", "allowPrivilegeEscalation", Value::Null),
        ("/spec/containers/0/securityContext", "readOnlyRootFilesystem", json!(false)),
        ("/spec/containers/0/securityContext", "capabilities", json!({"drop": ["ALL"], "add": ["SYS_ADMIN"]})),
        ("/spec/containers/0", "resources", json!({})),
        ("/spec/containers/0", "livenessProbe", Value::Null),
        ("/spec/containers/0/ports/0", "hostPort", json!(80)),
        ("/spec/containers/0/livenessProbe/httpGet", "host", json!("169.254.169.254")),
    ] {
        let mut bad = good.clone();
        bad.pointer_mut(pointer).unwrap_or_else(|| panic!("{pointer}"))[key] = value;
        assert!(!violations(&bad).is_empty(), "{pointer}/{key} was not seen");
    }
}

/// Seconds that a pod may take to end leave room for what its end consists of.
#[test]
fn pods_have_the_time_to_end() {
    for (golden, pod) in pods() {
        let grace = pod["spec"]["terminationGracePeriodSeconds"].as_i64().expect("a grace period");
        let container = &pod["spec"]["containers"][0];
        let before = container.pointer("/lifecycle/preStop/sleep/seconds").and_then(Value::as_i64).unwrap_or(0);
        // What is left after the signal: ten seconds for the operator to give the Lease back, the drain deadline for a gateway.
        let drain = children::drain_seconds(&golden).unwrap_or(10);
        assert!(grace > before + drain, "{golden}: {grace} s are not enough for {before} s of preStop and {drain} s of drain");
    }
}
