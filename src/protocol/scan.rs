//! What a request asks for, found in one pass over its bytes without building a tree, and the replacement of its model's name.

use std::borrow::Cow;
use std::ops::Range;

use bytes::Bytes;

use super::json::{Cursor, JsonError, Str, literal};

/// Longest model name in bytes. Vendors' names are below 100; a name goes into headers, logs and diagnostics.
pub const MAX_MODEL_LEN: usize = 512;
/// Most top-level members of a request; the dialects have about 40.
const MAX_MEMBERS: usize = 256;
/// Longest session or response id that is looked at.
const MAX_ID_LEN: usize = 1024;

/// Why a request body is refused, in words for the client. Always a 400.
#[derive(thiserror::Error, Clone, PartialEq, Eq, Debug)]
pub enum ScanError {
    /// Not UTF-8.
    #[error("the request body is not valid UTF-8: byte {0}")]
    Utf8(usize),
    /// Not JSON.
    #[error("the request body is not valid JSON: {0}")]
    Json(#[from] JsonError),
    /// JSON, but no object.
    #[error("the request body must be a JSON object")]
    NotAnObject,
    /// A top-level key appears twice (decisions 9.14).
    #[error("the request body has the member `{0}` more than once")]
    Duplicate(String),
    /// More top-level members than any dialect knows.
    #[error("the request body has more than 256 members")]
    TooManyMembers,
    /// No `model`.
    #[error("`model` is missing: name a combo, or PROVIDER/MODEL; GET /v1/models lists them")]
    ModelMissing,
    /// `model` is not usable as a name.
    #[error("`model` {0}")]
    ModelInvalid(&'static str),
    /// A member of the wrong type.
    #[error("`{member}` must be {expected}")]
    Type {
        /// Top-level member.
        member: &'static str,
        /// What it should be.
        expected: &'static str,
    },
}

impl ScanError {
    /// The machine-readable code.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Utf8(_) | Self::Json(_) | Self::NotAnObject => "invalid_json",
            Self::Duplicate(_) => "duplicate_member",
            Self::TooManyMembers => "too_many_members",
            Self::ModelMissing => "model_required",
            Self::ModelInvalid(_) => "invalid_model",
            Self::Type { .. } => "invalid_type",
        }
    }

    /// The member at fault, where there is one (`error.param`).
    #[must_use]
    pub fn param(&self) -> Option<&str> {
        match self {
            Self::Duplicate(name) => Some(name),
            Self::ModelMissing | Self::ModelInvalid(_) => Some("model"),
            Self::Type { member, .. } => Some(member),
            _ => None,
        }
    }
}

/// How hard a model is asked to think.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Effort {
    /// `none`, `minimal` or `low`.
    Low,
    /// `medium`, or any word that is not known.
    Medium,
    /// `high` and above.
    High,
}

/// What a request asks for. Sizes are what routing and deadlines need, not exact token counts.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RequestHead {
    /// The model's name, decoded.
    pub model: String,
    /// The bytes of the model's string literal, quotes included.
    pub model_literal: Range<usize>,
    /// `stream: true`.
    pub stream: bool,
    /// Responses: the answer that this request continues.
    pub previous_response_id: Option<String>,
    /// The session that the body names (routing spec 9.5, body fields in their order).
    pub session: Option<String>,
    /// Raw bytes (still escaped) of the first text of the first user message, for session keys.
    pub first_user_text: Option<Range<usize>>,
    /// Number of declared tools and functions.
    pub tools: u32,
    /// Bytes of the tool declarations.
    pub tool_bytes: u64,
    /// Has image parts.
    pub images: bool,
    /// Asks for JSON output.
    pub structured_output: bool,
    /// Longest answer asked for, in tokens.
    pub max_output_tokens: Option<u64>,
    /// Messages or input items.
    pub items: u32,
    /// Bytes of text in messages, input, system prompt and tools; images and files do not count.
    pub chars: u64,
    /// Reasoning effort.
    pub effort: Option<Effort>,
}

impl RequestHead {
    /// A rough number of input tokens: four bytes each.
    #[must_use]
    pub const fn estimated_input_tokens(&self) -> u64 {
        self.chars.div_ceil(4)
    }
}

