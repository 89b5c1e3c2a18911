//! From the head of a 2xx answer to its commit: what comes is held, and as long as it is held the request may still go elsewhere.

use std::collections::VecDeque;

use bytes::Bytes;
use http::HeaderMap;
use http::header::CONTENT_TYPE;
use http_body::Body;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::source::{Source, Step};
use super::trail::Trail;
use super::{FOREVER, Hooks, Opened, StreamBody, StreamFailure, StreamPolicy, Whole};
use crate::classify::TransportError;
use crate::gateway::admission::{Buffered, Buffers};
use crate::gateway::body::Chained;
use crate::gateway::upstream::{BodyError, Collected, collect, decode};
use crate::protocol::Dialect;
use crate::protocol::progress::StreamFacts;
use crate::protocol::quality::{check_stream_end, is_error};
use crate::protocol::restream::as_stream;

/// Most bytes that are held before the commit; beyond it the answer counts as committed.
const MAX_HELD: usize = 64 * 1024;
/// Longest JSON body that is turned into a stream.
const MAX_JSON: usize = 8 * 1024 * 1024;

/// What is held back, and its share of the memory that all bodies may use.
#[derive(Debug, Default)]
pub(super) struct Held {
    pub frames: VecDeque<Bytes>,
    bytes: usize,
    room: Option<Buffered>,
}

impl Held {
    /// Holds `bytes`; false when they are the last that fit.
    fn push(&mut self, bytes: Bytes, buffers: &Buffers) -> bool {
        self.bytes += bytes.len();
        let more = buffers.reserve(bytes.len() as u64);
        let fits = self.bytes <= MAX_HELD && more.is_some();
        match (&mut self.room, more) {
            (Some(room), Some(more)) => room.absorb(more),
            (room, more) => *room = room.take().or(more),
        }
        self.frames.push_back(bytes);
        fits
    }

    /// All of it, when nothing that comes after it matters.
    fn whole(self, decoded: bool) -> Whole {
        Whole { frames: self.frames, room: self.room, decoded }
    }

    /// The next of it; at its end the memory is given back.
    pub fn pop(&mut self) -> Option<Bytes> {
        let next = self.frames.pop_front();
        if self.frames.is_empty() {
            self.room = None;
        }
        next
    }
}

/// Reads a 2xx answer until it is committed: until its first content, and beyond that for as long as the policy holds it back. Dropping the
/// future closes the upstream connection; `on_end` is called for committed streams only.
pub async fn open_stream<B>(body: B, headers: &HeaderMap, policy: StreamPolicy, hooks: Hooks<B>) -> Opened<B>
where
    B: Body<Data = Bytes, Error = BodyError> + Unpin,
{
    let is_json = headers.get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).is_some_and(|t| t.to_ascii_lowercase().contains("json"));
    if is_json {
        return whole_answer(body, headers, policy, hooks).await;
    }
    let mut source = match Source::new(body, headers, policy.dialect) {
        Ok(source) => source,
        Err(message) => return failed(Some(TransportError::Quality), "upstream_bad_response", message),
    };
    if hooks.resume.is_some() && policy.dialect == Dialect::ChatCompletions {
        source = source.with_trail(Some(Trail::new(hooks.buffers.clone())));
    }
    let mut held = Held::default();
    let mut so_far = Step::default();
    let mut first_bytes = None;
    let deadline = sleep_until(policy.started + policy.readiness);
    tokio::pin!(deadline);
    loop {
        let step = tokio::select! {
            biased;
            step = source.next() => step,
            // A stream with content waits for the end of its hold, one without for its content.
            () = &mut deadline => {
                if so_far.commits {
                    return Opened::Committed(Box::new(StreamBody::new(source, held, so_far, policy, hooks)));
                }
                return not_ready(policy);
            }
        };
        let mut step = match step {
            Ok(step) => step.after(&so_far),
            Err(error) => return failed(Some(TransportError::StreamInterrupted), "STREAM_EARLY_EOF", error.message),
        };
        let now = Instant::now();
        let release = *first_bytes.get_or_insert(now) + policy.hold;
        let fits = held.push(std::mem::take(&mut step.bytes), &hooks.buffers);
        match decide(&step, source.facts(), policy.empty_stop_is_valid, now >= release) {
            Decision::Fail(failure) => return Opened::Failed(StreamFailure { whole: Some(held.whole(source.is_rewritten())), ..failure }),
            Decision::Hold if fits => {
                if step.commits && !so_far.commits {
                    deadline.as_mut().reset(release);
                }
                so_far = step;
            }
            Decision::Hold | Decision::Commit => return Opened::Committed(Box::new(StreamBody::new(source, held, step, policy, hooks))),
        }
    }
}

