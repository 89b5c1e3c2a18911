use super::*;
use proptest::prelude::*;
use serde_json::{Value, json};

fn scan(value: &Value) -> RequestHead {
    scan_request(value.to_string().as_bytes()).expect("valid")
}

fn refused(body: &str) -> ScanError {
    scan_request(body.as_bytes()).expect_err(body)
}

fn join(body: RequestBody) -> Vec<u8> {
    body.into_pieces().concat()
}

#[test]
fn finds_what_a_chat_request_asks_for() {
    let head = scan(&json!({
        "model": "assistant", "stream": true, "max_tokens": 100, "max_completion_tokens": 4096, "reasoning_effort": "high",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"content": [{"type": "text", "text": "Hello"}, {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}], "role": "user"},
        ],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}, {}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "x"}},
    }));
    assert_eq!((head.model.as_str(), head.stream, head.tools, head.images, head.structured_output), ("assistant", true, 2, true, true));
    assert_eq!((head.max_output_tokens, head.items, head.effort), (Some(4096), 2, Some(Effort::High)));
    assert!((14..60).contains(&head.chars), "text counts, the image does not: {}", head.chars);
}

#[test]
fn finds_what_responses_and_messages_requests_ask_for() {
    let head = scan(&json!({
        "model": "m", "input": [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}, {"type": "input_image", "image_url": "x"}]}],
        "previous_response_id": "resp_1", "text": {"format": {"type": "json_object"}}, "reasoning": {"effort": "low"}, "conversation": {"id": "conv_1"},
    }));
    assert_eq!((head.previous_response_id.as_deref(), head.images, head.structured_output), (Some("resp_1"), true, true));
    assert_eq!((head.effort, head.session.as_deref()), (Some(Effort::Low), Some("conv_1")));
    let head = scan(&json!({
        "model": "m", "max_tokens": 5, "system": [{"type": "text", "text": "abc"}],
        "messages": [{"role": "user", "content": [{"type": "tool_result", "content": [{"type": "image", "source": {"data": "AAAA"}}]}]}],
    }));
    assert!(head.images);
    assert!(
        !scan(&json!({"model": "m", "messages": [{"role": "user", "content": "image_url"}], "text": {"format": {"type": "text"}}})).images
    );
}

#[test]
fn the_first_user_text_is_found_whatever_the_order_of_keys() {
    for body in [
        r#"{"model":"m","messages":[{"role":"assistant","content":"no"},{"content":"yes","role":"user"},{"role":"user","content":"later"}]}"#,
        r#"{"model":"m","messages":[{"role":"user","content":[{"type":"image"},{"text":"yes","type":"text"}]}]}"#,
        r#"{"model":"m","input":"yes"}"#,
    ] {
        let head = scan_request(body.as_bytes()).expect("valid");
        assert_eq!(head.first_user_text.map(|r| &body[r]), Some("yes"), "{body}");
    }
}

#[test]
fn session_fields_have_their_order() {
    let mut body = json!({"model": "m", "prompt_cache_key": "e", "session_id": "d", "conversation": "c", "conversation_id": "b", "metadata": {"sessionId": "a"}});
    for (expected, field) in
        [("a", "metadata"), ("b", "conversation_id"), ("c", "conversation"), ("d", "session_id"), ("e", "prompt_cache_key")]
    {
        assert_eq!(scan(&body).session.as_deref(), Some(expected));
        body.as_object_mut().expect("object").remove(field);
    }
    assert_eq!(scan(&body).session, None);
}

