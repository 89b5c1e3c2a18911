//! Whether a 2xx answer is one: the check of answers that are not streamed (routing spec 5.4, decisions 1.9 and 9.9) and of finished streams.

use std::borrow::Cow;
use std::fmt::Display;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::glance::good_chat;
use super::progress::{
    BaseResponse, Block, ChatChoice, Count, Output, Present, StreamFacts, Usage, UsageObject, explains_emptiness, usage_of,
};
use super::{Dialect, Endpoint};

/// Checks of a 2xx answer (routing spec 5.4).
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ValidateResponse {
    /// Least characters of content.
    pub min_content_length: u64,
    /// Literal texts that must not appear.
    pub forbidden: Vec<String>,
    /// Literal texts that must appear.
    pub required: Vec<String>,
    /// Predicates on the JSON answer.
    pub json: Vec<JsonPredicate>,
}

/// One predicate on a JSON answer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JsonPredicate {
    /// Dotted path with optional indexes (`choices[0].message.content`).
    pub path: String,
    /// Condition.
    pub condition: JsonCondition,
    /// Value of `Equals` and `NotEquals`, as JSON text.
    pub value: Option<String>,
}

/// Condition of a [`JsonPredicate`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum JsonCondition {
    Exists,
    NonEmpty,
    Equals,
    NotEquals,
}

/// What is wrong with a 2xx answer.
#[derive(thiserror::Error, Clone, PartialEq, Eq, Debug)]
pub enum QualityFailure {
    /// Nothing at all.
    #[error("the answer has an empty body")]
    EmptyBody,
    /// Neither JSON nor an event stream, though its content type says so.
    #[error("the answer is not valid JSON: {0}")]
    NotJson(String),
    /// An error object inside a 2xx: classify the body under its own code.
    #[error("the answer is an error inside a success status")]
    ErrorInside,
    /// Not the shape of the dialect.
    #[error("the answer has no {0}")]
    Shape(&'static str),
    /// A regular end without text, tool call or refusal.
    #[error("the answer has no content")]
    NoContent,
    /// The tokens went into reasoning, nothing was answered.
    #[error("the answer has reasoning but no content")]
    OnlyReasoning,
    /// `validateResponse.minContentLength`.
    #[error("the answer has {found} characters, validateResponse.minContentLength asks for {least}")]
    TooShort {
        /// Characters of content.
        found: u64,
        /// Least number.
        least: u64,
    },
    /// `validateResponse.forbiddenSubstrings`.
    #[error("the answer contains a text that validateResponse.forbidden lists: {0:?}")]
    Forbidden(String),
    /// `validateResponse.requiredSubstrings`.
    #[error("the answer lacks a text that validateResponse.required lists: {0:?}")]
    Required(String),
    /// A predicate on the JSON answer.
    #[error("the answer fails the validateResponse predicate on `{0}`")]
    Predicate(String),
}

/// What a good answer says about itself.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct AnswerFacts {
    /// The vendor's id of the answer.
    pub id: Option<String>,
    /// Why it ended.
    pub finish_reason: Option<String>,
    /// Token counts.
    pub usage: Option<Usage>,
}

/// How an answer is to be judged.
#[derive(Clone, Copy, Debug)]
pub struct Expectations<'a> {
    /// Checks of the combo.
    pub validate: &'a ValidateResponse,
    /// An empty but regular end is valid (`Provider.spec.capabilities`).
    pub empty_stop_is_valid: bool,
}

