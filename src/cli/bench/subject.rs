//! The proxies under measurement: processes of their own, so that their cost can be told apart.

use std::fs;
use std::io::{BufRead, BufReader, Write as _};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use super::BenchError;

/// The client's key in the manifests of the gateway under measurement.
pub(super) const CLIENT_KEY: &str = "bench-client-key";
/// What a part prints before its address.
const AT: &str = "listening on ";
const NGINX_CONFIG: &str = "nginx.conf";
/// Clock ticks per second of /proc: fixed at 100 for user space on Linux.
const TICKS: f64 = 100.0;

/// A running process of the bench; it ends with this value.
#[derive(Debug)]
pub(super) struct Child {
    process: std::process::Child,
    pub address: SocketAddr,
    /// From the start of the process until it listened.
    pub started_in: Duration,
    folder: Option<PathBuf>,
    /// Kept open, because a process that prints into a closed pipe dies.
    _output: Option<BufReader<ChildStdout>>,
}

impl Drop for Child {
    fn drop(&mut self) {
        // Each of them may have ended by itself. Only the master of nginx can end its workers.
        let config = self.folder.as_ref().map(|f| f.join(NGINX_CONFIG)).filter(|f| f.is_file());
        let stopped = config.is_some_and(|file| {
            let mut stop = Command::new("nginx");
            stop.args(["-s", "stop", "-c"]).arg(file).stdout(Stdio::null()).stderr(Stdio::null());
            stop.status().is_ok_and(|s| s.success())
        });
        if !stopped {
            let _ = self.process.kill();
        }
        let _ = self.process.wait();
        if let Some(folder) = &self.folder {
            let _ = fs::remove_dir_all(folder);
        }
    }
}

/// A proxy with its name in the table.
#[derive(Debug)]
pub(super) struct Subject {
    pub name: &'static str,
    pub child: Child,
}

/// Tells the parent where this part listens.
pub(super) fn announce(address: SocketAddr) {
    println!("{AT}{address}");
    let _ = std::io::stdout().flush();
}

fn failed(what: &str, why: impl ToString) -> BenchError {
    BenchError::Start { what: what.to_owned(), why: why.to_string() }
}

impl Child {
    /// Starts this binary with other arguments and waits for its address.
    pub fn start(what: &str, args: &[&str]) -> Result<Self, BenchError> {
        let program = std::env::current_exe().map_err(|e| failed(what, e))?;
        let began = Instant::now();
        let mut command = Command::new(program);
        command.args(args).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = command.spawn().map_err(|e| failed(what, e))?;
        let stdout = process.stdout.take().ok_or_else(|| failed(what, "it has no output"))?;
        let mut child =
            Self { process, address: SocketAddr::from(([127, 0, 0, 1], 0)), started_in: Duration::ZERO, folder: None, _output: None };
        let mut output = BufReader::new(stdout);
        let mut line = String::new();
        while output.read_line(&mut line).map_err(|e| failed(what, e))? > 0 {
            let text = line.strip_prefix(AT).or_else(|| line.split_once("http://").map(|(_, rest)| rest));
            if let Some(address) = text.and_then(|t| t.split_whitespace().next()).and_then(|t| t.parse().ok()) {
                (child.address, child.started_in) = (address, began.elapsed());
                child._output = Some(output);
                return Ok(child);
            }
            line.clear();
        }
        Err(failed(what, "it ended without saying where it listens"))
    }

    /// The process and its children (nginx has workers).
    pub fn processes(&self) -> Vec<u32> {
        let parent = self.process.id();
        let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap_or_default();
        std::iter::once(parent).chain(children.split_whitespace().filter_map(|c| c.parse().ok())).collect()
    }
}

pub(super) fn bare(upstream: SocketAddr) -> Result<Subject, BenchError> {
    let child = Child::start("the bare proxy", &["bench", "--part", "proxy", "--upstream", &upstream.to_string()])?;
    Ok(Subject { name: "hyper", child })
}

