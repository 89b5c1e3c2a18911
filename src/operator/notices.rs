//! Which change of a status is worth an Event. Pure.

use super::events::Notice;
use super::object::ObjectKey;
use super::status::conditions::find;
use crate::api::conditions::{Condition, ConditionType, ProgrammedReason, ReadyReason};
use crate::api::status::{ConnectionStatus, ProviderStatus};

/// What is worth an Event although it may end without a change of the object: another program or a right is missing.
const TOLD: [(ConditionType, &str); 2] =
    [(ConditionType::Programmed, ProgrammedReason::SnapshotRefused.as_str()), (ConditionType::Ready, ReadyReason::Forbidden.as_str())];

/// Collects notices about one object.
pub struct Teller<'a> {
    /// The object.
    pub object: &'a ObjectKey,
    /// Its unique id.
    pub uid: &'a str,
}

impl Teller<'_> {
    fn notice(&self, warning: bool, reason: impl Into<String>, note: impl Into<String>) -> Notice {
        Notice { object: self.object.clone(), uid: self.uid.to_owned(), warning, reason: reason.into(), note: note.into() }
    }

    /// What every kind tells: somebody has to act, it works again, the gateway refuses the configuration, the operator lacks a right.
    #[must_use]
    pub fn conditions(&self, before: &[Condition], after: &[Condition]) -> Vec<Notice> {
        let mut notices = Vec::new();
        let (was, is) = (find(before, ConditionType::Stalled), find(after, ConditionType::Stalled));
        match (was, is) {
            (was, Some(is)) if was.is_none_or(|w| w.reason != is.reason) => {
                notices.push(self.notice(true, &is.reason, &is.message));
            }
            (Some(_), None) if find(after, ConditionType::Ready).is_some_and(|c| c.status == "True") => {
                notices.push(self.notice(false, "Accepted", "it is in force again"));
            }
            _ => {}
        }
        for (type_, reason) in TOLD {
            let why = |all: &[Condition]| find(all, type_).filter(|c| c.reason == reason).map(|c| c.message.clone());
            if let (None, Some(why)) = (why(before), why(after)) {
                notices.push(self.notice(true, reason, why));
            }
        }
        notices
    }

    /// A credential died, a quota is used up, an account is back.
    #[must_use]
    pub fn connection(&self, before: &ConnectionStatus, after: &ConnectionStatus) -> Vec<Notice> {
        let mut notices = self.conditions(&before.conditions, &after.conditions);
        let (was, is) = (before.state.as_deref(), after.state.as_deref());
        let message = find(&after.conditions, ConditionType::Available).map_or("", |c| c.message.as_str());
        let terminal = |state: Option<&str>| state.is_some_and(|s| matches!(s, "Banned" | "Expired" | "CreditsExhausted"));
        if was != is && terminal(is) {
            notices.push(self.notice(true, is.unwrap_or_default(), message));
        } else if terminal(was) && is == Some("Active") {
            notices.push(self.notice(false, "Active", "in rotation again"));
        }
        let quota = |s: &ConnectionStatus| s.state.as_deref() == Some("Cooling") && s.reason.as_deref() == Some("QuotaExhausted");
        if !quota(before) && quota(after) {
            notices.push(self.notice(true, "QuotaExhausted", message));
        }
        notices
    }

    /// A breaker opened or closed.
    #[must_use]
    pub fn provider(&self, before: &ProviderStatus, after: &ProviderStatus) -> Vec<Notice> {
        let mut notices = self.conditions(&before.conditions, &after.conditions);
        let state = |s: &ProviderStatus| s.breaker.as_ref().map(|b| b.state.clone()).unwrap_or_default();
        let (was, is) = (state(before), state(after));
        if was != is && is == "Open" {
            let message = find(&after.conditions, ConditionType::Available).map_or("", |c| c.message.as_str());
            notices.push(self.notice(true, "BreakerOpen", message));
        } else if matches!(was.as_str(), "Open" | "HalfOpen") && matches!(is.as_str(), "Closed" | "Degraded") {
            notices.push(self.notice(false, "BreakerClosed", "traffic flows again"));
        }
        notices
    }
}

