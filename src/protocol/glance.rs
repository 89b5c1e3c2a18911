//! The usual good answer, recognised in one pass without keeping any of it. Whatever is not plainly good is for the full parse to judge.

use super::json::{Cursor, JsonError};
use super::progress::{Details, UsageObject, usage_of};
use super::quality::AnswerFacts;

/// What a chat answer says about itself, if every choice has a message and the first one has text or tool calls; `None` whenever the full
/// parse must look: also for an answer that it may find good.
pub(super) fn good_chat(text: &str) -> Option<AnswerFacts> {
    let mut cursor = Cursor::new(text);
    let mut answer = Answer::default();
    cursor.object(|c, key| answer.member(c, &key)).ok()?;
    cursor.end().ok()?;
    answer.choices.first_is_usable.then(|| AnswerFacts {
        id: answer.id.filter(|id| id.len() <= 256).map(str::to_owned),
        finish_reason: answer.choices.finish_reason.map(str::to_owned),
        usage: usage_of(answer.usage.as_ref()),
    })
}

/// Ends the pass: this value is for the full parse.
fn unusual<T>(c: &Cursor<'_>) -> Result<T, JsonError> {
    Err(JsonError { at: c.at(), what: "unusual" })
}

/// The members of an object that were there, one bit each: the full parse refuses a second one.
#[derive(Default)]
struct Members(u32);

impl Members {
    fn once(&mut self, bit: u32, c: &Cursor<'_>) -> Result<(), JsonError> {
        let before = self.0;
        self.0 |= 1 << bit;
        if before == self.0 { unusual(c) } else { Ok(()) }
    }
}

#[derive(Default)]
struct Answer<'a> {
    members: Members,
    id: Option<&'a str>,
    choices: Choices<'a>,
    usage: Option<UsageObject>,
}

#[derive(Default)]
struct Choices<'a> {
    count: u32,
    first_is_usable: bool,
    finish_reason: Option<&'a str>,
}

impl<'a> Answer<'a> {
    fn member(&mut self, c: &mut Cursor<'a>, key: &str) -> Result<(), JsonError> {
        match key {
            "id" => {
                self.members.once(0, c)?;
                self.id = word(c)?;
            }
            "choices" => {
                self.members.once(1, c)?;
                let choices = &mut self.choices;
                c.array(|c| choices.choice(c))?;
            }
            "usage" => {
                self.members.once(2, c)?;
                self.usage = usage(c)?;
            }
            "type" => {
                self.members.once(3, c)?;
                if word(c)? == Some("error") {
                    return unusual(c);
                }
            }
            "error" => {
                self.members.once(4, c)?;
                null(c)?;
            }
            "errors" | "base_resp" | "content" | "stop_reason" | "output" | "status" | "data" | "input_tokens" => return unusual(c),
            _ => c.skip(&mut |_| ())?,
        }
        Ok(())
    }
}

impl<'a> Choices<'a> {
    fn choice(&mut self, c: &mut Cursor<'a>) -> Result<(), JsonError> {
        let (mut members, mut usable) = (Members::default(), None);
        let mut finish_reason = None;
        c.object(|c, key| {
            match &*key {
                "message" => {
                    members.once(0, c)?;
                    usable = Some(message_is_usable(c)?);
                }
                "finish_reason" => {
                    members.once(1, c)?;
                    finish_reason = word(c)?;
                }
                "delta" | "text" => return unusual(c),
                _ => c.skip(&mut |_| ())?,
            }
            Ok(())
        })?;
        let Some(usable) = usable else { return unusual(c) };
        self.first_is_usable |= usable && self.count == 0;
        self.count += 1;
        self.finish_reason = self.finish_reason.or(finish_reason);
        Ok(())
    }
}

