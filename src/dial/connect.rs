//! Opening a connection: name resolution with the address guard, TCP, the proxy, TLS.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::DialError;
use super::guard::{Guard, is_forbidden};
use super::origin::{Origin, Proxy};

/// How long one address may be silent before the next one is tried as well (RFC 8305).
const NEXT_ADDRESS_AFTER: Duration = Duration::from_millis(250);
/// Longest answer of a proxy to CONNECT.
const MAX_CONNECT_ANSWER: usize = 8 * 1024;

/// A connection.
pub struct Socket(Inner);

enum Inner {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// Opens a connection to `origin` within its connect timeout.
///
/// # Errors
/// The name, the address guard, the proxy, TCP, TLS, or the timeout.
pub async fn connect(origin: &Origin) -> Result<Socket, DialError> {
    match tokio::time::timeout(origin.connect_timeout, open(origin)).await {
        Ok(result) => result,
        Err(_) => {
            let way = origin.proxy.as_ref().map(|p| format!(" through the proxy {}:{}", p.host, p.port)).unwrap_or_default();
            let message = format!("connecting to {origin}{way}: no connection within {} ms", origin.connect_timeout.as_millis());
            Err(DialError { via_proxy: origin.proxy.is_some(), ..DialError::connect(message) })
        }
    }
}

async fn open(origin: &Origin) -> Result<Socket, DialError> {
    let tcp = match &origin.proxy {
        None => {
            tcp(&origin.host, origin.port, origin.guard).await.map_err(|e| DialError::connect(format!("connecting to {origin}: {e}")))?
        }
        Some(proxy) => through(proxy, origin).await?,
    };
    Ok(Socket(match &origin.tls {
        None => Inner::Plain(tcp),
        Some((config, name)) => {
            let connector = TlsConnector::from(Arc::clone(config));
            let stream = connector.connect(name.clone(), tcp).await;
            let stream = stream.map_err(|e| DialError { tls: true, ..DialError::connect(format!("TLS handshake with {origin}: {e}")) })?;
            Inner::Tls(Box::new(stream))
        }
    }))
}

/// A TCP connection to the first address that answers.
async fn tcp(host: &str, port: u16, guard: Guard) -> io::Result<TcpStream> {
    let mut addresses: Vec<SocketAddr> = match host.parse::<IpAddr>() {
        Ok(ip) => vec![SocketAddr::new(ip, port)],
        Err(_) => tokio::net::lookup_host((host, port)).await?.collect(),
    };
    let resolved = addresses.len();
    if guard != Guard::Off {
        addresses.retain(|a| !is_forbidden(a.ip()));
    }
    if addresses.is_empty() {
        let what = if resolved == 0 { "the name has no address" } else { guard.refusal() };
        return Err(io::Error::new(io::ErrorKind::AddrNotAvailable, what));
    }
    let stream = race(addresses).await?;
    stream.set_nodelay(true)?;
    let keepalive = socket2::TcpKeepalive::new().with_time(Duration::from_secs(60)).with_interval(Duration::from_secs(15));
    socket2::SockRef::from(&stream).set_tcp_keepalive(&keepalive)?;
    Ok(stream)
}

/// Tries addresses in order; the next one starts when one fails or is silent for a while.
async fn race(addresses: Vec<SocketAddr>) -> io::Result<TcpStream> {
    let mut waiting = addresses.into_iter();
    let mut running = FuturesUnordered::new();
    let mut failed = io::Error::from(io::ErrorKind::AddrNotAvailable);
    loop {
        let last = match waiting.next() {
            Some(address) => {
                running.push(TcpStream::connect(address));
                waiting.len() == 0
            }
            None => true,
        };
        let next = if last {
            running.next().await
        } else {
            match tokio::time::timeout(NEXT_ADDRESS_AFTER, running.next()).await {
                Ok(next) => next,
                Err(_) => continue,
            }
        };
        match next {
            Some(Ok(stream)) => return Ok(stream),
            Some(Err(error)) => failed = error,
            None if last => return Err(failed),
            None => {}
        }
    }
}

/// A connection to the proxy; towards a TLS origin a tunnel through it.
async fn through(proxy: &Proxy, origin: &Origin) -> Result<TcpStream, DialError> {
    let at = format!("{}:{}", proxy.host, proxy.port);
    if origin.guard != Guard::Off && origin.host.parse().is_ok_and(is_forbidden) {
        return Err(DialError::connect(format!("connecting to {origin}: {}", origin.guard.refusal())));
    }
    let mut stream = tcp(&proxy.host, proxy.port, origin.guard.of_proxy())
        .await
        .map_err(|e| DialError::proxy(format!("connecting to the proxy {at}: {e}")))?;
    if origin.tls.is_none() {
        return Ok(stream);
    }
    let target = if origin.host.contains(':') { format!("[{}]:{}", origin.host, origin.port) } else { origin.to_string() };
    let mut request = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n").into_bytes();
    if let Some(authorization) = &proxy.authorization {
        request.extend_from_slice(b"Proxy-Authorization: ");
        request.extend_from_slice(authorization.as_bytes());
        request.extend_from_slice(b"\r\n");
    }
    request.extend_from_slice(b"\r\n");
    let answered = async {
        stream.write_all(&request).await?;
        connect_answer(&mut stream).await
    };
    match answered.await {
        Ok(status) if (200..300).contains(&status) => Ok(stream),
        Ok(status) => Err(DialError::proxy(format!("the proxy {at} refused a tunnel to {origin} with status {status}"))),
        Err(e) => Err(DialError::proxy(format!("asking the proxy {at} for a tunnel to {origin}: {e}"))),
    }
}

/// Reads the head of the proxy's answer, byte by byte so that nothing of the tunnel is swallowed, and answers its status.
async fn connect_answer(stream: &mut TcpStream) -> io::Result<u16> {
    let mut head = Vec::with_capacity(256);
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() >= MAX_CONNECT_ANSWER {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "its answer is too long"));
        }
        head.push(stream.read_u8().await?);
    }
    let line = head.split(|b| *b == b'\r').next().and_then(|l| std::str::from_utf8(l).ok()).unwrap_or_default();
    let status = line.strip_prefix("HTTP/1.").and_then(|l| l.split(' ').nth(1)).and_then(|s| s.parse().ok());
    status.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "its answer is not HTTP"))
}

impl AsyncRead for Socket {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match &mut self.0 {
            Inner::Plain(s) => Pin::new(s).poll_read(cx, buf),
            Inner::Tls(s) => Pin::new(s).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.0 {
            Inner::Plain(s) => Pin::new(s).poll_write(cx, buf),
            Inner::Tls(s) => Pin::new(s).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bufs: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        match &mut self.0 {
            Inner::Plain(s) => Pin::new(s).poll_write_vectored(cx, bufs),
            Inner::Tls(s) => Pin::new(s).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.0 {
            Inner::Plain(s) => Pin::new(s).poll_flush(cx),
            Inner::Tls(s) => Pin::new(s).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.0 {
            Inner::Plain(s) => Pin::new(s).poll_shutdown(cx),
            Inner::Tls(s) => Pin::new(s).poll_shutdown(cx),
        }
    }
}
