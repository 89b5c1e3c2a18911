//! A byte stream that looks at request heads before the HTTP parser does, and after clients that take no bytes.
//!
//! hyper resolves a request with both `Transfer-Encoding` and `Content-Length` by RFC 9112 and hides the second header. Such a request
//! is either broken or an attempt to smuggle another one past a proxy in front of us, so the gateway refuses it; for that somebody has
//! to see it. The same place notices clients that are slow with their head, connections that nobody uses, clients that do not read, and
//! the empty answers that hyper gives by itself, which get a body here.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep, sleep_until};

use super::answer;
use crate::protocol::Dialect;

/// Bytes of a head that are kept while it arrives in pieces; hyper's own limit is below.
const MAX_HEAD: usize = 64 * 1024;

/// How long a head may take from its first byte to its last.
const HEAD_TIME: Duration = Duration::from_secs(10);
/// How long a connection may stay without a request.
const IDLE_TIME: Duration = Duration::from_secs(120);
/// How long a client may leave an answer untouched. Beyond that its connection is closed, and with it everything that the answer holds: slots, permits,
/// the connection to the provider.
pub const WRITE_STALL: Duration = Duration::from_secs(120);

const BODY: u8 = 0;
const HEAD: u8 = 1;
const CONFLICT: u8 = 2;
const GOOD: u8 = 3;

/// What was seen of the head of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Head {
    /// It says in one way where its body ends.
    Good,
    /// It has both framing headers.
    Conflict,
    /// More came than one request: a head came too early to be looked at, or comes with this one. Nothing is read from the connection after
    /// this request, because what one reader takes for the next one may be a part of this one for another.
    Last,
}

/// What the byte stream and the service of one connection tell each other.
#[derive(Debug)]
pub struct HeadWatch {
    state: AtomicU8,
    /// Parts of requests that are not at their end.
    open: AtomicU32,
    /// More came than the requests that were looked at: where the next head begins is not known any more.
    lost: AtomicBool,
}

impl HeadWatch {
    /// A watch that expects a request head.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::new(Self { state: AtomicU8::new(HEAD), open: AtomicU32::new(0), lost: AtomicBool::new(false) })
    }

    /// A request begins: what comes now is its body, until everything that was given out here is dropped.
    #[must_use]
    pub fn begin_request(self: &Arc<Self>) -> (Head, Unfinished) {
        // The rest of a refused body may still be on its way to whoever throws it away.
        self.open.fetch_add(1, Ordering::Relaxed);
        let head = match self.state.swap(BODY, Ordering::Relaxed) {
            CONFLICT => Head::Conflict,
            GOOD if !self.lost.load(Ordering::Relaxed) => Head::Good,
            _ => Head::Last,
        };
        (head, Unfinished(Arc::clone(self)))
    }
}

/// A part of a request that is not at its end: its answer, or its body. When the last one is dropped, a head comes next.
#[derive(Debug)]
pub struct Unfinished(Arc<HeadWatch>);

impl Clone for Unfinished {
    fn clone(&self) -> Self {
        self.0.open.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(&self.0))
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if self.0.open.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.0.state.store(HEAD, Ordering::Relaxed);
        }
    }
}

/// A stream with a [`HeadWatch`].
#[derive(Debug)]
pub struct Sniffed<S> {
    stream: S,
    watch: Arc<HeadWatch>,
    partial: Vec<u8>,
    body: Rest,
    /// The dialect that the path of the last head speaks.
    dialect: Dialect,
    /// When bytes came or went last; for a partial head, when its first came.
    since: Instant,
    /// Looks at `since` once per [`HEAD_TIME`]: one timer for the life of the connection, none per request.
    inspection: Pin<Box<Sleep>>,
    write_stall: Duration,
    /// Runs while the client takes nothing.
    stalled: Option<Pin<Box<Sleep>>>,
    instead: Option<Instead>,
}

/// What is to come of the body behind the last head.
#[derive(Clone, Copy, Debug)]
enum Rest {
    /// So many bytes.
    Bytes(u64),
    /// Chunks; with the last bytes that came.
    Chunks([u8; 4]),
}

impl Rest {
    /// Takes `bytes` away; false when there are more than the body has.
    fn take(&mut self, bytes: &[u8]) -> bool {
        match self {
            Self::Bytes(left) => {
                let fits = bytes.len() as u64 <= *left;
                *left = left.saturating_sub(bytes.len() as u64);
                fits
            }
            Self::Chunks(last) => {
                for byte in bytes.iter().skip(bytes.len().saturating_sub(last.len())) {
                    last.rotate_left(1);
                    last[3] = *byte;
                }
                true
            }
        }
    }

