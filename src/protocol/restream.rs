//! A whole answer as a stream: for providers that ignore `stream: true` (routing spec 10.1).

use serde_json::{Value, json};

use super::Dialect;

/// The frames that a stream of this answer would have had; `None` when it has not the shape of the dialect.
#[must_use]
pub fn as_stream(dialect: Dialect, answer: &[u8]) -> Option<Vec<u8>> {
    let answer: Value = serde_json::from_slice(answer).ok()?;
    let frames = match dialect {
        Dialect::ChatCompletions => chat(&answer)?,
        Dialect::Messages => messages(&answer)?,
        Dialect::Responses => responses(answer)?,
        Dialect::Embeddings => return None,
    };
    Some(frames.concat().into_bytes())
}

fn event(name: &str, mut data: Value) -> String {
    data["type"] = name.into();
    format!("event: {name}\ndata: {data}\n\n")
}

fn chat(answer: &Value) -> Option<Vec<String>> {
    let chunk = |choices: Value| {
        let mut chunk = json!({"object": "chat.completion.chunk", "choices": choices});
        for name in ["id", "created", "model", "system_fingerprint", "service_tier"] {
            if let Some(value) = answer.get(name) {
                chunk[name] = value.clone();
            }
        }
        chunk
    };
    let mut out = Vec::new();
    for choice in answer.get("choices")?.as_array()? {
        let index = choice.get("index").cloned().unwrap_or_else(|| 0.into());
        let mut delta = choice.get("message")?.clone();
        for (position, call) in delta.get_mut("tool_calls").and_then(Value::as_array_mut).into_iter().flatten().enumerate() {
            // In a stream each part of a call says which call it belongs to.
            if let Some(call) = call.as_object_mut() {
                call.entry("index").or_insert_with(|| position.into());
            }
        }
        out.push(format!("data: {}\n\n", chunk(json!([{"index": index, "delta": delta, "finish_reason": null}]))));
        let reason = choice.get("finish_reason").cloned().unwrap_or_else(|| "stop".into());
        out.push(format!("data: {}\n\n", chunk(json!([{"index": index, "delta": {}, "finish_reason": reason}]))));
    }
    if let Some(usage) = answer.get("usage").filter(|u| !u.is_null()) {
        let mut last = chunk(json!([]));
        last["usage"] = usage.clone();
        out.push(format!("data: {last}\n\n"));
    }
    out.push("data: [DONE]\n\n".to_owned());
    Some(out)
}

fn messages(answer: &Value) -> Option<Vec<String>> {
    let blocks = answer.get("content")?.as_array()?;
    let mut start = answer.clone();
    (start["content"], start["stop_reason"], start["stop_sequence"]) = (json!([]), Value::Null, Value::Null);
    let mut out = vec![event("message_start", json!({"message": start}))];
    for (index, block) in blocks.iter().enumerate() {
        let mut empty = block.clone();
        let mut deltas = Vec::new();
        match block.get("type").and_then(Value::as_str)? {
            "text" => {
                empty["text"] = "".into();
                deltas.push(json!({"type": "text_delta", "text": block.get("text")}));
            }
            "thinking" => {
                (empty["thinking"], empty["signature"]) = ("".into(), "".into());
                deltas.push(json!({"type": "thinking_delta", "thinking": block.get("thinking")}));
                deltas.push(json!({"type": "signature_delta", "signature": block.get("signature")}));
            }
            "tool_use" | "server_tool_use" => {
                empty["input"] = json!({});
                deltas.push(json!({"type": "input_json_delta", "partial_json": block.get("input").unwrap_or(&json!({})).to_string()}));
            }
            _ => {}
        }
        out.push(event("content_block_start", json!({"index": index, "content_block": empty})));
        out.extend(deltas.into_iter().map(|d| event("content_block_delta", json!({"index": index, "delta": d}))));
        out.push(event("content_block_stop", json!({"index": index})));
    }
    let delta = json!({"stop_reason": answer.get("stop_reason"), "stop_sequence": answer.get("stop_sequence")});
    out.push(event("message_delta", json!({"delta": delta, "usage": answer.get("usage")})));
    out.push(event("message_stop", json!({})));
    Some(out)
}

