//! Real gateway processes beside the operator.

use std::io::Read;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use flate2::Compression;
use flate2::read::{GzDecoder, GzEncoder};
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use serde_json::Value;

use crate::support::{Cluster, binary, condition, create_pod, eventually, http_get, pod_ip, text};
use crate::{LEASE, QUICKSTART, all_ready};

/// The key of a client.
pub const CLIENT: &str = "
---
apiVersion: v1
kind: Secret
metadata: {name: client, labels: {omniroute.dev/api-key: 'true'}}
stringData: {key: client-key}
";

/// Where a gateway gets its configuration from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Follows {
    /// A mounted file, for which the test plays the kubelet.
    File,
    /// The Secret, as in a cluster.
    Secret,
}

/// A gateway; killed when the test is over.
pub struct Gateway {
    child: Child,
    ip: IpAddr,
    folder: PathBuf,
    token: String,
}

impl Gateway {
    /// Starts it with what is delivered now, and shows it to the cluster as a ready pod.
    pub async fn start(cluster: &Cluster, name: &str, follows: Follows) -> Self {
        let ip = pod_ip();
        let folder = std::env::temp_dir().join(format!("omniroute-gateway-{}", rand::random::<u64>()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("snapshot.json.gz");
        std::fs::write(&file, delivered(cluster).await).unwrap();
        let mut command = Command::new(binary());
        command.args(["gateway", "--threads", "1", "--listen", &format!("{ip}:8080"), "--management", &format!("{ip}:9090")]);
        command.arg("--config-file").arg(&file).arg("--checkpoint-file").arg(folder.join("none")).stderr(Stdio::null());
        if follows == Follows::Secret {
            command.args(["--namespace", &cluster.namespace, "--config-secret", "omniroute-gateway-config"]);
        }
        let child = command.spawn().unwrap();
        let management = cluster.get("Secret", "omniroute-gateway-management").await.unwrap();
        let management: Secret = serde_json::from_value(management).unwrap();
        let token = String::from_utf8(management.data.unwrap()["token"].0.clone()).unwrap();
        let gateway = Self { child, ip, folder, token };
        eventually("the gateway is ready", Duration::from_secs(20), || async {
            let opened = tokio::net::TcpStream::connect((ip, 9090)).await.is_ok();
            opened && http_get(SocketAddr::from((ip, 9090)), "/readyz", "").await.0 == 200
        })
        .await;
        create_pod(cluster, name, ip).await;
        gateway
    }

    /// As the kubelet does it: the new file takes the place of the old one at once.
    fn mount(&self, bytes: &[u8]) {
        let new = self.folder.join("new");
        std::fs::write(&new, bytes).unwrap();
        std::fs::rename(new, self.folder.join("snapshot.json.gz")).unwrap();
    }

    /// What a client may ask for.
    pub async fn models(&self) -> (u16, String) {
        http_get(SocketAddr::from((self.ip, 8080)), "/v1/models", "authorization: Bearer client-key\r\n").await
    }

    /// How many configurations it has refused.
    async fn refusals(&self) -> u64 {
        let key = format!("authorization: Bearer {}\r\n", self.token);
        let (_, page) = http_get(SocketAddr::from((self.ip, 9090)), "/metrics", &key).await;
        let line = page.lines().find(|line| line.starts_with("omniroute_snapshot_load_failures_total ")).unwrap();
        line.rsplit(' ').next().unwrap().parse().unwrap()
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// The configuration as the operator has packed it.
async fn delivered(cluster: &Cluster) -> Vec<u8> {
    cluster.until_snapshot("delivered", Duration::from_secs(30), |_| true).await;
    let secrets: Api<Secret> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let mut data = secrets.get("omniroute-gateway-config").await.unwrap().data.unwrap();
    data.remove("snapshot.json.gz").unwrap().0
}

/// The same as an operator of the next version but one would write it.
fn of_the_future(packed: &[u8]) -> Vec<u8> {
    let mut snapshot: Value = serde_json::from_reader(GzDecoder::new(packed)).unwrap();
    let version = &mut snapshot["schemaVersion"];
    *version = (version.as_u64().unwrap() + 2).into();
    let mut out = Vec::new();
    GzEncoder::new(snapshot.to_string().as_bytes(), Compression::fast()).read_to_end(&mut out).unwrap();
    out
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_configuration_is_told_and_the_last_good_one_serves() {
    let Some(cluster) = Cluster::open("op-refused").await else { return };
    cluster.apply(&[QUICKSTART, CLIENT].concat()).await;
    let operator = cluster.operator("one", LEASE);
    let mut gateway = Gateway::start(&cluster, "pod-1", Follows::File).await;
    all_ready(&cluster).await;
    let good = gateway.models().await;
    assert!(good.0 == 200 && good.1.contains("assistant"), "{good:?}");

    // A change is delivered, but what arrives at the gateway is torn.
    cluster.edit("Combo", "assistant", serde_json::json!({"spec": {"targets": [{"provider": "openai", "model": "gpt-5-mini"}]}})).await;
    cluster.until_snapshot("the new target", Duration::from_secs(5), |s| format!("{:?}", s.combos).contains("gpt-5-mini")).await;
    let newest = delivered(&cluster).await;
    let refused = async |bytes: &[u8], why: &'static str| {
        gateway.mount(bytes);
        let told = |o: &Value| {
            let programmed = o["status"]["conditions"].as_array().into_iter().flatten().find(|c| c["type"] == "Programmed");
            programmed.is_some_and(|c| c["reason"] == "SnapshotRefused" && text(c, "/message").contains(why))
        };
        let combo = cluster.until("Combo", "assistant", why, Duration::from_secs(15), told).await;
        assert_eq!((condition(&combo, "Programmed").0.as_str(), condition(&combo, "Ready").0.as_str()), ("False", "False"));
        assert_eq!(gateway.models().await, good, "the last good configuration serves");
    };
    refused(&newest[..newest.len() / 2], "unpacking").await;
    refused(&of_the_future(&newest), "schema version 3").await;
    assert_eq!(gateway.refusals().await, 2);
    // What runs as it should is not dragged along.
    let connection = cluster.get("Connection", "a").await.unwrap();
    assert_eq!((condition(&connection, "Programmed").0.as_str(), condition(&connection, "Ready").0.as_str()), ("True", "True"));
    let told = || async { cluster.events("Combo").await.contains(&"SnapshotRefused".to_owned()) };
    eventually("an event says so", Duration::from_secs(10), || async { told().await }).await;

    gateway.mount(&newest);
    cluster.until_ready("Combo", "assistant", "True", "Accepted").await;
    assert_eq!(gateway.models().await.0, 200);
    operator.terminate().await;
    let pid = gateway.child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    assert_eq!(gateway.child.wait().unwrap().code(), Some(0));
}
