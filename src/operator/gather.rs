//! The watch caches of the operator, and the objects of one namespace taken from them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use k8s_openapi::api::core::v1::{ConfigMap, Pod as KubePod, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::{DeserializeGuard, DynamicObject};
use kube::runtime::watcher;
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

use super::build::{self, names};
use super::child::{ChildKind, Live};
use super::error::{CALL_TIMEOUT, Error, call};
use super::metrics::Metrics;
use super::object::{ObjectKey, ObjectKind};
use super::references::References;
use super::schedule::Work;
use super::store::{Key, OnChange, Reflect, Store, Sync};
use crate::api::{Combo, Connection, OperatorErrorRule, Provider, ResilienceSettings, Resources};

/// One object of a user; a stored object that cannot be read is a fact about that object, not an error of the watch.
#[derive(Debug)]
pub struct Object<K> {
    /// Its metadata without managed fields.
    pub meta: ObjectMeta,
    /// The object, or why it cannot be read.
    pub value: Result<Arc<K>, String>,
}

impl<K> PartialEq for Object<K> {
    fn eq(&self, other: &Self) -> bool {
        self.meta.uid == other.meta.uid && self.meta.resource_version == other.meta.resource_version
    }
}

impl<K> Object<K> {
    /// Whether more than status differs.
    fn differs(&self, other: &Self) -> bool {
        let (a, b) = (&self.meta, &other.meta);
        a.uid != b.uid
            || a.generation != b.generation
            || a.annotations != b.annotations
            || a.labels != b.labels
            || a.deletion_timestamp.is_some() != b.deletion_timestamp.is_some()
    }
}

/// A Secret without the values that nobody refers to.
#[derive(Debug)]
pub struct CachedSecret {
    /// The Secret.
    pub secret: Arc<Secret>,
    /// Keys whose values were dropped.
    pub dropped: BTreeSet<String>,
}

impl PartialEq for CachedSecret {
    fn eq(&self, other: &Self) -> bool {
        let (a, b) = (&self.secret.metadata, &other.secret.metadata);
        a.uid == b.uid && a.resource_version == b.resource_version && self.dropped == other.dropped
    }
}

/// A gateway pod.
#[derive(Clone, PartialEq, Debug)]
pub struct Pod {
    /// Unique id.
    pub uid: String,
    /// Where it listens.
    pub ip: Option<IpAddr>,
    /// Serves, as the kubelet says.
    pub ready: bool,
    /// Its containers run.
    pub running: bool,
    /// Is being deleted.
    pub terminating: bool,
}

/// Told which namespace needs which work.
pub type OnDirty = Arc<dyn Fn(&str, Work) + Send + std::marker::Sync>;

/// All caches.
pub struct Caches {
    client: Client,
    metrics: Arc<Metrics>,
    stop: CancellationToken,
    on_dirty: OnDirty,
    /// ResilienceSettings.
    pub settings: Arc<Store<Object<ResilienceSettings>>>,
    /// Providers.
    pub providers: Arc<Store<Object<Provider>>>,
    /// Connections.
    pub connections: Arc<Store<Object<Connection>>>,
    /// Combos.
    pub combos: Arc<Store<Object<Combo>>>,
    /// Operator rules.
    pub rules: Arc<Store<Object<OperatorErrorRule>>>,
    /// Secrets of namespaces that have objects of ours.
    pub secrets: Arc<Store<CachedSecret>>,
    /// ConfigMaps that Providers refer to.
    pub config_maps: Arc<Store<ConfigMap>>,
    /// What the operator made, by kind.
    pub children: BTreeMap<ChildKind, Arc<Store<Live>>>,
    /// Gateway pods.
    pub pods: Arc<Store<Pod>>,
    /// Filled once.
    pub sync: Sync,
    namespaces: Mutex<HashMap<String, NamespaceWatch>>,
}

/// The watches of one namespace.
struct NamespaceWatch {
    stop: CancellationToken,
    sync: Sync,
    references: Arc<RwLock<References>>,
    config_maps: BTreeMap<String, CancellationToken>,
}

