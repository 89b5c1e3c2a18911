//! The cluster under test, spoken to with kubectl as a person would.

use std::fmt::Write as _;
use std::io::{Read, Write as _};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde_json::Value;

/// What a failed step says; the harness prints it.
pub type Outcome<T = ()> = Result<T, String>;

/// A Kubernetes that the suite may use.
#[derive(Debug)]
pub struct Cluster {
    kubeconfig: PathBuf,
    /// The folder of the throw-away cluster of `e2e/cluster`: components can be stopped, pods reached directly, the audit log read.
    pub own: Option<PathBuf>,
}

impl Cluster {
    /// The cluster of `E2E_KUBECONFIG`, or the one that `with-cluster` has booted around this process.
    pub fn find() -> Option<Self> {
        if let Some(kubeconfig) = std::env::var_os("E2E_KUBECONFIG") {
            return Some(Self { kubeconfig: kubeconfig.into(), own: None });
        }
        let own = PathBuf::from(std::env::var_os("CLUSTER_DIR")?);
        Some(Self { kubeconfig: std::env::var_os("KUBECONFIG")?.into(), own: Some(own) })
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("kubectl");
        command.arg("--kubeconfig").arg(&self.kubeconfig).args(arguments);
        command.current_dir(env!("CARGO_MANIFEST_DIR"));
        command
    }

    /// Standard output of kubectl; its standard error when it fails.
    pub fn kubectl(&self, arguments: &[&str]) -> Outcome<String> {
        self.kubectl_with(arguments, "")
    }

    /// The same with text on its standard input.
    pub fn kubectl_with(&self, arguments: &[&str], input: &str) -> Outcome<String> {
        run(self.command(arguments), input).map_err(|error| format!("kubectl {}: {error}", arguments.join(" ")))
    }

    /// An object, or a list of them, as JSON.
    pub fn get(&self, namespace: &str, arguments: &[&str]) -> Outcome<Value> {
        let mut all = vec!["get", "-n", namespace, "-o", "json"];
        all.extend(arguments);
        parse(&self.kubectl(&all)?)
    }

    /// Applies objects on the client's side, as `kubectl apply -f` does.
    pub fn apply(&self, namespace: &str, objects: &[Value]) -> Outcome {
        let list = serde_json::json!({"apiVersion": "v1", "kind": "List", "items": objects});
        self.kubectl_with(&["apply", "-n", namespace, "-f", "-"], &list.to_string()).map(drop)
    }

    /// Merges a patch into an object.
    pub fn patch(&self, namespace: &str, object: &str, patch: &Value) -> Outcome {
        let patch = patch.to_string();
        self.kubectl(&["patch", "-n", namespace, object, "--type=merge", "-p", &patch]).map(drop)
    }

    /// Asks a Service through the API server, which works from anywhere.
    pub fn service_get(&self, namespace: &str, service: &str, path: &str) -> Outcome<String> {
        self.kubectl(&["get", "--raw", &service_path(namespace, service, path)])
    }

    /// Sends a body to a Service through the API server with PUT.
    pub fn service_put(&self, namespace: &str, service: &str, path: &str, body: &Value) -> Outcome<String> {
        let url = service_path(namespace, service, path);
        self.kubectl_with(&["replace", "--raw", &url, "-f", "-"], &body.to_string())
    }

    /// Waits with a watch until an object is as wanted, and answers that object.
    pub fn await_object(
        &self,
        namespace: &str,
        kind: &str,
        name: &str,
        limit: Duration,
        wanted: impl Fn(&Value) -> bool,
    ) -> Outcome<Value> {
        let deadline = Instant::now() + limit;
        let selector = format!("--field-selector=metadata.name={name}");
        let mut last = Value::Null;
        loop {
            let watch = Watch::start(self.command(&["get", "-n", namespace, kind, &selector, "-o", "json", "--watch"]))?;
            while let Some(object) = watch.next(deadline) {
                if wanted(&object) {
                    return Ok(object);
                }
                last = object;
            }
            if Instant::now() >= deadline {
                let seen = serde_json::to_string(&last["status"]).unwrap_or_default();
                return Err(format!("{kind}/{name} was not as wanted within {limit:?}; its last status: {seen}"));
            }
        }
    }

    /// Waits for a condition with `kubectl wait`.
    pub fn wait_for(&self, namespace: &str, objects: &[&str], condition: &str, limit: Duration) -> Outcome {
        let (condition, timeout) = (format!("--for={condition}"), format!("--timeout={}s", limit.as_secs()));
        let mut all = vec!["wait", "-n", namespace, &condition, &timeout];
        all.extend(objects);
        self.kubectl(&all).map(drop)
    }

