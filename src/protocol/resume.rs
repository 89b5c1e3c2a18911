//! Going on with a Chat Completions text whose stream broke: the request that asks for the rest, and the frames of the rest as a client must
//! see them behind what it already has (routing spec 10.4).

use serde::Deserialize;
use serde_json::{Value, json};
use std::borrow::Cow;

use super::json::Cursor;
use super::scan::RequestHead;

/// Longest repetition of what was said already that is cut off the rest, in characters.
pub const MAX_OVERLAP: usize = 512;
/// Shortest one: fewer characters agree by chance, and cutting them would damage the text of a vendor that goes on exactly where it stopped.
const MIN_OVERLAP: usize = 4;

/// The request for the rest of a text: the client's request with the other model's name and with `text` as the beginning of the answer.
/// `None` when the request is of a kind whose answer cannot be continued: several choices, JSON output, or an answer that the client itself began.
#[must_use]
pub fn ask_for_rest(body: &[u8], head: &RequestHead, model: &str, text: &str) -> Option<Vec<u8>> {
    if head.structured_output {
        return None;
    }
    let end = end_of_messages(std::str::from_utf8(body).ok()?)?;
    let name = head.model_literal.clone();
    let message = format!(",{}", json!({"role": "assistant", "content": text}));
    let literal = Value::from(model).to_string();
    let mut changes = [(name, literal.as_str()), (end..end, message.as_str())];
    changes.sort_by_key(|(range, _)| range.start);
    let mut out = Vec::with_capacity(body.len() + message.len() + literal.len());
    let mut at = 0;
    for (range, new) in changes {
        out.extend_from_slice(body.get(at..range.start)?);
        out.extend_from_slice(new.as_bytes());
        at = range.end;
    }
    out.extend_from_slice(body.get(at..)?);
    Some(out)
}

/// Where a message can be added to the request.
fn end_of_messages(body: &str) -> Option<usize> {
    let mut cursor = Cursor::new(body);
    let (mut end, mut last_is_theirs, mut choices) = (None, false, None);
    let walked = cursor.object(|c, key| match &*key {
        "messages" if c.peek() == Some(b'[') => {
            c.array(|c| {
                c.peek();
                let start = c.at();
                c.skip(&mut |_| ())?;
                let message = body.get(start..c.at()).unwrap_or_default();
                last_is_theirs = serde_json::from_str::<Speaker<'_>>(message).is_ok_and(|speaker| speaker.role != "assistant");
                Ok(())
            })?;
            end = c.at().checked_sub(1);
            Ok(())
        }
        "n" if matches!(c.peek(), Some(b'0'..=b'9')) => {
            choices = c.number()?.parse::<u64>().ok();
            Ok(())
        }
        _ => c.skip(&mut |_| ()),
    });
    end.filter(|_| walked.is_ok() && last_is_theirs && choices.is_none_or(|n| n <= 1))
}

#[derive(Deserialize)]
struct Speaker<'a> {
    #[serde(borrow)]
    role: Cow<'a, str>,
}

/// What the chunks of one answer have in common.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct AnswerHead {
    id: Option<String>,
    created: Option<u64>,
    model: Option<String>,
}

/// The text of a chunk.
#[derive(Deserialize)]
struct Chunk<'a> {
    #[serde(borrow, default)]
    id: Option<Cow<'a, str>>,
    #[serde(default)]
    created: Option<u64>,
    #[serde(borrow, default)]
    model: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    choices: Vec<Choice<'a>>,
}

#[derive(Deserialize)]
struct Choice<'a> {
    #[serde(default)]
    index: u64,
    #[serde(borrow, default)]
    delta: Option<Delta<'a>>,
}

#[derive(Deserialize)]
struct Delta<'a> {
    #[serde(borrow, default)]
    content: Option<Cow<'a, str>>,
}

/// Takes the text of a frame over into `text`. False when the frame has content that is no plain text of the only choice, so that `text`
/// is no longer what the client has.
pub fn gather(data: &[u8], head: &mut AnswerHead, text: &mut String) -> bool {
    let Ok(chunk) = serde_json::from_slice::<Chunk<'_>>(data) else { return false };
    head.id = head.id.take().or_else(|| chunk.id.map(Cow::into_owned));
    head.created = head.created.or(chunk.created);
    head.model = head.model.take().or_else(|| chunk.model.map(Cow::into_owned));
    for choice in chunk.choices {
        if choice.index != 0 {
            return false;
        }
        text.push_str(choice.delta.and_then(|delta| delta.content).as_deref().unwrap_or_default());
    }
    true
}

