//! Brings one namespace up to date: gather, compile, build, apply, report.

mod memory;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Secret as KubeSecret;
use kube::{Api, Client, ResourceExt};
use tokio::sync::Mutex as AsyncMutex;

use super::apply::{Applier, Owner};
use super::build::{self, Delivery, Intent, Size, names};
use super::checkpoint::Pace;
use super::child::{Child, ChildKind, Live};
use super::claim::Claim;
use super::clock::now;
use super::credentials::{self, Keys};
use super::engine::{Census, Outcome, Todo};
use super::error::{CALL_TIMEOUT, Error, call};
use super::fleet::{Fleet, PodView};
use super::gather::{Caches, Gathered, Pod};
use super::leader::Leadership;
use super::metrics::Metrics;
use super::object::ObjectKind;
use super::observe::{Observer, Target};
use super::problems::Problems;
use super::report::{Memory, Report};
use super::schedule::Work;
use super::status::{Rollout, Trouble, World};
use super::tokens::TokenSecrets;
use super::writer::Writer;
use crate::api::ResilienceSettings;
use crate::compile::{Compiled, Environment, Finding, Options, Severity, compile};
use crate::oauth::Refresher;
use crate::resilience::Checkpoint;
use crate::snapshot::{Command, Snapshot, packed};

/// No ready pod for this long: the gateway is deserted, and statuses say so.
const DESERTED: Duration = Duration::from_secs(10);
/// Time for pods to load a changed configuration and for the next look at them.
const SETTLE: Duration = Duration::from_secs(3);
/// Deployments that may roll at the same time because of a new image of the operator (decisions 10.9).
const ROLLING: usize = 5;
/// When a Deployment that has to wait for others is looked at again.
const ROLL_RETRY: Duration = Duration::from_secs(5);

/// What the operator was told at its start.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Namespace of the operator.
    pub namespace: String,
    /// Image of gateway pods.
    pub image: String,
    /// Its pull policy.
    pub pull_policy: String,
    /// Defaults of settings.
    pub environment: Environment,
    /// Name of this installation, unique in the cluster: `NAMESPACE/LEASE`. It claims the namespaces whose gateways it makes.
    pub installation: String,
}

/// The parts that a worker uses.
pub struct Parts {
    /// Client without retries.
    pub client: Client,
    /// Watch caches.
    pub caches: Arc<Caches>,
    /// Writes children.
    pub applier: Applier,
    /// Writes statuses.
    pub writer: Writer,
    /// Asks pods.
    pub observer: Observer,
    /// Whether writing is allowed.
    pub leadership: Leadership,
    /// What is to be done.
    pub todo: Todo,
    /// Metrics.
    pub metrics: Arc<Metrics>,
    /// Counts of objects.
    pub census: Arc<Census>,
    /// Refreshes OAuth tokens.
    pub refresher: Refresher<TokenSecrets>,
    /// Settings.
    pub settings: Settings,
}

/// Does the work.
pub struct Worker {
    parts: Parts,
    states: Mutex<HashMap<String, Arc<AsyncMutex<State>>>>,
    /// Held while a Deployment is judged and written.
    rolling: AsyncMutex<()>,
}

/// What is remembered of a namespace.
#[derive(Default)]
struct State {
    /// The last full look.
    current: Option<Current>,
    /// Commands with the times at which they were accepted; `None` = not read back yet.
    accepted: Option<Vec<Command>>,
    /// The snapshot that was delivered last.
    delivered: Option<Arc<Delivery>>,
    /// Hash of the snapshot that is wanted, and since when.
    wanted: Option<(String, Instant)>,
    memory: Memory,
    /// Since when no pod has been ready.
    deserted: Option<Instant>,
    pace: Pace,
    /// Versions of pods at the last look, by their snapshot and version.
    versions: Vec<u64>,
    /// Content of the checkpoint that was written last.
    checkpoint: Option<Checkpoint>,
}

/// The result of the last full look at a namespace.
#[derive(Default)]
struct Current {
    gathered: Gathered,
    snapshot: Snapshot,
    findings: Vec<Finding>,
    gateway: Option<(Owner, Arc<ResilienceSettings>)>,
    hash: Option<String>,
    trouble: Option<Trouble>,
    /// Another installation that makes this namespace's gateway.
    claimed_by: Option<String>,
}

impl Worker {
    /// A worker.
    #[must_use]
    pub fn new(parts: Parts) -> Self {
        Self { parts, states: Mutex::default(), rolling: AsyncMutex::default() }
    }

