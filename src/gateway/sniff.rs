//! A byte stream that looks at request heads before the HTTP parser does.
//!
//! hyper resolves a request with both `Transfer-Encoding` and `Content-Length` by RFC 9112 and hides the second header. Such a request
//! is either broken or an attempt to smuggle another one past a proxy in front of us, so the gateway refuses it; for that somebody has
//! to see it. The same place notices clients that are slow with their head, and connections that nobody uses.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

/// Bytes of a head that are kept while it arrives in pieces; hyper's own limit is below.
const MAX_HEAD: usize = 64 * 1024;

/// How long a head may take from its first byte to its last.
const HEAD_TIME: Duration = Duration::from_secs(10);
/// How long a connection may stay without a request.
const IDLE_TIME: Duration = Duration::from_secs(120);

/// The answer to a head that takes too long. Which dialect the client speaks stands in the part that did not come.
const TOO_SLOW: &[u8] = b"HTTP/1.1 408 Request Timeout\r\ncontent-type: application/json\r\nx-omniroute-origin: gateway\r\nconnection: close\r\n\
content-length: 149\r\n\r\n{\"error\":{\"message\":\"the head of the request did not arrive within 10 seconds\",\"type\":\"invalid_request_error\",\"param\":null,\"code\":\"request_timeout\"}}";

const BODY: u8 = 0;
const HEAD: u8 = 1;
const CONFLICT: u8 = 2;

/// What the byte stream and the service of one connection tell each other.
#[derive(Debug)]
pub struct HeadWatch(AtomicU8);

impl HeadWatch {
    /// A watch that expects a request head.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::new(Self(AtomicU8::new(HEAD)))
    }

    /// A request begins: what comes now is its body. True when its head has both framing headers.
    pub fn begin_request(&self) -> bool {
        self.0.swap(BODY, Ordering::Relaxed) == CONFLICT
    }

    /// The request is over: what comes next is a head again.
    pub fn expect_head(&self) {
        self.0.store(HEAD, Ordering::Relaxed);
    }
}

/// A stream with a [`HeadWatch`].
#[derive(Debug)]
pub struct Sniffed<S> {
    stream: S,
    watch: Arc<HeadWatch>,
    partial: Vec<u8>,
    /// When the last bytes came; for a partial head, when its first came.
    since: Instant,
    /// Looks at `since` once per [`HEAD_TIME`]: one timer for the life of the connection, none per request.
    inspection: Pin<Box<Sleep>>,
}

impl<S> Sniffed<S> {
    /// Wraps a stream.
    #[must_use]
    pub fn new(stream: S, watch: Arc<HeadWatch>) -> Self {
        let now = Instant::now();
        Self { stream, watch, partial: Vec::new(), since: now, inspection: Box::pin(sleep_until(now + HEAD_TIME)) }
    }

    fn look(&mut self, fresh: &[u8]) {
        if self.watch.0.load(Ordering::Relaxed) != HEAD {
            // A head that came along with the request before it is not seen here; hyper's own reading of it is safe.
            self.partial.clear();
            return;
        }
        if fresh.is_empty() {
            return;
        }
        if self.partial.is_empty() {
            self.since = Instant::now();
        }
        let verdict = if self.partial.is_empty() {
            judge(fresh)
        } else {
            self.partial.extend_from_slice(fresh);
            judge(&self.partial)
        };
        match verdict {
            Some(conflict) => {
                self.partial.clear();
                self.watch.0.store(if conflict { CONFLICT } else { BODY }, Ordering::Relaxed);
            }
            None if self.partial.len() > MAX_HEAD => self.partial.truncate(MAX_HEAD),
            None if self.partial.is_empty() => self.partial.extend_from_slice(fresh),
            None => {}
        }
    }
}

/// `None` while the head is incomplete, else whether it carries both framing headers.
fn judge(bytes: &[u8]) -> Option<bool> {
    let head = bytes.get(..memchr::memmem::find(bytes, b"\r\n\r\n")?)?;
    let has = |name: &[u8]| {
        memchr::memchr_iter(b'\n', head)
            .any(|at| head.get(at + 1..at + 1 + name.len()).is_some_and(|start| start.eq_ignore_ascii_case(name)))
    };
    Some(has(b"transfer-encoding") && has(b"content-length"))
}

