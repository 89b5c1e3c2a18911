//! Requests that become several calls: a panel with a judge (`Fusion`), steps that work on one another's answers (`Pipeline`). Each call is
//! walked by the engine like a request of its own, with the combo's limits and one budget for all; what is here decides what is asked, and
//! reads what comes back. Everything runs inside the client's request: when the client goes away, or an answer is not needed any more, its
//! call is dropped.

mod fusion;
pub(super) mod hear;
mod pipeline;

use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;

use super::admission::Buffered;
use super::answer::Refusal;
use super::engine::Engine;
use super::pipeline::{Clock, Context, Purpose, Shared, needs, unreadable};
use super::service::Answered;
use super::{ending, ingest};
use crate::protocol::conversation::Conversation;
use crate::protocol::scan::{RequestHead, scan_request};
use crate::routing::{Budget, Inner, Part, Request, Resolved, TOTAL_CEILING_MS, Unit, UnitKind};
use crate::snapshot::{Combo, Strategy};

/// Composed combos inside one another; the compiler refuses cycles, this bounds what comes in by hand.
const MAX_DEPTH: u32 = 10;

/// The combo that answers a request with several calls, if it is one. What has no conversation (embeddings, counting), and a request for
/// exactly one call, goes to the first target that can serve.
pub(super) fn composed(shared: &Shared, resolved: &Resolved, request: &Request) -> Option<usize> {
    let Resolved::Combo(index) = resolved else { return None };
    let combo = shared.loaded.snapshot.combos.get(*index)?;
    (combo.strategy.is_composed() && shared.endpoint.may_stream() && !request.single_call).then_some(*index)
}

/// Answers a composed request.
pub(super) async fn run(context: Context, combo: usize, request: Request, times: Clock) -> Answered {
    let shared = Arc::clone(&context.shared);
    let Some(definition) = shared.loaded.snapshot.combos.get(combo) else {
        return refuse(&shared, Refusal::new(404, "model_not_found", "the combo is gone").hopeless());
    };
    let total = if definition.total_timeout_ms == 0 { TOTAL_CEILING_MS } else { definition.total_timeout_ms };
    let budget = Arc::new(Budget::new(definition.attempts.max, request.received.plus(total)));
    let request = Request { inner: Some(Inner { budget: Arc::clone(&budget), patient: true }), ..request };
    let mut times = times;
    // The work between the calls is a few milliseconds at most: all of it counts as the calls' own time.
    let mut answered = times.elsewhere.during(Composed { context, combo, request, times, depth: 0 }.answer()).await;
    let own = times.started.elapsed().saturating_sub(times.elsewhere.0);
    shared.gateway().metrics().overhead(own.as_secs_f64());
    if let Some(stats) = shared.loaded.combo_stats.get(combo) {
        stats.request(answered.response.status().is_success());
    }
    ending::count_attempts(&mut answered.response, budget.dispatched());
    Answered { combo: Some(combo), ..answered }
}

/// A request to a composed combo.
struct Composed {
    /// As the client sent it; for a combo inside another one, as that asks it.
    context: Context,
    combo: usize,
    /// What all calls have in common.
    request: Request,
    times: Clock,
    depth: u32,
}

/// A call to be made.
struct Call {
    part: Part,
    question: Question,
    purpose: Purpose,
    /// It goes on with the client's own conversation, so it stays with the connection that knows it.
    continues: bool,
    /// It may wait for a timer.
    patient: bool,
}

/// The client's conversation beside the body in which it came, with its share of the memory that all bodies may use.
pub(super) struct Own {
    pub conversation: Conversation,
    pub held: Buffered,
}

impl Own {
    /// Reads the body of a request, if there is room for it a second time.
    pub fn read(context: &Context) -> Result<Self, Box<Refusal>> {
        let held = room(context, context.body.len())?;
        Conversation::parse(context.shared.endpoint.dialect(), &context.body)
            .map(|conversation| Self { conversation, held })
            .map_err(|error| Box::new(Refusal::new(400, "invalid_json", error.to_string()).hopeless()))
    }
}

