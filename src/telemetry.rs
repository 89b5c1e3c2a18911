//! Logging to standard error: one line per event, for people (`text`) or programs (`json`).

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// How log lines look.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, clap::ValueEnum)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// Starts logging. `OMNIROUTE_LOG` filters like `RUST_LOG` does (`info`, `omniroute=debug,warn`); the default is `info`.
/// A second call in the same process changes nothing.
pub fn init(format: LogFormat) {
    let filter = EnvFilter::try_from_env("OMNIROUTE_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let colours = std::io::stderr().is_terminal();
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(colours);
    // An error means that a subscriber is installed already: the first one stays.
    let _ = match format {
        LogFormat::Text => builder.with_target(false).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).with_span_list(false).try_init(),
    };
}
