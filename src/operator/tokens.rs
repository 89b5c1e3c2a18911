//! Keeps refreshed OAuth tokens in Secrets of our own, one for each Connection, owned by it.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Secret as KubeSecret;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};

use super::apply::FIELD_MANAGER;
use super::build::MANAGED_BY;
use super::clock;
use super::error::{CALL_TIMEOUT, Error, call};
use super::leader::Leadership;
use super::metrics::Metrics;
use crate::api::time::EpochMs;
use crate::compile::oauth::{Grant, Tokens, is_own, own_secret};
use crate::oauth::{Keeper, Kept, Outcome};

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

    /// Writes our Secret on top of what was read: as it is now, or not at all.
    async fn write(&self, namespace: &str, grant: &Grant, tokens: &Tokens, found: Option<KubeSecret>) -> Result<(), Error> {
        let mut secret = tokens.secret(&grant.connection, &grant.uid);
        let labels = [("name", "omniroute-oauth"), ("component", "credentials"), ("part-of", "omniroute"), ("managed-by", MANAGED_BY)];
        secret.metadata.labels = Some(labels.map(|(key, value)| (format!("app.kubernetes.io/{key}"), value.to_owned())).into());
        secret.metadata.resource_version = found.and_then(|found| found.metadata.resource_version);
        let name = own_secret(&grant.connection);
        let doing = || format!("writing Secret `{namespace}/{name}`");
        let params = PatchParams::apply(FIELD_MANAGER).force();
        let (api, patch) = (self.api(namespace), Patch::Apply(typed(&secret)?));
        call(doing, self.leadership.write_limit(), api.patch(&name, &params, &patch)).await?;
        self.metrics.child_write("Secret", "Written");
        Ok(())
    }
}

/// A Secret as server-side apply wants it, with its kind.
fn typed(secret: &KubeSecret) -> Result<serde_json::Value, Error> {
    let name = secret.metadata.name.clone().unwrap_or_default();
    serde_json::to_value(secret).map_err(|source| Error::Encode { what: format!("Secret `{name}`"), source })
}

/// Whether these are the tokens of a grant, and nobody has tried anything with them since they were read.
fn is_unchanged(there: Option<&Tokens>, grant: &Grant) -> bool {
    // Tokens of another seed give way to the owner's new ones.
    let there = there.filter(|there| there.seed == grant.tokens.seed);
    there.is_none_or(|there| there.is_pair(&grant.tokens) && there.asked == grant.tokens.asked)
}

impl Keeper for TokenSecrets {
    type Error = Error;

    fn now(&self) -> EpochMs {
        clock::now()
    }

    async fn latest(&self, namespace: &str, grant: Grant) -> Result<Option<Grant>, Error> {
        if !self.leadership.may_write() {
            return Ok(None);
        }
        let kept = self.read(namespace, &grant).await?;
        Ok(Some(grant.with(kept.as_ref().and_then(Tokens::read))))
    }

    async fn begin(&self, namespace: &str, grant: &Grant, at: EpochMs) -> Result<Kept, Error> {
        let found = self.read(namespace, grant).await?;
        if !is_unchanged(found.as_ref().and_then(Tokens::read).as_ref(), grant) {
            return Ok(Kept::Overtaken);
        }
        self.leadership.check(|| format!("noting a refresh of Connection `{namespace}/{}`", grant.connection))?;
        self.write(namespace, grant, &Tokens { asked: Some(at), ..grant.tokens.clone() }, found).await?;
        Ok(Kept::Yes)
    }

    /// The one write that needs no lease. Whoever sent a refresh token holds the only successor that the vendor knows, and must not lose it together
    /// with the lease; but it lands on top of the very tokens that were exchanged, or not at all, so no later writer is ever overruled.
    async fn keep(&self, namespace: &str, grant: &Grant, tokens: &Tokens) -> Result<Kept, Error> {
        let found = self.read(namespace, grant).await?;
        let there = found.as_ref().and_then(Tokens::read);
        if there.as_ref().is_some_and(|there| !there.is_pair(&grant.tokens)) {
            return Ok(Kept::Overtaken);
        }
        // A refusal is no loss: the leader will hear it as well. And what is gone is not made again by a replica that does not lead.
        if (tokens.refused.is_some() || there.is_none()) && !self.leadership.may_write() {
            return Ok(Kept::Overtaken);
        }
        match self.write(namespace, grant, tokens, found).await {
            Ok(()) => Ok(Kept::Yes),
            // The namespace went, and the account with it.
            Err(error) if error.is_namespace_gone() => Ok(Kept::Overtaken),
            Err(error) => Err(error),
        }
    }

    async fn ended(&self, namespace: &str, grant: &Grant, at: EpochMs) -> Result<(), Error> {
        let found = self.read(namespace, grant).await?;
        let there = found.as_ref().and_then(Tokens::read);
        let Some(there) = there.filter(|there| there.is_pair(&grant.tokens) && there.asked == Some(at)) else { return Ok(()) };
        self.leadership.check(|| format!("noting the end of a refresh of Connection `{namespace}/{}`", grant.connection))?;
        self.write(namespace, grant, &Tokens { asked: None, ..there }, found).await
    }

    fn came_to(&self, outcome: Outcome) {
        self.metrics.oauth_refresh(outcome);
    }
}
