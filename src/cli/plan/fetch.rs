//! One GET to the management port of a gateway.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::Request;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::resilience::StateReport;

/// The whole exchange ends within this time.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Largest report that is read.
const MAX_BYTES: usize = 64 * 1024 * 1024;

/// Why there is no report.
#[derive(thiserror::Error, Debug)]
pub(super) enum FetchError {
    #[error("`{0}` is no URL like http://127.0.0.1:9090; the management port speaks plain HTTP")]
    Url(String),
    #[error("starting the runtime: {0}")]
    Runtime(std::io::Error),
    #[error("connecting: {0}; is the gateway running, and is this its management port?")]
    Connect(std::io::Error),
    #[error("asking: {0}")]
    Http(#[from] hyper::Error),
    #[error("reading the answer: {0}")]
    Body(Box<dyn std::error::Error + Send + Sync>),
    #[error("the gateway answered {0}; pass a key of scope `management` with --management-key")]
    Refused(u16),
    #[error("the gateway answered {0}")]
    Status(u16),
    #[error("the answer is no state report: {0}")]
    Json(serde_json::Error),
    #[error("no answer within 10 seconds")]
    Timeout,
}

/// Reads `/state`. The path is added unless the URL has one.
pub(super) fn state(url: &str, key: Option<&str>) -> Result<StateReport, FetchError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(FetchError::Runtime)?;
    runtime.block_on(async { tokio::time::timeout(TIMEOUT, get(url, key)).await.unwrap_or(Err(FetchError::Timeout)) })
}

async fn get(url: &str, key: Option<&str>) -> Result<StateReport, FetchError> {
    let bad = || FetchError::Url(url.to_owned());
    let uri: hyper::Uri = url.parse().map_err(|_| bad())?;
    let authority = uri.authority().filter(|_| uri.scheme_str() == Some("http")).ok_or_else(bad)?;
    let path = match uri.path() {
        "" | "/" => "/state",
        path => path,
    };
    let host = authority.host().trim_start_matches('[').trim_end_matches(']');
    let stream = TcpStream::connect((host, authority.port_u16().unwrap_or(80))).await.map_err(FetchError::Connect)?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let driver = tokio::spawn(connection);
    let mut request = Request::get(path).header("host", authority.as_str());
    if let Some(key) = key {
        request = request.header("authorization", format!("Bearer {key}"));
    }
    let request = request.body(Empty::<Bytes>::new()).map_err(|_| bad())?;
    let answer = sender.send_request(request).await?;
    match answer.status().as_u16() {
        200 => {}
        status @ (401 | 403) => return Err(FetchError::Refused(status)),
        status => return Err(FetchError::Status(status)),
    }
    let body = Limited::new(answer.into_body(), MAX_BYTES).collect().await.map_err(FetchError::Body)?.to_bytes();
    driver.abort();
    serde_json::from_slice(&body).map_err(FetchError::Json)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    /// Answers one request with these bytes and gives back what was asked.
    fn serve(answer: &'static str) -> (String, std::thread::JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let thread = std::thread::spawn(move || {
            let (mut socket, _) = listener.accept().unwrap();
            let mut asked = Vec::new();
            let mut buffer = [0; 1024];
            while !asked.windows(4).any(|w| w == b"\r\n\r\n") {
                let n = socket.read(&mut buffer).unwrap();
                asked.extend_from_slice(&buffer[..n]);
            }
            socket.write_all(answer.as_bytes()).unwrap();
            String::from_utf8(asked).unwrap()
        });
        (url, thread)
    }

    #[test]
    fn reads_the_report_with_the_key() {
        let (url, thread) = serve("HTTP/1.1 200 OK\r\ncontent-length: 15\r\n\r\n{\"version\": 17}");
        assert_eq!(state(&url, Some("k")).unwrap().version, 17);
        let asked = thread.join().unwrap();
        assert!(asked.starts_with("GET /state HTTP/1.1\r\n"), "{asked}");
        assert!(asked.contains("authorization: Bearer k\r\n"), "{asked}");
    }

    #[test]
    fn says_what_is_missing() {
        let (url, thread) = serve("HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n");
        assert!(state(&url, None).unwrap_err().to_string().contains("--management-key"));
        thread.join().unwrap();
        assert!(matches!(state("ftp://x", None), Err(FetchError::Url(_))));
        assert!(matches!(state("https://x", None), Err(FetchError::Url(_))));
    }
}
