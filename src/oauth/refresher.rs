//! Refreshes tokens before they end, and has the new ones kept before anything else happens: a refresh token that was rotated and lost is an account
//! lost.

use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rand::RngExt as _;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::client::{RefreshError, TIMEOUT, refresh};
use super::jobs::{Jobs, Key, Retry};
use crate::api::time::EpochMs;
use crate::compile::oauth::{Grant, Tokens};
use crate::dial::tls::TlsConfigs;

/// When a job that cannot be done now is looked at again.
const NOT_NOW: i64 = 2_000;
/// Pause between two attempts to keep tokens.
const KEEP_AGAIN: Duration = Duration::from_secs(2);
/// Attempts to keep tokens once the process is to end.
const LAST_ATTEMPTS: u32 = 3;
/// How long after the refresh token was sent its successor may still come to be kept: the endpoint's time and that of a few writes.
const UNDER_WAY: Duration = TIMEOUT.saturating_add(Duration::from_secs(10));
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

/// What came of keeping something.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kept {
    /// It is kept.
    Yes,
    /// Others have gone on since the tokens were read; theirs stay.
    Overtaken,
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

    /// Notes that the refresh token of a grant, as [`Self::latest`] answered it, is sent at this time. What cannot be noted is not asked for: it could
    /// not be kept either.
    fn begin(&self, namespace: &str, grant: &Grant, at: EpochMs) -> impl Future<Output = Result<Kept, Self::Error>> + Send;

    /// The attempt that began at `at` has issued nothing, and no answer to it can come any more: whoever goes on need not wait for one. Said once, whether
    /// or not it can be noted.
    fn ended(&self, _namespace: &str, _grant: &Grant, _at: EpochMs) -> impl Future<Output = Result<(), Self::Error>> + Send {
        std::future::ready(Ok(()))
    }

    /// Keeps what came of it, unless others have gone on since; called again until it succeeds.
    fn keep(&self, namespace: &str, grant: &Grant, tokens: &Tokens) -> impl Future<Output = Result<Kept, Self::Error>> + Send;

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
    stop: CancellationToken,
}

impl<K: Keeper> Refresher<K> {
    /// A refresher without work; `pauses` lie between the attempts, usually [`super::PAUSES`].
    #[must_use]
    pub fn new(keeper: K, pauses: [Duration; 3], stop: CancellationToken) -> Self {
        let (jobs, tls) = (Mutex::new(Jobs::new(pauses)), TlsConfigs::default());
        Self { shared: Arc::new(Shared { keeper, jobs, wake: Notify::new(), tls, stop }) }
    }

    /// What a namespace (empty in files) needs from now on.
    pub fn set(&self, namespace: &str, grants: Vec<Grant>) {
        self.shared.jobs().set(namespace, grants);
        self.shared.wake.notify_one();
    }

    /// Nothing is to be refreshed any more, until it is set again.
    pub fn clear(&self) {
        self.shared.jobs().clear();
    }

