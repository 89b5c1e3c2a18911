//! The wall clock of the operator.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::api::time::EpochMs;

/// Now.
#[must_use]
pub fn now() -> EpochMs {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    EpochMs(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}
