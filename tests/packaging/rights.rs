//! Nobody gets a right that hands out others, reads more than it must, or reaches further than it was asked to.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::tools::text;
use super::{children, goldens};

fn words<'a>(rule: &'a Value, key: &str) -> Vec<&'a str> {
    rule[key].as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

fn rules(object: &Value) -> &[Value] {
    object["rules"].as_array().map_or(&[], Vec::as_slice)
}

fn is_role(object: &Value) -> bool {
    ["Role", "ClusterRole"].contains(&text(object, "/kind"))
}

/// What is wrong with a rule.
fn complaint(rule: &Value) -> Option<String> {
    let (verbs, resources) = (words(rule, "verbs"), words(rule, "resources"));
    let all = ["apiGroups", "resources", "verbs"].iter().flat_map(|key| words(rule, key));
    if all.into_iter().any(|word| word.contains('*')) || !words(rule, "nonResourceURLs").is_empty() {
        return Some(format!("a wildcard in {rule}"));
    }
    if let Some(verb) = verbs.iter().find(|verb| ["escalate", "bind", "impersonate", "approve", "sign"].contains(verb)) {
        return Some(format!("{verb} in {rule}"));
    }
    let writes = verbs.iter().any(|verb| !["get", "list", "watch"].contains(verb));
    let dangerous = |resource: &&&str| {
        resource.starts_with("pods/")
            || ["serviceaccounts/token", "nodes", "persistentvolumes", "certificatesigningrequests"].contains(*resource)
            || writes && ["pods", "clusterroles", "clusterrolebindings", "namespaces", "customresourcedefinitions"].contains(*resource)
    };
    if let Some(resource) = resources.iter().find(dangerous) {
        return Some(format!("{resource} in {rule}"));
    }
    let precious = ["secrets", "configmaps", "serviceaccounts", "services", "deployments", "roles", "rolebindings"];
    let removes = verbs.iter().any(|verb| ["delete", "deletecollection", "update"].contains(verb));
    resources.iter().find(|resource| removes && precious.contains(resource)).map(|resource| format!("{resource} can be removed by {rule}"))
}

