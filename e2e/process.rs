//! Processes inside pods of the throw-away cluster: they are visible from the suite, which runs in the same process namespace as the node.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use super::cluster::{Outcome, run, shell, until_some};

/// A process of a pod.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Process(u32);

impl Process {
    /// The `omniroute ROLE` process whose pod has this name, as its environment (`OMNIROUTE_POD_NAME`) says.
    pub fn of_pod(role: &str, pod: &str) -> Option<Self> {
        let wanted = format!("POD_NAME={pod}");
        processes().find(|process| {
            let command = process.read("cmdline");
            let mut words = command.split('\0');
            words.next().is_some_and(|program| program.ends_with("omniroute"))
                && words.next() == Some(role)
                && process.read("environ").split('\0').any(|variable| variable.ends_with(&wanted))
        })
    }

    /// The process that holds the pod's namespaces open.
    pub fn sandbox(self) -> Option<Self> {
        let network = self.network();
        processes().find(|process| process.read("cmdline").starts_with("/bin/pause") && process.network() == network)
    }

    /// Sends a signal: `TERM`, `KILL`, `STOP`, `CONT`.
    pub fn signal(self, name: &str) -> Outcome {
        run(shell(&format!("kill -{name} {}", self.0)), "").map(drop)
    }

    /// The address of the pod, read inside its network namespace: nobody else knows it while the API server is down.
    pub fn address(self) -> Outcome<String> {
        let script = format!("nsenter -t {} -n ip -4 -o address show dev eth0", self.0);
        let text = run(shell(&script), "")?;
        let address = text.split_whitespace().nth(3).and_then(|address| address.split('/').next());
        address.map(str::to_owned).ok_or_else(|| format!("no address in {text:?}"))
    }

    fn read(self, file: &str) -> String {
        let bytes = fs::read(format!("/proc/{}/{file}", self.0)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn network(self) -> Option<std::path::PathBuf> {
        fs::read_link(format!("/proc/{}/ns/net", self.0)).ok()
    }
}

fn processes() -> impl Iterator<Item = Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok().map(Process))
}

/// Waits for the process of a role in a pod that is not `old`.
pub fn await_process(role: &str, pod: &str, old: Option<Process>, limit: Duration) -> Outcome<Process> {
    until_some(limit, &format!("{role} in {pod}"), || Process::of_pod(role, pod).filter(|new| Some(*new) != old))
}

/// Status and body of a GET over a connection of its own, straight to a pod or a Service.
pub fn http_get(address: &str, path: &str, key: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    write!(stream, "GET {path} HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {key}\r\nconnection: close\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let status = answer.split_whitespace().nth(1)?.parse().ok()?;
    Some((status, answer.split_once("\r\n\r\n")?.1.to_owned()))
}
