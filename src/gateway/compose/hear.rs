//! What comes back from a call that is read here: its text, or why it is of no use.

use bytes::{Bytes, BytesMut};
use http::Response;
use http_body_util::BodyExt;

use super::super::admission::{Buffered, Buffers};
use super::super::attempt::excerpt;
use super::super::body::Body;
use super::super::metrics::Origin;
use super::super::service::Answered;
use crate::protocol::Dialect;
use crate::protocol::conversation::{NoText, answer_text};
use crate::protocol::quality::QualityFailure;
use crate::routing::redact;

/// A good answer, held as a whole.
#[derive(Debug)]
pub(in super::super) struct Voice {
    /// What it says.
    pub text: String,
    /// As the provider gave it.
    pub response: Response<Bytes>,
    pub origin: Origin,
    pub held: Buffered,
}

/// An answer that is of no use.
#[derive(Debug)]
pub(in super::super) enum Useless {
    /// The call failed.
    Refused {
        /// The answer that a client would have got.
        response: Response<Bytes>,
        origin: Origin,
    },
    /// It succeeded, and nothing can be done with what it said.
    Unusable(&'static str),
}

impl Useless {
    /// The reason in one word, as it stands in `model=reason` (routing spec 4.19).
    pub fn reason(&self) -> String {
        let Self::Refused { response, .. } = self else { return self.word().to_owned() };
        // An answer without content is retried and failed over like a 502: the word for it is lost on the way, its message is not.
        let said = excerpt(response.body());
        let says = |failure: QualityFailure| said.contains(&failure.to_string());
        if says(QualityFailure::NoContent) || says(QualityFailure::OnlyReasoning) || says(QualityFailure::EmptyBody) {
            return NoText::Empty.to_string();
        }
        if said.contains(NOT_JSON) {
            return NoText::Unparseable.to_string();
        }
        format!("status_{}", response.status().as_u16())
    }

    /// Whether it failed with this status.
    pub fn is_status(&self, status: u16) -> bool {
        matches!(self, Self::Refused { response, .. } if response.status() == status)
    }

    /// The same for people.
    pub fn message(&self) -> String {
        match self {
            Self::Refused { response, .. } => redact(&excerpt(response.body())),
            Self::Unusable(word) => format!("its answer cannot be used: {word}"),
        }
    }

    const fn word(&self) -> &'static str {
        match self {
            Self::Refused { .. } => "refused",
            Self::Unusable(word) => word,
        }
    }
}

/// How [`QualityFailure::NotJson`] begins.
const NOT_JSON: &str = "the answer is not valid JSON";

/// `error.code` of an answer.
pub(super) fn code_of(body: &[u8]) -> String {
    let value: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    let error = value.get("error");
    let code = error.and_then(|error| error.get("code").or_else(|| error.get("details")?.get("error_code")));
    code.and_then(serde_json::Value::as_str).unwrap_or_default().to_owned()
}

/// Reads an answer up to `most` bytes.
pub(in super::super) async fn hear(answered: Answered, dialect: Dialect, most: usize, buffers: &Buffers) -> Result<Voice, Useless> {
    let Answered { response, origin, .. } = answered;
    let (parts, body) = response.into_parts();
    let (body, held) = read(body, most, buffers).await.map_err(Useless::Unusable)?;
    let good = parts.status.is_success();
    let response = Response::from_parts(parts, body);
    if !good {
        return Err(Useless::Refused { response, origin });
    }
    match answer_text(dialect, response.body()) {
        Ok(text) => Ok(Voice { text, response, origin, held }),
        Err(NoText::Empty) => Err(Useless::Unusable("empty_content")),
        Err(NoText::Unparseable) => Err(Useless::Unusable("unparseable")),
    }
}

async fn read(mut body: Body, most: usize, buffers: &Buffers) -> Result<(Bytes, Buffered), &'static str> {
    let mut held = buffers.reserve(0).ok_or("no_room")?;
    let (mut first, mut all) = (Bytes::new(), BytesMut::new());
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|_| "threw")?.into_data() else { continue };
        if first.len().max(all.len()) + data.len() > most {
            return Err("too_large");
        }
        held.absorb(buffers.reserve(data.len() as u64).ok_or("no_room")?);
        if first.is_empty() && all.is_empty() {
            first = data;
        } else {
            if all.is_empty() {
                all.extend_from_slice(&first);
            }
            all.extend_from_slice(&data);
        }
    }
    Ok((if all.is_empty() { first } else { all.freeze() }, held))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    async fn heard(status: u16, body: &str, most: usize, room: u64) -> Result<String, String> {
        let mut response = Response::new(Body::full(body.to_owned()));
        *response.status_mut() = http::StatusCode::from_u16(status).unwrap();
        let buffers = Buffers::default();
        buffers.limit(room);
        let answered = Answered { response, origin: Origin::Provider, combo: None };
        let heard = hear(answered, Dialect::ChatCompletions, most, &buffers).await;
        let text = heard.map(|voice| voice.text.clone()).map_err(|useless| useless.reason());
        assert!(buffers.reserve(room).is_some(), "what was held is given back");
        text
    }

    #[tokio::test]
    async fn an_answer_is_held_within_its_limit_and_the_gateways() {
        let good = json!({"choices": [{"message": {"content": "hi"}}]}).to_string();
        let size = good.len();
        assert_eq!(heard(200, &good, size, size as u64).await, Ok("hi".to_owned()));
        assert_eq!(heard(200, &good, size - 1, size as u64).await, Err("too_large".to_owned()));
        assert_eq!(heard(200, &good, size, size as u64 - 1).await, Err("no_room".to_owned()));
        assert_eq!(heard(200, "no json", 100, 100).await, Err("unparseable".to_owned()));
        assert_eq!(heard(200, r#"{"choices":[]}"#, 100, 100).await, Err("empty_content".to_owned()));
    }

    #[tokio::test]
    async fn a_failure_has_its_status_unless_it_is_about_the_answer() {
        let error = |message: &str| json!({"error": {"message": message, "code": "c"}}).to_string();
        assert_eq!(heard(503, &error("later"), 1_000, 1_000).await, Err("status_503".to_owned()));
        let empty = format!("p/m: quality — {} (HTTP 502)", QualityFailure::NoContent);
        assert_eq!(heard(502, &error(&empty), 1_000, 1_000).await, Err("empty_content".to_owned()));
        let broken = QualityFailure::NotJson("EOF".to_owned()).to_string();
        assert_eq!(heard(502, &error(&broken), 1_000, 1_000).await, Err("unparseable".to_owned()));
        assert_eq!(code_of(error("x").as_bytes()), "c");
        assert_eq!(code_of(br#"{"error":{"details":{"error_code":"d"}}}"#), "d");
        assert_eq!(code_of(b"nothing"), "");
    }
}
