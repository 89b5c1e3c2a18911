//! Conditions as kstatus, Flux and Helm read them.

use crate::api::conditions::{Condition, ConditionType};
use crate::api::time::EpochMs;
use crate::operator::events::cut;

/// Longest message.
pub const MAX_MESSAGE: usize = 1_024;

/// Status of a condition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Tri {
    True,
    False,
    Unknown,
}

impl Tri {
    /// The wire name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

/// One condition before it is compared with the one that is there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Said {
    /// Status.
    pub status: Tri,
    /// CamelCase reason.
    pub reason: String,
    /// Message for people.
    pub message: String,
}

impl Said {
    /// True, with a reason.
    pub fn yes(reason: impl ToString, message: impl Into<String>) -> Self {
        Self { status: Tri::True, reason: reason.to_string(), message: message.into() }
    }

    /// False, with a reason.
    pub fn no(reason: impl ToString, message: impl Into<String>) -> Self {
        Self { status: Tri::False, reason: reason.to_string(), message: message.into() }
    }

    /// What a condition said before.
    #[must_use]
    pub fn again(condition: &Condition) -> Self {
        let status = match condition.status.as_str() {
            "True" => Tri::True,
            "False" => Tri::False,
            _ => Tri::Unknown,
        };
        Self { status, reason: condition.reason.clone(), message: condition.message.clone() }
    }

    /// Unknown, with a reason.
    pub fn unknown(reason: impl ToString, message: impl Into<String>) -> Self {
        Self { status: Tri::Unknown, reason: reason.to_string(), message: message.into() }
    }
}

/// How far the work on an object is. It decides over `Reconciling` and `Stalled`, which exist only while they are true.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// Nothing more will happen: `Ready` is true.
    Done,
    /// Something more will happen without anybody's help.
    Reconciling,
    /// Nothing more will happen until somebody changes something.
    Stalled,
}

/// Everything that conditions follow from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Verdict {
    /// Accepted, resolved and running.
    pub ready: Said,
    /// Runs in every ready pod.
    pub programmed: Said,
    /// Can serve right now.
    pub available: Said,
    /// How far the work is.
    pub progress: Progress,
}

/// When something happened: whole seconds, never ahead of the clock.
#[must_use]
pub fn stamp(now: EpochMs) -> String {
    EpochMs(now.0.div_euclid(1_000) * 1_000).rfc3339()
}

/// The conditions of an object. `before` are those that it has: a time of transition moves only when a status does.
#[must_use]
pub fn conditions(before: &[Condition], verdict: &Verdict, generation: i64, now: EpochMs) -> Vec<Condition> {
    let condition = |type_: ConditionType, said: &Said| {
        let old = before.iter().find(|c| c.type_ == type_.as_str());
        let status = said.status.as_str().to_owned();
        let last_transition_time = match old {
            Some(old) if old.status == status => old.last_transition_time.clone(),
            _ => stamp(now),
        };
        Condition {
            type_: type_.as_str().to_owned(),
            status,
            observed_generation: Some(generation),
            last_transition_time,
            reason: said.reason.clone(),
            message: cut(said.message.clone(), MAX_MESSAGE),
        }
    };
    let mut all = vec![
        condition(ConditionType::Ready, &verdict.ready),
        condition(ConditionType::Programmed, &verdict.programmed),
        condition(ConditionType::Available, &verdict.available),
    ];
    let abnormal = |type_| condition(type_, &Said::yes(&verdict.ready.reason, verdict.ready.message.clone()));
    match verdict.progress {
        Progress::Done => {}
        Progress::Reconciling => all.push(abnormal(ConditionType::Reconciling)),
        Progress::Stalled => all.push(abnormal(ConditionType::Stalled)),
    }
    all
}

/// The condition of a type.
#[must_use]
pub fn find(conditions: &[Condition], type_: ConditionType) -> Option<&Condition> {
    conditions.iter().find(|c| c.type_ == type_.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(ready: Said, progress: Progress) -> Verdict {
        Verdict { ready, programmed: Said::no("Pending", ""), available: Said::unknown("Unknown", ""), progress }
    }

    #[test]
    fn a_time_of_transition_moves_only_with_the_status() {
        let first = conditions(&[], &verdict(Said::no("Progressing", "a"), Progress::Reconciling), 1, EpochMs(1_999));
        let second = conditions(&first, &verdict(Said::no("SecretNotFound", "b"), Progress::Stalled), 2, EpochMs(9_000));
        let ready = find(&second, ConditionType::Ready).unwrap();
        assert_eq!((ready.last_transition_time.as_str(), ready.message.as_str()), ("1970-01-01T00:00:01Z", "b"));
        assert_eq!(ready.observed_generation, Some(2));
        assert!(find(&second, ConditionType::Reconciling).is_none());
        assert_eq!(find(&second, ConditionType::Stalled).unwrap().last_transition_time, "1970-01-01T00:00:09Z");
        let third = conditions(&second, &verdict(Said::yes("Accepted", ""), Progress::Done), 2, EpochMs(20_000));
        assert_eq!(find(&third, ConditionType::Ready).unwrap().last_transition_time, "1970-01-01T00:00:20Z");
        assert_eq!(third.len(), 3);
    }

    #[test]
    fn long_messages_are_cut() {
        let all = conditions(&[], &verdict(Said::no("X", "y".repeat(5_000)), Progress::Stalled), 1, EpochMs(0));
        assert!(all.iter().all(|c| c.message.len() <= MAX_MESSAGE));
    }
}
