//! The script: which request gets which answer. Documented for users in docs/fake-upstream.md.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::api::time::{format_duration, parse_duration};

/// Why a script was refused.
#[derive(thiserror::Error, Debug)]
#[error("reading the script: {0}")]
pub struct ScriptError(String);

/// A whole script. Without rules every request gets a good answer of its dialect.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Script {
    /// What good answers say.
    pub text: Option<String>,
    /// Models that `GET /v1/models` lists.
    pub models: Vec<String>,
    /// Rules; the first one that matches and is not used up answers.
    pub rules: Vec<Rule>,
}

impl Script {
    /// Reads YAML or JSON.
    ///
    /// # Errors
    /// Where and why it is no script.
    pub fn parse(text: &str) -> Result<Self, ScriptError> {
        serde_saphyr::from_str(text).map_err(|e| ScriptError(e.to_string()))
    }

    /// The first rule that takes this request, and its next answer.
    pub(super) fn choose(&self, seen: &Seen<'_>) -> Option<(&Rule, &Answer)> {
        self.rules.iter().find_map(|rule| rule.take(seen).map(|answer| (rule, answer)))
    }
}

/// One rule: whom it answers, and how.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Rule {
    /// For the log of requests.
    pub name: String,
    /// Which requests; every given part must hold.
    #[serde(rename = "match")]
    pub matches: Match,
    /// How many requests it answers; absent = all.
    pub times: Option<usize>,
    /// The answers in turn; the last one stays. None = the good answer.
    pub answers: Vec<Answer>,
    /// Start again behind the last answer.
    pub cycle: bool,
    /// Requests answered so far.
    #[serde(skip)]
    used: AtomicUsize,
}

impl Clone for Rule {
    /// A copy starts from its first answer.
    fn clone(&self) -> Self {
        Self {
            name: self.name.clone(),
            matches: self.matches.clone(),
            times: self.times,
            answers: self.answers.clone(),
            cycle: self.cycle,
            used: AtomicUsize::new(0),
        }
    }
}

impl Rule {
    /// A rule with one lasting answer.
    #[must_use]
    pub fn new(name: &str, matches: Match, answer: Answer) -> Self {
        Self { name: name.to_owned(), matches, answers: vec![answer], ..Self::default() }
    }

    /// The same rule for a number of requests only.
    #[must_use]
    pub const fn times(mut self, times: usize) -> Self {
        self.times = Some(times);
        self
    }

    fn take(&self, seen: &Seen<'_>) -> Option<&Answer> {
        const GOOD: Answer = Answer::good();
        if !self.matches.holds(seen) {
            return None;
        }
        let turn = self.used.fetch_add(1, Ordering::Relaxed);
        if self.times.is_some_and(|times| turn >= times) {
            return None;
        }
        let last = self.answers.len().saturating_sub(1);
        let index = if self.cycle && last > 0 { turn % (last + 1) } else { turn.min(last) };
        self.answers.get(index).or(Some(const { &GOOD }))
    }
}

/// Which requests a rule answers. `*` in a text stands for anything.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Match {
    /// The path (`/v1/chat/completions`, `*/messages`).
    pub path: Option<String>,
    /// The model.
    pub model: Option<String>,
    /// The credential, without `Bearer`.
    pub key: Option<String>,
    /// Streamed or not.
    pub stream: Option<bool>,
    /// A text within the body.
    pub body: Option<String>,
}

impl Match {
    /// Requests with this credential.
    #[must_use]
    pub fn key(key: &str) -> Self {
        Self { key: Some(key.to_owned()), ..Self::default() }
    }

    fn holds(&self, seen: &Seen<'_>) -> bool {
        let like = |pattern: &Option<String>, text: &str| pattern.as_deref().is_none_or(|p| glob(p, text));
        like(&self.path, seen.path)
            && like(&self.model, seen.model)
            && like(&self.key, seen.key)
            && self.stream.is_none_or(|s| s == seen.stream)
            && self.body.as_deref().is_none_or(|b| seen.body.contains(b))
    }
}

/// What a rule looks at.
pub(super) struct Seen<'a> {
    pub path: &'a str,
    pub model: &'a str,
    pub key: &'a str,
    pub stream: bool,
    pub body: &'a str,
}

/// One answer.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Answer {
    /// Status; 200 when absent.
    pub status: Option<u16>,
    /// Headers beside the usual ones.
    pub headers: BTreeMap<String, String>,
    /// The body as it is: a text, or a JSON value. Absent = the good answer, or for an error status an error of the dialect.
    pub body: Option<Value>,
    /// Before the head of the answer.
    #[serde(with = "duration", skip_serializing_if = "Option::is_none")]
    pub delay: Option<Duration>,
    /// What a good answer says.
    pub reply: Option<Reply>,
    /// The chunks of a stream as they are, in place of a good answer.
    pub frames: Option<Vec<String>>,
    /// Between two chunks of a stream.
    #[serde(with = "duration", skip_serializing_if = "Option::is_none")]
    pub interval: Option<Duration>,
    /// What goes wrong.
    pub fault: Option<Fault>,
}

impl Answer {
    const fn good() -> Self {
        Self { status: None, headers: BTreeMap::new(), body: None, delay: None, reply: None, frames: None, interval: None, fault: None }
    }

    /// An answer with a status and, for error statuses, an error of the dialect.
    #[must_use]
    pub fn status(status: u16) -> Self {
        Self { status: Some(status), ..Self::default() }
    }

