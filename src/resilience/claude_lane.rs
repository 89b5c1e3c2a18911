//! The usage wall of a Claude subscription (spec: resilience 13): going on in the low-priority lane, and the weekly limit reset, as a
//! state machine of one connection. Pure: the gateway sends what it answers and tells it what came back.

use std::ops::RangeInclusive;

use super::claude_reset::{LimitReset, ResetResult};
use crate::api::time::EpochMs;
use crate::snapshot::ClaudeOptions;

/// Prefix of the response headers.
const PREFIX: &str = "anthropic-ratelimit-unified-";

/// The request header that asks for the lane.
pub const SLOW_HEADER: (&str, &str) = ("anthropic-usage-limit", "slow");

const RETRY_AFTER_DEFAULT_MS: u64 = 20_000;
const RETRY_AFTER_MS: RangeInclusive<u64> = 5_000..=600_000;
const MAX_WAIT_DEFAULT_MS: u64 = 1_200_000;
const MAX_WAIT_MS: RangeInclusive<u64> = 60_000..=21_600_000;
/// Jitter of waits inside the lane.
const JITTER: f64 = 0.3;
/// The lane outlives the announced reset by this much.
const RESET_GRACE_S: i64 = 60;
/// A 5-hour window that moved by this much is another one.
const ROLLOVER_S: i64 = 60;
/// After giving up waiting the lane is not taken again for this long.
const COOL_OFF_MS: u64 = 600_000;
/// A spent budget is remembered at most this long.
const BUDGET_MEMORY_S: i64 = 8 * 86_400;

/// One answer of the upstream, as the lane sees it.
#[derive(Clone, Copy, Debug)]
pub struct WallResponse<'a> {
    /// HTTP status.
    pub status: u16,
    /// Response headers, names in any case.
    pub headers: &'a [(&'a str, &'a str)],
    /// Whether the request carried [`SLOW_HEADER`].
    pub sent_slow: bool,
}

impl<'a> WallResponse<'a> {
    fn unified(&self, name: &str) -> Option<&'a str> {
        let matches = |header: &str| {
            header.len() == PREFIX.len() + name.len()
                && header.get(..PREFIX.len()).is_some_and(|p| p.eq_ignore_ascii_case(PREFIX))
                && header.get(PREFIX.len()..).is_some_and(|n| n.eq_ignore_ascii_case(name))
        };
        self.headers.iter().find(|(header, _)| matches(header)).map(|(_, value)| value.trim())
    }

    fn seconds(&self, name: &str) -> Option<i64> {
        self.unified(name)?.parse().ok()
    }

    fn has_unified(&self) -> bool {
        self.headers.iter().any(|(name, _)| name.get(..PREFIX.len()).is_some_and(|p| p.eq_ignore_ascii_case(PREFIX)))
    }

    /// True at the wall: the account is rejected, or the lane is offered.
    #[must_use]
    pub fn is_wall(&self) -> bool {
        let rejected = self.unified("status").is_some_and(|s| s.eq_ignore_ascii_case("rejected"));
        self.status == 429 && (rejected || self.unified("slow-offer").is_some())
    }

    /// True when the wall is that of the 5-hour window, the only one that a reset opens.
    fn is_five_hour(&self) -> bool {
        self.unified("representative-claim").is_none_or(|claim| claim.eq_ignore_ascii_case("five_hour"))
    }
}

/// How a request goes on after an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LaneDecision {
    /// The lane has nothing to say: the answer takes the ordinary path.
    None,
    /// Ask for the limit reset first, then call [`ClaudeLane::on_reset`] with its result and this answer.
    ClaimReset,
    /// Send it again to the same account.
    Retry {
        /// After this many milliseconds.
        delay_ms: u64,
        /// Why.
        via: RetryVia,
    },
    /// The lane is over; the answer takes the ordinary path.
    Ended {
        /// Why.
        reason: EndReason,
    },
}

/// Why a request is sent again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RetryVia {
    /// The limit was reset: full speed.
    LimitReset,
    /// The lane was opened, or is open.
    LowPriorityAccepted,
    /// No slot free in the lane.
    SlotBusy,
    /// The upstream is overloaded.
    CapacityBusy,
}

impl RetryVia {
    /// The name of the specification.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::LimitReset => "limit-reset",
            Self::LowPriorityAccepted => "low-priority-accepted",
            Self::SlotBusy => "slot-busy",
            Self::CapacityBusy => "capacity-busy",
        }
    }
}

/// Why a lane ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EndReason {
    /// Waited as long as allowed.
    MaxWait,
    /// The weekly limit is reached.
    Weekly,
    /// The budget of the lane is spent.
    Budget,
    /// The vendor switched it off.
    Off,
    /// The account may not use it.
    Ineligible,
    /// Paid overage covers the wall now.
    ExtraUsage,
    /// The 5-hour window is another one.
    Reset,
    /// Another window closed.
    Wall,
    /// The operator switched it off.
    Operator,
}