/// Scans a request body.
///
/// # Errors
/// Says what is wrong with the body. Nothing is guessed: a body that two parsers could read differently is refused.
pub fn scan_request(body: &[u8]) -> Result<RequestHead, ScanError> {
    let text = std::str::from_utf8(body).map_err(|e| ScanError::Utf8(e.valid_up_to()))?;
    let mut cursor = Cursor::new(text);
    if cursor.peek().is_some_and(|b| b != b'{') {
        return Err(ScanError::NotAnObject);
    }
    let mut scan = Scan { head: RequestHead::default(), seen: Vec::with_capacity(16), session: [const { None }; 5], has_model: false };
    let mut refused = None;
    let walked = cursor.object(|c, key| {
        scan.member(c, key).map_err(|e| match e {
            ScanError::Json(e) => e,
            other => {
                refused = Some(other);
                JsonError { at: 0, what: "refused" }
            }
        })
    });
    if let Some(error) = refused {
        return Err(error);
    }
    walked?;
    cursor.end()?;
    if !scan.has_model {
        return Err(ScanError::ModelMissing);
    }
    scan.head.session = scan.session.into_iter().flatten().next();
    Ok(scan.head)
}

struct Scan<'a> {
    head: RequestHead,
    seen: Vec<Cow<'a, str>>,
    /// Session fields in the order of their precedence.
    session: [Option<String>; 5],
    has_model: bool,
}

impl<'a> Scan<'a> {
    fn member(&mut self, c: &mut Cursor<'a>, key: Cow<'a, str>) -> Result<(), ScanError> {
        self.check_new(&key)?;
        match &*key {
            "model" => self.model(c)?,
            "stream" => self.head.stream = flag(c, "stream")?,
            "previous_response_id" => self.head.previous_response_id = id(c, "previous_response_id")?,
            "messages" | "input" => self.items(c)?,
            "system" | "instructions" | "prompt" => content(c, &mut self.head, &mut None)?,
            "tools" | "functions" => self.tools(c)?,
            "response_format" | "output_format" => self.head.structured_output |= wants_json(c, &["type"])?,
            "text" | "output_config" => self.head.structured_output |= wants_json(c, &["format", "type"])?,
            "max_tokens" | "max_completion_tokens" | "max_output_tokens" => {
                if let Some(n) = whole_number(c)? {
                    self.head.max_output_tokens = self.head.max_output_tokens.max(Some(n));
                }
            }
            "reasoning_effort" => self.head.effort = loose_text(c)?.map(|s| effort(&s)),
            "reasoning" => self.reasoning(c)?,
            "metadata" => self.metadata(c)?,
            "conversation_id" => self.session[1] = loose_string(c)?,
            "conversation" => self.session[2] = conversation(c)?,
            "session_id" => self.session[3] = loose_string(c)?,
            "prompt_cache_key" => self.session[4] = loose_string(c)?,
            _ => c.skip(&mut |_| ())?,
        }
        self.seen.push(key);
        Ok(())
    }

    /// Refuses a key that was there before. `model` and `stream` also in another case: some vendors' parsers ignore it.
    fn check_new(&self, key: &str) -> Result<(), ScanError> {
        let decisive = key.eq_ignore_ascii_case("model") || key.eq_ignore_ascii_case("stream");
        if self.seen.iter().any(|k| *k == key || (decisive && k.eq_ignore_ascii_case(key))) {
            return Err(ScanError::Duplicate(key.chars().take(64).collect()));
        }
        if self.seen.len() >= MAX_MEMBERS {
            return Err(ScanError::TooManyMembers);
        }
        Ok(())
    }

    fn model(&mut self, c: &mut Cursor<'a>) -> Result<(), ScanError> {
        if c.peek() != Some(b'"') {
            c.skip(&mut |_| ())?;
            return Err(ScanError::Type { member: "model", expected: "a string" });
        }
        let literal = c.string()?;
        let name = c.decode(&literal)?;
        if name.trim().is_empty() {
            return Err(ScanError::ModelInvalid("is empty"));
        }
        if name.len() > MAX_MODEL_LEN {
            return Err(ScanError::ModelInvalid("is longer than 512 bytes"));
        }
        if name.chars().any(char::is_control) {
            return Err(ScanError::ModelInvalid("has a control character"));
        }
        self.head.model = name.into_owned();
        self.head.model_literal = literal.literal();
        self.has_model = true;
        Ok(())
    }

    /// `messages` of Chat and Messages, `input` of Responses and Embeddings.
    fn items(&mut self, c: &mut Cursor<'a>) -> Result<(), ScanError> {
        let head = &mut self.head;
        match c.peek() {
            Some(b'"') => {
                let s = c.string()?;
                head.chars += s.inner.len() as u64;
                head.items += 1;
                head.first_user_text.get_or_insert(s.inner);
            }
            Some(b'[') => c.array(|c| item(c, head))?,
            _ => c.skip(&mut |_| ())?,
        }
        Ok(())
    }

