//! Watch caches: what the API server has, as far as the operator needs it.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::stream::BoxStream;
use kube::runtime::utils::Backoff;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Resource};
use rand::RngExt as _;
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::metrics::Metrics;

/// How long one watch request lives: shorter than the idle limits of load balancers on the way (240 s).
const WATCH_SECONDS: u32 = 230;
/// Objects per page of a list.
const PAGE: u32 = 500;

/// Pauses before a watch that failed is started again: growing, with jitter, and never so long that the caches stay behind for long once the
/// API server is back.
#[derive(Debug, Default)]
pub struct Pauses {
    failures: u32,
    last: Option<Instant>,
}

impl Pauses {
    const FIRST: Duration = Duration::from_millis(500);
    const LONGEST: Duration = Duration::from_secs(10);
    /// A watch that worked for this long works. A list that only begins is no success yet.
    const GOOD: Duration = Duration::from_secs(30);

    /// The next pause without its jitter.
    fn pause(&mut self, now: Instant) -> Duration {
        if self.last.is_some_and(|last| now.saturating_duration_since(last) >= Self::GOOD) {
            self.failures = 0;
        }
        self.last = Some(now);
        let pause = Self::FIRST.saturating_mul(1 << self.failures.min(5)).min(Self::LONGEST);
        self.failures += 1;
        pause
    }
}

impl Iterator for Pauses {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let pause = self.pause(Instant::now());
        Some(pause.mul_f64(rand::rng().random_range(0.8..=1.0)))
    }
}

impl Backoff for Pauses {
    fn reset(&mut self) {}
}

/// Namespace and name.
pub type Key = (String, String);

/// Objects of one kind by namespace and name.
#[derive(Debug)]
pub struct Store<T> {
    objects: RwLock<BTreeMap<Key, Arc<T>>>,
}

impl<T> Default for Store<T> {
    fn default() -> Self {
        Self { objects: RwLock::new(BTreeMap::new()) }
    }
}

impl<T> Store<T> {
    /// One object.
    #[must_use]
    pub fn get(&self, namespace: &str, name: &str) -> Option<Arc<T>> {
        self.read(|objects| objects.get(&(namespace.to_owned(), name.to_owned())).cloned())
    }

    /// All objects of a namespace, by name.
    #[must_use]
    pub fn namespace(&self, namespace: &str) -> Vec<(String, Arc<T>)> {
        self.read(|objects| {
            objects
                .range((namespace.to_owned(), String::new())..)
                .take_while(|((ns, _), _)| ns == namespace)
                .map(|((_, name), object)| (name.clone(), object.clone()))
                .collect()
        })
    }

    /// Whether a namespace has no object.
    #[must_use]
    pub fn is_empty(&self, namespace: &str) -> bool {
        self.read(|objects| objects.range((namespace.to_owned(), String::new())..).next().is_none_or(|((ns, _), _)| ns != namespace))
    }

    /// Removes all objects of a namespace.
    pub fn clear(&self, namespace: &str) {
        let mut objects = self.objects.write().unwrap_or_else(PoisonError::into_inner);
        objects.retain(|(ns, _), _| ns != namespace);
    }

    /// Removes an object if it is still this one; answers whether it was.
    pub fn remove(&self, key: &Key, object: &Arc<T>) -> bool {
        let mut objects = self.objects.write().unwrap_or_else(PoisonError::into_inner);
        let same = objects.get(key).is_some_and(|there| Arc::ptr_eq(there, object));
        if same {
            objects.remove(key);
        }
        same
    }

    /// All objects.
    #[must_use]
    pub fn all(&self) -> Vec<(Key, Arc<T>)> {
        self.read(|objects| objects.iter().map(|(k, v)| (k.clone(), v.clone())).collect())
    }

