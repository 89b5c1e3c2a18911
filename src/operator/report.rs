//! From what is wanted and what runs to status writes: compares, decides how urgent a write is, counts.

use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Serialize;

use super::events::Notice;
use super::notices::Teller;
use super::object::{ObjectKey, ObjectKind};
use super::queue::{Class, StatusWrite};
use super::status::conditions::{Progress, Said, Tri, Verdict, conditions, find};
use super::status::{self, Patience, Rollout, World};
use super::writer::Writer;
use crate::api::conditions::{AvailableReason, Condition, ConditionType, ProgrammedReason, ReadyReason};
use crate::api::status::{ComboStatus, ConnectionStatus, ProviderStatus, RuleStatus, SettingsStatus};
use crate::api::{Resources, time::EpochMs};
use crate::compile::Finding;

/// What all statuses have in common.
pub trait Status: Serialize + PartialEq {
    /// Its conditions.
    fn conditions(&self) -> &[Condition];
    /// The generation that it is about.
    fn observed(&self) -> i64;
    /// What changes with the state of the object beside its conditions; deadlines and counters of failures are not part of it.
    fn phase(&self) -> String {
        String::new()
    }
}

macro_rules! status {
    ($type:ty $(, $phase:expr)?) => {
        impl Status for $type {
            fn conditions(&self) -> &[Condition] {
                &self.conditions
            }
            fn observed(&self) -> i64 {
                self.observed_generation
            }
            $(fn phase(&self) -> String {
                let phase: fn(&$type) -> String = $phase;
                phase(self)
            })?
        }
    };
}

status!(RuleStatus);
status!(SettingsStatus, |s| format!("{:?}", s.gateway));
status!(ComboStatus, |s| s.available.clone().unwrap_or_default());
status!(ConnectionStatus, |s| {
    let locked: Vec<&str> = s.lockouts.iter().map(|l| l.model.as_str()).collect();
    format!("{:?} {locked:?} {:?}", s.state, s.commands)
});
status!(ProviderStatus, |s| format!("{:?} {:?} {:?}", s.breaker.as_ref().map(|b| &b.state), s.connections, s.commands));

/// What the reporter remembers of a namespace between two looks.
#[derive(Debug, Default)]
pub struct Memory {
    /// References that do not resolve.
    pub patience: Patience,
    /// The generation in which an object was ready before: turning ready again is no answer to its owner any more.
    answered: HashMap<ObjectKey, i64>,
    /// Objects that the installation which claims the namespace has not answered, by generation, and since when.
    pub unanswered: HashMap<ObjectKey, (i64, Instant)>,
    /// Conditions of objects that cannot be read, so that their status cannot be compared.
    broken: BTreeMap<ObjectKey, (String, Vec<Condition>)>,
}

impl Memory {
    /// The object is gone.
    pub fn forget(&mut self, key: &ObjectKey) {
        self.answered.remove(key);
        self.broken.remove(key);
        self.unanswered.remove(key);
    }
}

/// Objects of a namespace by kind, status of `Ready`, and the reason where that is not True.
pub type Counts = BTreeMap<(&'static str, &'static str, String), usize>;

/// One look at a namespace.
pub struct Report<'a> {
    /// The namespace.
    pub namespace: &'a str,
    /// What statuses follow from.
    pub world: &'a World<'a>,
    /// The Deployment.
    pub rollout: Option<Rollout>,
    /// Hash of the snapshot in force.
    pub hash: Option<&'a str>,
    /// Findings without an object to stand on.
    pub findings: &'a [&'a Finding],
    /// Where statuses go.
    pub writer: &'a Writer,
    /// The configuration has only just changed: what is on its way is not worth a word yet.
    pub settling: bool,
}

