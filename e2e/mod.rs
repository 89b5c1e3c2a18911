//! The end-to-end suite: the operator, real gateway pods and the official SDK on a real Kubernetes.
//!
//! It runs inside `e2e/cluster/with-cluster`, or against any cluster that has the image: `E2E_KUBECONFIG=… cargo test --test e2e`. The scenarios
//! run one after the other in the order of `SCENARIOS`, on one installation.

mod client;
mod cluster;
mod fake;
mod health;
mod process;
mod scenarios;
mod world;

use std::process::ExitCode;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use libtest_mimic::{Arguments, Trial};

use cluster::{Cluster, Outcome};
use scenarios::{SCENARIOS, Scenario};
use world::World;

/// Runs the suite, or says how to run it where there is no cluster.
pub fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let cluster = Cluster::find().map(Arc::new);
    if cluster.is_none() {
        eprintln!(
            "The end-to-end scenarios are skipped: there is no cluster. As root on Linux:\n  \
             scripts/build-image --profile image\n  \
             e2e/cluster/with-cluster --image target/image/omniroute.tar cargo test --offline --test e2e\n\
             or against any cluster that holds the image (kind: `kind load image-archive target/image/omniroute.tar`):\n  \
             E2E_KUBECONFIG=~/.kube/config cargo test --test e2e"
        );
    }
    let world = Arc::new(OnceLock::new());
    let trials = SCENARIOS.iter().map(|scenario| trial(scenario, cluster.clone(), Arc::clone(&world))).collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// One scenario as a test. The first that runs installs the operator; without that none can pass.
fn trial(scenario: &'static Scenario, cluster: Option<Arc<Cluster>>, world: Arc<OnceLock<Outcome<World>>>) -> Trial {
    let impossible = match &cluster {
        None => true,
        Some(cluster) => scenario.needs_own_cluster && cluster.own.is_none(),
    };
    let run = move || -> Result<(), libtest_mimic::Failed> {
        let Some(cluster) = cluster else { return Err("there is no cluster".into()) };
        let started = Instant::now();
        let world = world.get_or_init(|| World::install(cluster)).as_ref()?;
        let outcome = (scenario.run)(world);
        if let Err(message) = &outcome {
            world.explain();
            eprintln!("{}: {message}", scenario.name);
            if let Err(error) = world.recover() {
                eprintln!("putting the quickstart back: {error}");
            }
        }
        eprintln!("{} took {:.1} s", scenario.name, started.elapsed().as_secs_f64());
        Ok(outcome?)
    };
    Trial::test(scenario.name, run).with_ignored_flag(impossible)
}
