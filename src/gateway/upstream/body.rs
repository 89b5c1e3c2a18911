//! Answer bodies: they run the protocol of their connection while they are read, and give it back to the pool at their end.

use std::io::{self, Read};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use flate2::read::{MultiGzDecoder, ZlibDecoder};
use http::header::{CONTENT_ENCODING, HeaderMap};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;

use super::pool::Pool;
use super::wire::Conn;
use crate::classify::TransportError;
use crate::gateway::admission::{Buffered, Buffers};
use crate::gateway::clock;

/// A body that did not come to its end.
#[derive(thiserror::Error, Clone, PartialEq, Eq, Debug)]
#[error("{message}")]
pub struct BodyError {
    /// How it failed.
    pub transport: TransportError,
    /// What happened.
    pub message: String,
}

/// The body of a provider's answer. Dropping it before its end closes the connection at once.
pub struct UpstreamBody {
    /// Gone when the connection serves others again, or broke.
    link: Option<Link>,
}

struct Link {
    conn: Box<Conn>,
    pool: Arc<Pool>,
    origin: Arc<str>,
}

impl std::fmt::Debug for UpstreamBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UpstreamBody").field("open", &self.link.is_some()).finish_non_exhaustive()
    }
}

impl UpstreamBody {
    pub(super) fn new(conn: Box<Conn>, pool: Arc<Pool>, origin: Arc<str>) -> Self {
        let mut body = Self { link: Some(Link { conn, pool, origin }) };
        body.release_at_end();
        body
    }

    /// When the exchange is complete the connection may serve again.
    fn release_at_end(&mut self) {
        if let Some(Link { conn, pool, origin }) = self.link.take_if(|link| link.conn.is_ended()) {
            pool.put(&origin, conn);
        }
    }
}

