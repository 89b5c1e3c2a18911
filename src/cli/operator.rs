//! `omniroute operator`.

use std::net::SocketAddr;
use std::process::ExitCode;

use clap::ArgAction;
use rand::RngExt as _;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::api::time::parse_duration;
use crate::operator::leader::Timing;
use crate::operator::namespace::Settings;
use crate::operator::{Config, run as run_operator};
use crate::telemetry::{self, LogFormat};

/// Flags.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Namespace of the operator itself: the Lease lives there, and gateways let its pods ask for their state.
    #[arg(long, env = "OMNIROUTE_NAMESPACE", default_value = "omniroute-system")]
    namespace: String,
    /// Namespaces to serve, comma separated. Empty: all, which needs a ClusterRole.
    #[arg(long, env = "OMNIROUTE_WATCH_NAMESPACES", value_delimiter = ',')]
    watch_namespaces: Vec<String>,
    /// Address of /metrics, /livez and /readyz.
    #[arg(long, env = "OMNIROUTE_MANAGEMENT", default_value = "0.0.0.0:9090")]
    management: SocketAddr,
    /// Let one of several replicas write, chosen by a Lease. `false` only when there can never be a second one.
    #[arg(
        long,
        env = "OMNIROUTE_LEADER_ELECT",
        default_value = "true",
        default_missing_value = "true",
        num_args = 0..=1,
        require_equals = true,
        action = ArgAction::Set
    )]
    leader_elect: bool,
    /// Name of the Lease.
    #[arg(long, env = "OMNIROUTE_LEASE_NAME", default_value = "omniroute-operator")]
    lease_name: String,
    /// How long a replica that vanished keeps the others waiting.
    #[arg(long, env = "OMNIROUTE_LEASE_DURATION", default_value = "15s", value_parser = lease_duration)]
    lease_duration: std::time::Duration,
    /// Image of gateway pods without `gateway.image`; the image that the operator itself was installed with.
    #[arg(long, env = "OMNIROUTE_GATEWAY_IMAGE")]
    gateway_image: String,
    /// Pull policy of gateway pods.
    #[arg(long, env = "OMNIROUTE_GATEWAY_IMAGE_PULL_POLICY", default_value = "IfNotPresent", value_parser = ["Always", "IfNotPresent", "Never"])]
    gateway_image_pull_policy: String,
    /// Name of this pod, for logs, events and the Lease.
    #[arg(long, env = "OMNIROUTE_POD_NAME", default_value = "omniroute-operator")]
    pod_name: String,
    /// How log lines look.
    #[arg(long, env = "OMNIROUTE_LOG_FORMAT", value_enum, default_value_t)]
    log_format: LogFormat,
}

fn lease_duration(text: &str) -> Result<std::time::Duration, String> {
    match parse_duration(text)? {
        ms @ 2_000..=600_000 => Ok(std::time::Duration::from_millis(ms)),
        _ => Err("must lie between 2s and 10m".to_owned()),
    }
}

/// Runs the command.
#[must_use]
pub fn run(args: Args) -> ExitCode {
    telemetry::init(args.log_format);
    match serve(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(%error, "the operator cannot run");
            ExitCode::FAILURE
        }
    }
}

/// Why the operator cannot run.
#[derive(thiserror::Error, Debug)]
enum ServeError {
    #[error("starting the runtime: {0}")]
    Runtime(#[source] std::io::Error),
    #[error("listening to signals: {0}")]
    Signals(#[source] std::io::Error),
    #[error("finding the API server (KUBECONFIG, or the service account of the pod): {0}")]
    Kubernetes(#[source] Box<kube::Error>),
    #[error(transparent)]
    Operator(#[from] crate::operator::error::Error),
}

fn serve(args: Args) -> Result<(), ServeError> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(ServeError::Runtime)?;
    runtime.block_on(async {
        let stop = CancellationToken::new();
        stop_on_signal(&stop).map_err(ServeError::Signals)?;
        let failed = |e: kube::Error| ServeError::Kubernetes(Box::new(e));
        let mut kubernetes = kube::Config::infer().await.map_err(|e| failed(kube::Error::InferConfig(e)))?;
        // A write that is repeated behind our back could land after this replica has lost the lease.
        kubernetes.default_retry = false;
        kubernetes.connect_timeout = Some(std::time::Duration::from_secs(5));
        let client = kube::Client::try_from(kubernetes).map_err(failed)?;
        Ok(run_operator(config(args), client, stop).await?)
    })
}

fn config(args: Args) -> Config {
    let timing = Timing::of(args.lease_duration);
    Config {
        settings: Settings {
            installation: format!("{}/{}", args.namespace, args.lease_name),
            namespace: args.namespace,
            image: args.gateway_image,
            pull_policy: args.gateway_image_pull_policy,
            environment: std::env::vars().collect(),
        },
        watch_namespaces: args.watch_namespaces.into_iter().map(|n| n.trim().to_owned()).filter(|n| !n.is_empty()).collect(),
        management: args.management,
        election: args.leader_elect.then_some((args.lease_name, timing)),
        // A pod that is started again under its name is another candidate.
        identity: format!("{}_{:08x}", args.pod_name, rand::rng().random::<u32>()),
    }
}

fn stop_on_signal(stop: &CancellationToken) -> std::io::Result<()> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let stop = stop.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        stop.cancel();
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn parse(flags: &[&str]) -> Result<Args, clap::Error> {
        Line::try_parse_from(["x", "--gateway-image", "i"].iter().chain(flags)).map(|l| l.args)
    }

    #[test]
    fn flags_have_the_documented_defaults() {
        let config = config(parse(&[]).unwrap());
        assert_eq!(config.election.as_ref().map(|(name, _)| name.as_str()), Some("omniroute-operator"));
        assert_eq!(config.management, SocketAddr::from(([0, 0, 0, 0], 9090)));
        assert_eq!(config.settings.installation, "omniroute-system/omniroute-operator");
        assert!(config.watch_namespaces.is_empty());
        assert!(config.identity.starts_with("omniroute-operator_"));
    }

    #[test]
    fn election_can_be_named_and_switched_off() {
        assert!(parse(&["--leader-elect"]).unwrap().leader_elect);
        assert!(config(parse(&["--leader-elect=false"]).unwrap()).election.is_none());
        assert!(parse(&["--lease-duration", "1s"]).is_err());
        let narrowed = config(parse(&["--watch-namespaces", "a, b,"]).unwrap());
        assert_eq!(narrowed.watch_namespaces, ["a", "b"]);
    }
}
