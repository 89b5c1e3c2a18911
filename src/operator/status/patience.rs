//! A reference that does not resolve may still come from another controller: it is waited for before anybody is asked to act.

use std::collections::BTreeMap;

use super::Subject;
use super::conditions::{Progress, find};
use crate::api::conditions::ConditionType;
use crate::api::time::EpochMs;
use crate::operator::object::ObjectKind;

/// How long (decisions 10.5).
pub const PATIENCE_MS: u64 = 60_000;

/// Since when references have not resolved.
#[derive(Debug, Default)]
pub struct Patience {
    since: BTreeMap<(ObjectKind, String), (String, EpochMs)>,
    seen: Vec<(ObjectKind, String)>,
}

impl Patience {
    /// Begins a look at all objects of a namespace.
    pub fn begin(&mut self) {
        self.seen.clear();
    }

    /// Ends it: objects that were not judged resolve now. Answers when the next one runs out.
    pub fn end(&mut self, now: EpochMs) -> Option<EpochMs> {
        let seen = std::mem::take(&mut self.seen);
        self.since.retain(|key, _| seen.contains(key));
        self.since.values().map(|(_, since)| since.plus(PATIENCE_MS)).filter(|end| *end > now).min()
    }

    /// How far the work on an object is that waits for this reason.
    pub fn judge(&mut self, subject: &Subject<'_>, reason: &str, now: EpochMs) -> Progress {
        let key = (subject.kind, subject.name.to_owned());
        self.seen.push(key.clone());
        let entry = self.since.entry(key).or_insert_with(|| (reason.to_owned(), now));
        if entry.0 != reason {
            *entry = (reason.to_owned(), now);
        }
        // An operator that has just started must not wait anew for what its predecessor had given up.
        let given_up = subject.observed == subject.generation
            && find(subject.before, ConditionType::Stalled).is_some_and(|c| c.status == "True" && c.reason == reason);
        if given_up || now.since(entry.1) >= PATIENCE_MS { Progress::Stalled } else { Progress::Reconciling }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::conditions::Condition;

    fn subject(before: &[Condition]) -> Subject<'_> {
        Subject { kind: ObjectKind::Connection, name: "a", generation: 1, before, observed: 1 }
    }

    #[test]
    fn patience_runs_out_after_a_minute_and_starts_anew_for_another_reason() {
        let mut p = Patience::default();
        let t = |ms: i64| EpochMs(ms);
        p.begin();
        assert_eq!(p.judge(&subject(&[]), "SecretNotFound", t(0)), Progress::Reconciling);
        assert_eq!(p.end(t(0)), Some(t(60_000)));
        p.begin();
        assert_eq!(p.judge(&subject(&[]), "SecretNotFound", t(60_000)), Progress::Stalled);
        assert_eq!(p.end(t(60_000)), None);
        p.begin();
        assert_eq!(p.judge(&subject(&[]), "SecretKeyNotFound", t(61_000)), Progress::Reconciling);
        p.end(t(61_000));
        p.begin();
        p.end(t(62_000));
        p.begin();
        assert_eq!(p.judge(&subject(&[]), "SecretKeyNotFound", t(200_000)), Progress::Reconciling, "it had resolved in between");
    }

    #[test]
    fn what_a_predecessor_gave_up_stays_given_up() {
        let stalled =
            [Condition { type_: "Stalled".into(), status: "True".into(), reason: "SecretNotFound".into(), ..Condition::default() }];
        let mut p = Patience::default();
        assert_eq!(p.judge(&subject(&stalled), "SecretNotFound", EpochMs(0)), Progress::Stalled);
        let mut p = Patience::default();
        let edited = Subject { generation: 2, ..subject(&stalled) };
        assert_eq!(p.judge(&edited, "SecretNotFound", EpochMs(0)), Progress::Reconciling);
    }
}
