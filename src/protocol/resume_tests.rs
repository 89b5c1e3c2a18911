use super::*;
use crate::protocol::scan::scan_request;
use proptest::prelude::*;

fn ask(body: &str, text: &str) -> Option<Value> {
    let head = scan_request(body.as_bytes()).expect("a request");
    let asked = ask_for_rest(body.as_bytes(), &head, "other", text)?;
    Some(serde_json::from_slice(&asked).expect("JSON"))
}

#[test]
fn the_rest_is_asked_for_with_the_text_so_far() {
    for body in [
        r#"{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}],"x":1}"#,
        r#"{ "messages" : [ {"content":"hi","role":"user"} ] , "x":1, "stream":true,"model":"m", "n":1}"#,
    ] {
        let mut expected: Value = serde_json::from_str(body).expect("JSON");
        expected["model"] = "other".into();
        expected["messages"].as_array_mut().expect("list").push(json!({"role": "assistant", "content": "a \"text\"\n"}));
        assert_eq!(ask(body, "a \"text\"\n"), Some(expected));
    }
}

#[test]
fn some_answers_cannot_be_continued() {
    for body in [
        r#"{"model":"m","messages":[]}"#,
        r#"{"model":"m","messages":"hi"}"#,
        r#"{"model":"m","input":"hi"}"#,
        r#"{"model":"m","messages":[{"role":"assistant","content":"I"}]}"#,
        r#"{"model":"m","n":2,"messages":[{"role":"user","content":"hi"}]}"#,
        r#"{"model":"m","response_format":{"type":"json_object"},"messages":[{"role":"user","content":"hi"}]}"#,
    ] {
        assert_eq!(ask(body, "x"), None, "{body}");
    }
}

#[test]
fn only_plain_text_of_the_only_choice_is_gathered() {
    let (mut head, mut text) = (AnswerHead::default(), String::new());
    let mut take = |data: &str| gather(data.as_bytes(), &mut head, &mut text);
    assert!(take(r#"{"id":"c","created":7,"model":"m","choices":[{"index":0,"delta":{"role":"assistant"}}]}"#));
    assert!(take(r#"{"id":"d","choices":[{"delta":{"content":"h\u00e9"}}]}"#) && take(r#"{"choices":[],"usage":{}}"#));
    assert!(!take(r#"{"choices":[{"index":1,"delta":{"content":"x"}}]}"#));
    assert!(!take(r#"{"choices":[{"delta":{"content":[{"type":"text","text":"x"}]}}]}"#));
    assert_eq!((text.as_str(), head), ("hé", AnswerHead { id: Some("c".into()), created: Some(7), model: Some("m".into()) }));
}

fn join(before: &str, pieces: &[&str], ended: bool) -> String {
    let mut joint = Joint::new(AnswerHead::default(), before);
    let (mut out, mut text) = (Vec::new(), String::new());
    for piece in pieces {
        let data =
            json!({"choices": [{"index": 0, "delta": {"role": "assistant", "content": piece, "refusal": null}, "finish_reason": null}]});
        joint.frame(data.to_string().as_bytes(), &mut out, &mut text);
    }
    if ended {
        joint.end(&mut out, &mut text);
    }
    text
}

#[test]
fn a_repetition_is_cut_off_and_chance_is_not() {
    let long: String = (0..700).map(|n| char::from(b'a' + u8::try_from(n * 7 % 26).unwrap_or(0))).collect();
    for (before, pieces, expected) in [
        ("The quick brown", &["brown fox"][..], " fox"),
        ("The quick brown", &["bro", "wn", " fox"], " fox"),
        ("The quick brown", &["The quick brown fox"], " fox"),
        ("The quick brown", &[" fox"], " fox"),
        ("hel", &["lo"], "lo"),
        ("a ----", &["---- b"], "---- b"),
        ("日本語の文章", &["の文章です"], "の文章です"),
        ("これは日本語の文章", &["日本語の文章です"], "です"),
        ("The quick brown", &["bro"], "bro"),
        ("The quick brown", &["brown"], ""),
    ] {
        assert_eq!(join(before, pieces, true), expected, "{before} + {pieces:?}");
    }
    let repeated = format!("{}!", &long[700 - MAX_OVERLAP..]);
    assert_eq!(join(&long, &[&repeated], true), "!");
}

#[test]
fn reasoning_before_the_rest_does_not_hide_a_repetition() {
    let mut joint = Joint::new(AnswerHead::default(), "The quick brown");
    let (mut out, mut text) = (Vec::new(), String::new());
    for delta in [json!({"role": "assistant", "reasoning_content": "hm"}), json!({"content": "brown fox"})] {
        let data = json!({"choices": [{"index": 0, "delta": delta, "finish_reason": null}]});
        joint.frame(data.to_string().as_bytes(), &mut out, &mut text);
    }
    assert_eq!(text, " fox");
    assert!(String::from_utf8(out).expect("text").contains("hm"));
}

#[test]
fn text_is_held_no_longer_than_it_may_be_a_repetition() {
    assert_eq!(join("The quick brown", &["bro"], false), "");
    assert_eq!(join("The quick brown", &["bro", "ad"], false), "broad");
}

proptest! {
    /// However the rest is cut into pieces, the client gets the same text.
    #[test]
    fn pieces_do_not_matter(before in "[ab ]{0,30}", rest in "[ab ]{1,30}", cut in 0usize..30) {
        let cut = cut.min(rest.len());
        let (one, two) = rest.split_at(cut);
        prop_assert_eq!(join(&before, &[one, two], true), join(&before, &[&rest], true));
    }
}

#[test]
fn frames_get_the_head_of_the_answer_and_a_stop_where_they_have_none() {
    let head = AnswerHead { id: Some("c1".into()), created: Some(7), model: Some("m".into()) };
    let run = |frames: &[Value]| {
        let mut joint = Joint::new(head.clone(), "so far");
        let (mut out, mut text) = (Vec::new(), String::new());
        for frame in frames {
            joint.frame(frame.to_string().as_bytes(), &mut out, &mut text);
        }
        joint.frame(b"[DONE]", &mut out, &mut text);
        let out = String::from_utf8(out).expect("text");
        assert!(out.ends_with("\n\ndata: [DONE]\n\n"), "{out}");
        let frames = out.split("\n\n").filter_map(|f| f.strip_prefix("data: ")).filter(|f| *f != "[DONE]");
        frames.map(|f| serde_json::from_str::<Value>(f).expect("JSON")).collect::<Vec<_>>()
    };
    let said =
        json!({"id": "c2", "created": 9, "model": "x", "choices": [{"index": 0, "delta": {"role": "assistant", "content": ", so good"}}]});
    let stop = json!({"id": "c2", "choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]});
    let usage = json!({"id": "c2", "choices": [], "usage": {"total_tokens": 3}});
    let got = run(&[said.clone(), stop, usage]);
    assert_eq!(got.len(), 3, "{got:?}");
    assert!(got.iter().all(|f| f["id"] == "c1" && f["created"] == 7 && f["model"] == "m"), "{got:?}");
    assert_eq!(got[0]["choices"][0]["delta"], json!({"content": ", so good"}));
    assert_eq!((&got[1]["choices"][0]["finish_reason"], &got[2]["usage"]["total_tokens"]), (&json!("length"), &json!(3)));
    let got = run(&[said]);
    assert_eq!((got.len(), &got[1]["choices"][0]["finish_reason"]), (2, &json!("stop")));
}
