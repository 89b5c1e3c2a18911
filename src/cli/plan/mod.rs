//! `omniroute plan`: the ordered targets of a combo, with scores, and the reason for each exclusion. From manifests alone, or with the
//! state of a running gateway.

mod fetch;
mod live;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::ValueEnum;
use serde::Serialize;

use super::{Output, files};
use crate::api::time::{EpochMs, format_duration};
use crate::compile::{Options, Severity, compile};
use crate::manifest::{self, Level};
use crate::resilience::StateReport;
use crate::routing::{Answer, Excluded, Needs, Plan, Planned, Request, Resolved, Router, Seeded, Step, Walk};
use crate::snapshot::{Dialect, Snapshot};
use live::Reported;

/// Flags.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Without --state nobody rests. Exit codes: 0 = something could serve, 1 = nothing could, or the manifests have errors that concern it, 2 = wrong use."
)]
pub struct Args {
    /// The combo, by one of its model names; `PROVIDER/MODEL` works too.
    #[arg(long, env = "OMNIROUTE_COMBO", value_name = "NAME")]
    combo: String,
    /// Files, folders (all YAML and JSON files below them) or `-` for standard input; may be repeated.
    #[arg(short, long = "filename", env = "OMNIROUTE_FILENAME", value_name = "FILE|DIR|-", required = true, num_args = 1..)]
    filename: Vec<PathBuf>,
    /// The namespace, when the manifests have several.
    #[arg(short, long, env = "OMNIROUTE_NAMESPACE")]
    namespace: Option<String>,
    /// The management port of a running gateway (`http://127.0.0.1:9090`): who rests is taken from its `/state`.
    #[arg(long, env = "OMNIROUTE_STATE", value_name = "URL")]
    state: Option<String>,
    /// A key of scope `management` for it.
    #[arg(long, env = "OMNIROUTE_MANAGEMENT_KEY", value_name = "KEY", hide_env_values = true)]
    management_key: Option<String>,
    /// The client's dialect.
    #[arg(long, env = "OMNIROUTE_DIALECT", value_enum, default_value_t)]
    dialect: DialectArg,
    /// The request offers tools.
    #[arg(long)]
    tools: bool,
    /// The request has images.
    #[arg(long)]
    vision: bool,
    /// The request asks for a JSON schema.
    #[arg(long)]
    structured_output: bool,
    /// Estimated input of the request, tokens.
    #[arg(long, value_name = "N", default_value_t = 0)]
    input_tokens: u64,
    /// Longest output that the request asks for, tokens.
    #[arg(long, value_name = "N")]
    output_tokens: Option<u64>,
    /// What cache-optimized combos hash.
    #[arg(long, value_name = "KEY")]
    cache_key: Option<String>,
    /// Seed of random choices: the same seed gives the same plan.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// How to print the plan.
    #[arg(short, long, env = "OMNIROUTE_OUTPUT", value_enum, default_value_t)]
    output: Output,
}

/// Dialects by flag.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
enum DialectArg {
    /// OpenAI chat completions.
    #[default]
    ChatCompletions,
    /// OpenAI responses.
    Responses,
    /// Anthropic messages.
    Messages,
    /// OpenAI embeddings.
    Embeddings,
}

impl From<DialectArg> for Dialect {
    fn from(dialect: DialectArg) -> Self {
        match dialect {
            DialectArg::ChatCompletions => Self::ChatCompletions,
            DialectArg::Responses => Self::Responses,
            DialectArg::Messages => Self::Messages,
            DialectArg::Embeddings => Self::Embeddings,
        }
    }
}

