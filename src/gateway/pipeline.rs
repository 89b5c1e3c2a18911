//! One request: resolve ▶ plan ▶ gate ▶ dispatch ▶ classify ▶ record ▶ relay. Every strategy and every direct request takes this road;
//! what is here prepares it, [`super::engine`] walks it.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::FutureExt;
use http::request::Parts;
use http::{HeaderMap, HeaderName};
use sha2::{Digest, Sha256};

use super::admission::Buffered;
use super::answer::Refusal;
use super::auth::Caller;
use super::config::{Account, Loaded};
use super::engine::Engine;
use super::handoff::Relay;
use super::ingest::Held;
use super::leases::Managed;
use super::service::{Answered, Worker};
use super::sessions::{Session, response_key};
use super::{Gateway, clock, compose, ending, leases};
use crate::api::time::EpochMs;
use crate::protocol::Endpoint;
use crate::protocol::scan::{RequestHead, ScanError, scan_request};
use crate::routing::{Needs, Request};
use crate::snapshot::hex;

/// `x-omniroute-fallback: none` asks for exactly one upstream call.
static FALLBACK: HeaderName = HeaderName::from_static("x-omniroute-fallback");

/// What an answer needs as long as it lasts: everything about its request but the body.
#[derive(Debug)]
pub(super) struct Shared {
    /// The serving thread.
    pub worker: Arc<Worker>,
    /// The configuration that the request started with.
    pub loaded: Arc<Loaded>,
    /// What was called.
    pub endpoint: Endpoint,
    /// The client asked for one call and wants its answer as it is.
    pub single_call: bool,
    /// Name of the client's key.
    pub caller: String,
    /// The session, when pins are on and the request names one.
    pub session: Option<Session>,
    /// The lease that the request runs under.
    pub lease: Option<Managed>,
    /// The hand-offs of the session, where the combo makes them.
    pub relay: Option<Relay>,
}

impl Shared {
    /// The gateway.
    pub fn gateway(&self) -> &Arc<Gateway> {
        &self.worker.gateway
    }

    /// A request went well: the session stays on this connection, and the answer's id leads back to it.
    pub fn bind(&self, account: &Account, response_id: Option<&str>, now: EpochMs) {
        let sessions = self.gateway().sessions();
        let provider = account.cell.provider().name();
        if let Some(session) = &self.session {
            sessions.pin(session.key(provider), account.cell.name(), self.loaded.snapshot.settings.session_affinity_ttl_ms, now);
        }
        if let Some(id) = response_id.filter(|_| self.endpoint == Endpoint::Responses) {
            sessions.remember_response(response_key(&self.caller, id), account.cell.name(), now);
        }
        if let Some(relay) = &self.relay {
            relay.answered(self.gateway(), account.cell.name());
        }
    }

    /// A connection failed: a session that is pinned to it is free.
    pub fn unbind(&self, account: &Account) {
        if let Some(session) = &self.session {
            self.gateway().sessions().unpin(&session.key(account.cell.provider().name()), account.cell.name());
        }
    }
}

/// What stays the same for all attempts of a request.
#[derive(Clone, Debug)]
pub(super) struct Context {
    /// What outlives the attempts.
    pub shared: Arc<Shared>,
    /// The client's headers.
    pub headers: HeaderMap,
    /// What the body asks for.
    pub head: RequestHead,
    /// The body.
    pub body: Bytes,
    /// What the answer is for.
    pub purpose: Purpose,
}

/// What the answer to a call is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Purpose {
    /// It goes to the client.
    Answer,
    /// It is read here, by the checks of its combo.
    Voice,
    /// It is read here; the checks of this combo are for the answer to the client.
    Step(usize),
}

impl Purpose {
    /// Longest answer that is held as a whole. What goes to the client is checked up to that and passed on beyond it unchecked (decisions 9.14);
    /// what is read here and longer is of no use.
    pub const fn most_held(self) -> usize {
        match self {
            Self::Answer => 8 * 1024 * 1024,
            Self::Voice | Self::Step(_) => 2 * 1024 * 1024,
        }
    }
}

/// Time of a request that the gateway does not account for: clients, providers, queues, timers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Elsewhere(pub Duration);

impl Elsewhere {
    /// Runs something that is not the gateway's own work.
    pub fn during<T>(&mut self, work: impl Future<Output = T>) -> impl Future<Output = T> {
        // Not an `async fn`: that would have room for the work twice, and every request carries it.
        let begin = Instant::now();
        work.map(move |result| {
            self.0 += begin.elapsed();
            result
        })
    }
}

