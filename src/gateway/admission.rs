//! What may run at the same time: the gateway as a whole here, connections and models in [`super::gates`]. A local limit never touches the
//! health of anything (decisions 5.5).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A counter with a limit, shared by all threads.
#[derive(Debug, Default)]
struct Level {
    used: AtomicU64,
    limit: AtomicU64,
}

impl Level {
    /// Takes `amount` if it fits; 0 as limit = no limit.
    fn take(&self, amount: u64) -> bool {
        let limit = match self.limit.load(Ordering::Relaxed) {
            0 => u64::MAX,
            limit => limit,
        };
        let fits = |used: u64| used.checked_add(amount).filter(|after| *after <= limit);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok()
    }

    fn give_back(&self, amount: u64) {
        self.used.fetch_sub(amount, Ordering::Relaxed);
    }
}

/// Requests in flight over the whole gateway (`gateway.maxConcurrentRequests`).
#[derive(Clone, Debug, Default)]
pub struct Requests(Arc<Level>);

impl Requests {
    /// Sets the limit; 0 = none. Requests that run already stay.
    pub fn limit(&self, limit: u64) {
        self.0.limit.store(limit, Ordering::Relaxed);
    }

    /// A place for one request, while one is free.
    #[must_use]
    pub fn enter(&self) -> Option<RequestSlot> {
        self.0.take(1).then(|| RequestSlot(Arc::clone(&self.0)))
    }
}

/// The place of one request; free again when it is dropped.
#[derive(Debug)]
pub struct RequestSlot(Arc<Level>);

impl Drop for RequestSlot {
    fn drop(&mut self) {
        self.0.give_back(1);
    }
}

/// Bytes of all bodies that are held (`gateway.maxBufferedBytes`).
#[derive(Clone, Debug, Default)]
pub struct Buffers(Arc<Level>);

impl Buffers {
    /// Sets the limit in bytes; 0 = none.
    pub fn limit(&self, bytes: u64) {
        self.0.limit.store(bytes, Ordering::Relaxed);
    }

    /// Room for `bytes`, while there is any.
    #[must_use]
    pub fn reserve(&self, bytes: u64) -> Option<Buffered> {
        self.0.take(bytes).then(|| Buffered { level: Arc::clone(&self.0), bytes })
    }
}

/// Reserved memory; given back when it is dropped.
#[derive(Debug)]
pub struct Buffered {
    level: Arc<Level>,
    bytes: u64,
}

impl Buffered {
    /// How much it is.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Joins another reservation of the same gateway.
    pub fn absorb(&mut self, mut other: Self) {
        self.bytes += std::mem::take(&mut other.bytes);
    }
}

impl Drop for Buffered {
    fn drop(&mut self) {
        self.level.give_back(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gateway_holds_what_it_may() {
        let requests = Requests::default();
        requests.limit(2);
        let (first, _second) = (requests.enter().unwrap(), requests.enter().unwrap());
        assert!(requests.enter().is_none());
        drop(first);
        assert!(requests.enter().is_some());
        requests.limit(0);
        let many: Vec<_> = (0..100).map(|_| requests.enter().unwrap()).collect();
        assert_eq!(many.len(), 100);
    }

    #[test]
    fn memory_is_given_back_once() {
        let buffers = Buffers::default();
        buffers.limit(10);
        let mut held = buffers.reserve(6).unwrap();
        assert!(buffers.reserve(5).is_none());
        held.absorb(buffers.reserve(4).unwrap());
        assert_eq!(held.bytes(), 10);
        drop(held);
        assert_eq!(buffers.reserve(10).map(|b| b.bytes()), Some(10));
        assert!(buffers.reserve(u64::MAX).is_none());
    }
}
