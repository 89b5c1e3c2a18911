//! Documents as Secrets and ConfigMaps carry them: compressed so that the same document always gives the same bytes, and bounded when
//! they are unpacked.

use std::io::{Read as _, Write as _};

use flate2::read::GzDecoder;
use flate2::{Compression, GzBuilder};

/// Largest document after unpacking, bytes; a Secret and a ConfigMap hold at most 1 MiB before it.
pub const MAX_DOCUMENT: usize = 64 << 20;

/// Why a document cannot be unpacked.
#[derive(thiserror::Error, Debug)]
pub enum UnpackError {
    /// Not gzip, or broken.
    #[error("{0}")]
    Gzip(#[from] std::io::Error),
    /// It would not fit into memory.
    #[error("more than {MAX_DOCUMENT} bytes when unpacked")]
    TooLarge,
}

/// Gzip with no time and no name in its header.
#[must_use]
pub fn pack(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzBuilder::new().mtime(0).write(Vec::new(), Compression::default());
    // Writing to memory cannot fail.
    let _ = encoder.write_all(bytes);
    encoder.finish().unwrap_or_default()
}

/// The document in `gzip`.
///
/// # Errors
/// It is broken, or larger than [`MAX_DOCUMENT`].
pub fn unpack(gzip: &[u8]) -> Result<Vec<u8>, UnpackError> {
    let mut bytes = Vec::new();
    let limit = u64::try_from(MAX_DOCUMENT).unwrap_or(u64::MAX);
    GzDecoder::new(gzip).take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() > MAX_DOCUMENT { Err(UnpackError::TooLarge) } else { Ok(bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_is_unpacked_and_bombs_are_not() {
        assert_eq!(unpack(&pack(b"{}")).unwrap(), b"{}");
        assert_eq!(&pack(b"{}")[4..8], [0; 4], "no time in the header");
        assert!(matches!(unpack(b"plain"), Err(UnpackError::Gzip(_))));
        assert!(matches!(unpack(&pack(b"{}")[..12]), Err(UnpackError::Gzip(_))));
        assert_eq!(unpack(&pack(&vec![b' '; MAX_DOCUMENT])).unwrap().len(), MAX_DOCUMENT);
        assert!(matches!(unpack(&pack(&vec![b' '; MAX_DOCUMENT + 1])), Err(UnpackError::TooLarge)));
    }
}
