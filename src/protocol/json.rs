//! A strict JSON cursor: walks a text once, without building a tree, and refuses what a vendor's parser could read differently.

use std::borrow::Cow;
use std::ops::Range;

/// Nesting that is still followed; the same bound as serde_json's, so that nothing passes here that other parsers refuse.
const MAX_DEPTH: u32 = 128;

/// Where and why a text is no JSON.
#[derive(thiserror::Error, Clone, Copy, PartialEq, Eq, Debug)]
#[error("{what} at byte {at}")]
pub struct JsonError {
    /// Byte offset.
    pub at: usize,
    /// What is wrong.
    pub what: &'static str,
}

/// A string literal: the range of its bytes between the quotes.
#[derive(Clone, Debug)]
pub(super) struct Str {
    pub inner: Range<usize>,
    pub escaped: bool,
    /// A character is written as its number (`\u0041`).
    pub by_number: bool,
}

impl Str {
    /// The literal with its quotes.
    pub fn literal(&self) -> Range<usize> {
        self.inner.start.saturating_sub(1)..self.inner.end.saturating_add(1)
    }
}

/// A position in a JSON text.
pub(super) struct Cursor<'a> {
    text: &'a str,
    at: usize,
    depth: u32,
}

impl<'a> Cursor<'a> {
    pub const fn new(text: &'a str) -> Self {
        Self { text, at: 0, depth: 0 }
    }

    pub const fn at(&self) -> usize {
        self.at
    }

