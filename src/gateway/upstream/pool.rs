//! Idle connections of one runtime, by origin. Nobody polls an idle connection: it is looked at when it is taken out.

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::client::conn::http1::{Connection, SendRequest};
use hyper_util::rt::TokioIo;

use crate::dial::Socket;
use crate::protocol::scan::RequestBody;

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

/// A request body on its way out: the pieces that are left. Small, because every connection has a queue with room for 32 of them.
pub(super) struct Payload {
    body: RequestBody,
    left: u64,
}

impl From<RequestBody> for Payload {
    fn from(body: RequestBody) -> Self {
        let left = body.len() as u64;
        Self { body, left }
    }
}

impl Body for Payload {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let piece = self.body.next_piece();
        self.left = self.left.saturating_sub(piece.as_ref().map_or(0, |p| p.len() as u64));
        Poll::Ready(piece.map(|p| Ok(Frame::data(p))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

/// A connection and the future that runs its protocol. Dropping it closes the socket at once.
pub(super) struct Conn {
    pub sender: SendRequest<Payload>,
    driver: Option<Box<Connection<TokioIo<Socket>, Payload>>>,
    received: Arc<AtomicU64>,
    /// It has carried a request before.
    pub reused: bool,
}

impl Conn {
    pub fn new(sender: SendRequest<Payload>, driver: Connection<TokioIo<Socket>, Payload>, received: Arc<AtomicU64>) -> Self {
        Self { sender, driver: Some(Box::new(driver)), received, reused: false }
    }

    /// Bytes that ever came in.
    pub fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Runs the protocol as far as it gets. After the connection has ended this does nothing.
    pub fn drive(&mut self, cx: &mut Context<'_>) {
        if let Some(driver) = &mut self.driver
            && Pin::new(driver.as_mut()).poll(cx).is_ready()
        {
            self.driver = None;
        }
    }

    /// True when it can take the next request.
    fn is_usable(&mut self) -> bool {
        self.drive(&mut Context::from_waker(Waker::noop()));
        self.driver.is_some() && self.sender.is_ready()
    }
}

struct Idle {
    conn: Conn,
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
    pub fn take(&self, origin: &str) -> Option<Conn> {
        loop {
            let idle = self.shelves().by_origin.get_mut(origin)?.pop_back()?;
            let mut conn = idle.conn;
            if idle.since.elapsed() < self.limits.idle_timeout && conn.is_usable() {
                conn.reused = true;
                return Some(conn);
            }
        }
    }

    /// Keeps a connection whose exchange is complete; one that cannot take another request is closed.
    pub fn put(self: &Arc<Self>, origin: &Arc<str>, mut conn: Conn) {
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