/// The gateway as users run it, with authentication, ledger, metrics and classification on.
pub(super) fn gateway(upstream: SocketAddr) -> Result<Subject, BenchError> {
    let folder = folder("gateway")?;
    let manifests = format!(
        "apiVersion: omniroute.dev/v1alpha1\nkind: ResilienceSettings\nmetadata: {{name: default}}\nspec: {{}}\n---\n\
         apiVersion: omniroute.dev/v1alpha1\nkind: Provider\nmetadata: {{name: upstream}}\nspec:\n  baseURL: http://{upstream}/v1\n  allowInsecureHTTP: true\n  dialects: [ChatCompletions]\n  models: [{{name: m}}]\n---\n\
         apiVersion: omniroute.dev/v1alpha1\nkind: Connection\nmetadata: {{name: one}}\nspec:\n  providerRef: {{name: upstream}}\n  rateLimitProtection: Disabled\n  credentials: {{apiKey: {{secretRef: {{name: keys, key: one}}}}}}\n---\n\
         apiVersion: omniroute.dev/v1alpha1\nkind: Combo\nmetadata: {{name: assistant}}\nspec:\n  strategy: Priority\n  targets: [{{provider: upstream, model: m}}]\n---\n\
         apiVersion: v1\nkind: Secret\nmetadata: {{name: keys}}\nstringData: {{one: sk-bench}}\n---\n\
         apiVersion: v1\nkind: Secret\nmetadata:\n  name: client\n  labels: {{omniroute.dev/api-key: \"true\"}}\nstringData: {{key: {CLIENT_KEY}}}\n"
    );
    let file = folder.join("bench.yaml");
    fs::write(&file, manifests).map_err(|e| failed("the gateway", e))?;
    let file = file.display().to_string();
    let mut child = Child::start("the gateway", &["run", "-f", &file, "--listen", "127.0.0.1:0", "--management", "127.0.0.1:0"])?;
    child.folder = Some(folder);
    Ok(Subject { name: "gateway", child })
}

/// nginx as a reverse proxy with connections kept alive, where it is installed.
pub(super) fn nginx(upstream: SocketAddr) -> Result<Option<Subject>, BenchError> {
    if Command::new("nginx").arg("-v").stdout(Stdio::null()).stderr(Stdio::null()).status().is_err() {
        return Ok(None);
    }
    let folder = folder("nginx")?;
    let free = std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).map_err(|e| failed("nginx", e))?;
    let at = folder.display();
    let config = format!(
        "worker_processes auto; daemon off; pid {at}/pid; error_log {at}/error.log crit; worker_rlimit_nofile 16384;\n\
         events {{ worker_connections 8192; }}\n\
         http {{ access_log off; client_body_temp_path {at}/b; proxy_temp_path {at}/p; fastcgi_temp_path {at}/f; uwsgi_temp_path {at}/u; scgi_temp_path {at}/s;\n\
         keepalive_requests 1000000000; tcp_nodelay on;\n\
         upstream u {{ server {upstream}; keepalive 256; keepalive_requests 1000000000; }}\n\
         server {{ listen {free} reuseport; location / {{ proxy_pass http://u; proxy_http_version 1.1; proxy_set_header Connection \"\"; proxy_buffering off; proxy_read_timeout 600s; }} }} }}\n"
    );
    let file = folder.join(NGINX_CONFIG);
    fs::write(&file, config).map_err(|e| failed("nginx", e))?;
    let began = Instant::now();
    let mut command = Command::new("nginx");
    command.arg("-c").arg(&file).arg("-p").arg(&folder).stdout(Stdio::null()).stderr(Stdio::null());
    let process = command.spawn().map_err(|e| failed("nginx", e))?;
    let mut child = Child { process, address: free, started_in: Duration::ZERO, folder: Some(folder), _output: None };
    while std::net::TcpStream::connect(free).is_err() {
        if began.elapsed() > Duration::from_secs(10) {
            return Err(failed("nginx", "it does not listen after 10 s"));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    child.started_in = began.elapsed();
    Ok(Some(Subject { name: "nginx", child }))
}

fn folder(name: &str) -> Result<PathBuf, BenchError> {
    let folder = std::env::temp_dir().join(format!("omniroute-bench-{name}-{}", std::process::id()));
    fs::create_dir_all(&folder).map_err(|e| failed(name, e))?;
    Ok(folder)
}

impl Subject {
    /// Processor time so far, in seconds.
    pub fn cpu(&self) -> Result<f64, BenchError> {
        let mut ticks = 0.0;
        for id in self.child.processes() {
            let path = format!("/proc/{id}/stat");
            let text = read(&path)?;
            // The name in brackets may hold anything; what follows it is numbers.
            let fields: Vec<&str> = text.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
            ticks += [11, 12].iter().filter_map(|i| fields.get(*i)?.parse::<f64>().ok()).sum::<f64>();
        }
        Ok(ticks / TICKS)
    }

    /// Resident memory, in bytes.
    pub fn memory(&self) -> Result<u64, BenchError> {
        let mut bytes = 0;
        for id in self.child.processes() {
            let text = read(&format!("/proc/{id}/status"))?;
            let line = text.lines().find_map(|l| l.strip_prefix("VmRSS:"));
            bytes += line.and_then(|l| l.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) * 1024;
        }
        Ok(bytes)
    }
}

fn read(path: &str) -> Result<String, BenchError> {
    fs::read_to_string(path).map_err(|e| BenchError::System { what: path.to_owned(), why: e.to_string() })
}

/// The limit of open files of this process.
pub(super) fn open_files() -> Result<usize, BenchError> {
    let text = read("/proc/self/limits")?;
    let line = text.lines().find(|l| l.starts_with("Max open files")).unwrap_or_default();
    Ok(line.split_whitespace().nth(3).and_then(|n| n.parse().ok()).unwrap_or(1024))
}