impl Report<'_> {
    /// Reports every object of the namespace; answers counts, and when patience runs out next.
    pub fn objects(
        &self,
        resources: &Resources,
        broken: &[(ObjectKey, ObjectMeta, String)],
        memory: &mut Memory,
    ) -> (Counts, Option<EpochMs>) {
        let mut counts = Counts::new();
        let world = self.world;
        memory.patience.begin();
        for object in &resources.settings {
            let after = status::settings(world, &mut memory.patience, object, self.rollout.as_ref(), self.hash, self.findings);
            let before = object.status.as_ref();
            self.put(ObjectKind::ResilienceSettings, &object.metadata, before, &after, plain, memory, &mut counts);
        }
        for object in &resources.providers {
            let after = status::provider(world, &mut memory.patience, object);
            let notices = |teller: &Teller<'_>, before: &ProviderStatus, after: &ProviderStatus| teller.provider(before, after);
            self.put(ObjectKind::Provider, &object.metadata, object.status.as_ref(), &after, notices, memory, &mut counts);
        }
        for object in &resources.connections {
            let after = status::connection(world, &mut memory.patience, object);
            let notices = |teller: &Teller<'_>, before: &ConnectionStatus, after: &ConnectionStatus| teller.connection(before, after);
            self.put(ObjectKind::Connection, &object.metadata, object.status.as_ref(), &after, notices, memory, &mut counts);
        }
        for object in &resources.combos {
            let after = status::combo(world, &mut memory.patience, object);
            self.put(ObjectKind::Combo, &object.metadata, object.status.as_ref(), &after, plain, memory, &mut counts);
        }
        for object in &resources.rules {
            let after = status::rule(world, &mut memory.patience, object);
            self.put(ObjectKind::OperatorErrorRule, &object.metadata, object.status.as_ref(), &after, plain, memory, &mut counts);
        }
        for (key, meta, error) in broken {
            self.put_broken(key, meta, error, memory);
            *counts.entry((key.kind.name(), "False", ReadyReason::InvalidSpec.to_string())).or_default() += 1;
        }
        let next = memory.patience.end(world.now);
        (counts, next)
    }

    #[allow(clippy::too_many_arguments)] // one private call per kind, each argument of its own type
    fn put<S: Status + Default>(
        &self,
        kind: ObjectKind,
        meta: &ObjectMeta,
        before: Option<&S>,
        after: &S,
        notices: impl Fn(&Teller<'_>, &S, &S) -> Vec<Notice>,
        memory: &mut Memory,
        counts: &mut Counts,
    ) {
        let name = meta.name.clone().unwrap_or_default();
        let key = ObjectKey { namespace: self.namespace.to_owned(), kind, name };
        let (ready, reason) = ready_word(after.conditions());
        *counts.entry((kind.name(), ready, reason)).or_default() += 1;
        if meta.deletion_timestamp.is_some() {
            self.writer.forget(&key);
            return;
        }
        if before == Some(after) {
            if is(after.conditions(), ConditionType::Ready) {
                memory.answered.insert(key.clone(), after.observed());
            }
            self.writer.cancel(&key);
            return;
        }
        let nothing = S::default();
        let before = before.unwrap_or(&nothing);
        let answered = memory.answered.get(&key) == Some(&after.observed());
        let class = class(before, after, answered);
        // The old generation in its status tells everybody to wait.
        if self.settling && class == Class::Preliminary {
            self.writer.cancel(&key);
            return;
        }
        let teller = Teller { object: &key, uid: meta.uid.as_deref().unwrap_or_default() };
        let notices = notices(&teller, before, after);
        match serde_json::to_value(after) {
            Ok(status) => {
                let resource_version = meta.resource_version.clone().unwrap_or_default();
                self.writer.put(StatusWrite { key, resource_version, status, notices }, class);
            }
            Err(error) => tracing::error!(object = %key, %error, "a status cannot be represented in JSON"),
        }
    }

    fn put_broken(&self, key: &ObjectKey, meta: &ObjectMeta, error: &str, memory: &mut Memory) {
        let version = meta.resource_version.clone().unwrap_or_default();
        let generation = meta.generation.unwrap_or(1);
        let (seen, before) = memory.broken.get(key).cloned().unwrap_or_default();
        let message = format!("the stored object cannot be read and is left out: {error}; apply it again with the present CRDs installed");
        let verdict = Verdict {
            ready: Said::no(ReadyReason::InvalidSpec, message),
            programmed: Said::no(ProgrammedReason::Pending, "it is not part of the configuration: see the condition Ready"),
            available: Said::unknown(AvailableReason::Unknown, "it is not part of the configuration"),
            progress: Progress::Stalled,
        };
        let after = conditions(&before, &verdict, generation, self.world.now);
        let told = generation.to_string();
        if seen == told && before == after {
            return;
        }
        tracing::warn!(object = %key, error, "a stored object cannot be read");
        let teller = Teller { object: key, uid: meta.uid.as_deref().unwrap_or_default() };
        let notices = teller.conditions(&before, &after);
        let status = serde_json::json!({"observedGeneration": generation, "conditions": after});
        memory.broken.insert(key.clone(), (told, after));
        self.writer.put(StatusWrite { key: key.clone(), resource_version: version, status, notices }, Class::Answer);
    }
}