    /// Namespaces that have something of ours.
    #[must_use]
    pub fn namespaces(&self) -> Vec<String> {
        self.parts.caches.namespaces().into_iter().collect()
    }

    /// Another replica may have written meanwhile: what was remembered of written things is worthless.
    pub fn leadership_changed(&self) {
        self.states.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.parts.census.clear();
        self.parts.refresher.clear();
    }

    fn state(&self, namespace: &str) -> Arc<AsyncMutex<State>> {
        self.states.lock().unwrap_or_else(PoisonError::into_inner).entry(namespace.to_owned()).or_default().clone()
    }

    /// Does a piece of work. A standby only keeps its caches warm.
    ///
    /// # Errors
    /// The first failed step; what does not depend on it was done nevertheless.
    pub async fn work(&self, namespace: &str, work: Work) -> Result<Outcome, Error> {
        if !self.parts.caches.sync.is_synced() {
            self.parts.todo.at(namespace, Work::Full, Instant::now() + Duration::from_millis(200));
            return Ok(Outcome::Done);
        }
        let state = self.state(namespace);
        let mut state = state.lock().await;
        if self.parts.caches.is_deserted(namespace) {
            self.forget(namespace, &state);
            return Ok(Outcome::Gone);
        }
        if !self.parts.leadership.leads() {
            self.parts.caches.gather(namespace).await?;
            return Ok(Outcome::Done);
        }
        self.parts.leadership.check(|| format!("bringing namespace `{namespace}` up to date"))?;
        let gathered = self.parts.caches.gather(namespace).await?;
        let outcome = match &mut state.current {
            // Only statuses have changed since the objects were compiled: they are compared with what the caches show now.
            Some(current) if work == Work::Report && current.gathered.has_same_objects(&gathered) => {
                current.gathered = gathered;
                Ok(())
            }
            _ => self.full(namespace, gathered, &mut state).await,
        };
        if state.current.as_ref().is_some_and(|c| c.claimed_by.is_some()) {
            self.leave_alone(namespace, &mut state);
            return outcome.map(|()| Outcome::Done);
        }
        self.report(namespace, &mut state);
        self.write_checkpoint(namespace, &mut state).await;
        outcome.map(|()| Outcome::Done)
    }

    /// Nothing of ours is left in a namespace: its Secrets are none of our business any more.
    fn forget(&self, namespace: &str, state: &State) {
        for gone in state.current.iter().flat_map(|current| current.gathered.keys(namespace)) {
            self.parts.writer.forget(&gone);
        }
        self.parts.caches.leave(namespace);
        self.parts.census.set(namespace, None);
        self.parts.refresher.set(namespace, Vec::new());
        self.states.lock().unwrap_or_else(PoisonError::into_inner).remove(namespace);
    }

    /// Compile, build, apply.
    async fn full(&self, namespace: &str, gathered: Gathered, state: &mut State) -> Result<(), Error> {
        if let Some(before) = &state.current {
            let now = gathered.keys(namespace);
            for gone in before.gathered.keys(namespace).difference(&now) {
                self.parts.writer.forget(gone);
                state.memory.forget(gone);
            }
        }
        let gateway = in_force(namespace, &gathered);
        if let Some(by) = self.claimed_by(namespace).filter(|_| gateway.is_some()) {
            if state.current.as_ref().is_none_or(|current| current.claimed_by.as_ref() != Some(&by)) {
                tracing::warn!(namespace, by, "another installation has claimed the namespace: it is left alone");
            }
            self.parts.refresher.set(namespace, Vec::new());
            *state = State { memory: std::mem::take(&mut state.memory), ..State::default() };
            state.current = Some(Current { gathered, claimed_by: Some(by), ..Current::default() });
            return Ok(());
        }
        let mut trouble = Problems::default();
        let keys = match &gateway {
            Some((owner, _)) => trouble.note(self.keys(owner).await)?,
            None => None,
        };
        if state.accepted.is_none() && gateway.is_some() {
            state.accepted = Some(self.accepted(namespace).await?);
        }
        let options = Options {
            environment: self.parts.settings.environment.clone(),
            fingerprint_key: keys.as_ref().map(|k| k.fingerprint_key.expose().as_bytes().to_vec()).unwrap_or_default(),
            fingerprints_by_store: false,
            accepted: state.accepted.clone().unwrap_or_default(),
            now: now(),
            internal_key: keys.as_ref().map(Keys::digest),
        };
        let Compiled { snapshot, mut findings, grants, .. } = compile(&gathered.resources, &options);
        // Without a gateway nothing uses the tokens.
        self.parts.refresher.set(namespace, if gateway.is_some() { grants } else { Vec::new() });
        if let (Some((owner, settings)), Some(_)) = (&gateway, &keys) {
            self.deliver(owner, settings, &snapshot, state, &mut findings, &mut trouble).await?;
            state.accepted = Some(snapshot.commands.clone());
        }
        let hash = state.delivered.as_ref().filter(|_| gateway.is_some()).map(|d| d.hash.clone());
        let (trouble, outcome) = trouble.finish();
        state.current = Some(Current { gathered, snapshot, findings, gateway, hash, trouble, claimed_by: None });
        outcome
    }