    fn tools(&mut self, c: &mut Cursor<'a>) -> Result<(), ScanError> {
        let head = &mut self.head;
        c.peek();
        let start = c.at();
        if c.peek() == Some(b'[') {
            c.array(|c| {
                head.tools = head.tools.saturating_add(1);
                c.skip(&mut |n| head.chars += n as u64)
            })?;
        } else {
            c.skip(&mut |_| ())?;
        }
        self.head.tool_bytes += (c.at() - start) as u64;
        Ok(())
    }

    fn reasoning(&mut self, c: &mut Cursor<'a>) -> Result<(), ScanError> {
        if c.peek() != Some(b'{') {
            return Ok(c.skip(&mut |_| ())?);
        }
        let found = &mut self.head.effort;
        c.object(|c, key| {
            if key == "effort" {
                *found = loose_text(c)?.map(|s| effort(&s));
                Ok(())
            } else {
                c.skip(&mut |_| ())
            }
        })?;
        Ok(())
    }

    fn metadata(&mut self, c: &mut Cursor<'a>) -> Result<(), ScanError> {
        if c.peek() != Some(b'{') {
            return Ok(c.skip(&mut |_| ())?);
        }
        let slot = &mut self.session[0];
        c.object(|c, key| match &*key {
            "session_id" | "sessionId" => {
                let value = loose_string(c)?;
                if slot.is_none() {
                    *slot = value;
                }
                Ok(())
            }
            _ => c.skip(&mut |_| ()),
        })?;
        Ok(())
    }
}

/// One message or input item.
fn item(c: &mut Cursor<'_>, head: &mut RequestHead) -> Result<(), JsonError> {
    head.items = head.items.saturating_add(1);
    if c.peek() != Some(b'{') {
        return c.skip(&mut |n| head.chars += n as u64);
    }
    let (mut user, mut first) = (false, None);
    c.object(|c, key| match &*key {
        "role" => {
            user = loose_text(c)?.as_deref() == Some("user");
            Ok(())
        }
        "type" => kind(c, head),
        "content" => content(c, head, &mut first),
        "output" => content(c, head, &mut None),
        "image_url" | "result" | "encrypted_content" => c.skip(&mut |_| ()),
        _ => c.skip(&mut |n| head.chars += n as u64),
    })?;
    if user && head.first_user_text.is_none() {
        head.first_user_text = first;
    }
    Ok(())
}

/// The content of a message, a tool result or a system prompt: a string or a list of parts.
fn content(c: &mut Cursor<'_>, head: &mut RequestHead, first: &mut Option<Range<usize>>) -> Result<(), JsonError> {
    match c.peek() {
        Some(b'"') => text(c, head, first),
        Some(b'[') => c.array(|c| part(c, head, first)),
        _ => c.skip(&mut |n| head.chars += n as u64),
    }
}

fn text(c: &mut Cursor<'_>, head: &mut RequestHead, first: &mut Option<Range<usize>>) -> Result<(), JsonError> {
    let s: Str = c.string()?;
    head.chars += s.inner.len() as u64;
    if !s.inner.is_empty() {
        first.get_or_insert(s.inner);
    }
    Ok(())
}

fn part(c: &mut Cursor<'_>, head: &mut RequestHead, first: &mut Option<Range<usize>>) -> Result<(), JsonError> {
    match c.peek() {
        Some(b'"') => text(c, head, first),
        Some(b'{') => c.object(|c, key| match &*key {
            "type" => kind(c, head),
            "text" if c.peek() == Some(b'"') => text(c, head, first),
            "content" => content(c, head, &mut None),
            "image_url" | "source" | "data" | "file" | "file_data" | "input_audio" | "signature" | "encrypted_content" => {
                c.skip(&mut |_| ())
            }
            _ => c.skip(&mut |n| head.chars += n as u64),
        }),
        _ => c.skip(&mut |_| ()),
    }
}

/// The `type` of an item or part.
fn kind(c: &mut Cursor<'_>, head: &mut RequestHead) -> Result<(), JsonError> {
    if let Some(kind) = loose_text(c)?
        && matches!(&*kind, "image_url" | "input_image" | "image")
    {
        head.images = true;
    }
    Ok(())
}

/// A string of bounded length; any other value is passed over.
fn loose_text<'a>(c: &mut Cursor<'a>) -> Result<Option<Cow<'a, str>>, JsonError> {
    if c.peek() != Some(b'"') {
        c.skip(&mut |_| ())?;
        return Ok(None);
    }
    let s = c.string()?;
    if s.inner.len() > MAX_ID_LEN {
        return Ok(None);
    }
    Ok(Some(c.decode(&s)?).filter(|s| !s.is_empty()))
}

/// The same, to keep.
fn loose_string(c: &mut Cursor<'_>) -> Result<Option<String>, JsonError> {
    Ok(loose_text(c)?.map(Cow::into_owned))
}

