//! What was handed over and not yet picked up: bounded, forgotten in time, stored beside the session pins.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use super::super::sessions::{Key, unhex};
use crate::api::time::EpochMs;
use crate::snapshot::hex;

/// Hand-offs that are kept; one is at most about 30 KiB long. The one that ends first makes room.
const MAX_HANDOFFS: usize = 512;
const SHARDS: usize = 16;

/// One hand-off.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Handoff {
    /// The connection that handed over.
    pub from: Arc<str>,
    /// The system turn for whoever goes on.
    pub turn: Arc<str>,
    /// When it was made.
    pub made: EpochMs,
    /// When it is forgotten.
    pub until: EpochMs,
}

#[derive(Debug)]
enum Entry {
    /// Somebody asks for the summary.
    Coming,
    There(Handoff),
}

type Shard = HashMap<Key, Entry>;

/// The hand-offs of a gateway.
#[derive(Debug, Default)]
pub struct Handoffs([Mutex<Shard>; SHARDS]);

/// What is stored of one.
#[derive(Debug, Serialize, Deserialize)]
pub struct Saved {
    key: String,
    from: String,
    turn: String,
    made: i64,
    until: i64,
}

impl Handoffs {
    fn shard(&self, key: &Key) -> MutexGuard<'_, Shard> {
        self.0.get(key.spread() % SHARDS).unwrap_or(&self.0[0]).lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The hand-off that waits under a key.
    #[must_use]
    pub fn get(&self, key: &Key, now: EpochMs) -> Option<Handoff> {
        match self.shard(key).get(key)? {
            Entry::There(handoff) if handoff.until > now => Some(handoff.clone()),
            Entry::There(_) | Entry::Coming => None,
        }
    }

    /// Marks a key as asked for. False when a hand-off waits there, or somebody asks already, or there is no room.
    #[must_use]
    pub fn claim(&self, key: Key, now: EpochMs) -> bool {
        let mut shard = self.shard(&key);
        let over = |entry: &Entry| matches!(entry, Entry::There(handoff) if handoff.until <= now);
        if shard.get(&key).is_some_and(|entry| !over(entry)) {
            return false;
        }
        shard.retain(|_, entry| !over(entry));
        if shard.len() >= MAX_HANDOFFS / SHARDS {
            let ends = |entry: &Entry| if let Entry::There(handoff) = entry { Some(handoff.until) } else { None };
            let first = shard.iter().filter_map(|(key, entry)| Some((*key, ends(entry)?))).min_by_key(|(_, until)| *until);
            let Some((first, _)) = first else { return false };
            shard.remove(&first);
        }
        shard.insert(key, Entry::Coming);
        true
    }

    /// Puts a hand-off under a claimed key.
    pub fn put(&self, key: Key, handoff: Handoff) {
        self.shard(&key).insert(key, Entry::There(handoff));
    }

    /// Gives a claim back that came to nothing.
    pub fn give_up(&self, key: &Key) {
        let mut shard = self.shard(key);
        if matches!(shard.get(key), Some(Entry::Coming)) {
            shard.remove(key);
        }
    }

    /// Somebody who was told the hand-off that was made at this time has gone on with it; answers whether there was something to forget.
    pub fn picked_up(&self, key: &Key, made: EpochMs) -> bool {
        let mut shard = self.shard(key);
        let told = matches!(shard.get(key), Some(Entry::There(handoff)) if handoff.made == made);
        told && shard.remove(key).is_some()
    }

    /// What is to be stored.
    #[must_use]
    pub fn export(&self, now: EpochMs) -> Vec<Saved> {
        let saved = |(key, entry): (&Key, &Entry)| match entry {
            Entry::There(Handoff { from, turn, made, until }) if *until > now => {
                Some(Saved { key: hex(key.bytes()), from: from.to_string(), turn: turn.to_string(), made: made.0, until: until.0 })
            }
            Entry::There(_) | Entry::Coming => None,
        };
        let shards = self.0.iter().map(|shard| shard.lock().unwrap_or_else(PoisonError::into_inner));
        shards.flat_map(|shard| shard.iter().filter_map(saved).collect::<Vec<_>>()).collect()
    }

    /// Takes over what was stored.
    pub fn restore(&self, saved: Vec<Saved>, now: EpochMs) {
        for Saved { key, from, turn, made, until } in saved {
            if let Some(key) = unhex(&key).filter(|_| until > now.0).filter(|key| self.claim(*key, now)) {
                self.put(key, Handoff { from: from.into(), turn: turn.into(), made: EpochMs(made), until: EpochMs(until) });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::sessions::response_key;
    use super::*;

    const NOW: EpochMs = EpochMs(1_000_000);

    fn key(name: &str) -> Key {
        response_key("k", name)
    }

    fn from(connection: &str, until: EpochMs) -> Handoff {
        Handoff { from: connection.into(), turn: "t".into(), made: NOW, until }
    }

    #[test]
    fn one_is_asked_for_at_a_time_and_one_waits_at_a_time() {
        let all = Handoffs::default();
        assert!(all.claim(key("s"), NOW) && !all.claim(key("s"), NOW));
        all.give_up(&key("s"));
        assert!(all.claim(key("s"), NOW));
        assert_eq!(all.get(&key("s"), NOW), None);
        all.put(key("s"), from("a", NOW.plus(10)));
        all.give_up(&key("s"));
        assert_eq!(all.get(&key("s"), NOW.plus(9)).map(|h| h.from), Some("a".into()));
        assert!(!all.claim(key("s"), NOW.plus(9)));
        assert_eq!(all.get(&key("s"), NOW.plus(10)), None);
        assert!(all.claim(key("s"), NOW.plus(10)), "what is over makes room");
    }

    #[test]
    fn it_is_forgotten_when_another_account_went_on_with_it() {
        let all = Handoffs::default();
        let put = || all.claim(key("s"), NOW).then(|| all.put(key("s"), from("a", NOW.plus(10))));
        put().unwrap();
        assert!(!all.picked_up(&key("s"), EpochMs(NOW.0 - 1)), "another one was told");
        assert!(all.picked_up(&key("s"), NOW) && !all.picked_up(&key("s"), NOW));
        put().unwrap();
    }

    #[test]
    fn memory_is_bounded_and_what_waits_survives_a_restart() {
        let (before, after) = (Handoffs::default(), Handoffs::default());
        for n in 0..4 * MAX_HANDOFFS {
            if before.claim(key(&n.to_string()), NOW) {
                before.put(key(&n.to_string()), from("a", NOW.plus(1_000 + n as u64)));
            }
        }
        let saved = before.export(NOW);
        assert!(saved.len() <= MAX_HANDOFFS && saved.len() > MAX_HANDOFFS / 2, "{}", saved.len());
        let newest = key(&(4 * MAX_HANDOFFS - 1).to_string());
        after.restore(serde_json::from_value(serde_json::to_value(saved).unwrap()).unwrap(), NOW);
        assert_eq!(after.get(&newest, NOW), before.get(&newest, NOW));
        assert!(after.get(&newest, NOW).is_some() && after.get(&key("0"), NOW).is_none());
        let late = Handoffs::default();
        late.restore(before.export(NOW), NOW.plus(1_000_000));
        assert!(late.export(NOW).is_empty());
    }
}