    /// Whether this may be its end, and nothing came behind it.
    fn may_end_here(self) -> bool {
        match self {
            Self::Bytes(left) => left == 0,
            Self::Chunks(last) => last == *b"\r\n\r\n",
        }
    }
}

/// An answer of ours on its way out in place of one of hyper's.
#[derive(Debug)]
struct Instead {
    bytes: Vec<u8>,
    sent: usize,
    /// Length of what it replaces.
    replaces: usize,
}

impl<S> Sniffed<S> {
    /// Wraps a stream. A client that takes nothing for `write_stall` is given up.
    #[must_use]
    pub fn new(stream: S, watch: Arc<HeadWatch>, write_stall: Duration) -> Self {
        let now = Instant::now();
        Self {
            stream,
            watch,
            partial: Vec::new(),
            body: Rest::Bytes(0),
            dialect: Dialect::ChatCompletions,
            since: now,
            inspection: Box::pin(sleep_until(now + HEAD_TIME)),
            write_stall,
            stalled: None,
            instead: None,
        }
    }

    fn look(&mut self, fresh: &[u8]) {
        if self.watch.state.load(Ordering::Relaxed) != HEAD {
            self.partial.clear();
            self.look_at_body(fresh);
            return;
        }
        if fresh.is_empty() {
            return;
        }
        if self.partial.is_empty() {
            self.since = Instant::now();
            if !self.body.may_end_here() {
                self.watch.lost.store(true, Ordering::Relaxed);
            }
        }
        let (head, searched) = if self.partial.is_empty() {
            (fresh, 0)
        } else {
            let searched = self.partial.len();
            self.partial.extend_from_slice(fresh);
            (self.partial.as_slice(), searched)
        };
        if searched < PATH_BYTES {
            self.dialect = dialect(head);
        }
        match judge(head, searched) {
            Some(Judged { conflict, body, end }) => {
                // Pieces of a head were judged as soon as it was whole, so what follows it came last.
                let behind = head.len().saturating_sub(end);
                self.partial.clear();
                self.watch.state.store(if conflict { CONFLICT } else { GOOD }, Ordering::Relaxed);
                self.body = body;
                self.look_at_body(fresh.get(fresh.len().saturating_sub(behind)..).unwrap_or_default());
            }
            None if self.partial.len() > MAX_HEAD => self.partial.truncate(MAX_HEAD),
            None if self.partial.is_empty() => self.partial.extend_from_slice(fresh),
            None => {}
        }
    }

    fn look_at_body(&mut self, fresh: &[u8]) {
        if !self.body.take(fresh) {
            self.watch.lost.store(true, Ordering::Relaxed);
        }
    }
}

/// Where the path of a request stands.
const PATH_BYTES: usize = 64;

/// The dialect of the path in a head; the one of OpenAI where it cannot be told.
fn dialect(head: &[u8]) -> Dialect {
    let start = head.get(..PATH_BYTES).unwrap_or(head);
    let path = memchr::memchr(b' ', start).and_then(|space| start.get(space + 1..));
    if path.is_some_and(|path| path.starts_with(b"/v1/messages")) { Dialect::Messages } else { Dialect::ChatCompletions }
}

/// What a whole head says about its body.
struct Judged {
    /// It carries both framing headers.
    conflict: bool,
    body: Rest,
    /// Where the head ends.
    end: usize,
}

/// `None` while the head is incomplete. The first `searched` bytes were judged before.
fn judge(bytes: &[u8], searched: usize) -> Option<Judged> {
    // A parser skips empty lines before the head, and takes a bare LF for the end of a line.
    let start = bytes.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
    let from = start.max(searched.saturating_sub(2));
    let ends = |at: &usize| matches!(bytes.get(at + 1..), Some([b'\n', ..] | [b'\r', b'\n', ..]));
    let last = memchr::memchr_iter(b'\n', bytes.get(from..)?).map(|at| from + at).find(ends)?;
    let head = bytes.get(start..last)?;
    let value = |line: usize, name: &[u8]| {
        let (given, value) = head.get(line..)?.split_at_checked(name.len())?;
        given.eq_ignore_ascii_case(name).then_some(value)
    };
    let (mut chunks, mut length) = (false, None);
    for line in memchr::memchr_iter(b'\n', head).map(|at| at + 1) {
        match head.get(line) {
            Some(b't' | b'T') => chunks |= value(line, b"transfer-encoding:").is_some(),
            Some(b'c' | b'C') => length = value(line, b"content-length:").map(number).or(length),
            _ => {}
        }
    }
    let body = if chunks { Rest::Chunks([0; 4]) } else { Rest::Bytes(length.unwrap_or(0)) };
    let end = last + if bytes.get(last + 1) == Some(&b'\n') { 2 } else { 3 };
    Some(Judged { conflict: chunks && length.is_some(), body, end })
}

