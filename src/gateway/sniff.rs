//! A byte stream that looks at request heads before the HTTP parser does, and after clients that take no bytes.
//!
//! hyper resolves a request with both `Transfer-Encoding` and `Content-Length` by RFC 9112 and hides the second header. Such a request
//! is either broken or an attempt to smuggle another one past a proxy in front of us, so the gateway refuses it; for that somebody has
//! to see it. The same place notices clients that are slow with their head, connections that nobody uses, clients that do not read, and
//! the empty answers that hyper gives by itself, which get a body here.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
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

/// What the byte stream and the service of one connection tell each other.
#[derive(Debug)]
pub struct HeadWatch {
    state: AtomicU8,
    /// Parts of requests that are not at their end.
    open: AtomicU32,
}

impl HeadWatch {
    /// A watch that expects a request head.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::new(Self { state: AtomicU8::new(HEAD), open: AtomicU32::new(0) })
    }

    /// A request begins: what comes now is its body, until everything that was given out here is dropped. True when its head has both framing headers.
    #[must_use]
    pub fn begin_request(self: &Arc<Self>) -> (bool, Unfinished) {
        // The rest of a refused body may still be on its way to whoever throws it away.
        self.open.fetch_add(1, Ordering::Relaxed);
        (self.state.swap(BODY, Ordering::Relaxed) == CONFLICT, Unfinished(Arc::clone(self)))
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
            Some(conflict) => {
                self.partial.clear();
                self.watch.state.store(if conflict { CONFLICT } else { BODY }, Ordering::Relaxed);
            }
            None if self.partial.len() > MAX_HEAD => self.partial.truncate(MAX_HEAD),
            None if self.partial.is_empty() => self.partial.extend_from_slice(fresh),
            None => {}
        }
    }
}

/// Where the path of a request stands.
const PATH_BYTES: usize = 64;

/// The dialect of the path in a head; the one of OpenAI where it cannot be told.
fn dialect(head: &[u8]) -> Dialect {
    let start = head.get(..PATH_BYTES).unwrap_or(head);
    if memchr::memmem::find(start, b" /v1/messages").is_some() { Dialect::Messages } else { Dialect::ChatCompletions }
}