/// A share of the memory that all bodies may use.
fn room(context: &Context, bytes: usize) -> Result<Buffered, Box<Refusal>> {
    Ok(context.shared.gateway().buffers().reserve(bytes as u64).ok_or_else(ingest::full)?)
}

/// A body for calls, with its share of the memory that all bodies may use.
#[derive(Clone)]
struct Question {
    body: Bytes,
    head: RequestHead,
    _held: Option<Arc<Buffered>>,
}

impl Composed {
    fn answer(&self) -> Pin<Box<dyn Future<Output = Answered> + Send + '_>> {
        Box::pin(async move {
            match self.definition().map(|combo| combo.strategy) {
                Some(Strategy::Fusion) => fusion::answer(self).await,
                _ => pipeline::answer(self).await,
            }
            .unwrap_or_else(|refusal| refuse(&self.context.shared, *refusal))
        })
    }

    fn definition(&self) -> Option<&Combo> {
        self.context.shared.loaded.snapshot.combos.get(self.combo)
    }

    fn units(&self) -> &[Unit] {
        self.context.shared.loaded.router.units(self.combo)
    }

    fn conversation(&self) -> Result<Own, Box<Refusal>> {
        Own::read(&self.context)
    }

    /// A conversation as a body to be sent.
    fn question(&self, conversation: &Conversation) -> Result<Question, Box<Refusal>> {
        let body = Bytes::from(conversation.to_bytes());
        let head = scan_request(&body).map_err(|error| unreadable(&error))?;
        let held = room(&self.context, body.len())?;
        Ok(Question { body, head, _held: Some(Arc::new(held)) })
    }

    /// The client's own words, unchanged: they are held already.
    fn unchanged(&self) -> Question {
        Question { body: self.context.body.clone(), head: self.context.head.clone(), _held: None }
    }

    /// Walks one call. An entry that is a composed combo answers as one voice.
    async fn call(&self, call: Call) -> Answered {
        let Question { body, head, _held } = call.question;
        let bound = call.continues || self.context.shared.lease.is_some();
        let request = Request {
            needs: needs(&head),
            only_connection: self.request.only_connection.filter(|_| bound),
            inner: self.request.inner.clone().map(|inner| Inner { patient: call.patient, ..inner }),
            ..self.request.clone()
        };
        let context =
            Context { shared: Arc::clone(&self.context.shared), headers: self.context.headers.clone(), head, body, purpose: call.purpose };
        if let Part::Entry(entry) = call.part
            && let Some(child) = self.composed_entry(entry)
            && self.depth < MAX_DEPTH
        {
            return Self { context, combo: child, request, times: self.times, depth: self.depth + 1 }.answer().await;
        }
        self.walk(context, &Resolved::Part { combo: self.combo, part: call.part }, request).await
    }

    /// Serves the request like a combo whose first target that can serve is asked, and no other.
    async fn first(&self, question: Question) -> Answered {
        if self.composed_entry(0).is_some() {
            let call = Call { part: Part::Entry(0), question, purpose: self.context.purpose, continues: true, patient: true };
            return self.call(call).await;
        }
        let Context { shared, headers, purpose, .. } = &self.context;
        let (head, body) = (question.head.clone(), question.body.clone());
        let context = Context { shared: Arc::clone(shared), headers: headers.clone(), head, body, purpose: *purpose };
        self.walk(context, &Resolved::Combo(self.combo), self.request.clone()).await
    }

    async fn walk(&self, context: Context, resolved: &Resolved, request: Request) -> Answered {
        match Engine::new(context, resolved, request, self.times) {
            Ok(engine) => engine.run().await,
            Err(refusal) => refuse(&self.context.shared, refusal),
        }
    }

    fn composed_entry(&self, entry: usize) -> Option<usize> {
        let UnitKind::Nested(child) = self.units().get(entry)?.kind else { return None };
        let combo = self.context.shared.loaded.snapshot.combos.get(child)?;
        combo.strategy.is_composed().then_some(child)
    }
}

fn refuse(shared: &Shared, refusal: Refusal) -> Answered {
    let origin = refusal.origin;
    Answered { response: refusal.into_response(shared.endpoint.dialect()), origin, combo: None }
}