/// What goes wrong before there is a plan.
#[derive(thiserror::Error, Debug)]
enum PlanError {
    #[error("reading the manifests: {0}")]
    Unreadable(#[from] files::Unreadable),
    #[error("choosing the namespace: the manifests have several ({0}); pass --namespace")]
    Namespaces(String),
    #[error("choosing the namespace: nothing in `{0}`")]
    NoNamespace(String),
    #[error("finding `{name}`: {message}{findings}")]
    Unknown { name: String, message: String, findings: String },
    #[error("reading the state of the gateway at {url}: {source}")]
    State { url: String, source: fetch::FetchError },
}

/// What is printed.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Shown {
    /// What was asked for.
    name: String,
    /// Strategy, for combos.
    #[serde(skip_serializing_if = "Option::is_none")]
    strategy: Option<String>,
    /// Where the states come from.
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<String>,
    #[serde(flatten)]
    plan: Plan,
    /// What a client would be answered, when nothing can serve.
    #[serde(skip_serializing_if = "Option::is_none")]
    refusal: Option<Refusal>,
}

/// What a client would be answered.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Refusal {
    status: u16,
    code: String,
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_seconds: Option<u64>,
    /// The gateway would wait this long before, milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    waits_ms: Option<u64>,
}

/// Runs the command.
#[must_use]
pub fn run(args: Args) -> ExitCode {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| i64::try_from(d.as_millis()).unwrap_or(i64::MAX));
    match plan(&args, EpochMs(now)) {
        Ok(shown) => {
            let text = match args.output {
                Output::Json => serde_json::to_string_pretty(&shown).unwrap_or_default() + "\n",
                Output::Text => human(&shown, EpochMs(now)),
            };
            if let Err(error) = std::io::stdout().write_all(text.as_bytes()) {
                eprintln!("error: writing the plan: {error}");
                return ExitCode::FAILURE;
            }
            if shown.plan.targets.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
        }
        Err(error) => {
            eprintln!("error: {error}");
            let wrong_use = matches!(error, PlanError::Unreadable(_) | PlanError::Namespaces(_) | PlanError::NoNamespace(_));
            if wrong_use { ExitCode::from(2) } else { ExitCode::FAILURE }
        }
    }
}

fn plan(args: &Args, now: EpochMs) -> Result<Shown, PlanError> {
    let (snapshot, findings) = read(args, now)?;
    let router = Arc::new(Router::new(Arc::new(snapshot), None));
    let request = Request {
        needs: Needs {
            tools: args.tools,
            vision: args.vision,
            structured_output: args.structured_output,
            input_tokens: args.input_tokens,
            output_tokens: args.output_tokens,
        },
        cache_key: args.cache_key.clone(),
        ..Request::new(args.dialect.into(), now)
    };
    let resolved = router.resolve_for(&args.combo, &request.key).map_err(|answer| {
        let findings = findings.iter().map(|f| format!("\n  {f}")).collect();
        PlanError::Unknown { name: args.combo.clone(), message: answer.message, findings }
    })?;
    let state = match &args.state {
        Some(url) => fetch::state(url, args.management_key.as_deref()).map_err(|source| PlanError::State { url: url.clone(), source })?,
        None => StateReport::default(),
    };
    let live = Reported::new(router.snapshot(), &state);
    let plan = router.plan(&resolved, &request, &live, now, &mut Seeded(args.seed));
    let refusal = if plan.targets.is_empty() { refusal(&router, &resolved, args, request, &live, now) } else { None };
    let strategy = match resolved {
        Resolved::Combo(index) => router.snapshot().combos.get(index).map(|c| format!("{:?}", c.strategy)),
        _ => None,
    };
    Ok(Shown { name: args.combo.clone(), strategy, state: args.state.clone(), plan, refusal })
}

