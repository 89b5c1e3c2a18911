//! Streams from a provider to a client: held until the commit, relayed byte for byte afterwards, watched by timers all the time
//! (routing spec 10, decisions 7, 9.8, 9.9).

mod body;
mod closing;
mod inflate;
mod source;
mod watchdog;

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http::header::CONTENT_TYPE;
use http_body::Body;
use tokio::time::Instant;

pub use body::StreamBody;

use self::source::{Source, Step};
use super::upstream::{BodyError, UpstreamBody};
use crate::classify::TransportError;
use crate::protocol::Dialect;
use crate::protocol::progress::StreamFacts;
use crate::protocol::quality::{QualityFailure, check_stream_end};
use crate::protocol::restream::as_stream;
use crate::protocol::scan::{Effort, RequestHead};
use crate::snapshot::{ThroughputWatchdog, Timeouts};

/// Most bytes that are held before the commit; beyond it the answer counts as committed.
const MAX_HELD: usize = 64 * 1024;
/// Longest JSON body that is turned into a stream.
const MAX_JSON: usize = 8 * 1024 * 1024;
/// Readiness without any reason to wait longer, and its bound (routing spec 10.1).
const READINESS: (Duration, Duration) = (Duration::from_secs(80), Duration::from_secs(180));

/// A deadline that is switched off.
const FOREVER: Duration = Duration::from_secs(365 * 86_400);

/// How long a stream may take until its first content: grows with the size of the request.
#[must_use]
pub fn readiness_budget(head: &RequestHead) -> Duration {
    let items = match head.items {
        401.. => 45,
        151.. => 20,
        _ => 0,
    };
    let chars = match head.chars {
        750_001.. => 45,
        250_001.. => 20,
        _ => 0,
    };
    let tools = if head.tools >= 15 { 15 } else { 0 };
    let effort = if head.effort == Some(Effort::High) { 30 } else { 0 };
    (READINESS.0 + Duration::from_secs(items + chars + tools + effort)).min(READINESS.1)
}

/// The deadlines of one stream and what its provider may do.
#[derive(Clone, Copy, Debug)]
pub struct StreamPolicy {
    /// The client's dialect, which the provider speaks.
    pub dialect: Dialect,
    /// When the request went out.
    pub started: Instant,
    /// From `started` to the commit.
    pub readiness: Duration,
    /// After the commit, as long as only reasoning was seen: from one reasoning frame to the next or to content. Zero = off.
    pub content_stall: Duration,
    /// From one step of progress to the next. Zero = off.
    pub idle: Duration,
    /// The whole answer, from `started`. Zero = off.
    pub total: Duration,
    /// Comments to the client while nothing else is sent. Zero = off.
    pub heartbeat: Duration,
    /// Ends streams that only trickle.
    pub throughput: ThroughputWatchdog,
    /// An answer without content that ends regularly is one.
    pub empty_stop_is_valid: bool,
}

impl StreamPolicy {
    /// The policy of a request that went out at `started`.
    #[must_use]
    pub fn new(dialect: Dialect, started: Instant, timeouts: &Timeouts, head: &RequestHead) -> Self {
        let ms = Duration::from_millis;
        let readiness = match timeouts.response_start_ms {
            None => readiness_budget(head),
            Some(0) => FOREVER,
            Some(given) => ms(given).min(FOREVER),
        };
        Self {
            dialect,
            started,
            readiness,
            content_stall: timeouts.stream_content_stall_ms.map_or(readiness, ms),
            idle: ms(timeouts.stream_idle_ms),
            total: ms(timeouts.total_ms),
            heartbeat: Duration::ZERO,
            throughput: ThroughputWatchdog::default(),
            empty_stop_is_valid: false,
        }
    }
}

/// What became of an answer that should be a stream.
#[derive(Debug)]
pub enum Opened<B = UpstreamBody> {
    /// It has content: from now on it belongs to the client.
    Committed(Box<StreamBody<B>>),
    /// It has none, and nothing of it reached the client: the request may go elsewhere.
    Failed(StreamFailure),
}

/// A stream that failed before its first content. Also what [`crate::classify::Attempt`] needs to know.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StreamFailure {
    /// How it failed; `None` for an error that the provider stated, which is in `body`.
    pub transport: Option<TransportError>,
    /// Our code for it (routing spec 6.2): `STREAM_READINESS_TIMEOUT`, `STREAM_EARLY_EOF`, `upstream_empty_response`, `upstream_error`.
    pub code: &'static str,
    /// The data of the error frame or the error body, to be classified under its own code with status 200; else empty.
    pub body: Bytes,
    /// What happened, for people.
    pub message: String,
}

/// How a committed stream ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StreamEnd {
    /// With the dialect's own end. `Some` when it has no content all the same (reasoning only).
    Complete(Option<QualityFailure>),
    /// It broke, was silent for too long, or the provider reported an error. The client got the dialect's terminal error frame.
    Interrupted(Interruption),
    /// The client went away. Nobody is to blame.
    Aborted,
}

/// Why a committed stream did not come to its end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Interruption {
    /// Our code for it: `stream_interrupted`, `stream_idle_timeout`, `stream_content_stall`, `stream_total_timeout`,
    /// `STREAM_THROUGHPUT_TOO_LOW`, `upstream_error`.
    pub code: &'static str,
    /// The data of the provider's own error frame; else empty.
    pub frame: Bytes,
    /// What happened, for people.
    pub message: String,
}

