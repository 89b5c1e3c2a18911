//! `omniroute explain`: what a failed attempt means, which row or rule decided, where the wait comes from, and what would rest until when.

mod question;
mod success;
mod world;

use std::io::{BufRead, Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::SystemTime;

pub use question::{Class, Question, Transport};
pub use world::{Answer, AskError, World};

use super::{Output, files};
use crate::api::time::EpochMs;
use crate::compile::Options;

/// Largest body that is read from a file or standard input; the classifier looks at its beginning only.
const MAX_BODY: u64 = 1024 * 1024;

/// Flags.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Batch: `--batch` reads one JSON object a line from standard input (fields provider, connection, model, status, headers, \
                        body, transport, authClass, id) and answers each with one line of JSON.\nExit codes: 0 = answered, 1 = something could \
                        not be answered, 2 = wrong use."
)]
pub struct Args {
    /// Provider: a resource of the manifests given with -f, else a provider id that the built-in catalog may know.
    #[arg(long, env = "OMNIROUTE_PROVIDER", required_unless_present = "batch")]
    provider: Option<String>,
    /// Connection of that provider.
    #[arg(long, env = "OMNIROUTE_CONNECTION")]
    connection: Option<String>,
    /// Model as it was sent upstream.
    #[arg(long, env = "OMNIROUTE_MODEL")]
    model: Option<String>,
    /// HTTP status of the answer.
    #[arg(long, env = "OMNIROUTE_STATUS", required_unless_present_any = ["batch", "transport"])]
    status: Option<u16>,
    /// Response header; may be repeated.
    #[arg(long = "header", env = "OMNIROUTE_HEADER", value_name = "NAME=VALUE", value_parser = header)]
    headers: Vec<(String, String)>,
    /// Body of the answer: a file, or `-` for standard input.
    #[arg(long, env = "OMNIROUTE_BODY", value_name = "FILE|-")]
    body: Option<PathBuf>,
    /// How the transport failed, when there was no answer.
    #[arg(long, env = "OMNIROUTE_TRANSPORT", value_enum, ignore_case = true)]
    transport: Option<Transport>,
    /// Auth class, when no manifest declares it.
    #[arg(long, env = "OMNIROUTE_AUTH_CLASS", value_enum, ignore_case = true, conflicts_with = "filename")]
    auth_class: Option<Class>,
    /// Manifests whose providers, settings and rules count: files, folders; may be repeated.
    #[arg(short, long = "filename", env = "OMNIROUTE_FILENAME", value_name = "FILE|DIR", num_args = 1..)]
    filename: Vec<PathBuf>,
    /// Namespace of the manifests that counts, when they are of several.
    #[arg(short, long, env = "OMNIROUTE_NAMESPACE")]
    namespace: Option<String>,
    /// The present (RFC 3339), for answers that can be repeated; the clock by default.
    #[arg(long, env = "OMNIROUTE_NOW", value_name = "TIME", value_parser = instant)]
    now: Option<EpochMs>,
    /// Read JSON lines of attempts from standard input and answer line by line.
    #[arg(long, env = "OMNIROUTE_BATCH", conflicts_with_all = ["provider", "connection", "model", "status", "headers", "body", "transport", "auth_class"])]
    batch: bool,
    /// How to print the answer.
    #[arg(short, long, env = "OMNIROUTE_OUTPUT", value_enum, default_value_t)]
    output: Output,
}

fn header(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once('=').or_else(|| text.split_once(':'));
    let (name, value) = pair.ok_or_else(|| format!("`{text}` is no header: write it as name=value"))?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}

fn instant(text: &str) -> Result<EpochMs, String> {
    EpochMs::parse(text).ok_or_else(|| format!("`{text}` is no RFC 3339 time: write it like 2026-11-30T12:00:00Z"))
}

/// Runs the command.
#[must_use]
pub fn run(args: Args) -> ExitCode {
    let now = args.now.unwrap_or_else(clock);
    let world = match world(&args, now) {
        Ok(world) => world,
        Err(message) => return fail(&message),
    };
    if args.batch {
        return batch(&world, now, std::io::stdin().lock(), &mut std::io::stdout().lock());
    }
    let body = match body(&args) {
        Ok(body) => body,
        Err(message) => return fail(&message),
    };
    let question = Question {
        provider: args.provider.unwrap_or_default(),
        connection: args.connection,
        model: args.model,
        status: args.status.unwrap_or(0),
        headers: args.headers.into_iter().collect(),
        body: serde_json::Value::String(body),
        transport: args.transport,
        auth_class: args.auth_class,
        id: None,
    };
    match world.ask(&question, now) {
        Err(error) => fail(&error.to_string()),
        Ok(answer) => {
            let text = match args.output {
                Output::Text => answer.text(),
                Output::Json => json_line(&answer),
            };
            print(&mut std::io::stdout().lock(), &text)
        }
    }
}

