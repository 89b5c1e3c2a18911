//! HTTP/1.1 as the receiver of an answer reads it (RFC 9112): its head, and where its body ends. Bytes come in, meaning goes out.
//!
//! The heads are parsed by `httparse`. What hyper's client adds to that was most of what an idle stream costs: for each connection two buffers of
//! 8 KiB and a queue with room for 32 requests, of which the gateway ever uses one.

use std::mem::MaybeUninit;
use std::ops::Range;

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue, TRANSFER_ENCODING};
use http::{StatusCode, Version};
use smallvec::SmallVec;

/// Longest head of an answer, bytes.
pub const MAX_HEAD: usize = 64 * 1024;
/// Most headers of an answer.
pub const MAX_HEADERS: usize = 100;
/// Most bytes beside the data of a chunk, and most bytes of trailers: nobody needs them, and somebody could send them for ever.
pub const MAX_ASIDE: usize = 16 * 1024;

/// An answer that is not HTTP/1.1, or that could be understood in two ways.
#[derive(thiserror::Error, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Malformed {
    /// The start line or a header.
    #[error("its head cannot be read: {0}")]
    Head(httparse::Error),
    /// A status below 100.
    #[error("{0} is no status")]
    Status(u16),
    /// More than [`MAX_HEAD`].
    #[error("its head is longer than {MAX_HEAD} bytes")]
    HeadTooLong,
    /// 101: the gateway never offers one.
    #[error("it switches to a protocol that nobody asked for")]
    Switched,
    /// Not a number, or several.
    #[error("its content-length is not one number")]
    Length,
    /// Anything but `chunked`, or from a server that speaks HTTP/1.0.
    #[error("its transfer-encoding is not `chunked`")]
    Coding,
    /// No hexadecimal number, or a larger one than there are bytes.
    #[error("a chunk has no valid size")]
    ChunkSize,
    /// Something else than CR LF after a chunk, its size or the last line.
    #[error("a chunk does not end where its size says")]
    ChunkEnd,
    /// More than [`MAX_ASIDE`].
    #[error("the extension of a chunk, or its trailers, are longer than {MAX_ASIDE} bytes")]
    Aside,
}

/// The head of an answer.
#[derive(Debug)]
pub struct Head {
    /// Its status, never an informational one.
    pub status: StatusCode,
    /// Its headers. They share one piece of memory.
    pub headers: HeaderMap,
    /// Where its body ends.
    pub framing: Framing,
    /// The connection may carry another request when the body has ended.
    pub keep_alive: bool,
}

/// Reads the head of an answer; blank lines and informational answers before it are skipped. Answers how many bytes were understood, and the
/// head once it is whole. Whoever calls it again with what follows has to bound what was skipped, by [`MAX_HEAD`].
///
/// # Errors
/// What follows cannot be trusted; the connection has to be closed.
pub fn read_head(input: &[u8]) -> Result<(usize, Option<Head>), Malformed> {
    let mut at = 0;
    loop {
        at += blank_lines(input.get(at..).unwrap_or_default());
        let rest = input.get(at..).unwrap_or_default();
        match parse(rest)? {
            None if rest.len() >= MAX_HEAD => return Err(Malformed::HeadTooLong),
            None => return Ok((at, None)),
            Some((length, _)) if length > MAX_HEAD => return Err(Malformed::HeadTooLong),
            Some((_, head)) if head.status == StatusCode::SWITCHING_PROTOCOLS => return Err(Malformed::Switched),
            Some((length, head)) => {
                at += length;
                if !head.status.is_informational() {
                    return Ok((at, Some(head)));
                }
            }
        }
    }
}

/// The length of the blank lines at the start.
fn blank_lines(input: &[u8]) -> usize {
    let mut at = 0;
    loop {
        match input.get(at..) {
            Some([b'\r', b'\n', ..]) => at += 2,
            Some([b'\n', ..]) => at += 1,
            _ => return at,
        }
    }
}

