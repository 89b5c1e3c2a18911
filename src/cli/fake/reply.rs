//! Good answers and errors of each dialect, as its vendor would write them.

use serde_json::{Value, json};

use super::embed;
use super::script::{Reply, ToolCall};
use crate::protocol::{Dialect, Endpoint};

/// What a good answer is made of.
#[derive(Clone, Debug)]
pub(super) struct Content {
    pub n: u64,
    pub created: i64,
    pub model: String,
    pub text: String,
    pub reasoning: Option<String>,
    pub tool_call: Option<ToolCall>,
    pub finish_reason: Option<String>,
    pub input_tokens: u64,
}

impl Content {
    /// Fills in what the script leaves open.
    pub fn new(n: u64, created: i64, model: &str, default_text: &str, reply: Option<&Reply>, input_chars: usize) -> Self {
        let reply = reply.cloned().unwrap_or_default();
        let text = reply.text.unwrap_or_else(|| if reply.tool_call.is_some() { String::new() } else { default_text.to_owned() });
        let input_tokens = (input_chars as u64).div_ceil(4).max(1);
        Self {
            n,
            created,
            model: model.to_owned(),
            text,
            reasoning: reply.reasoning,
            tool_call: reply.tool_call,
            finish_reason: reply.finish_reason,
            input_tokens,
        }
    }

    pub fn output_tokens(&self) -> u64 {
        let words = |t: &str| t.split_whitespace().count() as u64;
        words(&self.text) + self.reasoning.as_deref().map_or(0, words) + if self.tool_call.is_some() { 8 } else { 0 }
    }

    fn reasoning_tokens(&self) -> u64 {
        self.reasoning.as_deref().map_or(0, |t| t.split_whitespace().count() as u64)
    }

    pub fn id(&self, prefix: &str) -> String {
        format!("{prefix}fake{:012}", self.n)
    }

    /// The tool's arguments as JSON text.
    pub fn arguments(&self) -> String {
        self.tool_call.as_ref().map_or_else(String::new, |t| t.arguments.to_string())
    }

    pub fn finish(&self, stop: &str, tool: &str) -> String {
        self.finish_reason.clone().unwrap_or_else(|| if self.tool_call.is_some() { tool } else { stop }.to_owned())
    }
}

/// The whole answer of an endpoint.
pub(super) fn body(endpoint: Endpoint, c: &Content, request: &Value) -> Value {
    match endpoint {
        Endpoint::ChatCompletions => chat(c),
        Endpoint::Responses => response(c, "completed"),
        Endpoint::Messages => message(c),
        Endpoint::CountTokens => json!({"input_tokens": c.input_tokens}),
        Endpoint::Embeddings => embed::answer(c, request),
    }
}

pub(super) fn chat_usage(c: &Content) -> Value {
    json!({
        "prompt_tokens": c.input_tokens, "completion_tokens": c.output_tokens(), "total_tokens": c.input_tokens + c.output_tokens(),
        "prompt_tokens_details": {"cached_tokens": 0}, "completion_tokens_details": {"reasoning_tokens": c.reasoning_tokens()},
    })
}

pub(super) fn chat_tool_calls(c: &Content, arguments: &str) -> Option<Value> {
    let tool = c.tool_call.as_ref()?;
    Some(json!([{"index": 0, "id": c.id("call_"), "type": "function", "function": {"name": tool.name, "arguments": arguments}}]))
}

fn chat(c: &Content) -> Value {
    let mut message = json!({"role": "assistant", "content": c.text, "refusal": null});
    if let Some(reasoning) = &c.reasoning {
        message["reasoning_content"] = reasoning.as_str().into();
    }
    if let Some(calls) = chat_tool_calls(c, &c.arguments()) {
        message["tool_calls"] = calls;
        if c.text.is_empty() {
            message["content"] = Value::Null;
        }
    }
    json!({
        "id": c.id("chatcmpl-"), "object": "chat.completion", "created": c.created, "model": c.model,
        "choices": [{"index": 0, "message": message, "logprobs": null, "finish_reason": c.finish("stop", "tool_calls")}],
        "usage": chat_usage(c), "service_tier": "default", "system_fingerprint": "fp_fake",
    })
}

