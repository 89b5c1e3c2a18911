//! Steps: each model works on what the one before it said; the last one answers the client (routing spec 4.20).

use http::header::RETRY_AFTER;

use super::super::admission::Buffered;
use super::super::answer::{Refusal, SHOULD_RETRY};
use super::super::pipeline::Purpose;
use super::super::service::Answered;
use super::hear::{Useless, code_of, hear};
use super::{Call, Composed, Own};
use crate::protocol::conversation::Place;
use crate::routing::Part;

/// Answers the request.
pub(super) async fn answer(composed: &Composed) -> Result<Answered, Box<Refusal>> {
    let steps = composed.units().len();
    let shared = &composed.context.shared;
    let (mut own, mut said) = (Some(composed.conversation()?), None::<(String, Buffered)>);
    for (entry, unit) in composed.units().iter().enumerate() {
        let last = entry + 1 == steps;
        let continues = said.is_none();
        let question = {
            let Some(Own { conversation, .. }) = &own else { break };
            let mut conversation = match said.take() {
                None => conversation.clone(),
                Some((text, _held)) => conversation.clone().replaced_by(&text),
            };
            if let Some(prompt) = &unit.prompt {
                conversation = conversation.with_system(prompt, Place::AfterSystem);
            }
            if !last {
                conversation = conversation.for_reading();
            }
            composed.question(&conversation)?
        };
        // Nothing is asked after the last one.
        drop(own.take_if(|_| last));
        let purpose = if last { composed.context.purpose } else { Purpose::Step(composed.combo) };
        let answered = composed.call(Call { part: Part::Entry(entry), question, purpose, continues, patient: true }).await;
        if last {
            return Ok(answered);
        }
        match hear(answered, shared.endpoint.dialect(), purpose.most_held(), shared.gateway().buffers()).await {
            Ok(voice) => said = Some((voice.text, voice.held)),
            Err(useless) => return Err(Box::new(failed(entry + 1, &unit.name, &useless))),
        }
    }
    Err(Box::new(Refusal::new(400, "pipeline_empty", "the pipeline has no step that could be asked").hopeless()))
}

/// The answer when a step before the last one has nothing to hand on: the status of its failure, and when a retry can succeed.
fn failed(step: usize, target: &str, useless: &Useless) -> Refusal {
    let message = format!("Pipeline step {step} failed ({target}): {}", useless.message());
    let Useless::Refused { response, origin } = useless else {
        return Refusal::new(502, "pipeline_step_failed", message);
    };
    let header = |name| response.headers().get(name).and_then(|value: &http::HeaderValue| value.to_str().ok());
    let mut refusal = Refusal::new(response.status().as_u16(), "pipeline_step_failed", message);
    refusal.body = Box::new(refusal.body.field("step", step).field("cause", code_of(response.body())));
    refusal.origin = *origin;
    refusal.retry_after = header(RETRY_AFTER).and_then(|value| value.parse().ok());
    refusal.hopeless = header(SHOULD_RETRY) == Some("false");
    refusal
}
