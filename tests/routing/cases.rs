//! The routing cases of the specification (`tests/data/routing.jsonl`). Every line is accounted for: it is driven here, or it stands in
//! one of the lists below with the tests that drive it, or the reason why not. A line of the file that is in neither fails the test.

mod order;
mod scores;
mod walk;

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;

/// One line of the file.
#[allow(missing_docs)] // the names are the file's
pub struct Case {
    pub id: String,
    pub given: Value,
    pub when: Value,
    pub expect: Value,
}

impl Case {
    /// The list of texts at a path of `expect`.
    pub fn expected(&self, key: &str) -> Vec<String> {
        texts(&self.expect[key])
    }
}

/// A list of texts.
pub fn texts(value: &Value) -> Vec<String> {
    value.as_array().unwrap_or_else(|| panic!("no list: {value}")).iter().map(|v| v.as_str().unwrap().to_owned()).collect()
}

/// A list of numbers.
pub fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap_or_else(|| panic!("no list: {value}")).iter().map(|v| v.as_f64().unwrap()).collect()
}

/// Driven by other tests, whose names are beside them: of the compiler, the whole gateway, the ledger, the classifier or the streams.
const ELSEWHERE: &[(&[&str], &[&str])] = &[
    (&["golden_pairs"], &["RC-002"]),
    (&["a_full_connection_is_passed_over_while_another_has_room", "errors_inside_a_success_are_classified"], &["RC-054"]),
    (&["good_answers_pass_with_their_facts", "answers_that_are_none_fail"], &["RC-179", "RC-181", "RC-182", "RC-183", "RC-184"]),
    (&["reset_values_are_epochs_or_deltas"], &["RC-223"]),
    (&["models_and_targets_have_gates_of_their_own"], &["RC-248"]),
    (&["a_slot_goes_to_who_waits_first_and_comes_back"], &["RC-250", "RC-252", "RC-255"]),
    (
        &["limits_of_the_queue_have_their_codes", "limits_of_the_queue_have_codes_of_their_own_and_blame_nobody"],
        &["RC-251", "RC-257", "RC-260"],
    ),
    (&["who_goes_away_holds_nothing"], &["RC-253"]),
    (&["a_release_looks_at_a_long_queue_once_and_a_newcomer_not_at_all"], &["RC-256", "RC-259"]),
    (&["what_an_answer_does_not_mention_stays"], &["RC-274"]),
    (&["headers_come_before_the_body_and_keys_keep_callers_and_providers_apart"], &["RC-277", "RC-279"]),
    (&["a_panel_of_the_wrong_size_calls_nobody"], &["RC-136"]),
    (&["tools_go_to_the_judge_alone"], &["RC-139", "RC-140"]),
    (&["a_lone_survivor_is_not_asked_twice"], &["RC-142"]),
    (&["without_a_judge_the_first_that_answered_judges"], &["RC-144"]),
    (&["a_step_is_repeated_after_a_limit_and_then_goes_on"], &["RC-145"]),
    (&["a_step_that_fails_is_named_and_nothing_comes_after_it"], &["RC-147"]),
    (&["the_fences_say_what_is_wrong"], &["RC-285", "RC-286", "RC-287", "RC-298"]),
    (&["only_entitled_keys_come_here_and_a_revoked_one_loses_its_lease"], &["RC-283", "RC-288"]),
    (&["a_move_keeps_the_generation_and_changes_the_binding"], &["RC-299"]),
    (&["an_owner_has_a_connection_for_itself"], &["RC-289", "RC-300", "RC-301", "RC-302"]),
    (&["acquiring_again_extends_and_another_key_is_refused", "the_fence_tells_why"], &["RC-292", "RC-295"]),
    (&["a_lease_moves_when_its_connection_rests_and_its_binding_tells"], &["RC-296"]),
    (&["one_winner_for_the_last_connection", "the_last_connection_has_one_owner_whoever_is_asked"], &["RC-297"]),
    (&["the_breaker_opens_for_all_connections_and_lets_one_probe_through"], &["RC-160"]),
    (&["what_skips_the_breaker_never_counts"], &["RC-244"]),
    (&["bl_014_overload_moves_on_rests_for_a_sane_time_and_never_counts_for_the_breaker"], &["RC-245"]),
    (&["text_that_trickles_is_ended_and_reasoning_is_not"], &["RC-303", "RC-304", "RC-309", "RC-310"]),
    (&["pings_and_empty_text_are_no_progress", "each_dialect_says_what_its_frames_are"], &["RC-305", "RC-306"]),
    (&["golden_pairs", "junk_is_ignored_and_other_variables_are_not_kept"], &["RC-308", "RC-316"]),
    (&["errors_and_ends_before_content_go_back_to_the_engine"], &["RC-311", "RC-317"]),
    (&["a_broken_stream_ends_with_the_error_frame_of_its_dialect"], &["RC-312"]),
    (&["reasoning_without_content_runs_into_the_content_stall"], &["RC-313", "RC-314"]),
    (&["larger_requests_get_more_time"], &["RC-318"]),
    (&["answers_that_are_none_fail"], &["RC-180"]),
    (&["ceilings_are_read_and_counts_are_not"], &["RC-263"]),
    (
        &["a_ceiling_in_words_sets_the_pace_unless_a_number_is_declared_or_nobody_would_wait_for_it"],
        &["RC-265", "RC-266", "RC-267", "RC-268"],
    ),
];

