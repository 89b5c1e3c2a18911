use serde_json::{Value, json};

use super::*;
use crate::snapshot::{Combo, Snapshot};

fn owner() -> Owner {
    Owner { namespace: "team-a".into(), name: "default".into(), uid: "u-1".into() }
}

fn build(gateway: &Gateway, snapshot: &Snapshot) -> Vec<Child> {
    let owner = owner();
    let delivery = Delivery::pack(snapshot).unwrap();
    children(&Intent {
        owner: &owner,
        gateway,
        default_image: "omniroute:1",
        pull_policy: "IfNotPresent",
        operator_namespace: "omniroute-system",
        delivery: &delivery,
    })
    .unwrap()
}

fn plain(gateway: Value) -> Vec<Child> {
    build(&serde_json::from_value(gateway).unwrap(), &Snapshot::default())
}

fn find(children: &[Child], kind: ChildKind) -> Option<&Value> {
    children.iter().find(|c| c.kind == kind).map(|c| &c.body)
}

fn pod(children: &[Child]) -> Value {
    find(children, ChildKind::Deployment).unwrap().pointer("/spec/template").unwrap().clone()
}

#[test]
fn every_child_has_its_owner_and_labels() {
    for child in plain(json!({"replicas": 2, "autoscaling": {"minReplicas": 2, "maxReplicas": 4}})) {
        let meta = &child.body["metadata"];
        assert_eq!(meta["namespace"], "team-a", "{:?}", child.kind);
        let owner = &meta["ownerReferences"][0];
        assert_eq!((&owner["kind"], &owner["uid"], &owner["controller"]), (&json!("ResilienceSettings"), &json!("u-1"), &json!(true)));
        for label in ["name", "instance", "version", "component", "part-of", "managed-by"] {
            assert!(meta["labels"].get(format!("app.kubernetes.io/{label}")).is_some(), "{:?} {label}", child.kind);
        }
        assert!(child.body.get("status").is_none() && child.body["kind"].is_string(), "{:?}", child.kind);
        assert_eq!(child.digest().len(), 32);
    }
}

#[test]
fn an_empty_spec_is_a_complete_gateway() {
    let children = plain(json!({}));
    let kinds: Vec<ChildKind> = children.iter().map(|c| c.kind).collect();
    use ChildKind::*;
    assert_eq!(kinds, [ServiceAccount, Role, RoleBinding, Secret, Service, NetworkPolicy, Deployment]);
    let service = find(&children, Service).unwrap();
    assert_eq!(service.pointer("/spec/ports/0/port"), Some(&json!(80)));
    assert_eq!(service.pointer("/spec/ports/1/port"), Some(&json!(9090)));
    assert_eq!(find(&children, Deployment).unwrap().pointer("/spec/replicas"), Some(&json!(1)));
}

#[test]
fn pods_satisfy_pod_security_restricted_and_write_to_nothing_but_their_state() {
    let pod = pod(&plain(json!({})));
    let spec = &pod["spec"];
    assert_eq!(spec.pointer("/securityContext/runAsNonRoot"), Some(&json!(true)));
    assert!(spec.pointer("/securityContext/runAsUser").and_then(Value::as_i64).is_some_and(|u| u > 10_000));
    assert_eq!(spec.pointer("/securityContext/seccompProfile/type"), Some(&json!("RuntimeDefault")));
    assert_eq!(spec["enableServiceLinks"], json!(false));
    for key in ["hostNetwork", "hostPID", "hostIPC"] {
        assert!(spec.get(key).is_none());
    }
    for container in spec["containers"].as_array().unwrap() {
        let security = &container["securityContext"];
        assert_eq!(security["allowPrivilegeEscalation"], json!(false));
        assert_eq!(security["readOnlyRootFilesystem"], json!(true));
        assert_eq!(security["capabilities"], json!({"drop": ["ALL"]}));
        assert!(container["ports"].as_array().unwrap().iter().all(|p| p.get("hostPort").is_none()));
        let writable: Vec<&Value> = container["volumeMounts"].as_array().unwrap().iter().filter(|m| m["readOnly"] != json!(true)).collect();
        assert_eq!(writable.len(), 1);
        assert_eq!(writable[0]["name"], "state");
    }
    for volume in spec["volumes"].as_array().unwrap() {
        let kinds: Vec<&str> = volume.as_object().unwrap().keys().map(String::as_str).filter(|k| *k != "name").collect();
        assert!(matches!(kinds.as_slice(), ["secret" | "configMap" | "emptyDir"]), "{kinds:?}");
    }
}

#[test]
fn the_grace_period_covers_the_drain() {
    let pod = pod(&plain(json!({"drain": {"deadline": "90s"}})));
    assert_eq!(pod.pointer("/spec/terminationGracePeriodSeconds"), Some(&json!(105)));
    assert_eq!(pod.pointer("/spec/containers/0/lifecycle/preStop/sleep/seconds"), Some(&json!(5)));
}

#[test]
fn a_snapshot_never_touches_the_pod_template() {
    let other = Snapshot { combos: vec![Combo { name: "assistant".into(), ..Combo::default() }], ..Snapshot::default() };
    let (a, b) = (build(&Gateway::default(), &Snapshot::default()), build(&Gateway::default(), &other));
    for (a, b) in a.iter().zip(&b) {
        assert_eq!(a == b, a.kind != ChildKind::Secret, "{:?}", a.kind);
    }
    let image = build(&Gateway { image: Some("other:2".into()), ..Gateway::default() }, &Snapshot::default());
    assert_ne!(pod(&a), pod(&image), "the image does");
}

