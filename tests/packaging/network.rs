//! Who may reach which port, decided as a network plugin would from the NetworkPolicies of the goldens.

use serde_json::{Value, json};

use super::tools::text;
use super::{children, goldens};

/// A pod that asks.
struct Asker {
    namespace: &'static str,
    labels: Value,
}

fn asker(namespace: &'static str, name: &str) -> Asker {
    Asker { namespace, labels: json!({"app.kubernetes.io/name": name}) }
}

/// Whether labels satisfy a selector. Expressions are not used here, and would make this test wrong without notice.
fn selects(selector: &Value, labels: &Value) -> bool {
    assert!(selector.get("matchExpressions").is_none(), "teach this test about expressions: {selector}");
    selector["matchLabels"].as_object().into_iter().flatten().all(|(label, value)| &labels[label] == value)
}

fn peer_is(peer: &Value, from: &Asker, home: &str) -> bool {
    assert!(peer.get("ipBlock").is_none(), "teach this test about addresses: {peer}");
    let namespace = match peer.get("namespaceSelector") {
        Some(selector) => selects(selector, &json!({"kubernetes.io/metadata.name": from.namespace})),
        None => from.namespace == home,
    };
    namespace && peer.get("podSelector").is_none_or(|selector| selects(selector, &from.labels))
}

/// Whether the policies among these objects let somebody reach a port of the Deployment's pods.
fn may_reach(objects: &[Value], from: &Asker, port: &str) -> bool {
    let deployment = objects.iter().find(|object| text(object, "/kind") == "Deployment").expect("Deployment");
    let pod = &deployment["spec"]["template"];
    let ports = pod["spec"]["containers"][0]["ports"].as_array().expect("ports");
    assert!(ports.iter().any(|known| text(known, "/name") == port) || port == "other", "the pod has no port {port}");
    let home = text(deployment, "/metadata/namespace");
    let policies = objects.iter().filter(|object| text(object, "/kind") == "NetworkPolicy" && text(object, "/metadata/namespace") == home);
    let mut isolated = false;
    for policy in policies.filter(|policy| selects(&policy["spec"]["podSelector"], &pod["metadata"]["labels"])) {
        let types = policy["spec"]["policyTypes"].as_array().expect("policyTypes");
        assert_eq!(types, &[json!("Ingress")], "outgoing traffic is not limited: providers are anywhere");
        isolated = true;
        for rule in policy["spec"]["ingress"].as_array().into_iter().flatten() {
            let here = rule["ports"].as_array().is_none_or(|ports| ports.iter().any(|open| text(open, "/port") == port));
            let who = rule["from"].as_array().is_none_or(|peers| peers.iter().any(|peer| peer_is(peer, from, home)));
            if here && who {
                return true;
            }
        }
    }
    !isolated
}

#[test]
fn the_operator_answers_scrapers_on_one_port() {
    let (anybody, prometheus, neighbour) = (asker("team-a", "app"), asker("monitoring", "prometheus"), asker("omniroute-system", "app"));
    let default = goldens::objects("default");
    assert!(may_reach(&default, &anybody, "management") && may_reach(&default, &prometheus, "management"));
    assert!(!may_reach(&default, &anybody, "other") && !may_reach(&default, &neighbour, "other"));

    let limited = goldens::objects("network-policy-from");
    assert!(may_reach(&limited, &prometheus, "management"));
    assert!(!may_reach(&limited, &anybody, "management") && !may_reach(&limited, &neighbour, "management"));
    assert!(!may_reach(&limited, &asker("monitoring", "grafana"), "management"));

    assert!(may_reach(&goldens::objects("network-policy-off"), &anybody, "other"));
}

#[test]
fn a_gateway_serves_everybody_and_is_managed_by_few() {
    let (anybody, operator) = (asker("team-b", "app"), asker("omniroute-system", "omniroute-operator"));
    let (prometheus, neighbour) = (asker("monitoring", "prometheus"), asker("team-a", "app"));
    let empty = children::objects("empty");
    for from in [&anybody, &operator, &prometheus, &neighbour] {
        assert!(may_reach(&empty, from, "http"), "{} cannot reach the proxy", from.namespace);
        assert!(!may_reach(&empty, from, "other"), "{} reaches another port", from.namespace);
        assert_eq!(may_reach(&empty, from, "management"), from.namespace == "omniroute-system", "{}", from.namespace);
    }
    let declared = children::objects("production");
    assert!(may_reach(&declared, &prometheus, "management") && may_reach(&declared, &operator, "management"));
    assert!(!may_reach(&declared, &anybody, "management") && !may_reach(&declared, &neighbour, "management"));
    assert!(may_reach(&children::objects("no-network-policy"), &anybody, "management"));
}
