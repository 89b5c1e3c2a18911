//! What the pods of a namespace know, kept for their successors.

use std::time::Instant;

use futures::future::join_all;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;

use super::{State, Worker, target};
use crate::operator::apply::Owner;
use crate::operator::build::names;
use crate::operator::checkpoint;
use crate::operator::error::{CALL_TIMEOUT, Error, call};
use crate::operator::observe::Target;
use crate::operator::schedule::Work;
use crate::resilience::Checkpoint;

impl Worker {
    /// Asks the pods for their checkpoint and writes it, if it is time and something changed.
    pub(super) async fn write_checkpoint(&self, namespace: &str, state: &mut State) {
        let Some((owner, _)) = state.current.as_ref().and_then(|c| c.gateway.as_ref()) else { return };
        let owner = owner.clone();
        let now = Instant::now();
        match state.pace.due(now) {
            None => return,
            Some(at) if at > now => {
                self.parts.todo.at(namespace, Work::Report, at);
                return;
            }
            Some(_) => state.pace.begun(now),
        }
        let pods = self.parts.caches.pods.namespace(namespace);
        let ready: Vec<Target> = pods.iter().filter(|(_, p)| p.ready).filter_map(|(_, p)| target(namespace, p)).collect();
        // One that is silent is not asked, but missed: what is written would lack what it knows.
        let targets: Vec<&Target> = ready.iter().filter(|t| !self.parts.observer.is_silent(&t.uid)).collect();
        let answers = join_all(targets.iter().map(|t| self.parts.observer.checkpoint(t))).await;
        let answers: Vec<_> = answers.into_iter().flatten().collect();
        let write = state.pace.answered(answers.len() == ready.len());
        if let Some(at) = state.pace.due(now) {
            self.parts.todo.at(namespace, Work::Report, at);
        }
        let Some(merged) = checkpoint::merged(&answers).filter(|_| write) else { return };
        if let Err(error) = self.put_checkpoint(&owner, &merged, state).await {
            if !matches!(error, Error::NotLeader { .. }) {
                tracing::warn!(namespace, %error, "the checkpoint could not be written, trying again");
            }
            self.parts.todo.at(namespace, Work::Report, now + checkpoint::INTERVAL);
            state.pace.changed();
        }
    }

    async fn put_checkpoint(&self, owner: &Owner, merged: &Checkpoint, state: &mut State) -> Result<(), Error> {
        let content = checkpoint::content(merged);
        if state.checkpoint.is_none() {
            let doing = || format!("reading ConfigMap `{}/{}`", owner.namespace, names::CHECKPOINT);
            let api: Api<ConfigMap> = Api::namespaced(self.parts.client.clone(), &owner.namespace);
            let there = call(doing, CALL_TIMEOUT, api.get_opt(names::CHECKPOINT)).await?;
            state.checkpoint = there.and_then(|m| checkpoint::unpack(&m)).map(|c| checkpoint::content(&c));
        }
        if state.checkpoint.as_ref() == Some(&content) {
            return Ok(());
        }
        match checkpoint::child(owner, merged) {
            Ok(child) => {
                self.apply(owner, &child).await?;
                state.checkpoint = Some(content);
            }
            Err(error) => tracing::error!(namespace = %owner.namespace, %error, "the checkpoint is not written"),
        }
        Ok(())
    }
}
