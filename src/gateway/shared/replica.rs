//! What one replica tells the others, and how it takes over what they say.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use redis::AsyncConnectionConfig;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::{Session, SharedError};
use crate::api::time::EpochMs;
use crate::gateway::config::Loaded;
use crate::gateway::sessions::{Binds, News};
use crate::gateway::{Gateway, clock, leases, lock};
use crate::resilience::Checkpoint;
use crate::snapshot::StateStore;

/// Longest wait for a connection or an answer.
const ANSWER: Duration = Duration::from_secs(2);
/// Between a change and its publication: changes come in bursts.
const BATCH: Duration = Duration::from_millis(100);
/// Between two looks at what the others have published, should a message have been lost.
const LOOK: Duration = Duration::from_secs(5);
/// Between two readings of all bindings.
const READ_BINDINGS: Duration = Duration::from_secs(600);
/// How long what a replica published outlives it, milliseconds.
const KEPT_MS: i64 = 3_600_000;
/// Documents larger than this are not exchanged.
const MAX_DOCUMENT: usize = 8 * 1024 * 1024;
/// Replicas whose documents are held.
const MAX_REPLICAS: usize = 256;
/// Bindings in one message.
const MAX_NEWS: usize = 512;
/// Bindings that the store keeps; those that end first go first.
const MAX_BINDINGS: usize = 65_536;

/// The message of those who changed leases; the same from all.
pub(super) const LEASES_MESSAGE: &str = r#"{"from":"","what":"leases"}"#;

/// What replicas tell each other.
#[derive(Serialize, Deserialize)]
struct Message {
    from: String,
    what: What,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum What {
    /// My document is new.
    Ledger,
    /// The leases are.
    Leases,
    /// These bindings are.
    Bindings(Vec<News>),
}

/// This replica in contact with the store.
struct Replica<'a> {
    gateway: &'a Arc<Gateway>,
    session: Session,
    /// The name of this process among the replicas.
    me: &'a str,
    /// What was published last, and when.
    told: Option<(Checkpoint, Instant)>,
    /// What stands beside its name since: until when the document is good, and its version.
    stamp: Option<String>,
    /// What the others have published, by name, with its version.
    heard: HashMap<String, (String, Checkpoint)>,
    /// The configuration against which leases were checked.
    checked: Option<Arc<Loaded>>,
}

/// Shares state until something goes wrong; answers what.
pub(super) async fn follow(gateway: &Arc<Gateway>, store: &Arc<StateStore>, me: &str) -> SharedError {
    match share(gateway, store, me).await {
        Ok(()) => SharedError::Closed,
        Err(error) => error,
    }
}

fn client(store: &StateStore) -> redis::RedisResult<redis::Client> {
    match &store.ca_bundle {
        None => redis::Client::open(store.url.expose()),
        Some(pem) => {
            let trusted = redis::TlsCertificates { client_tls: None, root_cert: Some(pem.clone().into_bytes()) };
            redis::Client::build_with_tls(store.url.expose(), trusted)
        }
    }
}

async fn share(gateway: &Arc<Gateway>, store: &Arc<StateStore>, me: &str) -> Result<(), SharedError> {
    let client = client(store).map_err(SharedError::Connect)?;
    let config = AsyncConnectionConfig::new().set_connection_timeout(Some(ANSWER)).set_response_timeout(Some(ANSWER));
    let connection = client.get_multiplexed_async_connection_with_config(&config).await.map_err(SharedError::Connect)?;
    let session = Session { connection, store: Arc::clone(store) };
    let messages = async {
        let mut messages = client.get_async_pubsub().await.map_err(SharedError::Connect)?;
        messages.subscribe(session.key("messages")).await.map_err(SharedError::Connect)?;
        Ok::<_, SharedError>(messages.into_on_message())
    };
    let mut messages = timeout(ANSWER, messages).await.map_err(|_| SharedError::Silent(ANSWER))??;
    let mut replica = Replica { gateway, session: session.clone(), me, told: None, stamp: None, heard: HashMap::new(), checked: None };
    let known = replica.is_known().await?;
    // First what the others know, then the door is open.
    replica.hear().await?;
    let stored = replica.read_bindings().await?;
    if !known {
        // A store that does not know this process, or was restored from an older copy, may know nothing that was told before.
        gateway.sessions().tell_again(|news| stored.get(&field(news)).copied(), clock::now());
    }
    session.join_leases(gateway).await?;
    gateway.store_is(Some(session), None);
    let (mut look, mut read) = (Instant::now() + LOOK, Instant::now() + READ_BINDINGS);
    loop {
        let version = gateway.state_version();
        let ttl = gateway.config().map_or(0, |loaded| loaded.snapshot.settings.session_lease_ttl_ms);
        let patience = LOOK.min(Duration::from_millis(ttl / 3)).max(BATCH);
        replica.tell().await?;
        replica.tell_bindings().await?;
        replica.keep_leases().await?;
        tokio::select! {
            message = messages.next() => match message {
                Some(message) => replica.take(message.get_payload_bytes()).await?,
                None => return Ok(()),
            },
            () = gateway.state_changed(version, patience) => sleep(BATCH).await,
            () = gateway.shared.news.notified() => sleep(BATCH).await,
            () = sleep_until(look) => {
                replica.hear().await?;
                look = Instant::now() + LOOK;
                if look > read {
                    replica.read_bindings().await?;
                    read = Instant::now() + READ_BINDINGS;
                }
            }
        }
    }
}

