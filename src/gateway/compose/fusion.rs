//! A panel: all targets are asked at once, a judge writes the answer from theirs (routing spec 4.19, decisions 4.6).

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Response};
use tokio::time::Instant;

use super::super::answer::Refusal;
use super::super::body::Body;
use super::super::live::Present;
use super::super::pipeline::Purpose;
use super::super::service::Answered;
use super::super::{clock, ending};
use super::hear::{Useless, Voice, code_of, hear};
use super::{Call, Composed, Own, Question};
use crate::protocol::panel::sources_turn;
use crate::protocol::restream::as_stream;
use crate::routing::{Answer, Budget, Diagnostics, Family, Inner, Origin, Part, Recovery, Request, Resolved, Step, UnitKind, Walk};
use crate::snapshot::Fusion;

/// The code of an answer when no account can be used (interface 4).
const INACTIVE: &str = "ALL_ACCOUNTS_INACTIVE";
/// How often a panel that nobody could join is called again after a wait.
const MAX_ROUNDS: u32 = 8;

/// What became of the panel.
struct Panel {
    /// Those that answered, by position, in the order of the targets.
    voices: Vec<(usize, Voice)>,
    /// The others, with the reason.
    silent: Vec<(usize, Silence)>,
}

enum Silence {
    Useless(Useless),
    /// Dropped: the panel had enough.
    Straggler,
    /// Dropped: the panel's time was over.
    Late,
}

impl Silence {
    fn reason(&self) -> String {
        match self {
            Self::Useless(useless) => useless.reason(),
            Self::Straggler => "straggler_dropped".to_owned(),
            Self::Late => "timeout".to_owned(),
        }
    }

    const fn refusal(&self) -> Option<&Response<Bytes>> {
        match self {
            Self::Useless(Useless::Refused { response, .. }) => Some(response),
            _ => None,
        }
    }
}

/// Answers the request.
pub(super) async fn answer(composed: &Composed) -> Result<Answered, Box<Refusal>> {
    let options = composed.definition().and_then(|combo| combo.options.fusion.clone()).unwrap_or_default();
    let size = composed.units().len();
    let most = usize::try_from(options.max_panel).unwrap_or(usize::MAX);
    if size == 0 || size > most {
        let message = match size {
            0 => "the panel has no target that could be asked".to_owned(),
            _ => format!("the panel has {size} targets, more than fusion.maxPanel allows ({most})"),
        };
        return Err(Box::new(Refusal::new(400, "fusion_panel_size", message).hopeless()));
    }
    if size == 1 {
        return Ok(composed.first(composed.unchanged()).await);
    }
    let judge = judge(composed, &options)?;
    let Own { conversation, held } = composed.conversation()?;
    if conversation.offers_tools() {
        // Several models cannot call the client's tools at once.
        return Ok(match judge {
            Some(judge) => composed.call(last_call(composed, judge, composed.unchanged())).await,
            None => composed.first(composed.unchanged()).await,
        });
    }
    // More than one answer, and an answer for later: only the model itself can give those.
    let plain = !conversation.has("n") && !conversation.has("background");
    let question = composed.question(&conversation.for_reading())?;
    // The panel may take minutes: what it is not asked with is read again afterwards.
    drop(held);
    let panel = match convene(composed, &options, &question).await {
        Ok(panel) => panel,
        Err(answered) => return Ok(answered),
    };
    drop(question);
    if panel.voices.is_empty() {
        return Ok(nobody(composed, panel));
    }
    conclude(composed, panel.voices, judge, plain).await
}

/// The model that the combo names as judge.
fn judge(composed: &Composed, options: &Fusion) -> Result<Option<Part>, Box<Refusal>> {
    let Some((provider, model)) = &options.judge else { return Ok(None) };
    let found = composed.context.shared.loaded.router.model(provider, model).map(Part::Model);
    let missing = || Box::new(Refusal::new(503, "fusion_judge_missing", format!("the judge's provider `{provider}` is not there")));
    found.map(Some).ok_or_else(missing)
}

/// The call whose answer the client gets.
const fn last_call(composed: &Composed, part: Part, question: Question) -> Call {
    Call { part, question, purpose: composed.context.purpose, continues: true, patient: true }
}

