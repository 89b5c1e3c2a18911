//! The upstream of the bench: as cheap as a server can be, so that the proxies in front of it are what is measured.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::BenchError;

/// Content frames of a stream, and the pause between two.
const FRAMES: usize = 30;
const PAUSE: Duration = Duration::from_millis(2);
/// Asked for by the streams that stay idle.
pub(super) const IDLE_MARK: &str = "stay idle";

pub(super) fn serve() -> Result<(), BenchError> {
    let failed = |why: std::io::Error| BenchError::Start { what: "the upstream".to_owned(), why: why.to_string() };
    // One thread, as for the load.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.map_err(failed)?;
        super::subject::announce(listener.local_addr().map_err(failed)?);
        loop {
            let (stream, _) = listener.accept().await.map_err(failed)?;
            // A broken connection is the proxy's business.
            tokio::spawn(async move { answer(stream).await.ok() });
        }
    })
}

async fn answer(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let (whole, frames) = (whole(), frames());
    let mut buffer = Vec::with_capacity(8192);
    loop {
        let Some(body) = request(&mut stream, &mut buffer).await? else { return Ok(()) };
        if memchr::memmem::find(&body, b"\"stream\":true").is_none() {
            stream.write_all(&whole).await?;
            continue;
        }
        let idle = memchr::memmem::find(&body, IDLE_MARK.as_bytes()).is_some();
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n").await?;
        for frame in frames.iter().take(if idle { 2 } else { usize::MAX }) {
            stream.write_all(frame).await?;
            tokio::time::sleep(PAUSE).await;
        }
        if idle {
            // Until the proxy closes.
            stream.read_u8().await?;
        }
        stream.write_all(b"0\r\n\r\n").await?;
    }
}

/// Reads one request and answers its body.
async fn request(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> std::io::Result<Option<Vec<u8>>> {
    loop {
        if let Some(end) = memchr::memmem::find(buffer, b"\r\n\r\n") {
            let head = buffer.get(..end).unwrap_or_default().to_ascii_lowercase();
            let length = head.split(|b| *b == b'\n').find_map(|l| l.strip_prefix(b"content-length:"));
            let length = length.and_then(|l| std::str::from_utf8(l).ok()).and_then(|l| l.trim().parse::<usize>().ok()).unwrap_or(0);
            if let Some(body) = buffer.get(end + 4..end + 4 + length) {
                let body = body.to_vec();
                buffer.drain(..end + 4 + length);
                return Ok(Some(body));
            }
        }
        if stream.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
    }
}

/// An answer of about one kilobyte.
fn whole() -> Vec<u8> {
    let body = format!(
        r#"{{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"m","choices":[{{"index":0,"message":{{"role":"assistant","content":"{}"}},"finish_reason":"stop"}}],"usage":{{"prompt_tokens":20,"completion_tokens":200,"total_tokens":220}}}}"#,
        "word ".repeat(160)
    );
    format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

/// The chunks of a stream.
fn frames() -> Vec<Vec<u8>> {
    let chunk = |delta: &str, finish: &str| {
        format!(
            "data: {{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\"choices\":[{{\"index\":0,\"delta\":{delta},\"finish_reason\":{finish}}}]}}\n\n"
        )
    };
    let mut texts = vec![chunk(r#"{"role":"assistant","content":""}"#, "null")];
    texts.extend((0..FRAMES).map(|n| chunk(&format!(r#"{{"content":"word {n} "}}"#), "null")));
    texts.push(format!("{}data: [DONE]\n\n", chunk("{}", "\"stop\"")));
    texts.iter().map(|t| format!("{:x}\r\n{t}\r\n", t.len()).into_bytes()).collect()
}