/// Makes the frames of the rest follow on what the client has.
#[derive(Clone, Debug)]
pub struct Joint {
    head: AnswerHead,
    /// The end of the text so far, as much as may be repeated.
    before: String,
    /// The beginning of the rest, while it may still be a repetition.
    start: Option<String>,
    stopped: bool,
    ended: bool,
}

impl Joint {
    /// A joint behind `text`, in an answer with this head.
    #[must_use]
    pub fn new(head: AnswerHead, text: &str) -> Self {
        let from = text.char_indices().rev().take(MAX_OVERLAP).last().map_or(0, |(at, _)| at);
        Self { head, before: text.get(from..).unwrap_or_default().to_owned(), start: Some(String::new()), stopped: false, ended: false }
    }

    /// One frame of the rest: adds the frames that the client gets to `out` and their text to `text`.
    pub fn frame(&mut self, data: &[u8], out: &mut Vec<u8>, text: &mut String) {
        if data.trim_ascii() == b"[DONE]" {
            return self.end(out, text);
        }
        let Ok(mut chunk) = serde_json::from_slice::<Value>(data) else { return };
        self.rename(&mut chunk);
        let choice = chunk.get_mut("choices").and_then(|choices| choices.get_mut(0));
        let Some(choice) = choice else { return write(&chunk, out) };
        self.stopped |= choice.get("finish_reason").is_some_and(|reason| !reason.is_null());
        let stopped = self.stopped;
        let Some(delta) = choice.get_mut("delta").and_then(Value::as_object_mut) else { return write(&chunk, out) };
        // The client knows whose turn it is.
        delta.remove("role");
        delta.retain(|_, member| !member.is_null());
        let said = delta.remove("content");
        let only_text = delta.is_empty() && !stopped;
        let new = self.after_overlap(said.as_ref().and_then(Value::as_str).unwrap_or_default(), !only_text);
        if !new.is_empty() {
            text.push_str(&new);
            delta.insert("content".to_owned(), new.into());
        } else if only_text {
            return;
        }
        write(&chunk, out);
    }

    /// The rest has come to its end: what is held back, and the stop and the last frame that it did not have itself. Once.
    pub fn end(&mut self, out: &mut Vec<u8>, text: &mut String) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        let held = self.after_overlap("", true);
        if !held.is_empty() {
            write(&self.chunk(json!({"content": held}), Value::Null), out);
            text.push_str(&held);
        }
        if !std::mem::replace(&mut self.stopped, true) {
            write(&self.chunk(json!({}), "stop".into()), out);
        }
        out.extend_from_slice(b"data: [DONE]\n\n");
    }

    /// What of `said` is new; held back as long as it may be a repetition, unless `now`.
    fn after_overlap(&mut self, said: &str, now: bool) -> String {
        let Some(mut start) = self.start.take() else { return said.to_owned() };
        start.push_str(said);
        if start.is_empty() {
            // Reasoning comes first with many models: as long as there is no text, there is nothing to judge.
            self.start = Some(start);
            return String::new();
        }
        match overlap(&self.before, &start, now) {
            Some(bytes) => start.split_off(bytes),
            None => {
                self.start = Some(start);
                String::new()
            }
        }
    }

    fn chunk(&self, delta: Value, finish_reason: Value) -> Value {
        let mut chunk =
            json!({"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]});
        self.rename(&mut chunk);
        chunk
    }

    /// One answer has one head.
    fn rename(&self, chunk: &mut Value) {
        let Some(chunk) = chunk.as_object_mut() else { return };
        let AnswerHead { id, created, model } = &self.head;
        let known = [("id", id.clone().map(Value::from)), ("created", created.map(Value::from)), ("model", model.clone().map(Value::from))];
        for (name, value) in known {
            if let Some(value) = value {
                chunk.insert(name.to_owned(), value);
            }
        }
    }
}

fn write(chunk: &Value, out: &mut Vec<u8>) {
    out.extend_from_slice(format!("data: {chunk}\n\n").as_bytes());
}

/// How many bytes at the beginning of `start` repeat the end of `before`; `None` while more of `start` is needed to know, which is never when `now`.
fn overlap(before: &str, start: &str, now: bool) -> Option<usize> {
    let mut found = 0;
    for (at, _) in before.char_indices() {
        let end = before.get(at..).unwrap_or_default();
        if end.starts_with(start) && end.len() > start.len() {
            if !now {
                return None;
            }
        } else if found == 0 && start.starts_with(end) && says_something(end) {
            // The first is the longest.
            found = end.len();
        }
    }
    Some(found)
}

/// Rules and indentation repeat themselves in good texts: a single character, however often, proves nothing.
fn says_something(text: &str) -> bool {
    let first = text.chars().next();
    text.chars().count() >= MIN_OVERLAP && text.chars().any(|c| Some(c) != first)
}

#[cfg(test)]
#[path = "resume_tests.rs"]
mod tests;
