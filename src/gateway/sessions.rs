//! Which connection a session or a conversation belongs to (routing spec 9.5, decisions 4.10 and 9.12).

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::HeaderMap;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::handoff::store::{self as handoff, Handoff, Handoffs};
use crate::api::time::EpochMs;
use crate::snapshot::hex;

/// Headers that name a session, in the order of their precedence; none of them reaches a provider.
const SESSION_HEADERS: [&str; 3] = ["x-codex-session-id", "x-session-id", "x-omniroute-session"];
/// How long an answer's id is remembered: as long as vendors keep answers.
const RESPONSE_TTL_MS: u64 = 30 * 86_400_000;
/// Bindings of each kind; the one that ends first is forgotten for a new one.
const MAX_BINDINGS: usize = 16_384;
const SHARDS: usize = 16;
/// Changes that wait to be told to other replicas: room for all bindings twice over. Beyond it the oldest are dropped.
const MAX_NEWS: usize = 4 * MAX_BINDINGS;

/// What a binding is found by: a digest, so that neither keys nor session names are kept.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Key([u8; 16]);

impl Key {
    /// Its bytes.
    #[must_use]
    pub const fn bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// A number to spread keys by.
    #[must_use]
    pub fn spread(&self) -> usize {
        usize::from(self.0.first().copied().unwrap_or(0))
    }

    fn of(parts: &[&str]) -> Self {
        let mut hash = Sha256::new();
        for part in parts {
            hash.update(part.len().to_le_bytes());
            hash.update(part.as_bytes());
        }
        let mut key = [0; 16];
        key.iter_mut().zip(hash.finalize()).for_each(|(to, from)| *to = from);
        Self(key)
    }
}

/// The session of one request, scoped by the client's key.
#[derive(Clone, Debug)]
pub struct Session {
    caller: String,
    name: String,
}

impl Session {
    /// The session that headers name, else the one that the body names. Content is never a session (decisions 4.10).
    #[must_use]
    pub fn of(headers: &HeaderMap, body: Option<&str>, caller: &str) -> Option<Self> {
        let from_header =
            SESSION_HEADERS.iter().find_map(|name| headers.get(*name)?.to_str().ok().map(str::trim).filter(|v| !v.is_empty()));
        let name = from_header.or(body.map(str::trim).filter(|v| !v.is_empty()))?;
        Some(Self { caller: caller.to_owned(), name: name.to_owned() })
    }

    /// Its key with one provider.
    #[must_use]
    pub fn key(&self, provider: &str) -> Key {
        Key::of(&["pin", &self.caller, &self.name, provider])
    }

    /// Its key with one combo that hands conversations over.
    #[must_use]
    pub fn handoff_key(&self, combo: &str) -> Key {
        Key::of(&["handoff", &self.caller, &self.name, combo])
    }
}

/// The key of an answer's id.
#[must_use]
pub fn response_key(caller: &str, id: &str) -> Key {
    Key::of(&["response", caller, id])
}

#[derive(Clone, Debug)]
struct Binding {
    connection: Arc<str>,
    until: EpochMs,
    /// The end that other replicas know.
    told: EpochMs,
    /// It was released before its end. Remembered until then, so that who has not heard of it does not bring it back.
    over: bool,
}

/// The two kinds of bindings.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Binds {
    /// A session.
    Session,
    /// An answer.
    Answer,
}

/// What other replicas are to know of a binding, or have told.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct News {
    /// What is bound.
    pub binds: Binds,
    /// The key, as hex.
    pub key: String,
    /// The connection.
    pub connection: String,
    /// Until when, milliseconds since the epoch; 0 = no longer.
    pub until: i64,
}

type Shard = HashMap<Key, Binding>;

/// Bindings to connections, bounded and forgotten in time.
#[derive(Debug, Default)]
struct Table([Mutex<Shard>; SHARDS]);

