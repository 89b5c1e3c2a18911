//! `omniroute run`: the gateway in one process, configured by files.

mod manifests;
mod tokens;

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use self::manifests::{Compiled, Manifests, News};
use self::tokens::StoredTokens;
use crate::gateway::server::{self, Running, ServerOptions};
use crate::gateway::store::{Memory, Sqlite, Store};
use crate::gateway::{Gateway, clock};
use crate::oauth::{PAUSES, Refresher};
use crate::telemetry::{self, LogFormat};

/// Between two looks at the files. Together with the pause below, a change is live well within a second.
const POLL: Duration = Duration::from_millis(200);

/// Longest wait for tokens that are being refreshed at the end: a refresh token that was sent may be good for one use.
const END: Duration = Duration::from_secs(5);

/// Flags.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Exit codes: 0 = ended by a signal, 1 = it could not start, 2 = wrong use, such as a path that cannot be read or a namespace that must be chosen."
)]
pub struct Args {
    /// Manifests: files, or folders of which all YAML and JSON files are read. Changes are taken over while running.
    #[arg(short = 'f', long = "filename", env = "OMNIROUTE_FILENAME", value_name = "FILE|DIR", required = true, num_args = 1..)]
    filename: Vec<PathBuf>,
    /// Address of the proxy port.
    #[arg(long, env = "OMNIROUTE_LISTEN", default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// Address of the management port.
    #[arg(long, env = "OMNIROUTE_MANAGEMENT", default_value = "127.0.0.1:9090")]
    management: SocketAddr,
    /// SQLite file in which cooldowns, lockouts, strikes and terminal states survive a restart.
    #[arg(long, env = "OMNIROUTE_STATE_FILE", value_name = "FILE")]
    state_file: Option<PathBuf>,
    /// The namespace to serve, when the manifests name several.
    #[arg(long, env = "OMNIROUTE_NAMESPACE")]
    namespace: Option<String>,
    /// Serving threads [default: one per core].
    #[arg(long, env = "OMNIROUTE_THREADS")]
    threads: Option<NonZeroUsize>,
    /// How log lines look.
    #[arg(long, env = "OMNIROUTE_LOG_FORMAT", value_enum, default_value_t)]
    log_format: LogFormat,
}

/// Why `run` could not start.
#[derive(thiserror::Error, Debug)]
pub enum RunError {
    /// No event loop.
    #[error("starting the event loop: {0}")]
    Runtime(#[source] std::io::Error),
    /// The metrics clash.
    #[error("setting up the metrics: {0}")]
    Metrics(#[from] prometheus::Error),
    /// The state file.
    #[error(transparent)]
    Store(#[from] crate::gateway::store::StoreError),
    /// What the state file holds.
    #[error(transparent)]
    Restore(#[from] crate::gateway::RestoreError),
    /// A manifest that cannot be read.
    #[error(transparent)]
    Manifests(#[from] manifests::ManifestError),
    /// The configuration cannot be served.
    #[error(transparent)]
    Load(#[from] crate::gateway::config::LoadError),
    /// The ports.
    #[error(transparent)]
    Start(#[from] server::StartError),
}

/// Runs the command.
#[must_use]
pub fn run(args: Args) -> ExitCode {
    telemetry::init(args.log_format);
    match tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(RunError::Runtime)
        .and_then(|rt| rt.block_on(serve(args)))
    {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("omniroute run: {error}");
            if matches!(error, RunError::Manifests(_)) { ExitCode::from(2) } else { ExitCode::FAILURE }
        }
    }
}

async fn serve(args: Args) -> Result<(), RunError> {
    let gateway = Gateway::new(store(args.state_file.as_deref())?)?;
    let tokens = Arc::new(StoredTokens::new(Arc::clone(&gateway), args.state_file.is_some())?);
    let mut manifests = Manifests::new(args.filename, args.namespace, gateway.identity()?, tokens.all());
    gateway.prepare_restore(None)?;
    let first = manifests.read()?;
    first.log();
    let generated = first.generated_key.clone();
    gateway.load(first.snapshot, first.findings)?;
    gateway.keep_commands()?;
    let options = ServerOptions { threads: args.threads, ..ServerOptions::local(args.listen, args.management) };
    let running = server::start(Arc::clone(&gateway), options)?;
    announce(&running, generated.as_deref());
    let stop = CancellationToken::new();
    let refresher = Refresher::new(Arc::clone(&tokens), PAUSES, stop.clone());
    refresher.set("", first.grants);
    let refreshing = tokio::spawn(refresher.clone().run());
    let watching = watch(&gateway, &mut manifests, &tokens, &refresher);
    tokio::select! {
        () = watching => {}
        () = stop_signal() => {}
    }
    stop.cancel();
    tracing::info!("draining: new connections are refused soon, running requests finish");
    tokio::select! {
        _ = async { tokio::join!(running.drain(), tokio::time::timeout(END, refreshing)) } => {}
        // Who asks twice does not want to wait.
        () = stop_signal() => {}
    }
    Ok(())
}

/// Where the state is kept.
pub(super) fn store(file: Option<&Path>) -> Result<Box<dyn Store>, crate::gateway::store::StoreError> {
    match file {
        Some(path) => Ok(Box::new(Sqlite::open(path)?)),
        None => Ok(Box::new(Memory)),
    }
}

/// Says on standard output where the gateway is, and the generated key, which belongs in no log.
fn announce(running: &Running, generated_key: Option<&str>) {
    println!("omniroute serves http://{}  (management http://{})", running.listen_addr(), running.management_addr());
    if let Some(key) = generated_key {
        println!("management key: {key}  (generated, since no API key among the manifests has the scope `management`)");
    }
    tracing::info!(listen = %running.listen_addr(), management = %running.management_addr(), "serving");
}

/// Follows the files and the refreshed tokens for ever. What cannot be served is refused and logged; the last good configuration stays.
async fn watch(gateway: &Gateway, manifests: &mut Manifests, tokens: &StoredTokens, refresher: &Refresher<Arc<StoredTokens>>) {
    loop {
        let news = tokio::select! {
            () = tokio::time::sleep(POLL) => manifests.changed(),
            () = tokens.changed() => manifests.refreshed(tokens.all()),
        };
        match news {
            News::Nothing => {}
            News::Unreadable(why) => gateway.refuse(why),
            News::Loaded(loaded) => {
                loaded.log();
                let Compiled { snapshot, findings, grants, .. } = *loaded;
                refresher.set("", grants);
                // A refusal is logged and counted where it happens.
                if gateway.load(snapshot, findings).is_ok() {
                    tracing::info!(at = %clock::now(), "the changed manifests are live");
                    if let Err(error) = gateway.keep_commands() {
                        tracing::error!(%error, "the accepted commands are not stored");
                    }
                }
            }
        }
    }
}

/// Returns at SIGTERM or SIGINT.
pub(super) async fn stop_signal() {
    let (Ok(mut term), Ok(mut int)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) else {
        tracing::error!("signals cannot be received: end this process with SIGKILL");
        return std::future::pending().await;
    };
    tokio::select! {
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
}
