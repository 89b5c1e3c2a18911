//! The installation that all scenarios share: the operator, fake upstreams, and the quickstart pointed at them.

use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::client::Client;
use super::cluster::{Cluster, Outcome, Reaper, until};
use super::fake::{self, Fake};
use super::health::kstatus;

/// Where the operator lives.
pub const SYSTEM: &str = "omniroute-system";
/// Where the quickstart lives.
pub const TEAM: &str = "omniroute-e2e";
/// The client key of the quickstart.
pub const CLIENT_KEY: &str = "client-key-replace-me";

/// Time for something that takes pods to start.
pub const PODS: Duration = Duration::from_secs(90);
/// Time for something that the operator does within two seconds on a quiet machine.
pub const SOON: Duration = Duration::from_secs(10);

/// An installed product.
#[derive(Debug)]
pub struct World {
    /// The cluster.
    pub cluster: Arc<Cluster>,
}

/// The way to a Service: its address, and a port-forward where the address cannot be reached directly.
#[derive(Debug)]
pub struct Way {
    /// `http://HOST:PORT`
    pub url: String,
    _forward: Option<Reaper>,
}

impl World {
    /// Installs the operator and the quickstart with kubectl and waits until the gateway serves.
    pub fn install(cluster: Arc<Cluster>) -> Outcome<Self> {
        let world = Self { cluster };
        let cluster = &world.cluster;
        // The user's objects come first, before there is an operator: a waiter that comes too early must wait.
        cluster.kubectl(&["apply", "-k", "config/crd"])?;
        cluster.wait_for("", &["crd", "--all"], "condition=Established", SOON)?;
        world.namespace(TEAM)?;
        fake::deploy(cluster, TEAM, &["openai", "anthropic"])?;
        cluster.apply(TEAM, &quickstart(TEAM)?)?;
        if cluster.own.is_some() {
            let early = cluster.get(TEAM, &["providers,connections,combos,resiliencesettings"])?;
            let verdicts = kstatus(early["items"].as_array().map_or(&[], Vec::as_slice))?;
            if verdicts.is_empty() || verdicts.iter().any(|verdict| verdict != "InProgress") {
                return Err(format!("kstatus of objects that no operator has seen: {verdicts:?}"));
            }
        }
        cluster.kubectl(&["apply", "-k", "config/default"])?;
        world.await_deployment(SYSTEM, "omniroute-operator")?;
        for name in ["openai", "anthropic"] {
            world.await_deployment(TEAM, &fake::service(name))?;
        }
        cluster.wait_for(TEAM, &["combo/assistant"], "condition=Ready", PODS)?;
        Ok(world)
    }