fn responses(answer: Value) -> Option<Vec<String>> {
    let items = answer.get("output")?.as_array()?.clone();
    let status = answer.get("status").and_then(Value::as_str).unwrap_or("completed");
    let last = if status == "incomplete" { "response.incomplete" } else { "response.completed" };
    let mut started = answer.clone();
    (started["status"], started["output"], started["usage"]) = ("in_progress".into(), json!([]), Value::Null);
    let mut events = vec![("response.created", json!({"response": started}))];
    for (index, item) in items.iter().enumerate() {
        let at = |part: usize, mut more: Value| {
            (more["item_id"], more["output_index"], more["content_index"]) =
                (item.get("id").cloned().unwrap_or_default(), index.into(), part.into());
            more
        };
        let mut empty = item.clone();
        let parts = item.get("content").and_then(Value::as_array).cloned().unwrap_or_default();
        if item.get("type").and_then(Value::as_str) == Some("message") {
            (empty["content"], empty["status"]) = (json!([]), "in_progress".into());
        }
        events.push(("response.output_item.added", json!({"output_index": index, "item": empty})));
        for (number, part) in parts.iter().enumerate() {
            if let Some(text) = part.get("text").filter(|_| part.get("type").and_then(Value::as_str) == Some("output_text")) {
                let mut bare = part.clone();
                bare["text"] = "".into();
                events.push(("response.content_part.added", at(number, json!({"part": bare}))));
                events.push(("response.output_text.delta", at(number, json!({"delta": text, "logprobs": []}))));
                events.push(("response.output_text.done", at(number, json!({"text": text, "logprobs": []}))));
                events.push(("response.content_part.done", at(number, json!({"part": part}))));
            }
        }
        events.push(("response.output_item.done", json!({"output_index": index, "item": item})));
    }
    events.push((last, json!({"response": answer})));
    let numbered = events.into_iter().enumerate().map(|(number, (name, mut data))| {
        data["sequence_number"] = number.into();
        event(name, data)
    });
    Some(numbered.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::progress::{Classifier, StreamFacts};
    use crate::protocol::quality::check_stream_end;
    use crate::protocol::sse::{Decoder, Event, Flow};

    fn read(dialect: Dialect, answer: &Value) -> (StreamFacts, String) {
        let bytes = as_stream(dialect, answer.to_string().as_bytes()).expect("a stream");
        let mut classifier = Classifier::new(dialect);
        Decoder::new().push(&bytes, |e| {
            if let Event::Frame { name, data } = e {
                classifier.frame(name, data);
            }
            Flow::Continue
        });
        (classifier.facts().clone(), String::from_utf8(bytes).expect("text"))
    }

    #[test]
    fn whole_answers_become_good_streams() {
        let chat = json!({"id": "c", "model": "m", "choices": [{"index": 0, "finish_reason": "tool_calls",
            "message": {"role": "assistant", "content": "hi", "tool_calls": [{"id": "t", "function": {"name": "f", "arguments": "{}"}}]}}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 2}});
        let message = json!({"id": "m", "type": "message", "content": [{"type": "thinking", "thinking": "hm", "signature": "s"},
            {"type": "text", "text": "hi"}, {"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}}],
            "stop_reason": "tool_use", "usage": {"input_tokens": 1, "output_tokens": 2}});
        let response = json!({"id": "r", "status": "completed", "output": [{"id": "i", "type": "message", "content": [{"type": "output_text", "text": "hi"}]},
            {"id": "f", "type": "function_call", "name": "f", "arguments": "{}"}], "usage": {"input_tokens": 1, "output_tokens": 2}});
        for (dialect, answer) in [(Dialect::ChatCompletions, chat), (Dialect::Messages, message), (Dialect::Responses, response)] {
            let (facts, text) = read(dialect, &answer);
            assert_eq!((facts.malformed, facts.terminal, facts.text_bytes, facts.tool_call), (0, true, 2, true), "{text}");
            assert_eq!((facts.usage.map(|u| (u.input, u.output)), check_stream_end(&facts, false)), (Some((1, 2)), Ok(())), "{text}");
        }
    }

    #[test]
    fn what_is_no_answer_becomes_no_stream() {
        for text in ["", "[]", "{}", r#"{"choices":[{}]}"#, r#"{"content":[{"text":"x"}]}"#] {
            for dialect in [Dialect::ChatCompletions, Dialect::Messages, Dialect::Responses, Dialect::Embeddings] {
                assert_eq!(as_stream(dialect, text.as_bytes()), None, "{text}");
            }
        }
    }
}
