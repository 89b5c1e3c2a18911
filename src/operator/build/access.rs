//! What the gateway pods may do in the cluster: read their own config, nothing else.

use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::rbac::v1::{PolicyRule, Role, RoleBinding, RoleRef, Subject};

use super::{Meta, names};
use crate::operator::child::{Child, ChildKind};

/// ServiceAccount, Role and RoleBinding.
///
/// # Errors
/// As [`Child::new`].
pub(super) fn children(meta: &Meta<'_>) -> serde_json::Result<Vec<Child>> {
    let account = ServiceAccount {
        metadata: meta.object(names::GATEWAY),
        // The Deployment asks for the token; nobody else who uses the account gets one by accident.
        automount_service_account_token: Some(false),
        ..ServiceAccount::default()
    };
    let role = Role {
        metadata: meta.object(names::GATEWAY),
        rules: Some(vec![PolicyRule {
            api_groups: Some(vec![String::new()]),
            resources: Some(vec!["secrets".to_owned()]),
            resource_names: Some(vec![names::CONFIG.to_owned()]),
            // A watch with a field selector on one name needs `list` as well (decisions 10.14).
            verbs: ["get", "list", "watch"].map(str::to_owned).to_vec(),
            ..PolicyRule::default()
        }]),
    };
    let binding = RoleBinding {
        metadata: meta.object(names::GATEWAY),
        // What is always there in one Kubernetes is optional in another (feature `k8s-v1-37`).
        #[allow(clippy::useless_conversion)]
        role_ref: RoleRef {
            api_group: "rbac.authorization.k8s.io".to_owned().into(),
            kind: "Role".to_owned(),
            name: names::GATEWAY.to_owned(),
        },
        subjects: Some(vec![Subject {
            kind: "ServiceAccount".to_owned(),
            name: names::GATEWAY.to_owned(),
            namespace: Some(meta.owner.namespace.clone()),
            ..Subject::default()
        }]),
    };
    Ok(vec![
        Child::new(ChildKind::ServiceAccount, names::GATEWAY, &account)?,
        Child::new(ChildKind::Role, names::GATEWAY, &role)?,
        Child::new(ChildKind::RoleBinding, names::GATEWAY, &binding)?,
    ])
}
