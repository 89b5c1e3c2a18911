//! Keeps refreshed OAuth tokens in Secrets of our own, one for each Connection, owned by it.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use k8s_openapi::api::core::v1::Secret as KubeSecret;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;

use super::apply::FIELD_MANAGER;
use super::build::MANAGED_BY;
use super::error::{CALL_TIMEOUT, Error, call};
use super::leader::Leadership;
use super::metrics::Metrics;
use crate::api::time::EpochMs;
use crate::compile::oauth::{Grant, Tokens, is_own, own_secret};
use crate::oauth::{Keeper, Outcome};

/// The keeper of the operator.
pub struct TokenSecrets {
    client: Client,
    leadership: Leadership,
    metrics: Arc<Metrics>,
}

impl TokenSecrets {
    /// `client` must not retry by itself.
    #[must_use]
    pub fn new(client: Client, leadership: Leadership, metrics: Arc<Metrics>) -> Self {
        Self { client, leadership, metrics }
    }

    fn api(&self, namespace: &str) -> Api<KubeSecret> {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// Our Secret of a connection, if it exists.
    async fn read(&self, namespace: &str, grant: &Grant) -> Result<Option<KubeSecret>, Error> {
        let name = own_secret(&grant.connection);
        let doing = || format!("reading Secret `{namespace}/{name}`");
        let found = call(doing, CALL_TIMEOUT, self.api(namespace).get_opt(&name)).await?;
        match found {
            Some(secret) if !is_own(&secret, &grant.connection, &grant.uid) => {
                Err(Error::ForeignTokens { name, connection: grant.connection.clone() })
            }
            found => Ok(found),
        }
    }
}

impl Keeper for TokenSecrets {
    type Error = Error;

    fn now(&self) -> EpochMs {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        EpochMs(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
    }

    async fn latest(&self, namespace: &str, grant: Grant) -> Result<Option<Grant>, Error> {
        if !self.leadership.may_write() {
            return Ok(None);
        }
        let kept = self.read(namespace, &grant).await?;
        Ok(Some(grant.with(kept.as_ref().and_then(Tokens::read))))
    }

    async fn keep(&self, namespace: &str, grant: &Grant, tokens: &Tokens) -> Result<(), Error> {
        let kept = self.read(namespace, grant).await?;
        // Another replica may have led while this one could not write: older tokens must not replace what it was issued since.
        let there = kept.as_ref().and_then(Tokens::read).and_then(|there| there.refreshed);
        if tokens.refreshed.is_some() && there > tokens.refreshed {
            return Ok(());
        }
        let mut secret = tokens.secret(&grant.connection, &grant.uid);
        let labels = [("name", "omniroute-oauth"), ("component", "credentials"), ("part-of", "omniroute"), ("managed-by", MANAGED_BY)];
        secret.metadata.labels = Some(labels.map(|(key, value)| (format!("app.kubernetes.io/{key}"), value.to_owned())).into());
        let name = own_secret(&grant.connection);
        let doing = || format!("writing Secret `{namespace}/{name}`");
        let encode = |source| Error::Encode { what: format!("Secret `{name}`"), source };
        let mut body = serde_json::to_value(&secret).map_err(encode)?;
        if let Some(version) = kept.and_then(|kept| kept.metadata.resource_version) {
            // Nobody else writes it, unless this replica no longer leads.
            body["metadata"]["resourceVersion"] = json!(version);
        }
        let params = PatchParams::apply(FIELD_MANAGER).force();
        self.leadership.check(doing)?;
        let (api, patch) = (self.api(namespace), Patch::Apply(body));
        call(doing, self.leadership.write_limit(), api.patch(&name, &params, &patch)).await?;
        self.metrics.child_write("Secret", "Written");
        Ok(())
    }

    fn came_to(&self, outcome: Outcome) {
        self.metrics.oauth_refresh(&format!("{outcome:?}"));
    }
}
