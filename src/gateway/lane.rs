//! The usage-wall lane of Claude subscriptions on the wire (spec: resilience 13). What the lane takes care of never reaches the classifier:
//! no cooldown, no rotation.

use std::time::{Duration, Instant};

use http::Response;

use super::clock;
use super::config::Account;
use super::pipeline::Elsewhere;
use super::upstream::{Call, Client, SendError, UpstreamBody};
use crate::resilience::claude_lane::{LaneContext, LaneDecision, LaneWait, WallResponse};

/// What a request keeps in hand of its time, so that a last answer still gets through.
const RESERVE: Duration = Duration::from_secs(5);

/// Sends the call, and again to the same account as long as its lane says so, within `limit` from now. Without the opt-in: exactly once.
pub(super) async fn send(
    client: &Client,
    account: &Account,
    mut call: Call<'_>,
    limit: Duration,
    elsewhere: &mut Elsewhere,
) -> Result<Response<UpstreamBody>, SendError> {
    let begun = Instant::now();
    let mut wait = LaneWait::default();
    loop {
        // The guard must not live across an await.
        call.extra = account.cell.claude().and_then(|(lane, options)| lane.request_header(clock::now(), &options));
        let response = elsewhere.during(client.send(&account.upstream, call.clone())).await?;
        let left = limit.saturating_sub(RESERVE).saturating_sub(begun.elapsed());
        let Some(delay) = again(account, &response, call.extra.is_some(), &mut wait, left) else { return Ok(response) };
        drop(response);
        elsewhere.during(tokio::time::sleep(delay)).await;
    }
}

/// After how long the request is to be sent again; `None` = the answer takes the ordinary path.
fn again(account: &Account, response: &Response<UpstreamBody>, sent_slow: bool, wait: &mut LaneWait, left: Duration) -> Option<Duration> {
    let (mut lane, options) = account.cell.claude()?;
    let headers: Vec<(&str, &str)> =
        response.headers().iter().filter_map(|(name, value)| Some((name.as_str(), value.to_str().ok()?))).collect();
    let answer = WallResponse { status: response.status().as_u16(), headers: &headers, sent_slow };
    let ceiling_ms = u64::try_from(left.as_millis()).ok();
    let context = LaneContext { now: clock::now(), jitter: clock::random().mul_add(2.0, -1.0), ceiling_ms };
    match lane.on_response(&options, &answer, wait, &context) {
        LaneDecision::Retry { delay_ms, via } => {
            tracing::info!(connection = %account.cell.name(), via = via.as_str(), delay_ms, "usage wall: sent again to the same account");
            Some(Duration::from_millis(delay_ms))
        }
        LaneDecision::Ended { reason } => {
            tracing::info!(connection = %account.cell.name(), ?reason, "usage wall: the low-priority lane is over");
            None
        }
        // The compiler refuses `claude.autoLimitReset`, so nobody can have asked for a reset.
        LaneDecision::None | LaneDecision::ClaimReset => None,
    }
}
