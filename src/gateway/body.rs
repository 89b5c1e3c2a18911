//! The body of an answer, with what must live exactly as long as it.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};

use super::BoxError;

/// A body that streams.
pub type Stream = Pin<Box<dyn HttpBody<Data = Bytes, Error = BoxError> + Send>>;

/// An answer's body. Guards (slots, timers, permits) are dropped when its last byte was handed over or the client went away.
pub struct Body {
    payload: Payload,
    guard: Option<Box<dyn Send>>,
}

enum Payload {
    Empty,
    Full(Bytes),
    Stream(Stream),
}

impl Body {
    /// A body that is there as a whole.
    #[must_use]
    pub fn full(bytes: impl Into<Bytes>) -> Self {
        let bytes = bytes.into();
        Self { payload: if bytes.is_empty() { Payload::Empty } else { Payload::Full(bytes) }, guard: None }
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

/// Bytes that were read already, and the body that follows them.
#[derive(Debug)]
pub struct Chained<B> {
    prefix: Bytes,
    rest: B,
}

impl<B> Chained<B> {
    /// Puts `prefix` in front of `rest`.
    pub const fn new(prefix: Bytes, rest: B) -> Self {
        Self { prefix, rest }
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
        if !self.prefix.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut self.prefix)))));
        }
        Pin::new(&mut self.rest).poll_frame(cx).map(|frame| frame.map(|frame| frame.map_err(Into::into)))
    }
}

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self.payload {
            Payload::Empty => "Body::Empty",
            Payload::Full(_) => "Body::Full",
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
            Payload::Full(bytes) => {
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
            Payload::Full(_) => false,
            Payload::Stream(stream) => stream.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.payload {
            Payload::Empty => SizeHint::with_exact(0),
            Payload::Full(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Payload::Stream(stream) => stream.size_hint(),
        }
    }
}
