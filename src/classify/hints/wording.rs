//! Waits in sentences (8.3 ranks 7–11, W-03). The automaton finds where a clause starts; only then is it read.

use super::super::WaitSource;
use super::super::body::Body;
use super::super::scan::Found;
use super::{Clock, DAY_MS, MAX_WAIT_MS, Wait, duration, instant};

/// What may follow a trigger.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super) enum Follows {
    /// A duration; a bare number is seconds.
    Duration,
    /// A duration with a unit.
    Unit,
    /// An instant.
    Instant,
    /// Either, a bare number is seconds.
    Either,
    /// A duration that stands before the trigger (Chinese).
    Before,
    /// An epoch.
    Epoch,
}

/// A clause that states a wait.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Trigger {
    /// Its words, lower case.
    pub text: &'static str,
    /// What follows.
    pub follows: Follows,
}

const fn t(text: &'static str, follows: Follows) -> Trigger {
    Trigger { text, follows }
}

/// All clauses.
pub(in super::super) static TRIGGERS: &[Trigger] = &[
    t("please retry in ", Follows::Duration),
    t("retry in ", Follows::Duration),
    t("retry after ", Follows::Either),
    t("retry-after: ", Follows::Either),
    t("retry after: ", Follows::Either),
    t("retry at ", Follows::Instant),
    t("again in ", Follows::Duration),
    t("again after ", Follows::Either),
    t("again at ", Follows::Instant),
    t("again on ", Follows::Instant),
    t("wait until ", Follows::Instant),
    t("until ", Follows::Instant),
    t("wait ", Follows::Unit),
    t("wait for ", Follows::Unit),
    t("reset after ", Follows::Either),
    t("resets after ", Follows::Either),
    t("reset in ", Follows::Unit),
    t("resets in ", Follows::Unit),
    t("reset in: ", Follows::Unit),
    t("resets in: ", Follows::Unit),
    t("reset at ", Follows::Instant),
    t("resets at ", Follows::Instant),
    t("reset at: ", Follows::Instant),
    t("resets at: ", Follows::Instant),
    t("reset on ", Follows::Instant),
    t("resets on ", Follows::Instant),
    t("resets ", Follows::Instant),
    t("refreshed at ", Follows::Instant),
    t("refreshes at ", Follows::Instant),
    t("refreshed in ", Follows::Unit),
    t("refreshes in ", Follows::Unit),
    t("renews in ", Follows::Unit),
    t("renews at ", Follows::Instant),
    t("available at ", Follows::Instant),
    t("available in ", Follows::Unit),
    t("available after ", Follows::Either),
    t("limit reached|", Follows::Epoch),
    t("将在", Follows::Either),
    t("将于", Follows::Either),
    t("请在", Follows::Either),
    t("请于", Follows::Either),
    t("请等待", Follows::Unit),
    t("后重试", Follows::Before),
    t("后再试", Follows::Before),
    t("后重置", Follows::Before),
    t("后恢复", Follows::Before),
    t("后刷新", Follows::Before),
    t("后再次尝试", Follows::Before),
];

/// Index of the clause that 8.2 and rank 7 name.
const PLEASE_RETRY: u8 = 0;
/// Bytes after a trigger that are read.
const CLAUSE: usize = 96;

/// Order of the sources; lower wins.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    PleaseRetry,
    First,
    Instant,
    Duration,
    MonthDay,
    Written,
}

/// The wait that the wording states. `durations_first` is the order of weekly texts.
pub(in super::super) fn words(body: &Body<'_>, found: &Found, durations_first: bool, clock: Clock) -> Option<Wait> {
    // In one text the first clause of the best rank; over texts the best rank, then the longest: the order of JSON keys does not matter.
    let mut best: Option<(Rank, u64)> = None;
    let mut here: Option<(u8, Rank, u64)> = None;
    for (piece, end, trigger) in &found.triggers {
        let Some((rank, ms)) = clause(body, *piece, *end, *trigger, durations_first, clock) else { continue };
        here = match here {
            Some((p, r, old)) if p == *piece => Some(if rank < r { (p, rank, ms) } else { (p, r, old) }),
            Some(done) => {
                best = longer(best, done);
                Some((*piece, rank, ms))
            }
            None => Some((*piece, rank, ms)),
        };
    }
    let best = here.map_or(best, |last| longer(best, last));
    best.map(|(_, ms)| Wait { ms, source: WaitSource::Body, typed: false })
}

/// The better of two texts: the lower rank, then the longer wait.
fn longer(best: Option<(Rank, u64)>, (_, rank, ms): (u8, Rank, u64)) -> Option<(Rank, u64)> {
    match best {
        Some((r, old)) if r < rank || (r == rank && old >= ms) => best,
        _ => Some((rank, ms)),
    }
}

