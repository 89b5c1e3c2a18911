//! Sockets and threads: one single-threaded runtime per core, each with its own listener (`SO_REUSEPORT`), its own upstream pool and the
//! connections that the kernel gave it. Nothing moves between threads while a request runs.

use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::num::NonZeroUsize;
use std::pin::pin;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::service::{ClientConnection, Worker};
use super::sniff::{HeadWatch, Sniffed, WRITE_STALL};
use super::{Gateway, admin};

/// Client connections that one runtime holds; further ones wait in the kernel's backlog.
const MAX_CONNECTIONS: usize = 16_384;
/// Bytes of a request's head, and of what hyper buffers beyond it while a body is read.
const MAX_BUFFER: usize = 64 * 1024;
/// When a silent client is asked for a sign of life, and how often from then on: one that is gone without a word is noticed although nothing is sent.
const KEEPALIVE: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(20));
/// Connections that wait to be accepted.
const BACKLOG: i32 = 4096;

/// Where and how to serve.
#[derive(Clone, Copy, Debug)]
pub struct ServerOptions {
    /// Address of the proxy port; port 0 picks a free one.
    pub listen: SocketAddr,
    /// Address of the management port; port 0 picks a free one.
    pub management: SocketAddr,
    /// Serving threads; `None` = one per core.
    pub threads: Option<NonZeroUsize>,
    /// How long connections are still accepted after the drain began, so that balancers have time to see `/readyz`.
    pub lame_duck: Duration,
    /// How long a client may take nothing of its answer before its connection is closed.
    pub write_stall: Duration,
    /// Longest wait for running requests after that; the settings' `drainDeadline` acts below it.
    pub max_drain: Duration,
}

impl ServerOptions {
    /// Options for `run` and for tests: one second of grace altogether is not exceeded when nothing runs, and nine never.
    #[must_use]
    pub const fn local(listen: SocketAddr, management: SocketAddr) -> Self {
        Self {
            listen,
            management,
            threads: None,
            lame_duck: Duration::from_millis(250),
            write_stall: WRITE_STALL,
            max_drain: Duration::from_secs(8),
        }
    }
}

