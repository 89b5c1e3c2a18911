//! Refreshes tokens before they end, and has the new ones kept before anything else happens: a refresh token that was rotated and lost is an account
//! lost.

use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rand::RngExt as _;
use tokio::sync::{Notify, Semaphore, SemaphorePermit};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::client::{RefreshError, refresh};
use super::jobs::{Jobs, Key, Retry};
use crate::api::time::EpochMs;
use crate::compile::oauth::{Grant, Tokens};
use crate::dial::tls::TlsConfigs;

/// Token endpoints asked at a time.
const CONCURRENCY: usize = 8;
/// When a job that cannot be done now is looked at again.
const NOT_NOW: i64 = 2_000;
/// Pause between two attempts to keep tokens.
const KEEP_AGAIN: Duration = Duration::from_secs(2);
/// Longest sleep: clocks may be set.
const LOOK_AGAIN: Duration = Duration::from_secs(60);

/// What came of an attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// New tokens are in force.
    Refreshed,
    /// It failed and is tried again.
    Failed,
    /// There will be no others.
    Refused,
}

/// Where tokens are kept.
pub trait Keeper: Send + Sync + 'static {
    /// Why tokens are not kept (yet).
    type Error: std::fmt::Display + Send;

    /// Now.
    fn now(&self) -> EpochMs;

    /// The grant with the tokens as they are kept at this moment, not as a cache has them: a refresh token may be good for one use. `None` when it is
    /// not for this process to refresh them now.
    fn latest(&self, namespace: &str, grant: Grant) -> impl Future<Output = Result<Option<Grant>, Self::Error>> + Send;

    /// Keeps tokens; called again until it succeeds.
    fn keep(&self, namespace: &str, grant: &Grant, tokens: &Tokens) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Told of every attempt.
    fn came_to(&self, _outcome: Outcome) {}
}

/// Refreshes tokens; cheap to clone.
pub struct Refresher<K> {
    shared: Arc<Shared<K>>,
}

impl<K> Clone for Refresher<K> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

struct Shared<K> {
    keeper: K,
    jobs: Mutex<Jobs>,
    wake: Notify,
    tls: TlsConfigs,
    permits: Semaphore,
    stop: CancellationToken,
}

impl<K: Keeper> Refresher<K> {
    /// A refresher without work; `pauses` lie between the attempts, usually [`super::PAUSES`].
    #[must_use]
    pub fn new(keeper: K, pauses: [Duration; 3], stop: CancellationToken) -> Self {
        let (jobs, tls) = (Mutex::new(Jobs::new(pauses)), TlsConfigs::default());
        Self { shared: Arc::new(Shared { keeper, jobs, wake: Notify::new(), tls, permits: Semaphore::new(CONCURRENCY), stop }) }
    }

    /// What a namespace (empty in files) needs from now on.
    pub fn set(&self, namespace: &str, grants: Vec<Grant>) {
        self.shared.jobs().set(namespace, grants);
        self.shared.wake.notify_one();
    }

    /// Works until it is stopped; tokens that were issued by then are kept.
    pub async fn run(self) {
        let shared = self.shared;
        let running = TaskTracker::new();
        loop {
            for (key, grant) in shared.jobs().take(shared.keeper.now()) {
                let shared = Arc::clone(&shared);
                running.spawn(async move {
                    if let Ok(permit) = shared.permits.acquire().await {
                        shared.work(&key, grant, permit).await;
                        shared.tls.sweep();
                    }
                    shared.wake.notify_one();
                });
            }
            let now = shared.keeper.now();
            let pause = shared.jobs().next().map_or(LOOK_AGAIN, |at| Duration::from_millis(at.since(now)).min(LOOK_AGAIN));
            tokio::select! {
                () = shared.stop.cancelled() => break,
                () = shared.wake.notified() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
        running.close();
        running.wait().await;
    }
}

impl<K: Keeper> Shared<K> {
    fn jobs(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn work(&self, key: &Key, grant: Grant, permit: SemaphorePermit<'_>) {
        let (namespace, connection) = (key.0.as_str(), key.1.as_str());
        let later = || EpochMs(self.keeper.now().0 + NOT_NOW);
        let grant = match self.keeper.latest(namespace, grant).await {
            Ok(Some(grant)) => grant,
            Ok(None) => return self.jobs().postpone(key, later()),
            Err(error) => {
                tracing::warn!(namespace, connection, %error, "kept tokens could not be read, trying again");
                return self.jobs().postpone(key, later());
            }
        };
        if grant.due().is_none_or(|due| due > self.keeper.now()) {
            return self.jobs().done(key, grant);
        }
        // The owner's tokens go the way that the next ones will: what cannot be kept must not be asked for.
        if grant.tokens.refreshed.is_none()
            && let Err(error) = self.keeper.keep(namespace, &grant, &grant.tokens).await
        {
            tracing::warn!(namespace, connection, %error, "tokens cannot be kept, so none are asked for yet");
            return self.jobs().postpone(key, later());
        }
        // Others may have waited for their turn while the process was told to end: what could not be kept in time would be lost.
        if self.stop.is_cancelled() {
            return self.jobs().postpone(key, later());
        }
        let tokens = match refresh(&grant, &self.tls).await {
            Ok(new) => {
                tracing::info!(namespace, connection, rotated = new.refresh.is_some(), "tokens refreshed");
                self.keeper.came_to(Outcome::Refreshed);
                grant.renewed(new.access, new.refresh, new.lifetime_ms, self.keeper.now())
            }
            Err(error) => {
                let jitter = rand::rng().random_range(-1.0..=1.0);
                let last =
                    matches!(error, RefreshError::Refused { .. }) || self.jobs().failed(key, jitter, self.keeper.now()) == Retry::Never;
                tracing::warn!(namespace, connection, %error, last, "tokens could not be refreshed");
                self.keeper.came_to(if last { Outcome::Refused } else { Outcome::Failed });
                if !last {
                    return;
                }
                grant.refused(error.to_string())
            }
        };
        // Keeping may take for ever where a namespace does not let us: the others must not wait for it.
        drop(permit);
        if self.keep(namespace, &grant, &tokens).await {
            self.jobs().done(key, Grant { tokens, ..grant });
        } else {
            self.jobs().postpone(key, later());
        }
    }

    /// Has tokens kept, however long it takes; answers false when the process ends first.
    async fn keep(&self, namespace: &str, grant: &Grant, tokens: &Tokens) -> bool {
        loop {
            // Asked before the process may end: what was issued a moment ago is worth a last write.
            let Err(error) = self.keeper.keep(namespace, grant, tokens).await else { return true };
            tracing::error!(namespace, connection = %grant.connection, %error, "refreshed tokens could not be kept, trying again");
            tokio::select! {
                () = self.stop.cancelled() => return false,
                () = tokio::time::sleep(KEEP_AGAIN) => {}
            }
        }
    }
}
