//! `omniroute fake-upstream`: a provider whose answers are scripted, for tests and game days.

use std::path::PathBuf;
use std::process::ExitCode;

use super::fake::{FakeUpstream, Script};

/// Flags.
#[derive(clap::Args, Debug)]
#[command(long_about = ABOUT)]
pub struct Args {
    /// Address to listen on; port 0 takes a free one.
    #[arg(long, env = "OMNIROUTE_LISTEN", default_value = "127.0.0.1:9100")]
    listen: String,
    /// Script, YAML or JSON. Without one every request gets a good answer.
    #[arg(long, env = "OMNIROUTE_SCRIPT", value_name = "FILE")]
    script: Option<PathBuf>,
}

const ABOUT: &str = "Serve scripted provider answers, for tests and game days.

Answers /chat/completions, /responses, /messages, /messages/count_tokens, /embeddings and /models below any prefix, streamed or not,
with ids and usage as the vendors send them. A script says who gets another answer:

  text: Hello.                                   # what good answers say
  rules:                                         # the first one that matches and is not used up answers
  - name: team-a is limited
    match: {key: sk-team-a, model: 'gpt-*'}      # also path, stream, body; * stands for anything
    times: 3                                     # for three requests; without it for all
    answers:                                     # in turn; the last one stays (cycle: true starts again)
    - status: 429
      headers: {retry-after: '30'}
      body: {error: {message: slow down}}        # absent: an error as the vendor writes it
      delay: 200ms
    - reply: {text: Hi, reasoning: Hm., toolCall: {name: f, arguments: {}}, finishReason: length}
      interval: 50ms                             # between the chunks of a stream
    - frames: [\"data: {...}\\n\\n\"]                # a stream, word for word
    - fault: {kind: cut, after: 3}               # hang, close, reset, cut, eof, stall, ping, malformed, errorFrame, drip

While it runs: PUT or GET /_control/script, POST /_control/rules (one rule, before the others), GET or DELETE /_control/requests
(with headers and keys; ?key=, ?model=, ?wait=N), POST /_control/drop-connections. docs/fake-upstream.md says more.";

/// Runs the command until it is told to stop.
#[must_use]
pub fn run(args: Args) -> ExitCode {
    let script = match args.script.as_ref().map_or(Ok(Script::default()), |path| read(path)) {
        Ok(script) => script,
        Err(error) => {
            eprintln!("omniroute fake-upstream: {error}");
            return ExitCode::from(2);
        }
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("omniroute fake-upstream: starting the runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    runtime.block_on(async {
        match FakeUpstream::start(&args.listen, script).await {
            Ok(fake) => {
                println!("fake upstream: base URL {}, control http://{}/_control/", fake.base_url(), fake.addr());
                super::run::stop_signal().await;
                ExitCode::SUCCESS
            }
            Err(error) => {
                eprintln!("omniroute fake-upstream: {error}");
                ExitCode::FAILURE
            }
        }
    })
}

fn read(path: &std::path::Path) -> Result<Script, String> {
    let text = std::fs::read_to_string(path).map_err(|e| format!("reading {}: {e}", path.display()))?;
    Script::parse(&text).map_err(|e| format!("{}: {e}", path.display()))
}