/// Not part of the product, or decided otherwise.
const DEPARTS: &[(&str, &[&str])] = &[
    ("a ceiling in words is learned anew after a restart, from the next 429", &["RC-269"]),
    ("decisions 4.1: refused at admission (tests/compile)", &["RC-007"]),
    ("decisions 8.2: no writes through the API", &["RC-015"]),
    ("what a request reserved ends with its walk: there is no lease on it that could expire", &["RC-134"]),
    (
        "decisions 9.20, interface 2: keys have allowed-connections and allowed-models only",
        &["RC-023", "RC-024", "RC-025", "RC-026", "RC-027"],
    ),
    ("interface 2: there is no compatFilterFailOpen", &["RC-030"]),
    ("decisions 4.11: no evaluation-driven order", &["RC-035"]),
    ("decisions 9.3: evidence against our credential is never the client's 401 (tests/gateway/compose.rs: 503)", &["RC-146"]),
    ("decisions 4.11: the reasoning buffer is off", &["RC-170", "RC-171", "RC-172", "RC-174", "RC-175"]),
    ("no shadow traffic for targets", &["RC-176", "RC-177"]),
    ("quotas are learned from answers, never fetched; bounds are in the schema", &["RC-106", "RC-107", "RC-114", "RC-115"]),
    ("no task fitness tables (decisions 4.11: no task-aware order)", &["RC-097", "RC-098"]),
];

#[test]
fn every_case() {
    let text = include_str!("../data/routing.jsonl");
    let mut known: BTreeSet<&str> = BTreeSet::new();
    for id in ELSEWHERE.iter().flat_map(|(_, ids)| *ids).chain(DEPARTS.iter().flat_map(|(_, ids)| *ids)) {
        assert!(known.insert(id), "{id} is listed twice");
    }
    let (mut driven, mut missing) = (0, Vec::new());
    for line in text.lines().filter(|l| !l.trim().is_empty()) {
        let value: Value = serde_json::from_str(line).unwrap();
        let case = Case {
            id: value["id"].as_str().unwrap().to_owned(),
            given: value["given"].clone(),
            when: value["when"].clone(),
            expect: value["expect"].clone(),
        };
        let test = order::find(&case.id).or_else(|| walk::find(&case.id)).or_else(|| scores::find(&case.id));
        match test {
            Some(test) => {
                assert!(!known.contains(case.id.as_str()), "{} is both driven and listed", case.id);
                test(&case);
                driven += 1;
            }
            None if known.contains(case.id.as_str()) => {}
            None => missing.push(case.id),
        }
    }
    assert!(missing.is_empty(), "{driven} driven; not accounted for: {missing:?}");
}

fn sources(folder: &Path, text: &mut String) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, text);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            text.push_str(&std::fs::read_to_string(path).unwrap());
        }
    }
}

#[test]
fn every_case_that_is_driven_elsewhere_has_its_test() {
    let mut text = String::new();
    for folder in ["src", "tests"] {
        sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join(folder), &mut text);
    }
    let missing: Vec<_> = ELSEWHERE.iter().flat_map(|(tests, _)| *tests).filter(|name| !text.contains(&format!("fn {name}("))).collect();
    assert!(missing.is_empty(), "no such tests: {missing:?}");
}
