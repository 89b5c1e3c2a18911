//! Reading a request's body: bounded in size, in time and in what all requests hold together.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, header};
use http_body::Body as _;
use http_body_util::BodyExt;
use hyper::body::Incoming;

use super::admission::{Buffered, Buffers};
use super::answer::Refusal;
use super::clock;
use super::sniff::Unfinished;

/// Longest pause between two pieces of a body.
const PIECE_TIME: Duration = Duration::from_secs(30);
/// Longest time for a whole body.
const WHOLE_TIME: Duration = Duration::from_secs(300);
/// What is read of a body that was refused, so that a client that is still sending sees the answer (decisions 9.14).
const LINGER_BYTES: usize = 64 * 1024 * 1024;
/// How long that may take.
const LINGER_TIME: Duration = Duration::from_secs(10);
/// Reserved at once for bodies that do not state their length.
const STEP: usize = 64 * 1024;

/// Refuses what is no JSON by its own account.
///
/// # Errors
/// 415 with what would be accepted.
pub fn check_type(headers: &HeaderMap) -> Result<(), Refusal> {
    if let Some(value) = headers.get(header::CONTENT_TYPE).filter(|value| *value != "application/json") {
        let text = value.to_str().unwrap_or_default();
        let essence = text.split(';').next().unwrap_or_default().trim();
        if !essence.eq_ignore_ascii_case("application/json") && !is_structured_json(essence) {
            let shown: String = essence.chars().take(64).collect();
            return Err(Refusal::new(
                415,
                "unsupported_media_type",
                format!("content-type `{shown}` is not supported: send application/json"),
            )
            .hopeless());
        }
    }
    if headers.get(header::CONTENT_ENCODING).is_some_and(|v| !v.as_bytes().eq_ignore_ascii_case(b"identity")) {
        return Err(Refusal::new(
            415,
            "unsupported_content_encoding",
            "compressed request bodies are not supported: send the JSON as it is",
        )
        .hopeless());
    }
    Ok(())
}

/// `application/VENDOR+json`.
fn is_structured_json(essence: &str) -> bool {
    let essence = essence.to_ascii_lowercase();
    essence.starts_with("application/") && essence.ends_with("+json")
}

/// A body that was read, with its share of the memory that all bodies may use.
#[derive(Debug)]
pub struct Held {
    /// The bytes.
    pub bytes: Bytes,
    /// Gives the memory back when the request is over.
    pub buffered: Buffered,
}

/// Reads the body.
///
/// # Errors
/// 413 when it is larger than `limit`, 503 when all bodies together hold too much, 408 when it comes too slowly, 400 when it breaks off.
/// The rest of a refused body is read and thrown away in the background.
pub async fn read(mut body: Incoming, limit: u64, buffers: &Buffers, unfinished: &Unfinished) -> Result<Held, Refusal> {
    let stated = body.size_hint().exact();
    if stated.is_some_and(|length| length > limit) {
        linger(body, unfinished.clone());
        return Err(too_large(limit));
    }
    let Some(buffered) = buffers.reserve(stated.unwrap_or(STEP as u64)) else {
        linger(body, unfinished.clone());
        return Err(full());
    };
    let mut reading = Reading { limit, buffers, buffered, stated: stated.is_some(), first: None, rest: BytesMut::new() };
    match clock::within(WHOLE_TIME, reading.run(&mut body)).await.unwrap_or_else(|_| Err(too_slow())) {
        Ok(bytes) => Ok(Held { bytes, buffered: reading.buffered }),
        Err(refusal) => {
            linger(body, unfinished.clone());
            Err(refusal)
        }
    }
}

struct Reading<'a> {
    limit: u64,
    buffers: &'a Buffers,
    buffered: Buffered,
    stated: bool,
    /// Most bodies come in one piece, which is then used as it is.
    first: Option<Bytes>,
    rest: BytesMut,
}

impl Reading<'_> {
    async fn run(&mut self, body: &mut Incoming) -> Result<Bytes, Refusal> {
        loop {
            let frame = clock::within(PIECE_TIME, body.frame()).await.map_err(|_| too_slow())?;
            match frame {
                None => break,
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.take(data)?;
                    }
                }
                Some(Err(error)) => {
                    return Err(Refusal::new(400, "incomplete_body", format!("the request's body broke off: {error}")).close());
                }
            }
        }
        Ok(match self.first.take() {
            Some(first) if self.rest.is_empty() => first,
            _ => std::mem::take(&mut self.rest).freeze(),
        })
    }

    fn take(&mut self, data: Bytes) -> Result<(), Refusal> {
        let so_far = self.first.as_ref().map_or(self.rest.len(), Bytes::len);
        let total = (so_far + data.len()) as u64;
        if total > self.limit {
            return Err(too_large(self.limit));
        }
        if !self.stated && total > self.buffered.bytes() {
            // Doubling keeps the number of reservations small.
            let more = self.buffers.reserve(total.max(self.buffered.bytes())).ok_or_else(full)?;
            self.buffered.absorb(more);
        }
        if so_far == 0 {
            self.first = Some(data);
            return Ok(());
        }
        if let Some(first) = self.first.take() {
            self.rest.extend_from_slice(&first);
        }
        self.rest.extend_from_slice(&data);
        Ok(())
    }
}

/// Reads on in the background, so that the client can finish sending and then see the answer. Until then no other request is expected.
pub fn linger(mut body: Incoming, unfinished: Unfinished) {
    if body.is_end_stream() {
        return;
    }
    tokio::spawn(async move {
        let drain = async {
            let mut left = LINGER_BYTES;
            while let Some(Ok(frame)) = body.frame().await {
                left = left.saturating_sub(frame.data_ref().map_or(0, Bytes::len));
                if left == 0 {
                    break;
                }
            }
        };
        // Whoever is slower than that does not wait for an answer.
        let _ = tokio::time::timeout(LINGER_TIME, drain).await;
        drop(unfinished);
    });
}

fn too_large(limit: u64) -> Refusal {
    Refusal::new(
        413,
        "request_too_large",
        format!("the request's body is larger than {limit} bytes; ResilienceSettings spec.gateway.maxRequestBytes sets the limit"),
    )
    .hopeless()
    .close()
}

fn too_slow() -> Refusal {
    Refusal::new(408, "request_timeout", "the request's body came too slowly").close()
}

/// The refusal of a body for which there is no room.
pub(super) fn full() -> Refusal {
    Refusal::new(503, "admission_queue_full", "the gateway holds as many request bodies as its memory limit allows").retry_after(1).close()
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[test]
    fn only_json_is_read() {
        let with = |name: header::HeaderName, value: &'static str| HeaderMap::from_iter([(name, HeaderValue::from_static(value))]);
        for good in ["application/json", "Application/JSON; charset=utf-8", "application/vnd.api+json"] {
            assert!(check_type(&with(header::CONTENT_TYPE, good)).is_ok(), "{good}");
        }
        assert!(check_type(&HeaderMap::new()).is_ok());
        for bad in ["text/plain", "multipart/form-data; boundary=x", "application/x-www-form-urlencoded", ""] {
            assert_eq!(check_type(&with(header::CONTENT_TYPE, bad)).unwrap_err().body.status(), 415, "{bad}");
        }
        assert!(check_type(&with(header::CONTENT_ENCODING, "gzip")).is_err());
    }
}
