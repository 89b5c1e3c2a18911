//! Answers that need no walk: the name means nothing, or the key may not ask for it.

use super::{Answer, Family, Origin, Recovery, redact};

/// 404 `model_not_found`, with the nearest name that the key may see.
#[must_use]
pub fn model_not_found(model: &str, suggestion: Option<&str>) -> Answer {
    let hint = suggestion.map_or_else(
        || "ask for a combo by name or for PROVIDER/MODEL; GET /v1/models lists what there is".to_owned(),
        |name| format!("did you mean `{name}`?"),
    );
    Answer::new(404, "model_not_found", Family::NotFound, format!("the model `{}` does not exist: {hint}", redact(model)))
        .because("model_not_found", Recovery::SwitchCombo)
}

/// 403 `model_not_allowed`.
#[must_use]
pub fn model_not_allowed(model: &str) -> Answer {
    let message =
        format!("this key may not use `{}`; its Secret's annotation omniroute.dev/allowed-models says what it may", redact(model));
    let mut answer = Answer::new(403, "model_not_allowed", Family::Permission, message).because("key_policy", Recovery::SwitchCombo);
    answer.origin = Origin::Policy;
    answer
}
