//! The request for the rest of a text is JSON with one message more, and the frames of the rest add up to the same text however they are cut.

use serde_json::{Value, json};

use super::Parts;
use crate::protocol::resume::{AnswerHead, Joint, ask_for_rest, gather};
use crate::protocol::scan::scan_request;

fn join(before: &str, pieces: &[String], frame: &[u8]) -> String {
    let mut joint = Joint::new(AnswerHead::default(), before);
    let (mut out, mut text) = (Vec::new(), String::new());
    for piece in pieces {
        let data = json!({"choices": [{"index": 0, "delta": {"content": piece}}]}).to_string();
        joint.frame(data.as_bytes(), &mut out, &mut text);
    }
    joint.end(&mut out, &mut text);
    // Whatever follows the end is not allowed to panic either.
    joint.frame(frame, &mut Vec::new(), &mut String::new());
    let mut told = String::new();
    for data in String::from_utf8(out).unwrap().split("\n\n").filter_map(|frame| frame.strip_prefix("data: ")).filter(|d| *d != "[DONE]") {
        assert!(gather(data.as_bytes(), &mut AnswerHead::default(), &mut told), "{data}");
    }
    assert_eq!(told, text, "what is kept is what was sent");
    text
}

/// Parts: request, the text before, a frame, the pieces of the rest.
pub fn check(data: &[u8]) {
    let mut parts = Parts::of(data);
    let (request, before, frame) = (parts.bytes(), parts.text(), parts.bytes());
    let mut rest = Vec::new();
    while let Some(piece) = parts.next() {
        rest.push(String::from_utf8_lossy(piece).into_owned());
    }
    if let Ok(head) = scan_request(request)
        && let Some(asked) = ask_for_rest(request, &head, "other", &before)
        && let Ok(mut expected) = serde_json::from_slice::<Value>(request)
    {
        expected["model"] = "other".into();
        expected["messages"].as_array_mut().unwrap().push(json!({"role": "assistant", "content": before}));
        assert_eq!(serde_json::from_slice::<Value>(&asked).ok(), Some(expected));
    }
    let whole = rest.concat();
    let joined = join(&before, &rest, frame);
    assert_eq!(joined, join(&before, std::slice::from_ref(&whole), frame));
    assert!(whole.ends_with(&joined), "only a beginning is cut off");
}
