//! Keeping a conversation alive across accounts (`strategy: ContextRelay`, routing spec 4.4): when the account that serves a session has nearly
//! used up its quota, a summary is made in the background; the account that goes on is told it, once.

pub mod store;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;

use super::admission::Buffered;
use super::compose::Own;
use super::compose::hear::{Useless, Voice, hear};
use super::config::Loaded;
use super::engine::Engine;
use super::pipeline::{Clock, Context, Elsewhere, Purpose, Shared, needs};
use super::sessions::{Key, Session};
use super::{Gateway, clock, lock};
use crate::api::time::EpochMs;
use crate::protocol::Endpoint;
use crate::protocol::conversation::Place;
use crate::protocol::handoff::{Summary, summary_request};
use crate::protocol::scan::scan_request;
use crate::routing::{Budget, Dispatch, Inner, KeyPolicy, Part, Request, Resolved};
use store::Handoff;

/// From here on an account counts as used up: it has no answer left to give, percent.
const EXHAUSTED: f64 = 95.0;
/// How long a hand-off is kept when nobody knows when the quota starts again.
const TTL_MS: u64 = 5 * 3_600_000;
/// Longest time for a summary.
const SUMMARY_TIME_MS: u64 = 60_000;

/// What the hand-offs of one request are found by.
#[derive(Debug)]
pub(super) struct Relay {
    key: Key,
    /// The combo, by position in the snapshot.
    combo: usize,
    policy: Arc<KeyPolicy>,
    /// Which connections this request told a hand-off, and when that was made.
    told: Mutex<Vec<(Arc<str>, EpochMs)>>,
}

impl Relay {
    /// The relay of a request that asks for such a combo and belongs to a session.
    pub fn of(
        loaded: &Loaded,
        endpoint: Endpoint,
        resolved: &Resolved,
        session: impl FnOnce() -> Option<Session>,
        request: &Request,
    ) -> Option<Self> {
        let Resolved::Combo(combo) = resolved else { return None };
        let definition = loaded.snapshot.combos.get(*combo)?;
        definition.options.handoff.as_ref().filter(|_| endpoint.may_stream() && !request.single_call)?;
        let key = session()?.handoff_key(&definition.name);
        Some(Self { key, combo: *combo, policy: Arc::clone(&request.key), told: Mutex::default() })
    }

    /// The request as it is told to a connection that goes on for another one, with its share of the memory that all bodies may use; `None`
    /// when nothing waits for it.
    pub fn told(&self, context: &Context, dispatch: &Dispatch) -> Option<(Context, Buffered)> {
        let handoff = context.shared.gateway().sessions().handoffs().get(&self.key, clock::now())?;
        if *handoff.from == *dispatch.connection.name {
            return None;
        }
        // What there is no room for, now or for the moment in which it is made, is told with a later request.
        let Own { conversation, held: reading } = Own::read(context).ok()?;
        let body = Bytes::from(conversation.with_system(&handoff.turn, Place::First).to_bytes());
        let held = context.shared.gateway().buffers().reserve(body.len() as u64)?;
        drop(reading);
        let head = scan_request(&body).ok()?;
        lock(&self.told).push((Arc::clone(&dispatch.connection.name), handoff.made));
        let told = Context { shared: Arc::clone(&context.shared), headers: context.headers.clone(), head, body, purpose: context.purpose };
        Some((told, held))
    }

    /// A connection has answered to the end: what this request told it is done with. What could not be told waits for another request.
    pub fn answered(&self, gateway: &Gateway, connection: &str) {
        let told = lock(&self.told).iter().rev().find(|(to, _)| **to == *connection).map(|(_, made)| *made);
        if let Some(made) = told {
            gateway.sessions().picked_up(&self.key, made);
        }
    }

