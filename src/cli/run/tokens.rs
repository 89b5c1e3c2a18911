//! Refreshed OAuth tokens of `run`: a document of the state file.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::api::time::EpochMs;
use crate::compile::oauth::{Grant, Tokens};
use crate::gateway::{Gateway, RestoreError, SaveError, clock};
use crate::oauth::Keeper;

/// The keeper of `run`.
pub struct StoredTokens {
    gateway: Arc<Gateway>,
    lasting: bool,
    tokens: Mutex<BTreeMap<String, Tokens>>,
    changed: Notify,
}

impl StoredTokens {
    /// What the store kept. `lasting` says whether it outlives the process.
    ///
    /// # Errors
    /// The store cannot be read, or holds something else.
    pub fn new(gateway: Arc<Gateway>, lasting: bool) -> Result<Self, RestoreError> {
        let tokens = Mutex::new(gateway.tokens()?);
        Ok(Self { gateway, lasting, tokens, changed: Notify::new() })
    }

    fn tokens(&self) -> MutexGuard<'_, BTreeMap<String, Tokens>> {
        self.tokens.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All of them, by Connection.
    pub fn all(&self) -> BTreeMap<String, Tokens> {
        self.tokens().clone()
    }

    /// Returns when some were refreshed.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }
}

impl Keeper for Arc<StoredTokens> {
    type Error = SaveError;

    fn now(&self) -> EpochMs {
        clock::now()
    }

    async fn latest(&self, _namespace: &str, grant: Grant) -> Result<Option<Grant>, SaveError> {
        if !self.lasting {
            tracing::warn!(connection = %grant.connection, "refreshed tokens are lost at the end of this process: name a --state-file");
        }
        let kept = self.tokens().get(&grant.connection).cloned();
        Ok(Some(grant.with(kept)))
    }

    async fn keep(&self, _namespace: &str, grant: &Grant, tokens: &Tokens) -> Result<(), SaveError> {
        let mut kept = self.tokens();
        let mut all = kept.clone();
        all.insert(grant.connection.clone(), tokens.clone());
        self.gateway.keep_tokens(&all)?;
        *kept = all;
        self.changed.notify_one();
        Ok(())
    }
}
