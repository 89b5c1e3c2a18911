//! Puts the parts together and runs them until it is told to stop.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use super::apply::Applier;
use super::build::{MANAGEMENT_PORT, names};
use super::credentials::{Keys, claim};
use super::engine::{Census, Engine, Todo};
use super::error::Error;
use super::events::Events;
use super::gather::Caches;
use super::leader::{Election, Leadership, Timing};
use super::limit::impatient;
use super::metrics::Metrics;
use super::namespace::{Parts, Settings, Worker, target};
use super::observe::{Observer, Pods, Target};
use super::schedule::Work;
use super::server::{Health, serve};
use super::tokens::TokenSecrets;
use super::writer::Writer;
use crate::oauth::{PAUSES, Refresher};
use crate::snapshot::Secret;

/// How the operator is run.
#[derive(Clone, Debug)]
pub struct Config {
    /// What gateways are made of.
    pub settings: Settings,
    /// Namespaces to watch; empty = all.
    pub watch_namespaces: Vec<String>,
    /// Address of `/metrics`, `/livez`, `/readyz`.
    pub management: SocketAddr,
    /// Name and times of the Lease; `None` = this is the only replica.
    pub election: Option<(String, Timing)>,
    /// Name of this replica, unique among them.
    pub identity: String,
}

/// Longest time for what is on its way when the operator is told to stop.
const END: Duration = Duration::from_secs(8);

/// Longest time for answers of token endpoints that are on their way then.
const ANSWERS: Duration = Duration::from_secs(6);

/// Runs until `stop`.
///
/// `client` must not retry by itself.
///
/// # Errors
/// If the management port cannot be served.
pub async fn run(config: Config, client: Client, stop: CancellationToken) -> Result<(), Error> {
    let metrics =
        Arc::new(Metrics::new().map_err(|e| Error::Io { doing: "setting up metrics".to_owned(), source: std::io::Error::other(e) })?);
    let client = impatient(&client);
    let tasks = TaskTracker::new();
    // Steps of the end: work, then writing, then the lease, and the watches last, so that no work sees them end.
    let (work, writing, watching) = (CancellationToken::new(), CancellationToken::new(), CancellationToken::new());
    let election = config
        .election
        .as_ref()
        .map(|(name, timing)| Election::new(client.clone(), &config.settings.namespace, name, config.identity.clone(), *timing));
    let leadership = election.as_ref().map_or_else(Leadership::always, Election::leadership);
    let todo = Todo::default();
    let on_dirty = todo.clone();
    let caches = Caches::start(
        client.clone(),
        &config.watch_namespaces,
        metrics.clone(),
        Arc::new(move |namespace, work| on_dirty.mark(namespace, work)),
        watching.clone(),
    );
    let (events, publisher) = Events::new(client.clone(), config.identity.clone(), leadership.clone(), metrics.clone());
    let stale = todo.clone();
    let on_stale = Arc::new(move |namespace: &str| stale.mark(namespace, Work::Report));
    let writer = Writer::new(client.clone(), leadership.clone(), metrics.clone(), events, on_stale);
    let fleet = Arc::new(ObservedPods { caches: caches.clone(), todo: todo.clone(), installation: config.settings.installation.clone() });
    let observer = Observer::new(fleet, MANAGEMENT_PORT, metrics.clone());
    let census = Arc::new(Census::default());
    let tokens = TokenSecrets::new(client.clone(), leadership.clone(), metrics.clone());
    let refresher = Refresher::new(tokens, PAUSES, work.clone());
    let worker = Arc::new(Worker::new(Parts {
        client: client.clone(),
        refresher: refresher.clone(),
        caches: caches.clone(),
        applier: Applier::new(client, leadership.clone()),
        writer: writer.clone(),
        observer: observer.clone(),
        leadership: leadership.clone(),
        todo: todo.clone(),
        metrics: metrics.clone(),
        census: census.clone(),
        settings: config.settings.clone(),
    }));
    let (synced, depth) = (caches.sync.clone(), writer.clone());
    let health = Health {
        metrics: metrics.clone(),
        ready: Box::new(move || synced.is_synced()),
        refresh: Box::new(move |metrics| {
            census.publish(metrics);
            metrics.status_queue(depth.depth());
        }),
    };
    let address = serve(config.management, health, work.clone()).await?;
    tracing::info!(%address, identity = %config.identity, namespaces = ?config.watch_namespaces, "the operator runs");
    let lease = CancellationToken::new();
    let election = election.map(|e| tokio::spawn(e.run(lease.clone())));
    tasks.spawn(observer.run(work.clone()));
    tasks.spawn(publisher.run(writing.clone()));
    // It ends with this function at the latest, and all of its work with it.
    let refreshing = AbortOnDropHandle::new(tokio::spawn(refresher.run()));
    let writing_task = tokio::spawn(writer.run(writing.clone()));
    let engine = tokio::spawn(Engine::new(todo, worker, leadership, metrics).run(work.clone()));
    stop.cancelled().await;
    tracing::info!("stopping");
    work.cancel();
    // What was begun may be finished, but a hand-over must not wait for it: writes check the lease one by one.
    let _ = tokio::time::timeout(Duration::from_millis(800), engine).await;
    writing.cancel();
    let _ = tokio::time::timeout(Duration::from_millis(400), writing_task).await;
    lease.cancel();
    if let Some(election) = election {
        let _ = tokio::time::timeout(END, election).await;
    }
    // A refresh token that was sent may be good for one use: its successor is worth the wait, which is rarely one, and is kept without the lease.
    let _ = tokio::time::timeout(ANSWERS, refreshing).await;
    watching.cancel();
    tasks.close();
    let _ = tokio::time::timeout(END, tasks.wait()).await;
    Ok(())
}

/// The pods as the caches know them.
struct ObservedPods {
    caches: Arc<Caches>,
    todo: Todo,
    installation: String,
}

impl Pods for ObservedPods {
    fn targets(&self) -> Vec<Target> {
        let foreign = |namespace: &str| {
            let secret = self.caches.secrets.get(namespace, names::MANAGEMENT);
            secret.is_some_and(|s| claim(&s.secret).is_some_and(|claim| claim != self.installation))
        };
        let pods = self.caches.pods.all().into_iter();
        pods.filter(|((namespace, _), _)| !foreign(namespace)).filter_map(|((namespace, _), pod)| target(&namespace, &pod)).collect()
    }

    fn token(&self, namespace: &str) -> Option<Secret> {
        let cached = self.caches.secrets.get(namespace, names::MANAGEMENT)?;
        Keys::read(&cached.secret).map(|keys| keys.token)
    }

    fn changed(&self, namespace: &str) {
        self.todo.mark(namespace, Work::Report);
    }
}
