//! Which status is written next. Pure: time comes in as a value.
//!
//! One entry per object, the newest status wins. Three things are told apart:
//!
//! * answers to a user's change (a generation that status does not know yet, the first `Ready`): never limited, because each follows a
//!   write of the user;
//! * transitions (a condition changes its status): the token bucket of decisions 10.7, 200 at once and 5 per second;
//! * repeats (a deadline moves, a counter grows): behind everything else, at most 2 per second, at most one per object in 5 seconds.
//!
//! An object that flaps is treated as repeating itself after four transitions.
//!
//! A write that the API server refuses, because it knows a newer version of the object, waits until the caches show that version. If they do
//! not for a while (the watch is still away after an outage), the object is read once and the write tried on top of what that shows.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::events::Notice;
use super::object::{ObjectKey, ObjectKind};

/// Most entries; one per object, so only a namespace full of objects reaches it.
pub const CAPACITY: usize = 50_000;
/// Least time between two writes of one object that say nothing new.
pub const REPEAT_INTERVAL: Duration = Duration::from_secs(5);
/// The same for rules, whose counters grow with every error.
pub const RULE_INTERVAL: Duration = Duration::from_secs(60);

/// First and longest wait for the caches after a refused write.
const HELD: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));

const fn repeat_interval(kind: ObjectKind) -> Duration {
    match kind {
        ObjectKind::OperatorErrorRule => RULE_INTERVAL,
        _ => REPEAT_INTERVAL,
    }
}

/// How urgent a status is, most urgent first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Class {
    /// The final word on a user's change.
    Answer,
    /// A condition changed its status.
    Transition,
    /// A first word on a user's change that will be followed by another.
    Preliminary,
    /// Numbers and deadlines.
    Repeat,
}

/// A status to write.
#[derive(Clone, PartialEq, Debug)]
pub struct StatusWrite {
    /// Whose.
    pub key: ObjectKey,
    /// Version of the object on which the status is based.
    pub resource_version: String,
    /// The whole status.
    pub status: Value,
    /// What to tell once it is written.
    pub notices: Vec<Notice>,
}

/// What to do now.
#[derive(Clone, PartialEq, Debug)]
pub enum Next {
    /// Write this.
    Write(Box<StatusWrite>, Class),
    /// The version that this is based on was refused, and the caches have shown no newer one: read the object, and write if it is still in
    /// the generation that the status is about.
    Reread(Box<StatusWrite>, Class),
    /// Nothing is due before this much time has passed.
    Wait(Duration),
    /// Nothing to do.
    Idle,
}

#[derive(Debug)]
struct Bucket {
    tokens: f64,
    burst: f64,
    per_second: f64,
    at: Instant,
}

impl Bucket {
    fn new(burst: f64, per_second: f64, now: Instant) -> Self {
        Self { tokens: burst, burst, per_second, at: now }
    }

    /// Time until a token is there; zero = now.
    fn wait(&mut self, now: Instant) -> Duration {
        self.tokens = (self.tokens + now.saturating_duration_since(self.at).as_secs_f64() * self.per_second).min(self.burst);
        self.at = now;
        if self.tokens >= 1.0 { Duration::ZERO } else { Duration::from_secs_f64((1.0 - self.tokens) / self.per_second) }
    }

    fn take(&mut self) {
        self.tokens -= 1.0;
    }
}

#[derive(Debug)]
struct Entry {
    write: StatusWrite,
    class: Class,
    slot: (Instant, u64),
}

/// What was written of an object before.
#[derive(Debug)]
struct History {
    at: Instant,
    version: u64,
    status: Value,
    transitions: Bucket,
}

/// An object of which the API server knows a newer version than we do.
#[derive(Debug)]
struct Held {
    /// The newest version that was refused.
    version: u64,
    until: Instant,
    times: u32,
}

/// The queue.
#[derive(Debug)]
pub struct Queue {
    entries: HashMap<ObjectKey, Entry>,
    order: [BTreeMap<(Instant, u64), ObjectKey>; 4],
    history: HashMap<ObjectKey, History>,
    held: HashMap<ObjectKey, Held>,
    transitions: Bucket,
    repeats: Bucket,
    sequence: u64,
    term: u64,
}

fn version(text: &str) -> u64 {
    text.parse().unwrap_or(0)
}