fn parse(input: &[u8]) -> Result<Option<(usize, Head)>, Malformed> {
    let mut slots = [const { MaybeUninit::uninit() }; MAX_HEADERS];
    let mut response = httparse::Response::new(&mut []);
    let config = httparse::ParserConfig::default();
    let parsed = config.parse_response_with_uninit_headers(&mut response, input, &mut slots).map_err(Malformed::Head)?;
    let httparse::Status::Complete(length) = parsed else { return Ok(None) };
    let status = response.code.unwrap_or_default();
    let status = StatusCode::from_u16(status).map_err(|_| Malformed::Status(status))?;
    let version = if response.version == Some(0) { Version::HTTP_10 } else { Version::HTTP_11 };
    let mut found: SmallVec<[(HeaderName, Range<usize>); 24]> = SmallVec::new();
    for header in &*response.headers {
        let name = HeaderName::from_bytes(header.name.as_bytes()).map_err(|_| Malformed::Head(httparse::Error::HeaderName))?;
        let start = (header.value.as_ptr() as usize).wrapping_sub(input.as_ptr() as usize);
        found.push((name, start..start.saturating_add(header.value.len())));
    }
    let bytes = Bytes::copy_from_slice(input.get(..length).unwrap_or_default());
    let mut headers = HeaderMap::with_capacity(found.len());
    for (name, range) in found {
        // An empty value lies nowhere.
        let value = if range.is_empty() || range.end > bytes.len() { Bytes::new() } else { bytes.slice(range) };
        headers.append(name, HeaderValue::from_maybe_shared(value).map_err(|_| Malformed::Head(httparse::Error::HeaderValue))?);
    }
    let (framing, keep_alive) = framing(status, version, &headers)?;
    Ok(Some((length, Head { status, headers, framing, keep_alive })))
}

/// Where the body ends (RFC 9112, section 6.3), and whether another answer may follow it.
fn framing(status: StatusCode, version: Version, headers: &HeaderMap) -> Result<(Framing, bool), Malformed> {
    let persistent = !says(headers, &CONNECTION, "close") && (version == Version::HTTP_11 || says(headers, &CONNECTION, "keep-alive"));
    if status.is_informational() || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED) {
        return Ok((Framing::Ended, persistent));
    }
    let length = content_length(headers)?;
    if headers.contains_key(TRANSFER_ENCODING) {
        let only = |coding: &str| tokens(headers, &TRANSFER_ENCODING).all(|token| token.eq_ignore_ascii_case(coding));
        let named = tokens(headers, &TRANSFER_ENCODING).count();
        if version == Version::HTTP_10 || named == 0 {
            return Err(Malformed::Coding);
        }
        if only("chunked") {
            // With a length beside it, or said twice, somebody on the way may have read something else: nothing that follows can be trusted.
            return Ok((Framing::Chunked(Chunked::default()), persistent && length.is_none() && named == 1));
        }
        if !only("identity") {
            return Err(Malformed::Coding);
        }
        // The old way to say that there is none.
        return Ok((length.map_or(Framing::UntilClose, Framing::of), false));
    }
    Ok(match length {
        Some(length) => (Framing::of(length), persistent),
        None => (Framing::UntilClose, false),
    })
}

fn tokens<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    let values = headers.get_all(name).into_iter().map(|v| v.to_str().unwrap_or("?"));
    values.flat_map(|v| v.split(',')).map(str::trim).filter(|t| !t.is_empty())
}

fn says(headers: &HeaderMap, name: &HeaderName, token: &str) -> bool {
    tokens(headers, name).any(|t| t.eq_ignore_ascii_case(token))
}

fn content_length(headers: &HeaderMap) -> Result<Option<u64>, Malformed> {
    let mut length = None;
    for value in headers.get_all(CONTENT_LENGTH) {
        for token in value.to_str().map_err(|_| Malformed::Length)?.split(',').map(str::trim) {
            let number = if token.bytes().all(|b| b.is_ascii_digit()) { token.parse().ok() } else { None };
            if number.is_none() || (length.is_some() && length != number) {
                return Err(Malformed::Length);
            }
            length = number;
        }
    }
    Ok(length)
}

/// Where a body ends, and how far it has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Framing {
    /// Nothing more belongs to it.
    Ended,
    /// This many bytes more.
    Length(u64),
    /// Chunks.
    Chunked(Chunked),
    /// Everything until the server closes the connection.
    UntilClose,
    /// It cannot be read any further.
    Broken(Malformed),
}

/// What was understood of an input.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Decoded {
    /// Bytes of the body, now at the front of the input.
    pub payload: usize,
    /// Bytes that belonged to the answer: all, unless it has ended.
    pub consumed: usize,
}

impl Framing {
    const fn of(length: u64) -> Self {
        if length == 0 { Self::Ended } else { Self::Length(length) }
    }

    /// True when nothing more belongs to the body.
    #[must_use]
    pub const fn is_ended(&self) -> bool {
        matches!(self, Self::Ended)
    }

    /// Bytes that are still to come, where the answer says so.
    #[must_use]
    pub const fn remaining(&self) -> Option<u64> {
        match self {
            Self::Ended => Some(0),
            Self::Length(left) => Some(*left),
            Self::Chunked(_) | Self::UntilClose | Self::Broken(_) => None,
        }
    }