impl Drop for NamespaceWatch {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Caches {
    /// Starts to watch `scopes` (namespaces; empty = all) until `stop`.
    #[must_use]
    pub fn start(client: Client, scopes: &[String], metrics: Arc<Metrics>, on_dirty: OnDirty, stop: CancellationToken) -> Arc<Self> {
        let caches = Arc::new(Self {
            client,
            metrics,
            stop,
            on_dirty,
            settings: Arc::default(),
            providers: Arc::default(),
            connections: Arc::default(),
            combos: Arc::default(),
            rules: Arc::default(),
            secrets: Arc::default(),
            config_maps: Arc::default(),
            children: ChildKind::ALL.into_iter().map(|kind| (kind, Arc::default())).collect(),
            pods: Arc::default(),
            sync: Sync::default(),
            namespaces: Mutex::default(),
        });
        let scopes: Vec<Option<&str>> = if scopes.is_empty() { vec![None] } else { scopes.iter().map(|s| Some(s.as_str())).collect() };
        for scope in scopes {
            caches.watch_objects(scope, &caches.settings, ObjectKind::ResilienceSettings);
            caches.watch_objects(scope, &caches.providers, ObjectKind::Provider);
            caches.watch_objects(scope, &caches.connections, ObjectKind::Connection);
            caches.watch_objects(scope, &caches.combos, ObjectKind::Combo);
            caches.watch_objects(scope, &caches.rules, ObjectKind::OperatorErrorRule);
            for (kind, store) in &caches.children {
                caches.watch_children(scope, *kind, store);
            }
            caches.watch_pods(scope);
        }
        caches
    }

    fn api<K>(&self, scope: Option<&str>) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>,
    {
        scope.map_or_else(|| Api::all(self.client.clone()), |ns| Api::namespaced(self.client.clone(), ns))
    }

    fn watch_objects<K>(&self, scope: Option<&str>, store: &Arc<Store<Object<K>>>, kind: ObjectKind)
    where
        K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
            + Clone
            + DeserializeOwned
            + std::fmt::Debug
            + Send
            + std::marker::Sync
            + 'static,
    {
        let on_dirty = self.on_dirty.clone();
        let on_change: OnChange<Object<K>> = Arc::new(move |key, before, after| {
            let work = match (before, after) {
                (Some(before), Some(after)) if !before.differs(after) => Work::Report,
                _ => Work::Full,
            };
            on_dirty(&key.0, work);
        });
        let keep = Arc::new(|DeserializeGuard(object): DeserializeGuard<K>| match object {
            Ok(mut object) => {
                object.meta_mut().managed_fields = None;
                Object { meta: object.meta().clone(), value: Ok(Arc::new(object)) }
            }
            Err(invalid) => Object { meta: ObjectMeta { managed_fields: None, ..invalid.metadata }, value: Err(invalid.error) },
        });
        let reflect = Reflect {
            api: self.api::<DeserializeGuard<K>>(scope),
            config: watcher::Config::default(),
            store: store.clone(),
            keep,
            on_change,
            what: kind.name(),
            sync: self.sync.clone(),
        };
        reflect.spawn(self.metrics.clone(), self.stop.clone(), self.stop.clone());
    }

    fn watch_children(&self, scope: Option<&str>, kind: ChildKind, store: &Arc<Store<Live>>) {
        let on_dirty = self.on_dirty.clone();
        let on_change: OnChange<Live> = Arc::new(move |key, before, after| {
            let work = match (kind, before, after) {
                // The checkpoint has its own writer.
                (ChildKind::ConfigMap, _, Some(_)) => return,
                (_, Some(before), Some(after)) if before.content == after.content => Work::Report,
                (ChildKind::Deployment, Some(before), Some(after)) if same_spec(before, after) => Work::Report,
                _ => Work::Full,
            };
            on_dirty(&key.0, work);
        });
        let resource = kind.resource();
        let api: Api<DynamicObject> = match scope {
            None => Api::all_with(self.client.clone(), &resource),
            Some(ns) => Api::namespaced_with(self.client.clone(), ns, &resource),
        };
        let reflect = Reflect {
            api,
            config: watcher::Config::default().labels(&format!("app.kubernetes.io/managed-by={}", build::MANAGED_BY)),
            store: store.clone(),
            keep: Arc::new(move |object| Live::of(kind, object)),
            on_change,
            what: kind.name(),
            sync: self.sync.clone(),
        };
        reflect.spawn(self.metrics.clone(), self.stop.clone(), self.stop.clone());
    }