    /// A port-forward to a Service that lives as long as the answer.
    pub fn port_forward(&self, namespace: &str, service: &str, port: u16) -> Outcome<(Reaper, String)> {
        let (target, port) = (format!("service/{service}"), format!(":{port}"));
        let mut command = self.command(&["port-forward", "-n", namespace, &target, &port]);
        let mut child = command.stdout(Stdio::piped()).spawn().map_err(|error| error.to_string())?;
        let mut output = child.stdout.take().ok_or("no standard output")?;
        let child = Reaper(child);
        let mut text = String::new();
        let mut byte = [0; 1];
        while output.read(&mut byte).is_ok_and(|read| read == 1) {
            text.push(char::from(byte[0]));
            if let Some(line) = text.strip_suffix('\n') {
                let address = line.split_whitespace().nth(2).ok_or_else(|| format!("port-forward said: {line}"))?;
                return Ok((child, address.to_owned()));
            }
        }
        Err(format!("port-forward to {service} ended"))
    }

    /// The folder of the throw-away cluster.
    pub fn own(&self) -> Outcome<&PathBuf> {
        self.own.as_ref().ok_or_else(|| "needs the throw-away cluster of e2e/cluster".to_owned())
    }

    /// Stops a component of the throw-away cluster, as if its machine had died. (Asked politely, an API server waits a minute for its watches to end.)
    pub fn stop_component(&self, name: &str) -> Outcome {
        let pid_file = self.own()?.join(format!("run/{name}.pid"));
        let pid = std::fs::read_to_string(&pid_file).map_err(|error| format!("{}: {error}", pid_file.display()))?;
        run(shell(&format!("kill -KILL {pid} && tail --pid={pid} -f /dev/null", pid = pid.trim())), "").map(drop)
    }

    /// Starts it again.
    pub fn start_component(&self, name: &str) -> Outcome {
        let script = self.own()?.join(format!("run/{name}"));
        run(Command::new(script), "").map(drop)
    }

    /// Waits until the API server is ready.
    pub fn await_api_server(&self) -> Outcome {
        until(Duration::from_secs(60), "the API server", || self.kubectl(&["get", "--raw", "/readyz"]).ok())
    }

    /// Everything that the API server's audit log says so far.
    pub fn audit(&self) -> Outcome<Vec<Value>> {
        let path = self.own()?.join("log/audit.jsonl");
        let text = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        text.lines().filter(|line| line.ends_with('}')).map(parse).collect()
    }
}

fn service_path(namespace: &str, service: &str, path: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/services/{service}/proxy{path}")
}

/// A shell command.
pub fn shell(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    command
}

/// JSON, or what is wrong with it.
pub fn parse(text: &str) -> Outcome<Value> {
    serde_json::from_str(text).map_err(|error| format!("no JSON ({error}): {text}"))
}

/// Runs a program to its end.
pub fn run(mut command: Command, input: &str) -> Outcome<String> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| error.to_string())?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(input.as_bytes()).map_err(|error| error.to_string())?;
    }
    let output = child.wait_with_output().map_err(|error| error.to_string())?;
    if output.status.success() {
        return String::from_utf8(output.stdout).map_err(|error| error.to_string());
    }
    let mut message = String::from_utf8_lossy(&output.stderr).into_owned();
    if !output.stdout.is_empty() {
        let _ = write!(message, " ({})", String::from_utf8_lossy(&output.stdout));
    }
    Err(message)
}

/// Asks again and again until there is an answer. Only for what cannot be watched, such as a port that opens.
pub fn until<T>(limit: Duration, what: &str, ask: impl Fn() -> Option<T>) -> Outcome {
    until_some(limit, what, ask).map(drop)
}

/// The same, with the answer.
pub fn until_some<T>(limit: Duration, what: &str, ask: impl Fn() -> Option<T>) -> Outcome<T> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(answer) = ask() {
            return Ok(answer);
        }
        if Instant::now() >= deadline {
            return Err(format!("{what}: not within {limit:?}"));
        }
        std::thread::park_timeout(Duration::from_millis(50));
    }
}

/// Ends a child process when it is dropped.
#[derive(Debug)]
pub struct Reaper(pub Child);

impl Drop for Reaper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Objects as a `kubectl get --watch` prints them.
struct Watch {
    objects: mpsc::Receiver<Value>,
    _child: Reaper,
}

impl Watch {
    fn start(mut command: Command) -> Outcome<Self> {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().map_err(|error| format!("kubectl: {error}"))?;
        let output = child.stdout.take().ok_or("no standard output")?;
        let (sender, objects) = mpsc::channel();
        std::thread::spawn(move || {
            let documents = serde_json::Deserializer::from_reader(output).into_iter::<Value>();
            for object in documents.map_while(Result::ok) {
                if sender.send(object).is_err() {
                    break;
                }
            }
        });
        Ok(Self { objects, _child: Reaper(child) })
    }

    /// The next object, or nothing when the deadline has passed or the watch has ended.
    fn next(&self, deadline: Instant) -> Option<Value> {
        self.objects.recv_timeout(deadline.saturating_duration_since(Instant::now())).ok()
    }
}