impl Table {
    fn shard(&self, key: &Key) -> MutexGuard<'_, Shard> {
        lock(self.0.get(key.spread() % SHARDS).unwrap_or(&self.0[0]))
    }

    fn get(&self, key: &Key, now: EpochMs) -> Option<Arc<str>> {
        self.shard(key).get(key).filter(|binding| !binding.over && binding.until > now).map(|binding| Arc::clone(&binding.connection))
    }

    /// Binds; answers whether that changes anything but the time, and whether others must be told: their end comes too early otherwise.
    fn bind(&self, key: Key, connection: &Arc<str>, until: EpochMs, now: EpochMs) -> (bool, bool) {
        let mut shard = self.shard(&key);
        if let Some(known) = shard.get_mut(&key) {
            let moved = known.over || known.connection != *connection;
            let tell = moved || until.since(known.told) > until.since(now) / 2;
            let told = if tell { until } else { known.told };
            *known = Binding { connection: Arc::clone(connection), until, told, over: false };
            return (moved, tell);
        }
        if shard.len() >= MAX_BINDINGS / SHARDS {
            shard.retain(|_, binding| binding.until > now);
            if shard.len() >= MAX_BINDINGS / SHARDS
                && let Some(oldest) = shard.iter().min_by_key(|(_, binding)| (!binding.over, binding.until)).map(|(key, _)| *key)
            {
                shard.remove(&oldest);
            }
        }
        shard.insert(key, Binding { connection: Arc::clone(connection), until, told: until, over: false });
        (true, true)
    }

    /// Whether what is known here is newer than a binding until `until`: it ends later, or it is the end of that one. The end of a binding to
    /// another connection says nothing about this one.
    fn is_newer(&self, key: &Key, connection: &str, until: EpochMs) -> bool {
        self.shard(key)
            .get(key)
            .is_some_and(|known| if known.over { known.until >= until && *known.connection == *connection } else { known.until > until })
    }

    fn release(&self, key: &Key, connection: &str) -> bool {
        let mut shard = self.shard(key);
        let Some(ours) = shard.get_mut(key).filter(|binding| !binding.over && *binding.connection == *connection) else { return false };
        ours.over = true;
        true
    }

    /// What is bound, or what is over before its end.
    fn export(&self, over: bool, now: EpochMs) -> Vec<Saved> {
        let wanted = |(key, binding): (&Key, &Binding)| {
            let wanted = binding.over == over && binding.until > now;
            wanted.then(|| Saved { key: hex(&key.0), connection: binding.connection.to_string(), until: binding.until.0 })
        };
        self.0.iter().flat_map(|shard| lock(shard).iter().filter_map(wanted).collect::<Vec<_>>()).collect()
    }

    fn restore(&self, saved: Vec<Saved>, over: bool, now: EpochMs) {
        for entry in saved {
            if let Some(key) = unhex(&entry.key).filter(|_| entry.until > now.0) {
                self.bind(key, &entry.connection.as_str().into(), EpochMs(entry.until), now);
                let _ = over && self.release(&key, &entry.connection);
            }
        }
    }
}

/// Session pins and answer ids of a gateway.
#[derive(Debug, Default)]
pub struct Sessions {
    pins: Table,
    responses: Table,
    handoffs: Handoffs,
    version: AtomicU64,
    /// What other replicas do not know yet; `None` while there is nobody to tell.
    news: Mutex<Option<VecDeque<News>>>,
}

/// What is stored.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Stored {
    pins: Vec<Saved>,
    /// Pins that were released before their end.
    #[serde(default)]
    released: Vec<Saved>,
    responses: Vec<Saved>,
    #[serde(default)]
    handoffs: Vec<handoff::Saved>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Saved {
    key: String,
    connection: String,
    until: i64,
}

impl Sessions {
    /// The connection that the session is pinned to.
    #[must_use]
    pub fn pinned(&self, key: &Key, now: EpochMs) -> Option<Arc<str>> {
        self.pins.get(key, now)
    }

    /// Pins a session after a success; the time starts again with each.
    pub fn pin(&self, key: Key, connection: &Arc<str>, ttl_ms: u64, now: EpochMs) {
        let until = now.plus(ttl_ms);
        let (changed, tell) = self.pins.bind(key, connection, until, now);
        if tell {
            self.tell(Binds::Session, &key, connection, until);
        }
        if changed {
            self.changed();
        }
    }

    /// Ends a pin that still points to a connection that failed.
    pub fn unpin(&self, key: &Key, connection: &str) {
        if self.pins.release(key, connection) {
            self.tell(Binds::Session, key, connection, EpochMs(0));
            self.changed();
        }
    }

    /// The connection that made the answer with this id.
    #[must_use]
    pub fn response(&self, key: &Key, now: EpochMs) -> Option<Arc<str>> {
        self.responses.get(key, now)
    }

    /// Remembers which connection made an answer.
    pub fn remember_response(&self, key: Key, connection: &Arc<str>, now: EpochMs) {
        let until = now.plus(RESPONSE_TTL_MS);
        let (changed, tell) = self.responses.bind(key, connection, until, now);
        if tell {
            self.tell(Binds::Answer, &key, connection, until);
        }
        if changed {
            self.changed();
        }
    }

