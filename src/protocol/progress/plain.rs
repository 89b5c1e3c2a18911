//! The frame that nearly all frames of a chat stream are: one choice, one piece of text, nothing else. It is recognised in one pass; whatever
//! else a frame says, or however else it says it, is left to the parser.

use crate::protocol::json::{Cursor, JsonError};

/// What makes a frame one for the parser.
const OTHERWISE: JsonError = JsonError { at: 0, what: "something else than text" };

/// Members that the parser knows, by object; what it does not know may be there several times.
const FRAME: [&str; 6] = ["choices", "id", "error", "errors", "base_resp", "usage"];
const CHOICE: [&str; 4] = ["delta", "finish_reason", "message", "text"];
const DELTA: [&str; 10] =
    ["content", "role", "refusal", "reasoning_content", "reasoning", "reasoning_details", "tool_calls", "function_call", "audio", "images"];

/// How many bytes of text the frame adds, if that is all that it does.
pub(super) fn text_only(data: &[u8]) -> Option<u64> {
    let mut cursor = Cursor::new(std::str::from_utf8(data).ok()?);
    let mut added = 0;
    members(&mut cursor, &FRAME, |c, key| match key {
        "choices" => {
            let mut choices = 0;
            c.array(|c| {
                choices += 1;
                members(c, &CHOICE, |c, key| if key == "delta" { delta(c).map(|bytes| added = bytes) } else { null(c) })
            })?;
            if choices == 1 { Ok(()) } else { Err(OTHERWISE) }
        }
        "id" => string(c).map(|_| ()),
        _ => null(c),
    })
    .ok()?;
    cursor.end().ok()?;
    Some(added).filter(|bytes| *bytes > 0)
}

fn delta(cursor: &mut Cursor<'_>) -> Result<u64, JsonError> {
    let mut added = 0;
    members(cursor, &DELTA, |c, key| match key {
        "content" => string(c).map(|bytes| added = bytes),
        "role" => string(c).map(|_| ()),
        _ => null(c),
    })?;
    Ok(added)
}

/// Walks an object: `known` gets the members of these names, each once; the others are passed over.
fn members<'a>(
    cursor: &mut Cursor<'a>,
    names: &[&str],
    mut known: impl FnMut(&mut Cursor<'a>, &str) -> Result<(), JsonError>,
) -> Result<(), JsonError> {
    let mut seen = 0u16;
    cursor.object(|c, key| match names.iter().position(|name| *name == key) {
        None => c.skip(&mut |_| ()),
        Some(at) if seen & (1 << at) != 0 => Err(OTHERWISE),
        Some(at) => {
            seen |= 1 << at;
            known(c, &key)
        }
    })
}

/// The length of a string.
fn string(cursor: &mut Cursor<'_>) -> Result<u64, JsonError> {
    let literal = cursor.string()?;
    Ok(cursor.decode(&literal)?.len() as u64)
}

fn null(cursor: &mut Cursor<'_>) -> Result<(), JsonError> {
    if cursor.peek() == Some(b'n') { cursor.skip(&mut |_| ()) } else { Err(OTHERWISE) }
}