/// Reported once, when a committed stream is over.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StreamOutcome {
    /// How it ended.
    pub end: StreamEnd,
    /// From the request to the first content.
    pub first_content_after: Duration,
    /// From the request to the end.
    pub took: Duration,
    /// Usage, ids, malformed frames.
    pub facts: StreamFacts,
}

/// Called exactly once for a committed stream, at the latest when its body is dropped.
pub type OnEnd = Box<dyn FnOnce(StreamOutcome) + Send>;

/// Reads a 2xx answer until its first content. Dropping the future closes the upstream connection; `on_end` is called for committed
/// streams only.
pub async fn open_stream<B>(body: B, headers: &HeaderMap, policy: StreamPolicy, on_end: OnEnd) -> Opened<B>
where
    B: Body<Data = Bytes, Error = BodyError> + Unpin,
{
    let mut source = match Source::new(body, headers, policy.dialect) {
        Ok(source) => source,
        Err(message) => return failed(Some(TransportError::Quality), "upstream_bad_response", message),
    };
    let is_json = headers.get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).is_some_and(|t| t.to_ascii_lowercase().contains("json"));
    let mut held = VecDeque::new();
    let mut held_bytes = 0;
    let deadline = tokio::time::sleep_until(policy.started + policy.readiness);
    tokio::pin!(deadline);
    loop {
        let step = tokio::select! {
            biased;
            step = source.next() => step,
            () = &mut deadline => {
                let message = format!("no content within {} ms", policy.readiness.as_millis());
                return failed(Some(TransportError::StreamNotReady), "STREAM_READINESS_TIMEOUT", message);
            }
        };
        let step = match step {
            Ok(step) => step,
            Err(error) => return failed(Some(TransportError::StreamInterrupted), "STREAM_EARLY_EOF", error.message),
        };
        let step = if is_json {
            held_bytes += step.bytes.len();
            if !step.eof && held_bytes <= MAX_JSON {
                held.push_back(step.bytes);
                continue;
            }
            match converted(&mut source, &mut held, policy.dialect) {
                Ok(step) => step,
                Err(failure) => return Opened::Failed(failure),
            }
        } else {
            step
        };
        match decide(&step, source.facts(), policy.empty_stop_is_valid, held_bytes) {
            Decision::Fail(failure) => return Opened::Failed(failure),
            Decision::Hold => {
                held_bytes += step.bytes.len();
                held.push_back(step.bytes);
            }
            Decision::Commit => return Opened::Committed(Box::new(StreamBody::new(source, held, step, policy, on_end))),
        }
    }
}

enum Decision {
    Hold,
    Commit,
    Fail(StreamFailure),
}

fn decide(step: &Step, facts: &StreamFacts, empty_stop_is_valid: bool, held_bytes: usize) -> Decision {
    if step.commits {
        return Decision::Commit;
    }
    if let Some(error) = &step.error {
        let message = "the stream began with an error".to_owned();
        return Decision::Fail(StreamFailure { transport: None, code: "upstream_error", body: error.clone(), message });
    }
    if step.terminal || (step.eof && facts.is_complete()) {
        return match check_stream_end(facts, empty_stop_is_valid) {
            Ok(()) => Decision::Commit,
            Err(failure) => Decision::Fail(StreamFailure {
                transport: Some(TransportError::Quality),
                code: "upstream_empty_response",
                body: Bytes::new(),
                message: failure.to_string(),
            }),
        };
    }
    if step.eof {
        let message = if facts.frames == 0 {
            "the stream ended without a single frame of its dialect"
        } else {
            "the stream ended before its first content"
        };
        return Decision::Fail(StreamFailure {
            transport: Some(TransportError::StreamInterrupted),
            code: "STREAM_EARLY_EOF",
            body: Bytes::new(),
            message: message.to_owned(),
        });
    }
    if held_bytes + step.bytes.len() > MAX_HELD { Decision::Commit } else { Decision::Hold }
}

/// A JSON body in place of a stream: an error, or the whole answer of a provider that ignores `stream: true`, turned into its stream.
fn converted<B>(source: &mut Source<B>, held: &mut VecDeque<Bytes>, dialect: Dialect) -> Result<Step, StreamFailure> {
    let body: Vec<u8> = held.drain(..).flatten().collect();
    let is_error = serde_json::from_slice::<serde_json::Value>(&body).is_ok_and(|v| v.get("error").is_some_and(|e| !e.is_null()));
    if is_error {
        let message = "the provider answered with an error inside a success status".to_owned();
        return Err(StreamFailure { transport: None, code: "upstream_error", body: body.into(), message });
    }
    let Some(frames) = as_stream(dialect, &body) else {
        let message = format!("the provider answered a streamed request with a JSON body that is no {} answer", dialect.name());
        return Err(StreamFailure { transport: Some(TransportError::Quality), code: "upstream_bad_response", body: Bytes::new(), message });
    };
    Ok(Step { eof: true, ..source.convert(frames.into(), dialect) })
}

fn failed<B>(transport: Option<TransportError>, code: &'static str, message: impl Into<String>) -> Opened<B> {
    Opened::Failed(StreamFailure { transport, code, body: Bytes::new(), message: message.into() })
}

#[cfg(test)]
mod tests;