    fn watch_pods(&self, scope: Option<&str>) {
        let on_dirty = self.on_dirty.clone();
        let reflect = Reflect {
            api: self.api::<KubePod>(scope),
            config: watcher::Config::default().labels(&format!(
                "app.kubernetes.io/managed-by={},app.kubernetes.io/name={}",
                build::MANAGED_BY,
                names::GATEWAY
            )),
            store: self.pods.clone(),
            keep: Arc::new(pod),
            on_change: Arc::new(move |key, _, _| on_dirty(&key.0, Work::Report)),
            what: "Pod",
            sync: self.sync.clone(),
        };
        reflect.spawn(self.metrics.clone(), self.stop.clone(), self.stop.clone());
    }

    /// Namespaces that have an object of ours.
    #[must_use]
    pub fn namespaces(&self) -> BTreeSet<String> {
        let mut all = BTreeSet::new();
        all.extend(self.settings.all().into_iter().map(|(k, _)| k.0));
        all.extend(self.providers.all().into_iter().map(|(k, _)| k.0));
        all.extend(self.connections.all().into_iter().map(|(k, _)| k.0));
        all.extend(self.combos.all().into_iter().map(|(k, _)| k.0));
        all.extend(self.rules.all().into_iter().map(|(k, _)| k.0));
        all
    }

    fn watches(&self) -> MutexGuard<'_, HashMap<String, NamespaceWatch>> {
        self.namespaces.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a namespace has no object of ours.
    #[must_use]
    pub fn is_deserted(&self, namespace: &str) -> bool {
        self.settings.is_empty(namespace)
            && self.providers.is_empty(namespace)
            && self.connections.is_empty(namespace)
            && self.combos.is_empty(namespace)
            && self.rules.is_empty(namespace)
    }

    /// The namespace has nothing of ours any more: its Secrets are none of our business.
    pub fn leave(&self, namespace: &str) {
        self.watches().remove(namespace);
        // At once, and not when the watches end: others may have begun by then.
        self.secrets.clear(namespace);
        self.config_maps.clear(namespace);
    }

    /// Everything in a namespace that `compile` reads, and the objects that could not be read.
    ///
    /// # Errors
    /// If the Secrets of the namespace cannot be listed.
    pub async fn gather(&self, namespace: &str) -> Result<Gathered, Error> {
        let mut gathered = Gathered::default();
        let broken = &mut gathered.broken;
        let resources = &mut gathered.resources;
        resources.settings = readable(&self.settings, namespace, ObjectKind::ResilienceSettings, broken);
        resources.providers = readable(&self.providers, namespace, ObjectKind::Provider, broken);
        resources.connections = readable(&self.connections, namespace, ObjectKind::Connection, broken);
        resources.combos = readable(&self.combos, namespace, ObjectKind::Combo, broken);
        resources.rules = readable(&self.rules, namespace, ObjectKind::OperatorErrorRule, broken);
        let references = References::of(resources);
        let sync = self.follow(namespace, &references);
        let waited = tokio::time::timeout(CALL_TIMEOUT, sync.wait()).await;
        waited.map_err(|_| Error::Timeout { doing: format!("listing the Secrets of namespace `{namespace}`"), after: CALL_TIMEOUT })?;
        self.fetch_dropped(namespace, &references).await?;
        resources.secrets = self.secrets.namespace(namespace).into_iter().map(|(_, s)| s.secret.clone()).collect();
        resources.config_maps = self.config_maps.namespace(namespace).into_iter().map(|(_, c)| c).collect();
        Ok(gathered)
    }

