//! One connection to a provider, speaking HTTP/1.1 within the task that uses it. Between two reads it holds no buffer: thousands of streams may
//! be silent for minutes.

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

use bytes::{Buf, Bytes};
use smallvec::SmallVec;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::dial::Socket;
use crate::protocol::http1::{Decoded, Framing, Head, MAX_HEAD, Malformed, read_head};
use crate::protocol::scan::RequestBody;

/// What one read brings at most; more waits in the socket.
const READ_SIZE: usize = 64 * 1024;

thread_local! {
    /// Where every connection of this thread reads into; what is kept is copied out at once, and has then the size that it needs.
    static READ: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ_SIZE].into_boxed_slice());
}

/// How an exchange failed.
#[derive(thiserror::Error, Debug)]
pub(super) enum Broken {
    /// The socket.
    #[error("{0}")]
    Socket(#[from] io::Error),
    /// The server closed it too early.
    #[error("it was closed before the answer was complete")]
    Closed,
    /// The answer is not HTTP/1.1.
    #[error("{0}")]
    Malformed(#[from] Malformed),
}

/// The beginning of an answer that came in parts.
#[derive(Default)]
struct Partial {
    /// Of its head.
    head: Vec<u8>,
    /// Bytes that were skipped before its head.
    skipped: usize,
}

/// A connection. Dropping it closes the socket at once.
pub(super) struct Conn {
    socket: Socket,
    /// What is left of the request.
    unsent: SmallVec<[Bytes; 4]>,
    /// Something written may still wait within TLS.
    unflushed: bool,
    /// Why the request could not be sent to its end; the server may have answered before.
    unsendable: Option<io::Error>,
    partial: Partial,
    /// What came of the body together with the head.
    first: Bytes,
    framing: Framing,
    keep_alive: bool,
    /// Bytes that ever came in.
    received: u64,
    /// It has carried a request before.
    pub reused: bool,
}

impl Conn {
    pub fn new(socket: Socket) -> Self {
        Self {
            socket,
            unsent: SmallVec::new(),
            unflushed: false,
            unsendable: None,
            partial: Partial::default(),
            first: Bytes::new(),
            framing: Framing::Ended,
            keep_alive: true,
            received: 0,
            reused: false,
        }
    }

    /// Bytes that ever came in.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// The next request; it goes out while the answer is polled.
    pub fn begin(&mut self, head: Bytes, body: RequestBody) {
        self.unsent.clear();
        self.unsent.push(head);
        self.unsent.extend(body.into_pieces().into_iter().filter(|piece| !piece.is_empty()));
        self.keep_alive = false;
        self.partial = Partial::default();
    }

    /// Sends the request and waits for the head of its answer.
    pub fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<Result<Head, Broken>> {
        self.poll_send(cx);
        loop {
            let Self { socket, partial, .. } = self;
            let Poll::Ready(outcome) = poll_read(socket, cx, |bytes| (bytes.len(), partial.take_head(bytes))) else {
                return self.pending(cx);
            };
            let (read, found) = outcome?;
            self.received += read as u64;
            if read == 0 {
                return Poll::Ready(Err(self.unsendable.take().map_or(Broken::Closed, Broken::Socket)));
            }
            if let Some((head, payload, surplus)) = found? {
                (self.first, self.framing) = (payload, head.framing);
                self.keep_alive = head.keep_alive && !surplus;
                return Poll::Ready(Ok(head));
            }
        }
    }

    /// The next piece of the body: all that one read brought. `None` at its end.
    pub fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Broken>>> {
        if !self.first.is_empty() {
            return Poll::Ready(Some(Ok(std::mem::take(&mut self.first))));
        }
        self.poll_send(cx);
        while !self.framing.is_ended() {
            if let Framing::Broken(mistake) = self.framing {
                return Poll::Ready(Some(Err(mistake.into())));
            }
            let Self { socket, framing, .. } = self;
            let Poll::Ready(outcome) = poll_read(socket, cx, |bytes| (bytes.len(), take_data(framing, bytes))) else {
                return self.pending(cx);
            };
            let (read, decoded) = outcome?;
            self.received += read as u64;
            if read == 0 {
                if self.framing != Framing::UntilClose {
                    return Poll::Ready(Some(Err(Broken::Closed)));
                }
                self.framing = Framing::Ended;
                break;
            }
            let (payload, surplus) = decoded;
            self.keep_alive &= !surplus;
            if !payload.is_empty() {
                return Poll::Ready(Some(Ok(payload)));
            }
        }
        Poll::Ready(None)
    }

    /// True when the answer was read to its end.
    pub fn is_ended(&self) -> bool {
        self.first.is_empty() && self.framing.is_ended()
    }

    /// Bytes of the body that are still to come, where the answer says so.
    pub fn remaining(&self) -> Option<u64> {
        self.framing.remaining().map(|left| left.saturating_add(self.first.len() as u64))
    }

    /// True when it can take the next request: the last exchange is complete, and nothing came since, not even the end.
    pub fn is_usable(&mut self) -> bool {
        let idle = self.keep_alive && self.unsendable.is_none() && self.unsent.is_empty() && !self.unflushed && self.is_ended();
        idle && poll_read(&mut self.socket, &mut Context::from_waker(Waker::noop()), |_| ()).is_pending()
    }

    /// Writes as much of the request as the socket takes. A failure is kept until the server has said nothing either.
    fn poll_send(&mut self, cx: &mut Context<'_>) {
        while !self.unsent.is_empty() {
            let mut slices = [IoSlice::new(&[]); 4];
            for (slice, piece) in slices.iter_mut().zip(&self.unsent) {
                *slice = IoSlice::new(piece);
            }
            match Pin::new(&mut self.socket).poll_write_vectored(cx, &slices) {
                Poll::Pending => return,
                Poll::Ready(Ok(0)) => return self.give_up(io::ErrorKind::WriteZero.into()),
                Poll::Ready(Err(error)) => return self.give_up(error),
                Poll::Ready(Ok(written)) => self.sent(written),
            }
        }
        if self.unflushed {
            match Pin::new(&mut self.socket).poll_flush(cx) {
                Poll::Pending => {}
                Poll::Ready(Ok(())) => self.unflushed = false,
                Poll::Ready(Err(error)) => self.give_up(error),
            }
        }
    }

    /// Nothing came. What was read before may have made TLS owe the server a word, and the server may wait for it.
    fn pending<T>(&mut self, cx: &mut Context<'_>) -> Poll<T> {
        if let Poll::Ready(Err(error)) = Pin::new(&mut self.socket).poll_flush(cx) {
            self.give_up(error);
        }
        Poll::Pending
    }

    fn sent(&mut self, mut written: usize) {
        self.unflushed = true;
        while let Some(piece) = self.unsent.first_mut() {
            let here = written.min(piece.len());
            piece.advance(here);
            written -= here;
            if !piece.is_empty() {
                return;
            }
            self.unsent.remove(0);
        }
    }

    fn give_up(&mut self, error: io::Error) {
        self.unsent.clear();
        self.unflushed = false;
        self.unsendable = Some(error);
    }
}

/// Reads once, and lets `take` have what came; nothing at the end of the connection.
fn poll_read<T>(socket: &mut Socket, cx: &mut Context<'_>, take: impl FnOnce(&mut [u8]) -> T) -> Poll<io::Result<T>> {
    READ.with_borrow_mut(|buffer| {
        let mut read = ReadBuf::new(buffer);
        ready!(Pin::new(socket).poll_read(cx, &mut read))?;
        Poll::Ready(Ok(take(read.filled_mut())))
    })
}

impl Partial {
    /// The head, once it is whole, the part of the body that came with it, and whether more came than belongs to the answer.
    fn take_head(&mut self, bytes: &mut [u8]) -> Result<Option<(Head, Bytes, bool)>, Malformed> {
        if self.head.is_empty() {
            return self.begin(bytes);
        }
        // A head that comes byte by byte is parsed again only when it may have come to its end.
        let seen = self.head.len().saturating_sub(3);
        self.head.extend_from_slice(bytes);
        let fresh = self.head.get(seen..).unwrap_or_default();
        let ended = || memchr::memmem::find(fresh, b"\n\r\n").or_else(|| memchr::memmem::find(fresh, b"\n\n")).is_some();
        if self.head.len() < MAX_HEAD && !ended() {
            return Ok(None);
        }
        let mut all = std::mem::take(&mut self.head);
        self.begin(&mut all)
    }

    fn begin(&mut self, bytes: &mut [u8]) -> Result<Option<(Head, Bytes, bool)>, Malformed> {
        let (understood, head) = read_head(bytes)?;
        let rest = bytes.get_mut(understood..).unwrap_or_default();
        let Some(mut head) = head else {
            self.skipped += understood;
            self.head.extend_from_slice(rest);
            return if self.skipped > MAX_HEAD { Err(Malformed::HeadTooLong) } else { Ok(None) };
        };
        let (payload, surplus) = take_data(&mut head.framing, rest);
        Ok(Some((head, payload, surplus)))
    }
}

/// What belongs to the body, and whether more came than that.
fn take_data(framing: &mut Framing, bytes: &mut [u8]) -> (Bytes, bool) {
    let Decoded { payload, consumed } = framing.decode(bytes);
    (Bytes::copy_from_slice(bytes.get(..payload).unwrap_or_default()), consumed < bytes.len())
}