#[test]
fn the_role_reads_one_secret_by_name() {
    let children = plain(json!({}));
    assert_eq!(
        find(&children, ChildKind::Role).unwrap()["rules"],
        json!([{"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["omniroute-gateway-config"], "verbs": ["get", "list", "watch"]}])
    );
}

#[test]
fn autoscaling_leaves_replicas_to_the_autoscaler() {
    let children = plain(json!({"replicas": 3, "autoscaling": {"minReplicas": 3, "maxReplicas": 12, "targetCPUUtilization": 60}}));
    let deployment = find(&children, ChildKind::Deployment).unwrap();
    assert_eq!(deployment.pointer("/spec/replicas"), None);
    assert_eq!(deployment["metadata"]["annotations"][ANNOTATION_SCALING], "Autoscaled");
    let hpa = find(&children, ChildKind::HorizontalPodAutoscaler).unwrap();
    assert_eq!(hpa.pointer("/spec/metrics/0/resource/target/averageUtilization"), Some(&json!(60)));
    assert_eq!(hpa.pointer("/spec/maxReplicas"), Some(&json!(12)));
}

#[test]
fn a_single_pod_has_no_budget_and_several_have_one() {
    assert!(find(&plain(json!({"replicas": 1})), ChildKind::PodDisruptionBudget).is_none());
    let of = |gateway: Value| find(&plain(gateway), ChildKind::PodDisruptionBudget).map(|b| b["spec"].clone()).unwrap();
    assert_eq!(of(json!({"replicas": 2}))["maxUnavailable"], json!(1));
    assert_eq!(of(json!({"replicas": 1, "podDisruptionBudget": {"minAvailable": 1}}))["minAvailable"], json!(1));
}

#[test]
fn management_is_reached_by_the_operator_and_declared_scrapers_only() {
    let children = plain(json!({"networkPolicy": {"scraperNamespaces": ["monitoring"]}}));
    let rules = find(&children, ChildKind::NetworkPolicy).unwrap().pointer("/spec/ingress").unwrap().as_array().unwrap().clone();
    assert_eq!((&rules[0]["ports"][0]["port"], rules[0].get("from")), (&json!("http"), None));
    let namespace = |name: &str| json!({"matchLabels": {"kubernetes.io/metadata.name": name}});
    let operator = json!({"matchLabels": {"app.kubernetes.io/name": "omniroute-operator"}});
    let expected = json!([
        {"namespaceSelector": namespace("omniroute-system"), "podSelector": operator},
        {"namespaceSelector": namespace("monitoring")},
    ]);
    assert_eq!(rules[1]["from"], expected, "the operator's pods and not their neighbours");
    assert!(find(&plain(json!({"networkPolicy": {"enabled": false}})), ChildKind::NetworkPolicy).is_none());
}

#[test]
fn wishes_for_pods_are_followed_but_selector_labels_stay() {
    let pod = pod(&plain(json!({"podTemplate": {
        "labels": {"app.kubernetes.io/name": "evil", "team": "a"}, "annotations": {"x": "y"},
        "imagePullSecrets": [{"name": "pull"}], "nodeSelector": {"disk": "fast"}, "priorityClassName": "high",
        "tolerations": [{"key": "k", "operator": "Exists", "effect": "NoSchedule"}],
        "extraEnv": [{"name": "OMNIROUTE_LOG_FORMAT", "value": "text"}, {"name": "S", "secretKeyRef": {"name": "n", "key": "k"}}],
        "topologySpreadConstraints": [{"maxSkew": 2, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule"}],
        "affinity": {"nodeAffinity": {}}}})));
    assert_eq!(pod["metadata"]["labels"]["app.kubernetes.io/name"], "omniroute-gateway");
    assert_eq!(pod["metadata"]["labels"]["team"], "a");
    assert_eq!(pod["metadata"]["annotations"], json!({"x": "y"}));
    let spec = &pod["spec"];
    assert_eq!(spec["imagePullSecrets"], json!([{"name": "pull"}]));
    assert_eq!(spec["tolerations"], json!([{"key": "k", "operator": "Exists", "effect": "NoSchedule"}]));
    assert_eq!(spec["topologySpreadConstraints"][0]["topologyKey"], "rack");
    assert_eq!((&spec["nodeSelector"]["disk"], &spec["priorityClassName"]), (&json!("fast"), &json!("high")));
    let env: Vec<(&str, Option<&str>)> =
        spec["containers"][0]["env"].as_array().unwrap().iter().map(|e| (e["name"].as_str().unwrap(), e["value"].as_str())).collect();
    assert_eq!(env, [("OMNIROUTE_NAMESPACE", None), ("OMNIROUTE_POD_NAME", None), ("OMNIROUTE_LOG_FORMAT", Some("text")), ("S", None)]);
}

#[test]
fn a_long_settings_name_still_makes_a_label() {
    let owner = Owner { name: format!("{}.{}", "a".repeat(62), "b".repeat(60)), ..owner() };
    assert_eq!(Meta::new(&owner).instance(), "a".repeat(62));
}
