use super::*;

const CHAT: Dialect = Dialect::ChatCompletions;

fn open(dialect: Dialect, body: &str) -> Conversation {
    Conversation::parse(dialect, body.as_bytes()).unwrap()
}

fn text(conversation: &Conversation) -> String {
    String::from_utf8(conversation.to_bytes()).unwrap()
}

#[test]
fn what_nobody_changes_keeps_its_bytes_and_its_order() {
    let body = r#"{"model":"m","z":{"b":1,"a":1.0e2},"messages":[{"role":"user","content":"h\u00e9"}],"a":null}"#;
    assert_eq!(text(&open(CHAT, body)), body);
    let more = text(&open(CHAT, body).with_user("and?"));
    let expected = body.replace(r#""h\u00e9"}]"#, r#""h\u00e9"},{"content":"and?","role":"user"}]"#);
    assert_eq!(more, expected);
    assert!(Conversation::parse(CHAT, b"[]").is_err());
}

#[test]
fn a_question_for_reading_asks_for_one_whole_answer_without_tools() {
    let cases = [
        (
            CHAT,
            r#"{"model":"m","stream":true,"stream_options":{"include_usage":true},"tools":[{}],"tool_choice":"none","parallel_tool_calls":true,"functions":[],"function_call":"none","n":2,"temperature":1,"messages":[]}"#,
            r#"{"model":"m","stream":false,"temperature":1,"messages":[]}"#,
        ),
        (
            Dialect::Responses,
            r#"{"model":"m","background":true,"tools":[{}],"input":"x","previous_response_id":"r"}"#,
            r#"{"model":"m","input":"x","previous_response_id":"r"}"#,
        ),
        (
            Dialect::Messages,
            r#"{"tools":[{}],"messages":[{"role":"assistant","content":[{"type":"text","text":"t"},{"type":"tool_use","name":"f","input":{"a":1}}]},{"role":"user","content":[{"type":"tool_result","content":[{"type":"text","text":"42"}]}]},{"role":"user","content":"so?"}]}"#,
            r#"{"messages":[{"content":[{"text":"t","type":"text"},{"text":"[called f with {\"a\":1}]","type":"text"}],"role":"assistant"},{"content":[{"text":"[the tool answered: 42]","type":"text"}],"role":"user"},{"content":"so?","role":"user"}]}"#,
        ),
    ];
    for (dialect, body, expected) in cases {
        assert_eq!(text(&open(dialect, body).for_reading()), expected, "{dialect:?}");
    }
}

#[test]
fn tools_that_may_be_called() {
    for (body, expected) in [
        (r#"{"tools":[{}]}"#, true),
        (r#"{"tools":[{}],"tool_choice":"auto"}"#, true),
        (r#"{"tools":[{}],"tool_choice":{"type":"any"}}"#, true),
        (r#"{"tools":[{}],"tool_choice":"none"}"#, false),
        (r#"{"tools":[{}],"tool_choice":{"type":"none"}}"#, false),
        (r#"{"tools":[]}"#, false),
        (r#"{"functions":[{}]}"#, true),
        (r#"{"functions":[{}],"function_call":"none"}"#, false),
        (r#"{"tools":null}"#, false),
        ("{}", false),
    ] {
        assert_eq!(open(CHAT, body).offers_tools(), expected, "{body}");
    }
}

#[test]
fn system_turns_of_every_dialect() {
    let (first, after) = (Place::First, Place::AfterSystem);
    let cases = [
        (CHAT, first, r#"{"messages":[{"role":"system","content":"s"},{"role":"user","content":"u"}]}"#, "T s u"),
        (CHAT, after, r#"{"messages":[{"role":"developer","content":"s"},{"role":"user","content":"u"}]}"#, "s T u"),
        (CHAT, after, r#"{"messages":[{"role":"user","content":"u"}]}"#, "T u"),
        (Dialect::Messages, after, r#"{"messages":[{"role":"user","content":"u"}]}"#, "T u"),
        (Dialect::Messages, first, r#"{"system":"s","messages":[]}"#, "T\n\ns"),
        (Dialect::Messages, after, r#"{"system":"s","messages":[]}"#, "s\n\nT"),
        (Dialect::Messages, after, r#"{"system":[{"type":"text","text":"s"}],"messages":[]}"#, "s\nT"),
        (Dialect::Messages, first, r#"{"system":[{"type":"text","text":"s"}],"messages":[]}"#, "T\ns"),
        (Dialect::Responses, first, r#"{"instructions":"s","input":"u"}"#, "T\n\ns u"),
        (
            Dialect::Responses,
            after,
            r#"{"instructions":null,"input":[{"role":"user","content":[{"type":"input_text","text":"u"}]}]}"#,
            "T u",
        ),
    ];
    for (dialect, place, body, expected) in cases {
        let changed = open(dialect, body).with_system("T", place);
        let said: Vec<String> = changed.spoken().into_iter().map(|(_, text)| text).collect();
        assert_eq!(said.join(" "), expected, "{dialect:?} {place:?} {}", text(&changed));
    }
}

#[test]
fn a_conversation_is_replaced_and_its_settings_stay() {
    let cases = [
        (
            CHAT,
            r#"{"model":"m","messages":[{"role":"system","content":"s"}],"stream":true,"tools":[{}]}"#,
            r#"{"model":"m","messages":[{"content":"next","role":"user"}],"stream":true,"tools":[{}]}"#,
        ),
        (
            Dialect::Messages,
            r#"{"system":"s","max_tokens":9,"messages":[{"role":"user","content":"u"}]}"#,
            r#"{"max_tokens":9,"messages":[{"content":"next","role":"user"}]}"#,
        ),
        (
            Dialect::Responses,
            r#"{"instructions":"s","previous_response_id":"r","input":"u"}"#,
            r#"{"input":[{"content":"next","role":"user"}]}"#,
        ),
    ];
    for (dialect, body, expected) in cases {
        assert_eq!(text(&open(dialect, body).replaced_by("next")), expected, "{dialect:?}");
    }
}

#[test]
fn a_turn_after_a_plain_input() {
    let body = text(&open(Dialect::Responses, r#"{"input":"u"}"#).with_user("more"));
    assert_eq!(body, r#"{"input":[{"content":"u","role":"user"},{"content":"more","role":"user"}]}"#);
}

#[test]
fn texts_of_answers() {
    let chat = |content: Value| json!({"choices": [{"message": {"content": content}}]}).to_string();
    let cases = [
        (CHAT, chat("hi".into()), Ok("hi")),
        (CHAT, chat(json!([{"type": "text", "text": "hi"}])), Ok("hi")),
        (CHAT, chat(Value::Null), Err(NoText::Empty)),
        (CHAT, chat(" \n".into()), Err(NoText::Empty)),
        (CHAT, json!({"choices": []}).to_string(), Err(NoText::Empty)),
        (CHAT, "{}".to_owned(), Err(NoText::Unparseable)),
        (CHAT, "data: {}\n\n".to_owned(), Err(NoText::Unparseable)),
        (
            Dialect::Messages,
            json!({"content": [{"type": "thinking", "thinking": "x"}, {"type": "text", "text": "a"}, {"type": "text", "text": "b"}]})
                .to_string(),
            Ok("ab"),
        ),
        (Dialect::Messages, json!({"content": [{"type": "tool_use"}]}).to_string(), Err(NoText::Empty)),
        (
            Dialect::Responses,
            json!({"output": [{"type": "reasoning"}, {"type": "message", "content": [{"type": "output_text", "text": "a"}]}]}).to_string(),
            Ok("a"),
        ),
        (Dialect::Embeddings, json!({"data": []}).to_string(), Err(NoText::Unparseable)),
    ];
    for (dialect, answer, expected) in cases {
        assert_eq!(answer_text(dialect, answer.as_bytes()), expected.map(str::to_owned), "{answer}");
    }
}