impl<S: AsyncWrite + Unpin> Sniffed<S> {
    /// Ready when the client took too long.
    fn poll_patience(&mut self, cx: &mut Context<'_>) -> Poll<std::io::Error> {
        loop {
            ready!(self.inspection.as_mut().poll(cx));
            let now = Instant::now();
            let waiting = self.watch.0.load(Ordering::Relaxed) == HEAD;
            if !waiting {
                self.partial.clear();
                self.since = now;
            }
            let allowed = if self.partial.is_empty() { IDLE_TIME } else { HEAD_TIME };
            if waiting && now >= self.since + allowed {
                if !self.partial.is_empty() {
                    // As much as the socket takes at once: who is this slow may miss the answer.
                    let _ = Pin::new(&mut self.stream).poll_write(cx, TOO_SLOW);
                }
                return Poll::Ready(std::io::ErrorKind::TimedOut.into());
            }
            let next = if waiting && !self.partial.is_empty() { self.since + HEAD_TIME } else { now + HEAD_TIME };
            self.inspection.as_mut().reset(next);
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Sniffed<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        let before = buf.filled().len();
        match Pin::new(&mut self.stream).poll_read(cx, buf) {
            Poll::Ready(Ok(())) => {
                self.look(buf.filled().get(before..).unwrap_or_default());
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => self.poll_patience(cx).map(Err),
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Sniffed<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bufs: &[std::io::IoSlice<'_>]) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_head_that_takes_too_long_is_answered_and_an_idle_connection_closed() {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let (mut client, server) = tokio::io::duplex(4096);
        let mut stream = Sniffed::new(server, HeadWatch::new());
        client.write_all(b"POST / HTTP/1.1\r\n").await.unwrap();
        let begin = Instant::now();
        let mut bytes = [0; 64];
        assert_eq!(stream.read(&mut bytes).await.unwrap(), 17);
        assert_eq!(stream.read(&mut bytes).await.unwrap_err().kind(), std::io::ErrorKind::TimedOut);
        assert_eq!(begin.elapsed().as_secs(), 10);
        drop(stream);
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("content-length: {}", body.len())), "{answer}");
        assert!(serde_json::from_str::<serde_json::Value>(body).is_ok());

        let (_client, server) = tokio::io::duplex(64);
        let begin = Instant::now();
        assert!(Sniffed::new(server, HeadWatch::new()).read(&mut bytes).await.is_err());
        assert_eq!(begin.elapsed().as_secs(), 120);
    }

    fn conflict(pieces: &[&str]) -> bool {
        let watch = HeadWatch::new();
        let mut stream = Sniffed::new((), Arc::clone(&watch));
        pieces.iter().for_each(|piece| stream.look(piece.as_bytes()));
        watch.begin_request()
    }

    #[tokio::test]
    async fn both_framing_headers_are_seen_in_any_order_and_in_pieces() {
        assert!(conflict(&["POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n"]));
        assert!(conflict(&["POST / HTTP/1.1\r\ntransfer-", "encoding: chunked\r\nCONTENT-LENGTH: 1\r\n\r", "\n"]));
        assert!(!conflict(&["POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", "\ncontent-length: 1\r\n\r\n"]));
        assert!(!conflict(&["POST / HTTP/1.1\r\nContent-Length: 40\r\n\r\n\ntransfer-encoding: chunked\r\n\r\n"]));
    }

    #[tokio::test]
    async fn every_request_of_a_connection_is_looked_at() {
        let watch = HeadWatch::new();
        let mut stream = Sniffed::new((), Arc::clone(&watch));
        stream.look(b"GET / HTTP/1.1\r\n\r\n");
        assert!(!watch.begin_request());
        stream.look(b"\ncontent-length: 1\ntransfer-encoding: chunked\r\n\r\n");
        watch.expect_head();
        stream.look(b"GET / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n");
        assert!(watch.begin_request());
    }
}
