//! Writes children: server-side apply with one field manager, only what changed, only what is ours.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::core::DynamicObject;
use kube::{Api, Client};
use serde_json::json;

use super::child::{Child, ChildKind, Live};
use super::error::{CALL_TIMEOUT, Error, call};
use super::leader::Leadership;
use crate::api;

/// Field manager of children.
pub const FIELD_MANAGER: &str = "omniroute-operator";
/// Field manager under which `replicas` is left to an autoscaler (decisions 10.10).
pub const SCALE_MANAGER: &str = "omniroute-operator/scale";

/// The first write to a store has this version, and is none of an object.
const NO_VERSION: &str = "1";

/// The ResilienceSettings whose children are written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Owner {
    /// Namespace of everything.
    pub namespace: String,
    /// Name of the settings object.
    pub name: String,
    /// Its unique id.
    pub uid: String,
}

impl Owner {
    /// Whether an object is controlled by this owner.
    #[must_use]
    pub fn controls(&self, live: &Live) -> bool {
        live.controller.as_ref().is_some_and(|c| c.uid == self.uid)
    }
}

impl Owner {
    /// Why an object of a child's name is not touched.
    fn refused(&self, child: &Child, live: &Live) -> Error {
        let (kind, name, settings) = (child.kind.name().to_owned(), child.name.clone(), self.name.clone());
        let ours = |c: &OwnerReference| c.kind == "ResilienceSettings" && c.api_version.starts_with(api::GROUP);
        if live.controller.as_ref().is_some_and(ours) {
            Error::Predecessor { kind, name, settings }
        } else {
            Error::NameConflict { kind, name, settings }
        }
    }
}

/// Applies children of one cluster.
#[derive(Clone)]
pub struct Applier {
    client: Client,
    leadership: Leadership,
}

impl Applier {
    /// `client` must not retry by itself: a retried write could land after the lease is gone.
    #[must_use]
    pub fn new(client: Client, leadership: Leadership) -> Self {
        Self { client, leadership }
    }

