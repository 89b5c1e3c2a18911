//! `omniroute crds`.

use std::process::ExitCode;

/// Flags.
#[derive(clap::Args, Debug)]
pub struct Args {}

/// Runs the command.
#[must_use]
pub fn run(_args: Args) -> ExitCode {
    eprintln!("omniroute crds is not there yet");
    ExitCode::FAILURE
}
