//! Errors as each dialect says them: bodies of non-2xx answers and the last frame of a broken stream (decisions 9.19, interface.md 4).

use serde_json::{Map, Value, json};

use super::Dialect;

/// An error that the product itself reports, before it is rendered in a dialect.
#[derive(Clone, Debug)]
pub struct ErrorBody {
    status: u16,
    code: String,
    message: String,
    kind: Option<&'static str>,
    param: Option<String>,
    inside: Map<String, Value>,
    beside: Map<String, Value>,
}

/// What a terminal frame of the Responses dialect must know about the stream that it ends.
#[derive(Clone, Debug, Default)]
pub struct StreamPosition<'a> {
    /// The id of the response, as the vendor gave it.
    pub response_id: Option<&'a str>,
    /// The next sequence number.
    pub next_sequence: u64,
}

impl ErrorBody {
    /// An error with its HTTP status, our machine-readable code and a sentence for people.
    #[must_use]
    pub fn new(status: u16, code: impl Into<String>, message: impl Into<String>) -> Self {
        Self { status, code: code.into(), message: message.into(), kind: None, param: None, inside: Map::new(), beside: Map::new() }
    }

    /// Sets `error.type` of the OpenAI dialects where it is not the one of the status.
    #[must_use]
    pub const fn kind(mut self, kind: &'static str) -> Self {
        self.kind = Some(kind);
        self
    }

    /// Names the request member at fault (`error.param`).
    #[must_use]
    pub fn param(mut self, param: impl Into<String>) -> Self {
        self.param = Some(param.into());
        self
    }

    /// Adds a member to the error object (`reset_seconds`).
    #[must_use]
    pub fn field(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.inside.insert(name.to_owned(), value.into());
        self
    }

    /// Adds a member beside the error object (`diagnostics`, `recovery_hint`).
    #[must_use]
    pub fn beside(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.beside.insert(name.to_owned(), value.into());
        self
    }

    /// The HTTP status.
    #[must_use]
    pub const fn status(&self) -> u16 {
        self.status
    }

    /// The code.
    #[must_use]
    pub fn code(&self) -> &str {
        &self.code
    }

    /// The JSON body of a non-2xx answer.
    #[must_use]
    pub fn render(&self, dialect: Dialect) -> Vec<u8> {
        self.value(dialect).to_string().into_bytes()
    }

    fn value(&self, dialect: Dialect) -> Value {
        let mut error = self.inside.clone();
        error.insert("message".into(), self.message.as_str().into());
        error.insert("code".into(), self.code.as_str().into());
        let mut body = self.beside.clone();
        if dialect == Dialect::Messages {
            error.insert("type".into(), anthropic_type(self.status).into());
            error.insert("details".into(), json!({"error_code": self.code}));
            body.insert("type".into(), "error".into());
        } else {
            error.insert("type".into(), self.kind.unwrap_or_else(|| openai_type(self.status)).into());
            error.insert("param".into(), self.param.clone().map_or(Value::Null, Value::from));
        }
        body.insert("error".into(), error.into());
        Value::Object(body)
    }

    /// The last frame of a stream that broke. Nothing follows it, no `[DONE]` either.
    #[must_use]
    pub fn terminal_frame(&self, dialect: Dialect, position: &StreamPosition<'_>) -> Vec<u8> {
        match dialect {
            Dialect::ChatCompletions | Dialect::Embeddings => format!("data: {}\n\n", self.value(dialect)),
            Dialect::Messages => format!("event: error\ndata: {}\n\n", self.value(dialect)),
            Dialect::Responses => format!("event: response.failed\ndata: {}\n\n", self.response_failed(position)),
        }
        .into_bytes()
    }

    fn response_failed(&self, position: &StreamPosition<'_>) -> Value {
        json!({
            "type": "response.failed",
            "sequence_number": position.next_sequence,
            "response": {
                "id": position.response_id.unwrap_or_default(),
                "object": "response",
                "status": "failed",
                "error": {"code": self.code, "message": self.message},
                "incomplete_details": null,
                "output": [],
            },
        })
    }
}

/// `error.type` of the OpenAI dialects by status.
const fn openai_type(status: u16) -> &'static str {
    match status {
        401 => "authentication_error",
        403 => "permission_error",
        429 => "rate_limit_error",
        503 => "service_unavailable",
        500..=599 => "server_error",
        _ => "invalid_request_error",
    }
}

/// `error.type` of the Messages dialect by status.
const fn anthropic_type(status: u16) -> &'static str {
    match status {
        401 => "authentication_error",
        402 => "billing_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        504 => "timeout_error",
        503 | 529 => "overloaded_error",
        500..=599 => "api_error",
        _ => "invalid_request_error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(bytes: &[u8]) -> Value {
        serde_json::from_slice(bytes).expect("JSON")
    }

    #[test]
    fn openai_dialects_have_code_type_and_param() {
        for dialect in [Dialect::ChatCompletions, Dialect::Responses, Dialect::Embeddings] {
            let body = ErrorBody::new(404, "model_not_found", "no `x`")
                .param("model")
                .field("hint", "y")
                .beside("diagnostics", json!({"poolSize": 0}));
            let expected = json!({"error": {"message": "no `x`", "type": "invalid_request_error", "code": "model_not_found", "param": "model", "hint": "y"},
                "diagnostics": {"poolSize": 0}});
            assert_eq!(parse(&body.render(dialect)), expected);
        }
        let circuit = ErrorBody::new(503, "provider_circuit_open", "resting").kind("server_error");
        assert_eq!(parse(&circuit.render(Dialect::ChatCompletions))["error"]["type"], "server_error");
    }

    #[test]
    fn messages_has_its_own_shape_and_keeps_our_code() {
        let body = parse(&ErrorBody::new(429, "model_cooldown", "wait").field("reset_seconds", 3).render(Dialect::Messages));
        assert_eq!(body["type"], "error");
        assert_eq!(body["error"]["type"], "rate_limit_error");
        assert_eq!(body["error"]["details"]["error_code"], "model_cooldown");
        assert_eq!((&body["error"]["code"], &body["error"]["reset_seconds"]), (&json!("model_cooldown"), &json!(3)));
    }

    #[test]
    fn every_stream_has_one_last_frame_in_its_dialect() {
        let error = ErrorBody::new(502, "stream_interrupted", "the stream\nbroke");
        let position = StreamPosition { response_id: Some("resp_1"), next_sequence: 7 };
        let frame = |d| String::from_utf8(error.terminal_frame(d, &position)).expect("text");
        let chat = frame(Dialect::ChatCompletions);
        assert!(chat.starts_with("data: {") && chat.ends_with("}\n\n") && !chat.contains("[DONE]"), "{chat}");
        assert_eq!(chat.lines().count(), 2, "one data line and a blank one: {chat}");
        assert!(frame(Dialect::Messages).starts_with("event: error\ndata: {"));
        let failed = frame(Dialect::Responses);
        let data = parse(failed.strip_prefix("event: response.failed\ndata: ").expect("event line").trim_end().as_bytes());
        assert_eq!(
            (&data["type"], &data["sequence_number"], &data["response"]["id"]),
            (&json!("response.failed"), &json!(7), &json!("resp_1"))
        );
        assert_eq!(data["response"]["error"]["code"], "stream_interrupted");
    }
}
