//! The body of a committed stream: what the client reads.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue};
use http_body::{Body, Frame};
use tokio::time::Instant;

use super::opening::Held;
use super::recovery::{Cause, Continuation, Recovered};
use super::source::{Source, Step};
use super::watchdog::{Expired, Watchdog};
use super::{Hooks, Interruption, OnEnd, StreamEnd, StreamOutcome, StreamPolicy};
use crate::gateway::upstream::{BodyError, UpstreamBody, headers};
use crate::protocol::errors::{ErrorBody, StreamPosition};
use crate::protocol::progress::StreamFacts;
use crate::protocol::quality::check_stream_end;

/// Keeps connections of silent streams open; a comment is no event, so clients ignore it.
const HEARTBEAT: &[u8] = b": keep-alive\n\n";

/// A committed stream. Reads from the provider only when the client reads; never fails: a broken stream ends with the error frame of its
/// dialect. Dropping it closes the upstream connection.
pub struct StreamBody<B = UpstreamBody> {
    /// `None` once nothing more is read from the provider, and while it is asked for the rest of a broken answer.
    source: Option<Source<B>>,
    /// What the parts of a continued answer before the current one have said.
    earlier: StreamFacts,
    continuation: Option<Continuation<B>>,
    held: Held,
    queue: VecDeque<Bytes>,
    /// What the last reads before the commit mean for the end.
    pending: Option<Step>,
    watchdog: Watchdog,
    policy: StreamPolicy,
    committed: Instant,
    /// When the client was last given something; the time until it asks again is its own.
    handed_over: Option<Instant>,
    on_end: Option<OnEnd>,
    /// The dialect's end was seen.
    complete: bool,
}

impl<B> std::fmt::Debug for StreamBody<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StreamBody").field("policy", &self.policy).field("complete", &self.complete).finish_non_exhaustive()
    }
}

impl<B> StreamBody<B> {
    pub(super) fn new(source: Source<B>, held: Held, step: Step, policy: StreamPolicy, hooks: Hooks<B>) -> Self {
        let now = Instant::now();
        Self {
            source: Some(source),
            earlier: StreamFacts::default(),
            continuation: hooks.resume.map(Continuation::new),
            held,
            queue: VecDeque::new(),
            pending: Some(step),
            watchdog: Watchdog::new(policy, now),
            policy,
            committed: now,
            handed_over: None,
            on_end: Some(hooks.on_end),
            complete: false,
        }
    }

    /// The headers of the client's answer: those of the provider that may be seen, made true where frames were decoded or made here.
    #[must_use]
    pub fn headers(&self, provider: &HeaderMap) -> HeaderMap {
        let mut shown = headers::down(provider);
        if self.source.as_ref().is_some_and(Source::is_rewritten) {
            shown.remove(CONTENT_ENCODING);
            shown.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
        }
        shown
    }
}

impl<B> StreamBody<B>
where
    B: Body<Data = Bytes, Error = BodyError> + Unpin,
{
    /// Takes a read over into the queue and notes what it means.
    fn take(&mut self, step: Step) {
        let now = Instant::now();
        self.watchdog.saw(&step, now);
        if !step.bytes.is_empty() {
            self.queue.push_back(step.bytes);
        }
        if let Some(frame) = step.error {
            if self.continuation.as_ref().is_some_and(Continuation::is_running) {
                // It is no part of the answer that the client knows of.
                return self.end_broken("stream_interrupted", "the provider ended the stream before its end".to_owned());
            }
            // The provider's own error frame is the last one.
            let interruption =
                Interruption { code: "upstream_error", frame, message: "the provider ended the stream with an error".to_owned() };
            self.close(StreamEnd::Interrupted(interruption));
            return;
        }
        let Some(source) = &self.source else { return };
        self.complete |= step.terminal || (step.eof && source.facts().is_complete());
        if step.eof {
            if self.complete {
                self.finish();
            } else {
                self.interrupt("stream_interrupted", "the provider ended the stream before its end".to_owned());
            }
        }
    }

    /// The regular end.
    fn finish(&mut self) {
        if let Some(continuation) = &mut self.continuation {
            continuation.settle(Recovered::Yes);
        }
        self.leave_source();
        let quality = check_stream_end(&self.earlier, self.policy.empty_stop_is_valid).err();
        self.close(StreamEnd::Complete(quality));
    }

    /// The stream is broken: goes on with the rest of its text where that can be had, otherwise says so.
    fn interrupt(&mut self, code: &'static str, message: String) {
        let trail = self.source.as_mut().and_then(Source::take_trail);
        let (Some(trail), Some(continuation)) = (trail, &mut self.continuation) else { return self.end_broken(code, message) };
        match continuation.begin(trail, (code, message)) {
            Ok(()) => {
                self.leave_source();
                self.watchdog.restart(Instant::now(), self.earlier.text_bytes);
            }
            Err((code, message)) => {
                // With the trail goes the knowledge that the client has whole events only.
                self.leave_source();
                self.end_broken(code, message);
            }
        }
    }

    /// Says to the client in its dialect that the stream is broken.
    fn end_broken(&mut self, code: &'static str, message: String) {
        if let Some(continuation) = &mut self.continuation {
            continuation.settle(Recovered::No);
        }
        let dialect = self.policy.dialect;
        let mut frame = self.source.as_ref().map(|source| source.closing(dialect)).unwrap_or_default();
        self.leave_source();
        let position = StreamPosition { response_id: self.earlier.response_id.as_deref(), next_sequence: self.earlier.next_sequence };
        frame.extend_from_slice(&ErrorBody::new(502, code, message.clone()).kind("server_error").terminal_frame(dialect, &position));
        self.queue.push_back(Bytes::from(frame));
        self.close(StreamEnd::Interrupted(Interruption { code, frame: Bytes::new(), message }));
    }

    /// The deadline of a stream, or of the request for its rest.
    fn interrupt_or_give_up(&mut self, code: &'static str, message: String) {
        let Some((trail, cause)) = self.continuation.as_mut().and_then(Continuation::give_up) else { return self.interrupt(code, message) };
        match self.continuation.as_mut().map(|continuation| continuation.begin(trail, cause)) {
            Some(Ok(())) => self.watchdog.restart(Instant::now(), self.earlier.text_bytes),
            Some(Err((code, message))) => self.end_broken(code, message),
            None => {}
        }
    }

    fn expired(&mut self, what: Expired) {
        let ms = |d: Duration| d.as_millis();
        match what {
            Expired::Linger => self.finish(),
            Expired::Heartbeat => {
                if self.source.as_ref().is_none_or(Source::between_events) {
                    self.queue.push_back(Bytes::from_static(HEARTBEAT));
                }
                self.watchdog.sent(Instant::now());
            }
            Expired::Idle => {
                let message = format!("the provider made no progress for {} ms", ms(self.policy.idle));
                self.interrupt_or_give_up("stream_idle_timeout", message);
            }
            Expired::ContentStall => {
                let message = format!("the provider sent no content for {} ms", ms(self.policy.content_stall));
                self.interrupt_or_give_up("stream_content_stall", message);
            }
            Expired::Total => self.end_broken("stream_total_timeout", format!("the answer took longer than {} ms", ms(self.policy.total))),
            // Who has not begun to answer does not trickle.
            Expired::Throughput if self.source.is_none() => {}
            Expired::Throughput => {
                let message =
                    format!("the provider sends less than {} bytes of text per second", self.policy.throughput.min_bytes_per_second);
                self.interrupt("STREAM_THROUGHPUT_TOO_LOW", message);
            }
        }
    }
}