    /// Starts the watches that the namespace needs, and tells them what is referred to now.
    fn follow(&self, namespace: &str, references: &References) -> Sync {
        let mut watches = self.watches();
        let watch = watches.entry(namespace.to_owned()).or_insert_with(|| {
            let watch = NamespaceWatch {
                stop: self.stop.child_token(),
                sync: Sync::default(),
                references: Arc::new(RwLock::new(references.clone())),
                config_maps: BTreeMap::new(),
            };
            self.watch_secrets(namespace, &watch);
            watch
        });
        *watch.references.write().unwrap_or_else(PoisonError::into_inner) = references.clone();
        watch.config_maps.retain(|name, stop| {
            references.config_maps.contains(name) || {
                stop.cancel();
                false
            }
        });
        for name in &references.config_maps {
            if !watch.config_maps.contains_key(name) {
                let stop = watch.stop.child_token();
                self.watch_config_map(namespace, name, watch.sync.clone(), stop.clone());
                watch.config_maps.insert(name.clone(), stop);
            }
        }
        watch.sync.clone()
    }

    fn watch_secrets(&self, namespace: &str, watch: &NamespaceWatch) {
        let (references, concerned) = (watch.references.clone(), watch.references.clone());
        let on_dirty = self.on_dirty.clone();
        let reflect = Reflect {
            api: Api::<Secret>::namespaced(self.client.clone(), namespace),
            // Helm keeps its releases, up to a megabyte each, in Secrets of this type.
            config: watcher::Config::default().fields("type!=helm.sh/release.v1"),
            store: self.secrets.clone(),
            keep: Arc::new(move |secret| strip(secret, &references.read().unwrap_or_else(PoisonError::into_inner))),
            on_change: Arc::new(move |key: &Key, before: Option<&CachedSecret>, after: Option<&CachedSecret>| {
                let references = concerned.read().unwrap_or_else(PoisonError::into_inner);
                if [before, after].into_iter().flatten().any(|s| references.concerns(&s.secret)) {
                    on_dirty(&key.0, Work::Full);
                }
            }),
            what: "Secret",
            sync: watch.sync.clone(),
        };
        reflect.spawn(self.metrics.clone(), watch.stop.clone(), self.stop.clone());
    }

    fn watch_config_map(&self, namespace: &str, name: &str, sync: Sync, stop: CancellationToken) {
        let on_dirty = self.on_dirty.clone();
        let reflect = Reflect {
            api: Api::<ConfigMap>::namespaced(self.client.clone(), namespace),
            config: watcher::Config::default().fields(&format!("metadata.name={name}")),
            store: self.config_maps.clone(),
            keep: Arc::new(|mut map: ConfigMap| {
                map.metadata.managed_fields = None;
                map
            }),
            on_change: Arc::new(move |key, _, _| on_dirty(&key.0, Work::Full)),
            what: "ConfigMap",
            sync,
        };
        reflect.spawn(self.metrics.clone(), stop, self.stop.clone());
    }

    /// Reads Secrets whose values were dropped before anything referred to them.
    async fn fetch_dropped(&self, namespace: &str, references: &References) -> Result<(), Error> {
        for (name, cached) in self.secrets.namespace(namespace) {
            if !cached.dropped.iter().any(|key| references.wants(&cached.secret, key)) {
                continue;
            }
            let doing = || format!("reading Secret `{namespace}/{name}`");
            let api: Api<Secret> = Api::namespaced(self.client.clone(), namespace);
            let found = call(doing, CALL_TIMEOUT, api.get_opt(&name)).await?;
            // A watch event that came meanwhile has used the new references already.
            let unchanged = self.secrets.get(namespace, &name).is_some_and(|now| Arc::ptr_eq(&now, &cached));
            if unchanged {
                self.secrets.set((namespace.to_owned(), name), found.map(|s| Arc::new(strip(s, references))));
            }
        }
        Ok(())
    }