impl EndReason {
    /// The name of the specification.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::MaxWait => "max_wait",
            Self::Weekly => "weekly",
            Self::Budget => "budget",
            Self::Off => "off",
            Self::Ineligible => "ineligible",
            Self::ExtraUsage => "extra_usage",
            Self::Reset => "reset",
            Self::Wall => "wall",
            Self::Operator => "operator",
        }
    }
}

/// How long one request has been waiting inside the lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LaneWait {
    since: Option<EpochMs>,
    attempts: u32,
    /// It was sent again because a limit had been reset.
    after_reset: bool,
}

impl LaneWait {
    /// Retries so far.
    #[must_use]
    pub const fn attempts(&self) -> u32 {
        self.attempts
    }
}

/// What an answer is judged by.
#[derive(Clone, Copy, Debug)]
pub struct LaneContext {
    /// Now.
    pub now: EpochMs,
    /// −1..=1.
    pub jitter: f64,
    /// Longest wait of this request, milliseconds (what is left of its start timeout, less 5 s); `None` = the lane's own limit only.
    pub ceiling_ms: Option<u64>,
}

/// The lane of one connection.
#[derive(Clone, PartialEq, Debug)]
pub struct ClaudeLane {
    /// Reset of the window at whose wall it opened, epoch seconds; `None` = idle.
    resets_at_s: Option<i64>,
    retry_after_ms: u64,
    max_wait_ms: u64,
    served: u64,
    budget_spent_until_s: i64,
    cooling_off_until: EpochMs,
    reset: LimitReset,
}

impl Default for ClaudeLane {
    fn default() -> Self {
        Self {
            resets_at_s: None,
            retry_after_ms: RETRY_AFTER_DEFAULT_MS,
            max_wait_ms: MAX_WAIT_DEFAULT_MS,
            served: 0,
            budget_spent_until_s: 0,
            cooling_off_until: EpochMs(0),
            reset: LimitReset::default(),
        }
    }
}

impl ClaudeLane {
    /// A lane that opened at the wall of the window that ends at `resets_at_s` (epoch seconds).
    #[must_use]
    pub fn opened(resets_at_s: i64) -> Self {
        Self { resets_at_s: Some(resets_at_s), ..Self::default() }
    }

    /// Whether requests go through the lane.
    #[must_use]
    pub fn is_active(&self, now: EpochMs) -> bool {
        self.active_until_s().is_some_and(|until| now.0 < until.saturating_mul(1_000))
    }

    /// Until when it lasts, epoch seconds: the announced reset and a little more.
    #[must_use]
    pub fn active_until_s(&self) -> Option<i64> {
        self.resets_at_s.map(|reset| reset.saturating_add(RESET_GRACE_S))
    }

    /// The header that a request must carry now, if any.
    #[must_use]
    pub fn request_header(&self, now: EpochMs, options: &ClaudeOptions) -> Option<(&'static str, &'static str)> {
        (options.low_priority_mode && self.is_active(now)).then_some(SLOW_HEADER)
    }

    /// Requests that the lane served.
    #[must_use]
    pub const fn requests_served(&self) -> u64 {
        self.served
    }

    /// Judges one answer.
    pub fn on_response(
        &mut self,
        options: &ClaudeOptions,
        response: &WallResponse<'_>,
        wait: &mut LaneWait,
        context: &LaneContext,
    ) -> LaneDecision {
        let active = self.is_active(context.now);
        if self.resets_at_s.is_some() && !active {
            self.resets_at_s = None;
        }
        if active && !options.low_priority_mode {
            return self.end(EndReason::Operator);
        }
        match (active, response.sent_slow) {
            (true, true) => self.observe(response, wait, context),
            (true, false) if response.is_wall() => LaneDecision::Retry { delay_ms: 0, via: RetryVia::LowPriorityAccepted },
            (true, false) => LaneDecision::None,
            (false, _) => self.at_wall(options, response, wait, context.now),
        }
    }

    /// Goes on after a claim of the limit reset; `response` is the answer that led to it.
    pub fn on_reset(&mut self, options: &ClaudeOptions, response: &WallResponse<'_>, result: &ResetResult, now: EpochMs) -> LaneDecision {
        if self.reset.finish(result, now) {
            self.resets_at_s = None;
            return LaneDecision::Retry { delay_ms: 0, via: RetryVia::LimitReset };
        }
        self.accept(options, response, now)
    }

    /// The first answer at the wall: the reset is tried before the lane.
    fn at_wall(&mut self, options: &ClaudeOptions, response: &WallResponse<'_>, wait: &mut LaneWait, now: EpochMs) -> LaneDecision {
        if !response.is_wall() {
            return LaneDecision::None;
        }
        if options.auto_limit_reset && response.is_five_hour() {
            if self.reset.was_recent(now) {
                // Once: whoever still meets the wall has nothing from that reset.
                if !std::mem::replace(&mut wait.after_reset, true) {
                    return LaneDecision::Retry { delay_ms: 0, via: RetryVia::LimitReset };
                }
            } else if self.reset.start(now) {
                return LaneDecision::ClaimReset;
            }
        }
        self.accept(options, response, now)
    }

