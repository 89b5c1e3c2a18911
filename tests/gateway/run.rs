//! `omniroute run` as people start it: files in, changes live within a second, state over restarts, a decent end.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::eventually::eventually;
use crate::support::{Got, Reply, Vendor, call, request};
use crate::token_endpoint::{AUTHORITY, TokenEndpoint};
use bytes::Bytes;
use http_body_util::Full;
use omniroute::api::time::EpochMs;
use omniroute::gateway::store::{Document, Sqlite, Store as _};
use omniroute::resilience::Checkpoint;
use serde_json::json;

/// A running process; killed when the test is over.
pub struct Run {
    pub child: Child,
    listen: SocketAddr,
    management: SocketAddr,
    key: String,
}

impl Run {
    fn start(dir: &Path, more: &[&str]) -> Self {
        Self::start_with(dir, more, |command| command.stderr(Stdio::null()))
    }

    /// The same with an environment or a log of its own.
    pub fn start_with(dir: &Path, more: &[&str], change: impl FnOnce(&mut Command) -> &mut Command) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_omniroute"));
        command
            .args(["run", "--listen", "127.0.0.1:0", "--management", "127.0.0.1:0", "--threads", "1", "-f"])
            .arg(dir.join("manifests"))
            .args(more)
            .stdout(Stdio::piped());
        let mut child = change(&mut command).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let first = lines.next().unwrap().unwrap();
        let mut addresses = first.split("http://").skip(1).map(|rest| {
            let end = rest.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == ':')).unwrap_or(rest.len());
            rest[..end].parse().unwrap()
        });
        let (listen, management) = (addresses.next().unwrap(), addresses.next().unwrap());
        let second = lines.next().unwrap().unwrap();
        let key = second.split_whitespace().nth(2).unwrap().to_owned();
        Self { child, listen, management, key }
    }

    pub async fn chat(&self, model: &str) -> Got {
        let body = format!(r#"{{"model":"{model}","messages":[{{"role":"user","content":"hi"}}]}}"#);
        call(self.listen, request("POST", "/v1/chat/completions", "client-key").body(Full::new(Bytes::from(body))).unwrap()).await
    }

    async fn state(&self) -> serde_json::Value {
        call(self.management, request("GET", "/state", &self.key).body(Full::default()).unwrap()).await.json()
    }

    /// Asks until the condition holds; answers how long that took.
    async fn until(&self, what: &str, condition: impl AsyncFn(&Self) -> bool) -> Duration {
        eventually(what, Duration::from_secs(20), async || condition(self).await).await
    }

    pub fn signal(&self, name: &str) {
        let status = Command::new("kill").arg(format!("-{name}")).arg(self.child.id().to_string()).status().unwrap();
        assert!(status.success());
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new(vendor: &Vendor) -> Self {
        let dir = std::env::temp_dir().join(format!("omniroute-run-{}", rand::random::<u64>()));
        std::fs::create_dir_all(dir.join("manifests/nested")).unwrap();
        let folder = Self(dir);
        folder.write("nested/secrets.json", r#"{"apiVersion":"v1","kind":"Secret","metadata":{"name":"client","labels":{"omniroute.dev/api-key":"true"}},"stringData":{"key":"client-key"}}"#);
        folder.write(
            "provider.yaml",
            &format!(
                "
apiVersion: omniroute.dev/v1alpha1
kind: Provider
metadata: {{name: fake}}
spec: {{baseURL: \"{}\", allowInsecureHTTP: true, dialects: [ChatCompletions], models: [{{name: m1}}, {{name: m2}}]}}
",
                vendor.base_url()
            ),
        );
        folder.write(
            "accounts.yaml",
            "
apiVersion: v1
kind: Secret
metadata: {name: keys}
stringData: {a: a, b: b}
---
apiVersion: omniroute.dev/v1alpha1
kind: Connection
metadata: {name: a}
spec: {providerRef: {name: fake}, priority: 1, credentials: {apiKey: {secretRef: {name: keys, key: a}}}}
---
apiVersion: omniroute.dev/v1alpha1
kind: Connection
metadata: {name: b}
spec: {providerRef: {name: fake}, priority: 2, credentials: {apiKey: {secretRef: {name: keys, key: b}}}}
",
        );
        folder.combo("m1");
        folder
    }

    fn combo(&self, model: &str) {
        self.write(
            "combo.yaml",
            &format!(
                "
apiVersion: omniroute.dev/v1alpha1
kind: Combo
metadata: {{name: assistant}}
spec: {{strategy: Priority, targets: [{{provider: fake, model: {model}}}]}}
"
            ),
        );
    }

    /// Replaces a file by rename.
    fn write(&self, name: &str, text: &str) {
        let (target, temporary) = (self.0.join("manifests").join(name), self.0.join("temporary"));
        std::fs::write(&temporary, text).unwrap();
        std::fs::rename(temporary, target).unwrap();
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[tokio::test]
async fn files_are_served_and_their_changes_taken_over() {
    let vendor = Vendor::start().await;
    let folder = Folder::new(&vendor);
    let run = Run::start(&folder.0, &[]);
    assert_eq!(run.chat("assistant").await.content(), "a");
    assert_eq!(vendor.seen().last().unwrap().json()["model"], "m1");

    folder.combo("m2");
    run.until("the changed combo", async |run: &Run| {
        run.chat("assistant").await;
        vendor.seen().last().unwrap().json()["model"] == "m2"
    })
    .await;

    folder.write("combo.yaml", "kind: Combo\n  broken: [");
    run.until("the finding", async |run: &Run| run.state().await["findings"].as_array().is_some_and(|list| !list.is_empty())).await;
    assert_eq!(run.chat("assistant").await.content(), "a", "the last good version stays");

    folder.write(
        "extra.yaml",
        "
apiVersion: omniroute.dev/v1alpha1
kind: Combo
metadata: {name: second}
spec: {strategy: Priority, targets: [{provider: fake, model: m1}]}
",
    );
    run.until("one bad file does not stop the others", async |run: &Run| run.chat("second").await.status == 200).await;
    folder.combo("m1");
    run.until("the mended combo", async |run: &Run| run.state().await["findings"].as_array().is_some_and(Vec::is_empty)).await;
    std::fs::remove_file(folder.0.join("manifests/extra.yaml")).unwrap();
    run.until("the removed combo", async |run: &Run| run.chat("second").await.status == 404).await;
}

/// Waits until the file holds the deadline that the first connection has now.
async fn saved(run: &Run, file: &std::path::Path) {
    let until = run.state().await["connections"][0]["until"].clone();
    let holds = async || {
        let Some(json) = Sqlite::open(file).unwrap().load(Document::Ledger).unwrap() else { return false };
        let kept = Checkpoint::from_json(&json).unwrap().connections.remove("a").unwrap_or_default().into_values();
        kept.filter_map(|memory| memory.cooldown).any(|cooldown| json!(EpochMs(cooldown.until_ms)) == until)
    };
    eventually("the state is saved", Duration::from_secs(20), holds).await;
}

#[tokio::test]
async fn state_survives_a_kill_and_a_command_acts_once() {
    let vendor = Vendor::start().await;
    let folder = Folder::new(&vendor);
    vendor.script("a", [Reply::error(429, "slow").header("retry-after", 120)]);
    let file = folder.0.join("state.db");
    let more = ["--state-file", file.to_str().unwrap()];
    let run = Run::start(&folder.0, &more);
    assert_eq!(run.chat("assistant").await.content(), "b");
    saved(&run, &file).await;
    run.signal("KILL");
    drop(run);
    let run = Run::start(&folder.0, &more);
    assert_eq!(run.state().await["connections"][0]["state"], "Cooling");
    assert_eq!(run.chat("assistant").await.content(), "b");
    assert_eq!(vendor.calls(), ["a", "b", "b"]);

    let text = std::fs::read_to_string(folder.0.join("manifests/accounts.yaml")).unwrap();
    folder.write(
        "accounts.yaml",
        &text.replace("metadata: {name: a}", "metadata: {name: a, annotations: {omniroute.dev/clear-cooldown: now}}"),
    );
    run.until("the command", async |run: &Run| run.state().await["connections"][0]["state"] == "Active").await;
    assert_eq!(run.chat("assistant").await.content(), "b", "it is limited still");
    saved(&run, &file).await;
    run.signal("KILL");
    drop(run);
    let run = Run::start(&folder.0, &more);
    assert_eq!(run.state().await["connections"][0]["state"], "Cooling", "an old command does not act again");
}

#[tokio::test]
async fn sigterm_ends_the_process_in_time() {
    let vendor = Vendor::start().await;
    let folder = Folder::new(&vendor);
    vendor.script("a", [Reply::chat("a").after(700)]);
    let mut run = Run::start(&folder.0, &[]);
    let (got, ()) = tokio::join!(run.chat("assistant"), async {
        vendor.called(1).await;
        run.signal("TERM");
    });
    assert_eq!(got.content(), "a", "running requests finish");
    eventually("the end", Duration::from_secs(10), async || run.child.try_wait().unwrap().is_some()).await;
    assert!(run.child.wait().unwrap().success());
}

#[tokio::test]
async fn oauth_tokens_are_refreshed_and_survive_in_the_state_file() {
    let vendor = Vendor::start().await;
    let endpoint = TokenEndpoint::start("rt-0", 3_600).await;
    let folder = Folder::new(&vendor);
    let provider = std::fs::read_to_string(folder.0.join("manifests/provider.yaml")).unwrap();
    let tls = "authClass: OAuth, tls: {caBundle: {configMapRef: {name: ca, key: ca.crt}}}, dialects";
    folder.write("provider.yaml", &provider.replace("dialects", tls));
    let authority = serde_json::json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "ca"}, "data": {"ca.crt": AUTHORITY}});
    folder.write("ca.json", &authority.to_string());
    // Within five minutes of its end.
    let account = |access: &str, refresh: &str| {
        format!(
            "
apiVersion: v1
kind: Secret
metadata: {{name: claude}}
stringData: {{accessToken: {access}, refreshToken: {refresh}, expiresAt: \"{}\"}}
---
apiVersion: omniroute.dev/v1alpha1
kind: Connection
metadata: {{name: claude}}
spec: {{providerRef: {{name: fake}}, credentials: {{oauth: {{secretRef: {{name: claude}}, tokenURL: \"{}\", clientID: app}}}}}}
",
            std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() + 120,
            endpoint.url()
        )
    };
    folder.write("accounts.yaml", &account("at-0", "rt-0"));
    let file = folder.0.join("state.db");
    let more = ["--state-file", file.to_str().unwrap()];
    let run = Run::start(&folder.0, &more);
    let serves = async |run: &Run, token: &str| {
        run.until(token, async |run: &Run| run.chat("assistant").await.status == 200 && vendor.calls().last().unwrap() == token).await;
    };
    serves(&run, "at-1").await;
    run.signal("KILL");
    drop(run);
    let run = Run::start(&folder.0, &more);
    assert_eq!(run.chat("assistant").await.status, 200);
    assert_eq!((vendor.calls().last().unwrap().as_str(), endpoint.seen().len()), ("at-1", 1), "kept, and not asked for again");
    // The owner's new tokens count at once, and are refreshed in turn.
    endpoint.accept("rt-new");
    folder.write("accounts.yaml", &account("at-new", "rt-new"));
    serves(&run, "at-2").await;
    // An endpoint that refuses takes the connection out until its owner acts.
    folder.write("accounts.yaml", &account("at-dead", "rt-dead"));
    run.until("expired", async |run: &Run| run.state().await["connections"][0]["state"] == "Expired").await;
    let answer = run.chat("assistant").await;
    assert_eq!((answer.status, answer.code().as_str()), (503, "ALL_ACCOUNTS_INACTIVE"));
    endpoint.accept("rt-good");
    folder.write("accounts.yaml", &account("at-good", "rt-good"));
    serves(&run, "at-3").await;
    assert_eq!(run.state().await["connections"][0]["state"], "Active");
}

/// A path that is not there is wrong use, whichever command is given it.
#[test]
fn what_cannot_be_read_is_named() {
    for command in [&["run"][..], &["validate"], &["plan", "--combo", "c"], &["explain", "--provider", "p", "--status", "429"]] {
        let output = Command::new(env!("CARGO_BIN_EXE_omniroute")).args(command).args(["-f", "/nowhere/at-all"]).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), text.contains("/nowhere/at-all")), (Some(2), true), "{command:?}: {text}");
    }
}

#[test]
fn a_namespace_that_must_be_chosen_is_asked_for() {
    let provider = |namespace: &str| {
        format!(
            "apiVersion: omniroute.dev/v1alpha1\nkind: Provider\nmetadata: {{name: p, namespace: {namespace}}}\nspec: {{preset: openai}}\n"
        )
    };
    let file = std::env::temp_dir().join(format!("omniroute-namespaces-{}.yaml", rand::random::<u64>()));
    std::fs::write(&file, format!("{}---\n{}", provider("one"), provider("two"))).unwrap();
    for command in [&["run"][..], &["plan", "--combo", "c"]] {
        let output = Command::new(env!("CARGO_BIN_EXE_omniroute")).args(command).arg("-f").arg(&file).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), text.contains("--namespace")), (Some(2), true), "{command:?}: {text}");
    }
    std::fs::remove_file(file).unwrap();
}