/// Checks a whole 2xx answer. Bodies of another content type (audio, text) pass unread.
///
/// # Errors
/// What is wrong; the attempt has failed like a 502.
pub fn check_answer(
    endpoint: Endpoint,
    content_type: Option<&str>,
    body: &[u8],
    expect: Expectations<'_>,
) -> Result<AnswerFacts, QualityFailure> {
    let trimmed = body.trim_ascii();
    if content_type.is_some_and(|t| !names_json(t)) && !matches!(trimmed.first(), Some(b'{' | b'[')) && !trimmed.is_empty() {
        return Ok(AnswerFacts::default());
    }
    if trimmed.is_empty() {
        return Err(QualityFailure::EmptyBody);
    }
    if is_stream(trimmed) {
        return Ok(AnswerFacts::default());
    }
    // Once for the whole body is a fraction of what the parser would do for each string.
    let text = std::str::from_utf8(trimmed).map_err(|e| unreadable(trimmed, &e))?;
    let good = if endpoint == Endpoint::ChatCompletions { good_chat(text) } else { None };
    let facts = match good {
        Some(facts) => facts,
        None => examine(endpoint, text, expect.empty_stop_is_valid)?,
    };
    if *expect.validate != ValidateResponse::default() {
        validate(trimmed, expect.validate)?;
    }
    Ok(facts)
}

/// What a body is that the parser does not take.
fn unreadable(body: &[u8], why: &dyn Display) -> QualityFailure {
    if is_error(body) { QualityFailure::ErrorInside } else { QualityFailure::NotJson(why.to_string()) }
}

/// The full parse of an answer.
pub(super) fn examine(endpoint: Endpoint, text: &str, empty_stop_is_valid: bool) -> Result<AnswerFacts, QualityFailure> {
    let answer: Answer<'_> = serde_json::from_str(text).map_err(|e| unreadable(text.as_bytes(), &e))?;
    if answer.error.0 || answer.kind.as_deref() == Some("error") || answer.base_resp.is_some_and(BaseResponse::failed) {
        return Err(QualityFailure::ErrorInside);
    }
    // Beside an answer that can be used, a list of errors is a list of warnings.
    judge(endpoint, &answer, text.as_bytes(), empty_stop_is_valid)
        .map_err(|failure| if answer.errors.0 { QualityFailure::ErrorInside } else { failure })?;
    let finish = answer.choices.iter().flatten().find_map(|c| c.finish_reason.clone()).or(answer.stop_reason).or(answer.status);
    Ok(AnswerFacts {
        id: answer.id.filter(|i| i.len() <= 256).map(Cow::into_owned),
        finish_reason: finish.map(Cow::into_owned),
        usage: usage_of(answer.usage.as_ref()),
    })
}

/// Whether a body is an event stream: it is judged frame by frame, elsewhere.
#[must_use]
pub fn is_stream(body: &[u8]) -> bool {
    [&b"data:"[..], b"event:", b":"].iter().any(|p| body.trim_ascii_start().starts_with(p))
}

/// Whether a content type is one of the JSON family.
fn names_json(content_type: &str) -> bool {
    content_type.as_bytes().windows(4).any(|word| word.eq_ignore_ascii_case(b"json"))
}

/// Whether a JSON body is an error in place of an answer: `error`, a `base_resp` that says so, or `errors` and nothing else that could be used.
#[must_use]
pub fn is_error(body: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Envelope {
        #[serde(default)]
        error: Present,
        #[serde(default)]
        errors: Present,
        #[serde(default)]
        base_resp: Option<BaseResponse>,
        #[serde(default)]
        choices: Present,
        #[serde(default)]
        content: Present,
        #[serde(default)]
        output: Present,
        #[serde(default)]
        data: Present,
    }
    serde_json::from_slice::<Envelope>(body).is_ok_and(|e| {
        let answered = e.choices.0 || e.content.0 || e.output.0 || e.data.0;
        e.error.0 || e.base_resp.is_some_and(BaseResponse::failed) || (e.errors.0 && !answered)
    })
}

/// Checks a stream that came to its regular end.
///
/// # Errors
/// [`QualityFailure::NoContent`] or [`QualityFailure::OnlyReasoning`].
pub fn check_stream_end(facts: &StreamFacts, empty_stop_is_valid: bool) -> Result<(), QualityFailure> {
    if facts.has_content() || facts.explains_emptiness() {
        return Ok(());
    }
    let stop = facts.finish_reason.as_deref();
    if empty_stop_is_valid && facts.is_complete() && stop.is_some_and(is_normal_stop) {
        return Ok(());
    }
    Err(if facts.reasoning { QualityFailure::OnlyReasoning } else { QualityFailure::NoContent })
}