    /// A connection answers: if it has nearly used up its quota, a summary for its successor is made beside the answer.
    pub fn served(&self, context: &Context, dispatch: &Dispatch) {
        let (shared, now) = (&context.shared, clock::now());
        let loaded = &shared.loaded;
        let definition = loaded.snapshot.combos.get(self.combo);
        let Some(options) = definition.and_then(|combo| combo.options.handoff.as_ref()) else { return };
        let preset = loaded.snapshot.providers.get(dispatch.provider).map_or("", |provider| &provider.traits.catalog_id);
        let listed = options.covers(&dispatch.provider_name, preset);
        let Some((used, resets)) = loaded.router.used_percent(dispatch.connection.index, now).filter(|_| listed) else { return };
        if used < f64::from(options.threshold_percent) || used >= EXHAUSTED {
            return;
        }
        let model = match &options.model {
            Some((provider, model)) => loaded.router.model(provider, model),
            None => loaded.router.model(&dispatch.provider_name, &dispatch.model),
        };
        // Without room for it another answer is the occasion.
        let Ok(Own { conversation: of, held: _reading }) = Own::read(context) else { return };
        let newest = usize::try_from(options.max_messages).unwrap_or(usize::MAX);
        let Some((model, claim)) = model.zip(Claim::take(shared.gateway(), self.key, now)) else { return };
        let question = |tuned| summary_request(&of, shared.endpoint.dialect(), &context.head.model, newest, tuned).to_bytes();
        let scribe = Scribe {
            // Neither session nor lease nor relay: a summary is nobody's conversation, and none is made of it.
            shared: Arc::new(Shared {
                worker: Arc::clone(&shared.worker),
                loaded: Arc::clone(loaded),
                endpoint: shared.endpoint,
                single_call: false,
                caller: shared.caller.clone(),
                session: None,
                lease: None,
                relay: None,
            }),
            headers: context.headers.clone(),
            combo: self.combo,
            policy: Arc::clone(&self.policy),
            part: Part::Model(model),
            questions: [question(true).into(), question(false).into()],
        };
        let (from, until) = (Arc::clone(&dispatch.connection.name), resets.unwrap_or_else(|| now.plus(TTL_MS)));
        tokio::spawn(async move {
            match scribe.write().await {
                Ok(summary) => claim.keep(Handoff { from, turn: summary.turn().into(), made: clock::now(), until }),
                Err(why) => tracing::info!(connection = %from, "no summary for the next account: {why}"),
            }
        });
    }
}

/// The right to make the summary of a session; given back when nothing comes of it.
struct Claim {
    gateway: Arc<Gateway>,
    key: Key,
}

impl Claim {
    fn take(gateway: &Arc<Gateway>, key: Key, now: EpochMs) -> Option<Self> {
        gateway.sessions().handoffs().claim(key, now).then(|| Self { gateway: Arc::clone(gateway), key })
    }

    fn keep(self, handoff: Handoff) {
        self.gateway.sessions().hand_over(self.key, handoff);
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.gateway.sessions().handoffs().give_up(&self.key);
    }
}

/// Asks for a summary, as a call of its own in the background.
struct Scribe {
    shared: Arc<Shared>,
    headers: http::HeaderMap,
    combo: usize,
    policy: Arc<KeyPolicy>,
    part: Part,
    /// With a limit and a temperature; and without, for models that refuse them.
    questions: [Bytes; 2],
}

impl Scribe {
    async fn write(self) -> Result<Summary, String> {
        let gateway = self.shared.gateway();
        let _slot = gateway.requests().enter().ok_or("the gateway has no room for it")?;
        let bytes = self.questions.iter().map(|question| question.len() as u64).sum();
        let _held = gateway.buffers().reserve(bytes).ok_or("the gateway has no memory for it")?;
        let mut last = String::new();
        for question in &self.questions {
            let useless = match self.ask(question).await {
                Ok(voice) => return Summary::parse(&voice.text).ok_or_else(|| "the model gave none".to_owned()),
                Err(useless) => useless,
            };
            // Not what the provider says: answers about keys repeat them.
            last = useless.reason();
            if !useless.is_status(400) {
                break;
            }
        }
        Err(last)
    }

    async fn ask(&self, question: &Bytes) -> Result<Voice, Useless> {
        let dialect = self.shared.endpoint.dialect();
        let (now, purpose) = (clock::now(), Purpose::Step(self.combo));
        let head = scan_request(question).map_err(|_| Useless::Unusable("unparseable"))?;
        let budget = Arc::new(Budget::new(1, now.plus(SUMMARY_TIME_MS)));
        let request = Request {
            key: Arc::clone(&self.policy),
            needs: needs(&head),
            inner: Some(Inner { budget, patient: false }),
            ..Request::new(dialect, now)
        };
        let context = Context { shared: Arc::clone(&self.shared), headers: self.headers.clone(), head, body: question.clone(), purpose };
        let times = Clock { started: std::time::Instant::now(), elsewhere: Elsewhere::default() };
        let resolved = Resolved::Part { combo: self.combo, part: self.part.clone() };
        let engine = Engine::new(context, &resolved, request, times).map_err(|_| Useless::Unusable("unknown_model"))?;
        let answered = tokio::time::timeout(Duration::from_millis(SUMMARY_TIME_MS), engine.run()).await;
        let answered = answered.map_err(|_| Useless::Unusable("timeout"))?;
        hear(answered, dialect, purpose.most_held(), self.shared.gateway().buffers()).await
    }
}