impl Body for UpstreamBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let Some(link) = &mut self.link else { return Poll::Ready(None) };
        let read = ready!(link.conn.poll_data(cx));
        self.release_at_end();
        Poll::Ready(read.map(|data| {
            data.map(Frame::data).map_err(|error| {
                self.link = None;
                BodyError { transport: TransportError::Reset, message: format!("reading the answer: {error}") }
            })
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.link.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        match self.link.as_ref().map_or(Some(0), |link| link.conn.remaining()) {
            Some(left) => SizeHint::with_exact(left),
            None => SizeHint::default(),
        }
    }
}

/// A body that was read as far as it may be held.
#[derive(Debug)]
pub enum Collected<B = UpstreamBody> {
    /// All of it.
    Whole {
        /// The bytes.
        bytes: Bytes,
        /// Their share of the memory that all bodies may use.
        room: Option<Buffered>,
    },
    /// More than the limit, or more than there is room for: what was read, and the rest to be relayed unread.
    TooLarge {
        /// What was read.
        prefix: Bytes,
        /// Its share of the memory that all bodies may use; less than its length when that ran out.
        room: Option<Buffered>,
        /// What follows.
        rest: B,
    },
}

/// Reads a body up to `limit` bytes, and as far as `buffers` has room. `idle` bounds the silence between two reads.
///
/// # Errors
/// The body ended too early, or was silent for too long.
pub async fn collect<B>(mut body: B, limit: usize, idle: Duration, buffers: &Buffers) -> Result<Collected<B>, BodyError>
where
    B: Body<Data = Bytes, Error = BodyError> + Unpin,
{
    let mut read = Gathered::default();
    loop {
        let frame = clock::within(idle, body.frame()).await.map_err(|_| {
            let message = format!("reading the answer: silent for {} ms", idle.as_millis());
            BodyError { transport: TransportError::Timeout, message }
        })?;
        let Some(frame) = frame else {
            return Ok(Collected::Whole { room: read.room.take(), bytes: read.into_bytes() });
        };
        let Ok(data) = frame?.into_data() else { continue };
        let stated = body.size_hint().exact().unwrap_or(0);
        if !read.push(data, limit, stated, buffers) {
            return Ok(Collected::TooLarge { room: read.room.take(), prefix: read.into_bytes(), rest: body });
        }
    }
}

/// What was read of a body.
#[derive(Default)]
struct Gathered {
    /// One read is the common case: it is passed on without being copied.
    first: Bytes,
    all: BytesMut,
    room: Option<Buffered>,
}

impl Gathered {
    /// Takes a read over; false when it is the last one that may be held. `stated` is what is still to come, as far as the answer says.
    fn push(&mut self, data: Bytes, limit: usize, stated: u64, buffers: &Buffers) -> bool {
        if self.first.is_empty() && self.all.is_empty() {
            self.first = data;
        } else {
            if self.all.is_empty() {
                self.all.extend_from_slice(&self.first);
            }
            self.all.extend_from_slice(&data);
        }
        let len = self.first.len().max(self.all.len());
        len <= limit && self.reserve(len as u64, stated.min((limit - len) as u64), buffers)
    }

    fn reserve(&mut self, len: u64, stated: u64, buffers: &Buffers) -> bool {
        let reserved = self.room.as_ref().map_or(0, Buffered::bytes);
        if len <= reserved {
            return true;
        }
        // All that was announced, else doubling: both keep the number of reservations small.
        let wanted = if stated > 0 || reserved == 0 { len + stated - reserved } else { len.max(reserved) };
        let Some(more) = buffers.reserve(wanted) else { return false };
        match &mut self.room {
            Some(room) => room.absorb(more),
            room => *room = Some(more),
        }
        true
    }

    fn into_bytes(self) -> Bytes {
        if self.all.is_empty() { self.first } else { self.all.freeze() }
    }
}

/// A compressed body that cannot be read.
#[derive(thiserror::Error, Debug)]
pub enum DecodeError {
    /// An encoding that was not asked for and is not known.
    #[error("the answer has the content encoding `{0}`, though identity was asked for")]
    Unknown(String),
    /// Broken data.
    #[error("decoding the answer ({encoding}): {source}")]
    Broken {
        /// Its encoding.
        encoding: &'static str,
        /// What is wrong.
        source: io::Error,
    },
    /// Larger than what may be held.
    #[error("the decoded answer is larger than {0} bytes")]
    TooLarge(usize),
}

/// Decodes a body that came compressed although identity was asked for, so that it can be inspected. Answers `None` when there is
/// nothing to decode; otherwise the caller must drop `content-encoding` together with the old bytes.
///
/// # Errors
/// The encoding is unknown, the data broken, or the result larger than `limit`.
pub fn decode(headers: &HeaderMap, body: &Bytes, limit: usize) -> Result<Option<Bytes>, DecodeError> {
    let Some(encoding) = headers.get(CONTENT_ENCODING).and_then(|v| v.to_str().ok()) else { return Ok(None) };
    let read = |reader: &mut dyn Read, encoding| {
        let mut out = Vec::with_capacity(body.len().saturating_mul(4).min(limit));
        reader.take(limit as u64 + 1).read_to_end(&mut out).map_err(|source| DecodeError::Broken { encoding, source })?;
        if out.len() > limit { Err(DecodeError::TooLarge(limit)) } else { Ok(Some(Bytes::from(out))) }
    };
    match encoding.trim().to_ascii_lowercase().as_str() {
        "" | "identity" => Ok(None),
        "gzip" | "x-gzip" => read(&mut MultiGzDecoder::new(&body[..]), "gzip"),
        "deflate" => read(&mut ZlibDecoder::new(&body[..]), "deflate"),
        other => Err(DecodeError::Unknown(other.chars().take(32).collect())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;
    use std::io::Write;

    #[test]
    fn compressed_bodies_are_decoded_within_their_limit() {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        encoder.write_all(&[b'x'; 10_000]).expect("gzip");
        let body = Bytes::from(encoder.finish().expect("gzip"));
        let headers = |e: &'static str| HeaderMap::from_iter([(CONTENT_ENCODING, HeaderValue::from_static(e))]);
        assert_eq!(decode(&headers("gzip"), &body, 10_000).expect("decodes").expect("encoded").len(), 10_000);
        assert!(matches!(decode(&headers("gzip"), &body, 9_999), Err(DecodeError::TooLarge(9_999))));
        assert!(matches!(decode(&headers("gzip"), &Bytes::from_static(b"no"), 10), Err(DecodeError::Broken { .. })));
        assert!(matches!(decode(&headers("br"), &body, 10), Err(DecodeError::Unknown(_))));
        assert!(matches!(decode(&HeaderMap::new(), &body, 10), Ok(None)));
    }
}
