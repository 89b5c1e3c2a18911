//! The walk of one request: which connection is next after every kind of outcome.

mod routing_support;

use omniroute::snapshot::Strategy;
use routing_support::*;

#[test]
fn the_next_connection_then_the_next_target() {
    let mut s = snapshot(vec![combo("c", Strategy::Priority, &["openai/gpt", "claude/sonnet"])]);
    s.connections.push(connection("openai-2", "openai"));
    let mut bench = Bench::new(s).on("openai", &[status(500)]).on("openai-2", &[status(503)]);
    let outcome = bench.send("c");
    assert_eq!(outcome.calls, ["openai", "openai-2", "claude"]);
    assert_eq!(outcome.status(), 200);
    // The next request skips what rests.
    assert_eq!(bench.send("c").calls, ["claude"]);
}

#[test]
fn round_robin_turns() {
    let mut bench = Bench::new(snapshot(vec![combo("c", Strategy::RoundRobin, &["a/m", "b/m", "c/m"])]));
    let calls: Vec<String> = (0..4).flat_map(|_| bench.send("c").calls).collect();
    assert_eq!(calls, ["a", "b", "c", "a"]);
}

#[test]
fn everything_rests_and_the_answer_says_until_when() {
    let mut bench =
        Bench::new(snapshot(vec![combo("c", Strategy::Priority, &["a/m", "b/m"])])).on("a", &[stated(30)]).on("b", &[stated(20)]);
    let first = bench.send("c");
    assert_eq!(first.calls, ["a", "b"]);
    assert_eq!((first.status(), first.answer.as_ref().unwrap().retry_after_seconds), (429, Some(20)));
    let second = bench.send("c");
    assert!(second.calls.is_empty());
    assert_eq!((second.status(), second.code()), (429, "all_targets_cooling_down"));
    assert_eq!(second.answer.unwrap().retry_after_seconds, Some(20));
}
