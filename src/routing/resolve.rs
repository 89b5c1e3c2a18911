//! From the model that a client asks for to what serves it (routing spec 1.1, 1.10).

use std::sync::Arc;

use super::answers::{Answer, refuse};
use super::request::KeyPolicy;
use super::topology::{Leaf, Router};
use crate::api::near::suggest;

/// What a name means.
#[derive(Clone, Debug)]
pub enum Resolved {
    /// A combo, by position in `Snapshot::combos`.
    Combo(usize),
    /// A model of a provider, asked for directly.
    Direct(Arc<Leaf>),
    /// One call of a composed request: a combo's limits, times and permissions, and only a part of it as target.
    Part {
        /// The combo, by position in `Snapshot::combos`.
        combo: usize,
        /// What is called.
        part: Part,
    },
    /// Nothing.
    Unknown {
        /// A name that the client may have meant.
        suggestion: Option<String>,
    },
}

/// What one call of a composed request goes to.
#[derive(Clone, Debug)]
pub enum Part {
    /// An entry of the combo, by position in [`Router::units`]: a model, or a combo as one voice.
    Entry(usize),
    /// A model that the combo names beside its targets.
    Model(Arc<Leaf>),
}

/// Names longer than this are not compared.
const MAX_COMPARED: usize = 100;

impl Router {
    /// What a model name means. Combos come first: by exact name, after `combo/`, then without regard to case, then the same without a
    /// context suffix such as `[1m]`; then `PROVIDER/MODEL`.
    #[must_use]
    pub fn resolve(&self, model: &str) -> Resolved {
        let model = model.trim();
        let bare = strip_context_suffix(model);
        if let Some(combo) = self.combo_named(model).or_else(|| bare.and_then(|b| self.combo_named(b))) {
            return Resolved::Combo(combo);
        }
        for name in [Some(model), bare].into_iter().flatten() {
            if let Some(leaf) = self.direct(name) {
                return Resolved::Direct(leaf);
            }
        }
        Resolved::Unknown { suggestion: self.suggestion(bare.unwrap_or(model)) }
    }

    /// The same for a client key: also refuses what the key may not ask for.
    ///
    /// # Errors
    /// The answer to the client: 404 `model_not_found` or 403 `model_not_allowed`.
    pub fn resolve_for(&self, model: &str, key: &KeyPolicy) -> Result<Resolved, Box<Answer>> {
        let resolved = self.resolve(model);
        let allowed = match &resolved {
            Resolved::Unknown { suggestion } => {
                let visible = suggestion.as_deref().filter(|name| key.allows_name(name));
                return Err(Box::new(refuse::model_not_found(model, visible)));
            }
            Resolved::Direct(leaf) => key.allows_name(&leaf.label),
            Resolved::Combo(index) | Resolved::Part { combo: index, .. } => {
                self.key_allows_combo(*index, key) || self.some_target_allowed(*index, key)
            }
        };
        if allowed { Ok(resolved) } else { Err(Box::new(refuse::model_not_allowed(model))) }
    }

    /// Whether the key names the combo itself: then its inner targets are allowed too.
    #[must_use]
    pub fn key_allows_combo(&self, combo: usize, key: &KeyPolicy) -> bool {
        !key.restricts_names()
            || self.combo(combo).is_some_and(|(node, definition)| {
                key.allows_name(&node.name) || definition.model_names.iter().any(|name| key.allows_name(name))
            })
    }

    fn some_target_allowed(&self, combo: usize, key: &KeyPolicy) -> bool {
        self.combos.get(combo).is_some_and(|node| node.leaves.iter().any(|leaf| key.allows_name(&leaf.label)))
    }

    fn combo_named(&self, name: &str) -> Option<usize> {
        let after_prefix = name.strip_prefix("combo/");
        self.exact
            .get(name)
            .or_else(|| after_prefix.and_then(|n| self.exact.get(n)))
            .or_else(|| self.folded.get(&name.to_lowercase()))
            .or_else(|| after_prefix.and_then(|n| self.folded.get(&n.to_lowercase())))
            .copied()
    }

    /// A model that the provider knows, or any model of a provider whose list is open.
    fn direct(&self, name: &str) -> Option<Arc<Leaf>> {
        let (provider, model) = name.split_once('/')?;
        let node = self.providers.get(provider).or_else(|| self.providers.get(&provider.to_lowercase()))?;
        let definition = self.snapshot.providers.get(node.index)?;
        let known = definition.models.iter().find(|m| m.name == model);
        let known = known.or_else(|| definition.models.iter().find(|m| m.name.eq_ignore_ascii_case(model)));
        match known {
            Some(known) => Some(self.direct_leaf(node, &known.name)),
            None if definition.open_model_list && !model.is_empty() => Some(self.direct_leaf(node, model)),
            None => None,
        }
    }

    /// The known name that was probably meant. A bare model id of a provider is the commonest slip.
    fn suggestion(&self, wanted: &str) -> Option<String> {
        if wanted.len() > MAX_COMPARED {
            return None;
        }
        let models: Vec<String> =
            self.snapshot.providers.iter().flat_map(|p| p.models.iter().map(move |m| format!("{}/{}", p.name, m.name))).collect();
        let bare = |name: &&String| name.split_once('/').is_some_and(|(_, model)| model.eq_ignore_ascii_case(wanted));
        if let Some(name) = models.iter().find(bare) {
            return Some(name.clone());
        }
        let combos = self.snapshot.combos.iter().flat_map(|c| c.model_names.iter().map(String::as_str));
        suggest(wanted, combos.chain(models.iter().map(String::as_str))).map(str::to_owned)
    }
}

/// The name without a trailing context suffix (`[1m]`, `[500k]`), when it has one.
fn strip_context_suffix(name: &str) -> Option<&str> {
    let (head, suffix) = name.strip_suffix(']')?.rsplit_once('[')?;
    let number = suffix.strip_suffix(['k', 'K', 'm', 'M'])?;
    let is_number = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    (is_number && !head.trim_end().is_empty()).then(|| head.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn context_suffixes() {
        assert_eq!(strip_context_suffix("claude[1m]"), Some("claude"));
        assert_eq!(strip_context_suffix("Claude [500K]"), Some("Claude"));
        for none in ["claude", "[1m]", "x[]", "x[m]", "x[abc]", "x[1m] y"] {
            assert_eq!(strip_context_suffix(none), None, "{none}");
        }
    }
}