    /// Works until it is stopped; tokens that were issued by then are kept. When it is dropped, all of its work ends at once.
    pub async fn run(self) {
        let shared = self.shared;
        let mut running = JoinSet::new();
        loop {
            for (key, grant) in shared.jobs().take(shared.keeper.now()) {
                let shared = Arc::clone(&shared);
                running.spawn(async move {
                    shared.work(&key, grant).await;
                    shared.tls.sweep();
                    shared.wake.notify_one();
                });
            }
            let now = shared.keeper.now();
            let pause = shared.jobs().next().map_or(LOOK_AGAIN, |at| Duration::from_millis(at.since(now)).min(LOOK_AGAIN));
            tokio::select! {
                () = shared.stop.cancelled() => break,
                () = shared.wake.notified() => {}
                Some(_) = running.join_next() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
        while running.join_next().await.is_some() {}
    }
}

impl<K: Keeper> Shared<K> {
    fn jobs(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn work(&self, key: &Key, grant: Grant) {
        let (namespace, connection) = (key.0.as_str(), key.1.as_str());
        let Some((grant, at)) = self.begun(key, grant).await else { return };
        let answer = refresh(&grant, &self.tls).await;
        let tokens = match answer {
            Ok(new) => {
                tracing::info!(namespace, connection, rotated = new.refresh.is_some(), "tokens refreshed");
                self.keeper.came_to(Outcome::Refreshed);
                grant.renewed(new.access, new.refresh, new.lifetime_ms, self.keeper.now())
            }
            Err(error) => {
                // A refusal is kept below, and says the same.
                if matches!(error, RefreshError::Failed(_) | RefreshError::Unreachable { .. }) {
                    let noted = self.keeper.ended(namespace, &grant, at).await;
                    let _ =
                        noted.inspect_err(|error| tracing::debug!(namespace, connection, %error, "the end of the attempt is not noted"));
                }
                let jitter = rand::rng().random_range(-1.0..=1.0);
                let again = || self.jobs().failed(key, grant.tokens.expires, jitter, self.keeper.now());
                let last = matches!(error, RefreshError::Refused { .. }) || again() == Retry::Never;
                tracing::warn!(namespace, connection, %error, detail = error.detail(), last, "tokens could not be refreshed");
                self.keeper.came_to(if last { Outcome::Refused } else { Outcome::Failed });
                if !last {
                    return;
                }
                grant.refused(error.to_string())
            }
        };
        // Keeping may take for ever where a namespace does not let us: the others must not wait for it.
        self.jobs().answered(key);
        self.wake.notify_one();
        match self.keep(namespace, &grant, &tokens).await {
            Some(Kept::Yes) => self.jobs().done(key, Grant { tokens, ..grant }),
            Some(Kept::Overtaken) | None => self.jobs().postpone(key, self.later()),
        }
    }

    fn later(&self) -> EpochMs {
        EpochMs(self.keeper.now().0 + NOT_NOW)
    }

    /// The grant whose refresh token is to be sent now, and the time that was noted. Otherwise the job is at its end for the time being.
    async fn begun(&self, key: &Key, grant: Grant) -> Option<(Grant, EpochMs)> {
        let (namespace, connection) = (key.0.as_str(), key.1.as_str());
        let grant = match self.keeper.latest(namespace, grant).await {
            Ok(Some(grant)) => grant,
            Ok(None) => {
                self.jobs().postpone(key, self.later());
                return None;
            }
            Err(error) => {
                tracing::warn!(namespace, connection, %error, "kept tokens could not be read, trying again");
                self.jobs().postpone(key, self.later());
                return None;
            }
        };
        let now = self.keeper.now();
        if grant.due().is_none_or(|due| due > now) {
            self.jobs().done(key, grant);
            return None;
        }
        if let Some(until) = self.under_way(key, &grant, now) {
            tracing::info!(namespace, connection, "another process has sent the refresh token and may still be answered, waiting");
            self.jobs().postpone(key, until);
            return None;
        }
        // Others may have waited for their turn while the process was told to end: what could not be kept in time would be lost.
        if self.stop.is_cancelled() {
            self.jobs().postpone(key, self.later());
            return None;
        }
        self.jobs().asks(key, now);
        match self.keeper.begin(namespace, &grant, now).await {
            Ok(Kept::Yes) => return Some((grant, now)),
            Ok(Kept::Overtaken) => {}
            Err(error) => tracing::warn!(namespace, connection, %error, "tokens cannot be kept, so none are asked for yet"),
        }
        self.jobs().postpone(key, self.later());
        None
    }

    /// Until when somebody else's use of the same refresh token may still be answered; asking meanwhile would look like theft.
    fn under_way(&self, key: &Key, grant: &Grant, now: EpochMs) -> Option<EpochMs> {
        let asked = grant.tokens.asked.filter(|asked| self.jobs().asked(key) != Some(*asked))?;
        let limit = u64::try_from(UNDER_WAY.as_millis()).unwrap_or(u64::MAX);
        // A time that lies further ahead than that is that of a wrong clock.
        let until = asked.plus(limit);
        (until > now && until.since(now) <= 2 * limit).then_some(until)
    }

    /// Has tokens kept, however long it takes; `None` when the process ends first.
    async fn keep(&self, namespace: &str, grant: &Grant, tokens: &Tokens) -> Option<Kept> {
        let mut left = LAST_ATTEMPTS;
        loop {
            let error = match self.keeper.keep(namespace, grant, tokens).await {
                Ok(kept) => return Some(kept),
                Err(error) => error,
            };
            tracing::error!(namespace, connection = %grant.connection, %error, "refreshed tokens could not be kept, trying again");
            if self.stop.is_cancelled() {
                left -= 1;
                if left == 0 {
                    return None;
                }
            }
            tokio::time::sleep(KEEP_AGAIN).await;
        }
    }
}