/// The number that a header's value begins with. What is none is refused by the parser.
fn number(value: &[u8]) -> u64 {
    let digits = value.iter().skip_while(|byte| matches!(byte, b' ' | b'\t')).take_while(|byte| byte.is_ascii_digit());
    digits.fold(0, |number, digit| number.saturating_mul(10).saturating_add(u64::from(digit - b'0')))
}

/// What is said in place of an answer that hyper gives by itself, which is empty. Every other answer carries a request id.
fn instead_of(written: &[u8], dialect: Dialect) -> Option<Vec<u8>> {
    let status = written.strip_prefix(b"HTTP/1.1 4")?.get(..2)?;
    let (status, reason, code, message) = match status {
        b"00" => (400, "Bad Request", "malformed_request", "the head of the request is not valid HTTP/1.1"),
        b"14" => (414, "URI Too Long", "uri_too_long", "the request's target is longer than 65534 bytes"),
        b"31" => (
            431,
            "Request Header Fields Too Large",
            "headers_too_large",
            "the head of the request has more than 100 headers or more than 64 KiB",
        ),
        _ => return None,
    };
    let bare = memchr::memmem::find(written, b"\r\ncontent-length: 0\r\n").is_some();
    let of_service = memchr::memmem::find(written, answer::REQUEST_ID.as_str().as_bytes()).is_some();
    (bare && !of_service).then(|| answer::bytes(status, reason, code, message, dialect))
}

impl<S: AsyncWrite + Unpin> Sniffed<S> {
    /// Ready when the client took too long.
    fn poll_patience(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        loop {
            ready!(self.inspection.as_mut().poll(cx));
            let now = Instant::now();
            let waiting = self.watch.state.load(Ordering::Relaxed) == HEAD;
            if !waiting {
                self.partial.clear();
                self.since = now;
            }
            let allowed = if self.partial.is_empty() { IDLE_TIME } else { HEAD_TIME };
            if waiting && now >= self.since + allowed {
                if !self.partial.is_empty() {
                    let message = "the head of the request did not arrive within 10 seconds";
                    let answer = answer::bytes(408, "Request Timeout", "request_timeout", message, self.dialect);
                    // As much as the socket takes at once: who is this slow may miss the answer.
                    let _ = Pin::new(&mut self.stream).poll_write(cx, &answer);
                }
                return Poll::Ready(io::ErrorKind::TimedOut.into());
            }
            let next = if waiting && !self.partial.is_empty() { self.since + HEAD_TIME } else { now + HEAD_TIME };
            self.inspection.as_mut().reset(next);
        }
    }

    /// The result of a write; an error when the client has taken nothing for too long.
    fn progress(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if written.is_ready() {
            self.stalled = None;
            // Who still takes an answer is not idle, although its request has ended for everybody but the socket.
            if self.partial.is_empty() {
                self.since = Instant::now();
            }
            return written;
        }
        let limit = self.write_stall;
        let timer = self.stalled.get_or_insert_with(|| Box::pin(sleep(limit)));
        timer.as_mut().poll(cx).map(|()| Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read its answer")))
    }

    /// Writes our answer in place of hyper's, if that is what this is.
    fn poll_instead(&mut self, cx: &mut Context<'_>, buf: &[u8]) -> Option<Poll<io::Result<usize>>> {
        if self.instead.is_none() {
            let bytes = instead_of(buf, self.dialect)?;
            self.instead = Some(Instead { bytes, sent: 0, replaces: buf.len() });
        }
        loop {
            let Some(Instead { bytes, sent, replaces }) = &mut self.instead else { return None };
            let Some(rest) = bytes.get(*sent..).filter(|rest| !rest.is_empty()) else {
                let replaced = *replaces;
                self.instead = None;
                return Some(Poll::Ready(Ok(replaced)));
            };
            match Pin::new(&mut self.stream).poll_write(cx, rest) {
                Poll::Ready(Ok(0)) => return Some(Poll::Ready(Err(io::ErrorKind::WriteZero.into()))),
                Poll::Ready(Ok(n)) => *sent += n,
                other => return Some(self.progress(cx, other)),
            }
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Sniffed<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
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
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        if let Some(instead) = this.poll_instead(cx, buf) {
            return instead;
        }
        let written = Pin::new(&mut this.stream).poll_write(cx, buf);
        this.progress(cx, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bufs: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        if let Some(instead) = bufs.iter().find(|buf| !buf.is_empty()).and_then(|first| this.poll_instead(cx, first)) {
            return instead;
        }
        let written = Pin::new(&mut this.stream).poll_write_vectored(cx, bufs);
        this.progress(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
#[path = "sniff_tests.rs"]
mod tests;
