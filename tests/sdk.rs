//! The official SDKs of OpenAI and Anthropic, for Python and JavaScript, against `omniroute run` and a fake upstream.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

#[path = "support/tools.rs"]
mod tools;

use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use omniroute::cli::fake::{Answer, FakeUpstream, FaultKind, Match, Reply, Rule, Script, ToolCall};
use serde_json::json;

const KEY: &str = "sdk-client-key";
/// Statuses that the suites ask for.
const STATUSES: [u16; 11] = [400, 401, 403, 404, 409, 413, 422, 429, 500, 503, 529];

/// What the fake upstream does for each model; its credential is the model's name.
fn script() -> Script {
    let on = |name: &str, answer: Answer| Rule::new(name, Match::key(&format!("sk-{name}")), answer);
    let tool = ToolCall { name: "weather".into(), arguments: json!({"city": "Paris"}) };
    let mut rules: Vec<Rule> = STATUSES.iter().map(|s| on(&format!("status-{s}"), Answer::status(*s))).collect();
    rules.push(on("tools", Answer { reply: Some(Reply { tool_call: Some(tool), ..Reply::default() }), ..Answer::default() }));
    rules.push(on(
        "thinks",
        Answer { reply: Some(Reply { reasoning: Some("Let me see.".into()), ..Reply::default() }), ..Answer::default() },
    ));
    rules.push(on("cut", Answer::fault(FaultKind::Cut, 6)));
    rules.push(on("fails", Answer::fault(FaultKind::ErrorFrame, 6)));
    rules.push(on("slow", Answer::default().interval(Duration::from_millis(100))));
    rules.push(on("long-wait", Answer::status(429).header("retry-after", "120")));
    Script { rules, ..Script::default() }
}

/// One provider, connection and combo for each model, so that a failure of one says nothing about the others.
fn manifests(base_url: &str) -> String {
    let names = ["good", "tools", "thinks", "cut", "fails", "slow", "long-wait", "forbidden"].map(str::to_owned);
    let names: Vec<String> = names.into_iter().chain(STATUSES.iter().map(|s| format!("status-{s}"))).collect();
    let mut out = String::from(
        "apiVersion: omniroute.dev/v1alpha1\nkind: ResilienceSettings\nmetadata: {name: default}\nspec: {comboCooldownWait: {enabled: false}}\n",
    );
    let mut keys = String::new();
    let allowed: Vec<&str> = names.iter().map(String::as_str).filter(|n| *n != "forbidden").collect();
    for name in &names {
        let _ = write!(
            out,
            "---\napiVersion: omniroute.dev/v1alpha1\nkind: Provider\nmetadata: {{name: {name}}}\nspec: {{baseURL: \"{base_url}\", allowInsecureHTTP: true, dialects: [ChatCompletions, Responses, Messages, Embeddings], models: [{{name: m}}]}}\n\
             ---\napiVersion: omniroute.dev/v1alpha1\nkind: Connection\nmetadata: {{name: {name}}}\nspec: {{providerRef: {{name: {name}}}, disableCooling: {}, credentials: {{apiKey: {{secretRef: {{name: keys, key: {name}}}}}}}}}\n\
             ---\napiVersion: omniroute.dev/v1alpha1\nkind: Combo\nmetadata: {{name: {name}}}\nspec: {{strategy: Priority, attempts: {{perTarget: 1}}, targets: [{{provider: {name}, model: m}}]}}\n",
            name != "long-wait"
        );
        let _ = write!(keys, "{name}: sk-{name}, ");
    }
    let _ = write!(
        out,
        "---\napiVersion: v1\nkind: Secret\nmetadata: {{name: keys}}\nstringData: {{{keys}}}\n\
         ---\napiVersion: v1\nkind: Secret\nmetadata: {{name: client, labels: {{omniroute.dev/api-key: \"true\"}}, annotations: {{omniroute.dev/allowed-models: \"{}\"}}}}\nstringData: {{key: {KEY}}}\n",
        allowed.join(",")
    );
    out
}

struct Gateway {
    process: Child,
    url: String,
    folder: PathBuf,
    _output: BufReader<ChildStdout>,
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn gateway(base_url: &str, name: &str) -> Gateway {
    let folder = std::env::temp_dir().join(format!("omniroute-sdk-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("sdk.yaml"), manifests(base_url)).unwrap();
    let mut process = Command::new(env!("CARGO_BIN_EXE_omniroute"))
        .args(["run", "--listen", "127.0.0.1:0", "--management", "127.0.0.1:0", "-f"])
        .arg(&folder)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(process.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    let url = line.split_whitespace().find(|w| w.starts_with("http://")).unwrap_or_else(|| panic!("{line}")).to_owned();
    Gateway { process, url, folder, _output: output }
}

/// Runs a suite; its own output says what failed.
async fn suite(name: &str, program: &Path, script: &str) {
    let fake = FakeUpstream::start("127.0.0.1:0", self::script()).await.unwrap();
    let gateway = gateway(&fake.base_url(), name);
    let mut command = Command::new(program);
    command.arg(tools::root().join(script)).current_dir(tools::root().join("tests/sdk"));
    command.env("GATEWAY", &gateway.url).env("CLIENT_KEY", KEY).env_remove("OPENAI_API_KEY").env_remove("ANTHROPIC_API_KEY");
    let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{text}");
    assert!(text.contains("ok   "), "nothing was checked: {text}");
    for seen in fake.requests() {
        assert!(seen.key.starts_with("sk-") && !seen.headers.values().any(|v| v.contains(KEY)), "the client's key reached the provider");
    }
}

/// Skips where packages are missing, except where they are required.
fn missing(what: &str) {
    assert!(std::env::var_os("OMNIROUTE_REQUIRE_TOOLS").is_none(), "{what} is missing");
    eprintln!("skipped: {what} is missing; scripts/test brings it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_python_sdks_work_unmodified() {
    let python = std::env::var_os("OMNIROUTE_PYTHON").map_or_else(|| tools::root().join("target/venv/bin/python"), PathBuf::from);
    let has_sdks = Command::new(&python).args(["-c", "import openai, anthropic"]).stderr(Stdio::null()).status().is_ok_and(|s| s.success());
    if has_sdks {
        suite("python", &python, "tests/sdk/suite.py").await
    } else {
        missing("Python with the packages of tests/sdk/requirements.txt")
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_javascript_sdks_work_unmodified() {
    let has_sdks = tools::root().join("tests/sdk/node_modules/openai/package.json").is_file();
    match tools::find("node").filter(|_| has_sdks) {
        Some(node) => suite("node", &node, "tests/sdk/suite.mjs").await,
        None => missing("Node.js with the packages of tests/sdk/package.json"),
    }
}
