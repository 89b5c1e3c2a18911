//! The yardstick: a reverse proxy of hyper and nothing else. One runtime per core; the body is read and scanned for `model`.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST};
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt, Either, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};

use super::BenchError;
use crate::protocol::scan::scan_request;

type Pool = Arc<Mutex<Vec<SendRequest<Full<Bytes>>>>>;
type Body = Either<Incoming, Full<Bytes>>;
type BoxError = Box<dyn std::error::Error + Send + Sync>;

pub(super) fn serve(upstream: SocketAddr) -> Result<(), BenchError> {
    let failed = |why: std::io::Error| BenchError::Start { what: "the bare proxy".to_owned(), why: why.to_string() };
    let first = listener(SocketAddr::from(([127, 0, 0, 1], 0))).map_err(failed)?;
    let address = first.local_addr().map_err(failed)?;
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let mut listeners = vec![first];
    for _ in 1..cores {
        listeners.push(listener(address).map_err(failed)?);
    }
    super::subject::announce(address);
    let threads: Vec<_> = listeners.into_iter().map(|l| std::thread::spawn(move || core(l, upstream))).collect();
    for thread in threads {
        if let Ok(result) = thread.join() {
            result.map_err(failed)?;
        }
    }
    Ok(())
}

fn listener(address: SocketAddr) -> std::io::Result<std::net::TcpListener> {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)?;
    socket.set_reuse_port(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(1024)?;
    Ok(socket.into())
}

fn core(listener: std::net::TcpListener, upstream: SocketAddr) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = TcpListener::from_std(listener)?;
        let pool = Pool::default();
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            let pool = Arc::clone(&pool);
            tokio::spawn(async move {
                let service = service_fn(move |request| {
                    let pool = Arc::clone(&pool);
                    async move { Ok::<_, Infallible>(forward(request, pool, upstream).await.unwrap_or_else(|_| refused())) }
                });
                hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await.ok()
            });
        }
    })
}

fn refused() -> Response<Body> {
    let mut response = Response::new(Either::Right(Full::default()));
    *response.status_mut() = StatusCode::BAD_GATEWAY;
    response
}

async fn forward(request: Request<Incoming>, pool: Pool, upstream: SocketAddr) -> Result<Response<Body>, BoxError> {
    let (head, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    scan_request(&body)?;
    let mut outgoing = Request::new(Full::new(body));
    *outgoing.method_mut() = head.method;
    *outgoing.uri_mut() = head.uri;
    outgoing.headers_mut().insert(HOST, HeaderValue::from_static("upstream"));
    outgoing.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let lock = || pool.lock().unwrap_or_else(PoisonError::into_inner);
    let idle = {
        let mut pool = lock();
        // Those whose answer is still being read are not ready.
        pool.iter().rposition(SendRequest::is_ready).map(|at| pool.swap_remove(at))
    };
    let mut sender = match idle {
        Some(sender) => sender,
        None => connect(upstream).await?,
    };
    sender.ready().await?;
    let response = sender.send_request(outgoing).await?;
    lock().push(sender);
    Ok(response.map(Either::Left))
}

async fn connect(upstream: SocketAddr) -> Result<SendRequest<Full<Bytes>>, BoxError> {
    let stream = TcpStream::connect(upstream).await?;
    stream.set_nodelay(true)?;
    let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    Ok(sender)
}
