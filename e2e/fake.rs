//! Fake vendors: `omniroute fake-upstream` as pods, scripted through the API server.

use serde_json::{Value, json};

use super::cluster::{Cluster, Outcome, parse};

/// The image under test.
fn image() -> String {
    std::env::var("E2E_IMAGE").unwrap_or_else(|_| concat!("localhost/omniroute:", env!("CARGO_PKG_VERSION")).to_owned())
}

/// Name of the Service of a vendor.
pub fn service(vendor: &str) -> String {
    format!("fake-{vendor}")
}

/// Starts one fake per vendor in a namespace.
pub fn deploy(cluster: &Cluster, namespace: &str, vendors: &[&str]) -> Outcome {
    let mut objects = Vec::new();
    for vendor in vendors {
        let (name, labels) = (service(vendor), json!({"app": service(vendor)}));
        objects.push(json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "labels": labels},
            "spec": {"selector": {"matchLabels": labels}, "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "automountServiceAccountToken": false,
                    "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
                    "containers": [{
                        "name": "fake", "image": image(), "imagePullPolicy": "IfNotPresent",
                        "args": ["fake-upstream", "--listen", "0.0.0.0:8080"],
                        "ports": [{"name": "http", "containerPort": 8080}],
                        "readinessProbe": {"tcpSocket": {"port": "http"}, "periodSeconds": 1},
                        "securityContext": {"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"]}},
                    }],
                },
            }},
        }));
        objects.push(json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
            "spec": {"selector": labels, "ports": [{"name": "http", "port": 8080, "targetPort": "http"}]},
        }));
    }
    cluster.apply(namespace, &objects)
}

/// The fake of one vendor.
#[derive(Debug)]
pub struct Fake<'a> {
    cluster: &'a Cluster,
    namespace: &'a str,
    service: String,
}

impl<'a> Fake<'a> {
    /// The fake of a vendor in a namespace.
    pub fn new(cluster: &'a Cluster, namespace: &'a str, vendor: &str) -> Self {
        Self { cluster, namespace, service: format!("{}:http", service(vendor)) }
    }

    fn script(&self, script: &Value) -> Outcome {
        self.cluster.service_put(self.namespace, &self.service, "/_control/script", script).map(drop)
    }

    /// Everything is answered well.
    pub fn healthy(&self) -> Outcome {
        self.script(&json!({"rules": []}))
    }

    /// Requests with this credential are answered 429 with `Retry-After`.
    pub fn rate_limit(&self, key: &str, retry_after: u32) -> Outcome {
        self.answer(key, 429, &[("retry-after", &retry_after.to_string())], "Rate limit reached for requests")
    }

    /// Requests with this credential get this failure.
    pub fn answer(&self, key: &str, status: u16, headers: &[(&str, &str)], message: &str) -> Outcome {
        let headers: serde_json::Map<_, _> = headers.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
        let answer = json!({"status": status, "headers": headers, "body": {"error": {"message": message}}});
        self.script(&json!({"rules": [{"name": "scenario", "match": {"key": key}, "answers": [answer]}]}))
    }

    fn requests(&self, query: &str) -> Outcome<Vec<Value>> {
        let path = format!("/_control/requests?{query}");
        let log = parse(&self.cluster.service_get(self.namespace, &self.service, &path)?)?;
        log.as_array().cloned().ok_or_else(|| format!("no list of requests: {log}"))
    }

    /// The number of the last request that came with this credential, 0 without any. Numbers grow with every request.
    pub fn last_with(&self, key: &str) -> Outcome<u64> {
        let requests = self.requests(&format!("key={key}"))?;
        Ok(requests.iter().filter_map(|request| request["id"].as_u64()).max().unwrap_or_default())
    }

    /// Waits until a request has come with this credential.
    pub fn await_with(&self, key: &str) -> Outcome {
        match self.requests(&format!("key={key}&wait=1"))?.is_empty() {
            false => Ok(()),
            true => Err(format!("no request came with {key}")),
        }
    }
}
