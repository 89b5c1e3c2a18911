//! Refreshed OAuth tokens of `run`: a document of the state file.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Mutex as AsyncMutex, Notify};

use crate::api::time::EpochMs;
use crate::compile::oauth::{Grant, Tokens};
use crate::gateway::{Gateway, RestoreError, SaveError, clock};
use crate::oauth::{Keeper, Kept};

/// Why tokens are not kept.
#[derive(thiserror::Error, Debug)]
pub enum KeepError {
    /// The state file.
    #[error(transparent)]
    Save(#[from] SaveError),
    /// The thread that writes it.
    #[error("writing tokens to the state file: {0}")]
    Thread(#[source] tokio::task::JoinError),
}

/// The keeper of `run`.
pub struct StoredTokens {
    gateway: Arc<Gateway>,
    lasting: bool,
    tokens: Mutex<BTreeMap<String, Tokens>>,
    /// Held while they are written: one write is the whole document.
    writing: AsyncMutex<()>,
    changed: Notify,
}

impl StoredTokens {
    /// What the store kept. `lasting` says whether it outlives the process.
    ///
    /// # Errors
    /// The store cannot be read, or holds something else.
    pub fn new(gateway: Arc<Gateway>, lasting: bool) -> Result<Self, RestoreError> {
        let tokens = Mutex::new(gateway.tokens()?);
        Ok(Self { gateway, lasting, tokens, writing: AsyncMutex::default(), changed: Notify::new() })
    }

    fn tokens(&self) -> MutexGuard<'_, BTreeMap<String, Tokens>> {
        self.tokens.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All of them, by Connection.
    pub fn all(&self) -> BTreeMap<String, Tokens> {
        self.tokens().clone()
    }

    /// Writes the document with these tokens in it, on a thread that may block.
    async fn write(&self, connection: &str, tokens: Tokens) -> Result<(), KeepError> {
        let _one_at_a_time = self.writing.lock().await;
        let mut all = self.all();
        all.insert(connection.to_owned(), tokens);
        let gateway = Arc::clone(&self.gateway);
        let saved = tokio::task::spawn_blocking(move || gateway.keep_tokens(&all).map(|()| all)).await;
        *self.tokens() = saved.map_err(KeepError::Thread)??;
        Ok(())
    }

    /// Returns when some were refreshed.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }
}

impl Keeper for Arc<StoredTokens> {
    type Error = KeepError;

    fn now(&self) -> EpochMs {
        clock::now()
    }

    async fn latest(&self, _namespace: &str, grant: Grant) -> Result<Option<Grant>, KeepError> {
        if !self.lasting {
            tracing::warn!(connection = %grant.connection, "refreshed tokens are lost at the end of this process: name a --state-file");
        }
        let kept = self.tokens().get(&grant.connection).cloned();
        Ok(Some(grant.with(kept)))
    }

    async fn begin(&self, _namespace: &str, grant: &Grant, _at: EpochMs) -> Result<Kept, KeepError> {
        // The file is this process's own: whoever reads it next waits for nobody. But what cannot be written now could not be kept either.
        self.write(&grant.connection, Tokens { asked: None, ..grant.tokens.clone() }).await?;
        Ok(Kept::Yes)
    }

    async fn keep(&self, _namespace: &str, grant: &Grant, tokens: &Tokens) -> Result<Kept, KeepError> {
        self.write(&grant.connection, tokens.clone()).await?;
        self.changed.notify_one();
        Ok(Kept::Yes)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;
    use crate::gateway::store::{Document, Store, StoreError};
    use crate::snapshot::Secret;

    /// A disk that is done with tokens only when somebody else has had a turn.
    #[derive(Debug)]
    struct Slow(Mutex<mpsc::Receiver<()>>);

    impl Store for Slow {
        fn load(&self, _document: Document) -> Result<Option<Vec<u8>>, StoreError> {
            Ok(None)
        }

        fn save(&self, document: Document, _bytes: &[u8]) -> Result<(), StoreError> {
            let full = |_| StoreError::Write { document: "tokens", source: rusqlite::Error::InvalidQuery };
            if document == Document::Tokens { self.0.lock().unwrap().recv_timeout(Duration::from_secs(10)).map_err(full) } else { Ok(()) }
        }
    }

    #[tokio::test]
    async fn a_slow_disk_holds_up_nobody_and_loses_nothing() {
        let (turn, slow) = mpsc::channel();
        let gateway = Gateway::new(Box::new(Slow(Mutex::new(slow)))).unwrap();
        let kept = Arc::new(StoredTokens::new(gateway, true).unwrap());
        let old = Tokens { access: Secret::new("1"), asked: Some(EpochMs(0)), ..Tokens::default() };
        let grant = |name: &str| Grant { connection: name.into(), tokens: old.clone(), ..Grant::default() };
        let (first, second) = (grant("a"), grant("b"));
        let tokens = Tokens { access: Secret::new("2"), ..Tokens::default() };
        let others = async { turn.send(()).and_then(|()| turn.send(())) };
        let (a, b, others) = tokio::join!(kept.begin("", &first, EpochMs(1)), kept.keep("", &second, &tokens), others);
        assert_eq!((a.unwrap(), b.unwrap(), others), (Kept::Yes, Kept::Yes, Ok(())));
        let all = kept.all();
        assert_eq!((all["a"].access.expose(), all["b"].access.expose()), ("1", "2"), "one write does not undo the other");
        assert_eq!(all["a"].asked, None, "the next process waits for no answer to this one");
    }
}