    /// Makes a namespace that accepts restricted pods only.
    pub fn namespace(&self, name: &str) -> Outcome {
        let labels = json!({"pod-security.kubernetes.io/enforce": "restricted"});
        self.cluster.apply("default", &[json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})])
    }

    /// Waits until all pods of a Deployment are there.
    pub fn await_deployment(&self, namespace: &str, name: &str) -> Outcome {
        let (target, timeout) = (format!("deployment/{name}"), format!("--timeout={}s", PODS.as_secs()));
        self.cluster.kubectl(&["rollout", "status", "-n", namespace, &target, &timeout]).map(drop)
    }

    /// The fake upstream of this vendor.
    pub fn fake(&self, vendor: &'static str) -> Fake<'_> {
        Fake::new(&self.cluster, TEAM, vendor)
    }

    /// A client of the team's gateway.
    pub fn client(&self) -> Outcome<(Client, Way)> {
        let way = self.way(TEAM, "omniroute-gateway", 80)?;
        Ok((Client::start(&way.url)?, way))
    }

    /// How to reach a port of a Service from here.
    pub fn way(&self, namespace: &str, service: &str, port: u16) -> Outcome<Way> {
        let (forward, address) = if self.cluster.own.is_some() {
            let object = self.cluster.get(namespace, &["service", service])?;
            let ip = object["spec"]["clusterIP"].as_str().ok_or_else(|| format!("{service} has no address"))?;
            (None, format!("{ip}:{port}"))
        } else {
            let (forward, address) = self.cluster.port_forward(namespace, service, port)?;
            (Some(forward), address)
        };
        until(SOON, "the gateway's port", || TcpStream::connect(&address).ok())?;
        Ok(Way { url: format!("http://{address}"), _forward: forward })
    }

    /// The gateway pods: name, UID and restarts, to see that none was replaced.
    pub fn gateway_pods(&self) -> Outcome<Vec<Value>> {
        let pods = self.cluster.get(TEAM, &["pods", "-l", "app.kubernetes.io/name=omniroute-gateway"])?;
        let pods = pods["items"].as_array().cloned().unwrap_or_default();
        let facts = pods.iter().map(|pod| {
            let restarts = &pod["status"]["containerStatuses"][0]["restartCount"];
            json!({"name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"], "restarts": restarts})
        });
        Ok(facts.collect())
    }

    /// Waits until a Connection is in a state, and answers it.
    pub fn await_state(&self, connection: &str, state: &str, limit: Duration) -> Outcome<Value> {
        self.cluster.await_object(TEAM, "connection", connection, limit, |object| object["status"]["state"] == json!(state))
    }

    /// After a failure: puts everything back to the quickstart, so that the next scenario fails only for a reason of its own.
    pub fn recover(&self) -> Outcome {
        for vendor in ["openai", "anthropic"] {
            self.fake(vendor).healthy()?;
        }
        self.cluster.apply(TEAM, &quickstart(TEAM)?)?;
        // A client-side apply leaves alone what a scenario has patched in.
        self.cluster.patch(TEAM, "resiliencesettings/default", &json!({"spec": {"gateway": null}}))?;
        self.cluster.await_object(TEAM, "deployment", "omniroute-gateway", PODS, |object| object["status"]["replicas"] == json!(1))?;
        let commands = ["omniroute.dev/clear-cooldown=recovered", "omniroute.dev/reset=recovered", "--overwrite"];
        let annotate = ["annotate", "-n", TEAM, "connections", "--all"];
        self.cluster.kubectl(&[&annotate[..], &commands[..]].concat()).map(drop)
    }

    /// Prints what helps to understand a failure.
    pub fn explain(&self) {
        for arguments in [
            &["get", "pods,connections,providers,combos,resiliencesettings", "-A", "-o", "wide"][..],
            &["get", "events", "-A", "--sort-by=.lastTimestamp"][..],
            &["logs", "-n", SYSTEM, "-l", "app.kubernetes.io/name=omniroute-operator", "--tail=40", "--prefix"][..],
            &["logs", "-n", TEAM, "-l", "app.kubernetes.io/name=omniroute-gateway", "--tail=40", "--prefix"][..],
        ] {
            match self.cluster.kubectl(arguments) {
                Ok(text) | Err(text) => eprintln!("--- kubectl {}\n{text}", arguments.join(" ")),
            }
        }
    }
}

/// The quickstart of `config/samples` with the base URLs of the vendors pointed at the fakes in a namespace.
pub fn quickstart(namespace: &str) -> Outcome<Vec<Value>> {
    let text = include_str!("../config/samples/quickstart.yaml");
    let mut objects: Vec<Value> = serde_saphyr::from_multiple(text).map_err(|error| error.to_string())?;
    for object in objects.iter_mut().filter(|object| object["kind"] == json!("Provider")) {
        let vendor = object["metadata"]["name"].as_str().unwrap_or_default();
        let url = format!("http://{}.{namespace}.svc.cluster.local:8080/v1", fake::service(vendor));
        object["spec"]["baseURL"] = json!(url);
        object["spec"]["allowInsecureHTTP"] = json!(true);
    }
    Ok(objects)
}
