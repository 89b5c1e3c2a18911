//! Findings, live state and confirmed fragments -> the whole status of every object. Pure.
//!
//! Configuration health and runtime health are different things: a vendor's outage never turns `Ready` false, it turns `Available`
//! false and shows a deadline.

mod combo;
pub mod conditions;
mod connection;
mod invariants;
mod patience;
mod provider;
mod rule;
mod settings;

use std::collections::BTreeMap;

pub use combo::combo;
pub use connection::connection;
pub use invariants::violations;
pub use patience::{PATIENCE_MS, Patience};
pub use provider::provider;
pub use rule::rule;
pub use settings::{Rollout, settings};

use self::conditions::{Progress, Said, Verdict, find};
use super::fleet::Fleet;
use super::object::ObjectKind;
use crate::api::conditions::{AvailableReason, Condition, ConditionType, ProgrammedReason, ReadyReason};
use crate::api::time::EpochMs;
use crate::compile::{Finding, Severity};
use crate::snapshot::Snapshot;

/// Why the configuration as a whole is not delivered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Trouble {
    /// CamelCase reason.
    pub reason: String,
    /// What is wrong and the way out.
    pub message: String,
    /// Whether somebody has to change something.
    pub stalled: bool,
}

/// Everything that statuses follow from.
#[derive(Debug)]
pub struct World<'a> {
    /// The configuration that is wanted.
    pub snapshot: &'a Snapshot,
    /// What is wrong with objects, by `Kind/name`.
    pub findings: BTreeMap<String, Vec<&'a Finding>>,
    /// The ResilienceSettings in force.
    pub gateway: Option<&'a str>,
    /// The pods.
    pub fleet: &'a Fleet,
    /// Why the configuration is not delivered.
    pub trouble: Option<&'a Trouble>,
    /// No pod has been ready for longer than a restart takes. Before that, what was programmed counts as programmed.
    pub deserted: bool,
    /// The configuration has only just changed. What was programmed in this generation counts as programmed until pods had time to
    /// load it, so that a new default does not turn every object of the namespace red and green again.
    pub settling: bool,
    /// Now.
    pub now: EpochMs,
}

impl<'a> World<'a> {
    /// Findings by the object that they are about.
    #[must_use]
    pub fn sort_findings(findings: &'a [Finding]) -> BTreeMap<String, Vec<&'a Finding>> {
        let mut map: BTreeMap<String, Vec<&Finding>> = BTreeMap::new();
        for finding in findings {
            map.entry(format!("{}/{}", finding.kind, finding.name)).or_default().push(finding);
        }
        map
    }

    fn findings(&self, kind: ObjectKind, name: &str) -> &[&'a Finding] {
        self.findings.get(&format!("{}/{name}", kind.name())).map_or(&[], Vec::as_slice)
    }
}

/// One object whose status is wanted.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// Kind.
    pub kind: ObjectKind,
    /// Name.
    pub name: &'a str,
    /// Generation.
    pub generation: i64,
    /// Conditions that it has.
    pub before: &'a [Condition],
    /// Generation that its status is about.
    pub observed: i64,
}

/// The verdict on an object; `available` is what its kind says about serving.
#[must_use]
pub fn verdict(world: &World<'_>, subject: &Subject<'_>, patience: &mut Patience, available: Said) -> Verdict {
    let fragment = match subject.kind {
        ObjectKind::ResilienceSettings => "ResilienceSettings".to_owned(),
        kind => format!("{}/{}", kind.name(), subject.name),
    };
    let hash = world.snapshot.fragments.get(&fragment);
    let findings = world.findings(subject.kind, subject.name);
    let worst = findings.iter().map(|f| f.severity).max().unwrap_or(Severity::Warning);
    let programmed = match (worst, hash) {
        (Severity::Error | Severity::Unresolved, None) => {
            Said::no(ProgrammedReason::Pending, "it is not part of the configuration: see the condition Ready")
        }
        _ if world.gateway.is_none() => Said::no(ProgrammedReason::NoReadyGateway, "the namespace has no gateway"),
        _ => programmed(world, subject, &fragment, hash),
    };
    let (ready, progress) = ready(world, subject, patience, worst, findings, &programmed);
    Verdict { ready, programmed, available, progress }
}