    /// A child as the caches show it.
    #[must_use]
    pub fn child(&self, kind: ChildKind, namespace: &str, name: &str) -> Option<Arc<Live>> {
        self.children.get(&kind)?.get(namespace, name)
    }

    /// A child was written: the caches need not wait for the watch to say so. A watch that was faster knows more.
    pub fn wrote(&self, kind: ChildKind, namespace: &str, name: &str, live: Live) {
        if let Some(store) = self.children.get(&kind) {
            let version = |live: &Live| live.resource_version.parse::<u64>().unwrap_or(0);
            store.replace_older(&(namespace.to_owned(), name.to_owned()), live, version);
        }
    }
}

/// What a namespace consists of.
#[derive(Default)]
pub struct Gathered {
    /// Readable objects.
    pub resources: Resources,
    /// Stored objects that cannot be read: who, and why.
    pub broken: Vec<(ObjectKey, ObjectMeta, String)>,
}

impl Gathered {
    /// Which objects there are, in which generation.
    #[must_use]
    pub fn identities(&self) -> BTreeSet<(ObjectKind, &str, i64)> {
        fn of<K: Resource>(kind: ObjectKind, objects: &[Arc<K>]) -> impl Iterator<Item = (ObjectKind, &str, i64)> {
            objects.iter().map(move |o| identity(kind, o.meta()))
        }
        let r = &self.resources;
        of(ObjectKind::ResilienceSettings, &r.settings)
            .chain(of(ObjectKind::Provider, &r.providers))
            .chain(of(ObjectKind::Connection, &r.connections))
            .chain(of(ObjectKind::Combo, &r.combos))
            .chain(of(ObjectKind::OperatorErrorRule, &r.rules))
            .chain(self.broken.iter().map(|(key, meta, _)| identity(key.kind, meta)))
            .collect()
    }

    /// Names of all objects.
    #[must_use]
    pub fn keys(&self, namespace: &str) -> BTreeSet<ObjectKey> {
        fn of<K: Resource>(namespace: &str, kind: ObjectKind, objects: &[Arc<K>]) -> impl Iterator<Item = ObjectKey> {
            objects.iter().map(move |o| ObjectKey {
                namespace: namespace.to_owned(),
                kind,
                name: o.meta().name.clone().unwrap_or_default(),
            })
        }
        let r = &self.resources;
        of(namespace, ObjectKind::ResilienceSettings, &r.settings)
            .chain(of(namespace, ObjectKind::Provider, &r.providers))
            .chain(of(namespace, ObjectKind::Connection, &r.connections))
            .chain(of(namespace, ObjectKind::Combo, &r.combos))
            .chain(of(namespace, ObjectKind::OperatorErrorRule, &r.rules))
            .chain(self.broken.iter().map(|(key, ..)| key.clone()))
            .collect()
    }

