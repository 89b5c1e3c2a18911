//! State that replicas share through a Redis or Valkey server (decisions 10.10). Requests never wait for it: they read what this process
//! knows, a task tells the others what changes here and takes over what they say. Only leases are asked for in the store itself.

mod error;
mod leases;
mod replica;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use redis::aio::MultiplexedConnection;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

pub use self::error::SharedError;
use self::leases::Version;
use super::Gateway;
use crate::resilience::FindingState;
use crate::snapshot::StateStore;

/// First and longest pause between two attempts to reach the store.
const PAUSE: std::ops::RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(5);

/// The store as this process sees it.
#[derive(Debug, Default)]
pub(super) struct Shared {
    /// What the configuration names.
    target: watch::Sender<Option<Arc<StateStore>>>,
    /// The way to the store, while there is one.
    session: ArcSwapOption<Session>,
    /// Why there is none.
    trouble: ArcSwapOption<String>,
    /// No contact yet since the start: what others know may be what keeps a provider from being flooded.
    joining: AtomicBool,
    /// Bindings or leases of this process changed.
    news: Notify,
    /// One change of the shared leases at a time; others would only make it fail. Whoever only asks takes no turn.
    lease_turn: tokio::sync::Mutex<()>,
    /// Which version of the shared leases is known here.
    lease_version: Mutex<Option<Version>>,
    /// What a store that knows all that this process has told has beside its name.
    stamp: Mutex<Option<String>>,
}

/// A way to the store.
#[derive(Clone)]
pub(super) struct Session {
    connection: MultiplexedConnection,
    store: Arc<StateStore>,
}

/// Shows no address: what stands in it is the business of the error that names it.
impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("prefix", &self.store.prefix).finish_non_exhaustive()
    }
}

impl Session {
    fn key(&self, name: &str) -> String {
        format!("{}{name}", self.store.prefix)
    }
}

/// How a lease is to be asked for.
#[derive(Debug)]
pub(super) enum Leases {
    /// Nothing is shared: the table of this process is the only one.
    Alone,
    /// In the store.
    Shared(Arc<Session>),
    /// In the store, which is away.
    Away,
}

impl Shared {
    /// Follows the configuration. `first` says that nothing was served before.
    pub fn configure(&self, store: Option<&StateStore>, first: bool) {
        if first && store.is_some() {
            self.joining.store(true, Ordering::Release);
        }
        self.target.send_if_modified(|target| {
            let differs = target.as_deref() != store;
            if differs {
                *target = store.map(|store| Arc::new(store.clone()));
            }
            differs
        });
    }

    /// True until the store was reached, or not, for the first time.
    pub fn is_joining(&self) -> bool {
        self.joining.load(Ordering::Acquire)
    }

    /// Who decides about leases.
    pub fn leases(&self) -> Leases {
        if self.target.borrow().is_none() {
            return Leases::Alone;
        }
        self.session.load_full().map_or(Leases::Away, Leases::Shared)
    }

    /// Says that there is something to tell.
    pub fn news(&self) {
        self.news.notify_one();
    }

    /// Whether the store can be reached; `None` without one.
    pub fn up(&self) -> Option<bool> {
        self.target.borrow().as_ref().map(|_| self.session.load().is_some())
    }

    /// What `/state` says about a store that is away.
    pub fn finding(&self) -> Option<FindingState> {
        let target = self.target.borrow().clone()?;
        let why = self.trouble.load_full()?;
        Some(FindingState {
            kind: "ResilienceSettings".to_owned(),
            name: target.settings.clone(),
            field: "spec.stateStore".to_owned(),
            reason: "StateStoreUnavailable".to_owned(),
            message: format!("{why}; requests are served with what this pod knows itself, leases are refused until the store is back"),
        })
    }
}

impl Gateway {
    /// Shares state for as long as the configuration says where, until `stop`.
    pub(super) async fn keep_sharing(self: Arc<Self>, stop: CancellationToken) {
        let mut targets = self.shared.target.subscribe();
        let me = crate::snapshot::hex(&rand::random::<[u8; 8]>());
        let mut pause = *PAUSE.start();
        loop {
            let target = targets.borrow_and_update().clone();
            let Some(store) = target else {
                self.sessions.share(false);
                self.store_is(None, None);
                tokio::select! {
                    changed = targets.changed() => if changed.is_err() { return },
                    () = stop.cancelled() => return,
                }
                continue;
            };
            self.sessions.share(true);
            let followed = tokio::select! {
                followed = replica::follow(&self, &store, &me) => followed,
                changed = targets.changed() => {
                    if changed.is_err() { return }
                    // Leases must not be taken in the store of before.
                    self.store_is(None, None);
                    pause = *PAUSE.start();
                    continue;
                }
                () = stop.cancelled() => return,
            };
            if self.shared.session.load().is_some() {
                pause = *PAUSE.start();
            }
            self.store_is(None, Some(&followed));
            // Spread, so that replicas do not come back all at once.
            let jittered = pause.mul_f64(crate::gateway::clock::random().mul_add(0.5, 0.75));
            tokio::select! {
                () = tokio::time::sleep(jittered) => {}
                _ = targets.changed() => {}
                () = stop.cancelled() => return,
            }
            pause = (pause * 2).min(*PAUSE.end());
        }
    }

    /// The store was found, lost, or is no longer asked for.
    fn store_is(&self, session: Option<Session>, trouble: Option<&SharedError>) {
        let was = (self.shared.session.load().is_some(), self.shared.trouble.load().is_some());
        let is = (session.is_some(), trouble.is_some());
        self.shared.session.store(session.map(Arc::new));
        self.shared.trouble.store(trouble.map(|error| Arc::new(error.to_string())));
        self.shared.joining.store(false, Ordering::Release);
        if let Some(error) = trouble {
            self.metrics.store_failed();
            if !was.1 {
                tracing::error!(%error, "the state store is away: requests go on with what is known here, leases are refused");
            }
        } else if is.0 && !was.0 {
            tracing::info!("state is shared with the other replicas");
        }
        if was != is {
            self.config_version.fetch_add(1, Ordering::Release);
            self.notify();
        }
    }

    /// The store that replicas share.
    pub(super) const fn shared(&self) -> &Shared {
        &self.shared
    }
}