/// The times of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    /// When its head was there.
    pub started: Instant,
    /// What of the time since then was not the gateway's.
    pub elsewhere: Elsewhere,
}

/// What is left to do for a request. Preparing and doing are two futures one after the other, so that a request needs room for the larger
/// one, not for both.
pub(super) enum Work {
    /// Nothing.
    Done(Answered),
    /// Attempts.
    Walk {
        engine: Box<Engine>,
        /// Held for replays until the answer begins; an answer that streams needs none of it.
        buffered: Buffered,
    },
    /// Several calls that make one answer.
    Composed(Pin<Box<dyn Future<Output = Answered> + Send>>),
}

impl Work {
    /// Does it.
    pub async fn run(self) -> Answered {
        match self {
            Self::Done(answered) => answered,
            Self::Walk { engine, buffered: _buffered } => engine.run().await,
            Self::Composed(calls) => calls.await,
        }
    }
}

/// Prepares a request whose body was read.
pub(super) async fn prepare(
    worker: &Arc<Worker>,
    loaded: &Arc<Loaded>,
    caller: Caller<'_>,
    endpoint: Endpoint,
    parts: Parts,
    held: Held,
    times: Clock,
) -> Result<Work, Refusal> {
    let head = scan_request(&held.bytes).map_err(|error| unreadable(&error))?;
    let now = clock::now();
    let resolved = loaded.router.resolve_for(&head.model, caller.policy).map_err(|answer| ending::refusal(&answer))?;
    let pins = loaded.snapshot.settings.session_affinity_ttl_ms > 0;
    let session = if pins { Session::of(&parts.headers, head.session.as_deref(), caller.name) } else { None };
    let lease = leases::managed(&parts.headers, caller)?;
    let single_call = parts.headers.get(&FALLBACK).is_some_and(|v| v.as_bytes().eq_ignore_ascii_case(b"none"));
    let mut request = Request {
        key: Arc::clone(caller.policy),
        single_call,
        needs: needs(&head),
        cache_key: loaded.wants_cache_key.then(|| cache_key(&head, &held.bytes)).flatten(),
        only_connection: bound_to(worker, loaded, caller, &head, now),
        ..Request::new(endpoint.dialect(), now)
    };
    let named = || Session::of(&parts.headers, head.session.as_deref(), caller.name);
    let relay = Relay::of(loaded, endpoint, &resolved, named, &request);
    let shared = Shared {
        worker: Arc::clone(worker),
        loaded: Arc::clone(loaded),
        endpoint,
        single_call,
        caller: caller.name.to_owned(),
        session,
        lease,
        relay,
    };
    if let Some(lease) = &shared.lease {
        request.only_connection = Some(Box::pin(leases::bind(&shared, lease, &resolved, &request)).await?);
    }
    let context = Context { shared: Arc::new(shared), headers: parts.headers, head, body: held.bytes, purpose: Purpose::Answer };
    let buffered = held.buffered;
    Ok(match compose::composed(&context.shared, &resolved, &request) {
        Some(combo) => Work::Composed(Box::pin(async move {
            let _buffered = buffered;
            compose::run(context, combo, request, times).await
        })),
        None => Work::Walk { engine: Engine::new(context, &resolved, request, times)?, buffered },
    })
}

pub(super) fn unreadable(error: &ScanError) -> Refusal {
    let refusal = Refusal::new(400, error.code(), error.to_string()).hopeless();
    match error.param() {
        Some(param) => refusal.param(param),
        None => refusal,
    }
}

pub(super) const fn needs(head: &RequestHead) -> Needs {
    Needs {
        tools: head.tools > 0,
        vision: head.images,
        structured_output: head.structured_output,
        input_tokens: head.estimated_input_tokens(),
        output_tokens: head.max_output_tokens,
    }
}

/// What tells whether a vendor may have the beginning of this request in its cache: the key that the client names, else the first words.
fn cache_key(head: &RequestHead, body: &[u8]) -> Option<String> {
    let first = || head.first_user_text.clone().and_then(|range| body.get(range)).map(|text| hex(&Sha256::digest(text)));
    head.session.clone().or_else(first)
}

/// The connection that made the answer that this request continues; unknown answers are asked for in order (decisions 9.12).
fn bound_to(worker: &Worker, loaded: &Loaded, caller: Caller<'_>, head: &RequestHead, now: EpochMs) -> Option<usize> {
    let id = head.previous_response_id.as_deref()?;
    let connection = worker.gateway.sessions().response(&response_key(caller.name, id), now)?;
    loaded.by_name.get(&connection).copied()
}
