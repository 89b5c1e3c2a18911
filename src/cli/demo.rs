//! `omniroute demo`: a failover that anybody can watch. No keys, no network, no cluster: two fake vendors and the real gateway in one process.

mod acts;
mod screen;
mod stage;

use std::io::IsTerminal;
use std::process::ExitCode;

use screen::Screen;
use stage::Stage;

/// Flags.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Print lines instead of a live table; the default where standard output is no terminal.
    #[arg(long, env = "OMNIROUTE_PLAIN")]
    plain: bool,
}

/// Why the demo could not be given, or what it promised and did not show.
#[derive(thiserror::Error, Debug)]
pub enum DemoError {
    /// Something could not be started.
    #[error("starting {what}: {why}")]
    Start {
        /// The thing.
        what: &'static str,
        /// The reason.
        why: String,
    },
    /// What should have happened did not happen in time.
    #[error("waited {seconds} s in vain for this: {what}")]
    Waited {
        /// The expected event.
        what: String,
        /// The time that it had.
        seconds: u64,
    },
    /// The summary does not hold.
    #[error("{0} of the promises did not hold")]
    Broken(usize),
}

impl DemoError {
    fn start(what: &'static str, why: impl ToString) -> Self {
        Self::Start { what, why: why.to_string() }
    }
}

/// Runs the command: exit code 0 only if everything it shows has really happened.
#[must_use]
pub fn run(args: Args) -> ExitCode {
    let live = !args.plain && std::io::stdout().is_terminal();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let result = runtime.map_err(|e| DemoError::start("the runtime", e)).and_then(|runtime| runtime.block_on(play(live)));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("omniroute demo: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn play(live: bool) -> Result<(), DemoError> {
    let stage = Stage::build().await?;
    let mut screen = Screen::new(live);
    tokio::select! {
        result = acts::play(&stage, &mut screen) => result,
        _ = tokio::signal::ctrl_c() => Ok(()),
    }
}
