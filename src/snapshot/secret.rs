//! A value that must not be seen.

use std::fmt;

use serde::{Deserialize, Serialize};
use zeroize::ZeroizeOnDrop;

/// A secret value. `Debug` shows nothing of it, memory is wiped on drop, and there is no `Display`.
/// It is serialised in clear, because the config Secret and the state file have to carry it: serialise it nowhere else.
///
/// ```
/// let secret = omniroute::snapshot::Secret::new("sk-1234");
/// assert_eq!(format!("{secret:?}"), "[redacted]");
/// ```
///
/// What would print it does not compile:
///
/// ```compile_fail,E0277
/// let secret = omniroute::snapshot::Secret::new("sk-1234");
/// println!("{secret}");
/// ```
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize, ZeroizeOnDrop)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// Wraps a value.
    #[must_use]
    pub fn new(value: impl Into<String>) -> Self {
        Self(value.into())
    }

    /// The value, for the one place that sends it.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[redacted]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_shows_nothing() {
        assert_eq!(format!("{:?}", Some(Secret::new("sk-1234"))), "Some([redacted])");
    }
}