/// Asks all targets until one round has reached anybody. When all of them rest, the combo's own patience says whether to wait, and the answer
/// when not: that of any other strategy (decisions 4.2).
async fn convene(composed: &Composed, options: &Fusion, question: &Question) -> Result<Panel, Answered> {
    let context = &composed.context;
    let router = &context.shared.loaded.router;
    let mut waits: Option<Walk> = None;
    for _ in 0..MAX_ROUNDS {
        let before = dispatched(composed);
        let panel = ask(composed, options, question).await;
        if !panel.voices.is_empty() || dispatched(composed) > before {
            return Ok(panel);
        }
        if waits.is_none() {
            // It sends nothing, so it has a budget of its own.
            let aside = |inner: Inner| Inner { budget: Arc::new(Budget::new(1, inner.budget.deadline)), ..inner };
            let request = Request { inner: composed.request.inner.clone().map(aside), ..composed.request.clone() };
            waits = Walk::new(router, &Resolved::Combo(composed.combo), &context.head.model, request);
        }
        let Some(walk) = &mut waits else { return Ok(panel) };
        let present = Present { shared: &context.shared, ignore_leases: false };
        match walk.next(&present, clock::now(), &mut rand::random::<u64>) {
            Step::Wait { ms, .. } => tokio::time::sleep(Duration::from_millis(ms)).await,
            Step::Stop(answer) => return Err(ending::answered(&answer, None, None, context.shared.endpoint.dialect())),
            // Somebody is back already, or only lacks a slot.
            Step::Dispatch(_) => return Ok(panel),
        }
    }
    Ok(ask(composed, options, question).await)
}

fn dispatched(composed: &Composed) -> u32 {
    composed.request.inner.as_ref().map_or(0, |inner| inner.budget.dispatched())
}

/// One round: everybody at once. The rest is dropped, and with it its upstream calls, when enough have answered and the grace is over.
async fn ask(composed: &Composed, options: &Fusion, question: &Question) -> Panel {
    let (size, dialect) = (composed.units().len(), composed.context.shared.endpoint.dialect());
    let buffers = composed.context.shared.gateway().buffers();
    let member = |entry: usize| async move {
        let call = Call { part: Part::Entry(entry), question: question.clone(), purpose: Purpose::Voice, continues: true, patient: false };
        (entry, hear(composed.call(call).await, dialect, Purpose::Voice.most_held(), buffers).await)
    };
    let mut pending: FuturesUnordered<_> = (0..size).map(member).collect();
    let wanted = usize::try_from(options.min_panel).unwrap_or(size).clamp(1, size);
    let left = composed.request.inner.as_ref().map_or(u64::MAX, |inner| inner.budget.deadline.since(clock::now()));
    let end = Instant::now() + Duration::from_millis(options.timeout_ms.min(left));
    let (mut until, mut enough) = (end, false);
    let mut panel = Panel { voices: Vec::with_capacity(size), silent: Vec::new() };
    loop {
        let next = tokio::select! {
            biased;
            next = pending.next() => next,
            () = tokio::time::sleep_until(until) => None,
        };
        match next {
            Some((entry, Ok(voice))) => panel.voices.push((entry, voice)),
            Some((entry, Err(useless))) => panel.silent.push((entry, Silence::Useless(useless))),
            None => break,
        }
        if !enough && panel.voices.len() >= wanted {
            enough = true;
            until = end.min(Instant::now() + Duration::from_millis(options.straggler_grace_ms));
        }
    }
    drop(pending);
    let heard: Vec<usize> = panel.voices.iter().map(|(e, _)| *e).chain(panel.silent.iter().map(|(e, _)| *e)).collect();
    let dropped = || if enough && until < end { Silence::Straggler } else { Silence::Late };
    panel.silent.extend((0..size).filter(|entry| !heard.contains(entry)).map(|entry| (entry, dropped())));
    panel.voices.sort_by_key(|(entry, _)| *entry);
    panel.silent.sort_by_key(|(entry, _)| *entry);
    panel
}

