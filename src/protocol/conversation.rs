//! A client's conversation, taken up to be continued, shortened or asked elsewhere: what composed requests send. Members that nobody
//! changes keep their bytes and their order, because the order of a schema's properties is the order of the answer's.

use serde::de::{MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};

use super::Dialect;

/// Members that only make sense in the request whose answer reaches the client.
const OF_THE_LAST_CALL: [&str; 8] =
    ["stream_options", "tools", "tool_choice", "functions", "function_call", "parallel_tool_calls", "n", "background"];
/// Members that tie a request to the conversation before it.
const OF_THE_HISTORY: [&str; 5] = ["system", "instructions", "previous_response_id", "conversation", "prompt"];

/// Where a system turn goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// Before what the client's own system prompt says.
    First,
    /// After it.
    AfterSystem,
}

/// A request body, open for changes.
#[derive(Clone, Debug)]
pub struct Conversation {
    dialect: Dialect,
    members: Members,
}

impl Conversation {
    /// Reads a body that was scanned before: an object without duplicate members.
    ///
    /// # Errors
    /// It is no JSON object.
    pub fn parse(dialect: Dialect, body: &[u8]) -> Result<Self, serde_json::Error> {
        Ok(Self { dialect, members: serde_json::from_slice(body)? })
    }

    /// A conversation without a past: one question to a model.
    #[must_use]
    pub fn new(dialect: Dialect, model: &str, question: &str) -> Self {
        let mut new = Self { dialect, members: Members(Vec::new()) };
        new.set("model", &model);
        new.set(new.turns_member(), &[user(question)]);
        new
    }

    /// True when the model may call tools.
    #[must_use]
    pub fn offers_tools(&self) -> bool {
        let some = |name| self.value(name).is_some_and(|v| v.as_array().is_some_and(|a| !a.is_empty()));
        let none = |name| self.value(name).is_some_and(|v| v == "none" || v.get("type").is_some_and(|t| t == "none"));
        (some("tools") && !none("tool_choice")) || (some("functions") && !none("function_call"))
    }

    /// Whether a member is there and not null.
    #[must_use]
    pub fn has(&self, member: &str) -> bool {
        self.members.get(member).is_some_and(|raw| raw.get() != "null")
    }

    /// Sets a member.
    pub fn set(&mut self, member: &str, value: &impl Serialize) {
        // Strings, numbers, lists of values: all of them have a JSON form.
        if let Ok(raw) = to_raw_value(value) {
            self.members.set(member, raw);
        }
    }

    /// The same question for a model whose answer is read here: one whole answer, no stream, no tools.
    #[must_use]
    pub fn for_reading(mut self) -> Self {
        let had_tools = self.has("tools");
        self.members.0.retain(|(name, _)| !OF_THE_LAST_CALL.contains(&name.as_str()));
        if self.has("stream") {
            self.set("stream", &false);
        }
        if had_tools && self.dialect == Dialect::Messages {
            // This API refuses blocks about tools in a request that declares none.
            let told: Vec<Value> = self.turns().iter().map(|turn| tools_in_words(turn)).collect();
            self.set("messages", &told);
        }
        self
    }

    /// Puts a system turn in.
    #[must_use]
    pub fn with_system(mut self, text: &str, place: Place) -> Self {
        let join = |given: &str| match place {
            Place::First => format!("{text}\n\n{given}"),
            Place::AfterSystem => format!("{given}\n\n{text}"),
        };
        match self.dialect {
            Dialect::ChatCompletions | Dialect::Embeddings => {
                let mut turns = self.turns();
                let at = match place {
                    Place::First => 0,
                    Place::AfterSystem => turns.iter().take_while(|turn| is_system(turn)).count(),
                };
                if let Ok(turn) = to_raw_value(&json!({"role": "system", "content": text})) {
                    turns.insert(at, turn);
                }
                self.set("messages", &turns);
            }
            Dialect::Messages => match self.value("system") {
                Some(Value::Array(mut blocks)) => {
                    let at = if place == Place::First { 0 } else { blocks.len() };
                    blocks.insert(at, json!({"type": "text", "text": text}));
                    self.set("system", &blocks);
                }
                Some(Value::String(given)) => self.set("system", &join(&given)),
                _ => self.set("system", &text),
            },
            Dialect::Responses => match self.value("instructions") {
                Some(Value::String(given)) => self.set("instructions", &join(&given)),
                _ => self.set("instructions", &text),
            },
        }
        self
    }

    /// Adds a turn of the user at the end.
    #[must_use]
    pub fn with_user(mut self, text: &str) -> Self {
        let mut turns = self.turns();
        turns.extend(to_raw_value(&user(text)).ok());
        self.set(self.turns_member(), &turns);
        self
    }

    /// Replaces everything that was said by one turn of the user; what the client set beside the conversation stays.
    #[must_use]
    pub fn replaced_by(mut self, text: &str) -> Self {
        self.members.0.retain(|(name, _)| !OF_THE_HISTORY.contains(&name.as_str()));
        self.set(self.turns_member(), &[user(text)]);
        self
    }

    /// What was said, oldest first, as pairs of role and text; the system prompt comes first. Parts without text are left out.
    #[must_use]
    pub fn spoken(&self) -> Vec<(String, String)> {
        let system = ["system", "instructions"].into_iter().filter_map(|name| self.value(name)).map(|v| ("system".to_owned(), text_of(&v)));
        let turns = self.turns();
        let turns = turns.iter().filter_map(|turn| serde_json::from_str::<Value>(turn.get()).ok()).map(|turn| {
            let role = turn.get("role").or_else(|| turn.get("type")).and_then(Value::as_str).unwrap_or("user").to_owned();
            let said = ["content", "output", "arguments"].into_iter().filter_map(|name| turn.get(name)).map(text_of).collect::<Vec<_>>();
            (role, said.join("\n"))
        });
        system.chain(turns).filter(|(_, text)| !text.trim().is_empty()).collect()
    }

