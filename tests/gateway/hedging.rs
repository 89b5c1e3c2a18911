//! Combos with `hedging`: a slow target is joined by the next one, and the first acceptable answer wins.

use crate::support::{Reply, Served, Setup, Vendor, request};
use bytes::Bytes;
use http_body_util::Full;
use omniroute::snapshot::{Snapshot, Strategy};

/// Longer than any test waits for.
const NEVER: u64 = 60_000;

/// Two targets with one account each, the second one started 50 ms after the first.
async fn hedged(change: impl FnOnce(&mut Snapshot)) -> (Vendor, Vendor, Served) {
    let (one, two) = (Vendor::start().await, Vendor::start().await);
    let setup = Setup::new()
        .provider("one", &one.base_url())
        .provider("two", &two.base_url())
        .connection("one", "a", 1)
        .connection("two", "b", 1)
        .combo("fast", Strategy::Priority, &["one/m1", "two/m2"])
        .change(|s| {
            s.combos[0].options.hedge_delay_ms = Some(50);
            s.combos[0].attempts.per_target = 1;
        });
    (one, two, setup.change(change).start())
}

async fn states(served: &Served) -> [String; 2] {
    [served.connection("a").await["state"].to_string(), served.connection("b").await["state"].to_string()]
}

#[tokio::test]
async fn a_slow_target_is_joined_by_the_next_one_and_blamed_for_nothing() {
    for stream in [false, true] {
        let (one, two, served) = hedged(|_| {}).await;
        one.script("a", [if stream { Reply::chat_stream("a") } else { Reply::chat("a") }.after(NEVER)]);
        let got = if stream { served.chat_stream("fast").await } else { served.chat("fast").await };
        assert_eq!(got.status, 200, "{}", got.text());
        assert_eq!(got.header("x-omniroute-decision"), Some("strategy=Priority; target=two/m2; connection=b; attempts=2"));
        assert_eq!((one.calls().len(), two.calls().len()), (1, 1));
        assert_eq!(states(&served).await, [r#""Active""#; 2]);
        let metrics = served.manage("GET", "/metrics", "").await.text();
        let dropped = metrics.lines().find(|l| l.starts_with("omniroute_attempts_total") && l.contains("cancelled"));
        assert!(dropped.is_some_and(|line| line.contains(r#""a""#) && line.ends_with(" 1")), "{metrics}");
    }
}

#[tokio::test]
async fn the_first_answer_wins_also_when_it_is_that_of_the_slow_one() {
    let (one, two, served) = hedged(|_| {}).await;
    one.script("a", [Reply::chat("a").after(400)]);
    two.script("b", [Reply::chat("b").after(NEVER)]);
    let got = served.chat("fast").await;
    assert_eq!(got.content(), "a");
    assert_eq!(got.header("x-omniroute-decision"), Some("strategy=Priority; target=one/m1; connection=a; attempts=2"));
    assert_eq!(two.calls(), ["b"]);
}

#[tokio::test]
async fn nothing_is_started_beside_a_target_that_answers_or_fails_in_time() {
    let (one, two, served) = hedged(|s| s.combos[0].options.hedge_delay_ms = Some(10_000)).await;
    assert_eq!(served.chat("fast").await.content(), "a");
    assert_eq!(two.calls().len(), 0);
    one.script("a", [Reply::error(500, "broken")]);
    assert_eq!(served.chat("fast").await.content(), "b");
    assert_eq!((one.calls().len(), two.calls().len()), (2, 1));
}

#[tokio::test]
async fn a_failure_of_either_one_is_recorded_and_the_other_goes_on() {
    let (one, two, served) = hedged(|_| {}).await;
    one.script("a", [Reply::chat("a").after(400)]);
    two.script("b", [Reply::error(429, "slow down").header("retry-after", 30)]);
    assert_eq!(served.chat("fast").await.content(), "a");
    assert_eq!(states(&served).await, [r#""Active""#, r#""Cooling""#]);

    let (one, two, served) = hedged(|_| {}).await;
    one.script("a", [Reply::error(429, "slow down").header("retry-after", 30).after(200)]);
    two.script("b", [Reply::chat("b").after(600)]);
    let got = served.chat("fast").await;
    assert_eq!(got.content(), "b");
    assert_eq!(got.header("x-omniroute-decision"), Some("strategy=Priority; target=two/m2; connection=b; attempts=2"));
    assert_eq!(states(&served).await, [r#""Cooling""#, r#""Active""#]);
}

#[tokio::test]
async fn when_both_fail_the_walk_goes_on_behind_them() {
    let (one, two, served) = hedged(|s| {
        let mut third = s.combos[0].targets[0].clone();
        third.name = "third".to_owned();
        if let omniroute::snapshot::TargetKind::Model { model, .. } = &mut third.kind {
            "m3".clone_into(model);
        }
        s.combos[0].targets.push(third);
        s.providers[0].traits.per_model_quota = true;
    })
    .await;
    one.script("a", [Reply::error(429, "slow down").header("retry-after", 30).after(200), Reply::chat("a")]);
    two.script("b", [Reply::error(500, "broken").after(400)]);
    let got = served.chat("fast").await;
    assert_eq!(got.content(), "a");
    assert_eq!(got.header("x-omniroute-decision"), Some("strategy=Priority; target=one/m3; connection=a; attempts=3"));
    assert_eq!((one.calls().len(), two.calls()), (2, vec!["b".to_owned()]));
}

#[tokio::test]
async fn a_busy_target_is_passed_over_and_protected_ones_are_never_joined() {
    let only_the_first: [fn(&mut Snapshot); 4] = [
        |s| s.combos[0].targets[0].fallback_only_on_quota_exhaustion = true,
        |s| s.combos[0].targets[1].fallback_only_on_quota_exhaustion = true,
        |s| s.combos[0].attempts.max = 1,
        |s| s.combos[0].targets.truncate(1),
    ];
    for change in only_the_first {
        let (one, two, served) = hedged(change).await;
        one.script("a", [Reply::chat("a").after(300)]);
        let got = served.chat("fast").await;
        assert_eq!((got.content().as_str(), two.calls().len()), ("a", 0));
        assert!(got.header("x-omniroute-decision").unwrap().ends_with("attempts=1"));
    }
    // Its only slot is taken: the request goes on with what it has.
    let (one, two, served) = hedged(|s| s.connections[1].max_concurrent = 1).await;
    two.script("b", [Reply::chat("b").after(NEVER)]);
    one.script("a", [Reply::chat("a").after(300)]);
    let got = tokio::select! {
        _ = served.chat("two/m2") => panic!("it never answers"),
        got = async {
            two.called(1).await;
            served.chat("fast").await
        } => got,
    };
    assert_eq!((got.content().as_str(), two.calls().len()), ("a", 1));
}

#[tokio::test]
async fn who_asks_for_one_call_gets_one() {
    let (one, two, served) = hedged(|_| {}).await;
    one.script("a", [Reply::chat("a").after(300)]);
    let body = Full::new(Bytes::from_static(br#"{"model":"fast","messages":[{"role":"user","content":"hi"}]}"#));
    let only = request("POST", "/v1/chat/completions", "client").header("x-omniroute-fallback", "none").body(body).unwrap();
    assert_eq!(served.send(only).await.content(), "a");
    assert_eq!(two.calls().len(), 0);
}
