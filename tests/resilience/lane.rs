//! The usage-wall lane over several answers: waits, ceilings, cool-off, budgets, siblings (spec: resilience 13).

use omniroute::api::time::EpochMs;
use omniroute::resilience::claude_lane::{ClaudeLane, EndReason, LaneContext, LaneDecision, LaneWait, RetryVia, SLOW_HEADER, WallResponse};
use omniroute::resilience::claude_reset::ResetResult;
use omniroute::snapshot::ClaudeOptions;

const NOW: EpochMs = EpochMs(1_800_000_000_000);
const RESET: &str = "1800003600";
const WALL: &[(&str, &str)] = &[
    ("anthropic-ratelimit-unified-status", "rejected"),
    ("anthropic-ratelimit-unified-reset", RESET),
    ("anthropic-ratelimit-unified-slow-offer", "treatment"),
];
const BUSY: &[(&str, &str)] = &[("anthropic-ratelimit-unified-slow-status", "slot_busy")];
const LANE: ClaudeOptions = ClaudeOptions { low_priority_mode: true, auto_limit_reset: false, organization_uuid: None };
const BOTH: ClaudeOptions = ClaudeOptions { low_priority_mode: true, auto_limit_reset: true, organization_uuid: None };

fn context(now: EpochMs) -> LaneContext {
    LaneContext { now, jitter: 0.0, ceiling_ms: None }
}

