//! `omniroute`: dispatch to a subcommand.

use std::process::ExitCode;

use clap::Parser;

// The allocator of musl takes a lock each time; that of glibc needs no replacement.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    omniroute::cli::run(omniroute::cli::Cli::parse())
}