#[test]
fn ambiguous_and_malformed_bodies_are_refused() {
    assert_eq!(refused(r#"{"model":"a","model":"b"}"#), ScanError::Duplicate("model".into()));
    assert_eq!(refused(r#"{"model":"a","mod\u0065l":"b"}"#), ScanError::Duplicate("model".into()));
    assert_eq!(refused(r#"{"model":"a","Model":"b"}"#), ScanError::Duplicate("Model".into()));
    assert_eq!(refused(r#"{"x":1,"model":"a","x":2}"#), ScanError::Duplicate("x".into()));
    assert_eq!(refused(r#"{"messages":[]}"#), ScanError::ModelMissing);
    assert_eq!(refused(r#"{"model":3}"#).code(), "invalid_type");
    assert_eq!(refused(r#"{"model":"a","stream":"yes"}"#).param(), Some("stream"));
    assert_eq!(refused(r#"{"model":""}"#).code(), "invalid_model");
    assert_eq!(refused(r#"{"model":"a\r\nb"}"#).code(), "invalid_model");
    assert_eq!(refused(&format!(r#"{{"model":"{}"}}"#, "a".repeat(10_000))).code(), "invalid_model");
    for bad in [
        "",
        " ",
        "{",
        "[]",
        "null",
        "\"model\"",
        r#"{"model":"a"} x"#,
        r#"{"model":"a",}"#,
        r#"{"model":"a" "b":1}"#,
        "{\"model\":\"a\n\"}",
        r#"{"model":"a\x"}"#,
    ] {
        assert_eq!(refused(bad).code(), "invalid_json", "{bad}");
    }
    assert_eq!(scan_request(b"{\"model\":\"\xff\"}").expect_err("utf-8").code(), "invalid_json");
    assert_eq!(refused(&format!("{{\"model\":\"a\",\"x\":{}", "[".repeat(1_000_000))).code(), "invalid_json");
    let many = (0..300).map(|i| format!("\"k{i}\":1")).collect::<Vec<_>>().join(",");
    assert_eq!(refused(&format!("{{{many}}}")), ScanError::TooManyMembers);
}

#[test]
fn escapes_in_keys_are_decoded() {
    let body = Bytes::from_static(br#" { "str\u0065am" : true , "mod\u0065l" : "a\u002fb" } "#);
    let head = scan_request(&body).expect("valid");
    assert_eq!((head.model.as_str(), head.stream), ("a/b", true));
    assert_eq!(join(splice_model(&body, &head, "c\"d")), br#" { "str\u0065am" : true , "mod\u0065l" : "c\"d" } "#);
}

#[test]
fn a_large_body_keeps_its_bytes_in_place() {
    let text = format!(r#"{{"model":"a","input":"{}"}}"#, "x".repeat(super::SMALL));
    let body = Bytes::from(text.clone());
    let head = scan_request(&body).expect("valid");
    let pieces = splice_model(&body, &head, "b").into_pieces();
    assert_eq!(pieces.concat(), text.replace(r#""a""#, r#""b""#).as_bytes());
    assert!(body.as_ptr_range().contains(&pieces[2].as_ptr()), "what follows the model is not copied");
    let mut one_by_one = splice_model(&body, &head, "b");
    let taken: Vec<Bytes> = std::iter::from_fn(|| one_by_one.next_piece()).collect();
    assert_eq!((taken.len(), taken.concat()), (3, pieces.concat()));
    assert!(one_by_one.is_empty());
}

#[test]
fn a_nested_model_is_not_the_model() {
    let body = Bytes::from_static(br#"{"metadata":{"model":"inner","stream":true},"model":"outer"}"#);
    let head = scan_request(&body).expect("valid");
    assert_eq!((head.model.as_str(), head.stream), ("outer", false));
    assert_eq!(join(splice_model(&body, &head, "x")), br#"{"metadata":{"model":"inner","stream":true},"model":"x"}"#);
}

#[test]
fn every_proper_prefix_is_refused() {
    let body = json!({"model": "m", "messages": [{"role": "user", "content": "h\"i"}], "n": -1.5e3, "b": [true, null]}).to_string();
    for end in 0..body.len() {
        assert!(scan_request(&body.as_bytes()[..end]).is_err(), "{}", &body[..end]);
    }
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        ".{0,12}".prop_map(Value::from)
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("[a-z_]{1,8}|content|type|role|text", inner, 0..4)
                .prop_map(|m| Value::Object(m.into_iter().collect())),
        ]
    })
}

proptest! {
    /// The scanner reads the same `model` and `stream` as a full parser, and the splice changes nothing but the model.
    #[test]
    fn agrees_with_a_full_parser(
        mut members in prop::collection::btree_map("[a-z]{1,8}|messages|input|tools|metadata|text|reasoning|system", any_json(), 0..6),
        model in "[ -~äß漢]{1,20}", stream in any::<Option<bool>>(), new in "[ -~]{1,20}", pretty in any::<bool>(),
    ) {
        prop_assume!(!model.trim().is_empty());
        members.insert("model".into(), Value::from(model.clone()));
        members.remove("stream");
        if let Some(s) = stream { members.insert("stream".into(), Value::from(s)); }
        let value = Value::Object(members.into_iter().collect());
        let text = if pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) }.expect("json");
        let body = Bytes::from(text);
        let head = scan_request(&body).expect("valid");
        prop_assert_eq!(&head.model, &model);
        prop_assert_eq!(head.stream, stream.unwrap_or(false));
        let spliced: Value = serde_json::from_slice(&join(splice_model(&body, &head, &new))).expect("still JSON");
        let mut expected = value;
        expected["model"] = Value::from(new);
        prop_assert_eq!(spliced, expected);
    }

    #[test]
    fn no_input_makes_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = scan_request(&bytes);
    }
}