    /// Whether both are about the same generations of the same objects.
    #[must_use]
    pub fn has_same_objects(&self, other: &Self) -> bool {
        self.identities() == other.identities()
    }
}

fn identity(kind: ObjectKind, meta: &ObjectMeta) -> (ObjectKind, &str, i64) {
    (kind, meta.uid.as_deref().unwrap_or_default(), meta.generation.unwrap_or(0))
}

fn readable<K>(
    store: &Store<Object<K>>,
    namespace: &str,
    kind: ObjectKind,
    broken: &mut Vec<(ObjectKey, ObjectMeta, String)>,
) -> Vec<Arc<K>> {
    let mut good = Vec::new();
    for (name, object) in store.namespace(namespace) {
        match &object.value {
            Ok(value) => good.push(value.clone()),
            Err(error) => {
                broken.push((ObjectKey { namespace: namespace.to_owned(), kind, name }, object.meta.clone(), error.clone()));
            }
        }
    }
    good
}

/// A Deployment changes its annotations (revision) and status by itself.
fn same_spec(a: &Live, b: &Live) -> bool {
    a.uid == b.uid
        && a.deleting == b.deleting
        && a.content.get("spec") == b.content.get("spec")
        && a.content.pointer("/metadata/labels") == b.content.pointer("/metadata/labels")
        && a.content.pointer("/metadata/ownerReferences") == b.content.pointer("/metadata/ownerReferences")
        && a.annotations.get(super::child::ANNOTATION_APPLIED) == b.annotations.get(super::child::ANNOTATION_APPLIED)
        && a.annotations.get(build::ANNOTATION_SCALING) == b.annotations.get(build::ANNOTATION_SCALING)
}

fn strip(mut secret: Secret, references: &References) -> CachedSecret {
    secret.metadata.managed_fields = None;
    if let Some(annotations) = secret.metadata.annotations.as_mut() {
        // It repeats the values.
        annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
    }
    let mut dropped = BTreeSet::new();
    let data = secret.data.take().unwrap_or_default();
    let mut kept = BTreeMap::new();
    for (key, value) in data {
        if references.wants(&secret, &key) {
            kept.insert(key, value);
        } else {
            dropped.insert(key);
        }
    }
    secret.data = Some(kept);
    CachedSecret { secret: Arc::new(secret), dropped }
}

fn pod(pod: KubePod) -> Pod {
    let status = pod.status.unwrap_or_default();
    let ready = status.conditions.iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True");
    Pod {
        uid: pod.metadata.uid.unwrap_or_default(),
        ip: status.pod_ip.and_then(|ip| ip.parse().ok()),
        ready,
        running: status.phase.as_deref() == Some("Running"),
        terminating: pod.metadata.deletion_timestamp.is_some(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::ByteString;

    fn secret(name: &str, label: bool, keys: &[&str]) -> Secret {
        let mut s = Secret::default();
        s.metadata.name = Some(name.to_owned());
        s.metadata.labels = label.then(|| [(crate::api::LABEL_API_KEY.to_owned(), "true".to_owned())].into());
        s.data = Some(keys.iter().map(|k| ((*k).to_owned(), ByteString(b"v".to_vec()))).collect());
        s
    }

    #[test]
    fn values_that_nobody_refers_to_are_dropped() {
        let mut references = References::default();
        references.secrets.entry("llm".to_owned()).or_default().insert("a".to_owned());
        for (secret, kept, dropped) in [
            (secret("llm", false, &["a", "b"]), vec!["a"], vec!["b"]),
            (secret("other", false, &["a"]), vec![], vec!["a"]),
            (secret("client", true, &["key", "note"]), vec!["key"], vec!["note"]),
            (secret(names::MANAGEMENT, false, &["token"]), vec!["token"], vec![]),
            (secret(names::CONFIG, false, &["snapshot.json.gz"]), vec![], vec!["snapshot.json.gz"]),
        ] {
            let cached = strip(secret, &references);
            assert_eq!(cached.secret.data.iter().flatten().map(|(k, _)| k.as_str()).collect::<Vec<_>>(), kept);
            assert_eq!(cached.dropped.iter().map(String::as_str).collect::<Vec<_>>(), dropped);
        }
    }

    #[test]
    fn a_status_write_is_no_change_of_the_object() {
        let object = |generation, rv: &str, annotation: Option<&str>| Object::<()> {
            meta: ObjectMeta {
                generation: Some(generation),
                resource_version: Some(rv.to_owned()),
                annotations: annotation.map(|a| [("omniroute.dev/reset".to_owned(), a.to_owned())].into()),
                ..ObjectMeta::default()
            },
            value: Ok(Arc::new(())),
        };
        assert!(!object(1, "1", None).differs(&object(1, "2", None)));
        assert!(object(1, "1", None).differs(&object(2, "2", None)));
        assert!(object(1, "1", None).differs(&object(1, "2", Some("now"))), "a command is one");
    }
}
