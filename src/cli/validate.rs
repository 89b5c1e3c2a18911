//! `omniroute validate`: schema, CEL rules and what the compiler finds, for files, folders and standard input.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::ValueEnum;
use serde::Serialize;

use super::{files, sarif};
use crate::compile::{Finding, Options, Severity, compile};
use crate::manifest::{self, Level, Parsed, Place, Source};

/// Flags.
#[derive(clap::Args, Debug)]
#[command(after_help = "Exit codes: 0 = good (there may be warnings), 1 = errors, 2 = wrong use, such as a file that cannot be read.")]
pub struct Args {
    /// Files, folders (all YAML and JSON files below them) or `-` for standard input; may be repeated.
    #[arg(short, long = "filename", env = "OMNIROUTE_FILENAME", value_name = "FILE|DIR|-", required = true, num_args = 1..)]
    filename: Vec<PathBuf>,
    /// Take references to objects outside the input for errors.
    #[arg(long, env = "OMNIROUTE_STRICT")]
    strict: bool,
    /// How to print the result.
    #[arg(short, long, env = "OMNIROUTE_OUTPUT", value_enum, default_value_t)]
    output: Format,
}

/// How the result is printed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
enum Format {
    /// For people.
    #[default]
    Text,
    /// For programs: one JSON object.
    Json,
    /// For code hosts: SARIF 2.1.0.
    Sarif,
}

/// Everything that was found.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// No errors.
    pub ok: bool,
    /// Errors.
    pub errors: usize,
    /// Warnings.
    pub warnings: usize,
    /// Texts that were read.
    pub sources: usize,
    /// Objects by kind.
    pub objects: BTreeMap<String, usize>,
    /// What is wrong, in the order of the sources.
    pub problems: Vec<Entry>,
}

/// One thing that is wrong.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// Where.
    #[serde(flatten)]
    pub place: Place,
    /// `error` or `warning`.
    pub level: Level,
    /// Which check said so.
    pub reason: String,
    /// Kind of the object.
    pub kind: String,
    /// Name of the object.
    pub name: String,
    /// Path of the field.
    pub field: String,
    /// What is wrong and the way out.
    pub message: String,
}

/// Runs the command.
#[must_use]
pub fn run(args: Args) -> ExitCode {
    let (sources, failures) = files::read_some(&args.filename);
    for failure in &failures {
        eprintln!("error: {failure}");
    }
    if !failures.is_empty() {
        return ExitCode::from(2);
    }
    let report = check(&sources, args.strict);
    let text = match args.output {
        Format::Text => human(&report),
        Format::Json => json_line(&report),
        Format::Sarif => json_line(&sarif::log(&report)),
    };
    if let Err(error) = std::io::stdout().write_all(text.as_bytes()) {
        eprintln!("error: writing the result: {error}");
        return ExitCode::FAILURE;
    }
    if report.ok { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Checks sources. With `strict`, references to objects outside of them are errors.
#[must_use]
pub fn check(sources: &[Source], strict: bool) -> Report {
    let parsed = manifest::parse(sources);
    let mut problems: Vec<Entry> = parsed
        .problems
        .iter()
        .map(|p| Entry {
            place: p.place.clone(),
            level: p.level,
            reason: p.reason.as_str().to_owned(),
            kind: p.kind.clone(),
            name: p.name.clone(),
            field: p.field.clone(),
            message: p.message.clone(),
        })
        .collect();
    // A reference to an object that was left out for its own errors is no news.
    let left_out: BTreeSet<&str> = parsed.problems.iter().filter(|p| p.level == Level::Error).map(|p| p.name.as_str()).collect();
    for (namespace, resources) in parsed.resources.by_namespace() {
        for finding in compile(&resources, &Options::default()).findings {
            let level = level(&finding, strict, &left_out);
            problems.push(entry(&parsed, namespace.as_deref(), finding, level));
        }
    }
    let order: BTreeMap<&str, usize> = sources.iter().enumerate().map(|(i, s)| (s.name.as_str(), i)).collect();
    problems.sort_by_key(|p| (order.get(p.place.source.as_str()).copied(), p.place.line, p.level != Level::Error));
    let mut objects: BTreeMap<String, usize> = BTreeMap::new();
    for identity in parsed.objects.keys() {
        *objects.entry(identity.kind.clone()).or_default() += 1;
    }
    let errors = problems.iter().filter(|p| p.level == Level::Error).count();
    Report { ok: errors == 0, errors, warnings: problems.len() - errors, sources: sources.len(), objects, problems }
}

fn level(finding: &Finding, strict: bool, left_out: &BTreeSet<&str>) -> Level {
    match finding.severity {
        Severity::Error => Level::Error,
        Severity::Warning => Level::Warning,
        // The Secret is there, its key is not: nothing outside the input can help.
        Severity::Unresolved if finding.reason == "SecretKeyNotFound" => Level::Error,
        Severity::Unresolved if left_out.iter().any(|name| !name.is_empty() && finding.message.contains(&format!("`{name}`"))) => {
            Level::Warning
        }
        Severity::Unresolved => {
            if strict {
                Level::Error
            } else {
                Level::Warning
            }
        }
    }
}

fn entry(parsed: &Parsed, namespace: Option<&str>, finding: Finding, level: Level) -> Entry {
    let place = parsed.find(&finding.kind, namespace, &finding.name).map(|w| w.at(&finding.field)).unwrap_or_default();
    Entry { place, level, reason: finding.reason, kind: finding.kind, name: finding.name, field: finding.field, message: finding.message }
}

fn human(report: &Report) -> String {
    let mut out = String::new();
    for p in &report.problems {
        let level = if p.level == Level::Error { "error" } else { "warning" };
        let place = if p.place.source.is_empty() { String::new() } else { format!("{}: ", p.place) };
        let object = if p.kind.is_empty() { String::new() } else { format!("{} `{}`: ", p.kind, p.name) };
        let field = if p.field.is_empty() { String::new() } else { format!("{}: ", p.field) };
        out.push_str(&format!("{place}{level}: {object}{field}{} [{}]\n", p.message, p.reason));
    }
    let kinds: Vec<String> = report.objects.iter().map(|(kind, n)| format!("{n} {kind}")).collect();
    let total: usize = report.objects.values().sum();
    let inside = if kinds.is_empty() { String::new() } else { format!(" ({})", kinds.join(", ")) };
    out.push_str(&format!(
        "{} with {}{inside}: {}, {}\n",
        plural(report.sources, "input"),
        plural(total, "object"),
        if report.errors == 0 { "no errors".to_owned() } else { plural(report.errors, "error") },
        if report.warnings == 0 { "no warnings".to_owned() } else { plural(report.warnings, "warning") },
    ));
    out
}

fn plural(n: usize, word: &str) -> String {
    if n == 1 { format!("1 {word}") } else { format!("{n} {word}s") }
}

fn json_line<T: Serialize>(value: &T) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default() + "\n"
}