#[test]
fn no_rule_hands_out_rights_or_removes_what_is_precious() {
    let mut seen = 0;
    for (golden, object) in goldens::every_object().into_iter().chain(children::every_object()).filter(|(_, object)| is_role(object)) {
        for rule in rules(&object) {
            seen += 1;
            assert_eq!(complaint(rule), None, "{golden}: {}", object["metadata"]["name"]);
        }
    }
    assert!(seen > 100, "only {seen} rules were rendered");
    for wrong in [
        json!({"apiGroups": [""], "resources": ["*"], "verbs": ["get"]}),
        json!({"apiGroups": [""], "resources": ["secrets"], "verbs": ["get", "delete"]}),
        json!({"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["create"]}),
        json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["create"]}),
        json!({"apiGroups": [""], "resources": ["serviceaccounts/token"], "verbs": ["create"]}),
        json!({"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["roles"], "verbs": ["bind"]}),
        json!({"nonResourceURLs": ["/metrics"], "verbs": ["get"]}),
    ] {
        assert!(complaint(&wrong).is_some(), "{wrong} was let through");
    }
}

#[test]
fn every_binding_joins_what_is_there() {
    for golden in goldens::names() {
        let objects = goldens::objects(&golden);
        let role_of = |binding: &Value| {
            let namespace = binding["metadata"]["namespace"].clone();
            let cluster_wide = binding["roleRef"]["kind"] == json!("ClusterRole");
            objects.iter().any(|object| {
                object["kind"] == binding["roleRef"]["kind"]
                    && object["metadata"]["name"] == binding["roleRef"]["name"]
                    && (cluster_wide || object["metadata"]["namespace"] == namespace)
            })
        };
        let deployment = objects.iter().find(|object| text(object, "/kind") == "Deployment").expect("Deployment");
        for binding in
            objects.iter().filter(|object| text(object, "/kind").ends_with("RoleBinding") || text(object, "/kind") == "ClusterRoleBinding")
        {
            assert!(role_of(binding), "{golden}: {} has no role", binding["metadata"]["name"]);
            let subjects = json!([{
                "kind": "ServiceAccount",
                "name": deployment.pointer("/spec/template/spec/serviceAccountName"),
                "namespace": deployment["metadata"]["namespace"],
            }]);
            assert_eq!(binding["subjects"], subjects, "{golden}");
        }
    }
}

#[test]
fn a_few_namespaces_get_roles_and_nothing_over_the_cluster() {
    for golden in ["watch-namespaces", "monitoring-pods", "another-release"] {
        let objects = goldens::objects(golden);
        for object in objects.iter().filter(|object| text(object, "/kind").starts_with("ClusterRole")) {
            assert!(object.pointer("/metadata/labels/rbac.authorization.k8s.io~1aggregate-to-admin").is_some(), "{golden}: {object}");
        }
        assert!(objects.iter().any(|object| text(object, "/kind") == "Role"));
    }
}

#[test]
fn people_see_our_kinds_and_no_secret() {
    let objects = goldens::objects("default");
    let role = |name: &str| objects.iter().find(|object| is_role(object) && text(object, "/metadata/name") == name).expect("role").clone();
    for name in ["omniroute-view", "omniroute-edit", "omniroute-admin"] {
        for rule in rules(&role(name)) {
            assert_eq!(words(rule, "apiGroups"), ["omniroute.dev"], "{name}");
            assert!(words(rule, "resources").iter().all(|resource| !resource.contains('/')), "{name} may touch a status");
        }
    }
    let view = role("omniroute-view");
    assert!(rules(&view).iter().all(|rule| words(rule, "verbs") == ["get", "list", "watch"]));
    // Who edits a Provider chooses where credentials go.
    let edit: BTreeSet<String> =
        rules(&role("omniroute-edit")).iter().flat_map(|rule| words(rule, "resources")).map(str::to_owned).collect();
    assert_eq!(edit, BTreeSet::from(["combos".to_owned(), "operatorerrorrules".to_owned()]));
}

#[test]
fn a_gateway_reads_its_own_configuration_and_nothing_else() {
    for golden in children::names() {
        let objects = children::objects(&golden);
        let of = |kind: &str| objects.iter().filter(|object| text(object, "/kind") == kind).collect::<Vec<_>>();
        let [role] = of("Role")[..] else { panic!("{golden}: one Role") };
        for rule in rules(role) {
            assert_eq!(words(rule, "apiGroups"), [""], "{golden}");
            assert_eq!(words(rule, "resources"), ["secrets"], "{golden}");
            assert_eq!(words(rule, "resourceNames"), ["omniroute-gateway-config"], "{golden}");
            assert_eq!(words(rule, "verbs"), ["get", "list", "watch"], "{golden}");
        }
        assert!(!rules(role).is_empty() && of("ClusterRole").is_empty() && of("ClusterRoleBinding").is_empty());
        let [binding] = of("RoleBinding")[..] else { panic!("{golden}: one RoleBinding") };
        assert_eq!(text(binding, "/roleRef/name"), text(role, "/metadata/name"));
        assert_eq!(text(binding, "/subjects/0/name"), text(of("ServiceAccount")[0], "/metadata/name"));
        assert_eq!(of("ServiceAccount")[0]["automountServiceAccountToken"], json!(false), "{golden}");
    }
}

/// Nobody can grant what he does not hold: every right of the gateway's Role is one of the operator's.
#[test]
fn the_operator_holds_what_it_grants() {
    let rights = |object: &Value| -> BTreeSet<String> {
        let rules = rules(object).iter().flat_map(|rule| {
            words(rule, "resources").into_iter().flat_map(move |resource| {
                words(rule, "verbs").into_iter().map(move |verb| format!("{:?} {resource} {verb}", words(rule, "apiGroups")))
            })
        });
        rules.collect()
    };
    let operator = goldens::objects("default");
    let held: BTreeSet<String> = operator.iter().filter(|object| text(object, "/kind") == "ClusterRole").flat_map(rights).collect();
    for (golden, object) in children::every_object().iter().filter(|(_, object)| is_role(object)) {
        let missing: Vec<_> = rights(object).difference(&held).cloned().collect();
        assert!(missing.is_empty(), "{golden}: the operator cannot grant {missing:?}");
    }
}