/// The snapshot of the namespace, and the errors that the manifests have.
fn read(args: &Args, now: EpochMs) -> Result<(Snapshot, Vec<String>), PlanError> {
    let (sources, failures) = files::read_some(&args.filename);
    if let Some(failure) = failures.into_iter().next() {
        return Err(failure.into());
    }
    let parsed = manifest::parse(&sources);
    let mut errors: Vec<String> = parsed.problems.iter().filter(|p| p.level == Level::Error).map(ToString::to_string).collect();
    let mut namespaces = parsed.resources.by_namespace();
    let resources = match &args.namespace {
        Some(wanted) => namespaces.remove(&Some(wanted.clone())).ok_or_else(|| PlanError::NoNamespace(wanted.clone()))?,
        None if namespaces.len() > 1 => {
            let names: Vec<&str> = namespaces.keys().map(|n| n.as_deref().unwrap_or("none")).collect();
            return Err(PlanError::Namespaces(names.join(", ")));
        }
        None => namespaces.into_values().next().unwrap_or_default(),
    };
    let options = Options { environment: std::env::vars().collect(), now, ..Options::default() };
    let compiled = compile(&resources, &options);
    let serious = compiled.findings.iter().filter(|f| f.severity != Severity::Warning);
    errors.extend(serious.map(|f| format!("{} `{}`: {}: {} [{}]", f.kind, f.name, f.field, f.message, f.reason)));
    Ok((compiled.snapshot, errors))
}

/// What a client would get if it asked now.
fn refusal(router: &Arc<Router>, resolved: &Resolved, args: &Args, request: Request, live: &Reported, mut now: EpochMs) -> Option<Refusal> {
    let mut walk = Walk::new(router, resolved, &args.combo, request)?;
    let of = |answer: Answer, waits_ms| Refusal {
        status: answer.status,
        code: answer.code,
        message: answer.message,
        retry_after_seconds: answer.retry_after_seconds,
        waits_ms,
    };
    match walk.next(live, now, &mut Seeded(args.seed)) {
        Step::Stop(answer) => Some(of(*answer, None)),
        Step::Dispatch(_) => None,
        Step::Wait { ms, .. } => {
            now = now.plus(ms);
            let message = "the gateway waits for the first target to come back".to_owned();
            match walk.next(live, now, &mut Seeded(args.seed)) {
                Step::Stop(answer) => Some(of(*answer, Some(ms))),
                _ => Some(Refusal { status: 200, code: String::new(), message, retry_after_seconds: None, waits_ms: Some(ms) }),
            }
        }
    }
}

fn human(shown: &Shown, now: EpochMs) -> String {
    let strategy = shown.strategy.as_ref().map_or_else(|| "direct".to_owned(), Clone::clone);
    let states = shown.state.as_ref().map_or_else(|| "nobody rests (no --state)".to_owned(), |url| format!("states of {url}"));
    let mut out = format!("{} ({strategy}), {states}\n", shown.name);
    let width = shown.plan.targets.iter().map(|t| t.target.chars().count()).max().unwrap_or(0);
    for (place, target) in shown.plan.targets.iter().enumerate() {
        out.push_str(&format!("{:>3}. {:width$}  {}{}\n", place + 1, target.target, target.connections.join(", "), remarks(target)));
    }
    if shown.plan.targets.is_empty() {
        out.push_str("  nothing could serve now\n");
    }
    if !shown.plan.excluded.is_empty() {
        out.push_str("excluded:\n");
    }
    for excluded in &shown.plan.excluded {
        out.push_str(&format!("  {}\n", exclusion(excluded, now)));
    }
    if let Some(refusal) = &shown.refusal {
        let wait = refusal.waits_ms.map_or_else(String::new, |ms| format!("wait {}, then ", format_duration(ms)));
        let again = refusal.retry_after_seconds.map_or_else(String::new, |s| format!(", Retry-After: {s}"));
        out.push_str(&format!("a request would: {wait}{} {}{again}\n", refusal.status, refusal.code));
    }
    out
}

fn remarks(target: &Planned) -> String {
    let score = target.score.map(|s| format!("score {s:.3}"));
    let protected = target.protected.then(|| "only a used-up quota moves on".to_owned());
    let all: Vec<String> = [score, target.note.clone(), protected].into_iter().flatten().collect();
    if all.is_empty() { String::new() } else { format!("  [{}]", all.join("; ")) }
}