#[cfg(test)]
mod tests {
    use super::super::object::ObjectKind;
    use super::*;
    use crate::api::status::BreakerStatus;

    fn reasons(notices: &[Notice]) -> Vec<(&str, bool)> {
        notices.iter().map(|n| (n.reason.as_str(), n.warning)).collect()
    }

    fn key() -> ObjectKey {
        ObjectKey { namespace: "a".into(), kind: ObjectKind::Connection, name: "x".into() }
    }

    #[test]
    fn a_dead_credential_is_told_once_and_its_recovery_too() {
        let key = key();
        let teller = Teller { object: &key, uid: "u" };
        let state = |s: &str, reason: Option<&str>| ConnectionStatus {
            state: Some(s.into()),
            reason: reason.map(str::to_owned),
            ..ConnectionStatus::default()
        };
        let (active, expired) = (state("Active", None), state("Expired", None));
        assert_eq!(reasons(&teller.connection(&active, &expired)), [("Expired", true)]);
        assert_eq!(reasons(&teller.connection(&expired, &expired)), []);
        assert_eq!(reasons(&teller.connection(&expired, &active)), [("Active", false)]);
        let quota = state("Cooling", Some("QuotaExhausted"));
        assert_eq!(reasons(&teller.connection(&active, &quota)), [("QuotaExhausted", true)]);
        let busy = state("Cooling", Some("RateLimitExceeded"));
        assert_eq!(reasons(&teller.connection(&active, &busy)), [], "a rate limit is daily business");
    }

    #[test]
    fn a_breaker_tells_when_it_opens_and_closes() {
        let key = key();
        let teller = Teller { object: &key, uid: "u" };
        let state = |s: &str| ProviderStatus {
            breaker: Some(BreakerStatus { state: s.into(), ..BreakerStatus::default() }),
            ..ProviderStatus::default()
        };
        let of =
            |a: &str, b: &str| reasons(&teller.provider(&state(a), &state(b))).into_iter().map(|(r, _)| r.to_owned()).collect::<Vec<_>>();
        assert_eq!(of("Closed", "Open"), ["BreakerOpen"]);
        assert_eq!(of("Open", "HalfOpen"), Vec::<String>::new());
        assert_eq!(of("HalfOpen", "Closed"), ["BreakerClosed"]);
        assert_eq!(of("HalfOpen", "Open"), ["BreakerOpen"]);
        assert_eq!(of("Closed", "Degraded"), Vec::<String>::new());
    }

    #[test]
    fn what_somebody_has_to_mend_is_told_when_it_changes() {
        let key = key();
        let teller = Teller { object: &key, uid: "u" };
        let of = |type_: &str, status: &str, reason: &str| Condition {
            type_: type_.into(),
            status: status.into(),
            reason: reason.into(),
            ..Condition::default()
        };
        let stalled = [of("Stalled", "True", "SecretNotFound")];
        assert_eq!(reasons(&teller.conditions(&[], &stalled)), [("SecretNotFound", true)]);
        assert_eq!(reasons(&teller.conditions(&stalled, &stalled)), []);
        assert_eq!(reasons(&teller.conditions(&stalled, &[of("Ready", "True", "Accepted")])), [("Accepted", false)]);
        let refused = [of("Programmed", "False", "SnapshotRefused")];
        assert_eq!(reasons(&teller.conditions(&[], &refused)), [("SnapshotRefused", true)]);
        assert_eq!(reasons(&teller.conditions(&refused, &refused)), []);
        let forbidden = [of("Ready", "False", "Forbidden"), of("Reconciling", "True", "Forbidden")];
        assert_eq!(reasons(&teller.conditions(&[], &forbidden)), [("Forbidden", true)]);
        assert_eq!(reasons(&teller.conditions(&forbidden, &forbidden)), []);
    }
}
