//! Waiting for what no event tells.

use std::time::{Duration, Instant};

/// Looks again and again until something holds; fails when it does not within that time. Answers how long it took.
pub async fn eventually(what: &str, within: Duration, mut holds: impl AsyncFnMut() -> bool) -> Duration {
    let begun = Instant::now();
    while !holds().await {
        assert!(begun.elapsed() < within, "{what}: not within {within:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    begun.elapsed()
}