/// Whether a message has text, a refusal or a tool call.
fn message_is_usable(c: &mut Cursor<'_>) -> Result<bool, JsonError> {
    let (mut members, mut usable) = (Members::default(), false);
    c.object(|c, key| {
        match &*key {
            "content" => {
                members.once(0, c)?;
                usable |= has_text(c)?;
            }
            "refusal" => {
                members.once(1, c)?;
                usable |= has_text(c)?;
            }
            "tool_calls" => {
                members.once(2, c)?;
                usable |= has_elements(c)?;
            }
            "reasoning_content" => {
                members.once(3, c)?;
                has_text(c)?;
            }
            "reasoning" => {
                members.once(4, c)?;
                has_text(c)?;
            }
            "role" => {
                members.once(5, c)?;
                word(c)?;
            }
            "function_call" => {
                members.once(6, c)?;
                null(c)?;
            }
            "audio" => {
                members.once(7, c)?;
                null(c)?;
            }
            "reasoning_details" | "images" => return unusual(c),
            _ => c.skip(&mut |_| ())?,
        }
        Ok(())
    })?;
    Ok(usable)
}

/// The token counts of an answer.
fn usage(c: &mut Cursor<'_>) -> Result<Option<UsageObject>, JsonError> {
    if c.peek() == Some(b'n') {
        return null(c).map(|()| None);
    }
    let (mut members, mut usage) = (Members::default(), UsageObject::default());
    c.object(|c, key| {
        match &*key {
            "prompt_tokens" => {
                members.once(0, c)?;
                usage.prompt_tokens = count(c)?;
            }
            "completion_tokens" => {
                members.once(1, c)?;
                usage.completion_tokens = count(c)?;
            }
            "prompt_tokens_details" => {
                members.once(2, c)?;
                usage.prompt_tokens_details = details(c)?;
            }
            "completion_tokens_details" => {
                members.once(3, c)?;
                usage.completion_tokens_details = details(c)?;
            }
            "input_tokens"
            | "output_tokens"
            | "cache_read_input_tokens"
            | "cache_creation_input_tokens"
            | "input_tokens_details"
            | "output_tokens_details" => return unusual(c),
            _ => c.skip(&mut |_| ())?,
        }
        Ok(())
    })?;
    Ok(Some(usage))
}

fn details(c: &mut Cursor<'_>) -> Result<Option<Details>, JsonError> {
    if c.peek() == Some(b'n') {
        return null(c).map(|()| None);
    }
    let (mut members, mut details) = (Members::default(), Details::default());
    c.object(|c, key| {
        match &*key {
            "cached_tokens" => {
                members.once(0, c)?;
                details.cached_tokens = count(c)?;
            }
            "reasoning_tokens" => {
                members.once(1, c)?;
                details.reasoning_tokens = count(c)?;
            }
            _ => c.skip(&mut |_| ())?,
        }
        Ok(())
    })?;
    Ok(Some(details))
}

fn null(c: &mut Cursor<'_>) -> Result<(), JsonError> {
    if c.peek() == Some(b'n') { c.skip(&mut |_| ()) } else { unusual(c) }
}

/// A number of tokens, or `null`.
fn count(c: &mut Cursor<'_>) -> Result<Option<u64>, JsonError> {
    match c.peek() {
        Some(b'0'..=b'9') => c.number()?.parse().map(Some).or_else(|_| unusual(c)),
        _ => null(c).map(|()| None),
    }
}

/// A string without escapes, or `null`.
fn word<'a>(c: &mut Cursor<'a>) -> Result<Option<&'a str>, JsonError> {
    if c.peek() != Some(b'"') {
        return null(c).map(|()| None);
    }
    let literal = c.string()?;
    match c.plain(&literal) {
        Some(text) => Ok(Some(text)),
        None => unusual(c),
    }
}

/// Whether a string has a character; `null` has none. A character that is written as its number may be half of one, which the full parse
/// finds out.
fn has_text(c: &mut Cursor<'_>) -> Result<bool, JsonError> {
    if c.peek() != Some(b'"') {
        return null(c).map(|()| false);
    }
    let literal = c.string()?;
    if literal.by_number { unusual(c) } else { Ok(!literal.inner.is_empty()) }
}

fn has_elements(c: &mut Cursor<'_>) -> Result<bool, JsonError> {
    if c.peek() != Some(b'[') {
        return null(c).map(|()| false);
    }
    let mut any = false;
    c.array(|c| {
        any = true;
        c.skip(&mut |_| ())
    })?;
    Ok(any)
}

#[cfg(test)]
#[path = "glance_tests.rs"]
mod tests;
