//! `omniroute gateway`: the gateway of a pod. It boots from the mounted config Secret, watches that one object for changes within a second,
//! and takes over the checkpoint before it is ready.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Secret;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Client, ResourceExt};

use super::run::stop_signal;
use crate::gateway::Gateway;
use crate::gateway::server::{self, ServerOptions, StartError};
use crate::gateway::store::{Memory, Sqlite, Store};
use crate::resilience::Checkpoint;
use crate::snapshot::packed::{self, UnpackError};
use crate::snapshot::{Snapshot, SnapshotError};
use crate::telemetry::{self, LogFormat};

/// The key of the config Secret that this version reads.
const CONFIG_KEY: &str = "snapshot.json.gz";
/// Between two looks at the mounted file while nothing else brings changes.
const POLL: Duration = Duration::from_millis(500);

/// Flags.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Address of the proxy port.
    #[arg(long, env = "OMNIROUTE_LISTEN", default_value = "0.0.0.0:8080")]
    listen: SocketAddr,
    /// Address of the management port.
    #[arg(long, env = "OMNIROUTE_MANAGEMENT", default_value = "0.0.0.0:9090")]
    management: SocketAddr,
    /// Namespace of the pod.
    #[arg(long, env = "OMNIROUTE_NAMESPACE", default_value = "default")]
    namespace: String,
    /// Name of the config Secret to watch; without it only the mounted file is followed.
    #[arg(long, env = "OMNIROUTE_CONFIG_SECRET")]
    config_secret: Option<String>,
    /// The config as it is mounted, for booting while the API server is down.
    #[arg(long, env = "OMNIROUTE_CONFIG_FILE", default_value = "/etc/omniroute/config/snapshot.json.gz")]
    config_file: PathBuf,
    /// The checkpoint as it is mounted.
    #[arg(long, env = "OMNIROUTE_CHECKPOINT_FILE", default_value = "/etc/omniroute/checkpoint/checkpoint.json.gz")]
    checkpoint_file: PathBuf,
    /// SQLite file in which state survives a restart of the container.
    #[arg(long, env = "OMNIROUTE_STATE_FILE")]
    state_file: Option<PathBuf>,
    /// Serving threads [default: one per core that the container may use].
    #[arg(long, env = "OMNIROUTE_THREADS")]
    threads: Option<NonZeroUsize>,
    /// How log lines look.
    #[arg(long, env = "OMNIROUTE_LOG_FORMAT", value_enum, default_value_t)]
    log_format: LogFormat,
}

