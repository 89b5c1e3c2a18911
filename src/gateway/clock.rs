//! The gateway's clock: the only place of the request path that reads the system time.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::api::time::EpochMs;

/// Now, as the pure modules want it.
#[must_use]
pub fn now() -> EpochMs {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    EpochMs(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

/// A timeout that costs nothing when the future is ready at once: most bodies come in the same packet as their head.
///
/// # Errors
/// The time is over.
pub async fn within<F: Future>(limit: Duration, future: F) -> Result<F::Output, tokio::time::error::Elapsed> {
    let mut future = pin!(future);
    if let Poll::Ready(output) = poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await {
        return Ok(output);
    }
    tokio::time::timeout(limit, future).await
}

/// A uniformly random number in `[0, 1)`, for jitter and draws that the pure modules take as arguments.
#[must_use]
pub fn random() -> f64 {
    rand::random::<f64>()
}
