//! The command line. Exit codes: 0 good, 1 findings or failure, 2 wrong use.

pub mod bench;
pub mod crds;
pub mod demo;
pub mod explain;
pub mod fake;
pub mod fake_upstream;
pub mod files;
pub mod gateway;
pub mod operator;
pub mod plan;
pub mod run;
pub mod sarif;
pub mod validate;

use std::process::ExitCode;

use clap::{Parser, Subcommand, ValueEnum};

/// Turns Provider, Connection, Combo, ResilienceSettings and OperatorErrorRule resources into an LLM gateway, and shows live who is out
/// of routing, why and until when.
#[derive(Parser, Debug)]
#[command(name = "omniroute", version, propagate_version = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Serve a gateway from manifests in files: no cluster needed.
    Run(run::Args),
    /// Watch a failover happen: no keys, no network, no cluster.
    Demo(demo::Args),
    /// Check manifests: schema, CEL rules, references.
    Validate(validate::Args),
    /// Say what a failed attempt means and what would rest until when.
    Explain(explain::Args),
    /// Show the ordered targets of a combo and why each excluded one is out.
    Plan(plan::Args),
    /// Print the CustomResourceDefinitions.
    Crds(crds::Args),
    /// Serve scripted provider answers, for tests and game days.
    FakeUpstream(fake_upstream::Args),
    /// Measure what the gateway costs beside a bare hyper proxy and nginx.
    Bench(bench::Args),
    /// Run the operator in a cluster.
    Operator(operator::Args),
    /// Run a gateway pod (started by the operator).
    Gateway(gateway::Args),
}

/// How a command prints what a program may read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub enum Output {
    /// For people.
    #[default]
    Text,
    /// For programs.
    Json,
}

/// Runs the chosen subcommand.
#[must_use]
pub fn run(cli: Cli) -> ExitCode {
    match cli.command {
        Command::Run(args) => run::run(args),
        Command::Demo(args) => demo::run(args),
        Command::Validate(args) => validate::run(args),
        Command::Explain(args) => explain::run(args),
        Command::Plan(args) => plan::run(args),
        Command::Crds(args) => crds::run(args),
        Command::FakeUpstream(args) => fake_upstream::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Operator(args) => operator::run(args),
        Command::Gateway(args) => gateway::run(args),
    }
}
