//! What arrived, for tests and for `GET /_control/requests`.

use std::collections::BTreeMap;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use serde::Serialize;
use tokio::sync::watch;

use crate::api::time::EpochMs;

/// Most requests that are remembered.
const KEEP: usize = 10_000;
/// Most of a body that is remembered.
pub(super) const KEEP_BODY: usize = 64 * 1024;

/// What became of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Outcome {
    /// It is being answered.
    Running,
    /// The answer was sent in full.
    Answered,
    /// The script broke it off.
    Fault,
    /// The caller went away first.
    Aborted,
}

/// One request.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Recorded {
    /// Counts from 1.
    pub id: u64,
    /// When it arrived.
    pub time: EpochMs,
    /// Its path, with query.
    pub path: String,
    /// The credential, without `Bearer`.
    pub key: String,
    /// The model.
    pub model: String,
    /// Whether a stream was asked for.
    pub stream: bool,
    /// All headers, names in lower case.
    pub headers: BTreeMap<String, String>,
    /// The body, cut after 64 KiB.
    pub body: String,
    /// The rule that answered; empty = none.
    pub rule: String,
    /// Status that was sent; 0 = none.
    pub status: u16,
    /// What became of it.
    pub outcome: Outcome,
    /// When that was decided, milliseconds after arrival.
    pub after_ms: Option<u64>,
}

/// All requests so far.
#[derive(Debug)]
pub(super) struct Log {
    inner: Mutex<Inner>,
    changed: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Inner {
    requests: VecDeque<(Recorded, std::time::Instant)>,
    next: u64,
}

impl Default for Log {
    fn default() -> Self {
        Self { inner: Mutex::default(), changed: watch::Sender::new(0) }
    }
}

impl Log {
    fn with<T>(&self, f: impl FnOnce(&mut Inner) -> T) -> T {
        let result = f(&mut self.inner.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.send_modify(|n| *n += 1);
        result
    }

    /// Takes note of a request and answers its id.
    pub fn arrived(&self, mut request: Recorded) -> u64 {
        let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        request.time = EpochMs(i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX));
        self.with(|inner| {
            inner.next += 1;
            request.id = inner.next;
            if inner.requests.len() >= KEEP {
                inner.requests.pop_front();
            }
            inner.requests.push_back((request, std::time::Instant::now()));
            inner.next
        })
    }

    /// Changes what is known about a request.
    pub fn note(&self, id: u64, change: impl FnOnce(&mut Recorded)) {
        self.with(|inner| {
            if let Some((request, arrived)) = inner.requests.iter_mut().rev().find(|(r, _)| r.id == id) {
                let before = request.outcome;
                change(request);
                if before == Outcome::Running && request.outcome != Outcome::Running {
                    request.after_ms = Some(u64::try_from(arrived.elapsed().as_millis()).unwrap_or(u64::MAX));
                }
            }
        });
    }

    /// A copy of all.
    pub fn all(&self) -> Vec<Recorded> {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.requests.iter().map(|(r, _)| r.clone()).collect()
    }

    /// Forgets all; ids go on.
    pub fn clear(&self) {
        self.with(|inner| inner.requests.clear());
    }

    /// Waits until `good` holds for the requests so far; answers whether it ever did.
    pub async fn wait(&self, good: impl Fn(&[Recorded]) -> bool, limit: Duration) -> bool {
        let mut changed = self.changed.subscribe();
        let met = async {
            while !good(&self.all()) {
                if changed.changed().await.is_err() {
                    return;
                }
            }
        };
        tokio::time::timeout(limit, met).await.is_ok()
    }
}

/// Notes the end of a request: aborted, unless told otherwise before it is dropped.
pub(super) struct Ending {
    pub log: Arc<Log>,
    pub id: u64,
    pub outcome: Outcome,
}

impl Drop for Ending {
    fn drop(&mut self) {
        let outcome = self.outcome;
        self.log.note(self.id, |r| r.outcome = outcome);
    }
}