impl<B> StreamBody<B> {
    /// Bytes of text of all parts of the answer.
    fn text_bytes(&self) -> u64 {
        self.earlier.text_bytes + self.source.as_ref().map_or(0, |source| source.facts().text_bytes)
    }

    /// Reads nothing more of this part of the answer.
    fn leave_source(&mut self) {
        if let Some(source) = self.source.take() {
            self.earlier.go_on_with(source.facts());
        }
    }

    /// Reads nothing more and reports the end, once.
    fn close(&mut self, end: StreamEnd) {
        self.leave_source();
        self.continuation = None;
        let facts = std::mem::take(&mut self.earlier);
        if let Some(on_end) = self.on_end.take() {
            let since = |at: Instant| at.saturating_duration_since(self.policy.started);
            on_end(StreamOutcome { end, first_content_after: since(self.committed), took: since(Instant::now()), facts });
        }
    }
}

impl<B> Body for StreamBody<B>
where
    B: Body<Data = Bytes, Error = BodyError> + Unpin,
{
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = &mut *self;
        if let Some(then) = this.handed_over.take() {
            this.watchdog.forgive(Instant::now().saturating_duration_since(then));
        }
        loop {
            if let Some(bytes) = this.held.pop().or_else(|| this.queue.pop_front()) {
                let now = Instant::now();
                this.watchdog.sent(now);
                this.handed_over = Some(now);
                return Poll::Ready(Some(Ok(Frame::data(bytes))));
            }
            if let Some(step) = this.pending.take() {
                this.take(step);
                continue;
            }
            let read = match (&mut this.source, &mut this.continuation) {
                (Some(source), _) => source.poll_step(cx).map(Read::Step),
                (None, Some(continuation)) if continuation.is_opening() => continuation.poll(cx, this.policy.dialect).map(Read::Opened),
                (None, _) => return Poll::Ready(None),
            };
            match read {
                Poll::Ready(Read::Step(Ok(step))) => this.take(step),
                Poll::Ready(Read::Step(Err(_))) if this.complete => this.finish(),
                Poll::Ready(Read::Step(Err(error))) => this.interrupt("stream_interrupted", error.message),
                Poll::Ready(Read::Opened(Ok(source))) => {
                    this.source = Some(*source);
                    this.watchdog.restart(Instant::now(), this.earlier.text_bytes);
                }
                Poll::Ready(Read::Opened(Err((code, message)))) => this.end_broken(code, message),
                Poll::Pending => match this.watchdog.poll(cx, this.text_bytes()) {
                    Poll::Ready(what) => this.expired(what),
                    Poll::Pending => return Poll::Pending,
                },
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        let opening = self.continuation.as_ref().is_some_and(Continuation::is_opening);
        self.source.is_none() && self.queue.is_empty() && self.held.frames.is_empty() && self.pending.is_none() && !opening
    }
}

/// What was waited for.
enum Read<B> {
    Step(Result<Step, BodyError>),
    Opened(Result<Box<Source<B>>, Cause>),
}

impl<B> Drop for StreamBody<B> {
    fn drop(&mut self) {
        let end = if self.complete { StreamEnd::Complete(None) } else { StreamEnd::Aborted };
        self.close(end);
    }
}