    fn read<R>(&self, read: impl FnOnce(&BTreeMap<Key, Arc<T>>) -> R) -> R {
        read(&self.objects.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Sets or removes one object; answers what was there.
    pub fn set(&self, key: Key, object: Option<Arc<T>>) -> Option<Arc<T>> {
        let mut objects = self.objects.write().unwrap_or_else(PoisonError::into_inner);
        match object {
            Some(object) => objects.insert(key, object),
            None => objects.remove(&key),
        }
    }

    /// Sets an object unless a newer version of it is there.
    pub fn replace_older(&self, key: &Key, object: T, version: impl Fn(&T) -> u64) {
        let mut objects = self.objects.write().unwrap_or_else(PoisonError::into_inner);
        if objects.get(key).is_none_or(|there| version(there) < version(&object)) {
            objects.insert(key.clone(), Arc::new(object));
        }
    }
}

/// Counts the caches that have not been filled yet.
#[derive(Clone, Debug)]
pub struct Sync {
    pending: Arc<AtomicUsize>,
    synced: watch::Sender<bool>,
}

impl Default for Sync {
    fn default() -> Self {
        Self { pending: Arc::new(AtomicUsize::new(0)), synced: watch::Sender::new(true) }
    }
}

impl Sync {
    fn begin(&self) {
        self.pending.fetch_add(1, Ordering::AcqRel);
        self.synced.send_replace(false);
    }

    fn done(&self) {
        if self.pending.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.synced.send_replace(true);
        }
    }

    /// Waits until all are filled.
    pub async fn wait(&self) {
        let mut synced = self.synced.subscribe();
        // The sender lives in `self`, so waiting cannot fail.
        let _ = synced.wait_for(|synced| *synced).await;
    }

    /// Whether all are filled.
    #[must_use]
    pub fn is_synced(&self) -> bool {
        *self.synced.borrow()
    }
}

/// What a change of an object means.
pub type OnChange<T> = Arc<dyn Fn(&Key, Option<&T>, Option<&T>) + Send + std::marker::Sync>;

/// One watch that fills a store.
pub struct Reflect<K, T> {
    /// What to watch.
    pub api: Api<K>,
    /// Selectors.
    pub config: watcher::Config,
    /// Where it goes; several watches may share one store as long as they see different objects.
    pub store: Arc<Store<T>>,
    /// What to keep of an object.
    pub keep: Arc<dyn Fn(K) -> T + Send + std::marker::Sync>,
    /// Told of every change: the key, the object before and after.
    pub on_change: OnChange<T>,
    /// Name in logs and metrics.
    pub what: &'static str,
    /// Told when the first list is complete.
    pub sync: Sync,
}

impl<K, T> Reflect<K, T>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    K::DynamicType: Send + std::marker::Sync,
    T: PartialEq + Send + std::marker::Sync + 'static,
{
    /// Starts the watch; it runs until `stop`, and then its objects leave the store: nobody refers to them any more. At the `end` of
    /// the whole process they stay, because work that is still on its way must not take a cache that empties for a cluster that does.
    pub fn spawn(self, metrics: Arc<Metrics>, stop: CancellationToken, end: CancellationToken) {
        self.sync.begin();
        tokio::spawn(async move {
            let mut events = self.events();
            let mut pauses = Pauses::default();
            let mut mine: BTreeMap<Key, Arc<T>> = BTreeMap::new();
            let mut listed: BTreeMap<Key, Arc<T>> = BTreeMap::new();
            let mut synced = false;
            loop {
                let event = tokio::select! {
                    biased;
                    () = stop.cancelled() => break,
                    event = events.next() => event,
                };
                match event {
                    Some(Ok(watcher::Event::Init)) => listed.clear(),
                    Some(Ok(watcher::Event::InitApply(object))) => {
                        let (key, object) = self.kept(object);
                        listed.insert(key, Arc::new(object));
                    }
                    Some(Ok(watcher::Event::InitDone)) => {
                        let before = std::mem::take(&mut mine);
                        for key in before.keys().filter(|k| !listed.contains_key(*k)) {
                            self.set(key, None);
                        }
                        for (key, object) in &listed {
                            self.set(key, Some(object.clone()));
                        }
                        mine = std::mem::take(&mut listed);
                        if !std::mem::replace(&mut synced, true) {
                            self.sync.done();
                            tracing::debug!(what = self.what, objects = mine.len(), "cache filled");
                        }
                    }
                    Some(Ok(watcher::Event::Apply(object))) => {
                        let (key, object) = self.kept(object);
                        let object = Arc::new(object);
                        self.set(&key, Some(object.clone()));
                        mine.insert(key, object);
                    }
                    Some(Ok(watcher::Event::Delete(object))) => {
                        let (key, _) = self.kept(object);
                        self.set(&key, None);
                        mine.remove(&key);
                    }
                    Some(Err(error)) => {
                        metrics.watch_restart(self.what);
                        tracing::warn!(what = self.what, %error, "watch failed, starting again");
                        // As a status and not as an event, the watcher would ask for the same version for ever.
                        if matches!(&error, watcher::Error::WatchStartFailed(kube::Error::Api(status)) if status.code == 410) {
                            tokio::select! {
                                biased;
                                () = stop.cancelled() => break,
                                () = tokio::time::sleep(pauses.next().unwrap_or(Pauses::LONGEST)) => events = self.events(),
                            }
                        }
                    }
                    None => break,
                }
            }
            if end.is_cancelled() {
                return;
            }
            for (key, object) in &mine {
                // Another watch of the same objects may have begun meanwhile.
                if self.store.remove(key, object) {
                    (self.on_change)(key, Some(object), None);
                }
            }
            if !synced {
                self.sync.done();
            }
        });
    }

    /// The watch from its first list on.
    fn events(&self) -> BoxStream<'static, watcher::Result<watcher::Event<K>>> {
        let config = self.config.clone().timeout(WATCH_SECONDS).page_size(PAGE);
        watcher(self.api.clone(), config).backoff(Pauses::default()).boxed()
    }