/// The wait of `please retry in Ns` alone.
pub(super) fn please_retry(body: &Body<'_>, found: &Found, clock: Clock) -> Option<u64> {
    let mine = found.triggers.iter().filter(|(.., trigger)| *trigger == PLEASE_RETRY);
    mine.filter_map(|(piece, end, trigger)| clause(body, *piece, *end, *trigger, false, clock)).map(|(_, ms)| ms).max()
}

fn clause(body: &Body<'_>, piece: u8, end: u32, trigger: u8, durations_first: bool, clock: Clock) -> Option<(Rank, u64)> {
    let kind = TRIGGERS.get(usize::from(trigger))?;
    let text = body.texts.get(usize::from(piece))?;
    let end = usize::try_from(end).ok()?;
    if kind.follows == Follows::Before {
        let head = text.get(..end.checked_sub(kind.text.len())?)?;
        return before(head).map(|ms| (Rank::Duration, ms.min(MAX_WAIT_MS)));
    }
    let tail = text.get(end..)?;
    let tail = valid(tail.get(..CLAUSE).unwrap_or(tail));
    let tail = tail.trim_start_matches(|c: char| c.is_whitespace() || matches!(c, ':' | '"' | '\'' | '`' | '~' | '='));
    let tail = ["about ", "approximately ", "around ", "another ", "at least "].iter().find_map(|w| tail.strip_prefix(w)).unwrap_or(tail);
    let duration = || {
        let bare = matches!(kind.follows, Follows::Duration | Follows::Either);
        let ms = duration::prefix(tail).map(|(ms, _)| ms).or_else(|| if bare { bare_seconds(tail) } else { None })?;
        let rank = match trigger {
            PLEASE_RETRY => Rank::PleaseRetry,
            _ if durations_first => Rank::First,
            _ => Rank::Duration,
        };
        Some((rank, ms.min(if trigger == PLEASE_RETRY { DAY_MS } else { MAX_WAIT_MS })))
    };
    match kind.follows {
        Follows::Duration | Follows::Unit => duration(),
        Follows::Instant => instant(tail, clock),
        Follows::Either => instant(tail, clock).or_else(duration),
        Follows::Epoch => {
            let digits = tail.len() - tail.trim_start_matches(|c: char| c.is_ascii_digit()).len();
            let epoch = instant::epoch(tail.get(..digits)?.parse().ok()?)?;
            clock.until(epoch).map(|ms| (Rank::Instant, ms.min(MAX_WAIT_MS)))
        }
        Follows::Before => None,
    }
}

/// The valid UTF-8 at the start.
fn valid(bytes: &[u8]) -> &str {
    match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(e) => std::str::from_utf8(bytes.get(..e.valid_up_to()).unwrap_or_default()).unwrap_or_default(),
    }
}

/// An instant in any written form.
fn instant(text: &str, clock: Clock) -> Option<(Rank, u64)> {
    let (rank, at) = if let Some((at, _)) = instant::iso(text, clock) {
        (Rank::Instant, at)
    } else if let Some(at) = instant::month_day(text, clock) {
        (Rank::MonthDay, at)
    } else if let Some(at) = instant::english_date(text, clock) {
        (Rank::Written, at)
    } else if let Some(at) = text.get(..29).and_then(instant::http_date) {
        (Rank::Instant, at)
    } else {
        (Rank::Written, instant::time_of_day(text, clock)?)
    };
    clock.until(at).map(|ms| (rank, ms.min(MAX_WAIT_MS)))
}

/// A number without a unit at the end of a clause: seconds.
fn bare_seconds(text: &str) -> Option<u64> {
    let (seconds, len) = duration::number(text)?;
    let rest = text.get(len..)?;
    let ends = rest.is_empty() || rest.starts_with([',', ';', ')', ']', '}', '"', '\n', '\r']) || rest == "." || rest.starts_with(". ");
    if ends && seconds <= 2_592_000.0 { duration::whole(seconds * 1_000.0) } else { None }
}

/// A duration at the end of `head` (`5 分钟`).
fn before(head: &[u8]) -> Option<u64> {
    let mut start = head.len().saturating_sub(48);
    while start < head.len() && head.get(start).is_some_and(|b| b & 0xC0 == 0x80) {
        start += 1;
    }
    let text = std::str::from_utf8(head.get(start..)?).ok()?.trim_end();
    let mut from = text
        .char_indices()
        .filter(|(i, c)| c.is_ascii_digit() && !text.get(..*i).is_some_and(|t| t.ends_with(|p: char| p.is_ascii_digit() || p == '.')));
    from.find_map(|(i, _)| duration::prefix(text.get(i..)?).filter(|(_, len)| i + len == text.len()).map(|(ms, _)| ms))
}
