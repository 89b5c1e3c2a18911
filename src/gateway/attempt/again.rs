//! Sending the request of a broken stream again: to the same account, through the same admission as the first time (decisions 5.4).

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::HeaderMap;

use super::{SharedPermit, gates, send};
use crate::gateway::admission::Buffered;
use crate::gateway::clock;
use crate::gateway::config::{Account, Loaded};
use crate::gateway::metrics::RecoveryKind;
use crate::gateway::pipeline::{Context, Elsewhere, Shared};
use crate::gateway::queue::Pass;
use crate::gateway::relay::{Answer, Recovered, Resume, ResumeError};
use crate::gateway::upstream::{Call, UpstreamBody};
use crate::protocol::resume::ask_for_rest;
use crate::protocol::scan::RequestHead;
use crate::routing::Dispatch;

/// The slots of an attempt. Shared by those who may have to give them back and stand in the queue again.
#[derive(Clone, Debug, Default)]
pub(in crate::gateway) struct Slot(Option<Arc<Mutex<Option<Pass>>>>);

impl Slot {
    /// Holds a pass. `again`: it may be exchanged for another one.
    pub fn new(pass: Option<Pass>, again: bool) -> Self {
        Self((again || pass.is_some()).then(|| Arc::new(Mutex::new(pass))))
    }

    fn exchange(&self, pass: Option<Pass>) {
        let old = self.0.as_ref().and_then(|slot| std::mem::replace(&mut *slot.lock().unwrap_or_else(PoisonError::into_inner), pass));
        // Whoever gets the slot takes locks of its own.
        drop(old);
    }
}

/// What an attempt needs to be made again.
#[derive(Debug)]
pub(super) struct Again {
    pub shared: Arc<Shared>,
    /// The configuration of the account, and its position there.
    pub loaded: Arc<Loaded>,
    pub account: usize,
    pub dispatch: Dispatch,
    pub permit: SharedPermit,
    pub slot: Slot,
}

impl Again {
    pub fn account(&self) -> Option<&Account> {
        self.loaded.accounts.get(self.account)
    }

    /// Asks every gate anew, as if it were the first time: what rests by now is left alone, and slots are waited for with nothing in hand.
    pub async fn admitted(&self) -> Result<(), String> {
        let account = self.account().ok_or("the connection is gone")?;
        let ledger = self.shared.gateway().ledger();
        if !self.dispatch.ignores_rest {
            ledger
                .check(&account.cell, Some(&self.dispatch.model), clock::now())
                .or_else(|excluded| if self.permit.is_probe() { Ok(()) } else { Err(excluded) })
                .map_err(|_| "the connection rests by now")?;
        }
        if let Some(gated) = gates(&self.shared, account, &self.dispatch, clock::now()) {
            self.slot.exchange(None);
            let pass = gated.queue.pass(&gated.wants, gated.patience).await.map_err(|error| error.to_string())?;
            self.slot.exchange(Some(pass));
        }
        // The probe of a half-open breaker stays what it is.
        if !self.permit.is_probe() {
            let permit = ledger.begin(&account.cell, clock::now()).map_err(|_| "the provider's breaker is open by now")?;
            self.permit.replace(permit.carries(account.credential));
        }
        Ok(())
    }

    /// Says in the log and in the metrics what became of an attempt to recover the stream.
    pub fn settled(&self, kind: RecoveryKind, outcome: Recovered) {
        self.shared.gateway().metrics().stream_recovery(kind, outcome);
        tracing::info!(
            connection = %self.dispatch.connection.name, dispatched_to = %self.dispatch.label, kind = kind.as_str(), ?outcome,
            "a broken stream was asked for again"
        );
    }
}

/// The way to continue the text of an answer, kept as long as the answer runs.
pub(super) struct Rest {
    again: Arc<Again>,
    headers: HeaderMap,
    head: RequestHead,
    body: bytes::Bytes,
    response_start: Duration,
    _room: Buffered,
}

impl Rest {
    /// Keeps what the request for the rest needs; `None` when there is no room for it.
    pub fn new(again: &Arc<Again>, context: &Context, response_start: Duration) -> Option<Arc<Self>> {
        let room = context.shared.gateway().buffers().reserve(context.body.len() as u64)?;
        Some(Arc::new(Self {
            again: Arc::clone(again),
            headers: context.headers.clone(),
            head: context.head.clone(),
            body: context.body.clone(),
            response_start,
            _room: room,
        }))
    }

    async fn ask(&self, text: &str) -> Result<(HeaderMap, UpstreamBody), ResumeError> {
        let refused = |message: &str| ResumeError::Refused(message.to_owned());
        let body = ask_for_rest(&self.body, &self.head, &self.again.dispatch.model, text)
            .ok_or_else(|| refused("the answer to this kind of request cannot be continued"))?;
        self.again.admitted().await.map_err(ResumeError::Refused)?;
        let account = self.again.account().ok_or_else(|| refused("the connection is gone"))?;
        let call = Call {
            endpoint: self.again.shared.endpoint,
            headers: &self.headers,
            body: bytes::Bytes::from(body).into(),
            response_start: self.response_start,
            extra: None,
        };
        // The gateway's own time was counted when the answer began.
        let mut elsewhere = Elsewhere::default();
        let response = send(&self.again.shared, account, &self.again.dispatch, call, false, &mut elsewhere)
            .await
            .map_err(|error| ResumeError::Broken(error.message))?;
        let (parts, body) = response.into_parts();
        let content_type = parts.headers.get(http::header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        match parts.status.as_u16() {
            200..300 if content_type.contains("json") => Err(refused("the provider answered with no stream")),
            200..300 => Ok((parts.headers, body)),
            status @ 500.. => Err(ResumeError::Broken(format!("the provider answered with status {status}"))),
            status => Err(ResumeError::Refused(format!("the provider answered with status {status}"))),
        }
    }
}

impl Resume<UpstreamBody> for Rest {
    fn resume(self: Arc<Self>, text: String) -> Answer<UpstreamBody> {
        Box::pin(async move { self.ask(&text).await })
    }

    fn settled(&self, outcome: Recovered) {
        self.again.settled(RecoveryKind::Continue, outcome);
    }
}
