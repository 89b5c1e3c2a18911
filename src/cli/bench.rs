//! `omniroute bench`: what the gateway costs beside a bare hyper proxy and nginx, measured in the same run, slice by slice in turn.

mod cores;
mod load;
mod proxy;
mod report;
mod subject;
mod upstream;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use super::Output;

/// Flags.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Seconds of each slice; every figure is the median over the rounds.
    #[arg(long, env = "OMNIROUTE_SECONDS", default_value_t = 2.0)]
    seconds: f64,
    /// Rounds: in each one every proxy has its turn.
    #[arg(long, env = "OMNIROUTE_ROUNDS", default_value_t = 5)]
    rounds: usize,
    /// Idle streams for the memory figure, at most what the limit of open files allows.
    #[arg(long, env = "OMNIROUTE_IDLE_STREAMS", default_value_t = 1000)]
    idle_streams: usize,
    /// How the table is printed.
    #[arg(short = 'o', long, env = "OMNIROUTE_OUTPUT", value_enum, default_value_t)]
    output: Output,
    /// Which part this process plays; the bench starts itself for each.
    #[arg(long, hide = true, value_enum)]
    part: Option<Part>,
    /// Where the parts find the upstream.
    #[arg(long, hide = true)]
    upstream: Option<SocketAddr>,
}

/// A process of the bench.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Part {
    Upstream,
    Proxy,
}

/// Why nothing could be measured.
#[derive(thiserror::Error, Debug)]
pub enum BenchError {
    /// A part did not start.
    #[error("starting {what}: {why}")]
    Start {
        /// The part.
        what: String,
        /// The reason.
        why: String,
    },
    /// A request failed.
    #[error("measuring {what}: {why}")]
    Load {
        /// The proxy.
        what: String,
        /// The reason.
        why: String,
    },
    /// Somebody asked it to.
    #[error("stopped before the end")]
    Stopped,
    /// The system does not tell.
    #[error("reading {what}: {why}")]
    System {
        /// The file.
        what: String,
        /// The reason.
        why: String,
    },
}

/// Runs the command.
#[must_use]
pub fn run(args: Args) -> ExitCode {
    let result = match (args.part, args.upstream) {
        (Some(Part::Upstream), _) => upstream::serve(),
        (Some(Part::Proxy), Some(upstream)) => proxy::serve(upstream),
        (Some(Part::Proxy), None) => Err(BenchError::Start { what: "the bare proxy".to_owned(), why: "--upstream is missing".to_owned() }),
        (None, _) => measure(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("omniroute bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(args: &Args) -> Result<(), BenchError> {
    if cfg!(debug_assertions) {
        eprintln!("omniroute bench: this is a debug build; its figures say nothing about a release build");
    }
    let plan = load::Plan {
        slice: Duration::from_secs_f64(args.seconds.clamp(0.05, 60.0)),
        rounds: args.rounds.clamp(1, 100),
        idle_streams: args.idle_streams.min(subject::open_files()?.saturating_sub(200) / 2),
    };
    // One thread: several would wake each other for every request, and on few cores the wake-ups would be measured instead of the proxies.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| BenchError::Start { what: "the load".to_owned(), why: e.to_string() })?;
    let figures = runtime.block_on(async {
        tokio::select! {
            figures = compare(&plan) => figures,
            // The parts end with us.
            () = super::run::stop_signal() => Err(BenchError::Stopped),
        }
    })?;
    match args.output {
        Output::Text => print!("{}", report::table(&figures)),
        Output::Json => println!("{}", report::json(&figures)),
    }
    Ok(())
}

/// Starts everything and measures it.
async fn compare(plan: &load::Plan) -> Result<Vec<load::Figures>, BenchError> {
    let upstream = subject::Child::start("the upstream", &["bench", "--part", "upstream"])?;
    let mut subjects = vec![subject::bare(upstream.address)?];
    match subject::nginx(upstream.address)? {
        Some(nginx) => subjects.push(nginx),
        None => eprintln!("omniroute bench: nginx is not installed, so the figures stand beside the bare hyper proxy only"),
    }
    subjects.push(subject::gateway(upstream.address)?);
    load::run(plan, &upstream, &subjects).await
}