fn is_normal_stop(reason: &str) -> bool {
    matches!(reason, "stop" | "end_turn" | "stop_sequence" | "completed")
}

/// The parts of an answer, in any dialect, that are looked at.
#[derive(Deserialize, Debug)]
struct Answer<'a> {
    #[serde(borrow, default)]
    id: Option<Cow<'a, str>>,
    #[serde(borrow, default, rename = "type")]
    kind: Option<Cow<'a, str>>,
    #[serde(default)]
    error: Present,
    #[serde(default)]
    errors: Present,
    #[serde(default)]
    base_resp: Option<BaseResponse>,
    #[serde(borrow, default)]
    choices: Option<Vec<ChatChoice<'a>>>,
    #[serde(borrow, default)]
    content: Option<&'a serde_json::value::RawValue>,
    #[serde(borrow, default)]
    stop_reason: Option<Cow<'a, str>>,
    #[serde(default)]
    output: Option<Output>,
    #[serde(borrow, default)]
    status: Option<Cow<'a, str>>,
    #[serde(default)]
    usage: Option<UsageObject>,
    #[serde(default)]
    data: Count,
    #[serde(default)]
    input_tokens: Option<u64>,
}

fn judge(endpoint: Endpoint, answer: &Answer<'_>, body: &[u8], empty_stop_is_valid: bool) -> Result<(), QualityFailure> {
    // An empty object and a body of the Responses shape pass in every dialect (routing spec 5.4).
    let empty_object = body.strip_prefix(b"{").and_then(|b| b.strip_suffix(b"}")).is_some_and(|b| b.trim_ascii().is_empty());
    if empty_object || answer.output.is_some_and(|o| o.is_list) {
        return Ok(());
    }
    match endpoint.dialect() {
        Dialect::Embeddings if answer.data.0 == 0 => Err(QualityFailure::Shape("`data`")),
        Dialect::Embeddings => Ok(()),
        Dialect::Messages if endpoint == Endpoint::CountTokens => {
            answer.input_tokens.map(|_| ()).ok_or(QualityFailure::Shape("`input_tokens`"))
        }
        Dialect::Messages => judge_message(answer, empty_stop_is_valid),
        // Background responses have no output yet.
        Dialect::Responses if answer.status.is_some() => Ok(()),
        Dialect::Responses => Err(QualityFailure::Shape("`output`")),
        Dialect::ChatCompletions => judge_chat(answer, empty_stop_is_valid),
    }
}

fn judge_chat(answer: &Answer<'_>, empty_stop_is_valid: bool) -> Result<(), QualityFailure> {
    let choices = answer.choices.as_deref().filter(|c| !c.is_empty()).ok_or(QualityFailure::Shape("`choices`"))?;
    let mut only_reasoning = false;
    for choice in choices {
        let Some(message) = choice.message.as_ref().or(choice.delta.as_ref()) else {
            if choice.text.0 > 0 {
                return Ok(());
            }
            return Err(QualityFailure::Shape("`message` in one of its `choices`"));
        };
        let reason = choice.finish_reason.as_deref();
        let content = message.content.0 > 0 || message.refusal.0 > 0 || message.calls_tools() || message.audio.0 || message.images.0 > 0;
        if content || reason.is_some_and(explains_emptiness) || (empty_stop_is_valid && reason.is_some_and(is_normal_stop)) {
            return Ok(());
        }
        let reasoned = message.reasoning_content.is_some_and(|r| r.0 > 0) || message.reasoning.is_some_and(|r| r.0 > 0);
        let explicit_no_tools = message.tool_calls.is_some_and(|c| c.0 == 0);
        only_reasoning |= reasoned && !explicit_no_tools;
    }
    let usage = usage_of(answer.usage.as_ref()).unwrap_or_default();
    if usage.reasoning > 0 && usage.reasoning * 10 >= usage.output * 9 {
        return Err(QualityFailure::OnlyReasoning);
    }
    if only_reasoning { Ok(()) } else { Err(QualityFailure::NoContent) }
}

