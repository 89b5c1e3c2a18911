//! Good answers as streams: the frames of each dialect, in the order in which its vendor sends them.

use serde_json::{Value, json};

use super::reply::{Content, chat_tool_calls, chat_usage, message_blocks, message_usage, output_items, response};
use crate::protocol::{Dialect, Endpoint};

/// The frames of a good answer.
pub(super) fn frames(endpoint: Endpoint, c: &Content, request: &Value) -> Vec<String> {
    match endpoint {
        Endpoint::Messages => messages(c),
        Endpoint::Responses => responses(c),
        _ => chat(c, request.pointer("/stream_options/include_usage") == Some(&Value::Bool(true))),
    }
}

/// An error frame of a dialect.
pub(super) fn error_frame(dialect: Dialect, data: &Value) -> String {
    match dialect {
        Dialect::Messages => format!("event: error\ndata: {data}\n\n"),
        Dialect::Responses => {
            let failed = json!({"type": "response.failed", "response": {"id": "resp_fake", "object": "response", "status": "failed", "error": data.get("error")}});
            format!("event: response.failed\ndata: {failed}\n\n")
        }
        _ => format!("data: {data}\n\n"),
    }
}

/// A text in pieces that add up to it.
fn pieces(text: &str) -> Vec<&str> {
    text.split_inclusive(' ').collect()
}

fn chat(c: &Content, include_usage: bool) -> Vec<String> {
    let chunk = |delta: Value, finish: Value| {
        let mut chunk = json!({
            "id": c.id("chatcmpl-"), "object": "chat.completion.chunk", "created": c.created, "model": c.model, "service_tier": "default",
            "system_fingerprint": "fp_fake", "choices": [{"index": 0, "delta": delta, "logprobs": null, "finish_reason": finish}],
        });
        if include_usage {
            chunk["usage"] = Value::Null;
        }
        format!("data: {chunk}\n\n")
    };
    let mut out = vec![chunk(json!({"role": "assistant", "content": "", "refusal": null}), Value::Null)];
    out.extend(pieces(c.reasoning.as_deref().unwrap_or_default()).into_iter().map(|p| chunk(json!({"reasoning_content": p}), Value::Null)));
    out.extend(pieces(&c.text).into_iter().map(|p| chunk(json!({"content": p}), Value::Null)));
    if let Some(calls) = chat_tool_calls(c, "") {
        out.push(chunk(json!({"tool_calls": calls}), Value::Null));
        out.push(chunk(json!({"tool_calls": [{"index": 0, "function": {"arguments": c.arguments()}}]}), Value::Null));
    }
    out.push(chunk(json!({}), c.finish("stop", "tool_calls").into()));
    if include_usage {
        let usage = json!({
            "id": c.id("chatcmpl-"), "object": "chat.completion.chunk", "created": c.created, "model": c.model, "choices": [], "usage": chat_usage(c),
        });
        out.push(format!("data: {usage}\n\n"));
    }
    out.push("data: [DONE]\n\n".to_owned());
    out
}

fn event(name: &str, mut data: Value) -> String {
    data["type"] = name.into();
    format!("event: {name}\ndata: {data}\n\n")
}

fn messages(c: &Content) -> Vec<String> {
    let mut usage = message_usage(c);
    usage["output_tokens"] = 1.into();
    let start = json!({
        "id": c.id("msg_"), "type": "message", "role": "assistant", "model": c.model, "content": [], "stop_reason": null, "stop_sequence": null,
        "usage": usage,
    });
    let mut out = vec![event("message_start", json!({"message": start}))];
    for (index, block) in message_blocks(c).into_iter().enumerate() {
        let kind = block.get("type").and_then(Value::as_str).unwrap_or_default().to_owned();
        let delta = |d: Value| event("content_block_delta", json!({"index": index, "delta": d}));
        let text = |name: &str| block.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        let (empty, deltas) = match kind.as_str() {
            "thinking" => {
                let mut deltas: Vec<String> =
                    pieces(&text("thinking")).into_iter().map(|p| delta(json!({"type": "thinking_delta", "thinking": p}))).collect();
                deltas.push(delta(json!({"type": "signature_delta", "signature": text("signature")})));
                (json!({"type": "thinking", "thinking": "", "signature": ""}), deltas)
            }
            "tool_use" => {
                let empty = json!({"type": "tool_use", "id": text("id"), "name": text("name"), "input": {}});
                (empty, vec![delta(json!({"type": "input_json_delta", "partial_json": c.arguments()}))])
            }
            _ => {
                let deltas = pieces(&text("text")).into_iter().map(|p| delta(json!({"type": "text_delta", "text": p}))).collect();
                (json!({"type": "text", "text": ""}), deltas)
            }
        };
        out.push(event("content_block_start", json!({"index": index, "content_block": empty})));
        if index == 0 {
            out.push(event("ping", json!({})));
        }
        out.extend(deltas);
        out.push(event("content_block_stop", json!({"index": index})));
    }
    let delta = json!({"stop_reason": c.finish("end_turn", "tool_use"), "stop_sequence": null});
    out.push(event("message_delta", json!({"delta": delta, "usage": {"output_tokens": c.output_tokens()}})));
    out.push(event("message_stop", json!({})));
    out
}

