use super::*;
use Dialect::{ChatCompletions as Chat, Messages, Responses};
use proptest::prelude::*;
use proptest::strategy::ValueTree;

fn classify(dialect: Dialect, name: &str, data: &str) -> Progress {
    Classifier::new(dialect).frame(name.as_bytes(), data.as_bytes())
}

#[test]
fn each_dialect_says_what_its_frames_are() {
    let table = [
        (Chat, "", r#"{"choices":[{"delta":{"role":"assistant","content":""}}]}"#, Progress::Protocol),
        (Chat, "", r#"{"choices":[{"delta":{"content":""}}]}"#, Progress::None),
        (Chat, "", r#"{"choices":[{"delta":{"content":"a"}}]}"#, Progress::Content),
        (Chat, "", r#"{"choices":[{"delta":{"content":[{"type":"text","text":"a"}]}}]}"#, Progress::Content),
        (Chat, "", r#"{"choices":[{"delta":{"reasoning_content":""}}]}"#, Progress::Reasoning),
        (Chat, "", r#"{"choices":[{"delta":{"reasoning":"x","content":null}}]}"#, Progress::Reasoning),
        (Chat, "", r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"name":"f"}}]}}]}"#, Progress::ToolCall),
        (Chat, "", r#"{"choices":[{"delta":{"tool_calls":[]}}]}"#, Progress::None),
        (Chat, "", r#"{"choices":[{"delta":{"refusal":"no"}}]}"#, Progress::Refusal),
        (Chat, "", r#"{"choices":[{"delta":{},"finish_reason":"stop"}]}"#, Progress::Protocol),
        (Chat, "", r#"{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":5}}"#, Progress::Protocol),
        (Chat, "", "[DONE]", Progress::Terminal),
        (Chat, "", r#"{"error":{"message":"x"}}"#, Progress::Error),
        (Chat, "", r#"{"error":null,"choices":[{"delta":{"content":"a"}}]}"#, Progress::Content),
        (Chat, "error", r#"{"message":"x"}"#, Progress::Error),
        (Chat, "", r#"{"base_resp":{"status_code":1002,"status_msg":"rate limit"}}"#, Progress::Error),
        (Chat, "", r#"{"choices":[{"delta":{"content":"a"}}],"base_resp":{"status_code":0}}"#, Progress::Content),
        (Chat, "", r#"{"errors":[{"message":"x"}]}"#, Progress::Error),
        (Chat, "", r#"{"choices":[{"delta":{"content":"a"}}],"errors":["a warning"]}"#, Progress::Content),
        (Chat, "", "{bad json", Progress::Malformed),
        (Messages, "ping", r#"{"type":"ping"}"#, Progress::None),
        (Messages, "message_start", r#"{"type":"message_start","message":{"id":"msg_1"}}"#, Progress::Protocol),
        (Messages, "", r#"{"type":"content_block_start","content_block":{"type":"text","text":""}}"#, Progress::Protocol),
        (Messages, "", r#"{"type":"content_block_start","content_block":{"type":"tool_use","name":"f"}}"#, Progress::ToolCall),
        (Messages, "", r#"{"type":"content_block_delta","delta":{"type":"text_delta","text":""}}"#, Progress::None),
        (Messages, "", r#"{"type":"content_block_delta","delta":{"type":"text_delta","text":"a"}}"#, Progress::Content),
        (Messages, "", r#"{"type":"content_block_delta","delta":{"type":"thinking_delta","thinking":""}}"#, Progress::Reasoning),
        (Messages, "", r#"{"type":"content_block_delta","delta":{"type":"signature_delta","signature":""}}"#, Progress::Reasoning),
        (Messages, "", r#"{"type":"content_block_delta","delta":{"type":"input_json_delta","partial_json":""}}"#, Progress::ToolCall),
        (Messages, "", r#"{"type":"message_stop"}"#, Progress::Terminal),
        (Messages, "error", r#"{"type":"error","error":{"type":"overloaded_error"}}"#, Progress::Error),
        (Messages, "error", "oops", Progress::Error),
        (Messages, "message_stop", "oops", Progress::Malformed),
        (Responses, "response.created", r#"{"type":"response.created","response":{"id":"r"}}"#, Progress::Protocol),
        (Responses, "", r#"{"type":"response.output_text.delta","delta":"a"}"#, Progress::Content),
        (Responses, "", r#"{"type":"response.output_text.delta","delta":""}"#, Progress::None),
        (Responses, "", r#"{"type":"response.reasoning_summary_text.delta","delta":""}"#, Progress::Reasoning),
        (Responses, "", r#"{"type":"response.output_item.added","item":{"type":"reasoning"}}"#, Progress::Reasoning),
        (Responses, "", r#"{"type":"response.output_item.added","item":{"type":"function_call"}}"#, Progress::ToolCall),
        (Responses, "", r#"{"type":"response.output_item.added","item":{"type":"message","content":[]}}"#, Progress::Protocol),
        (Responses, "", r#"{"type":"response.function_call_arguments.delta","delta":"{"}"#, Progress::ToolCall),
        (Responses, "", r#"{"type":"response.refusal.delta","delta":"no"}"#, Progress::Refusal),
        (Responses, "", r#"{"type":"response.completed","response":{"status":"completed"}}"#, Progress::Terminal),
        (Responses, "", r#"{"type":"response.failed","response":{"error":{"code":"x"}}}"#, Progress::Error),
        (Responses, "", r#"{"type":"error","code":"x"}"#, Progress::Error),
    ];
    for (dialect, name, data, expected) in table {
        assert_eq!(classify(dialect, name, data), expected, "{dialect:?} {name} {data}");
    }
}

#[test]
fn facts_add_up_over_a_stream() {
    let mut c = Classifier::new(Chat);
    c.frame(b"", br#"{"id":"chatcmpl-1","choices":[{"delta":{"role":"assistant"}}]}"#);
    assert!(!c.facts().has_content() && !c.facts().is_complete());
    c.frame(b"", br#"{"id":"x","choices":[{"delta":{"content":"ab"}}]}"#);
    c.frame(b"", b"garbage");
    c.frame(b"", br#"{"choices":[{"delta":{},"finish_reason":"length"}]}"#);
    c.frame(b"", br#"{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":2}}}"#);
    let facts = c.facts();
    assert_eq!((facts.text_bytes, facts.malformed, facts.response_id.as_deref()), (2, 1, Some("chatcmpl-1")));
    assert_eq!(facts.usage, Some(Usage { input: 3, output: 5, cached_input: 2, reasoning: 0 }));
    assert!(facts.is_complete() && facts.has_content() && facts.explains_emptiness() && !facts.terminal);
}

#[test]
fn responses_counts_its_sequence_and_finds_output_without_deltas() {
    let mut c = Classifier::new(Responses);
    c.frame(b"", br#"{"type":"response.created","sequence_number":0,"response":{"id":"resp_9"}}"#);
    c.frame(b"", br#"{"type":"response.completed","sequence_number":4,"response":{"status":"completed","output":[{"type":"message","content":[{"type":"output_text","text":"a"}]}]}}"#);
    assert_eq!((c.facts().next_sequence, c.facts().response_id.as_deref()), (5, Some("resp_9")));
    assert!(c.facts().has_content() && c.facts().terminal);
}

#[test]
fn reasoning_alone_is_no_content() {
    let mut c = Classifier::new(Messages);
    c.frame(b"", br#"{"type":"content_block_delta","delta":{"type":"thinking_delta","thinking":"hm"}}"#);
    c.frame(b"", br#"{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":7}}"#);
    assert!(!c.facts().has_content() && c.facts().reasoning && !c.facts().explains_emptiness());
}

/// Members of a delta beside a text, of a choice beside its delta, and of a frame beside its choices: some change what the frame is.
const OF_DELTAS: [&str; 15] = [
    r#""content":"word ""#,
    r#""content":"""#,
    r#""content":["x"]"#,
    r#""role":"assistant""#,
    r#""role":1"#,
    r#""refusal":null"#,
    r#""refusal":"no""#,
    r#""reasoning_content":null"#,
    r#""reasoning_content":"""#,
    r#""tool_calls":null"#,
    r#""tool_calls":[{"id":1e999}]"#,
    r#""audio":{}"#,
    r#""other":{"content":"x","content":"y"}"#,
    r#""c\u006fntent":"x""#,
    r#""images":null"#,
];
const OF_CHOICES: [&str; 8] = [
    r#""index":0"#,
    r#""finish_reason":null"#,
    r#""finish_reason":"stop""#,
    r#""logprobs":null"#,
    r#""text":"x""#,
    r#""message":null"#,
    r#""delta":{"content":"y"}"#,
    r#""x":[[{}]]"#,
];
const OF_FRAMES: [&str; 11] = [
    r#""id":"a""#,
    r#""id":null"#,
    r#""object":"chat.completion.chunk""#,
    r#""usage":null"#,
    r#""usage":{"prompt_tokens":3}"#,
    r#""error":null"#,
    r#""error":{"message":"x"}"#,
    r#""base_resp":{"status_code":0}"#,
    r#""errors":[]"#,
    r#""x":-1.5e3"#,
    r#""choices":[]"#,
];

/// A frame of one text, mostly, and up to two further members in each object; some are cut.
fn frame() -> impl Strategy<Value = Vec<u8>> {
    let some = |all: &'static [&'static str]| {
        prop::collection::vec(prop::sample::select(all), 0..3)
            .prop_map(|members| members.iter().map(|m| format!(",{m}")).collect::<String>())
    };
    let content = prop_oneof![4 => Just(r#""word ""#), 1 => prop::sample::select(vec![r#""word ""#, r#""\u00e9\n""#, r#""\ud800""#, r#""""#, "null"])];
    let choice = (content, some(&OF_DELTAS), some(&OF_CHOICES))
        .prop_map(|(content, delta, choice)| format!(r#"{{"delta":{{"content":{content}{delta}}}{choice}}}"#));
    let choices = prop_oneof![8 => prop::collection::vec(choice.clone(), 1), 1 => prop::collection::vec(choice, 0..3)];
    (choices, some(&OF_FRAMES), prop::option::weighted(0.1, any::<prop::sample::Index>())).prop_map(|(choices, frame, cut)| {
        let mut frame = format!(r#"{{"choices":[{}]{frame}}}"#, choices.join(",")).into_bytes();
        if let Some(cut) = cut {
            frame.truncate(cut.index(frame.len()));
        }
        frame
    })
}

#[test]
fn generated_frames_are_of_both_kinds() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let frames = (0..400).map(|_| frame().new_tree(&mut runner).expect("a frame").current());
    let glanced = frames.filter(|frame| super::plain::text_only(frame).is_some()).count();
    assert!((40..360).contains(&glanced), "{glanced}");
}

#[test]
fn a_member_that_stands_twice_is_left_to_the_parser() {
    let frame = |frame: &str, choice: &str, delta: &str| format!(r#"{{"choices":[{{"delta":{{"content":"a"{delta}}}{choice}}}]{frame}}}"#);
    let glance = |text: String| super::plain::text_only(text.as_bytes());
    assert_eq!(glance(frame("", "", "")), Some(1));
    for member in ["refusal", "reasoning_content", "reasoning", "reasoning_details", "tool_calls", "function_call", "audio", "images"] {
        let once = format!(",\"{member}\":null");
        assert_eq!((glance(frame("", "", &once)), glance(frame("", "", &once.repeat(2)))), (Some(1), None), "{member}");
    }
    for (at, once) in
        [(2, r#","role":"a""#), (1, r#","finish_reason":null"#), (0, r#","id":"a""#), (0, r#","error":null"#), (0, r#","usage":null"#)]
    {
        let with = |member: &str| {
            glance(frame(if at == 0 { member } else { "" }, if at == 1 { member } else { "" }, if at == 2 { member } else { "" }))
        };
        assert_eq!((with(once), with(&once.repeat(2))), (Some(1), None), "{once}");
    }
    for twice in [frame(r#","choices":[]"#, "", ""), frame("", r#","delta":{}"#, ""), frame("", "", r#","content":"b""#)] {
        assert_eq!(glance(twice.clone()), None, "{twice}");
    }
}

/// The classifier of a stream whose first frame has been read.
fn begun() -> Classifier {
    let mut classifier = Classifier::new(Dialect::ChatCompletions);
    classifier.frame(b"", br#"{"id":"first","choices":[{"delta":{"role":"assistant"}}]}"#);
    classifier
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_glance_says_what_the_parser_says(frame in frame()) {
        if let Some(bytes) = super::plain::text_only(&frame) {
            let mut parsed = begun();
            let before = parsed.facts.text_bytes;
            prop_assert_eq!(parsed.chat_frame(b"", &frame), Progress::Content);
            prop_assert_eq!(parsed.facts.text_bytes - before, bytes);
            let mut glanced = begun();
            prop_assert_eq!(glanced.frame(b"", &frame), Progress::Content);
            parsed.facts.frames += 1;
            prop_assert_eq!(glanced.facts, parsed.facts);
        }
    }
}

#[test]
fn frames_as_vendors_send_them_are_understood_at_a_glance() {
    for frame in [
        r#"{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"word"},"finish_reason":null}]}"#,
        r#"{"id":"c","object":"chat.completion.chunk","created":1,"model":"m","service_tier":"default","system_fingerprint":"fp","choices":[{"index":0,"delta":{"content":"w\"rd"},"logprobs":null,"finish_reason":null}],"usage":null,"obfuscation":"x"}"#,
        r#"{"id":"c","choices":[{"delta":{"role":"assistant","content":"word","reasoning_content":null,"tool_calls":null},"index":0}]}"#,
    ] {
        assert_eq!(super::plain::text_only(frame.as_bytes()), Some(4), "{frame}");
    }
}
