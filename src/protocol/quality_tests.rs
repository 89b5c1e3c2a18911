use super::*;
use crate::protocol::Endpoint::{self, ChatCompletions as Chat, CountTokens, Embeddings, Messages, Responses};
use serde_json::json;

fn check(endpoint: Endpoint, body: &str) -> Result<AnswerFacts, QualityFailure> {
    let expect = Expectations { validate: &ValidateResponse::default(), empty_stop_is_valid: false };
    check_answer(endpoint, Some("application/json"), body.as_bytes(), expect)
}

#[test]
fn good_answers_pass_with_their_facts() {
    let chat = r#"{"id":"chatcmpl-1","choices":[{"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":2}}"#;
    let facts = check(Chat, chat).expect("good");
    assert_eq!(
        (facts.id.as_deref(), facts.finish_reason.as_deref(), facts.usage.map(|u| u.output)),
        (Some("chatcmpl-1"), Some("stop"), Some(2))
    );
    for (endpoint, body) in [
        (Chat, r#"{"choices":[{"message":{"content":null,"tool_calls":[{"id":"c"}]},"finish_reason":"tool_calls"}]}"#),
        (Chat, r#"{"choices":[{"message":{"content":"","refusal":"no"}}]}"#),
        (Chat, r#"{"choices":[{"message":{"content":""},"finish_reason":"length"}]}"#),
        (Chat, r#"{"choices":[{"message":{"content":"","reasoning_content":"hm"},"finish_reason":"stop"}]}"#),
        (Chat, r#"{"choices":[{"message":{"content":[{"type":"text","text":"a"}]}}]}"#),
        (Chat, "{}"),
        (Chat, r#"{"output":[]}"#),
        (Messages, r#"{"type":"message","content":[{"type":"text","text":"a"}],"stop_reason":"end_turn"}"#),
        (Messages, r#"{"type":"message","content":[{"type":"tool_use","name":"f"}],"stop_reason":"tool_use"}"#),
        (Messages, r#"{"type":"message","content":[],"stop_reason":"refusal"}"#),
        (CountTokens, r#"{"input_tokens":3}"#),
        (Responses, r#"{"status":"completed","output":[],"error":null}"#),
        (Responses, r#"{"status":"queued"}"#),
        (Embeddings, r#"{"data":[{"embedding":[0.1]}]}"#),
        (Chat, "data: {}\n\n"),
        (Chat, r#"{"choices":[{"message":{"content":"a"}}],"base_resp":{"status_code":0,"status_msg":"success"}}"#),
        (Chat, r#"{"choices":[{"message":{"content":"a"}}],"errors":[],"base_resp":"fine"}"#),
        (Chat, r#"{"choices":[{"message":{"content":"a"}}],"errors":[{"message":"a warning"}]}"#),
    ] {
        assert!(check(endpoint, body).is_ok(), "{body}: {:?}", check(endpoint, body));
    }
    let expect = Expectations { validate: &ValidateResponse::default(), empty_stop_is_valid: false };
    assert!(check_answer(Chat, Some("audio/mpeg"), b"\xff\xfb", expect).is_ok());
}

#[test]
fn an_error_is_one_although_something_in_it_is_no_text() {
    let expect = Expectations { validate: &ValidateResponse::default(), empty_stop_is_valid: false };
    let body = b"{\"errors\":[{\"message\":\"x\"}],\"detail\":\"\xff\"}";
    assert_eq!(check_answer(Chat, None, body, expect), Err(QualityFailure::ErrorInside));
}

#[test]
fn answers_that_are_none_fail() {
    for (endpoint, body, failure) in [
        (Chat, "", QualityFailure::EmptyBody),
        (Chat, " \n", QualityFailure::EmptyBody),
        (Chat, r#"{"error":{"message":"x"}}"#, QualityFailure::ErrorInside),
        (Chat, r#"{"choices":[],"error":{"code":"credits_exhausted","message":"balance is zero"}}"#, QualityFailure::ErrorInside),
        (Messages, r#"{"type":"error","error":{"type":"overloaded_error"}}"#, QualityFailure::ErrorInside),
        (Chat, r#"{"choices":null,"base_resp":{"status_code":1002,"status_msg":"rate limit"}}"#, QualityFailure::ErrorInside),
        (Messages, r#"{"base_resp":{"status_code":1004}}"#, QualityFailure::ErrorInside),
        (Chat, r#"{"errors":[{"message":"quota exceeded"}]}"#, QualityFailure::ErrorInside),
        (Chat, r#"{"status":429,"errors":[{"message":"quota exceeded"}]}"#, QualityFailure::ErrorInside),
        (Responses, r#"{"errors":{"message":"quota exceeded"}}"#, QualityFailure::ErrorInside),
        (Embeddings, r#"{"data":[],"errors":["quota exceeded"]}"#, QualityFailure::ErrorInside),
        (
            Chat,
            r#"{"status":429}"#,
            QualityFailure::NotJson("invalid type: integer `429`, expected a string at line 1 column 13".to_owned()),
        ),
        (Chat, r#"{"id":"x","choices":[]}"#, QualityFailure::Shape("`choices`")),
        (Chat, r#"{"id":"x"}"#, QualityFailure::Shape("`choices`")),
        (Chat, r#"{"choices":[{"finish_reason":"stop"}]}"#, QualityFailure::Shape("`message` in one of its `choices`")),
        (Chat, r#"{"choices":[{"message":{"content":"","tool_calls":[]},"finish_reason":"stop"}]}"#, QualityFailure::NoContent),
        (
            Chat,
            r#"{"choices":[{"message":{"content":"","reasoning_content":"hm","tool_calls":[]},"finish_reason":"stop"}]}"#,
            QualityFailure::NoContent,
        ),
        (
            Chat,
            r#"{"choices":[{"message":{"content":null,"reasoning_content":"hm"}}],"usage":{"completion_tokens":100,"completion_tokens_details":{"reasoning_tokens":95}}}"#,
            QualityFailure::OnlyReasoning,
        ),
        (Messages, r#"{"type":"message","content":[],"stop_reason":"end_turn"}"#, QualityFailure::NoContent),
        (
            Messages,
            r#"{"type":"message","content":[{"type":"thinking","thinking":"hm"}],"stop_reason":"end_turn"}"#,
            QualityFailure::OnlyReasoning,
        ),
        (Embeddings, r#"{"data":[]}"#, QualityFailure::Shape("`data`")),
        (CountTokens, r#"{"tokens":3}"#, QualityFailure::Shape("`input_tokens`")),
    ] {
        assert_eq!(check(endpoint, body), Err(failure), "{body}");
    }
    assert!(matches!(check(Chat, "<html>"), Err(QualityFailure::NotJson(_))));
    assert!(matches!(check(Chat, "{\"choices\""), Err(QualityFailure::NotJson(_))));
}

#[test]
fn an_empty_stop_is_valid_where_the_provider_says_so() {
    let expect = Expectations { validate: &ValidateResponse::default(), empty_stop_is_valid: true };
    let body = br#"{"choices":[{"message":{"content":""},"finish_reason":"stop"}]}"#;
    assert!(check_answer(Chat, None, body, expect).is_ok());
    let cut = br#"{"choices":[{"message":{"content":""},"finish_reason":null}]}"#;
    assert_eq!(check_answer(Chat, None, cut, expect), Err(QualityFailure::NoContent));
    let mut facts = StreamFacts { finish_reason: Some("stop".into()), terminal: true, ..StreamFacts::default() };
    assert_eq!(check_stream_end(&facts, false), Err(QualityFailure::NoContent));
    assert_eq!(check_stream_end(&facts, true), Ok(()));
    facts.finish_reason = Some("tool_calls".into());
    assert_eq!(check_stream_end(&facts, false), Ok(()));
}

#[test]
fn declared_checks_are_made_on_the_content() {
    let body =
        json!({"model": "forbidden", "choices": [{"message": {"content": "The answer is 42."}, "finish_reason": "stop"}]}).to_string();
    let run = |validate: ValidateResponse| {
        check_answer(Chat, None, body.as_bytes(), Expectations { validate: &validate, empty_stop_is_valid: false }).map(|_| ())
    };
    let text = |s: &str| vec![s.to_owned()];
    assert_eq!(run(ValidateResponse { min_content_length: 17, ..ValidateResponse::default() }), Ok(()));
    assert_eq!(
        run(ValidateResponse { min_content_length: 18, ..ValidateResponse::default() }),
        Err(QualityFailure::TooShort { found: 17, least: 18 })
    );
    assert_eq!(run(ValidateResponse { forbidden: text("42"), ..ValidateResponse::default() }), Err(QualityFailure::Forbidden("42".into())));
    assert_eq!(run(ValidateResponse { forbidden: text("forbidden"), ..ValidateResponse::default() }), Ok(()));
    assert_eq!(run(ValidateResponse { required: text("43"), ..ValidateResponse::default() }), Err(QualityFailure::Required("43".into())));
    for (path, condition, value, good) in [
        ("choices[0].message.content", JsonCondition::NonEmpty, None, true),
        ("choices[0].finish_reason", JsonCondition::Equals, Some("\"stop\""), true),
        ("choices[0].finish_reason", JsonCondition::NotEquals, Some("\"stop\""), false),
        ("choices.0.message", JsonCondition::Exists, None, true),
        ("choices[1]", JsonCondition::Exists, None, false),
    ] {
        let json = vec![JsonPredicate { path: path.into(), condition, value: value.map(str::to_owned) }];
        assert_eq!(run(ValidateResponse { json, ..ValidateResponse::default() }).is_ok(), good, "{path}");
    }
}
