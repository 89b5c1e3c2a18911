//! Status of a ResilienceSettings, which is the gateway.

use serde_json::Value;

use super::conditions::{Progress, Said, Verdict, conditions};
use super::{Patience, Subject, World, count, serving, verdict};
use crate::api;
use crate::api::conditions::{AvailableReason, ProgrammedReason, ReadyReason};
use crate::api::status::{FindingStatus, GatewayStatus, MAX_FINDINGS, SettingsStatus};
use crate::compile::Finding;
use crate::operator::child::Live;
use crate::operator::events::cut;
use crate::operator::fleet::Fleet;
use crate::operator::object::ObjectKind;

/// How far the Deployment is.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Rollout {
    /// Wanted pods.
    pub wanted: i32,
    /// Ready pods.
    pub ready: i32,
    /// Pods of the newest template.
    pub updated: i32,
    /// The Deployment controller has seen the newest spec.
    pub observed: bool,
    /// Why it makes no progress any more.
    pub stuck: Option<String>,
    /// Image of the pods.
    pub image: Option<String>,
}

impl Rollout {
    /// Reads a Deployment.
    #[must_use]
    pub fn of(content: &Value, status: Option<&Value>) -> Self {
        let nothing = Value::Null;
        let status = status.unwrap_or(&nothing);
        let number = |value: Option<&Value>| value.and_then(Value::as_i64).unwrap_or(0);
        let progressing = status.get("conditions").and_then(Value::as_array).and_then(|all| {
            all.iter().find(|c| {
                c.get("type").and_then(Value::as_str) == Some("Progressing") && c.get("status").and_then(Value::as_str) == Some("False")
            })
        });
        Self {
            wanted: count(content.pointer("/spec/replicas").and_then(Value::as_i64).unwrap_or(1)),
            ready: count(number(status.get("readyReplicas"))),
            updated: count(number(status.get("updatedReplicas"))),
            observed: number(status.get("observedGeneration")) >= number(content.pointer("/metadata/generation")),
            stuck: progressing.map(|c| c.get("message").and_then(Value::as_str).unwrap_or("no progress").to_owned()),
            image: content.pointer("/spec/template/spec/containers/0/image").and_then(Value::as_str).map(str::to_owned),
        }
    }

    /// Whether the pods of a Deployment are being replaced. One that makes no progress any more does not keep others waiting: what it waits for
    /// may be the very image that it is about to get.
    #[must_use]
    pub fn is_under_way(live: &Live) -> bool {
        let rollout = Self::of(&live.content, live.status.as_ref());
        rollout.stuck.is_none() && (!rollout.is_complete() || rollout.ready < rollout.wanted)
    }

    fn is_complete(&self) -> bool {
        self.observed && self.updated >= self.wanted
    }

    /// The tag or digest of the image.
    fn version(&self) -> Option<String> {
        let image = self.image.as_deref()?;
        let last = image.rsplit('/').next().unwrap_or(image);
        let version = last.rsplit_once([':', '@']).map_or(last, |(_, v)| v);
        Some(cut(version.to_owned(), 64))
    }
}

/// The status of a ResilienceSettings. `findings` are those of the whole namespace that have no object of their own to stand on.
#[must_use]
pub fn settings(
    world: &World<'_>,
    patience: &mut Patience,
    object: &api::ResilienceSettings,
    rollout: Option<&Rollout>,
    hash: Option<&str>,
    findings: &[&Finding],
) -> SettingsStatus {
    let name = object.metadata.name.as_deref().unwrap_or_default();
    let before = object.status.clone().unwrap_or_default();
    let generation = object.metadata.generation.unwrap_or(1);
    let in_force = world.gateway == Some(name);
    let subject = Subject {
        kind: ObjectKind::ResilienceSettings,
        name,
        generation,
        before: &before.conditions,
        observed: before.observed_generation,
    };
    let mut verdict = verdict(world, &subject, patience, available(world, in_force));
    if in_force {
        gateway_verdict(world, rollout, &mut verdict);
    } else {
        verdict.programmed = Said::no(ProgrammedReason::Pending, "another ResilienceSettings is the gateway of this namespace");
    }
    SettingsStatus {
        observed_generation: generation,
        conditions: conditions(&before.conditions, &verdict, generation, world.now),
        gateway: rollout.filter(|_| in_force).map(|r| GatewayStatus {
            replicas: r.wanted,
            ready: r.ready,
            pods: Some(format!("{}/{}", r.ready, r.wanted)),
            snapshot_hash: hash.map(|h| h.chars().take(12).collect()),
            version: r.version(),
        }),
        findings: if in_force { listed(findings, world.fleet) } else { Vec::new() },
    }
}

/// What concerns the gateway as a whole.
fn gateway_verdict(world: &World<'_>, rollout: Option<&Rollout>, verdict: &mut Verdict) {
    if let Some(trouble) = world.trouble {
        verdict.ready = Said::no(&trouble.reason, &trouble.message);
        verdict.progress = if trouble.stalled { Progress::Stalled } else { Progress::Reconciling };
        return;
    }
    if verdict.progress == Progress::Stalled {
        return;
    }
    if let Some(why) = rollout.and_then(|r| r.stuck.as_ref()) {
        verdict.ready = Said::no(ReadyReason::Progressing, format!("Deployment `omniroute-gateway` makes no progress: {why}"));
        verdict.progress = Progress::Stalled;
        return;
    }
    if verdict.progress == Progress::Done && !rollout.is_some_and(Rollout::is_complete) {
        let updated = rollout.map_or_else(String::new, |r| format!("{} of {} pods are of the newest template", r.updated, r.wanted));
        verdict.ready = Said::no(ReadyReason::Progressing, format!("the gateway is being rolled out: {updated}"));
        verdict.progress = Progress::Reconciling;
    }
}

fn available(world: &World<'_>, in_force: bool) -> Said {
    if !in_force {
        return Said::unknown(AvailableReason::Unknown, "it is not in force");
    }
    if world.fleet.ready == 0 {
        return Said::unknown(AvailableReason::Unknown, "no gateway pod is ready");
    }
    let found = match world.fleet.findings.as_slice() {
        [] => String::new(),
        findings => {
            let reasons: Vec<&str> = findings.iter().map(|(finding, _)| finding.reason.as_str()).collect();
            format!("; reported by pods: {}, see `status.findings`", reasons.join(", "))
        }
    };
    serving(world, format!("{} gateway pod{} ready{found}", world.fleet.ready, if world.fleet.ready == 1 { " is" } else { "s are" }))
}

/// What pods say first: it stands nowhere else.
fn listed(findings: &[&Finding], fleet: &Fleet) -> Vec<FindingStatus> {
    let of_pods = fleet.findings.iter().map(|(f, pods)| {
        let message = format!("{pods} of {} pods: {}", fleet.reporting, f.message);
        finding(&f.kind, &f.name, &f.field, &f.reason, message)
    });
    let of_objects = findings.iter().map(|f| finding(&f.kind, &f.name, &f.field, &f.reason, f.message.clone()));
    of_pods.chain(of_objects).take(MAX_FINDINGS).collect()
}

fn finding(kind: &str, name: &str, field: &str, reason: &str, message: String) -> FindingStatus {
    FindingStatus {
        kind: cut(kind.to_owned(), 63),
        name: cut(name.to_owned(), 253),
        field: (!field.is_empty()).then(|| cut(field.to_owned(), 256)),
        reason: cut(reason.to_owned(), 64),
        message: cut(message, 1_024),
    }
}
