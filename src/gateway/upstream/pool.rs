//! Idle connections of one runtime, by origin. Nobody polls an idle connection: it is looked at when it is taken out.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::wire::Conn;

/// Bounds of a pool.
#[derive(Clone, Copy, Debug)]
pub struct PoolLimits {
    /// Idle connections of one origin.
    pub idle_per_origin: usize,
    /// How long a connection may be idle. Below the keep-alive of common servers (60 s and more).
    pub idle_timeout: Duration,
}

impl Default for PoolLimits {
    fn default() -> Self {
        Self { idle_per_origin: 256, idle_timeout: Duration::from_secs(50) }
    }
}

struct Idle {
    conn: Box<Conn>,
    since: Instant,
}

/// The idle connections of one runtime.
pub(super) struct Pool {
    limits: PoolLimits,
    idle: Mutex<Shelves>,
}

#[derive(Default)]
struct Shelves {
    by_origin: HashMap<Arc<str>, VecDeque<Idle>>,
    /// A sweeper is on its way.
    sweeping: bool,
}

impl Pool {
    pub fn new(limits: PoolLimits) -> Arc<Self> {
        Arc::new(Self { limits, idle: Mutex::default() })
    }

    fn shelves(&self) -> std::sync::MutexGuard<'_, Shelves> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The most recently used connection that is still alive.
    pub fn take(&self, origin: &str) -> Option<Box<Conn>> {
        // Without budget every socket looks silent, also one that was closed.
        while tokio::task::coop::has_budget_remaining() {
            let idle = self.shelves().by_origin.get_mut(origin)?.pop_back()?;
            let mut conn = idle.conn;
            if idle.since.elapsed() < self.limits.idle_timeout && conn.is_usable() {
                conn.reused = true;
                return Some(conn);
            }
        }
        None
    }

    /// Keeps a connection whose exchange is complete; one that cannot take another request is closed.
    pub fn put(self: &Arc<Self>, origin: &Arc<str>, mut conn: Box<Conn>) {
        if self.limits.idle_per_origin == 0 || !conn.is_usable() {
            return;
        }
        let mut shelves = self.shelves();
        let shelf = shelves.by_origin.entry(Arc::clone(origin)).or_default();
        let oldest = if shelf.len() >= self.limits.idle_per_origin { shelf.pop_front() } else { None };
        shelf.push_back(Idle { conn, since: Instant::now() });
        let start_sweeper = !std::mem::replace(&mut shelves.sweeping, true);
        drop(shelves);
        drop(oldest);
        if start_sweeper {
            tokio::spawn(sweep(Arc::downgrade(self), self.limits.idle_timeout));
        }
    }

    /// Closes what was idle for too long; false when nothing is left.
    fn expire(&self) -> bool {
        let mut expired = Vec::new();
        let mut shelves = self.shelves();
        shelves.by_origin.retain(|_, shelf| {
            while shelf.front().is_some_and(|idle| idle.since.elapsed() >= self.limits.idle_timeout) {
                expired.extend(shelf.pop_front());
            }
            !shelf.is_empty()
        });
        shelves.sweeping = !shelves.by_origin.is_empty();
        shelves.sweeping
    }
}

/// Runs as long as there are idle connections.
async fn sweep(pool: std::sync::Weak<Pool>, every: Duration) {
    loop {
        tokio::time::sleep(every).await;
        if !pool.upgrade().is_some_and(|pool| pool.expire()) {
            return;
        }
    }
}
