use super::*;
use crate::protocol::Endpoint;
use crate::protocol::quality::examine;
use proptest::prelude::*;

/// An answer as OpenAI gives it.
const USUAL: &str = r#"{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":"assistant",
"content":"a \"b\"\n","refusal":null,"annotations":[]},"logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":20,"completion_tokens":200,
"total_tokens":220,"prompt_tokens_details":{"cached_tokens":4,"audio_tokens":0},"completion_tokens_details":{"reasoning_tokens":7}},
"service_tier":"default","system_fingerprint":null}"#;

#[test]
fn usual_answers_need_no_full_parse() {
    let facts = good_chat(USUAL).expect("usual");
    assert_eq!((facts.id.as_deref(), facts.finish_reason.as_deref()), (Some("chatcmpl-1"), Some("stop")));
    let usage = facts.usage.map(|u| (u.input, u.output, u.cached_input, u.reasoning));
    assert_eq!(usage, Some((20, 200, 4, 7)));
    for body in [
        r#"{"choices":[{"message":{"content":null,"tool_calls":[{"id":"c","function":{"name":"f","arguments":"{}"}}]},"finish_reason":"tool_calls"}]}"#,
        r#"{"choices":[{"message":{"content":"a"}},{"message":{"content":""}}],"error":null,"usage":null}"#,
        r#"{"choices":[{"message":{"content":"","refusal":"no"}}]}"#,
    ] {
        assert!(good_chat(body).is_some(), "{body}");
    }
}

/// Members that may stand in an answer, good ones and such that change what it is.
fn members(names: &'static [&'static str], most: usize) -> impl Strategy<Value = String> {
    let value = prop_oneof![4 => Just("null"), 1 => prop::sample::select(VALUES)];
    let member = (prop::sample::select(names), value).prop_map(|(name, value)| format!("\"{name}\":{value}"));
    prop::collection::vec(member, 0..=most).prop_map(|members| members.join(","))
}

const VALUES: &[&str] = &[
    "\"\"",
    "\"a\"",
    "\"stop\"",
    "\"length\"",
    "\"error\"",
    "\"\\u0041\"",
    "\"\\ud800\"",
    "\"a\\nb\"",
    "\"é\"",
    "0",
    "7",
    "-1",
    "1.5",
    "1e400",
    "18446744073709551616",
    "true",
    "false",
    "[]",
    "[null]",
    "{}",
    "{\"text\":\"a\"}",
    "[{\"type\":\"text\",\"text\":\"a\"}]",
    "{\"status_code\":0}",
    "{\"status_code\":5}",
    "{\"message\":\"x\"}",
    "{\"cached_tokens\":1}",
    "{\"reasoning_tokens\":9,\"reasoning_tokens\":9}",
    "{\"reasoning_tokens\":null}",
    "[[[{\"a\":[]}]]]",
];
const OF_ANSWERS: &[&str] = &[
    "id",
    "type",
    "error",
    "errors",
    "base_resp",
    "content",
    "stop_reason",
    "output",
    "status",
    "usage",
    "data",
    "input_tokens",
    "object",
    "model",
    "err\\u006fr",
    "choices",
];
const OF_CHOICES: &[&str] = &["index", "delta", "message", "text", "finish_reason", "logprobs", "mess\\u0061ge"];
const OF_MESSAGES: &[&str] = &[
    "role",
    "content",
    "refusal",
    "reasoning_content",
    "reasoning",
    "reasoning_details",
    "tool_calls",
    "function_call",
    "audio",
    "images",
    "annotations",
];
const OF_USAGE: &[&str] = &[
    "prompt_tokens",
    "completion_tokens",
    "input_tokens",
    "output_tokens",
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
    "prompt_tokens_details",
    "input_tokens_details",
    "completion_tokens_details",
    "output_tokens_details",
    "total_tokens",
    "cost",
];

prop_compose! {
    fn answer()(
        around in members(OF_ANSWERS, 1),
        choices in prop::collection::vec((members(OF_CHOICES, 1), members(OF_MESSAGES, 2), prop::bool::weighted(0.8)), 1..3),
        usage in prop::option::of(members(OF_USAGE, 2)),
    ) -> String {
        let choices: Vec<String> = choices
            .into_iter()
            .map(|(choice, message, bare)| {
                let message = if bare { format!("\"content\":\"a\"{}{message}", if message.is_empty() { "" } else { "," }) } else { message };
                format!("{{{choice}{}\"message\":{{{message}}}}}", if choice.is_empty() { "" } else { "," })
            })
            .collect();
        let usage = usage.map_or_else(String::new, |usage| format!(",\"usage\":{{{usage}}}"));
        format!("{{{around}{}\"choices\":[{}]{usage}}}", if around.is_empty() { "" } else { "," }, choices.join(","))
    }
}

/// What is good at a glance is good for the full parse, which finds the same.
fn agrees(text: &str) -> Result<bool, TestCaseError> {
    let Some(facts) = good_chat(text) else { return Ok(false) };
    for empty_stop_is_valid in [false, true] {
        prop_assert_eq!(examine(Endpoint::ChatCompletions, text, empty_stop_is_valid), Ok(facts.clone()), "{}", text);
    }
    Ok(true)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn the_full_parse_agrees_on_generated_answers(text in answer()) {
        agrees(&text)?;
    }

    #[test]
    fn the_full_parse_agrees_on_mutated_answers(
        from in prop::option::of(answer()),
        cuts in prop::collection::vec((any::<prop::sample::Index>(), 0_usize..6, r#"[\[\]{}:,"\\ua0-9.eE+\-tfnl \x01é]{0,3}"#), 1..4),
    ) {
        let mut text: Vec<char> = from.as_deref().unwrap_or(USUAL).chars().collect();
        for (at, length, insert) in cuts {
            let start = at.index(text.len() + 1);
            let end = (start + length).min(text.len());
            text.splice(start..end, insert.chars());
        }
        agrees(&text.into_iter().collect::<String>())?;
    }
}

#[test]
fn generated_answers_are_of_both_kinds() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let answers: Vec<String> =
        (0..500).filter_map(|_| answer().new_tree(&mut runner).ok()).map(|tree| proptest::strategy::ValueTree::current(&tree)).collect();
    let good = answers.iter().filter(|text| good_chat(text).is_some()).count();
    assert!((40..460).contains(&good), "{good} of {}", answers.len());
}

#[test]
fn a_member_that_stands_twice_is_for_the_full_parse() {
    let with = |answer: &str, choice: &str, message: &str| {
        good_chat(&format!(r#"{{"choices":[{{"message":{{"content":"a"{message}}}{choice}}}]{answer}}}"#)).is_some()
    };
    for (at, once) in [
        (0, r#","id":"a""#),
        (0, r#","type":"a""#),
        (0, r#","error":null"#),
        (0, r#","usage":null"#),
        (1, r#","finish_reason":"stop""#),
        (2, r#","role":"a""#),
        (2, r#","refusal":null"#),
        (2, r#","tool_calls":null"#),
        (2, r#","reasoning_content":null"#),
        (2, r#","reasoning":null"#),
        (2, r#","function_call":null"#),
        (2, r#","audio":null"#),
    ] {
        let good =
            |member: &str| with(if at == 0 { member } else { "" }, if at == 1 { member } else { "" }, if at == 2 { member } else { "" });
        assert_eq!((good(once), good(&once.repeat(2))), (true, false), "{once}");
    }
    assert!(!with(r#","choices":[]"#, "", "") && !with("", r#","message":{}"#, "") && !with("", "", r#","content":"b""#));
}