pub(super) fn message_usage(c: &Content) -> Value {
    json!({"input_tokens": c.input_tokens, "output_tokens": c.output_tokens(), "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0})
}

pub(super) fn message_blocks(c: &Content) -> Vec<Value> {
    let mut blocks = Vec::new();
    if let Some(reasoning) = &c.reasoning {
        blocks.push(json!({"type": "thinking", "thinking": reasoning, "signature": "ZmFrZQ=="}));
    }
    if !c.text.is_empty() {
        blocks.push(json!({"type": "text", "text": c.text}));
    }
    if let Some(tool) = &c.tool_call {
        blocks.push(json!({"type": "tool_use", "id": c.id("toolu_"), "name": tool.name, "input": tool.arguments}));
    }
    blocks
}

fn message(c: &Content) -> Value {
    json!({
        "id": c.id("msg_"), "type": "message", "role": "assistant", "model": c.model, "content": message_blocks(c),
        "stop_reason": c.finish("end_turn", "tool_use"), "stop_sequence": null, "usage": message_usage(c),
    })
}

pub(super) fn output_items(c: &Content, status: &str) -> Vec<Value> {
    let mut items = Vec::new();
    if let Some(reasoning) = &c.reasoning {
        items.push(json!({"id": c.id("rs_"), "type": "reasoning", "summary": [{"type": "summary_text", "text": reasoning}]}));
    }
    if !c.text.is_empty() {
        items.push(json!({
            "id": c.id("msg_"), "type": "message", "role": "assistant", "status": status,
            "content": [{"type": "output_text", "text": c.text, "annotations": [], "logprobs": []}],
        }));
    }
    if let Some(tool) = &c.tool_call {
        items.push(json!({
            "id": c.id("fc_"), "type": "function_call", "call_id": c.id("call_"), "name": tool.name, "arguments": c.arguments(), "status": status,
        }));
    }
    items
}

/// A response object; only a completed one has output and usage.
pub(super) fn response(c: &Content, status: &str) -> Value {
    let done = status == "completed";
    let usage = json!({
        "input_tokens": c.input_tokens, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": c.output_tokens(),
        "output_tokens_details": {"reasoning_tokens": c.reasoning_tokens()}, "total_tokens": c.input_tokens + c.output_tokens(),
    });
    json!({
        "id": c.id("resp_"), "object": "response", "created_at": c.created, "status": status, "background": false, "error": null,
        "incomplete_details": null, "instructions": null, "max_output_tokens": null, "model": c.model,
        "output": if done { output_items(c, "completed") } else { Vec::new() }, "parallel_tool_calls": true, "previous_response_id": null,
        "reasoning": {"effort": null, "summary": null}, "store": true, "temperature": 1.0, "text": {"format": {"type": "text"}},
        "tool_choice": "auto", "tools": [], "top_p": 1.0, "truncation": "disabled", "usage": if done { usage } else { Value::Null },
        "user": null, "metadata": {},
    })
}

/// The error that a vendor of this dialect sends with a status.
pub(super) fn error(dialect: Dialect, status: u16) -> Value {
    let (code, message) = match status {
        400 => ("invalid_request", "The request is not valid."),
        401 => ("invalid_api_key", "Incorrect API key provided."),
        402 => ("insufficient_balance", "Your credit balance is too low."),
        403 => ("permission_denied", "Your account may not use this model."),
        404 => ("model_not_found", "The model does not exist or you do not have access to it."),
        413 => ("request_too_large", "The request is too large."),
        429 => ("rate_limit_exceeded", "Rate limit reached for requests. Please try again later."),
        529 => ("overloaded", "Overloaded"),
        503 => ("service_unavailable", "The service is temporarily unavailable."),
        _ => ("server_error", "The server had an error while processing your request."),
    };
    if dialect == Dialect::Messages {
        let kind = match status {
            401 => "authentication_error",
            402 => "billing_error",
            403 => "permission_error",
            404 => "not_found_error",
            413 => "request_too_large",
            429 => "rate_limit_error",
            529 => "overloaded_error",
            500.. => "api_error",
            _ => "invalid_request_error",
        };
        return json!({"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_fake"});
    }
    let kind = match status {
        429 => "requests",
        500.. => "server_error",
        _ => "invalid_request_error",
    };
    json!({"error": {"message": message, "type": kind, "param": null, "code": code}})
}
