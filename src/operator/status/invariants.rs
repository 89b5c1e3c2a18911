//! What holds for every status that the operator writes: the rules by which kstatus, Flux and Helm judge an object.

use crate::api::conditions::Condition;

/// Ways in which a status breaks the rules; empty = good.
///
/// `generation` is that of the object.
#[must_use]
pub fn violations(generation: i64, observed: i64, conditions: &[Condition]) -> Vec<String> {
    let mut found = Vec::new();
    let mut check = |holds: bool, rule: &str| {
        if !holds {
            found.push(rule.to_owned());
        }
    };
    let of = |type_: &str| conditions.iter().find(|c| c.type_ == type_);
    let is = |type_: &str, status: &str| of(type_).is_some_and(|c| c.status == status);
    check(observed >= 1, "`observedGeneration` must be set in every write");
    check(observed <= generation, "`observedGeneration` must not lie ahead of the object");
    for type_ in ["Ready", "Programmed", "Available"] {
        check(of(type_).is_some(), &format!("`{type_}` must be there from the first contact on"));
    }
    for type_ in ["Reconciling", "Stalled"] {
        check(of(type_).is_none_or(|c| c.status == "True"), &format!("`{type_}` must be absent unless it is True"));
    }
    check(!(is("Reconciling", "True") && is("Stalled", "True")), "`Reconciling` and `Stalled` must not both be True");
    if is("Ready", "True") {
        check(of("Reconciling").is_none() && of("Stalled").is_none(), "`Ready=True` excludes `Reconciling` and `Stalled`");
        check(is("Programmed", "True"), "`Ready=True` requires `Programmed=True`");
    } else {
        // Otherwise a waiter would hang without anybody knowing whether to wait or to act.
        check(is("Reconciling", "True") || is("Stalled", "True"), "`Ready` other than True requires `Reconciling` or `Stalled`");
    }
    if is("Ready", "Unknown") {
        check(is("Reconciling", "True"), "`Ready=Unknown` requires `Reconciling=True`");
    }
    let mut types: Vec<&str> = conditions.iter().map(|c| c.type_.as_str()).collect();
    types.sort_unstable();
    types.dedup();
    check(types.len() == conditions.len(), "a condition type must appear once");
    for c in conditions {
        let name = &c.type_;
        check(c.observed_generation == Some(observed), &format!("`{name}` must carry the `observedGeneration` of the status"));
        check(matches!(c.status.as_str(), "True" | "False" | "Unknown"), &format!("`{name}` must be True, False or Unknown"));
        let camel = c.reason.starts_with(|c: char| c.is_ascii_uppercase()) && c.reason.chars().all(|c| c.is_ascii_alphanumeric());
        check(camel, &format!("`{name}` must have a reason in CamelCase"));
        check(c.message.len() <= super::conditions::MAX_MESSAGE, &format!("`{name}` must have a message of at most 1,024 characters"));
        check(c.last_transition_time.ends_with('Z'), &format!("`{name}` must have a time of transition"));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn condition(type_: &str, status: &str) -> Condition {
        Condition {
            type_: type_.into(),
            status: status.into(),
            observed_generation: Some(2),
            last_transition_time: "1970-01-01T00:00:00Z".into(),
            reason: "Because".into(),
            message: String::new(),
        }
    }

    fn good() -> Vec<Condition> {
        vec![condition("Ready", "True"), condition("Programmed", "True"), condition("Available", "False")]
    }

    #[test]
    fn each_rule_can_be_broken() {
        assert_eq!(violations(2, 2, &good()), Vec::<String>::new());
        assert_eq!(violations(2, -1, &[]).len(), 5);
        assert!(!violations(1, 2, &good()).is_empty());
        let with = |extra: &[(&str, &str)]| -> Vec<Condition> {
            let mut all: Vec<Condition> = good().into_iter().filter(|c| !extra.iter().any(|(t, _)| c.type_ == *t)).collect();
            all.extend(extra.iter().map(|(t, s)| condition(t, s)));
            all
        };
        for (bad, broken) in [
            (with(&[("Stalled", "True")]), 1),
            (with(&[("Reconciling", "False")]), 2),
            (with(&[("Ready", "False")]), 1),
            (with(&[("Ready", "Unknown"), ("Stalled", "True")]), 1),
            (with(&[("Ready", "False"), ("Stalled", "True"), ("Reconciling", "True")]), 1),
            (with(&[("Programmed", "False")]), 1),
            (with(&[("Available", "Maybe")]), 1),
        ] {
            assert_eq!(violations(2, 2, &bad).len(), broken, "{bad:?}");
        }
        let mut bad = good();
        bad[0].reason = "not camel".into();
        assert_eq!(violations(2, 2, &bad).len(), 1);
        bad = good();
        bad[2].observed_generation = Some(1);
        assert_eq!(violations(2, 2, &bad).len(), 1);
    }
}