/// Why the gateway could not start.
#[derive(thiserror::Error, Debug)]
enum GatewayError {
    #[error("starting the event loop: {0}")]
    Runtime(#[source] std::io::Error),
    #[error("setting up the metrics: {0}")]
    Metrics(#[from] prometheus::Error),
    #[error(transparent)]
    Start(#[from] StartError),
}

/// Why a delivered document could not be used.
#[derive(thiserror::Error, Debug)]
enum DocumentError {
    #[error("reading {0}: {1}")]
    File(String, #[source] std::io::Error),
    #[error("unpacking {0}: {1}")]
    Packed(String, #[source] UnpackError),
    #[error("the Secret `{0}` has no key `{CONFIG_KEY}`")]
    NoKey(String),
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    #[error("reading the checkpoint: {0}")]
    Checkpoint(String),
}

/// Runs the command.
#[must_use]
pub fn run(args: Args) -> ExitCode {
    telemetry::init(args.log_format);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(GatewayError::Runtime);
    match runtime.and_then(|runtime| runtime.block_on(serve(args))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("omniroute gateway: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn serve(args: Args) -> Result<(), GatewayError> {
    let gateway = Gateway::new(store(args.state_file.as_deref()))?;
    restore(&gateway, &args.checkpoint_file);
    if args.config_file.exists() {
        take(&gateway, read_file(&args.config_file).and_then(|bytes| Ok(Snapshot::from_json(&bytes)?)));
    }
    let options = ServerOptions {
        threads: args.threads,
        // The pod's preStop pause has already given balancers their time.
        lame_duck: Duration::from_millis(500),
        max_drain: Duration::MAX,
        ..ServerOptions::local(args.listen, args.management)
    };
    let running = server::start(Arc::clone(&gateway), options)?;
    tracing::info!(listen = %running.listen_addr(), management = %running.management_addr(), ready = gateway.ready(), "serving");
    let delivery = Delivery::default();
    let watching = async {
        if let Some(secret) = &args.config_secret {
            watch_secret(&gateway, &args.namespace, secret, &delivery).await;
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = watching => {}
        () = watch_file(&gateway, &args.config_file, &delivery) => {}
        () = stop_signal() => {}
    }
    tracing::info!("draining");
    tokio::select! {
        () = running.drain() => {}
        () = stop_signal() => {}
    }
    Ok(())
}

/// The state file, or memory when it cannot be used: a pod that serves without its past is better than none.
fn store(file: Option<&Path>) -> Box<dyn Store> {
    match file.map(Sqlite::open) {
        Some(Ok(store)) => Box::new(store),
        Some(Err(error)) => {
            tracing::error!(%error, "state is kept in memory only");
            Box::new(Memory)
        }
        None => Box::new(Memory),
    }
}

fn restore(gateway: &Gateway, file: &Path) {
    let read = || -> Result<Checkpoint, DocumentError> {
        Checkpoint::from_json(&read_file(file)?).map_err(|error| DocumentError::Checkpoint(error.to_string()))
    };
    let delivered = file.exists().then(read).transpose().unwrap_or_else(|error| {
        tracing::error!(%error, "the delivered checkpoint is not used");
        None
    });
    if let Err(error) = gateway.prepare_restore(delivered.as_ref()) {
        tracing::error!(%error, "the stored state is not used");
    }
}

fn read_file(path: &Path) -> Result<Vec<u8>, DocumentError> {
    let shown = path.display().to_string();
    let packed = std::fs::read(path).map_err(|error| DocumentError::File(shown.clone(), error))?;
    unpack(&packed, &shown)
}

fn unpack(packed: &[u8], name: &str) -> Result<Vec<u8>, DocumentError> {
    packed::unpack(packed).map_err(|error| DocumentError::Packed(name.to_owned(), error))
}

/// Serves a snapshot, or refuses it and says why; the last good one stays.
fn take(gateway: &Gateway, snapshot: Result<Snapshot, DocumentError>) {
    match snapshot {
        Ok(snapshot) => {
            let running = gateway.config().map(|loaded| loaded.hash.clone());
            if snapshot.hash().ok() == running {
                gateway.settle();
                return;
            }
            // A refusal is logged and counted where it happens.
            if gateway.load(snapshot, Vec::new()).is_ok() {
                tracing::info!(hash = gateway.config().map(|loaded| loaded.hash.clone()), "a new configuration is live");
            }
        }
        Err(error) => gateway.refuse(error.to_string()),
    }
}

/// What the watch and the mounted file tell each other.
#[derive(Debug, Default)]
struct Delivery {
    /// The watch works: the file, which follows with a delay of up to a minute, is not looked at.
    watching: Cell<bool>,
    /// Hashes that the watch brought, newest last: a file that still holds one of them is behind.
    brought: RefCell<VecDeque<String>>,
}

/// Hashes that are remembered; the file is at most a few versions behind.
const MAX_BROUGHT: usize = 64;

impl Delivery {
    /// Notes what the watch brought.
    fn bring(&self, snapshot: &Result<Snapshot, DocumentError>) {
        self.watching.set(true);
        if let Some(hash) = snapshot.as_ref().ok().and_then(|snapshot| snapshot.hash().ok()) {
            let mut brought = self.brought.borrow_mut();
            brought.push_back(hash);
            if brought.len() > MAX_BROUGHT {
                brought.pop_front();
            }
        }
    }

    /// True when the file may be newer than what is served.
    fn may_use(&self, snapshot: &Result<Snapshot, DocumentError>) -> bool {
        let behind = |snapshot: &Snapshot| snapshot.hash().is_ok_and(|hash| self.brought.borrow().contains(&hash));
        !self.watching.get() && !snapshot.as_ref().is_ok_and(behind)
    }
}

/// Follows the one Secret for ever. Ends only when there is no cluster to ask: then the pod serves what is mounted.
async fn watch_secret(gateway: &Gateway, namespace: &str, name: &str, delivery: &Delivery) {
    let client = match Client::try_default().await {
        Ok(client) => client,
        Err(error) => {
            return tracing::error!(%error, "no access to the API server: only the mounted configuration is served");
        }
    };
    // The Role allows this one name; the field selector is what makes `list` and `watch` legal with it.
    let only_this = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let events = watcher(Api::<Secret>::namespaced(client, namespace), only_this).default_backoff();
    tokio::pin!(events);
    while let Some(event) = events.next().await {
        match event {
            Ok(watcher::Event::Apply(secret) | watcher::Event::InitApply(secret)) if secret.name_any() == name => {
                let packed = secret.data.as_ref().and_then(|data| data.get(CONFIG_KEY));
                let snapshot = match packed {
                    Some(packed) => unpack(&packed.0, name).and_then(|bytes| Ok(Snapshot::from_json(&bytes)?)),
                    None => Err(DocumentError::NoKey(name.to_owned())),
                };
                delivery.bring(&snapshot);
                take(gateway, snapshot);
            }
            Ok(watcher::Event::Delete(_)) => tracing::warn!(secret = name, "the config Secret was deleted; the last configuration stays"),
            Ok(_) => {}
            Err(error) => {
                delivery.watching.set(false);
                tracing::warn!(%error, "watching the config Secret; it is tried again, and the mounted file is followed meanwhile");
            }
        }
    }
}

/// Follows the mounted file for ever, while nothing better brings changes.
async fn watch_file(gateway: &Gateway, path: &Path, delivery: &Delivery) {
    let stamp = || std::fs::metadata(path).ok().and_then(|meta| Some((meta.modified().ok()?, meta.len())));
    let mut taken = stamp();
    loop {
        tokio::time::sleep(POLL).await;
        let now = stamp();
        if now.is_none() || now == taken || delivery.watching.get() {
            continue;
        }
        taken = now;
        let snapshot = read_file(path).and_then(|bytes| Ok(Snapshot::from_json(&bytes)?));
        if delivery.may_use(&snapshot) {
            take(gateway, snapshot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_behind_the_watch_is_not_taken() {
        let of = |n: u32| Ok(Snapshot { schema_version: n, ..Snapshot::default() });
        let delivery = Delivery::default();
        assert!(delivery.may_use(&of(1)), "before the watch has brought anything");
        delivery.bring(&of(1));
        delivery.bring(&of(2));
        assert!(!delivery.may_use(&of(3)), "the watch works");
        delivery.watching.set(false);
        assert!(delivery.may_use(&of(3)));
        assert!(!delivery.may_use(&of(1)) && !delivery.may_use(&of(2)));
    }

    #[test]
    fn documents_are_unpacked_and_broken_ones_named() {
        assert_eq!(unpack(&packed::pack(b"{}"), "x").unwrap(), b"{}");
        assert!(unpack(b"plain", "the file").unwrap_err().to_string().contains("the file"));
    }
}