    /// Separates the body from its framing, within `input`. What precedes a mistake is the body's as well; the mistake is in `self` then.
    pub fn decode(&mut self, input: &mut [u8]) -> Decoded {
        match self {
            Self::Ended | Self::Broken(_) => Decoded::default(),
            Self::UntilClose => Decoded { payload: input.len(), consumed: input.len() },
            Self::Length(left) => {
                let taken = usize::try_from(*left).unwrap_or(usize::MAX).min(input.len());
                *left -= taken as u64;
                if *left == 0 {
                    *self = Self::Ended;
                }
                Decoded { payload: taken, consumed: taken }
            }
            Self::Chunked(chunked) => {
                let (decoded, state) = chunked.decode(input);
                match state {
                    Ok(false) => {}
                    Ok(true) => *self = Self::Ended,
                    Err(mistake) => *self = Self::Broken(mistake),
                }
                decoded
            }
        }
    }
}

/// A place in a chunked body.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Chunked {
    at: At,
    /// Bytes left of a chunk, or what was read of its size.
    left: u64,
    /// Bytes beside the data since the last chunk.
    aside: u16,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum At {
    /// Before the first digit of a size.
    #[default]
    Start,
    Size,
    /// Blanks after a size.
    Blank,
    Extension,
    /// After the CR of a size line.
    SizeEnd,
    Data,
    /// After the data of a chunk.
    DataEnd,
    /// After the CR that follows the data.
    DataCr,
    /// At the start of a line behind the last chunk.
    Line,
    Trailer,
    /// After the CR of a trailer.
    TrailerCr,
    /// After the CR of the line that ends it all.
    LastCr,
}

impl Chunked {
    /// Answers what was decoded, and whether the body has ended.
    fn decode(&mut self, input: &mut [u8]) -> (Decoded, Result<bool, Malformed>) {
        let mut done = Decoded::default();
        while let Some(&byte) = input.get(done.consumed) {
            if self.at == At::Data {
                let here = input.len() - done.consumed;
                let taken = usize::try_from(self.left).unwrap_or(usize::MAX).min(here);
                input.copy_within(done.consumed..done.consumed + taken, done.payload);
                done.payload += taken;
                done.consumed += taken;
                self.left -= taken as u64;
                if self.left == 0 {
                    self.at = At::DataEnd;
                }
                continue;
            }
            done.consumed += 1;
            match self.step(byte) {
                Ok(false) => {}
                ended => return (done, ended),
            }
        }
        (done, Ok(false))
    }

    /// Takes a byte of the framing; true at the end of the body.
    fn step(&mut self, byte: u8) -> Result<bool, Malformed> {
        self.at = match (self.at, byte) {
            (At::Start | At::Size, b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F') => {
                let digit = u64::from(char::from(byte).to_digit(16).unwrap_or_default());
                // Leading zeros say nothing, and there could be any number of them.
                let next = if self.left == 0 && digit == 0 { self.aside(At::Size)? } else { At::Size };
                self.left = self.left.checked_mul(16).and_then(|left| left.checked_add(digit)).ok_or(Malformed::ChunkSize)?;
                next
            }
            (At::Size | At::Blank, b' ' | b'\t') => self.aside(At::Blank)?,
            (At::Size | At::Blank, b';') => self.aside(At::Extension)?,
            (At::Size | At::Blank | At::Extension, b'\r') => At::SizeEnd,
            (At::Start | At::Size | At::Blank, _) => return Err(Malformed::ChunkSize),
            (At::SizeEnd, b'\n') if self.left == 0 => At::Line,
            (At::SizeEnd, b'\n') => At::Data,
            (At::DataEnd, b'\r') => At::DataCr,
            (At::DataCr, b'\n') => {
                self.aside = 0;
                At::Start
            }
            (At::Line, b'\r') => At::LastCr,
            (At::LastCr, b'\n') => return Ok(true),
            (At::Trailer, b'\r') => At::TrailerCr,
            (At::TrailerCr, b'\n') => At::Line,
            (At::Extension | At::Trailer | At::Line, b'\n') => return Err(Malformed::ChunkEnd),
            (At::Extension, _) => self.aside(At::Extension)?,
            (At::Line | At::Trailer, _) => self.aside(At::Trailer)?,
            (At::SizeEnd | At::Data | At::DataEnd | At::DataCr | At::LastCr | At::TrailerCr, _) => return Err(Malformed::ChunkEnd),
        };
        Ok(false)
    }

    fn aside(&mut self, next: At) -> Result<At, Malformed> {
        self.aside += 1;
        if usize::from(self.aside) > MAX_ASIDE { Err(Malformed::Aside) } else { Ok(next) }
    }
}

#[cfg(test)]
#[path = "http1_tests.rs"]
mod tests;
