//! Streams from a provider to a client: held until the commit, relayed byte for byte afterwards, watched by timers all the time
//! (routing spec 10, decisions 7, 9.8, 9.9).

mod body;
mod closing;
mod inflate;
mod opening;
mod recovery;
mod source;
mod trail;
mod watchdog;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

pub use body::StreamBody;
pub use opening::open_stream;
pub use recovery::{Answer, MAX_RECOVERIES, Recovered, Resume, ResumeError};

use super::admission::{Buffered, Buffers};
use super::body::Chained;
use super::upstream::UpstreamBody;
use crate::classify::TransportError;
use crate::protocol::Dialect;
use crate::protocol::progress::StreamFacts;
use crate::protocol::quality::QualityFailure;
use crate::protocol::scan::{Effort, RequestHead};
use crate::snapshot::{ThroughputWatchdog, Timeouts};

/// How much of a stream, from its first bytes, is held back although it has content, when `streamRecovery.enabled` asks for it.
pub const RECOVERY_HOLD: Duration = Duration::from_millis(750);
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
    /// How long content is held back, from the first bytes on, so that a stream that breaks at once may be opened again. Zero = not at all.
    pub hold: Duration,
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
            hold: Duration::ZERO,
            content_stall: timeouts.stream_content_stall_ms.map_or(readiness, ms),
            idle: ms(timeouts.stream_idle_ms),
            total: ms(timeouts.total_ms),
            heartbeat: Duration::ZERO,
            throughput: ThroughputWatchdog::default(),
            empty_stop_is_valid: false,
        }
    }

    /// When the whole answer must have ended; `None` = never.
    fn ends(&self) -> Option<Instant> {
        (!self.total.is_zero()).then(|| self.started + self.total)
    }
}

/// What became of an answer that should be a stream.
#[derive(Debug)]
pub enum Opened<B = UpstreamBody> {
    /// It has content: from now on it belongs to the client.
    Committed(Box<StreamBody<B>>),
    /// A whole answer that is too long to be made into a stream: it goes to the client as it is.
    Unchecked(Chained<B>),
    /// It has none, and nothing of it reached the client: the request may go elsewhere.
    Failed(StreamFailure),
}

/// A stream that failed before its first content. Also what [`crate::classify::Attempt`] needs to know.
#[derive(Debug)]
pub struct StreamFailure {
    /// How it failed; `None` for an error that the provider stated, which is in `body`.
    pub transport: Option<TransportError>,
    /// Our code for it (routing spec 6.2): `STREAM_READINESS_TIMEOUT`, `STREAM_EARLY_EOF`, `upstream_empty_response`, `upstream_error`.
    pub code: &'static str,
    /// The data of the error frame or the error body, to be classified under its own code with status 200; else empty.
    pub body: Bytes,
    /// What happened, for people.
    pub message: String,
    /// What the provider had answered until it ended its answer itself, by its end or by an error frame; what comes after an error frame is
    /// not waited for. For clients that want the answer as it is.
    pub whole: Option<Whole>,
}

/// An answer up to its end or its error frame: no stream to go on with.
#[derive(Debug)]
pub struct Whole {
    frames: VecDeque<Bytes>,
    /// Their share of the memory that all bodies may use.
    pub room: Option<Buffered>,
    /// It came compressed, and is not any more.
    pub decoded: bool,
}

impl Whole {
    /// Its bytes in one piece.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        match self.frames.front() {
            Some(only) if self.frames.len() == 1 => only.clone(),
            _ => self.frames.iter().flat_map(|frame| frame.iter().copied()).collect(),
        }
    }
}

impl StreamFailure {
    /// True when the stream broke off without an end and without an error: asking again may help.
    #[must_use]
    pub fn is_truncation(&self) -> bool {
        self.transport == Some(TransportError::StreamInterrupted)
    }
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

/// What a stream needs of its surroundings.
pub struct Hooks<B = UpstreamBody> {
    /// Called when it is over.
    pub on_end: OnEnd,
    /// What all held bodies may use together.
    pub buffers: Buffers,
    /// The way to continue a text whose stream broke, where the settings ask for it.
    pub resume: Option<Arc<dyn Resume<B>>>,
}

#[cfg(test)]
mod recovery_tests;
#[cfg(test)]
mod tests;