    fn kept(&self, object: K) -> (Key, T) {
        let meta = object.meta();
        let key = (meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default());
        (key, (self.keep)(object))
    }

    fn set(&self, key: &Key, object: Option<Arc<T>>) {
        let before = self.store.set(key.clone(), object.clone());
        if before.as_deref() != object.as_deref() {
            (self.on_change)(key, before.as_deref(), object.as_deref());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_is_read_without_its_neighbours() {
        let store = Store::default();
        for (ns, name) in [("a", "x"), ("b", "z"), ("b", "y"), ("bb", "x")] {
            store.set((ns.to_owned(), name.to_owned()), Some(Arc::new(1)));
        }
        let names: Vec<String> = store.namespace("b").into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["y", "z"]);
        assert!(store.set(("b".to_owned(), "y".to_owned()), None).is_some());
        assert_eq!(store.namespace("b").len(), 1);
    }

    #[test]
    fn a_watch_that_ends_takes_away_what_it_brought_and_no_more() {
        let store = Store::default();
        let key = |name: &str| ("a".to_owned(), name.to_owned());
        let (old, new) = (Arc::new(1), Arc::new(1));
        store.set(key("x"), Some(old.clone()));
        store.set(key("x"), Some(new.clone()));
        assert!(!store.remove(&key("x"), &old) && !store.is_empty("a"), "that of another watch stays");
        assert!(store.remove(&key("x"), &new) && store.is_empty("a"));
        for (ns, name) in [("a", "x"), ("a", "y"), ("aa", "x")] {
            store.set((ns.to_owned(), name.to_owned()), Some(old.clone()));
        }
        store.clear("a");
        assert!(store.is_empty("a") && store.is_empty("") && !store.is_empty("aa"));
    }

    #[test]
    fn the_answer_to_a_write_does_not_replace_what_the_watch_has_shown_since() {
        let store = Store::default();
        let key = ("a".to_owned(), "x".to_owned());
        for (object, shown) in [(3, 3), (2, 3), (3, 3), (4, 4)] {
            store.replace_older(&key, object, |version| *version);
            assert_eq!(store.get("a", "x").as_deref(), Some(&shown));
        }
    }

    #[test]
    fn a_watch_comes_back_within_ten_seconds_of_the_api_server() {
        let mut pauses = Pauses::default();
        let mut now = Instant::now();
        let mut all = Vec::new();
        for _ in 0..8 {
            let pause = pauses.pause(now);
            all.push(pause.as_millis());
            now += pause;
        }
        assert_eq!(all, [500, 1_000, 2_000, 4_000, 8_000, 10_000, 10_000, 10_000]);
        assert_eq!(pauses.pause(now + Pauses::GOOD), Pauses::FIRST, "a watch that worked starts again soon");
        assert!(Pauses::default().take(3).all(|p| p <= Duration::from_secs(2)));
    }

    #[test]
    fn synced_means_that_every_watch_has_listed() {
        let sync = Sync::default();
        assert!(sync.is_synced(), "nothing to wait for");
        sync.begin();
        sync.begin();
        sync.done();
        assert!(!sync.is_synced());
        sync.done();
        assert!(sync.is_synced());
    }

    /// A list with one object, whose name says which list it was.
    fn list(number: usize) -> serde_json::Value {
        serde_json::json!({"apiVersion": "v1", "kind": "ConfigMapList", "metadata": {"resourceVersion": number.to_string()},
            "items": [{"metadata": {"namespace": "a", "name": format!("list-{number}"), "resourceVersion": number.to_string()}}]})
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_that_fell_behind_lists_anew_however_it_is_told() {
        use http::{Request, Response, StatusCode};
        use k8s_openapi::api::core::v1::ConfigMap;
        use kube::client::Body;
        use tokio::sync::mpsc;

        let gone = serde_json::json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": 410, "reason": "Expired", "message": "too old"});
        let lists = Arc::new(AtomicUsize::new(0));
        let server = tower::service_fn(move |request: Request<Body>| {
            let watches = request.uri().query().is_some_and(|query| query.contains("watch=true"));
            let number = if watches { lists.load(Ordering::SeqCst) } else { lists.fetch_add(1, Ordering::SeqCst) + 1 };
            let gone = gone.clone();
            async move {
                let (status, body) = match (watches, number) {
                    (false, number) => (StatusCode::OK, list(number).to_string()),
                    (true, 1) => (StatusCode::OK, format!("{}\n", serde_json::json!({"type": "ERROR", "object": gone}))),
                    (true, 2) => (StatusCode::GONE, gone.to_string()),
                    (true, _) => std::future::pending().await,
                };
                let response = Response::builder().status(status).body(Body::from(body.into_bytes()));
                Ok::<_, tower::BoxError>(response.unwrap())
            }
        });
        let (told, mut changes) = mpsc::unbounded_channel();
        let reflect = Reflect {
            api: Api::<ConfigMap>::namespaced(kube::Client::new(server, "a"), "a"),
            config: watcher::Config::default(),
            store: Arc::new(Store::default()),
            keep: Arc::new(|object: ConfigMap| object),
            on_change: Arc::new(move |(_, name), _, after| {
                let _ = told.send((name.clone(), after.is_some()));
            }),
            what: "configmaps",
            sync: Sync::default(),
        };
        let (store, stop) = (Arc::clone(&reflect.store), CancellationToken::new());
        reflect.spawn(Arc::new(Metrics::new().unwrap()), stop.clone(), CancellationToken::new());
        for change in [("list-1", true), ("list-1", false), ("list-2", true), ("list-2", false), ("list-3", true)] {
            assert_eq!(changes.recv().await, Some((change.0.to_owned(), change.1)));
        }
        assert_eq!(store.all().len(), 1);
        stop.cancel();
    }
}
