//! What happens with the rights of the shipped roles, with fewer, and what people may do by the aggregated ones.

use std::time::Duration;

use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};

use crate::support::{Cluster, FakePod, Running, client_as, condition, eventually, kubectl, text};
use crate::{CHILDREN, LEASE, QUICKSTART, all_ready};

const OPERATOR_ROLE: &str = include_str!("../../config/rbac/operator_role.yaml");
const ELECTION_ROLE: &str = include_str!("../../config/rbac/leader_election_role.yaml");

/// The rules of the shipped roles of the operator.
fn shipped() -> Vec<Value> {
    let roles = [OPERATOR_ROLE, ELECTION_ROLE].map(|text| serde_saphyr::from_multiple::<Value>(text).unwrap().remove(0));
    roles.iter().flat_map(|role| role["rules"].as_array().unwrap().clone()).collect()
}

/// The same without one verb on one resource.
fn without(verb: &str, resource: &str) -> Vec<Value> {
    let mut rules = shipped();
    let rule = rules.iter_mut().find(|rule| rule["resources"].as_array().unwrap().contains(&json!(resource))).unwrap();
    let verbs = rule["verbs"].as_array_mut().unwrap();
    let before = verbs.len();
    verbs.retain(|v| v != verb);
    assert_eq!(verbs.len(), before - 1);
    rules
}

/// Gives a user these rights in the namespace, and no others.
async fn grant(cluster: &Cluster, user: &str, rules: &[Value]) {
    let group = "rbac.authorization.k8s.io";
    let role = json!({"apiVersion": format!("{group}/v1"), "kind": "Role", "metadata": {"name": "operator"}, "rules": rules});
    cluster.apply(&role.to_string()).await;
    let binding = json!({
        "apiVersion": format!("{group}/v1"), "kind": "RoleBinding", "metadata": {"name": "operator"},
        "roleRef": {"apiGroup": group, "kind": "Role", "name": "operator"},
        "subjects": [{"apiGroup": group, "kind": "User", "name": user}],
    });
    cluster.apply(&binding.to_string()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_right_is_a_condition_that_names_it_and_hurts_nobody_else() {
    let Some(team) = Cluster::open("op-rights").await else { return };
    let other = Cluster::open("op-rights-other").await.unwrap();
    let user = "operator-with-the-shipped-role";
    grant(&team, user, &without("patch", "deployments")).await;
    grant(&other, user, &shipped()).await;
    for namespace in [&team, &other] {
        namespace.apply(QUICKSTART).await;
    }
    let mut config = team.config("one", LEASE);
    config.watch_namespaces = vec![team.namespace.clone(), other.namespace.clone()];
    let operator = Running::start(client_as(user).await, config);

    let settings = team.until_ready("ResilienceSettings", "default", "False", "Forbidden").await;
    let message = settings["status"]["conditions"].as_array().unwrap().iter().map(|c| text(c, "/message")).collect::<String>();
    assert!(message.contains("cannot patch resource \"deployments\""), "{message}");
    assert_eq!(condition(&settings, "Stalled").0, "", "somebody may give the right back at any time");
    // Everything that needs no such right is done, here and next door.
    let _pods = (FakePod::start(&team, "pod-1").await, FakePod::start(&other, "pod-1").await);
    for (kind, name) in CHILDREN {
        assert_eq!(team.get(kind, name).await.is_some(), kind != "Deployment", "{kind}");
    }
    for (kind, name) in [("Provider", "openai"), ("Connection", "a"), ("Combo", "assistant")] {
        team.until_ready(kind, name, "True", "Accepted").await;
    }
    all_ready(&other).await;
    let told = || async { team.events("ResilienceSettings").await.contains(&"Forbidden".to_owned()) };
    eventually("an event says so", Duration::from_secs(10), || async { told().await }).await;

    grant(&team, user, &shipped()).await;
    // Nothing tells the operator that it has the right again: it tries with growing pauses.
    team.until("ResilienceSettings", "default", "ready", Duration::from_secs(120), |o| condition(o, "Ready").0 == "True").await;
    assert!(team.get("Deployment", "omniroute-gateway").await.is_some());
    operator.terminate().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn view_edit_and_admin_may_do_what_the_roles_say() {
    let Some(cluster) = Cluster::open("op-people").await else { return };
    kubectl(&["apply", "-f", "config/rbac/aggregated_roles.yaml"]);
    for role in ["view", "edit", "admin"] {
        kubectl(&["create", "rolebinding", "-n", "op-people", role, &format!("--clusterrole={role}"), &format!("--user={role}er")]);
    }
    let may = async |user: &str, verb: &str, group: &str, resource: &str| -> bool {
        let review = json!({"spec": {
            "user": user,
            "resourceAttributes": {"namespace": "op-people", "verb": verb, "group": group, "resource": resource},
        }});
        let api: Api<SubjectAccessReview> = Api::all(cluster.client.clone());
        let answer = api.create(&PostParams::default(), &serde_json::from_value(review).unwrap()).await.unwrap();
        answer.status.unwrap().allowed
    };
    // A controller copies the rules into the roles of the cluster.
    eventually("the roles are aggregated", Duration::from_secs(20), || may("adminer", "delete", OURS, "connections")).await;
    eventually("the roles are aggregated", Duration::from_secs(20), || may("editer", "update", OURS, "combos")).await;
    eventually("the roles are aggregated", Duration::from_secs(20), || may("viewer", "watch", OURS, "combos")).await;
    for (resource, edit) in
        [("combos", true), ("operatorerrorrules", true), ("providers", false), ("connections", false), ("resiliencesettings", false)]
    {
        for verb in ["get", "list", "watch"] {
            for user in ["viewer", "editer", "adminer"] {
                assert!(may(user, verb, OURS, resource).await, "{user} {verb} {resource}");
            }
        }
        for verb in ["create", "update", "patch", "delete"] {
            let allowed = [
                may("viewer", verb, OURS, resource).await,
                may("editer", verb, OURS, resource).await,
                may("adminer", verb, OURS, resource).await,
            ];
            assert_eq!(allowed, [false, edit, true], "{verb} {resource}");
        }
        // Status belongs to the operator.
        assert!(!may("adminer", "patch", OURS, &format!("{resource}/status")).await, "{resource}/status");
    }
    assert!(!may("viewer", "get", "", "secrets").await, "who may look at our kinds sees no credential");
    assert!(!may("nobody", "get", OURS, "combos").await);
}

const OURS: &str = "omniroute.dev";