fn answer(status: u16, headers: &'static [(&'static str, &'static str)], sent_slow: bool) -> WallResponse<'static> {
    WallResponse { status, headers, sent_slow }
}

fn accepted() -> LaneDecision {
    LaneDecision::Retry { delay_ms: 0, via: RetryVia::LowPriorityAccepted }
}

/// A lane that was accepted at the wall.
fn open() -> ClaudeLane {
    let mut lane = ClaudeLane::default();
    assert_eq!(lane.on_response(&LANE, &answer(429, WALL, false), &mut LaneWait::default(), &context(NOW)), accepted());
    lane
}

#[test]
fn the_header_is_sent_only_while_the_lane_is_open() {
    assert_eq!(ClaudeLane::default().request_header(NOW, &LANE), None, "nothing before a first wall");
    let lane = open();
    assert_eq!(lane.request_header(NOW, &LANE), Some(SLOW_HEADER));
    assert_eq!(lane.request_header(NOW, &ClaudeOptions::default()), None);
    let end = EpochMs(1_800_003_660_000);
    assert!(lane.is_active(EpochMs(end.0 - 1)) && !lane.is_active(end), "the reset and a minute");
}

#[test]
fn a_busy_slot_is_waited_for_until_the_longest_wait_and_then_left_alone() {
    let mut lane = open();
    let mut wait = LaneWait::default();
    let busy = answer(429, BUSY, true);
    let first = lane.on_response(&LANE, &busy, &mut wait, &LaneContext { jitter: 1.0, ..context(NOW) });
    assert_eq!(first, LaneDecision::Retry { delay_ms: 26_000, via: RetryVia::SlotBusy });
    let second = lane.on_response(&LANE, &busy, &mut wait, &LaneContext { jitter: -1.0, ..context(NOW.plus(26_000)) });
    assert_eq!((second, wait.attempts()), (LaneDecision::Retry { delay_ms: 14_000, via: RetryVia::SlotBusy }, 2));
    let last = lane.on_response(&LANE, &busy, &mut wait, &context(NOW.plus(1_190_000)));
    assert_eq!(last, LaneDecision::Retry { delay_ms: 10_000, via: RetryVia::SlotBusy }, "never beyond the longest wait");
    let late = NOW.plus(1_200_000);
    assert_eq!(lane.on_response(&LANE, &busy, &mut wait, &context(late)), LaneDecision::Ended { reason: EndReason::MaxWait });
    let wall = answer(429, WALL, false);
    let again = |lane: &mut ClaudeLane, after: u64| lane.on_response(&LANE, &wall, &mut LaneWait::default(), &context(late.plus(after)));
    assert_eq!(again(&mut lane, 599_999), LaneDecision::None, "cooling off");
    assert_eq!(again(&mut lane, 600_000), accepted());
}

#[test]
fn the_requests_own_ceiling_ends_the_wait_before_its_timeout_does() {
    let mut lane = open();
    let mut wait = LaneWait::default();
    let busy = answer(529, &[], true);
    let ceiling = |now| LaneContext { ceiling_ms: Some(8_000), ..context(now) };
    let first = lane.on_response(&LANE, &busy, &mut wait, &ceiling(NOW));
    assert_eq!(first, LaneDecision::Retry { delay_ms: 8_000, via: RetryVia::CapacityBusy });
    let second = lane.on_response(&LANE, &busy, &mut wait, &ceiling(NOW.plus(8_000)));
    assert_eq!(second, LaneDecision::Ended { reason: EndReason::MaxWait });
}

#[test]
fn announced_waits_are_held_inside_their_bounds() {
    const HINTS: &[(&str, &str)] = &[
        ("anthropic-ratelimit-unified-slow-status", "slot_busy"),
        ("anthropic-ratelimit-unified-slow-retry-after", "1"),
        ("anthropic-ratelimit-unified-slow-max-wait", "1"),
    ];
    let mut lane = open();
    let mut wait = LaneWait::default();
    let busy = answer(429, HINTS, true);
    let first = lane.on_response(&LANE, &busy, &mut wait, &context(NOW));
    assert_eq!(first, LaneDecision::Retry { delay_ms: 5_000, via: RetryVia::SlotBusy });
    assert!(matches!(lane.on_response(&LANE, &busy, &mut wait, &context(NOW.plus(59_999))), LaneDecision::Retry { .. }));
    let end = lane.on_response(&LANE, &busy, &mut wait, &context(NOW.plus(60_000)));
    assert_eq!(end, LaneDecision::Ended { reason: EndReason::MaxWait });
}

#[test]
fn a_spent_budget_is_remembered_until_its_announced_reset() {
    const SPENT: &[(&str, &str)] =
        &[("anthropic-ratelimit-unified-slow-status", "budget_exhausted"), ("anthropic-ratelimit-unified-slow-budget-reset", "1800001000")];
    let mut lane = open();
    let ended = lane.on_response(&LANE, &answer(429, SPENT, true), &mut LaneWait::default(), &context(NOW));
    assert_eq!(ended, LaneDecision::Ended { reason: EndReason::Budget });
    let wall = answer(429, WALL, false);
    for (seconds, decision) in [(999, LaneDecision::None), (1_000, accepted())] {
        let now = NOW.plus(seconds * 1_000);
        assert_eq!(lane.on_response(&LANE, &wall, &mut LaneWait::default(), &context(now)), decision, "{seconds}");
    }
}

#[test]
fn one_request_claims_the_reset_and_its_siblings_profit() {
    let mut lane = ClaudeLane::default();
    let wall = answer(429, WALL, false);
    let judge = |lane: &mut ClaudeLane, now| lane.on_response(&BOTH, &wall, &mut LaneWait::default(), &context(now));
    assert_eq!(judge(&mut lane, NOW), LaneDecision::ClaimReset);
    assert_eq!(judge(&mut lane, NOW), accepted(), "while the claim runs, the lane serves");
    let full_speed = LaneDecision::Retry { delay_ms: 0, via: RetryVia::LimitReset };
    assert_eq!(lane.on_reset(&BOTH, &wall, &ResetResult::Granted, NOW.plus(500)), full_speed);
    assert!(!lane.is_active(NOW.plus(500)), "full speed needs no lane");
    assert_eq!(judge(&mut lane, NOW.plus(30_000)), full_speed, "a sibling's wall is answered by the same reset");
    assert_eq!(judge(&mut lane, NOW.plus(70_000)), LaneDecision::ClaimReset);
    let used = ResetResult::AlreadyUsed { next: None };
    assert_eq!(lane.on_reset(&BOTH, &wall, &used, NOW.plus(70_000)), accepted());
}

#[test]
fn a_wall_that_stands_after_its_reset_is_not_run_against() {
    let mut lane = ClaudeLane::default();
    let (wall, mut wait) = (answer(429, WALL, false), LaneWait::default());
    let only_reset = ClaudeOptions { low_priority_mode: false, ..BOTH };
    assert_eq!(lane.on_response(&only_reset, &wall, &mut wait, &context(NOW)), LaneDecision::ClaimReset);
    lane.on_reset(&only_reset, &wall, &ResetResult::Granted, NOW);
    let full_speed = LaneDecision::Retry { delay_ms: 0, via: RetryVia::LimitReset };
    assert_eq!(lane.on_response(&only_reset, &wall, &mut wait, &context(NOW.plus(100))), full_speed);
    assert_eq!(lane.on_response(&only_reset, &wall, &mut wait, &context(NOW.plus(200))), LaneDecision::None);
}

#[test]
fn a_lane_that_the_operator_left_is_ended_by_the_next_answer() {
    let mut lane = open();
    let off = ClaudeOptions::default();
    let ended = lane.on_response(&off, &answer(200, &[], true), &mut LaneWait::default(), &context(NOW));
    assert_eq!(ended, LaneDecision::Ended { reason: EndReason::Operator });
    assert_eq!(lane.on_response(&off, &answer(429, WALL, false), &mut LaneWait::default(), &context(NOW)), LaneDecision::None);
}