fn fail(message: &str) -> ExitCode {
    eprintln!("error: {message}");
    ExitCode::from(2)
}

fn clock() -> EpochMs {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    EpochMs(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

fn world(args: &Args, now: EpochMs) -> Result<World, String> {
    if args.filename.is_empty() {
        return Ok(World::default());
    }
    let (sources, failures) = files::read_some(&args.filename);
    if let Some(failure) = failures.first() {
        return Err(failure.to_string());
    }
    let options = Options { environment: std::env::vars().collect(), now, ..Options::default() };
    let (world, problems) = World::of_manifests(&sources, args.namespace.as_deref(), &options);
    if problems > 0 {
        eprintln!("warning: the manifests have {problems} findings, which may concern the answer: `omniroute validate` shows them");
    }
    Ok(world)
}

fn body(args: &Args) -> Result<String, String> {
    let Some(path) = &args.body else { return Ok(String::new()) };
    let mut bytes = Vec::new();
    let read = if path.as_os_str() == "-" {
        std::io::stdin().lock().take(MAX_BODY).read_to_end(&mut bytes)
    } else {
        std::fs::File::open(path).and_then(|file| file.take(MAX_BODY).read_to_end(&mut bytes))
    };
    read.map_err(|e| format!("reading the body from {}: {e}", path.display()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Answers line by line; a line that cannot be answered gives `{"error": …}` and exit code 1.
fn batch(world: &World, now: EpochMs, input: impl BufRead, out: &mut impl Write) -> ExitCode {
    let mut out = std::io::BufWriter::new(out);
    let mut code = ExitCode::SUCCESS;
    for line in input.lines() {
        let line = match line {
            Ok(line) => line,
            Err(e) => return fail(&format!("reading standard input: {e}")),
        };
        if line.trim().is_empty() {
            continue;
        }
        let answer = serde_json::from_str::<Question>(&line)
            .map_err(|e| format!("no JSON object of an attempt: {e}"))
            .and_then(|question| world.ask(&question, now).map_err(|e| e.to_string()));
        let text = match answer {
            Ok(answer) => json_line(&answer),
            Err(message) => {
                code = ExitCode::FAILURE;
                json_line(&serde_json::json!({ "error": message }))
            }
        };
        if let Err(e) = out.write_all(text.as_bytes()) {
            return fail(&format!("writing the answer: {e}"));
        }
    }
    match out.flush() {
        Ok(()) => code,
        Err(e) => fail(&format!("writing the answer: {e}")),
    }
}

fn json_line(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default() + "\n"
}

fn print(out: &mut impl Write, text: &str) -> ExitCode {
    match out.write_all(text.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => fail(&format!("writing the answer: {e}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: EpochMs = EpochMs(1_700_000_000_000);

    fn ask(world: &World, line: &str) -> serde_json::Value {
        let mut out = Vec::new();
        batch(world, NOW, line.as_bytes(), &mut out);
        serde_json::from_slice(&out).unwrap()
    }

    #[test]
    fn an_answer_has_the_stable_names() {
        let got = ask(
            &World::default(),
            r#"{"id": 7, "provider": "openai", "model": "gpt-4o", "status": 429, "headers": {"retry-after": "30"}, "body": "slow"}"#,
        );
        assert_eq!(got["id"], 7);
        let verdict = &got["verdict"];
        assert_eq!(verdict["reason"], "RateLimitExceeded");
        assert_eq!(verdict["errorType"], "rate_limited");
        assert_eq!(verdict["scope"], "Connection");
        assert_eq!(verdict["cooldownMs"], 30_000);
        assert_eq!(verdict["failover"], "OtherConnection");
        assert_eq!(verdict["hintSource"], "header");
        assert_eq!(verdict["decidedBy"], "status.429");
        for key in ["terminal", "restatedStatus"] {
            assert_eq!(verdict.get(key), Some(&serde_json::Value::Null), "{key}");
        }
        assert_eq!(verdict["skipBreaker"], false);
        assert_eq!(got["effects"][0]["effect"], "cooldownStarted");
        assert_eq!(got["effects"][0]["until"], "2023-11-14T22:13:50Z");
    }

    #[test]
    fn a_success_is_explained_as_the_gateway_takes_it() {
        let answer = r#"{\"choices\":[{\"message\":{\"content\":\"hi\"},\"finish_reason\":\"stop\"}]}"#;
        let empty = r#"{\"choices\":[{\"message\":{\"content\":\"\"},\"finish_reason\":\"stop\"}]}"#;
        let table = [
            ("", "transport.quality", "its body is empty"),
            (empty, "transport.quality", "the answer has no content"),
            (r#"{\"ok\":true}"#, "transport.quality", "the answer has no `choices`"),
            ("no json", "transport.quality", "not valid JSON"),
            (r#"{\"error\":{\"code\":429}}"#, "status.429", "is an error"),
            (r#"data: {\"error\":{\"code\":401}}\n\n"#, "auth.unauthorized", "before its first content"),
            (r#"data: {\"choices\":[{\"delta\":{\"role\":\"assistant\"}}]}\n\n"#, "transport.stream-interrupted", "ends before it"),
            (r#"data: {\"choices\":[{\"delta\":{}}]}\n\ndata: [DONE]\n\n"#, "transport.quality", "has no content"),
        ];
        for (body, decided_by, words) in table {
            let got = ask(&World::default(), &format!(r#"{{"provider": "acme", "model": "m", "status": 200, "body": "{body}"}}"#));
            assert_eq!(got["verdict"]["decidedBy"], decided_by, "{body}: {got}");
            assert!(got["note"].as_str().unwrap().contains(words), "{body}: {got}");
        }
        let got = ask(&World::default(), &format!(r#"{{"provider": "acme", "status": 200, "body": "{answer}"}}"#));
        assert_eq!((&got["verdict"], &got["effects"]), (&serde_json::Value::Null, &serde_json::json!([])), "{got}");
        assert!(got["note"].as_str().unwrap().contains("is an answer of /v1/chat/completions"), "{got}");
        let stream = r#"data: {\"choices\":[{\"delta\":{\"content\":\"hi\"}}]}\n\n"#;
        let got = ask(&World::default(), &format!(r#"{{"provider": "acme", "status": 200, "body": "{stream}"}}"#));
        assert_eq!((&got["verdict"], &got["effects"]), (&serde_json::Value::Null, &serde_json::json!([])), "{got}");
        let question = Question { provider: "acme".to_owned(), status: 200, ..Question::default() };
        let text = World::default().ask(&question, NOW).unwrap().text();
        assert!(text.starts_with("A 200 is checked") && text.contains("\nreason      ServerError\n"), "{text}");
        let failure = ask(&World::default(), r#"{"provider": "acme", "status": 503}"#);
        assert_eq!(failure.get("note"), None);
    }

    #[test]
    fn null_is_absent() {
        let got = ask(&World::default(), r#"{"provider": null, "headers": null, "model": null, "status": 429, "body": null}"#);
        assert_eq!(got["verdict"]["decidedBy"], "status.429");
    }

    #[test]
    fn near_misses_say_why() {
        let got = ask(&World::default(), r#"{"provider": "groq", "status": 429, "body": "over capacity"}"#);
        let misses = got["nearMisses"].as_array().unwrap();
        let capacity = misses.iter().find(|m| m["id"] == "text.capacity").unwrap();
        assert!(capacity["why"].as_str().unwrap().contains("explicit quota phrase"), "{capacity}");
    }

    #[test]
    fn manifests_bring_rules_and_connections() {
        let text = r#"
apiVersion: omniroute.dev/v1alpha1
kind: Provider
metadata: {name: acme}
spec: {baseURL: "https://acme.example/v1", authClass: Local, dialects: [ChatCompletions], models: [{name: m}]}
---
apiVersion: omniroute.dev/v1alpha1
kind: Connection
metadata: {name: acme-1}
spec: {providerRef: {name: acme}, credentials: {none: {}}}
---
apiVersion: omniroute.dev/v1alpha1
kind: OperatorErrorRule
metadata: {name: cap}
spec:
  providerRef: {name: acme}
  match: {statuses: [429], text: daily cap hit}
  verdict: {reason: QuotaExhausted, scope: Connection, cooldown: 30m}
---
apiVersion: omniroute.dev/v1alpha1
kind: ResilienceSettings
metadata: {name: gateway}
spec: {}
"#;
        let source = crate::manifest::Source { name: "test".to_owned(), text: text.to_owned() };
        let (world, problems) = World::of_manifests(&[source], None, &Options { now: NOW, ..Options::default() });
        assert_eq!(problems, 0);
        let got = ask(&world, r#"{"provider": "acme", "connection": "acme-1", "status": 429, "body": "Daily CAP hit"}"#);
        assert_eq!(got["verdict"]["decidedBy"], "rule.cap");
        assert_eq!(got["effects"][0]["connection"], "acme-1");
        assert_eq!(got["effects"][0]["until"], "2023-11-14T22:43:20Z");
        let wrong = ask(&world, r#"{"provider": "acne", "status": 429}"#);
        assert!(wrong["error"].as_str().unwrap().contains("did you mean `acme`?"), "{wrong}");
        let wrong = ask(&world, r#"{"provider": "acme", "status": 42}"#);
        assert!(wrong["error"].as_str().unwrap().contains("status: `42`"), "{wrong}");
    }
}