    /// The other installation that has claimed a namespace, if one has.
    fn claimed_by(&self, namespace: &str) -> Option<String> {
        let secret = self.parts.caches.secrets.get(namespace, names::MANAGEMENT)?;
        self.foreign_claim(&secret.secret)
    }

    fn foreign_claim(&self, management: &KubeSecret) -> Option<String> {
        credentials::claim(management).filter(|claim| *claim != self.parts.settings.installation).map(str::to_owned)
    }

    /// The keys of a gateway; mints them at the first contact.
    async fn keys(&self, owner: &Owner) -> Result<Keys, Error> {
        let cached = self.parts.caches.secrets.get(&owner.namespace, names::MANAGEMENT);
        let installation = &self.parts.settings.installation;
        if let Some(keys) = cached.as_ref().and_then(|c| Keys::read(&c.secret)) {
            self.apply(owner, &keys.child(owner, installation)?).await?;
            return Ok(keys);
        }
        // The cache may be behind our own first write: minting twice would lock us out of running pods. Or behind that of another installation.
        let doing = || format!("reading Secret `{}/{}`", owner.namespace, names::MANAGEMENT);
        let api: Api<KubeSecret> = Api::namespaced(self.parts.client.clone(), &owner.namespace);
        let found = call(doing, CALL_TIMEOUT, api.get_opt(names::MANAGEMENT)).await?;
        if let Some(by) = found.as_ref().and_then(|secret| self.foreign_claim(secret)) {
            return Err(Error::Claimed { namespace: owner.namespace.clone(), by });
        }
        let keys = Keys::complete(found.as_ref())?;
        let child = keys.child(owner, installation)?;
        if found.is_some() {
            self.apply(owner, &child).await?;
        } else {
            // Two installations may look at the same moment: the keys of the one that comes second must not replace those of the first.
            let made = self.parts.applier.create(owner, &child).await;
            self.wrote(owner, &child, made.map(Some))?;
        }
        Ok(keys)
    }

    /// The commands that the delivered snapshot carries, with the times at which they were accepted.
    async fn accepted(&self, namespace: &str) -> Result<Vec<Command>, Error> {
        let doing = || format!("reading Secret `{namespace}/{}`", names::CONFIG);
        let api: Api<KubeSecret> = Api::namespaced(self.parts.client.clone(), namespace);
        let secret = call(doing, CALL_TIMEOUT, api.get_opt(names::CONFIG)).await?;
        let unpacked = secret.and_then(|s| unpack(&s));
        Ok(unpacked.map(|s| s.commands).unwrap_or_default())
    }