    /// The body.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        // Keys are strings and values are JSON already: this has a JSON form.
        serde_json::to_vec(&self.members).unwrap_or_default()
    }

    const fn turns_member(&self) -> &'static str {
        match self.dialect {
            Dialect::Responses | Dialect::Embeddings => "input",
            Dialect::ChatCompletions | Dialect::Messages => "messages",
        }
    }

    /// The turns, each as the client wrote it.
    fn turns(&self) -> Vec<Box<RawValue>> {
        let Some(raw) = self.members.get(self.turns_member()) else { return Vec::new() };
        if let Ok(text) = serde_json::from_str::<String>(raw.get()) {
            return to_raw_value(&user(&text)).into_iter().collect();
        }
        serde_json::from_str(raw.get()).unwrap_or_default()
    }

    fn value(&self, member: &str) -> Option<Value> {
        serde_json::from_str(self.members.get(member)?.get()).ok()
    }
}

/// The beginning of a text, at most so many bytes, cut between characters.
pub(super) fn beginning(text: &str, most: usize) -> &str {
    let end = (0..=most.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    text.get(..end).unwrap_or_default()
}

/// The end of a text, at most so many bytes, cut between characters.
pub(super) fn end(text: &str, most: usize) -> &str {
    let from = (text.len().saturating_sub(most)..=text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
    text.get(from..).unwrap_or_default()
}

fn user(text: &str) -> Value {
    json!({"role": "user", "content": text})
}

fn is_system(turn: &RawValue) -> bool {
    let role = serde_json::from_str::<Value>(turn.get()).ok();
    role.and_then(|t| t.get("role").and_then(Value::as_str).map(|r| matches!(r, "system" | "developer"))).unwrap_or(false)
}

/// The text of a string, of a list of parts, or of a part.
fn text_of(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().map(text_of).filter(|t| !t.is_empty()).collect::<Vec<_>>().join("\n"),
        Value::Object(part) => part.get("text").or_else(|| part.get("content")).map(text_of).unwrap_or_default(),
        _ => String::new(),
    }
}

/// A turn of the Messages dialect whose tool calls and results are told as text.
fn tools_in_words(turn: &RawValue) -> Value {
    let mut turn: Value = serde_json::from_str(turn.get()).unwrap_or_default();
    for block in turn.get_mut("content").and_then(Value::as_array_mut).into_iter().flatten() {
        let told = match block.get("type").and_then(Value::as_str) {
            Some("tool_use") => {
                let name = block.get("name").and_then(Value::as_str).unwrap_or("a tool");
                format!("[called {name} with {}]", block.get("input").unwrap_or(&Value::Null))
            }
            Some("tool_result") => format!("[the tool answered: {}]", block.get("content").map(text_of).unwrap_or_default()),
            _ => continue,
        };
        *block = json!({"type": "text", "text": told});
    }
    turn
}

/// Why an answer has no text to go on with.
#[derive(thiserror::Error, Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoText {
    /// It is not the JSON of its dialect.
    #[error("unparseable")]
    Unparseable,
    /// It says nothing.
    #[error("empty_content")]
    Empty,
}

/// The text of a whole answer.
///
/// # Errors
/// There is none.
pub fn answer_text(dialect: Dialect, answer: &[u8]) -> Result<String, NoText> {
    let answer: Value = serde_json::from_slice(answer).map_err(|_| NoText::Unparseable)?;
    let list = |name: &str| answer.get(name).and_then(Value::as_array).ok_or(NoText::Unparseable);
    let of_type = |value: &Value, kind: &str| value.get("type").is_some_and(|t| t == kind);
    let text = match dialect {
        Dialect::ChatCompletions => {
            let choice = list("choices")?.first().ok_or(NoText::Empty)?;
            text_of(choice.get("message").and_then(|m| m.get("content")).unwrap_or(&Value::Null))
        }
        Dialect::Messages => list("content")?.iter().filter(|b| of_type(b, "text")).map(text_of).collect::<Vec<_>>().concat(),
        Dialect::Responses => {
            let messages = list("output")?.iter().filter(|item| of_type(item, "message"));
            let parts = messages.filter_map(|item| item.get("content")?.as_array()).flatten();
            parts.filter(|part| of_type(part, "output_text")).map(text_of).collect::<Vec<_>>().concat()
        }
        Dialect::Embeddings => return Err(NoText::Unparseable),
    };
    if text.trim().is_empty() { Err(NoText::Empty) } else { Ok(text) }
}

/// The members of an object in their order.
#[derive(Clone, Debug)]
struct Members(Vec<(String, Box<RawValue>)>);

impl Members {
    fn get(&self, member: &str) -> Option<&RawValue> {
        self.0.iter().find(|(name, _)| name == member).map(|(_, raw)| &**raw)
    }

    fn set(&mut self, member: &str, raw: Box<RawValue>) {
        match self.0.iter_mut().find(|(name, _)| name == member) {
            Some((_, known)) => *known = raw,
            None => self.0.push((member.to_owned(), raw)),
        }
    }
}

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Ordered;
        impl<'de> Visitor<'de> for Ordered {
            type Value = Members;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Ordered)
    }
}

impl Serialize for Members {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, raw) in &self.0 {
            map.serialize_entry(name, raw)?;
        }
        map.end()
    }
}

#[cfg(test)]
#[path = "conversation_tests.rs"]
mod tests;