    /// Takes the offer of the lane, if it is one and nothing speaks against it.
    fn accept(&mut self, options: &ClaudeOptions, response: &WallResponse<'_>, now: EpochMs) -> LaneDecision {
        let offered = response.unified("slow-offer").is_some_and(|offer| offer.eq_ignore_ascii_case("treatment"));
        let reset = response.seconds("reset").or_else(|| response.seconds("5h-reset")).filter(|s| s.saturating_mul(1_000) > now.0);
        let free = self.budget_spent_until_s.saturating_mul(1_000) <= now.0 && self.cooling_off_until <= now;
        let (true, true, Some(reset)) = (options.low_priority_mode && offered, free, reset) else { return LaneDecision::None };
        self.resets_at_s = Some(reset);
        self.served = 0;
        self.retry_after_ms = RETRY_AFTER_DEFAULT_MS;
        self.max_wait_ms = MAX_WAIT_DEFAULT_MS;
        self.read_hints(response);
        LaneDecision::Retry { delay_ms: 0, via: RetryVia::LowPriorityAccepted }
    }

    /// An answer to a request that went through the lane.
    fn observe(&mut self, response: &WallResponse<'_>, wait: &mut LaneWait, context: &LaneContext) -> LaneDecision {
        self.read_hints(response);
        let slow_status = response.unified("slow-status").map(str::to_ascii_lowercase);
        let overage = response.unified("overage-in-use").is_some_and(|v| v.eq_ignore_ascii_case("true"));
        match slow_status.as_deref() {
            Some("ineligible") if overage => return self.end(EndReason::ExtraUsage),
            Some("ineligible") => return self.end(EndReason::Ineligible),
            Some("weekly_limit") => return self.end(EndReason::Weekly),
            Some("budget_exhausted") => return self.spend_budget(response, context.now),
            Some("off") => return self.end(EndReason::Off),
            _ => {}
        }
        if self.rolled_over(response) {
            return self.end(EndReason::Reset);
        }
        match (response.status, slow_status.as_deref()) {
            (429, Some("slot_busy")) => self.wait(RetryVia::SlotBusy, wait, context),
            (529, None | Some("active")) => self.wait(RetryVia::CapacityBusy, wait, context),
            (200..=299, Some("active" | "not_needed")) => {
                self.served = self.served.saturating_add(1);
                LaneDecision::None
            }
            (429, None) if response.has_unified() => self.end(EndReason::Wall),
            _ => LaneDecision::None,
        }
    }

    /// One more wait, as long as the lane and the request allow.
    fn wait(&mut self, via: RetryVia, wait: &mut LaneWait, context: &LaneContext) -> LaneDecision {
        let since = *wait.since.get_or_insert(context.now);
        let limit = self.max_wait_ms.min(context.ceiling_ms.unwrap_or(u64::MAX));
        let left = limit.saturating_sub(context.now.since(since));
        if left == 0 {
            self.cooling_off_until = context.now.plus(COOL_OFF_MS);
            return self.end(EndReason::MaxWait);
        }
        wait.attempts = wait.attempts.saturating_add(1);
        LaneDecision::Retry { delay_ms: spread_ms(self.retry_after_ms, context.jitter).min(left), via }
    }

    fn read_hints(&mut self, response: &WallResponse<'_>) {
        let clamped = |name, range: &RangeInclusive<u64>| {
            let ms = u64::try_from(response.seconds(name)?).ok()?.saturating_mul(1_000);
            Some(ms.clamp(*range.start(), *range.end()))
        };
        self.retry_after_ms = clamped("slow-retry-after", &RETRY_AFTER_MS).unwrap_or(self.retry_after_ms);
        self.max_wait_ms = clamped("slow-max-wait", &MAX_WAIT_MS).unwrap_or(self.max_wait_ms);
    }

    fn rolled_over(&self, response: &WallResponse<'_>) -> bool {
        let (Some(known), Some(announced)) = (self.resets_at_s, response.seconds("5h-reset")) else { return false };
        announced.saturating_sub(known) >= ROLLOVER_S
    }

    fn spend_budget(&mut self, response: &WallResponse<'_>, now: EpochMs) -> LaneDecision {
        let latest = now.0 / 1_000 + BUDGET_MEMORY_S;
        self.budget_spent_until_s = response.seconds("slow-budget-reset").unwrap_or(latest).min(latest);
        self.end(EndReason::Budget)
    }

    const fn end(&mut self, reason: EndReason) -> LaneDecision {
        self.resets_at_s = None;
        LaneDecision::Ended { reason }
    }
}

#[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)] // at most 600 s, and never negative
fn spread_ms(ms: u64, jitter: f64) -> u64 {
    let jitter = if jitter.is_finite() { jitter.clamp(-1.0, 1.0) } else { 0.0 };
    (ms as f64 * JITTER.mul_add(jitter, 1.0)).round() as u64
}
