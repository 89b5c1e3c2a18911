//! The body of an answer, with what must live exactly as long as it.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep_until};

use super::BoxError;
use super::admission::Buffered;

/// A body that streams.
pub type Stream = Pin<Box<dyn HttpBody<Data = Bytes, Error = BoxError> + Send>>;

/// An answer's body. Guards (slots, timers, permits) are dropped when its last byte was handed over or the client went away.
pub struct Body {
    payload: Payload,
    guard: Option<Box<dyn Send>>,
}

enum Payload {
    Empty,
    Full {
        bytes: Bytes,
        /// Never looked at: it gives the memory back when it is dropped.
        _room: Option<Buffered>,
    },
    Stream(Stream),
}

impl Body {
    /// A body that is there as a whole.
    #[must_use]
    pub fn full(bytes: impl Into<Bytes>) -> Self {
        Self::held(bytes.into(), None)
    }

    /// The same with its share of the memory that all bodies may use.
    #[must_use]
    pub fn held(bytes: Bytes, room: Option<Buffered>) -> Self {
        Self { payload: if bytes.is_empty() { Payload::Empty } else { Payload::Full { bytes, _room: room } }, guard: None }
    }

    /// A body that arrives over time.
    #[must_use]
    pub fn stream<B>(body: B) -> Self
    where
        B: HttpBody<Data = Bytes, Error = BoxError> + Send + 'static,
    {
        Self { payload: Payload::Stream(Box::pin(body)), guard: None }
    }

    /// Keeps `guard` until the body has ended or is dropped.
    #[must_use]
    pub fn guarded(mut self, guard: impl Send + 'static) -> Self {
        let inner = self.guard.take();
        self.guard = Some(match inner {
            Some(inner) => Box::new((inner, guard)),
            None => Box::new(guard),
        });
        self
    }
}

/// Bytes that were read already, and the body that follows them, which is passed on unread. It has deadlines of its own, and fails when one passes.
pub struct Chained<B> {
    prefix: Bytes,
    /// The prefix' share of the memory that all bodies may use.
    room: Option<Buffered>,
    rest: B,
    idle: Duration,
    ends: Option<Instant>,
    timer: Pin<Box<Sleep>>,
    /// The client has not come back for more: that time is its own.
    handed_over: bool,
}

impl<B> Chained<B> {
    /// Puts a prefix, with its share of the memory that all bodies may use, in front of `rest`. `idle` is the longest silence of the provider (zero = no limit), `ends` the instant at which the whole answer must
    /// be over.
    pub fn new((prefix, room): (Bytes, Option<Buffered>), rest: B, idle: Duration, ends: Option<Instant>) -> Self {
        let mut chained = Self { prefix, room, rest, idle, ends, timer: Box::pin(sleep_until(Instant::now())), handed_over: false };
        chained.rewind();
        chained
    }

    /// The provider has its full time again.
    fn rewind(&mut self) {
        let now = Instant::now();
        let idle = (!self.idle.is_zero()).then(|| now + self.idle);
        let next = idle.into_iter().chain(self.ends).min();
        self.timer.as_mut().reset(next.unwrap_or(now + UNLIMITED));
    }
}

/// A timer that is not meant to fire.
const UNLIMITED: Duration = Duration::from_secs(365 * 86_400);

impl<B> std::fmt::Debug for Chained<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Chained").field("idle", &self.idle).finish_non_exhaustive()
    }
}

impl<B> HttpBody for Chained<B>
where
    B: HttpBody<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        if std::mem::take(&mut this.handed_over) {
            this.rewind();
        }
        if !this.prefix.is_empty() {
            (this.handed_over, this.room) = (true, None);
            return Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut this.prefix)))));
        }
        if let Poll::Ready(frame) = Pin::new(&mut this.rest).poll_frame(cx) {
            this.handed_over = true;
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        this.timer.as_mut().poll(cx).map(|()| Some(Err("the provider did not finish its answer in time".into())))
    }
}

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self.payload {
            Payload::Empty => "Body::Empty",
            Payload::Full { .. } => "Body::Full",
            Payload::Stream(_) => "Body::Stream",
        })
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let polled = match &mut self.payload {
            Payload::Empty => Poll::Ready(None),
            Payload::Full { bytes, .. } => {
                let bytes = std::mem::take(bytes);
                self.payload = Payload::Empty;
                Poll::Ready(Some(Ok(Frame::data(bytes))))
            }
            Payload::Stream(stream) => stream.as_mut().poll_frame(cx),
        };
        if matches!(polled, Poll::Ready(None | Some(Err(_)))) {
            self.payload = Payload::Empty;
            self.guard = None;
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        match &self.payload {
            Payload::Empty => true,
            Payload::Full { .. } => false,
            Payload::Stream(stream) => stream.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.payload {
            Payload::Empty => SizeHint::with_exact(0),
            Payload::Full { bytes, .. } => SizeHint::with_exact(bytes.len() as u64),
            Payload::Stream(stream) => stream.size_hint(),
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::StreamExt;
    use futures::channel::mpsc;
    use http_body_util::{BodyExt, StreamBody};

    use super::*;
    use crate::gateway::admission::Buffers;

    type Feed = mpsc::UnboundedSender<Result<Frame<Bytes>, BoxError>>;

    fn chained(room: Option<Buffered>, ends: Option<Duration>) -> (Feed, Pin<Box<dyn HttpBody<Data = Bytes, Error = BoxError>>>) {
        let (feed, rest) = mpsc::unbounded();
        let ends = ends.map(|after| Instant::now() + after);
        let body = Chained::new((Bytes::from_static(b"start"), room), StreamBody::new(rest.boxed()), Duration::from_secs(30), ends);
        (feed, Box::pin(body))
    }

    fn say(feed: &Feed, text: &'static str) {
        feed.unbounded_send(Ok(Frame::data(Bytes::from_static(text.as_bytes())))).unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn an_unread_answer_has_the_deadlines_of_its_provider() {
        let (feed, mut body) = chained(None, None);
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "start");
        // What the client takes is its own time.
        tokio::time::sleep(Duration::from_secs(300)).await;
        let begin = Instant::now();
        let drip = async {
            for _ in 0..3 {
                tokio::time::sleep(Duration::from_secs(29)).await;
                say(&feed, "more");
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = drip => {}
            () = async { while body.frame().await.unwrap().is_ok() {} } => {}
        }
        assert_eq!(begin.elapsed().as_secs(), 3 * 29 + 30);

        let (feed, mut body) = chained(None, Some(Duration::from_secs(40)));
        say(&feed, "rest");
        let begin = Instant::now();
        let (mut got, mut failed) = (0, false);
        while let (false, Some(frame)) = (failed, body.frame().await) {
            failed = frame.is_err();
            got += usize::from(!failed);
            if got == 2 && !failed {
                tokio::time::sleep(Duration::from_secs(20)).await;
            }
        }
        assert_eq!((got, failed, begin.elapsed().as_secs()), (2, true, 40), "the whole answer has an end of its own");
    }

    #[tokio::test]
    async fn the_prefix_counts_until_it_is_handed_over() {
        let buffers = Buffers::default();
        buffers.limit(5);
        let (_feed, mut body) = chained(buffers.reserve(5), None);
        assert!(buffers.reserve(1).is_none());
        body.frame().await.unwrap().unwrap();
        assert!(buffers.reserve(5).is_some());
    }
}