fn plain<S: Status>(teller: &Teller<'_>, before: &S, after: &S) -> Vec<Notice> {
    teller.conditions(before.conditions(), after.conditions())
}

fn is(conditions: &[Condition], type_: ConditionType) -> bool {
    find(conditions, type_).is_some_and(|c| c.status == Tri::True.as_str())
}

/// Status of `Ready`, and the reason where it is not True.
fn ready_word(conditions: &[Condition]) -> (&'static str, String) {
    let ready = find(conditions, ConditionType::Ready);
    match ready.map(|c| (c.status.as_str(), c.reason.clone())) {
        Some(("True", _)) => ("True", String::new()),
        Some(("False", reason)) => ("False", reason),
        Some((_, reason)) => ("Unknown", reason),
        None => ("Unknown", AvailableReason::Unknown.to_string()),
    }
}

/// How urgent a change of status is.
fn class<S: Status>(before: &S, after: &S, answered: bool) -> Class {
    let final_word = is(after.conditions(), ConditionType::Ready) || is(after.conditions(), ConditionType::Stalled);
    if before.observed() != after.observed() {
        return if final_word { Class::Answer } else { Class::Preliminary };
    }
    if !answered && !is(before.conditions(), ConditionType::Ready) && is(after.conditions(), ConditionType::Ready) {
        return Class::Answer;
    }
    let words = |s: &S| -> Vec<(String, String, String)> {
        s.conditions().iter().map(|c| (c.type_.clone(), c.status.clone(), c.reason.clone())).collect()
    };
    if words(before) != words(after) || before.phase() != after.phase() { Class::Transition } else { Class::Repeat }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(observed: i64, all: &[(&str, &str, &str)], state: Option<&str>) -> ConnectionStatus {
        ConnectionStatus {
            observed_generation: observed,
            conditions: all
                .iter()
                .map(|(t, s, r)| Condition { type_: (*t).into(), status: (*s).into(), reason: (*r).into(), ..Condition::default() })
                .collect(),
            state: state.map(str::to_owned),
            ..ConnectionStatus::default()
        }
    }

    #[test]
    fn writes_are_as_urgent_as_what_they_say() {
        let untouched = status(-1, &[], None);
        let waiting = status(1, &[("Ready", "False", "Progressing"), ("Reconciling", "True", "Progressing")], None);
        let ready = status(1, &[("Ready", "True", "Accepted"), ("Available", "True", "Active")], Some("Active"));
        let cooling = status(1, &[("Ready", "True", "Accepted"), ("Available", "False", "CoolingDown")], Some("Cooling"));
        let stalled = status(1, &[("Ready", "False", "SecretNotFound"), ("Stalled", "True", "SecretNotFound")], None);
        let banned = status(1, &[("Ready", "True", "Accepted"), ("Available", "False", "CoolingDown")], Some("Banned"));
        let mut later = cooling.clone();
        later.until = Some("2030-01-01T00:00:00Z".into());
        for (before, after, answered, expected) in [
            (&untouched, &ready, false, Class::Answer),
            (&untouched, &stalled, false, Class::Answer),
            (&untouched, &waiting, false, Class::Preliminary),
            (&waiting, &ready, false, Class::Answer),
            (&waiting, &ready, true, Class::Transition),
            (&ready, &cooling, true, Class::Transition),
            (&cooling, &banned, true, Class::Transition),
            (&cooling, &later, true, Class::Repeat),
        ] {
            assert_eq!(class(before, after, answered), expected, "{before:?} -> {after:?}");
        }
    }
}