fn id(c: &mut Cursor<'_>, member: &'static str) -> Result<Option<String>, ScanError> {
    match c.peek() {
        Some(b'"') => Ok(loose_string(c)?),
        Some(b'n') => Ok(c.skip(&mut |_| ()).map(|()| None)?),
        _ => {
            c.skip(&mut |_| ())?;
            Err(ScanError::Type { member, expected: "a string" })
        }
    }
}

fn flag(c: &mut Cursor<'_>, member: &'static str) -> Result<bool, ScanError> {
    match c.boolean()? {
        Some(value) => Ok(value),
        None if c.peek() == Some(b'n') => Ok(c.skip(&mut |_| ()).map(|()| false)?),
        None => {
            c.skip(&mut |_| ())?;
            Err(ScanError::Type { member, expected: "true or false" })
        }
    }
}

fn whole_number(c: &mut Cursor<'_>) -> Result<Option<u64>, JsonError> {
    match c.peek() {
        Some(b'-' | b'0'..=b'9') => Ok(c.number()?.parse().ok()),
        _ => c.skip(&mut |_| ()).map(|()| None),
    }
}

/// The conversation object of Responses: an id, or an object with one.
fn conversation(c: &mut Cursor<'_>) -> Result<Option<String>, JsonError> {
    if c.peek() != Some(b'{') {
        return loose_string(c);
    }
    let mut found = None;
    c.object(|c, key| {
        if key == "id" {
            found = loose_string(c)?;
            Ok(())
        } else {
            c.skip(&mut |_| ())
        }
    })?;
    Ok(found)
}

/// Whether the string at `path` inside an object names a JSON format.
fn wants_json(c: &mut Cursor<'_>, path: &[&str]) -> Result<bool, JsonError> {
    let Some((first, rest)) = path.split_first() else {
        return Ok(loose_text(c)?.is_some_and(|t| t.starts_with("json")));
    };
    if c.peek() != Some(b'{') {
        return c.skip(&mut |_| ()).map(|()| false);
    }
    let mut found = false;
    c.object(|c, key| {
        if key == *first {
            found = wants_json(c, rest)?;
            Ok(())
        } else {
            c.skip(&mut |_| ())
        }
    })?;
    Ok(found)
}

fn effort(word: &str) -> Effort {
    match word {
        "none" | "minimal" | "low" => Effort::Low,
        "high" | "xhigh" | "max" => Effort::High,
        _ => Effort::Medium,
    }
}

/// A request body in up to three pieces that share the client's bytes. Cloning is cheap: every attempt sends its own clone.
#[derive(Clone, Debug, Default)]
pub struct RequestBody {
    first: Bytes,
    rest: Option<Box<[Bytes; 2]>>,
}

impl RequestBody {
    /// The pieces in order; some may be empty.
    #[must_use]
    pub fn into_pieces(self) -> [Bytes; 3] {
        let [second, third] = self.rest.map(|rest| *rest).unwrap_or_default();
        [self.first, second, third]
    }

    /// The next piece that is not empty.
    pub fn next_piece(&mut self) -> Option<Bytes> {
        let pieces = std::iter::once(&mut self.first).chain(self.rest.iter_mut().flat_map(|rest| rest.iter_mut()));
        pieces.map(std::mem::take).find(|piece| !piece.is_empty())
    }

    /// Bytes of all pieces together.
    #[must_use]
    pub fn len(&self) -> usize {
        self.first.len() + self.rest.iter().flat_map(|rest| rest.iter()).map(Bytes::len).sum::<usize>()
    }

    /// True without a single byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl From<Bytes> for RequestBody {
    fn from(whole: Bytes) -> Self {
        Self { first: whole, rest: None }
    }
}

/// A body up to this length is copied into one piece with its new model: that costs less than three pieces on their way to the socket.
const SMALL: usize = 8 * 1024;

/// The body with `model` in place of the client's model; every other byte is the client's own.
#[must_use]
pub fn splice_model(body: &Bytes, head: &RequestHead, model: &str) -> RequestBody {
    let range = head.model_literal.clone();
    if model == head.model || range.start > range.end || range.end > body.len() {
        return RequestBody::from(body.clone());
    }
    let literal = literal(model);
    if body.len() <= SMALL {
        let parts = [body.get(..range.start), Some(literal.as_bytes()), body.get(range.end..)];
        return RequestBody::from(Bytes::from(parts.map(Option::unwrap_or_default).concat()));
    }
    RequestBody { first: body.slice(..range.start), rest: Some(Box::new([Bytes::from(literal), body.slice(range.end..)])) }
}

#[cfg(test)]
#[path = "scan_tests.rs"]
mod tests;
