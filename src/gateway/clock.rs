//! The gateway's clock: the only place of the request path that reads the system time.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::api::time::EpochMs;

/// Now, as the pure modules want it.
#[must_use]
pub fn now() -> EpochMs {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    EpochMs(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

/// A uniformly random number in `[0, 1)`, for jitter and draws that the pure modules take as arguments.
#[must_use]
pub fn random() -> f64 {
    rand::random::<f64>()
}