    fn api(&self, kind: ChildKind, namespace: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), namespace, &kind.resource())
    }

    /// Reads a child that the caches do not show: it may exist without our labels.
    ///
    /// # Errors
    /// The API server's.
    pub async fn read(&self, kind: ChildKind, namespace: &str, name: &str) -> Result<Option<Live>, Error> {
        let doing = || format!("reading {kind:?} `{namespace}/{name}`");
        let found = call(doing, CALL_TIMEOUT, self.api(kind, namespace).get_opt(name)).await?;
        Ok(found.map(|object| Live::of(kind, object)))
    }

    /// Makes the child what it should be. `live` is what the cache shows; an unchanged child costs no request.
    /// Answers the child as it is afterwards when it was written.
    ///
    /// # Errors
    /// [`Error::NameConflict`] for an object of somebody else, [`Error::NotLeader`], or the API server's.
    pub async fn apply(&self, owner: &Owner, child: &Child, live: Option<&Live>) -> Result<Option<Live>, Error> {
        let found;
        let live = match live {
            Some(live) => Some(live),
            None => {
                found = self.read(child.kind, &owner.namespace, &child.name).await?;
                found.as_ref()
            }
        };
        if let Some(live) = live {
            if !owner.controls(live) {
                return Err(owner.refused(child, live));
            }
            if child.is_satisfied_by(live) {
                return Ok(None);
            }
        }
        let handed = match live {
            Some(live) if child.kind == ChildKind::Deployment => self.hand_over_replicas(owner, child, live).await?,
            _ => None,
        };
        let mut body = child.body.clone();
        if let Some(live) = handed.as_ref().or(live) {
            // A write on top of a state that we have not seen is refused with a conflict.
            body["metadata"]["resourceVersion"] = json!(live.resource_version);
        }
        self.patch(owner, child, FIELD_MANAGER, body).await.map(Some)
    }

    /// Makes a child that must not be there: of several operators that try at once one succeeds, and the others read what it made.
    ///
    /// # Errors
    /// [`Error::NotLeader`], or the API server's: a conflict when it is there.
    pub async fn create(&self, owner: &Owner, child: &Child) -> Result<Live, Error> {
        let mut body = child.body.clone();
        // Refused on top of any object, because none has this version; where there is none it does not matter.
        body["metadata"]["resourceVersion"] = json!(NO_VERSION);
        self.patch(owner, child, FIELD_MANAGER, body).await
    }

    /// When the intent no longer names `replicas`, an autoscaler is in charge. Dropping the field would let the API server default it
    /// to one, so the present value is first claimed under another manager. Answers the Deployment as it is afterwards.
    async fn hand_over_replicas(&self, owner: &Owner, child: &Child, live: &Live) -> Result<Option<Live>, Error> {
        let replicas = live.content.pointer("/spec/replicas");
        let fixed = live.annotations.get(super::build::ANNOTATION_SCALING).is_some_and(|v| v == "Fixed");
        let (Some(replicas), None, true) = (replicas, child.body.pointer("/spec/replicas"), fixed) else { return Ok(None) };
        // With the version that was seen: somebody may have scaled meanwhile.
        let body = json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": child.name, "namespace": owner.namespace, "resourceVersion": live.resource_version},
            "spec": {"replicas": replicas},
        });
        self.patch(owner, child, SCALE_MANAGER, body).await.map(Some)
    }

    async fn patch(&self, owner: &Owner, child: &Child, manager: &str, body: serde_json::Value) -> Result<Live, Error> {
        let doing = || format!("applying {:?} `{}/{}`", child.kind, owner.namespace, child.name);
        let params = PatchParams::apply(manager).force();
        let api = self.api(child.kind, &owner.namespace);
        self.leadership.check(doing)?;
        let patch = Patch::Apply(body);
        let written = call(doing, self.leadership.write_limit(), api.patch(&child.name, &params, &patch)).await?;
        tracing::info!(kind = ?child.kind, name = %child.name, manager, "applied");
        Ok(Live::of(child.kind, written))
    }

    /// Deletes a child that is no longer wanted, if it is still the one that was seen.
    ///
    /// # Errors
    /// [`Error::NotLeader`] or the API server's.
    pub async fn delete(&self, owner: &Owner, kind: ChildKind, name: &str, live: &Live) -> Result<(), Error> {
        if !owner.controls(live) || live.deleting {
            return Ok(());
        }
        let doing = || format!("deleting {kind:?} `{}/{name}`", owner.namespace);
        let params = DeleteParams {
            preconditions: Some(Preconditions { uid: Some(live.uid.clone()), resource_version: None }),
            ..DeleteParams::background()
        };
        let api = self.api(kind, &owner.namespace);
        self.leadership.check(doing)?;
        match call(doing, self.leadership.write_limit(), api.delete(name, &params)).await {
            Err(error) if error.status().is_some_and(kube::core::Status::is_not_found) => Ok(()),
            Err(error) => Err(error),
            Ok(_) => {
                tracing::info!(?kind, name, "deleted: no longer wanted");
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_children_of_these_settings_are_ours() {
        let owner = Owner { namespace: "a".into(), name: "default".into(), uid: "u2".into() };
        let child = Child { kind: ChildKind::Service, name: "omniroute-gateway".into(), body: json!({}) };
        let live = |kind: &str, uid: &str| Live {
            controller: Some(OwnerReference {
                api_version: "omniroute.dev/v1alpha1".into(),
                kind: kind.into(),
                uid: uid.into(),
                ..OwnerReference::default()
            }),
            ..Live::default()
        };
        assert!(owner.controls(&live("ResilienceSettings", "u2")));
        assert!(!owner.controls(&live("ResilienceSettings", "u1")) && !owner.controls(&Live::default()));
        assert_eq!(owner.refused(&child, &live("ResilienceSettings", "u1")).reason(), "Progressing");
        assert_eq!(owner.refused(&child, &live("Deployment", "u1")).reason(), "NameConflict");
        assert_eq!(owner.refused(&child, &Live::default()).reason(), "NameConflict");
    }
}