impl Queue {
    /// An empty queue with full buckets.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self {
            entries: HashMap::new(),
            order: Default::default(),
            history: HashMap::new(),
            held: HashMap::new(),
            transitions: Bucket::new(200.0, 5.0, now),
            repeats: Bucket::new(10.0, 2.0, now),
            sequence: 0,
            term: 0,
        }
    }

    /// Objects that wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Puts a status; it replaces one of the same object that still waits. Answers false when the queue is full.
    pub fn put(&mut self, mut write: StatusWrite, class: Class, now: Instant) -> bool {
        let mut class = class;
        let mut due = now;
        if let Some(history) = self.history.get_mut(&write.key) {
            if version(&write.resource_version) <= history.version {
                // The cache has not seen our last write yet.
                if history.status == write.status {
                    self.cancel(&write.key);
                    return true;
                }
                write.resource_version = history.version.to_string();
            }
            if class == Class::Transition && !history.transitions.wait(now).is_zero() {
                class = Class::Repeat;
            }
            if class == Class::Repeat {
                due = due.max(history.at + repeat_interval(write.key.kind));
            }
        }
        match self.held.get(&write.key) {
            Some(held) if version(&write.resource_version) <= held.version => due = due.max(held.until),
            Some(_) => drop(self.held.remove(&write.key)),
            None => {}
        }
        self.insert(write, class, due)
    }

    /// The API server refused a write because the object has changed: it, or the newer one of the same object that waits meanwhile, is held
    /// until the caches have caught up.
    pub fn refused(&mut self, write: StatusWrite, class: Class, now: Instant) {
        let refused = version(&write.resource_version);
        let held = self.held.entry(write.key.clone()).or_insert(Held { version: refused, until: now, times: 0 });
        held.version = held.version.max(refused);
        held.until = now + HELD.0.saturating_mul(1 << held.times.min(4)).min(HELD.1);
        held.times += 1;
        let (refused, until) = (held.version, held.until);
        let (write, class, seen) = match self.entries.get(&write.key) {
            Some(newer) => (newer.write.clone(), newer.class, version(&newer.write.resource_version) > refused),
            None => (write, class, false),
        };
        if !seen {
            self.cancel(&write.key);
            self.insert(write, class, until);
        }
    }

    /// Puts a write back that failed, to be tried again then; a newer one of the same object stays.
    pub fn put_back(&mut self, write: StatusWrite, class: Class, due: Instant) {
        if !self.entries.contains_key(&write.key) {
            self.insert(write, class, due);
        }
    }

    fn insert(&mut self, write: StatusWrite, class: Class, due: Instant) -> bool {
        let key = write.key.clone();
        let mut slot = (due, self.sequence);
        if let Some(old) = self.entries.remove(&key) {
            self.order[old.class as usize].remove(&old.slot);
            if old.class == class && old.slot.0 <= due {
                // It keeps its place: an object that changes all the time must not wait for ever.
                slot = old.slot;
            }
        } else if self.entries.len() >= CAPACITY {
            return false;
        }
        self.sequence += 1;
        self.order[class as usize].insert(slot, key.clone());
        self.entries.insert(key, Entry { write, class, slot });
        true
    }

    /// The object's status is what it should be.
    pub fn cancel(&mut self, key: &ObjectKey) {
        if let Some(old) = self.entries.remove(key) {
            self.order[old.class as usize].remove(&old.slot);
        }
    }

    /// The object is gone.
    pub fn forget(&mut self, key: &ObjectKey) {
        self.cancel(key);
        self.history.remove(key);
        self.held.remove(key);
    }

    /// The term of leadership whose statuses wait.
    #[must_use]
    pub fn term(&self) -> u64 {
        self.term
    }

    /// The term is this one: another replica may have written between it and the last one.
    pub fn enter(&mut self, term: u64) {
        if std::mem::replace(&mut self.term, term) != term {
            self.clear();
        }
    }

    /// Another replica writes from now on; what we knew about written versions is worthless.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.order = Default::default();
        self.history.clear();
        self.held.clear();
    }

    /// Takes the next write that is due.
    pub fn take(&mut self, now: Instant) -> Next {
        let mut wait: Option<Duration> = None;
        for class in [Class::Answer, Class::Transition, Class::Preliminary, Class::Repeat] {
            let Some((&slot, key)) = self.order[class as usize].first_key_value() else { continue };
            let mut pause = slot.0.saturating_duration_since(now);
            if class == Class::Transition || class == Class::Repeat {
                pause = pause.max(self.transitions.wait(now));
            }
            if class == Class::Repeat {
                pause = pause.max(self.repeats.wait(now));
            }
            if !pause.is_zero() {
                wait = Some(wait.map_or(pause, |w| w.min(pause)));
                continue;
            }
            let key = key.clone();
            self.order[class as usize].remove(&slot);
            if let Some(entry) = self.entries.remove(&key) {
                self.spend(&key, class, now);
                let stale = self.held.get(&key).is_some_and(|held| version(&entry.write.resource_version) <= held.version);
                let write = Box::new(entry.write);
                return if stale { Next::Reread(write, class) } else { Next::Write(write, class) };
            }
        }
        wait.map_or(Next::Idle, Next::Wait)
    }

    fn spend(&mut self, key: &ObjectKey, class: Class, now: Instant) {
        match class {
            Class::Answer | Class::Preliminary => {}
            Class::Transition => {
                self.transitions.take();
                if let Some(history) = self.history.get_mut(key) {
                    history.transitions.wait(now);
                    history.transitions.take();
                }
            }
            Class::Repeat => {
                self.transitions.take();
                self.repeats.take();
            }
        }
    }

    /// A write succeeded; the API server answered with this version.
    pub fn written(&mut self, write: StatusWrite, resource_version: &str, now: Instant) {
        let version = version(resource_version);
        if let Some(waiting) = self.entries.get_mut(&write.key) {
            waiting.write.resource_version = resource_version.to_owned();
        }
        let StatusWrite { key, status, .. } = write;
        self.held.remove(&key);
        match self.history.get_mut(&key) {
            Some(history) => {
                history.at = now;
                history.version = version;
                history.status = status;
            }
            None => {
                self.history.insert(key, History { at: now, version, status, transitions: Bucket::new(4.0, 1.0 / 15.0, now) });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn write(name: &str, rv: u64, value: i32) -> StatusWrite {
        StatusWrite {
            key: ObjectKey { namespace: "a".into(), kind: ObjectKind::Connection, name: name.into() },
            resource_version: rv.to_string(),
            status: json!({"v": value}),
            notices: Vec::new(),
        }
    }

    fn take(q: &mut Queue, now: Instant) -> Option<(StatusWrite, Class)> {
        match q.take(now) {
            Next::Write(w, c) => Some((*w, c)),
            _ => None,
        }
    }

    fn reread(q: &mut Queue, now: Instant) -> Option<(StatusWrite, Class)> {
        match q.take(now) {
            Next::Reread(w, c) => Some((*w, c)),
            _ => None,
        }
    }

    fn drain(q: &mut Queue, now: Instant) -> usize {
        let mut n = 0;
        while let Some((w, _)) = take(q, now) {
            let rv = version(&w.resource_version) + 1;
            q.written(w, &rv.to_string(), now);
            n += 1;
        }
        n
    }

    #[test]
    fn the_newest_status_of_an_object_wins_and_urgent_ones_go_first() {
        let now = Instant::now();
        let mut q = Queue::new(now);
        assert!(q.put(write("a", 1, 1), Class::Repeat, now));
        assert!(q.put(write("b", 1, 1), Class::Preliminary, now));
        assert!(q.put(write("c", 1, 1), Class::Transition, now));
        assert!(q.put(write("b", 1, 2), Class::Answer, now));
        let order: Vec<_> = std::iter::from_fn(|| take(&mut q, now)).map(|(w, c)| (w.key.name, w.status["v"].as_i64(), c)).collect();
        assert_eq!(
            order,
            [("b".into(), Some(2), Class::Answer), ("c".into(), Some(1), Class::Transition), ("a".into(), Some(1), Class::Repeat)]
        );
        assert_eq!(q.take(now), Next::Idle);
    }

    #[test]
    fn two_thousand_first_answers_are_not_held_back() {
        let now = Instant::now();
        let mut q = Queue::new(now);
        for i in 0..2_000 {
            q.put(write(&format!("c{i}"), 1, 1), Class::Answer, now);
        }
        assert_eq!(drain(&mut q, now), 2_000);
    }

    #[test]
    fn transitions_are_limited_to_two_hundred_and_five_per_second() {
        let now = Instant::now();
        let mut q = Queue::new(now);
        for i in 0..300 {
            q.put(write(&format!("c{i}"), 1, 1), Class::Transition, now);
        }
        assert_eq!(drain(&mut q, now), 200);
        assert!(matches!(q.take(now), Next::Wait(d) if d <= Duration::from_millis(200)));
        assert_eq!(drain(&mut q, now + Duration::from_millis(2_010)), 10);
    }

    #[test]
    fn repeats_of_an_object_wait_five_seconds_and_an_unseen_write_is_not_repeated() {
        let now = Instant::now();
        let mut q = Queue::new(now);
        q.put(write("a", 1, 1), Class::Transition, now);
        assert_eq!(drain(&mut q, now), 1);
        q.put(write("a", 1, 1), Class::Transition, now);
        assert!(q.is_empty(), "the cache is behind our own write");
        q.put(write("a", 1, 2), Class::Repeat, now);
        assert!(matches!(q.take(now), Next::Wait(d) if d == REPEAT_INTERVAL));
        let (w, _) = take(&mut q, now + REPEAT_INTERVAL).unwrap();
        assert_eq!(w.resource_version, "2", "based on what we wrote, not on what the cache shows");
        q.put(write("a", 9, 1), Class::Transition, now);
        assert_eq!(take(&mut q, now).unwrap().0.resource_version, "9", "somebody else wrote later: repaired on top of that");
    }

    #[test]
    fn a_refused_write_waits_for_the_caches_and_is_then_read_again_with_growing_pauses() {
        let start = Instant::now();
        let mut q = Queue::new(start);
        q.put(write("a", 7, 1), Class::Transition, start);
        let (first, class) = take(&mut q, start).unwrap();
        q.refused(first, class, start);
        let (mut now, mut pauses) = (start, Vec::new());
        for value in 2..8 {
            // The stale cache is looked at all the time, and every look asks for the write.
            for tick in 0..5 {
                q.put(write("a", 7, value), Class::Transition, now + Duration::from_millis(tick));
            }
            let Next::Wait(pause) = q.take(now + Duration::from_millis(5)) else { panic!("held") };
            pauses.push((pause.as_secs_f64() + 0.005).round() as u64);
            now += pause + Duration::from_millis(5);
            let (again, class) = reread(&mut q, now).unwrap();
            assert_eq!(again.status, json!({"v": value}), "the newest status");
            q.refused(again, class, now);
        }
        assert_eq!(pauses, [1, 2, 4, 8, 10, 10]);
        q.put(write("a", 8, 9), Class::Transition, now);
        assert_eq!(take(&mut q, now).unwrap().0.resource_version, "8", "the watch is back: at once");
    }

    #[test]
    fn what_waits_meanwhile_is_not_replaced_by_a_refused_write() {
        let now = Instant::now();
        let mut q = Queue::new(now);
        q.put(write("a", 7, 1), Class::Answer, now);
        let (first, class) = take(&mut q, now).unwrap();
        q.put(write("a", 7, 2), Class::Answer, now);
        q.refused(first.clone(), class, now);
        assert!(matches!(q.take(now), Next::Wait(_)), "just as stale");
        assert_eq!(reread(&mut q, now + HELD.0).unwrap().0.status, json!({"v": 2}));
        q.put(write("a", 8, 3), Class::Answer, now);
        q.refused(first, class, now);
        assert_eq!(take(&mut q, now).unwrap().0.status, json!({"v": 3}), "the caches were faster than the refusal");
        let written = write("a", 8, 3);
        q.written(written, "9", now);
        q.put(write("a", 9, 4), Class::Answer, now);
        assert!(take(&mut q, now).is_some() && q.held.is_empty());
    }

    #[test]
    fn a_storm_on_fifty_connections_stays_below_five_writes_per_second() {
        let start = Instant::now();
        let mut q = Queue::new(start);
        let mut writes = 0;
        for tick in 0..600u64 {
            let now = start + Duration::from_millis(tick * 100);
            for i in 0..50 {
                // Every look finds another deadline, and every other look a flip of a condition.
                let class = if (tick + i) % 2 == 0 { Class::Transition } else { Class::Repeat };
                q.put(write(&format!("c{i}"), 0, i32::try_from(tick).unwrap()), class, now);
            }
            writes += drain(&mut q, now);
        }
        assert!(writes < 60 * 5 + 200, "{writes} in a minute");
        let before = writes;
        for tick in 600..1_200u64 {
            let now = start + Duration::from_millis(tick * 100);
            for i in 0..50 {
                q.put(write(&format!("c{i}"), 0, i32::try_from(tick).unwrap()), Class::Repeat, now);
            }
            writes += drain(&mut q, now);
        }
        assert!(writes - before <= 125, "{} repeats in the second minute", writes - before);
    }

    #[test]
    fn an_object_that_changes_all_the_time_keeps_its_place() {
        let now = Instant::now();
        let mut q = Queue::new(now);
        q.put(write("a", 1, 1), Class::Preliminary, now);
        q.put(write("b", 1, 1), Class::Preliminary, now);
        q.put(write("a", 1, 2), Class::Preliminary, now + Duration::from_millis(1));
        let (first, _) = take(&mut q, now + Duration::from_millis(1)).unwrap();
        assert_eq!((first.key.name.as_str(), &first.status), ("a", &json!({"v": 2})));
    }

    #[test]
    fn a_status_that_is_right_again_is_not_written_and_forgotten_objects_leave_nothing() {
        let now = Instant::now();
        let mut q = Queue::new(now);
        let w = write("a", 1, 1);
        q.put(w.clone(), Class::Transition, now);
        q.cancel(&w.key);
        assert_eq!(q.take(now), Next::Idle);
        q.put_back(w.clone(), Class::Transition, now);
        q.forget(&w.key);
        assert!(q.entries.is_empty() && q.order.iter().all(BTreeMap::is_empty) && q.history.is_empty());
    }
}
