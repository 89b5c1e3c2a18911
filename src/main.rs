//! `omniroute`: dispatch to a subcommand.

use std::process::ExitCode;

use clap::Parser;

#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    omniroute::cli::run(omniroute::cli::Cli::parse())
}
