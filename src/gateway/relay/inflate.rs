//! Decodes a stream that came compressed although identity was asked for.

use std::io::Write;

use bytes::Bytes;
use flate2::write::{GzDecoder, ZlibDecoder};

use crate::classify::TransportError;
use crate::gateway::upstream::BodyError;

/// Most bytes that one read may become: a small frame that explodes is an attack or a defect.
const MAX_EXPANDED: usize = 16 * 1024 * 1024;

/// A running decompression.
#[derive(Debug)]
pub(super) enum Inflate {
    Gzip(GzDecoder<Bounded>),
    Deflate(ZlibDecoder<Bounded>),
}

#[derive(Debug, Default)]
pub(super) struct Bounded(Vec<u8>);

impl Write for Bounded {
    fn write(&mut self, buf: &[u8]) -> std::io::Result<usize> {
        if self.0.len() + buf.len() > MAX_EXPANDED {
            return Err(std::io::Error::other("it expands beyond 16 MiB"));
        }
        self.0.extend_from_slice(buf);
        Ok(buf.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Inflate {
    /// The decoder of a content encoding, `None` for identity.
    pub fn for_encoding(encoding: &str) -> Result<Option<Self>, String> {
        match encoding.trim().to_ascii_lowercase().as_str() {
            "" | "identity" => Ok(None),
            "gzip" | "x-gzip" => Ok(Some(Self::Gzip(GzDecoder::new(Bounded::default())))),
            "deflate" => Ok(Some(Self::Deflate(ZlibDecoder::new(Bounded::default())))),
            _ => Err("the stream has a content encoding that cannot be read, though identity was asked for".to_owned()),
        }
    }

    /// Everything that can be decoded with these bytes.
    pub fn push(&mut self, bytes: &[u8]) -> Result<Bytes, BodyError> {
        let written = match self {
            Self::Gzip(d) => d.write_all(bytes).and_then(|()| d.flush()).map(|()| std::mem::take(&mut d.get_mut().0)),
            Self::Deflate(d) => d.write_all(bytes).and_then(|()| d.flush()).map(|()| std::mem::take(&mut d.get_mut().0)),
        };
        written.map(Bytes::from).map_err(|e| BodyError { transport: TransportError::Reset, message: format!("decoding the stream: {e}") })
    }
}
