//! Waits in structured JSON fields (8.3 ranks 3–6, decisions 9.5).

use super::super::body::{Body, WaitField};
use super::{Clock, duration, headers, instant};

/// Google RetryInfo, else ErrorInfo's `quotaResetDelay`; the longest of several.
pub(super) fn google(body: &Body<'_>, _clock: Clock) -> Option<u64> {
    let longest = |values: &[std::borrow::Cow<'_, str>]| values.iter().filter_map(|v| duration::value(v)).max();
    longest(&body.retry_info).or_else(|| longest(&body.quota_reset_delay))
}

/// Every other field, in the order of [`WaitField`]; then headers that a gateway copied into the body.
pub(super) fn other(body: &Body<'_>, status: u16, clock: Clock) -> Option<u64> {
    let of = |field| body.waits.iter().filter(move |(f, _)| *f == field).filter_map(|(f, v)| read(*f, v, clock)).max();
    [WaitField::RetryAfter, WaitField::Milliseconds, WaitField::At, WaitField::In]
        .into_iter()
        .find_map(of)
        .or_else(|| headers::parse(body.headers.iter().map(|(n, v)| (n.as_ref(), v.as_ref())), status, clock))
}

fn read(field: WaitField, value: &str, clock: Clock) -> Option<u64> {
    match field {
        WaitField::Milliseconds => duration::number(value).filter(|(_, len)| *len == value.len()).and_then(|(ms, _)| duration::whole(ms)),
        WaitField::At => instant::reset_value(value, clock),
        WaitField::RetryAfter | WaitField::In => match duration::value(value) {
            // A number beyond any wait is an epoch.
            Some(ms) if ms > 10 * super::MAX_WAIT_MS => instant::reset_value(value, clock),
            Some(ms) => Some(ms),
            None => instant::until_text(value, clock),
        },
    }
}
