//! What is wrong with a resource, told on the resource it belongs to.

use serde::{Deserialize, Serialize};

use crate::api::near::suggest;

/// How bad a finding is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Severity {
    /// Worth a look; the object works.
    Warning,
    /// The object refers to something that is not there (yet): another controller may bring it, so this is not final at once.
    Unresolved,
    /// The object itself is wrong; its owner has to change it.
    Error,
}

/// One thing that is wrong, with the way out.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// Kind of the object it belongs to.
    pub kind: String,
    /// Name of the object.
    pub name: String,
    /// Dotted path of the field (`spec.targets[1].model`).
    pub field: String,
    /// Reason of `Ready=False` (interface 8): `ProviderNotFound`, `InvalidSpec`, …
    pub reason: String,
    /// How bad it is.
    pub severity: Severity,
    /// What is wrong, with the value, and the way out. At most 1,024 characters.
    pub message: String,
}

impl Finding {
    /// The longest message; longer ones are cut visibly.
    pub const MAX_MESSAGE: usize = 1_024;

    pub(super) fn new(
        object: (&str, &str),
        field: impl Into<String>,
        reason: &str,
        severity: Severity,
        message: impl Into<String>,
    ) -> Self {
        let mut message: String = message.into();
        if message.len() > Self::MAX_MESSAGE {
            let cut = (0..=Self::MAX_MESSAGE - 4).rev().find(|i| message.is_char_boundary(*i)).unwrap_or(0);
            message.truncate(cut);
            message.push('…');
        }
        Self { kind: object.0.to_owned(), name: object.1.to_owned(), field: field.into(), reason: reason.to_owned(), severity, message }
    }
}

/// The sentence part that goes behind a "not found": a suggestion, or the names there are.
#[must_use]
pub(super) fn hint<'a>(wanted: &str, candidates: impl IntoIterator<Item = &'a str> + Clone) -> String {
    if let Some(near) = suggest(wanted, candidates.clone()) {
        return format!("; did you mean `{near}`?");
    }
    let mut known: Vec<&str> = candidates.into_iter().take(8).collect();
    known.sort_unstable();
    if known.is_empty() { String::new() } else { format!("; known here: {}", known.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_messages_are_cut_visibly() {
        let f = Finding::new(("Combo", "x"), "spec", "InvalidSpec", Severity::Error, "é".repeat(2_000));
        assert!(f.message.len() <= Finding::MAX_MESSAGE && f.message.ends_with('…'));
    }
}