fn judge_message(answer: &Answer<'_>, empty_stop_is_valid: bool) -> Result<(), QualityFailure> {
    let blocks: Vec<Block<'_>> =
        answer.content.and_then(|c| serde_json::from_str(c.get()).ok()).ok_or(QualityFailure::Shape("`content`"))?;
    let reason = answer.stop_reason.as_deref();
    let usable = blocks.iter().any(|b| match b.kind.as_deref() {
        Some("text") => b.text.0 > 0,
        Some("thinking" | "redacted_thinking") | None => false,
        Some(_) => true,
    });
    if usable || reason.is_some_and(explains_emptiness) || (empty_stop_is_valid && reason.is_some_and(is_normal_stop)) {
        Ok(())
    } else if blocks.iter().any(|b| b.kind.as_deref().is_some_and(|k| k.ends_with("thinking"))) {
        Err(QualityFailure::OnlyReasoning)
    } else {
        Err(QualityFailure::NoContent)
    }
}

/// The checks that a combo declares itself.
fn validate(body: &[u8], rules: &ValidateResponse) -> Result<(), QualityFailure> {
    let value: Value = serde_json::from_slice(body).map_err(|e| QualityFailure::NotJson(e.to_string()))?;
    let text = content_text(&value);
    let found = text.chars().count() as u64;
    if found < rules.min_content_length {
        return Err(QualityFailure::TooShort { found, least: rules.min_content_length });
    }
    if let Some(bad) = rules.forbidden.iter().find(|f| text.contains(f.as_str())) {
        return Err(QualityFailure::Forbidden(bad.clone()));
    }
    if let Some(missing) = rules.required.iter().find(|r| !text.contains(r.as_str())) {
        return Err(QualityFailure::Required(missing.clone()));
    }
    match rules.json.iter().find(|p| !holds(p, &value)) {
        Some(predicate) => Err(QualityFailure::Predicate(predicate.path.clone())),
        None => Ok(()),
    }
}

/// All text of an answer in any dialect.
fn content_text(answer: &Value) -> String {
    fn collect(value: &Value, out: &mut String) {
        match value {
            Value::String(s) => out.push_str(s),
            Value::Array(parts) => parts.iter().for_each(|p| collect(p, out)),
            Value::Object(part) => ["text", "content"].iter().filter_map(|k| part.get(*k)).for_each(|v| collect(v, out)),
            _ => {}
        }
    }
    let mut out = String::new();
    for choice in answer.get("choices").and_then(Value::as_array).into_iter().flatten() {
        collect(choice.pointer("/message/content").unwrap_or(&Value::Null), &mut out);
    }
    collect(answer.get("content").unwrap_or(&Value::Null), &mut out);
    collect(answer.get("output").unwrap_or(&Value::Null), &mut out);
    out
}

fn holds(predicate: &JsonPredicate, answer: &Value) -> bool {
    let found = lookup(answer, &predicate.path);
    let expected = || predicate.value.as_deref().and_then(|v| serde_json::from_str::<Value>(v).ok());
    match predicate.condition {
        JsonCondition::Exists => found.is_some(),
        JsonCondition::NonEmpty => found.is_some_and(|v| match v {
            Value::Null => false,
            Value::String(s) => !s.trim().is_empty(),
            Value::Array(a) => !a.is_empty(),
            Value::Object(o) => !o.is_empty(),
            Value::Bool(_) | Value::Number(_) => true,
        }),
        JsonCondition::Equals => found.is_some() && found.cloned() == expected(),
        JsonCondition::NotEquals => found.cloned() != expected(),
    }
}

/// The value at a dotted path with optional indexes (`choices[0].message.content`, also `choices.0.message`).
fn lookup<'v>(value: &'v Value, path: &str) -> Option<&'v Value> {
    let path = path.strip_prefix("$.").unwrap_or(path);
    path.split(['.', '[']).map(|step| step.trim_end_matches(']')).filter(|step| !step.is_empty()).try_fold(value, |at, step| match at {
        Value::Array(list) => list.get(step.parse::<usize>().ok()?),
        other => other.get(step),
    })
}

#[cfg(test)]
#[path = "quality_tests.rs"]
mod tests;