    /// Builds and applies the children.
    async fn deliver(
        &self,
        owner: &Owner,
        settings: &ResilienceSettings,
        snapshot: &Snapshot,
        state: &mut State,
        findings: &mut Vec<Finding>,
        trouble: &mut Problems,
    ) -> Result<(), Error> {
        let encode = |source| Error::Encode { what: format!("the objects of namespace `{}`", owner.namespace), source };
        let wanted = Arc::new(Delivery::pack(snapshot).map_err(encode)?);
        if state.wanted.as_ref().is_none_or(|(hash, _)| *hash != wanted.hash) {
            state.wanted = Some((wanted.hash.clone(), Instant::now()));
        }
        let fits = judge_size(&wanted, snapshot, &owner.name, findings, trouble);
        let delivery = if fits { wanted.clone() } else { state.delivered.clone().unwrap_or_else(|| wanted.clone()) };
        let intent = Intent {
            owner,
            gateway: &settings.spec.gateway,
            default_image: &self.parts.settings.image,
            pull_policy: &self.parts.settings.pull_policy,
            operator_namespace: &self.parts.settings.namespace,
            delivery: &delivery,
        };
        let children = build::children(&intent).map_err(encode)?;
        let mut grounded = false;
        for child in &children {
            if child.kind == ChildKind::Deployment && grounded {
                // Pods that start as somebody else, or as an account that is about to be removed, would stay without access for ever.
                continue;
            }
            let is_config = child.kind == ChildKind::Secret;
            if is_config && !fits && state.delivered.is_none() {
                continue;
            }
            let step = match child.kind {
                ChildKind::Deployment => self.roll(owner, child).await.map(|rolled| {
                    if !rolled {
                        self.parts.todo.at(&owner.namespace, Work::Full, Instant::now() + ROLL_RETRY);
                    }
                }),
                _ => self.apply(owner, child).await,
            };
            let applied = trouble.note(step)?;
            grounded |= applied.is_none() && build::NEEDED_BY_PODS.contains(&child.kind);
            if applied.is_some() && is_config {
                state.delivered = Some(delivery.clone());
            }
        }
        for kind in build::OPTIONAL {
            if children.iter().any(|c| c.kind == kind) {
                continue;
            }
            if let Some(live) = self.parts.caches.child(kind, &owner.namespace, names::GATEWAY) {
                let deleted = self.parts.applier.delete(owner, kind, names::GATEWAY, &live).await;
                trouble.note(deleted)?;
            }
        }
        Ok(())
    }

    async fn apply(&self, owner: &Owner, child: &Child) -> Result<(), Error> {
        let live = self.parts.caches.child(child.kind, &owner.namespace, &child.name);
        let written = self.parts.applier.apply(owner, child, live.as_deref()).await;
        self.wrote(owner, child, written)
    }

    /// Counts a write and shows it to the caches.
    fn wrote(&self, owner: &Owner, child: &Child, written: Result<Option<Live>, Error>) -> Result<(), Error> {
        match written {
            Ok(None) => Ok(()),
            Ok(Some(live)) => {
                self.parts.metrics.child_write(child.kind.name(), "Written");
                self.parts.caches.wrote(child.kind, &owner.namespace, &child.name, live);
                Ok(())
            }
            Err(error) => {
                self.parts.metrics.child_write(child.kind.name(), error.reason());
                Err(error)
            }
        }
    }

    /// Applies a Deployment; one with a new image waits for its turn. Answers false while it waits.
    async fn roll(&self, owner: &Owner, child: &Child) -> Result<bool, Error> {
        let live = self.parts.caches.child(ChildKind::Deployment, &owner.namespace, &child.name);
        if !live.is_some_and(|live| child.has_another_image(&live)) {
            return self.apply(owner, child).await.map(|()| true);
        }
        // One after the other, otherwise several would see the same free place.
        let _turn = self.rolling.lock().await;
        let all = self.parts.caches.children.get(&ChildKind::Deployment).map(|all| all.all()).unwrap_or_default();
        let under_way = all.iter().filter(|((ns, _), live)| *ns != owner.namespace && Rollout::is_under_way(live));
        if under_way.count() >= ROLLING { Ok(false) } else { self.apply(owner, child).await.map(|()| true) }
    }

    /// Statuses of all objects.
    fn report(&self, namespace: &str, state: &mut State) {
        let Some(current) = &state.current else { return };
        let parts = &self.parts;
        let (views, versions) = self.views(namespace);
        if versions != state.versions {
            state.versions = versions;
            state.pace.changed();
        }
        let now = now();
        let fleet = Fleet::of(&views, now);
        let deserted = if fleet.ready > 0 {
            state.deserted = None;
            false
        } else {
            let since = *state.deserted.get_or_insert_with(Instant::now);
            let left = DESERTED.saturating_sub(since.elapsed());
            if !left.is_zero() {
                parts.todo.at(namespace, Work::Report, Instant::now() + left);
            }
            left.is_zero()
        };
        let settle = state.wanted.as_ref().map_or(Duration::ZERO, |(_, since)| SETTLE.saturating_sub(since.elapsed()));
        if !settle.is_zero() {
            parts.todo.at(namespace, Work::Report, Instant::now() + settle);
        }
        let world = World {
            snapshot: &current.snapshot,
            findings: World::sort_findings(&current.findings),
            gateway: current.gateway.as_ref().map(|(owner, _)| owner.name.as_str()),
            fleet: &fleet,
            trouble: current.trouble.as_ref(),
            deserted,
            settling: !settle.is_zero(),
            now,
        };
        let findings: Vec<&Finding> =
            current.findings.iter().filter(|f| f.kind == ObjectKind::ResilienceSettings.name() || f.kind == "Secret").collect();
        let deployment = parts.caches.child(ChildKind::Deployment, namespace, names::GATEWAY);
        let report = Report {
            namespace,
            world: &world,
            rollout: deployment.map(|d| Rollout::of(&d.content, d.status.as_ref())),
            hash: current.hash.as_deref(),
            findings: &findings,
            writer: &parts.writer,
            settling: world.settling,
        };
        let (counts, patience) = report.objects(&current.gathered.resources, &current.gathered.broken, &mut state.memory);
        parts.census.set(namespace, Some(counts));
        for at in [fleet.next_change, patience].into_iter().flatten() {
            parts.todo.at(namespace, Work::Report, Instant::now() + Duration::from_millis(at.since(now)));
        }
    }

