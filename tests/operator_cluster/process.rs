//! The operator as a process: what it logs, and how it ends.

use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::{Cluster, FakePod, eventually, free_port};
use crate::{QUICKSTART, all_ready};

/// Runs an operator of the namespace until it has brought everything up to date; answers its log and how it ended after SIGTERM.
async fn life(cluster: &Cluster, level: &str, pod: &str) -> (Vec<Value>, ExitStatus) {
    let management = free_port().to_string();
    let child = Command::new(env!("CARGO_BIN_EXE_omniroute"))
        .args(["operator", "--namespace", &cluster.namespace, "--watch-namespaces", &cluster.namespace, "--management", &management])
        .args(["--gateway-image", "localhost/none:1", "--log-format", "json"])
        .env("OMNIROUTE_LOG", level)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = child.id().to_string();
    // Read all the time, otherwise a full pipe would hold the process up.
    let output = tokio::task::spawn_blocking(move || child.wait_with_output().unwrap());
    eventually("it leads", Duration::from_secs(10), || async { !cluster.leader().await.is_empty() }).await;
    let _pod = FakePod::start(cluster, pod).await;
    all_ready(cluster).await;
    let told = Instant::now();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    let output = output.await.unwrap();
    assert!(told.elapsed() < Duration::from_secs(10), "{:?}", told.elapsed());
    let text = String::from_utf8(output.stderr).unwrap();
    (text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect(), output.status)
}

fn levels(log: &[Value]) -> std::collections::BTreeSet<&str> {
    log.iter().map(|line| line["level"].as_str().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_is_json_line_by_line_and_the_end_is_good() {
    let Some(cluster) = Cluster::open("op-process").await else { return };
    cluster.apply(QUICKSTART).await;
    let (log, status) = life(&cluster, "info", "pod-1").await;
    assert_eq!(status.code(), Some(0));
    eventually("the lease is free", Duration::from_secs(5), || async { cluster.leader().await.is_empty() }).await;
    for line in &log {
        assert!(line["timestamp"].is_string() && line["target"].is_string() && line["message"].is_string(), "{line}");
    }
    assert!(levels(&log).is_subset(&["INFO", "WARN"].into()), "{:?}", levels(&log));
    // What is done for a namespace says for which.
    let applied: Vec<&Value> = log.iter().filter(|line| line["message"] == "applied").collect();
    assert!(applied.len() >= 7, "{log:#?}");
    for line in applied {
        assert_eq!((&line["span"]["name"], &line["span"]["namespace"]), (&"reconcile".into(), &"op-process".into()), "{line}");
        assert!(line["kind"].is_string() && line["name"].is_string(), "{line}");
    }

    cluster.delete("Pod", "pod-1").await;
    let (log, _) = life(&cluster, "debug", "pod-2").await;
    assert!(levels(&log).contains("DEBUG"), "{:?}", levels(&log));
    cluster.delete("Pod", "pod-2").await;
    let (log, status) = life(&cluster, "error", "pod-3").await;
    assert_eq!((log, status.code()), (Vec::new(), Some(0)));
}

#[test]
fn without_an_api_server_or_with_wrong_flags_the_end_is_bad() {
    let operator = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_omniroute"));
        command.arg("operator").args(arguments).env("KUBECONFIG", "/nowhere/at-all").env_remove("KUBERNETES_SERVICE_HOST");
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, told) = operator(&["--gateway-image", "i"]);
    assert_eq!(code, Some(1));
    assert!(told.contains("finding the API server") && told.contains("/nowhere/at-all"), "{told}");
    let (code, told) = operator(&["--gateway-image", "i", "--lease-duration", "1s"]);
    assert_eq!(code, Some(2));
    assert!(told.contains("--lease-duration") && told.contains("must lie between 2s and 10m"), "{told}");
}
