//! A namespace whose gateway another installation of the operator makes.
//!
//! The claim is an annotation of the management Secret. As long as the other installation answers for its objects there is nothing to say; where it does
//! not, somebody who waits has to learn whom he waits for. No word of ours ever replaces one about the present generation, so the two cannot fight.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::json;

use super::build::{ANNOTATION_CLAIM, names};
use super::object::{ObjectKey, ObjectKind};
use super::queue::{Class, StatusWrite};
use super::status::conditions::{Progress, Said, Verdict, conditions};
use super::writer::Writer;
use crate::api::Resources;
use crate::api::conditions::{AvailableReason, Condition, ProgrammedReason, ReadyReason};
use crate::api::time::EpochMs;

/// How long the other installation may take to answer for a generation.
const PATIENCE: Duration = Duration::from_secs(15);

/// One look at a claimed namespace.
pub struct Claim<'a> {
    /// The namespace.
    pub namespace: &'a str,
    /// Whose it is.
    pub by: &'a str,
    /// Who we are.
    pub ours: &'a str,
    /// Where statuses go.
    pub writer: &'a Writer,
    /// Now.
    pub now: EpochMs,
}

impl Claim<'_> {
    /// Tells every object that has not been answered for a while; answers when to look again, if some may have to be told then.
    pub fn report(&self, resources: &Resources, unanswered: &mut HashMap<ObjectKey, (i64, Instant)>, now: Instant) -> Option<Duration> {
        let mut next: Option<Duration> = None;
        let mut look = |kind: ObjectKind, meta: &ObjectMeta, observed: Option<i64>, before: &[Condition]| {
            let key = ObjectKey { namespace: self.namespace.to_owned(), kind, name: meta.name.clone().unwrap_or_default() };
            let generation = meta.generation.unwrap_or(1);
            if observed == Some(generation) || meta.deletion_timestamp.is_some() {
                unanswered.remove(&key);
                self.writer.cancel(&key);
                return;
            }
            let since = unanswered.entry(key.clone()).or_insert((generation, now));
            if since.0 != generation {
                *since = (generation, now);
            }
            let left = PATIENCE.saturating_sub(now.saturating_duration_since(since.1));
            if left.is_zero() {
                self.tell(key, meta, generation, before);
            } else {
                next = Some(next.map_or(left, |n| n.min(left)));
            }
        };
        macro_rules! each {
            ($($objects:ident: $kind:ident),*) => {
                $(for object in &resources.$objects {
                    let status = object.status.as_ref();
                    let before = status.map_or(&[][..], |s| &s.conditions);
                    look(ObjectKind::$kind, &object.metadata, status.map(|s| s.observed_generation), before);
                })*
            };
        }
        each!(settings: ResilienceSettings, providers: Provider, connections: Connection, combos: Combo, rules: OperatorErrorRule);
        next
    }

    fn tell(&self, key: ObjectKey, meta: &ObjectMeta, generation: i64, before: &[Condition]) {
        let message = format!(
            "this namespace is claimed by the operator installation `{}`, which does not answer, so `{}` leaves it alone; to hand it over, remove the annotation {ANNOTATION_CLAIM} of Secret `{}`",
            self.by,
            self.ours,
            names::MANAGEMENT
        );
        let verdict = Verdict {
            ready: Said::no(ReadyReason::Conflict, message),
            programmed: Said::no(ProgrammedReason::Pending, "nothing is known of the gateway of another installation"),
            available: Said::unknown(AvailableReason::Unknown, "nothing is known of the gateway of another installation"),
            progress: Progress::Stalled,
        };
        let status = json!({"observedGeneration": generation, "conditions": conditions(before, &verdict, generation, self.now)});
        let resource_version = meta.resource_version.clone().unwrap_or_default();
        self.writer.put(StatusWrite { key, resource_version, status, notices: Vec::new() }, Class::Answer);
    }
}