/// The answer from what the panel said.
async fn conclude(composed: &Composed, voices: Vec<(usize, Voice)>, judge: Option<Part>, plain: bool) -> Result<Answered, Box<Refusal>> {
    let question = match &judge {
        Some(_) => Some(sources(composed, &voices)?),
        None if voices.len() == 1 => None,
        // No memory for what a judge is to read: where none is named, one voice is an answer too, and the calls were not for nothing.
        None => sources(composed, &voices).ok(),
    };
    let first = voices.first().map_or(0, |(entry, _)| *entry);
    let Some(question) = question else {
        let answered = voices.into_iter().next().filter(|_| plain).and_then(|(_, voice)| alone(composed, voice));
        return Ok(match answered {
            Some(answered) => answered,
            None => composed.call(last_call(composed, Part::Entry(first), composed.unchanged())).await,
        });
    };
    drop(voices);
    Ok(composed.call(last_call(composed, judge.unwrap_or(Part::Entry(first)), question)).await)
}

/// What the judge is asked.
fn sources(composed: &Composed, voices: &[(usize, Voice)]) -> Result<Question, Box<Refusal>> {
    let Own { conversation, held: _held } = composed.conversation()?;
    let turn = sources_turn(voices.iter().map(|(_, voice)| voice.text.as_str()));
    composed.question(&conversation.with_user(&turn))
}

/// One answer of the panel as the client's, where the client would have got the same one (decisions 4.6): a model is not asked twice.
fn alone(composed: &Composed, voice: Voice) -> Option<Answered> {
    let Voice { response, origin, held, .. } = voice;
    let (mut parts, mut body) = response.into_parts();
    if composed.context.head.stream {
        body = as_stream(composed.context.shared.endpoint.dialect(), &body)?.into();
        parts.headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        parts.headers.remove(CONTENT_LENGTH);
    }
    let response = Response::from_parts(parts, Body::full(body).guarded(held));
    Some(Answered { response, origin, combo: None })
}

/// Nobody answered: why, and when a retry can succeed.
fn nobody(composed: &Composed, panel: Panel) -> Answered {
    let refusals: Vec<Option<&Response<Bytes>>> = panel.silent.iter().map(|(_, silence)| silence.refusal()).collect();
    let all = |what: fn(&Response<Bytes>) -> bool| refusals.iter().all(|refusal| refusal.is_some_and(what));
    let (theirs, inactive) = (all(|r| matches!(r.status().as_u16(), 400 | 413 | 415 | 422)), all(|r| code_of(r.body()) == INACTIVE));
    // Whoever has no wait could be asked again at once.
    let waits: Option<Vec<u64>> = refusals.iter().map(|refusal| seconds_of(refusal.as_ref()?)).collect();
    let why = panel.silent.iter().map(|(entry, silence)| format!("{}={}", label(composed, *entry), silence.reason()));
    let message = format!("no model of the panel gave a usable answer: {}", why.collect::<Vec<_>>().join(", "));
    let first = panel.silent.into_iter().next().map(|(_, silence)| silence);
    if let Some(Silence::Useless(Useless::Refused { response, origin })) = first.filter(|_| theirs) {
        // The request itself is wrong, and everybody says so.
        return Answered { response: response.map(Body::full), origin, combo: None };
    }
    let retry_after_seconds = waits.and_then(|waits| waits.into_iter().min()).filter(|_| !inactive);
    let answer = Answer {
        status: 503,
        code: if inactive { INACTIVE } else { "fusion_panel_failed" }.to_owned(),
        family: Family::Unavailable,
        message,
        origin: Origin::Gateway,
        pass_upstream: false,
        retry_at: None,
        retry_after_seconds,
        no_retry: inactive,
        terminal_reason: if inactive { "all_accounts_inactive" } else { "fusion_panel_failed" },
        recovery: if inactive { Recovery::SwitchCombo } else { Recovery::Retry },
        diagnostics: Diagnostics {
            pool_size: composed.units().len(),
            attempted: dispatched(composed),
            terminal_reason: "fusion_panel_failed",
            ..Diagnostics::default()
        },
    };
    ending::answered(&answer, None, None, composed.context.shared.endpoint.dialect())
}

/// `provider/model` of an entry, or the name of its combo.
fn label(composed: &Composed, entry: usize) -> &str {
    composed.units().get(entry).map_or("?", |unit| match &unit.kind {
        UnitKind::Leaf(leaf) => &leaf.label,
        UnitKind::Nested(_) => &unit.name,
    })
}

fn seconds_of(response: &Response<Bytes>) -> Option<u64> {
    response.headers().get(RETRY_AFTER)?.to_str().ok()?.parse().ok()
}
