//! The request for the rest of a text is JSON with one message more, and the frames of the rest add up to the same text however they are cut.
#![no_main]

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use omniroute_fuzz::protocol::resume::{AnswerHead, Joint, ask_for_rest, gather};
use omniroute_fuzz::protocol::scan::scan_request;
use serde_json::{Value, json};

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    request: &'a [u8],
    before: &'a str,
    rest: Vec<&'a str>,
    frame: &'a [u8],
}

fn join(before: &str, pieces: &[&str], frame: &[u8]) -> String {
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

fuzz_target!(|input: Input<'_>| {
    if let Ok(head) = scan_request(input.request)
        && let Some(asked) = ask_for_rest(input.request, &head, "other", input.before)
        && let Ok(mut expected) = serde_json::from_slice::<Value>(input.request)
    {
        expected["model"] = "other".into();
        expected["messages"].as_array_mut().unwrap().push(json!({"role": "assistant", "content": input.before}));
        assert_eq!(serde_json::from_slice::<Value>(&asked).ok(), Some(expected));
    }
    let whole = input.rest.concat();
    let joined = join(input.before, &input.rest, input.frame);
    assert_eq!(joined, join(input.before, &[&whole], input.frame));
    assert!(whole.ends_with(&joined), "only a beginning is cut off");
});