impl Replica<'_> {
    /// Publishes what this replica knows, if that is news, or about to be forgotten.
    async fn tell(&mut self) -> Result<(), SharedError> {
        let now = clock::now();
        let document = self.gateway.ledger().export(now).shared();
        let fresh = self.told.as_ref().filter(|(told, at)| *told == document && at.elapsed() < Duration::from_secs(600));
        if fresh.is_some() {
            return Ok(());
        }
        let json = serde_json::to_vec(&document)?;
        if json.len() > MAX_DOCUMENT {
            tracing::error!(bytes = json.len(), "too much is known to be shared: the other replicas keep to what they know");
        } else {
            let stamp = format!("{} {}", now.0 + KEPT_MS, unique());
            let mut pipe = redis::pipe();
            pipe.atomic();
            pipe.cmd("SET").arg(self.document(self.me)).arg(json).arg("PX").arg(KEPT_MS).ignore();
            pipe.cmd("HSET").arg(self.session.key("replicas")).arg(self.me).arg(&stamp).ignore();
            pipe.cmd("PEXPIRE").arg(self.session.key("replicas")).arg(KEPT_MS).ignore();
            pipe.cmd("PUBLISH").arg(self.session.key("messages")).arg(self.message(What::Ledger)?).ignore();
            let () = pipe.query_async(&mut self.session.connection).await?;
            *lock(&self.gateway.shared.stamp) = Some(stamp.clone());
            self.stamp = Some(stamp);
        }
        self.told = Some((document, Instant::now()));
        Ok(())
    }

    /// Whether the store has what this process has told last, and so all of it.
    async fn is_known(&mut self) -> Result<bool, SharedError> {
        let asked = redis::cmd("HGET").arg(self.session.key("replicas")).arg(self.me).to_owned();
        let stamp: Option<String> = asked.query_async(&mut self.session.connection).await?;
        Ok(stamp.is_some() && stamp == *lock(&self.gateway.shared.stamp))
    }

    /// Takes over what the others have published. What was heard before is taken over again: it may matter more now than it did then.
    async fn hear(&mut self) -> Result<(), SharedError> {
        let replicas: HashMap<String, String> =
            redis::cmd("HGETALL").arg(self.session.key("replicas")).query_async(&mut self.session.connection).await?;
        let now = clock::now();
        let mut gone = Vec::new();
        let me = self.me;
        for (name, stamp) in replicas.iter().filter(|(name, _)| *name != me) {
            let mut words = stamp.split(' ');
            let (ends, version) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
            if ends.parse::<i64>().map_or(true, |ends| ends <= now.0) {
                gone.push(name.clone());
                continue;
            }
            let news = match self.heard.get(name) {
                Some((known, _)) => known != version,
                None => self.heard.len() < MAX_REPLICAS,
            };
            if news && let Some(document) = self.read(name).await? {
                self.heard.insert(name.clone(), (version.to_owned(), document));
            }
        }
        self.heard.retain(|name, _| replicas.contains_key(name) && !gone.contains(name));
        if !gone.is_empty() {
            let () = redis::cmd("HDEL").arg(self.session.key("replicas")).arg(&gone).query_async(&mut self.session.connection).await?;
        }
        let now = clock::now();
        let changed = self.heard.values().fold(false, |changed, (_, document)| self.gateway.ledger().restore(document, now) | changed);
        if changed {
            self.gateway.notify();
        }
        Ok(())
    }

    async fn read(&mut self, name: &str) -> Result<Option<Checkpoint>, SharedError> {
        let json: Option<Vec<u8>> = redis::cmd("GET").arg(self.document(name)).query_async(&mut self.session.connection).await?;
        let Some(json) = json.filter(|json| json.len() <= MAX_DOCUMENT) else { return Ok(None) };
        match Checkpoint::from_json(&json) {
            Ok(document) => Ok(Some(document)),
            Err(error) => {
                // Mostly a newer version of the product, during a rollout.
                tracing::warn!(%error, "what another replica knows is not taken over");
                Ok(None)
            }
        }
    }

    /// Acts on a message; one that cannot be read comes from another version and means nothing here.
    async fn take(&mut self, payload: &[u8]) -> Result<(), SharedError> {
        let Ok(message) = serde_json::from_slice::<Message>(payload) else { return Ok(()) };
        if message.from == self.me {
            return Ok(());
        }
        match message.what {
            What::Ledger => self.hear().await,
            What::Leases => self.session.look_at_leases(self.gateway).await,
            What::Bindings(news) => {
                let now = clock::now();
                news.iter().for_each(|news| self.gateway.sessions().learn(news, now));
                Ok(())
            }
        }
    }

    /// Stores and tells bindings that changed here.
    async fn tell_bindings(&mut self) -> Result<(), SharedError> {
        let all = self.gateway.sessions().news();
        for (told, news) in all.chunks(MAX_NEWS).enumerate() {
            let mut pipe = redis::pipe();
            pipe.atomic();
            for one in news {
                match one.until {
                    0 => pipe.cmd("HDEL").arg(self.session.key("bindings")).arg(field(one)).ignore(),
                    until => {
                        let value = format!("{until} {}", one.connection);
                        pipe.cmd("HSET").arg(self.session.key("bindings")).arg(field(one)).arg(value).ignore()
                    }
                };
            }
            pipe.cmd("PUBLISH").arg(self.session.key("messages")).arg(self.message(What::Bindings(news.to_vec()))?).ignore();
            // A copy of the store from before this must not pass for one that has it.
            let stamp = self.stamp.as_ref().map(|stamp| format!("{stamp} {}", unique()));
            if let Some(stamp) = &stamp {
                pipe.cmd("HSET").arg(self.session.key("replicas")).arg(self.me).arg(stamp).ignore();
            }
            let answer: redis::RedisResult<()> = pipe.query_async(&mut self.session.connection).await;
            if let Err(error) = answer {
                self.gateway.sessions().not_told(all.get(told * MAX_NEWS..).unwrap_or_default());
                return Err(error.into());
            }
            *lock(&self.gateway.shared.stamp) = stamp;
        }
        Ok(())
    }

    /// Takes over all bindings that the store keeps, and removes those that are over, or too many. Answers when each ends.
    async fn read_bindings(&mut self) -> Result<HashMap<String, i64>, SharedError> {
        let stored: HashMap<String, String> =
            redis::cmd("HGETALL").arg(self.session.key("bindings")).query_async(&mut self.session.connection).await?;
        let now = clock::now();
        let mut ends: Vec<(i64, &String)> = Vec::with_capacity(stored.len());
        for (field, value) in &stored {
            let news = binding(field, value);
            ends.push((news.as_ref().map_or(0, |news| news.until), field));
            news.iter().for_each(|news| self.gateway.sessions().learn(news, now));
        }
        ends.sort_unstable();
        let spare = ends.len().saturating_sub(MAX_BINDINGS);
        let over: Vec<&String> = ends
            .iter()
            .enumerate()
            .filter(|(at, (until, _))| *at < spare || EpochMs(*until) <= now)
            .map(|(_, (_, field))| *field)
            .collect();
        for over in over.chunks(MAX_NEWS) {
            let () = redis::cmd("HDEL").arg(self.session.key("bindings")).arg(over).query_async(&mut self.session.connection).await?;
        }
        Ok(ends.into_iter().map(|(until, field)| (field.clone(), until)).collect())
    }

    /// Leases under which requests run here do not end, and those that a new configuration does not allow do.
    async fn keep_leases(&mut self) -> Result<(), SharedError> {
        let Some(loaded) = self.gateway.config() else { return Ok(()) };
        let unchecked = self.checked.as_ref().is_none_or(|checked| !Arc::ptr_eq(checked, &loaded));
        let (gateway, ttl) = (self.gateway, loaded.snapshot.settings.session_lease_ttl_ms);
        if gateway.leases.active(clock::now()) == 0 && !unchecked {
            return Ok(());
        }
        let keep = |table: &crate::routing::leases::LeaseTable, now| {
            table.extend(&gateway.leases, ttl, now);
            if unchecked {
                table.invalidate(|lease| leases::outdated(lease, &loaded), now);
            }
        };
        self.session.with_leases(gateway, keep).await?;
        self.checked = Some(Arc::clone(&loaded));
        Ok(())
    }

    fn document(&self, replica: &str) -> String {
        self.session.key(&format!("ledger:{replica}"))
    }

    fn message(&self, what: What) -> Result<Vec<u8>, SharedError> {
        Ok(serde_json::to_vec(&Message { from: self.me.to_owned(), what })?)
    }
}

/// A name that nobody else has.
fn unique() -> String {
    crate::snapshot::hex(&rand::random::<[u8; 8]>())
}

/// The field of a binding: its kind and its key.
fn field(news: &News) -> String {
    let kind = match news.binds {
        Binds::Session => "session",
        Binds::Answer => "answer",
    };
    format!("{kind}:{}", news.key)
}

fn binding(field: &str, value: &str) -> Option<News> {
    let ((kind, key), (until, connection)) = (field.split_once(':')?, value.split_once(' ')?);
    let binds = serde_json::from_value(kind.into()).ok()?;
    Some(News { binds, key: key.to_owned(), connection: connection.to_owned(), until: until.parse().ok()? })
}
