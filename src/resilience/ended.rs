//! What ended before its time, and when: by a success, an operator, a reset. A memory of something older counts no more, whoever still
//! tells of it; without that, replicas that share state would bring back for each other what one of them has cleared.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::lockout::LockKey;
use crate::api::time::EpochMs;

/// How long an end is remembered, milliseconds: longer than anything that was stored before it is read again.
const KEPT_MS: u64 = 86_400_000;
/// Ends of single locks that one connection remembers; the oldest goes first.
const MAX_LOCKS: usize = 256;

/// Until when what a connection remembers has been ended. All times are milliseconds since the epoch; 0 = never.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Ended {
    /// Cooldown, backoff level and rest of the window gate that began before are over.
    #[serde(skip_serializing_if = "never")]
    pub rests_ms: i64,
    /// Strikes and terminal states from before are over.
    #[serde(skip_serializing_if = "never")]
    pub terminal_ms: i64,
    /// All locks from before are over.
    #[serde(skip_serializing_if = "never")]
    pub locks_ms: i64,
    /// Single locks from before are over.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub locks: Vec<EndedLock>,
}

/// The end of one lock.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EndedLock {
    /// Which.
    pub key: LockKey,
    /// Until when.
    pub at_ms: i64,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde asks for a reference
pub(super) const fn never(ms: &i64) -> bool {
    *ms == 0
}

/// An end that is worth keeping at `now`, milliseconds since the epoch; 0 = none.
pub(super) fn recent(at_ms: i64, now: EpochMs) -> i64 {
    if now.since(EpochMs(at_ms)) < KEPT_MS { at_ms } else { 0 }
}

impl Ended {
    /// A success of a request that was sent at `sent`: what came later stays.
    pub(super) fn by_success(&mut self, sent: EpochMs) {
        self.rests_ms = self.rests_ms.max(sent.0);
        self.terminal_ms = self.terminal_ms.max(sent.0);
    }

    /// Every timer ended.
    pub(super) fn timers(&mut self, now: EpochMs) {
        self.rests_ms = self.rests_ms.max(now.0);
        self.locks_ms = self.locks_ms.max(now.0);
        self.locks.clear();
    }

    /// Strikes and terminal state ended.
    pub(super) fn terminal(&mut self, now: EpochMs) {
        self.terminal_ms = self.terminal_ms.max(now.0);
    }

    /// Single locks ended: what failed before `at`.
    pub(super) fn single_locks(&mut self, keys: impl IntoIterator<Item = LockKey>, at: EpochMs) {
        for key in keys {
            match self.locks.iter_mut().find(|ended| ended.key == key) {
                Some(known) => known.at_ms = known.at_ms.max(at.0),
                None => self.locks.push(EndedLock { key, at_ms: at.0 }),
            }
        }
        while self.locks.len() > MAX_LOCKS {
            let oldest = self.locks.iter().enumerate().min_by_key(|(_, ended)| ended.at_ms).map(|(at, _)| at);
            oldest.into_iter().for_each(|at| drop(self.locks.swap_remove(at)));
        }
    }

    /// Whether a lock whose last failure was at `failed_ms` is over.
    pub(super) fn ends_lock(&self, key: &LockKey, failed_ms: i64) -> bool {
        failed_ms < self.locks_ms || self.locks.iter().any(|ended| ended.key == *key && failed_ms < ended.at_ms)
    }

    /// What is worth keeping at `now`, in a fixed order.
    pub(super) fn memory(&self, now: EpochMs) -> Self {
        let recent = |ms| recent(ms, now);
        let mut locks: Vec<EndedLock> = self.locks.iter().filter(|ended| recent(ended.at_ms) > 0).cloned().collect();
        locks.sort();
        Self { rests_ms: recent(self.rests_ms), terminal_ms: recent(self.terminal_ms), locks_ms: recent(self.locks_ms), locks }
    }

    /// The later end of each.
    #[must_use]
    pub fn merge(&self, other: &Self) -> Self {
        let mut locks: BTreeMap<&LockKey, i64> = self.locks.iter().map(|ended| (&ended.key, ended.at_ms)).collect();
        for EndedLock { key, at_ms } in &other.locks {
            locks.entry(key).and_modify(|at| *at = (*at).max(*at_ms)).or_insert(*at_ms);
        }
        Self {
            rests_ms: self.rests_ms.max(other.rests_ms),
            terminal_ms: self.terminal_ms.max(other.terminal_ms),
            locks_ms: self.locks_ms.max(other.locks_ms),
            locks: locks.into_iter().map(|(key, at_ms)| EndedLock { key: key.clone(), at_ms }).collect(),
        }
    }
}