/// `None` while the head is incomplete, else whether it carries both framing headers. The first `searched` bytes were judged before.
fn judge(bytes: &[u8], searched: usize) -> Option<bool> {
    // A parser skips empty lines before the head, and takes a bare LF for the end of a line.
    let start = bytes.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
    let from = start.max(searched.saturating_sub(2));
    let ends = |at: &usize| matches!(bytes.get(at + 1..), Some([b'\n', ..] | [b'\r', b'\n', ..]));
    let end = memchr::memchr_iter(b'\n', bytes.get(from..)?).map(|at| from + at).find(ends)?;
    let head = bytes.get(start..end)?;
    let has = |name: &[u8]| {
        memchr::memchr_iter(b'\n', head)
            .any(|at| head.get(at + 1..at + 1 + name.len()).is_some_and(|start| start.eq_ignore_ascii_case(name)))
    };
    Some(has(b"transfer-encoding:") && has(b"content-length:"))
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
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    fn sniffed<S>(stream: S, watch: &Arc<HeadWatch>) -> Sniffed<S> {
        Sniffed::new(stream, Arc::clone(watch), WRITE_STALL)
    }

    /// The head and the JSON body of an answer whose length is stated truly.
    fn parsed(answer: &str) -> (&str, serde_json::Value) {
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(
            head.contains(&format!("content-length: {}\r\n", body.len())) || head.ends_with(&format!("content-length: {}", body.len())),
            "{answer}"
        );
        assert!(head.contains("x-omniroute-request-id: req_") && head.contains("x-omniroute-origin: gateway"), "{answer}");
        (head, serde_json::from_str(body).unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_that_takes_too_long_is_answered_and_an_idle_connection_closed() {
        let (mut client, server) = tokio::io::duplex(4096);
        let mut stream = sniffed(server, &HeadWatch::new());
        client.write_all(b"POST /v1/messages HTTP/1.1\r\n").await.unwrap();
        let begin = Instant::now();
        let mut bytes = [0; 64];
        assert_eq!(stream.read(&mut bytes).await.unwrap(), 28);
        assert_eq!(stream.read(&mut bytes).await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(begin.elapsed().as_secs(), 10);
        drop(stream);
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        assert_eq!(parsed(&answer).1["type"], "error", "in the dialect of the path: {answer}");

        let (_client, server) = tokio::io::duplex(64);
        let begin = Instant::now();
        assert!(sniffed(server, &HeadWatch::new()).read(&mut bytes).await.is_err());
        assert_eq!(begin.elapsed().as_secs(), 120);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_nothing_is_given_up_and_a_slow_one_is_not() {
        let (mut client, server) = tokio::io::duplex(8);
        let mut stream = sniffed(server, &HeadWatch::new());
        let reading = async {
            for _ in 0..5 {
                tokio::time::sleep(Duration::from_secs(119)).await;
                client.read_exact(&mut [0; 8]).await.unwrap();
            }
            // From here on it reads no more.
            std::future::pending::<()>().await;
        };
        let begin = Instant::now();
        let error = tokio::select! {
            result = stream.write_all(&[b'x'; 100]) => result.unwrap_err(),
            () = reading => unreachable!(),
        };
        assert_eq!((error.kind(), begin.elapsed().as_secs()), (io::ErrorKind::TimedOut, 5 * 119 + 120));
    }

    #[tokio::test(start_paused = true)]
    async fn who_still_takes_an_answer_is_not_idle() {
        let (mut client, server) = tokio::io::duplex(8);
        let (mut reads, mut writes) = tokio::io::split(sniffed(server, &HeadWatch::new()));
        let taking = async {
            for _ in 0..3 {
                tokio::time::sleep(Duration::from_secs(100)).await;
                client.read_exact(&mut [0; 8]).await.unwrap();
            }
        };
        let mut bytes = [0; 8];
        tokio::select! {
            (written, ()) = async { tokio::join!(writes.write_all(&[b'x'; 32]), taking) } => written.unwrap(),
            ended = reads.read(&mut bytes) => panic!("{ended:?}"),
        }
    }

    #[tokio::test]
    async fn empty_answers_of_the_parser_get_a_body_and_no_others() {
        let bare = |status: &str| format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: 0\r\ndate: x\r\n\r\n");
        for (status, code) in
            [("400 Bad Request", "malformed_request"), ("414 URI Too Long", "uri_too_long"), ("431 X", "headers_too_large")]
        {
            let (client, server) = tokio::io::duplex(16);
            let mut stream = sniffed(server, &HeadWatch::new());
            let write = async move { stream.write_all(bare(status).as_bytes()).await };
            let read = async {
                let (mut client, mut answer) = (client, String::new());
                client.read_to_string(&mut answer).await.map(|_| answer)
            };
            let (written, answer) = tokio::join!(write, read);
            written.unwrap();
            let answer = answer.unwrap();
            let (head, body) = parsed(&answer);
            assert!(head.starts_with(&format!("HTTP/1.1 {}", &status[..3])) && head.contains("connection: close"), "{head}");
            assert_eq!(body["error"]["code"], code);
        }
        for other in ["HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nx-omniroute-request-id: x\r\n\r\n", &bare("404 X"), "4", ""] {
            assert_eq!(instead_of(other.as_bytes(), Dialect::Messages), None, "{other}");
        }
    }

    fn conflict(pieces: &[&str]) -> bool {
        let watch = HeadWatch::new();
        let mut stream = sniffed((), &watch);
        pieces.iter().for_each(|piece| stream.look(piece.as_bytes()));
        watch.begin_request().0
    }

    #[tokio::test]
    async fn both_framing_headers_are_seen_in_any_order_and_in_pieces() {
        assert!(conflict(&["POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n"]));
        assert!(conflict(&["POST / HTTP/1.1\r\ntransfer-", "encoding: chunked\r\nCONTENT-LENGTH: 1\r\n\r", "\n"]));
        assert!(!conflict(&["POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", "\ncontent-length: 1\r\n\r\n"]));
        assert!(!conflict(&["POST / HTTP/1.1\r\nContent-Length: 40\r\n\r\n\ntransfer-encoding: chunked\r\n\r\n"]));
        assert!(!conflict(&["POST / HTTP/1.1\r\nContent-Lengths: 40\r\nTransfer-Encoding: chunked\r\n\r\n"]));
    }

    /// Whatever a lenient parser takes for the end of a line or of a head is one here, and however the bytes are cut.
    #[tokio::test]
    async fn bare_line_feeds_and_empty_lines_hide_nothing() {
        for head in [
            "POST / HTTP/1.1\nContent-Length: 1\nTransfer-Encoding: chunked\n\n",
            "POST / HTTP/1.1\nContent-Length: 1\nTransfer-Encoding: chunked\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\n",
            "\r\n\r\nPOST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
            "\n\nPOST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        ] {
            for cut in 0..head.len() {
                let (one, two) = head.split_at(cut);
                assert!(conflict(&[one, two]), "{head:?} cut at {cut}");
            }
        }
    }

    #[tokio::test]
    async fn every_request_of_a_connection_is_looked_at() {
        let watch = HeadWatch::new();
        let mut stream = sniffed((), &watch);
        stream.look(b"GET / HTTP/1.1\r\n\r\n");
        let (conflict, request) = watch.begin_request();
        assert!(!conflict);
        stream.look(b"x\ncontent-length: 1\ntransfer-encoding: chunked\r\n\r\n");
        drop(request);
        stream.look(b"GET / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n");
        assert!(watch.begin_request().0);
    }

    #[tokio::test]
    async fn the_rest_of_a_refused_body_is_no_head() {
        let watch = HeadWatch::new();
        let mut stream = sniffed((), &watch);
        stream.look(b"POST / HTTP/1.1\r\ncontent-length: 99\r\n\r\n");
        let (_, answer) = watch.begin_request();
        let body = answer.clone();
        drop(answer);
        stream.look(b"x\ncontent-length: 1\ntransfer-encoding: chunked\r\n\r\n");
        drop(body);
        stream.look(b"GET / HTTP/1.1\r\n\r\n");
        let (conflict, rest) = watch.begin_request();
        assert!(!conflict, "the next request is judged by its own head");
        // The one after it begins before the end of this one was noticed.
        let (_, next) = watch.begin_request();
        drop(rest);
        stream.look(b"x\ncontent-length: 1\ntransfer-encoding: chunked\r\n\r\n");
        drop(next);
        stream.look(b"GET / HTTP/1.1\r\n\r\n");
        assert!(!watch.begin_request().0, "a body is no head, whatever ends before it");
    }
}