    /// Writes nothing but, where the other installation does not answer, a condition that says whose the namespace is.
    fn leave_alone(&self, namespace: &str, state: &mut State) {
        let Some((current, by)) = state.current.as_ref().and_then(|c| Some((c, c.claimed_by.as_ref()?))) else { return };
        let parts = &self.parts;
        parts.census.set(namespace, None);
        let claim = Claim { namespace, by, ours: &parts.settings.installation, writer: &parts.writer, now: now() };
        if let Some(left) = claim.report(&current.gathered.resources, &mut state.memory.unanswered, Instant::now()) {
            parts.todo.at(namespace, Work::Report, Instant::now() + left);
        }
    }

    /// The pods of a namespace as the observer knows them, and a fingerprint of what they said.
    fn views(&self, namespace: &str) -> (Vec<PodView>, Vec<u64>) {
        let mut versions = Vec::new();
        let views = self
            .parts
            .caches
            .pods
            .namespace(namespace)
            .into_iter()
            .map(|(_, pod)| {
                let state = self.parts.observer.get(&pod.uid).map(|o| o.state);
                versions.extend(state.as_ref().map(|s| s.version));
                PodView { ready: pod.ready, terminating: pod.terminating, silent: self.parts.observer.is_silent(&pod.uid), state }
            })
            .collect();
        (views, versions)
    }
}

/// Where a pod can be asked.
#[must_use]
pub fn target(namespace: &str, pod: &Pod) -> Option<Target> {
    let ip: IpAddr = pod.ip?;
    (pod.running && !pod.terminating).then(|| Target { namespace: namespace.to_owned(), uid: pod.uid.clone(), ip })
}

/// The ResilienceSettings that is the gateway: the oldest that is not being deleted.
fn in_force(namespace: &str, gathered: &Gathered) -> Option<(Owner, Arc<ResilienceSettings>)> {
    let alive = gathered.resources.settings.iter().filter(|s| s.metadata.deletion_timestamp.is_none());
    let oldest = alive.min_by_key(|s| (s.metadata.creation_timestamp.as_ref().map(|t| t.0), s.name_any()))?;
    let owner = Owner { namespace: namespace.to_owned(), name: oldest.name_any(), uid: oldest.metadata.uid.clone().unwrap_or_default() };
    Some((owner, oldest.clone()))
}

/// Whether a delivery fits; findings and trouble say what to do when it does not.
fn judge_size(delivery: &Delivery, snapshot: &Snapshot, settings: &str, findings: &mut Vec<Finding>, trouble: &mut Problems) -> bool {
    let size = delivery.size();
    if size == Size::Good {
        return true;
    }
    let largest: Vec<String> = build::largest(snapshot).into_iter().map(|(what, bytes)| format!("{what} ({bytes} bytes)")).collect();
    let message = format!(
        "the compressed configuration has {} of at most {} bytes; the largest parts before compression: {}; shorten them or split the namespace",
        delivery.gzip.len(),
        build::MAX_BYTES,
        largest.join(", ")
    );
    if size == Size::TooLarge {
        trouble.stall("SnapshotTooLarge", format!("{message}; the last good configuration stays in force"));
        return false;
    }
    findings.push(Finding {
        kind: ObjectKind::ResilienceSettings.name().to_owned(),
        name: settings.to_owned(),
        field: String::new(),
        reason: "SnapshotTooLarge".to_owned(),
        severity: Severity::Warning,
        message,
    });
    true
}

/// Reads the snapshot of a config Secret; one that cannot be read is as good as none.
fn unpack(secret: &KubeSecret) -> Option<Snapshot> {
    let data: &BTreeMap<_, _> = secret.data.as_ref()?;
    Snapshot::from_json(&packed::unpack(&data.get(names::CONFIG_KEY)?.0).ok()?).ok()
}