    fn rest(&self) -> &'a [u8] {
        self.text.as_bytes().get(self.at..).unwrap_or_default()
    }

    fn byte(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn fail<T>(&self, what: &'static str) -> Result<T, JsonError> {
        let what = if self.rest().is_empty() { "the body ends too early" } else { what };
        Err(JsonError { at: self.at, what })
    }

    fn skip_space(&mut self) {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.byte() {
            self.at += 1;
        }
    }

    /// The first byte of the next token.
    #[inline]
    pub fn peek(&mut self) -> Option<u8> {
        self.skip_space();
        self.byte()
    }

    #[inline]
    fn eat(&mut self, byte: u8, what: &'static str) -> Result<(), JsonError> {
        if self.peek() == Some(byte) {
            self.at += 1;
            Ok(())
        } else {
            self.fail(what)
        }
    }

    /// Nothing but white space may follow.
    pub fn end(&mut self) -> Result<(), JsonError> {
        if self.peek().is_none() { Ok(()) } else { self.fail("something follows the JSON value") }
    }

    /// A string literal.
    pub fn string(&mut self) -> Result<Str, JsonError> {
        self.eat(b'"', "expected a string")?;
        let start = self.at;
        let (mut escaped, mut by_number) = (false, false);
        loop {
            self.at += plain_run(self.rest());
            match self.byte() {
                Some(b'"') => {
                    let inner = start..self.at;
                    self.at += 1;
                    return Ok(Str { inner, escaped, by_number });
                }
                Some(b'\\') => by_number |= self.escape()?,
                Some(_) => return self.fail("control character in a string"),
                None => return self.fail("unterminated string"),
            }
            escaped = true;
        }
    }

    /// Passes over an escape. True for a character that is written as its number.
    fn escape(&mut self) -> Result<bool, JsonError> {
        let (length, by_number) = match self.rest() {
            [b'\\', b'u', a, b, c, d, ..] if [a, b, c, d].iter().all(|h| h.is_ascii_hexdigit()) => (6, true),
            [b'\\', b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't', ..] => (2, false),
            _ => return self.fail("invalid escape in a string"),
        };
        self.at += length;
        Ok(by_number)
    }

    /// The text of a string literal without escapes.
    pub fn plain(&self, s: &Str) -> Option<&'a str> {
        self.text.get(s.inner.clone()).filter(|_| !s.escaped)
    }

    /// The text of a string literal.
    pub fn decode(&self, s: &Str) -> Result<Cow<'a, str>, JsonError> {
        if let Some(plain) = self.plain(s) {
            return Ok(Cow::Borrowed(plain));
        }
        let bad = JsonError { at: s.inner.start, what: "invalid escape in a string" };
        let literal = self.text.get(s.literal()).ok_or(bad)?;
        serde_json::from_str(literal).map(Cow::Owned).map_err(|_| bad)
    }

    /// Walks the members of an object; `member` gets the decoded key and must consume the value.
    pub fn object(&mut self, mut member: impl FnMut(&mut Self, Cow<'a, str>) -> Result<(), JsonError>) -> Result<(), JsonError> {
        self.eat(b'{', "expected an object")?;
        self.descend()?;
        if self.peek() == Some(b'}') {
            self.at += 1;
        } else {
            loop {
                let key = self.string()?;
                let key = self.decode(&key)?;
                self.eat(b':', "expected `:`")?;
                member(self, key)?;
                match self.peek() {
                    Some(b',') => self.at += 1,
                    Some(b'}') => {
                        self.at += 1;
                        break;
                    }
                    _ => return self.fail("expected `,` or `}`"),
                }
            }
        }
        self.depth -= 1;
        Ok(())
    }

    /// Walks the elements of an array; `element` must consume one value.
    pub fn array(&mut self, mut element: impl FnMut(&mut Self) -> Result<(), JsonError>) -> Result<(), JsonError> {
        self.eat(b'[', "expected an array")?;
        self.descend()?;
        if self.peek() == Some(b']') {
            self.at += 1;
        } else {
            loop {
                element(self)?;
                match self.peek() {
                    Some(b',') => self.at += 1,
                    Some(b']') => {
                        self.at += 1;
                        break;
                    }
                    _ => return self.fail("expected `,` or `]`"),
                }
            }
        }
        self.depth -= 1;
        Ok(())
    }

    fn descend(&mut self) -> Result<(), JsonError> {
        self.depth += 1;
        if self.depth > MAX_DEPTH { self.fail("nested deeper than 128 levels") } else { Ok(()) }
    }

    /// Passes over a value; `text` is told the length of each string value inside it (keys are not values).
    pub fn skip(&mut self, text: &mut impl FnMut(usize)) -> Result<(), JsonError> {
        match self.peek() {
            Some(b'"') => {
                let s = self.string()?;
                text(s.inner.len());
                Ok(())
            }
            Some(b'{') => self.object(|c, _| c.skip(text)),
            Some(b'[') => self.array(|c| c.skip(text)),
            Some(b't') => self.word("true"),
            Some(b'f') => self.word("false"),
            Some(b'n') => self.word("null"),
            Some(b'-' | b'0'..=b'9') => self.number().map(|_| ()),
            _ => self.fail("expected a value"),
        }
    }

    fn word(&mut self, word: &'static str) -> Result<(), JsonError> {
        if self.rest().starts_with(word.as_bytes()) {
            self.at += word.len();
            Ok(())
        } else {
            self.fail("expected a value")
        }
    }

    /// `true` or `false`; anything else is left where it is.
    pub fn boolean(&mut self) -> Result<Option<bool>, JsonError> {
        match self.peek() {
            Some(b't') => self.word("true").map(|()| Some(true)),
            Some(b'f') => self.word("false").map(|()| Some(false)),
            _ => Ok(None),
        }
    }

    /// A number as it is written.
    pub fn number(&mut self) -> Result<&'a str, JsonError> {
        self.skip_space();
        let start = self.at;
        if self.rest().first() == Some(&b'-') {
            self.at += 1;
        }
        match self.rest() {
            [b'0', ..] => self.at += 1,
            _ => self.digits()?,
        }
        if self.rest().first() == Some(&b'.') {
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.rest().first(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.rest().first(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits()?;
        }
        Ok(self.text.get(start..self.at).unwrap_or_default())
    }

    fn digits(&mut self) -> Result<(), JsonError> {
        let n = self.rest().iter().take_while(|b| b.is_ascii_digit()).count();
        self.at += n;
        if n == 0 { self.fail("malformed number") } else { Ok(()) }
    }
}

/// A text as a string literal.
pub(super) fn literal(text: &str) -> String {
    if plain_run(text.as_bytes()) == text.len() { ["\"", text, "\""].concat() } else { serde_json::Value::from(text).to_string() }
}

/// How many bytes at the start of `bytes` are plain string content: no quote, no backslash, no control character.
fn plain_run(bytes: &[u8]) -> usize {
    // Most strings are keys and short words, for which a call of the long search costs more than all of this.
    for (at, word) in bytes.as_chunks::<8>().0.iter().take(2).enumerate() {
        let stops = stops(u64::from_le_bytes(*word));
        if stops != 0 {
            return at * 8 + (stops.trailing_zeros() / 8) as usize;
        }
    }
    let end = memchr::memchr2(b'"', b'\\', bytes).unwrap_or(bytes.len());
    let run = bytes.get(..end).unwrap_or_default();
    // The least byte is found by comparing many at once, the first of the small ones is not.
    if run.iter().copied().fold(u8::MAX, u8::min) < 0x20 { run.iter().take_while(|b| **b >= 0x20).count() } else { end }
}

/// Marks, by the highest bit of its byte, the first character in eight that is a quote, a backslash or a control character.
const fn stops(word: u64) -> u64 {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    const HIGH: u64 = ONES << 7;
    let quote = word ^ (ONES * 0x22);
    let backslash = word ^ (ONES * 0x5c);
    ((quote.wrapping_sub(ONES) & !quote) | (backslash.wrapping_sub(ONES) & !backslash) | (word.wrapping_sub(ONES * 0x20) & !word)) & HIGH
}

/// The bytes that turn a truncated JSON text into a complete one: closes strings, literals, numbers, members and brackets where they stand.
/// What was no JSON stays none.
#[must_use]
pub fn complete(prefix: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut open = Vec::new();
    // In an object: whether a key (true) or a value is due. `string` also says whether the string is a key.
    let (mut string, mut key_due, mut token) = (None, false, Vec::new());
    let mut bytes = prefix.iter().copied().enumerate();
    while let Some((at, byte)) = bytes.next() {
        if string.is_some() {
            match byte {
                b'"' => string = None,
                b'\\' => match bytes.next() {
                    None => out.push(b'\\'),
                    Some((_, b'u')) => {
                        let digits = prefix.get(at + 2..).unwrap_or_default().iter().take(4).take_while(|b| b.is_ascii_hexdigit()).count();
                        if at + 2 + digits == prefix.len() {
                            out.extend(std::iter::repeat_n(b'0', 4 - digits));
                        }
                    }
                    Some(_) => {}
                },
                _ => {}
            }
            continue;
        }
        match byte {
            b'"' => string = Some(key_due),
            b'{' | b'[' => {
                open.push(byte);
                key_due = byte == b'{';
            }
            b'}' | b']' => {
                open.pop();
                key_due = false;
            }
            b',' => key_due = open.last() == Some(&b'{'),
            b':' => key_due = false,
            _ => {}
        }
        match byte {
            b'0'..=b'9' | b'a'..=b'z' | b'+' | b'-' | b'.' | b'E' => token.push(byte),
            _ => token.clear(),
        }
    }
    close_scalar(prefix, &mut out, string, key_due, &token);
    for bracket in open.iter().rev() {
        out.push(if *bracket == b'{' { b'}' } else { b']' });
    }
    out
}

/// Ends the string, literal or number in which a truncated text stops, and adds the value that is due.
fn close_scalar(prefix: &[u8], out: &mut Vec<u8>, string: Option<bool>, key_due: bool, token: &[u8]) {
    if let Some(is_key) = string {
        let half = partial_utf8(prefix);
        out.splice(0..0, half);
        out.extend_from_slice(if is_key { b"\":null" } else { b"\"" });
        return;
    }
    if let Some(word) = ["true", "false", "null"].iter().find(|w| !token.is_empty() && w.as_bytes().starts_with(token)) {
        out.extend_from_slice(word.as_bytes().get(token.len()..).unwrap_or_default());
        return;
    }
    match token.last() {
        Some(b'0'..=b'9') => return,
        Some(_) => return out.push(b'0'),
        None => {}
    }
    let last = prefix.iter().rev().find(|b| !b.is_ascii_whitespace());
    match last {
        Some(b',') if key_due => out.extend_from_slice(b"\"\":null"),
        Some(b',' | b':') | None => out.extend_from_slice(b"null"),
        // Behind a key: its colon and value are due.
        Some(b'"') if key_due => out.extend_from_slice(b":null"),
        _ => {}
    }
}

/// The continuation bytes that complete a character cut in the middle.
fn partial_utf8(text: &[u8]) -> Vec<u8> {
    let tail = text.iter().rev().take_while(|b| **b & 0xc0 == 0x80).count();
    let Some(lead) = text.len().checked_sub(tail + 1).and_then(|at| text.get(at)) else { return Vec::new() };
    let needed: usize = match lead {
        0xc2..=0xdf => 1,
        0xe0..=0xef => 2,
        0xf0..=0xf4 => 3,
        _ => 0,
    };
    let mut out = vec![0x80; needed.saturating_sub(tail)];
    // Behind these lead bytes 0x80 would be an overlong form.
    if let (0, Some(first)) = (tail, out.first_mut()) {
        match lead {
            0xe0 => *first = 0xa0,
            0xf0 => *first = 0x90,
            _ => {}
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn accepts(text: &str) -> Result<(), JsonError> {
        let mut c = Cursor::new(text);
        c.skip(&mut |_| ())?;
        c.end()
    }

    #[test]
    fn nesting_is_bounded() {
        assert!(accepts(&format!("{}{}", "[".repeat(128), "]".repeat(128))).is_ok());
        let error = accepts(&"[".repeat(100_000)).expect_err("too deep");
        assert_eq!(error.what, "nested deeper than 128 levels");
    }

    #[test]
    fn a_text_cut_anywhere_can_be_completed() {
        let text = r#" {"a":"x\"é漢😀\u00e9\n\\","b":[1,-2.5e+3,true,false,null,{}, []],"c":{"d":"e"}} "#;
        for cut in 0..text.len() {
            let mut bytes = text.as_bytes()[..cut].to_vec();
            let suffix = complete(&bytes);
            bytes.extend_from_slice(&suffix);
            let whole = String::from_utf8(bytes).expect("UTF-8");
            assert!(serde_json::from_str::<serde_json::Value>(&whole).is_ok(), "cut at {cut}: {whole}");
        }
    }

    proptest! {
        #[test]
        fn completing_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = complete(&bytes);
        }

        #[test]
        fn plain_run_is_the_naive_one(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let naive = bytes.iter().take_while(|b| !matches!(b, b'"' | b'\\' | 0..0x20)).count();
            prop_assert_eq!(plain_run(&bytes), naive);
        }

        /// Accepts what serde_json accepts and nothing else, lone surrogates and huge numbers aside, which serde_json refuses to represent.
        #[test]
        fn agrees_with_serde_json(text in r#"[\[\]{}:,"\\a0-9.eE+\-tfn ru]{0,24}"#) {
            let theirs = serde_json::from_str::<serde::de::IgnoredAny>(&text).is_ok();
            prop_assert_eq!(accepts(&text).is_ok(), theirs, "{}", text);
        }
    }
}
