//! The usage-wall lane of Claude subscriptions on the wire (spec: resilience 13). What the lane takes care of never reaches the classifier:
//! no cooldown, no rotation.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Method, Response};

use super::clock;
use super::config::Account;
use super::metrics::Metrics;
use super::pipeline::Elsewhere;
use super::upstream::{Call, Client, Errand, SendError, UpstreamBody};
use crate::protocol::Endpoint;
use crate::resilience::claude_lane::{LaneContext, LaneDecision, LaneWait, WallResponse};
use crate::resilience::claude_reset::{
    CLAIM_BODY, CLAIM_TIMEOUT_MS, ResetResult, USAGE_PATH, USAGE_TIMEOUT_MS, claim_path, read_claim, read_usage,
};

/// What a request keeps in hand of its time, so that a last answer still gets through.
const RESERVE: Duration = Duration::from_secs(5);

/// Sends the call, and again to the same account as long as its lane says so, within `limit` from now. Without the opt-in, and for a
/// client that asks for one call (`once`): exactly once.
pub(super) async fn send(
    client: &Client,
    account: &Account,
    mut call: Call<'_>,
    once: bool,
    limit: Duration,
    elsewhere: &mut Elsewhere,
    metrics: &Metrics,
) -> Result<Response<UpstreamBody>, SendError> {
    let begun = Instant::now();
    let mut wait = LaneWait::default();
    loop {
        // The guard must not live across an await.
        call.extra = account.cell.claude().and_then(|(lane, options)| lane.request_header(clock::now(), &options));
        let response = elsewhere.during(client.send(&account.upstream, call.clone())).await?;
        if once {
            return Ok(response);
        }
        let left = limit.saturating_sub(RESERVE).saturating_sub(begun.elapsed());
        let wall = Wall { account, response: &response, sent_slow: call.extra.is_some() };
        let delay = match wall.judge(&mut wait, left) {
            Next::Pass => None,
            Next::Again(delay) => Some(delay),
            Next::Claim(organization) => {
                // Rare, and large: boxed, so that other requests carry no room for it.
                let claim = Box::pin(claim(client, account, organization.as_deref(), left));
                let result = elsewhere.during(claim).await;
                metrics.limit_reset(account.cell.name(), label(&result));
                tracing::info!(connection = %account.cell.name(), result = label(&result), "usage wall: the weekly reset of the limit was asked for");
                wall.after_claim(&result)
            }
        };
        let Some(delay) = delay else { return Ok(response) };
        drop(response);
        elsewhere.during(tokio::time::sleep(delay)).await;
    }
}

/// What to do about an answer.
enum Next {
    /// It takes the ordinary path.
    Pass,
    /// The request is sent again after this long.
    Again(Duration),
    /// The reset of the limit is tried first, for this organization.
    Claim(Option<String>),
}

/// One answer, perhaps at the wall.
struct Wall<'a> {
    account: &'a Account,
    response: &'a Response<UpstreamBody>,
    sent_slow: bool,
}

impl Wall<'_> {
    fn headers(&self) -> Vec<(&str, &str)> {
        self.response.headers().iter().filter_map(|(name, value)| Some((name.as_str(), value.to_str().ok()?))).collect()
    }

    fn answer<'a>(&self, headers: &'a [(&'a str, &'a str)]) -> WallResponse<'a> {
        WallResponse { status: self.response.status().as_u16(), headers, sent_slow: self.sent_slow }
    }

    fn judge(&self, wait: &mut LaneWait, left: Duration) -> Next {
        let Some((mut lane, options)) = self.account.cell.claude() else { return Next::Pass };
        let headers = self.headers();
        let ceiling_ms = u64::try_from(left.as_millis()).ok();
        let context = LaneContext { now: clock::now(), jitter: clock::random().mul_add(2.0, -1.0), ceiling_ms };
        match lane.on_response(&options, &self.answer(&headers), wait, &context) {
            LaneDecision::ClaimReset => Next::Claim(options.organization_uuid),
            other => self.told(&other).map_or(Next::Pass, Next::Again),
        }
    }

    /// After how long the request is sent again, now that the claim has a result.
    fn after_claim(&self, result: &ResetResult) -> Option<Duration> {
        let (mut lane, options) = self.account.cell.claude()?;
        let headers = self.headers();
        let decision = lane.on_reset(&options, &self.answer(&headers), result, clock::now());
        self.told(&decision)
    }

    /// Logs a decision; answers after how long the request is sent again.
    fn told(&self, decision: &LaneDecision) -> Option<Duration> {
        let connection = self.account.cell.name();
        match decision {
            LaneDecision::Retry { delay_ms, via } => {
                tracing::info!(%connection, via = via.as_str(), delay_ms, "usage wall: sent again to the same account");
                Some(Duration::from_millis(*delay_ms))
            }
            LaneDecision::Ended { reason } => {
                tracing::info!(%connection, ?reason, "usage wall: the low-priority lane is over");
                None
            }
            LaneDecision::None | LaneDecision::ClaimReset => None,
        }
    }
}

/// Asks the account's own server for the reset, within `left`: first whether there is one, for the claim uses up the one of this week.
async fn claim(client: &Client, account: &Account, organization: Option<&str>, left: Duration) -> ResetResult {
    let Some(organization) = organization else { return ResetResult::Failed };
    let begun = Instant::now();
    let errand = |method, path, body, limit_ms| {
        let limit = Duration::from_millis(limit_ms).min(left.saturating_sub(begun.elapsed()));
        client.errand(&account.upstream, Errand { endpoint: Endpoint::Messages, method, path, body, limit })
    };
    let failed = |error: SendError| {
        tracing::warn!(connection = %account.cell.name(), %error, "usage wall: asking for the reset of the limit");
        ResetResult::Failed
    };
    let offer = match errand(Method::GET, USAGE_PATH, Bytes::new(), USAGE_TIMEOUT_MS).await {
        Ok((status, body)) => read_usage(status, &body),
        Err(error) => Err(failed(error)),
    };
    if let Err(result) = offer {
        return result;
    }
    let (path, body) = (claim_path(organization), Bytes::from_static(CLAIM_BODY.as_bytes()));
    match errand(Method::POST, &path, body, CLAIM_TIMEOUT_MS).await {
        Ok((_, body)) => read_claim(&body),
        Err(error) => failed(error),
    }
}

const fn label(result: &ResetResult) -> &'static str {
    match result {
        ResetResult::Granted => "granted",
        ResetResult::AlreadyUsed { .. } => "already_used",
        ResetResult::NotOffered { .. } => "not_offered",
        ResetResult::Failed => "failed",
    }
}