    /// From now on changes are noted for other replicas, or no longer.
    pub fn share(&self, share: bool) {
        let mut news = self.news.lock().unwrap_or_else(PoisonError::into_inner);
        match (share, news.is_some()) {
            (true, false) => *news = Some(VecDeque::new()),
            (false, true) => *news = None,
            _ => {}
        }
    }

    /// What was noted since the last call.
    pub fn news(&self) -> Vec<News> {
        self.news.lock().unwrap_or_else(PoisonError::into_inner).as_mut().map(std::mem::take).unwrap_or_default().into()
    }

    /// What could not be told: it comes before everything that was noted since.
    pub fn not_told(&self, untold: &[News]) {
        self.tell_before(untold.iter().cloned());
    }

    /// Notes again what is bound here or over, where it is news to a store: `ends` says when what it has of it ends there.
    pub fn tell_again(&self, ends: impl Fn(&News) -> Option<i64>, now: EpochMs) {
        let known = |over| {
            let all = [(Binds::Session, &self.pins), (Binds::Answer, &self.responses)];
            all.into_iter().flat_map(move |(binds, table)| {
                table.export(over, now).into_iter().map(move |Saved { key, connection, until }| News { binds, key, connection, until })
            })
        };
        let bound = known(false).filter(|news| ends(news).is_none_or(|until| until < news.until));
        let over = known(true).filter(|news| ends(news).is_some_and(|until| until <= news.until)).map(|news| News { until: 0, ..news });
        // What was noted meanwhile is newer.
        self.tell_before(bound.chain(over));
    }

    fn tell_before(&self, older: impl Iterator<Item = News>) {
        let mut older: VecDeque<News> = older.collect();
        if let Some(news) = self.news.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            older.append(news);
            drop(older.drain(..older.len().saturating_sub(MAX_NEWS)));
            *news = older;
        }
    }

    /// Takes over what another replica told.
    pub fn learn(&self, news: &News, now: EpochMs) {
        let table = match news.binds {
            Binds::Session => &self.pins,
            Binds::Answer => &self.responses,
        };
        let Some(key) = unhex(&news.key) else { return };
        let changed = if news.until > now.0 {
            // What was bound last ends last: whoever is heard last, all come to the same.
            let until = EpochMs(news.until);
            !table.is_newer(&key, &news.connection, until) && table.bind(key, &news.connection.as_str().into(), until, now).0
        } else {
            table.release(&key, &news.connection)
        };
        if changed {
            self.changed();
        }
    }

    fn tell(&self, binds: Binds, key: &Key, connection: &str, until: EpochMs) {
        if let Some(news) = self.news.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            if news.len() >= MAX_NEWS {
                news.pop_front();
            }
            news.push_back(News { binds, key: hex(&key.0), connection: connection.to_owned(), until: until.0 });
        }
    }

    /// What sessions hand over to their next account.
    #[must_use]
    pub const fn handoffs(&self) -> &Handoffs {
        &self.handoffs
    }

    /// Keeps a hand-off until somebody picks it up.
    pub fn hand_over(&self, key: Key, handoff: Handoff) {
        self.handoffs.put(key, handoff);
        self.changed();
    }

    /// Forgets a hand-off that was told and answered; see [`Handoffs::picked_up`].
    pub fn picked_up(&self, key: &Key, made: EpochMs) {
        if self.handoffs.picked_up(key, made) {
            self.changed();
        }
    }

    /// Grows with every change worth storing.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// What is to be stored.
    ///
    /// # Errors
    /// Only if a value has no JSON form, which none has.
    pub fn export(&self, now: EpochMs) -> Result<Vec<u8>, serde_json::Error> {
        let (pins, released) = (self.pins.export(false, now), self.pins.export(true, now));
        let (responses, handoffs) = (self.responses.export(false, now), self.handoffs.export(now));
        serde_json::to_vec(&Stored { pins, released, responses, handoffs })
    }

    /// Takes over what was stored.
    ///
    /// # Errors
    /// It is something else.
    pub fn restore(&self, bytes: &[u8], now: EpochMs) -> Result<(), serde_json::Error> {
        let stored: Stored = serde_json::from_slice(bytes)?;
        self.pins.restore(stored.pins, false, now);
        self.pins.restore(stored.released, true, now);
        self.responses.restore(stored.responses, false, now);
        self.handoffs.restore(stored.handoffs, now);
        Ok(())
    }

    fn changed(&self) {
        self.version.fetch_add(1, Ordering::Release);
    }
}

fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The key that was written as hex.
pub(super) fn unhex(text: &str) -> Option<Key> {
    let mut key = [0; 16];
    if text.len() != 32 {
        return None;
    }
    for (byte, pair) in key.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(Key(key))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    const NOW: EpochMs = EpochMs(1_000_000);

    fn session(headers: &[(&'static str, &'static str)], body: Option<&str>, caller: &str) -> Option<Session> {
        let headers = headers.iter().map(|(n, v)| (http::HeaderName::from_static(n), HeaderValue::from_static(v))).collect();
        Session::of(&headers, body, caller)
    }

    #[test]
    fn headers_come_before_the_body_and_keys_keep_callers_and_providers_apart() {
        let name = |headers: &[(&'static str, &'static str)], body| session(headers, body, "k").map(|s| s.name);
        assert_eq!(
            name(&[("x-omniroute-session", "c"), ("x-session-id", "b"), ("x-codex-session-id", "a")], Some("d")).as_deref(),
            Some("a")
        );
        assert_eq!(name(&[("x-session-id", " ")], Some("d")).as_deref(), Some("d"));
        assert_eq!(name(&[], None), None);
        let key = |caller, provider: &str| session(&[("x-session-id", "s")], None, caller).unwrap().key(provider);
        assert_eq!(key("k", "p"), key("k", "p"));
        assert!(key("k", "p") != key("l", "p") && key("k", "p") != key("k", "q"));
    }

    #[test]
    fn a_pin_ends_by_time_or_by_the_failure_of_its_own_connection() {
        let (sessions, key) = (Sessions::default(), response_key("k", "s"));
        sessions.pin(key, &"a".into(), 100, NOW);
        assert_eq!(sessions.pinned(&key, NOW.plus(99)).as_deref(), Some("a"));
        assert_eq!(sessions.pinned(&key, NOW.plus(100)), None);
        sessions.unpin(&key, "b");
        assert_eq!(sessions.pinned(&key, NOW).as_deref(), Some("a"));
        sessions.unpin(&key, "a");
        assert_eq!(sessions.pinned(&key, NOW), None);
    }

    #[test]
    fn what_was_bound_here_later_is_not_moved_back_by_who_tells_of_before() {
        let (sessions, key) = (Sessions::default(), response_key("k", "s"));
        let told = |connection: &str, until: EpochMs| News {
            binds: Binds::Session,
            key: hex(key.bytes()),
            connection: connection.to_owned(),
            until: until.0,
        };
        sessions.pin(key, &"b".into(), 100, NOW.plus(10));
        sessions.learn(&told("a", NOW.plus(100)), NOW.plus(20));
        assert_eq!(sessions.pinned(&key, NOW.plus(20)).as_deref(), Some("b"));
        sessions.learn(&told("c", NOW.plus(120)), NOW.plus(20));
        assert_eq!(sessions.pinned(&key, NOW.plus(20)).as_deref(), Some("c"));
    }

    #[test]
    fn what_is_bound_is_told_again_to_who_has_not_heard_of_it() {
        let (sessions, [pin, answer]) = (Sessions::default(), ["pin", "answer"].map(|name| response_key("k", name)));
        sessions.pin(pin, &"a".into(), 100, NOW);
        sessions.tell_again(|_| None, NOW);
        assert!(sessions.news().is_empty(), "there is nobody to tell");
        sessions.share(true);
        sessions.remember_response(answer, &"b".into(), NOW);
        sessions.tell_again(|news| (news.binds == Binds::Answer).then_some(news.until), NOW);
        let told: Vec<(Binds, String)> = sessions.news().into_iter().map(|news| (news.binds, news.connection)).collect();
        assert_eq!(told, [(Binds::Session, "a".to_owned()), (Binds::Answer, "b".to_owned())]);
        sessions.tell_again(|_| None, NOW.plus(100));
        assert_eq!(sessions.news().len(), 1, "what is over is not told");
    }

    #[test]
    fn what_is_over_is_not_brought_back_by_who_has_not_heard_of_it() {
        let (sessions, key) = (Sessions::default(), response_key("k", "s"));
        let told = |until: EpochMs| News { binds: Binds::Session, key: hex(key.bytes()), connection: "a".to_owned(), until: until.0 };
        sessions.share(true);
        sessions.pin(key, &"a".into(), 100, NOW);
        let copy = sessions.export(NOW).unwrap();
        sessions.unpin(&key, "a");
        drop(sessions.news());
        for until in [NOW.plus(50), NOW.plus(100)] {
            sessions.learn(&told(until), NOW.plus(1));
            assert_eq!(sessions.pinned(&key, NOW.plus(1)), None);
        }
        let elsewhere = News { connection: "b".to_owned(), ..told(NOW.plus(50)) };
        let other = Sessions::default();
        other.restore(&sessions.export(NOW).unwrap(), NOW).unwrap();
        other.learn(&elsewhere, NOW.plus(1));
        assert_eq!(other.pinned(&key, NOW.plus(1)).as_deref(), Some("b"));
        // A store that still has it is told, one that has a later one is not, and neither is one without.
        for (stored, news) in [(Some(NOW.plus(100)), 1), (Some(NOW.plus(101)), 0), (None, 0)] {
            sessions.tell_again(|_| stored.map(|until| until.0), NOW.plus(1));
            assert_eq!(sessions.news().iter().map(|news| news.until).collect::<Vec<_>>(), vec![0; news]);
        }
        // The state file keeps it, and one without it is read as well.
        let after = Sessions::default();
        after.restore(&sessions.export(NOW.plus(1)).unwrap(), NOW.plus(2)).unwrap();
        after.learn(&told(NOW.plus(100)), NOW.plus(2));
        assert_eq!(after.pinned(&key, NOW.plus(2)), None);
        let older = String::from_utf8(copy).unwrap().replace(r#""released":[],"#, "");
        assert!(!older.contains("released"));
        Sessions::default().restore(older.as_bytes(), NOW).unwrap();
        // A later success pins again, here and from elsewhere.
        after.learn(&told(NOW.plus(101)), NOW.plus(2));
        assert_eq!(after.pinned(&key, NOW.plus(2)).as_deref(), Some("a"));
        sessions.pin(key, &"a".into(), 100, NOW.plus(3));
        assert_eq!((sessions.pinned(&key, NOW.plus(3)).as_deref(), sessions.news().len()), (Some("a"), 1));
    }

    #[test]
    fn what_waits_to_be_told_is_bounded_and_the_newest_stays() {
        let (sessions, key) = (Sessions::default(), response_key("k", "s"));
        sessions.share(true);
        let note = |connection: String| sessions.pin(key, &connection.into(), 100, NOW);
        (0..=MAX_NEWS).for_each(|n| note(n.to_string()));
        let ends = |news: &[News]| [news.first(), news.last()].map(|news| news.map(|news| news.connection.clone()).unwrap());
        let noted = sessions.news();
        assert_eq!((noted.len(), ends(&noted)), (MAX_NEWS, ["1".to_owned(), MAX_NEWS.to_string()]));
        note("newest".to_owned());
        sessions.not_told(&noted);
        let noted = sessions.news();
        assert_eq!((noted.len(), ends(&noted)), (MAX_NEWS, ["2".to_owned(), "newest".to_owned()]));
    }

    #[test]
    fn the_oldest_is_forgotten_first_and_memory_is_bounded() {
        let sessions = Sessions::default();
        for n in 0..3 * MAX_BINDINGS {
            sessions.remember_response(response_key("k", &n.to_string()), &"a".into(), NOW.plus(n as u64));
        }
        let held: usize = sessions.responses.0.iter().map(|shard| lock(shard).len()).sum();
        assert!(held <= MAX_BINDINGS, "{held}");
        let newest = response_key("k", &(3 * MAX_BINDINGS - 1).to_string());
        assert!(sessions.response(&newest, NOW).is_some());
        assert!(sessions.response(&response_key("k", "0"), NOW).is_none());
    }

    #[test]
    fn bindings_survive_a_restart_until_their_time() {
        let (before, after) = (Sessions::default(), Sessions::default());
        before.pin(response_key("k", "pin"), &"a".into(), 100, NOW);
        before.remember_response(response_key("k", "resp_1"), &"b".into(), NOW);
        assert_eq!(before.version(), 2);
        after.restore(&before.export(NOW).unwrap(), NOW.plus(200)).unwrap();
        assert_eq!(after.pinned(&response_key("k", "pin"), NOW.plus(200)), None);
        assert!(after.restore(br#"{"pins":[],"responses":[]}"#, NOW).is_ok(), "written before there were hand-offs");
        assert_eq!(after.response(&response_key("k", "resp_1"), NOW.plus(200)).as_deref(), Some("b"));
    }
}