fn responses(c: &Content) -> Vec<String> {
    let mut events = vec![("response.created", json!({"response": response(c, "in_progress")}))];
    events.push(("response.in_progress", json!({"response": response(c, "in_progress")})));
    for (index, item) in output_items(c, "completed").into_iter().enumerate() {
        item_events(&mut events, index, &item);
    }
    events.push(("response.completed", json!({"response": response(c, "completed")})));
    let numbered = events.into_iter().enumerate().map(|(n, (name, mut data))| {
        data["sequence_number"] = n.into();
        event(name, data)
    });
    numbered.collect()
}

fn item_events(events: &mut Vec<(&'static str, Value)>, index: usize, item: &Value) {
    let id = item.get("id").cloned().unwrap_or_default();
    let mut started = item.clone();
    started["status"] = "in_progress".into();
    let at = |mut more: Value| {
        more["item_id"] = id.clone();
        more["output_index"] = index.into();
        more
    };
    match item.get("type").and_then(Value::as_str) {
        Some("reasoning") => {
            let text = item.pointer("/summary/0/text").and_then(Value::as_str).unwrap_or_default();
            started["summary"] = json!([]);
            events.push(("response.output_item.added", json!({"output_index": index, "item": started})));
            events.push((
                "response.reasoning_summary_part.added",
                at(json!({"summary_index": 0, "part": {"type": "summary_text", "text": ""}})),
            ));
            events.extend(
                pieces(text).into_iter().map(|p| ("response.reasoning_summary_text.delta", at(json!({"summary_index": 0, "delta": p})))),
            );
            events.push(("response.reasoning_summary_text.done", at(json!({"summary_index": 0, "text": text}))));
            events.push((
                "response.reasoning_summary_part.done",
                at(json!({"summary_index": 0, "part": {"type": "summary_text", "text": text}})),
            ));
        }
        Some("function_call") => {
            let arguments = item.get("arguments").cloned().unwrap_or_default();
            started["arguments"] = "".into();
            events.push(("response.output_item.added", json!({"output_index": index, "item": started})));
            events.push(("response.function_call_arguments.delta", at(json!({"delta": arguments}))));
            events.push(("response.function_call_arguments.done", at(json!({"arguments": arguments, "name": item.get("name")}))));
        }
        _ => {
            let text = item.pointer("/content/0/text").and_then(Value::as_str).unwrap_or_default();
            let part = |text: &str| json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []});
            started["content"] = json!([]);
            events.push(("response.output_item.added", json!({"output_index": index, "item": started})));
            events.push(("response.content_part.added", at(json!({"content_index": 0, "part": part("")}))));
            events.extend(
                pieces(text)
                    .into_iter()
                    .map(|p| ("response.output_text.delta", at(json!({"content_index": 0, "delta": p, "logprobs": []})))),
            );
            events.push(("response.output_text.done", at(json!({"content_index": 0, "text": text, "logprobs": []}))));
            events.push(("response.content_part.done", at(json!({"content_index": 0, "part": part(text)}))));
        }
    }
    events.push(("response.output_item.done", json!({"output_index": index, "item": item})));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::fake::script::{Reply, ToolCall};
    use crate::protocol::progress::Classifier;
    use crate::protocol::quality::check_stream_end;
    use crate::protocol::sse::{Decoder, Event, Flow};

    /// Our own reader takes every frame for what it is and the end for an end.
    #[test]
    fn good_streams_are_read_as_good_ones() {
        let tool = ToolCall { name: "f".into(), arguments: json!({"a": 1}) };
        for reply in [
            Reply::default(),
            Reply { reasoning: Some("let me see".into()), ..Reply::default() },
            Reply { tool_call: Some(tool), ..Reply::default() },
        ] {
            let content = Content::new(1, 1, "m", "Hello from here.", Some(&reply), 10);
            for endpoint in [Endpoint::ChatCompletions, Endpoint::Messages, Endpoint::Responses] {
                let (mut decoder, mut classifier) = (Decoder::new(), Classifier::new(endpoint.dialect()));
                for frame in frames(endpoint, &content, &json!({"stream_options": {"include_usage": true}})) {
                    decoder.push(frame.as_bytes(), |e| {
                        if let Event::Frame { name, data } = e {
                            classifier.frame(name, data);
                        }
                        Flow::Continue
                    });
                }
                let facts = classifier.facts();
                assert_eq!((facts.malformed, facts.terminal), (0, true), "{endpoint:?}");
                assert_eq!(check_stream_end(facts, false), Ok(()), "{endpoint:?}");
                assert_eq!((facts.tool_call, facts.reasoning), (reply.tool_call.is_some(), reply.reasoning.is_some()), "{endpoint:?}");
                assert_eq!(facts.usage.map(|u| u.output), Some(content.output_tokens()), "{endpoint:?}");
            }
        }
    }
}