/// Why serving could not start.
#[derive(thiserror::Error, Debug)]
pub enum StartError {
    /// The address is taken or not ours.
    #[error("listening on {address} ({flag}): {source}; choose another address with {flag}")]
    Listen {
        /// The address that was asked for.
        address: SocketAddr,
        /// The flag that sets it.
        flag: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// No thread or no event loop.
    #[error("starting a serving thread: {0}")]
    Thread(#[source] io::Error),
}

/// A gateway that serves. Dropping it ends serving at once; [`Self::drain`] ends it decently.
#[derive(Debug)]
pub struct Running {
    gateway: Arc<Gateway>,
    listen: SocketAddr,
    management: SocketAddr,
    lame_duck: Duration,
    max_drain: Duration,
    stop_accepting: CancellationToken,
    stop: CancellationToken,
    ended: mpsc::Receiver<()>,
    threads: Vec<thread::JoinHandle<()>>,
}

/// Opens both ports and starts the serving threads.
///
/// # Errors
/// An address that cannot be listened on, or no thread.
pub fn start(gateway: Arc<Gateway>, options: ServerOptions) -> Result<Running, StartError> {
    let threads = options.threads.map_or_else(|| thread::available_parallelism().map_or(1, NonZeroUsize::get), NonZeroUsize::get);
    let listen_error = |address, flag| move |source| StartError::Listen { address, flag, source };
    let first = bind(options.listen, true).map_err(listen_error(options.listen, "--listen"))?;
    let listen = first.local_addr().map_err(listen_error(options.listen, "--listen"))?;
    let mut listeners = vec![first];
    for _ in 1..threads {
        listeners.push(bind(listen, true).map_err(listen_error(listen, "--listen"))?);
    }
    let management_listener = bind(options.management, false).map_err(listen_error(options.management, "--management"))?;
    let management = management_listener.local_addr().map_err(listen_error(options.management, "--management"))?;

    let (alive, ended) = mpsc::channel(1);
    let mut running = Running {
        gateway: Arc::clone(&gateway),
        listen,
        management,
        lame_duck: options.lame_duck,
        max_drain: options.max_drain,
        stop_accepting: CancellationToken::new(),
        stop: CancellationToken::new(),
        ended,
        threads: Vec::new(),
    };
    for (number, listener) in listeners.into_iter().enumerate() {
        let (worker, stop_accepting, stop) = (Worker::new(Arc::clone(&gateway)), running.stop_accepting.clone(), running.stop.clone());
        let stall = options.write_stall;
        let serve = move || async move { serve_clients(worker, listener, stall, stop_accepting, stop).await };
        running.threads.push(spawn(format!("proxy-{number}"), alive.clone(), serve)?);
    }
    let (stop, management_gateway) = (running.stop.clone(), Arc::clone(&gateway));
    let serve = move || async move { admin::serve(management_gateway, management_listener, stop).await };
    running.threads.push(spawn("management".to_owned(), alive, serve)?);
    gateway.set_serving(true);
    Ok(running)
}

impl Running {
    /// Address of the proxy port.
    #[must_use]
    pub const fn listen_addr(&self) -> SocketAddr {
        self.listen
    }

    /// Address of the management port.
    #[must_use]
    pub const fn management_addr(&self) -> SocketAddr {
        self.management
    }

    /// Ends serving: `/readyz` fails first, connections are accepted for a moment longer, running requests finish until the drain
    /// deadline, then everything stops and the last state is stored.
    pub async fn drain(mut self) {
        self.gateway.set_serving(false);
        let deadline = self.gateway.drain_deadline().min(self.max_drain);
        tokio::time::sleep(self.lame_duck).await;
        self.stop_accepting.cancel();
        let idle = async {
            while self.gateway.metrics().in_flight() > 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        if tokio::time::timeout(deadline, idle).await.is_err() {
            tracing::warn!(requests = self.gateway.metrics().in_flight(), "the drain deadline passed: running requests are cut");
        }
        self.stop.cancel();
        while self.ended.recv().await.is_some() {}
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a serving thread had ended by a panic");
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop_accepting.cancel();
        self.stop.cancel();
    }
}

/// A listener with `SO_REUSEADDR` and, for ports that several threads share, `SO_REUSEPORT`.
fn bind(address: SocketAddr, shared: bool) -> io::Result<StdListener> {
    use socket2::{Domain, Protocol, Socket, Type};
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    if shared {
        socket.set_reuse_port(true)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Runs a future on a thread of its own with a single-threaded runtime.
fn spawn<F, Fut>(name: String, alive: mpsc::Sender<()>, serve: F) -> Result<thread::JoinHandle<()>, StartError>
where
    F: FnOnce() -> Fut + Send + 'static,
    Fut: Future<Output = ()>,
{
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build().map_err(StartError::Thread)?;
    let body = move || {
        runtime.block_on(serve());
        drop(runtime);
        drop(alive);
    };
    thread::Builder::new().name(name).spawn(body).map_err(StartError::Thread)
}

async fn serve_clients(
    worker: Worker,
    listener: StdListener,
    write_stall: Duration,
    stop_accepting: CancellationToken,
    stop: CancellationToken,
) {
    let listener = match TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "handing the listener to the event loop"),
    };
    let (worker, room, tasks) = (Arc::new(worker), Arc::new(Semaphore::new(MAX_CONNECTIONS)), TaskTracker::new());
    let accept = async {
        loop {
            let Ok(permit) = Arc::clone(&room).acquire_owned().await else { return };
            match listener.accept().await {
                Ok((stream, _)) => {
                    let (worker, closing) = (Arc::clone(&worker), stop_accepting.clone());
                    tasks.spawn(async move {
                        serve_connection(worker, stream, write_stall, closing).await;
                        drop(permit);
                    });
                }
                Err(error) => {
                    // Out of file descriptors, mostly: others are about to be freed.
                    tracing::warn!(%error, "accepting a connection");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
    };
    tokio::select! {
        () = accept => {}
        () = stop_accepting.cancelled() => {}
    }
    drop(listener);
    tasks.close();
    tokio::select! {
        () = tasks.wait() => {}
        () = stop.cancelled() => {}
    }
}

async fn serve_connection(worker: Arc<Worker>, stream: TcpStream, write_stall: Duration, closing: CancellationToken) {
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE.0).with_interval(KEEPALIVE.1);
    if let Err(error) = stream.set_nodelay(true).and_then(|()| SockRef::from(&stream).set_tcp_keepalive(&keepalive)) {
        tracing::debug!(%error, "setting TCP_NODELAY and keepalive");
    }
    let watch = HeadWatch::new();
    let connection = ClientConnection::new(worker, Arc::clone(&watch));
    let mut http = http1::Builder::new();
    // Slow heads are the business of `Sniffed`, which answers them.
    http.max_buf_size(MAX_BUFFER).max_header_size(MAX_BUFFER).header_read_timeout(None).timer(TokioTimer::new());
    let mut serving = pin!(http.serve_connection(TokioIo::new(Sniffed::new(stream, watch, write_stall)), connection));
    let mut told = false;
    let ended = loop {
        tokio::select! {
            biased;
            ended = serving.as_mut() => break ended,
            () = closing.cancelled(), if !told => {
                told = true;
                serving.as_mut().graceful_shutdown();
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a client connection ended");
    }
}