fn programmed(world: &World<'_>, subject: &Subject<'_>, fragment: &str, hash: Option<&String>) -> Said {
    let spread = world.fleet.spread(fragment, hash);
    let count = format!("{} of {} ready gateway pods run it", spread.running, spread.ready);
    if spread.everywhere() {
        return Said::yes(ProgrammedReason::Programmed, count);
    }
    let was = find(subject.before, ConditionType::Programmed).filter(|c| c.status == "True" && subject.observed == subject.generation);
    if let Some(was) = was.filter(|_| world.settling) {
        return Said::again(was);
    }
    if spread.ready == 0 {
        // One pod that restarts must not turn every object of the namespace red and green again.
        return match was {
            Some(was) if !world.deserted => Said::again(was),
            _ => Said::no(ProgrammedReason::NoReadyGateway, "no gateway pod is ready"),
        };
    }
    match (&world.fleet.refused, world.trouble) {
        (_, Some(trouble)) => {
            Said::no(ProgrammedReason::Pending, format!("{count}; the configuration is not delivered: {}", trouble.message))
        }
        (Some(why), None) => {
            Said::no(ProgrammedReason::SnapshotRefused, format!("{count}; the gateway keeps the last good configuration: {why}"))
        }
        (None, None) => Said::no(ProgrammedReason::Pending, count),
    }
}

fn ready(
    world: &World<'_>,
    subject: &Subject<'_>,
    patience: &mut Patience,
    worst: Severity,
    findings: &[&Finding],
    programmed: &Said,
) -> (Said, Progress) {
    if worst != Severity::Warning {
        let reason = findings.iter().find(|f| f.severity == worst).map_or("InvalidSpec", |f| f.reason.as_str());
        let said = Said::no(reason, tell(findings, worst));
        let progress = if worst == Severity::Error { Progress::Stalled } else { patience.judge(subject, reason, world.now) };
        return (said, progress);
    }
    if world.gateway.is_none() {
        let reason = ReadyReason::NoGateway;
        let message = "the namespace has no ResilienceSettings, which is the gateway: create one (`spec: {}` is enough)";
        return (Said::no(reason, message), patience.judge(subject, reason.as_str(), world.now));
    }
    if programmed.status != conditions::Tri::True {
        let stalled = world.trouble.is_some_and(|t| t.stalled);
        let progress = if stalled { Progress::Stalled } else { Progress::Reconciling };
        return (Said::no(ReadyReason::Progressing, programmed.message.clone()), progress);
    }
    let message = if findings.is_empty() {
        format!("accepted; {}", programmed.message)
    } else {
        format!("accepted; {}; {}", programmed.message, tell(findings, Severity::Warning))
    };
    (Said::yes(ReadyReason::Accepted, message), Progress::Done)
}

/// The messages of the findings of one severity, the first three.
fn tell(findings: &[&Finding], severity: Severity) -> String {
    let of: Vec<&&Finding> = findings.iter().filter(|f| f.severity == severity).collect();
    let mut parts: Vec<String> = of.iter().take(3).map(|f| format!("{}: {}", f.field, f.message)).collect();
    if of.len() > 3 {
        parts.push(format!("and {} more", of.len() - 3));
    }
    parts.join("; ")
}

/// `Available` of an object that is not part of the configuration, or of which no pod can tell anything.
fn unknown(world: &World<'_>, fragment: &str, before: &[Condition]) -> Option<Said> {
    if !world.snapshot.fragments.contains_key(fragment) {
        return Some(Said::unknown(AvailableReason::Unknown, "it is not part of the configuration"));
    }
    if world.fleet.ready > 0 {
        return None;
    }
    let kept = find(before, ConditionType::Available).filter(|_| !world.deserted).map(Said::again);
    Some(kept.unwrap_or_else(|| Said::unknown(AvailableReason::Unknown, "no gateway pod is ready")))
}

/// Whether nobody reports live state, so that what was known last is kept while `Available` says how old it is.
fn is_blind(world: &World<'_>, fragment: &str) -> bool {
    world.fleet.reporting == 0 && world.snapshot.fragments.contains_key(fragment)
}

/// `Available=True`, unless a ready pod is silent: what it knows may be the opposite.
fn serving(world: &World<'_>, message: String) -> Said {
    if world.fleet.is_known() {
        return Said::yes(AvailableReason::Active, message);
    }
    Said::unknown(AvailableReason::Unknown, format!("{} of {} ready gateway pods report", world.fleet.reporting, world.fleet.ready))
}

fn time(until: Option<EpochMs>) -> Option<String> {
    until.map(EpochMs::rfc3339)
}

fn count(number: impl TryInto<i32>) -> i32 {
    number.try_into().unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests;