fn exclusion(excluded: &Excluded, now: EpochMs) -> String {
    let connection = excluded.connection.as_ref().map_or_else(String::new, |c| format!(" ({c})"));
    let until = excluded.until.map_or_else(String::new, |u| {
        let seconds = u.since(now).div_ceil(1_000);
        format!(" until {u} (in {})", format_duration(seconds * 1_000))
    });
    let detail = excluded.detail.as_ref().map_or_else(String::new, |d| format!(": {d}"));
    format!("{}{connection}: {}{until}{detail}", excluded.target, excluded.reason.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    const MANIFESTS: &str = "
apiVersion: omniroute.dev/v1alpha1
kind: Provider
metadata: {name: one}
spec: {baseURL: 'https://one.example/v1', dialects: [ChatCompletions], models: [{name: m}]}
---
apiVersion: omniroute.dev/v1alpha1
kind: Provider
metadata: {name: two}
spec: {baseURL: 'https://two.example/v1', dialects: [Messages], models: [{name: m}]}
---
apiVersion: omniroute.dev/v1alpha1
kind: Connection
metadata: {name: one-a}
spec: {providerRef: {name: one}, credentials: {apiKey: {secretRef: {name: keys, key: a}}}}
---
apiVersion: omniroute.dev/v1alpha1
kind: Connection
metadata: {name: one-b}
spec: {providerRef: {name: one}, credentials: {apiKey: {secretRef: {name: keys, key: missing}}}}
---
apiVersion: v1
kind: Secret
metadata: {name: keys}
stringData: {a: secret-value-of-a}
---
apiVersion: omniroute.dev/v1alpha1
kind: Combo
metadata: {name: chat}
spec: {targets: [{provider: one, model: m}, {provider: two, model: m}]}
---
apiVersion: omniroute.dev/v1alpha1
kind: ResilienceSettings
metadata: {name: gateway}
spec: {}
";

    fn shown(extra: &[&str]) -> Result<Shown, PlanError> {
        let folder = std::env::temp_dir().join(format!("omniroute-plan-{}-{:?}", std::process::id(), std::thread::current().id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("all.yaml"), MANIFESTS).unwrap();
        let path = folder.to_string_lossy().into_owned();
        let args = Cli::parse_from(["plan", "-f", path.as_str()].iter().chain(extra)).args;
        let shown = plan(&args, EpochMs(1_800_000_000_000));
        std::fs::remove_dir_all(&folder).unwrap();
        shown
    }

    #[test]
    fn targets_in_order_and_each_exclusion_with_its_reason() {
        let shown = shown(&["--combo", "chat"]).unwrap();
        let text = human(&shown, EpochMs(1_800_000_000_000));
        assert!(text.contains("  1. one/m  one-a\n"), "{text}");
        assert!(text.contains("one/m (one-b): unavailable: "), "{text}");
        assert!(text.contains("two/m: dialect_not_spoken: provider `two` does not speak ChatCompletions"), "{text}");
        assert!(!text.contains("secret-value"), "{text}");
        let json = serde_json::to_value(&shown).unwrap();
        assert_eq!(json["targets"][0]["connections"], serde_json::json!(["one-a"]));
        assert_eq!(json["strategy"], "Priority");
    }

    #[test]
    fn nothing_can_serve_and_the_answer_is_told() {
        let shown = shown(&["--combo", "chat", "--dialect", "responses"]).unwrap();
        assert!(shown.plan.targets.is_empty());
        assert_eq!(shown.refusal.unwrap().code, "dialect_not_spoken");
    }

    #[test]
    fn an_unknown_name_is_told_with_what_is_near() {
        let error = shown(&["--combo", "chatt"]).unwrap_err().to_string();
        assert!(error.contains("did you mean `chat`?"), "{error}");
        assert!(error.contains("one-b"), "the findings that may explain it: {error}");
    }
}