enum Decision {
    Hold,
    Commit,
    Fail(StreamFailure),
}

/// What to do after a read. `step` has what all reads so far meant; `released`: content is no longer held back.
fn decide(step: &Step, facts: &StreamFacts, empty_stop_is_valid: bool, released: bool) -> Decision {
    if step.commits && released {
        return Decision::Commit;
    }
    if let Some(error) = &step.error {
        let message = if step.commits { "the stream broke off with an error" } else { "the stream began with an error" }.to_owned();
        return Decision::Fail(StreamFailure { transport: None, code: "upstream_error", body: error.clone(), message, whole: None });
    }
    if step.terminal || (step.eof && facts.is_complete()) {
        return match check_stream_end(facts, empty_stop_is_valid) {
            Ok(()) => Decision::Commit,
            Err(failure) => Decision::Fail(StreamFailure {
                transport: Some(TransportError::Quality),
                code: "upstream_empty_response",
                body: Bytes::new(),
                message: failure.to_string(),
                whole: None,
            }),
        };
    }
    if step.eof {
        let message = if facts.frames == 0 {
            "the stream ended without a single frame of its dialect"
        } else if step.commits {
            "the stream ended before its end"
        } else {
            "the stream ended before its first content"
        };
        return Decision::Fail(StreamFailure {
            transport: Some(TransportError::StreamInterrupted),
            code: "STREAM_EARLY_EOF",
            body: Bytes::new(),
            message: message.to_owned(),
            whole: None,
        });
    }
    Decision::Hold
}

/// A JSON body in place of a stream: an error, or the whole answer of a provider that ignores `stream: true`, turned into its stream.
async fn whole_answer<B>(body: B, headers: &HeaderMap, policy: StreamPolicy, hooks: Hooks<B>) -> Opened<B>
where
    B: Body<Data = Bytes, Error = BodyError> + Unpin,
{
    let collected = match timeout_at(policy.started + policy.readiness, collect(body, MAX_JSON, FOREVER, &hooks.buffers)).await {
        Ok(Ok(collected)) => collected,
        Ok(Err(error)) => return failed(Some(TransportError::StreamInterrupted), "STREAM_EARLY_EOF", error.message),
        Err(_) => return not_ready(policy),
    };
    let (bytes, room) = match collected {
        Collected::Whole { bytes, room } => (bytes, room),
        Collected::TooLarge { prefix, room, rest } => {
            return Opened::Unchecked(Chained::new((prefix, room), rest, policy.idle, policy.ends()));
        }
    };
    let (bytes, decoded) = match decode(headers, &bytes, MAX_JSON) {
        Ok(decoded) => (decoded.clone().unwrap_or(bytes), decoded.is_some()),
        Err(error) => return failed(Some(TransportError::Quality), "upstream_bad_response", error.to_string()),
    };
    if is_error(&bytes) {
        let message = "the provider answered with an error inside a success status".to_owned();
        let whole = Some(Whole { frames: VecDeque::from([bytes.clone()]), room, decoded });
        return Opened::Failed(StreamFailure { transport: None, code: "upstream_error", body: bytes, message, whole });
    }
    let Some(frames) = as_stream(policy.dialect, &bytes) else {
        let message = format!("the provider answered a streamed request with a JSON body that is no {} answer", policy.dialect.name());
        let whole = Some(Whole { frames: VecDeque::from([bytes]), room, decoded });
        let (transport, code) = (Some(TransportError::Quality), "upstream_bad_response");
        return Opened::Failed(StreamFailure { transport, code, body: Bytes::new(), message, whole });
    };
    let (source, mut step) = Source::of_whole(frames.into(), policy.dialect);
    match decide(&step, source.facts(), policy.empty_stop_is_valid, true) {
        Decision::Fail(failure) => {
            let whole = Some(Whole { frames: VecDeque::from([bytes]), room, decoded });
            Opened::Failed(StreamFailure { whole, ..failure })
        }
        Decision::Hold | Decision::Commit => {
            let held = Held { frames: VecDeque::from([std::mem::take(&mut step.bytes)]), bytes: 0, room };
            Opened::Committed(Box::new(StreamBody::new(source, held, step, policy, hooks)))
        }
    }
}

fn not_ready<B>(policy: StreamPolicy) -> Opened<B> {
    let message = format!("no content within {} ms", policy.readiness.as_millis());
    failed(Some(TransportError::StreamNotReady), "STREAM_READINESS_TIMEOUT", message)
}

fn failed<B>(transport: Option<TransportError>, code: &'static str, message: impl Into<String>) -> Opened<B> {
    Opened::Failed(StreamFailure { transport, code, body: Bytes::new(), message: message.into(), whole: None })
}