    /// Adds a header.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.insert(name.to_owned(), value.to_owned());
        self
    }

    /// Sets the body.
    #[must_use]
    pub fn body(mut self, body: impl Into<Value>) -> Self {
        self.body = Some(body.into());
        self
    }

    /// Waits before the head of the answer.
    #[must_use]
    pub const fn delay(mut self, delay: Duration) -> Self {
        self.delay = Some(delay);
        self
    }

    /// A stream of exactly these chunks.
    #[must_use]
    pub fn frames<S: Into<String>>(frames: impl IntoIterator<Item = S>) -> Self {
        Self { frames: Some(frames.into_iter().map(Into::into).collect()), ..Self::default() }
    }

    /// Waits between the chunks of a stream.
    #[must_use]
    pub const fn interval(mut self, interval: Duration) -> Self {
        self.interval = Some(interval);
        self
    }

    /// A good answer that goes wrong behind `after` chunks.
    #[must_use]
    pub fn fault(kind: FaultKind, after: usize) -> Self {
        Self { fault: Some(Fault { kind, after, body: None }), ..Self::default() }
    }
}

/// What a good answer says.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Reply {
    /// The text; an empty one gives an answer without content.
    pub text: Option<String>,
    /// Reasoning before it.
    pub reasoning: Option<String>,
    /// A tool call behind it.
    pub tool_call: Option<ToolCall>,
    /// Why it ended, in the words of the dialect.
    pub finish_reason: Option<String>,
}

/// A tool call.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ToolCall {
    /// Name of the tool.
    pub name: String,
    /// Its arguments.
    pub arguments: Value,
}

/// What goes wrong, and when.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Fault {
    /// What.
    pub kind: FaultKind,
    /// Behind how many chunks of the body; 0 = before the first one.
    #[serde(default)]
    pub after: usize,
    /// The data of an `errorFrame`; absent = an overload error of the dialect.
    #[serde(default)]
    pub body: Option<Value>,
}

/// What can go wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum FaultKind {
    /// Never answers at all; the connection stays open.
    Hang,
    /// Closes the connection without an answer.
    Close,
    /// The connection is reset.
    Reset,
    /// The connection closes within the body.
    Cut,
    /// The body ends politely, but too early.
    Eof,
    /// Nothing more comes; the connection stays open.
    Stall,
    /// Only comments come from then on.
    Ping,
    /// A frame that is no JSON; then the stream goes on.
    Malformed,
    /// An error frame; then the body ends.
    ErrorFrame,
    /// Every byte in a write of its own.
    Drip,
}

/// `*` stands for any text.
fn glob(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| text.strip_prefix(first)) else { return false };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        match rest.find(part) {
            Some(at) => rest = rest.get(at + part.len()..).unwrap_or_default(),
            None => return false,
        }
    }
    true
}

/// Gateway API durations (`250ms`).
mod duration {
    use super::{Duration, format_duration, parse_duration};
    use serde::{Deserialize, Deserializer, Serializer};

    #[allow(clippy::ref_option)] // serde's signature
    pub fn serialize<S: Serializer>(value: &Option<Duration>, s: S) -> Result<S::Ok, S::Error> {
        match value {
            Some(d) => s.serialize_str(&format_duration(u64::try_from(d.as_millis()).unwrap_or(u64::MAX))),
            None => s.serialize_none(),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Duration>, D::Error> {
        let text = Option::<String>::deserialize(d)?;
        text.map(|t| parse_duration(&t).map(Duration::from_millis).map_err(serde::de::Error::custom)).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEEN: Seen<'_> =
        Seen { path: "/v1/chat/completions", model: "gpt-5.2", key: "sk-a", stream: true, body: "{\"model\":\"gpt-5.2\"}" };

    #[test]
    fn globs_match_whole_texts() {
        for (pattern, text, expected) in [
            ("a", "a", true),
            ("a", "ab", false),
            ("*", "", true),
            ("a*", "abc", true),
            ("*c", "abc", true),
            ("a*c", "abbc", true),
            ("a*b*c", "axbyc", true),
            ("a*b*c", "axyc", false),
            ("*b*", "abc", true),
            ("ab*ba", "aba", false),
        ] {
            assert_eq!(glob(pattern, text), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn answers_come_in_turn_and_rules_are_used_up() {
        let script = Script::parse(
            "rules:\n- name: one\n  match: {key: sk-a, model: 'gpt-*', stream: true}\n  times: 3\n  answers:\n  - {status: 429, headers: {retry-after: '30'}}\n  - {status: 503, delay: 20ms}\n- name: rest\n  cycle: true\n  answers: [{status: 500}, {status: 200}]\n",
        )
        .expect("script");
        let statuses: Vec<_> = (0..6).map(|_| script.choose(&SEEN).and_then(|(_, a)| a.status)).collect();
        assert_eq!(statuses, [429, 503, 503, 500, 200, 500].map(Some));
        assert!(script.choose(&Seen { key: "sk-b", ..SEEN }).is_some_and(|(rule, _)| rule.name == "rest"));
    }

    #[test]
    fn misspelt_scripts_are_refused() {
        for bad in [
            "rule: []",
            "rules: [{match: {model: x}, answer: {}}]",
            "rules: [{answers: [{delay: 5}]}]",
            "rules: [{answers: [{fault: {kind: explode}}]}]",
        ] {
            assert!(Script::parse(bad).is_err(), "{bad}");
        }
    }
}
