//! The deadlines of a committed stream, driven by one timer. Time during which the client did not read does not count.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep};

use super::StreamPolicy;
use super::source::Step;

/// How long a stream may stay open behind its last frame.
const LINGER: Duration = Duration::from_secs(1);

/// What ran out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Expired {
    /// No progress.
    Idle,
    /// Reasoning without content.
    ContentStall,
    /// The whole answer.
    Total,
    /// Content trickles.
    Throughput,
    /// Nothing was sent to the client for a while.
    Heartbeat,
    /// The stream stayed open behind its last frame.
    Linger,
}

/// Deadlines and the timer.
#[derive(Debug)]
pub(super) struct Watchdog {
    policy: StreamPolicy,
    timer: Pin<Box<Sleep>>,
    last_progress: Instant,
    /// Start of the wait for content; `None` once it was seen.
    no_content_since: Option<Instant>,
    last_sent: Instant,
    terminal_at: Option<Instant>,
    throughput: Throughput,
}

/// The window of the throughput watchdog (routing spec 10.5).
#[derive(Debug)]
struct Throughput {
    window_start: Instant,
    text_before: u64,
    suspended: bool,
}

impl Watchdog {
    pub fn new(policy: StreamPolicy, now: Instant) -> Self {
        let warm = policy.started + Duration::from_millis(policy.throughput.warmup_ms);
        let mut dog = Self {
            policy,
            timer: Box::pin(tokio::time::sleep_until(now)),
            last_progress: now,
            no_content_since: Some(now),
            last_sent: now,
            terminal_at: None,
            throughput: Throughput { window_start: warm.max(now), text_before: 0, suspended: false },
        };
        let first = dog.next().map_or_else(|| now + Duration::from_secs(86_400), |(at, _)| at);
        dog.timer.as_mut().reset(first);
        dog
    }

    /// Takes note of a read.
    pub fn saw(&mut self, step: &Step, now: Instant) {
        if step.progress {
            self.last_progress = now;
        }
        if step.content {
            self.no_content_since = None;
        } else if step.reasoning && self.no_content_since.is_some() {
            self.no_content_since = Some(now);
        }
        if step.terminal && self.terminal_at.is_none() {
            self.terminal_at = Some(now);
            self.timer.as_mut().reset(now + LINGER);
        }
        // Text is judged by its speed; while a model reasons or writes a tool call, it is not.
        if step.text {
            self.throughput.suspended = false;
        } else if step.reasoning || step.content {
            self.throughput.suspended = true;
        }
    }

    /// The provider is asked anew: every deadline but that of the whole answer starts again.
    pub fn restart(&mut self, now: Instant, text_bytes: u64) {
        (self.last_progress, self.no_content_since, self.terminal_at) = (now, Some(now), None);
        let warm = now + Duration::from_millis(self.policy.throughput.warmup_ms);
        self.throughput = Throughput { window_start: warm, text_before: text_bytes, suspended: false };
        self.timer.as_mut().reset(now);
    }

    /// Something went to the client.
    pub fn sent(&mut self, now: Instant) {
        self.last_sent = now;
    }

    /// The client did not read for this long: the provider is not to blame.
    pub fn forgive(&mut self, pause: Duration) {
        self.last_progress += pause;
        self.last_sent += pause;
        self.throughput.window_start += pause;
        if let Some(since) = &mut self.no_content_since {
            *since += pause;
        }
    }

    /// The next deadline.
    fn next(&self) -> Option<(Instant, Expired)> {
        let p = &self.policy;
        let after = |since: Instant, limit: Duration, what| (!limit.is_zero()).then(|| (since + limit, what));
        let window = Duration::from_millis(p.throughput.window_ms);
        let candidates = [
            after(self.last_progress, p.idle, Expired::Idle),
            self.no_content_since.and_then(|since| after(since, p.content_stall, Expired::ContentStall)),
            after(p.started, p.total, Expired::Total),
            after(self.last_sent, p.heartbeat, Expired::Heartbeat),
            self.terminal_at.map(|at| (at + LINGER, Expired::Linger)),
            p.throughput.enabled.then(|| (self.throughput.window_start + window, Expired::Throughput)),
        ];
        candidates.into_iter().flatten().min_by_key(|(at, _)| *at)
    }

    /// Ready when a deadline has passed. `text_bytes` is all text so far.
    pub fn poll(&mut self, cx: &mut Context<'_>, text_bytes: u64) -> Poll<Expired> {
        loop {
            if self.timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            let now = Instant::now();
            match self.next() {
                Some((at, Expired::Throughput)) if at <= now => {
                    if self.trickles(text_bytes, now) {
                        return Poll::Ready(Expired::Throughput);
                    }
                }
                Some((at, what)) if at <= now => return Poll::Ready(what),
                Some((at, _)) => self.timer.as_mut().reset(at),
                None => return Poll::Pending,
            }
        }
    }

    /// Ends a window and starts the next one; true when the one that ended had too little text.
    fn trickles(&mut self, text_bytes: u64, now: Instant) -> bool {
        let rules = self.policy.throughput;
        let bytes = text_bytes.saturating_sub(self.throughput.text_before);
        let elapsed = now.duration_since(self.throughput.window_start).as_millis().max(1);
        let slow = u128::from(bytes) * 1000 < u128::from(rules.min_bytes_per_second) * elapsed;
        let judged = bytes == 0 || bytes >= rules.min_useful_bytes;
        let trickles = !self.throughput.suspended && judged && slow;
        self.throughput.window_start = now;
        self.throughput.text_before = text_bytes;
        trickles
    }
}
