//! What a request needs against what a target can do (routing spec 3). Hard rules remove a target, the context window only moves it back.

use super::live::ExclusionReason;
use super::request::{Needs, Request};
use super::topology::Leaf;
use crate::snapshot::{ContextRules, Dialect, Feature};

/// Why a target cannot serve a request at all, in words.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Barrier {
    /// Why.
    pub reason: ExclusionReason,
    /// What exactly, for people.
    pub detail: String,
}

/// The rules on context windows that hold at one place of the walk: those of the combo and of every combo above it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WindowRules {
    min: Option<u64>,
    max: Option<u64>,
    drop_unknown: bool,
}

impl WindowRules {
    /// These rules and those of a combo below.
    #[must_use]
    pub fn and(self, rules: &ContextRules) -> Self {
        Self {
            min: self.min.max(rules.min_window),
            max: match (self.max, rules.max_window) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            },
            drop_unknown: self.drop_unknown || rules.drop_unknown,
        }
    }

    const fn says_anything(self) -> bool {
        self.min.is_some() || self.max.is_some()
    }

    /// Why the rules keep a window out. An unknown one only counts as out when `strict`.
    #[must_use]
    pub fn barrier(self, window: Option<u64>, strict: bool) -> Option<Barrier> {
        let out = |detail: String| Some(Barrier { reason: ExclusionReason::ContextRequirements, detail });
        match (window, self.min, self.max) {
            (Some(window), Some(min), _) if window < min => out(format!("a context window of {window} is below context.minWindow {min}")),
            (Some(window), _, Some(max)) if window > max => out(format!("a context window of {window} is above context.maxWindow {max}")),
            (None, ..) if strict && self.drop_unknown && self.says_anything() => {
                out("the context window is unknown and context.unknown is Drop".to_owned())
            }
            _ => None,
        }
    }
}

/// Why the provider or the model of a target cannot serve this request. `vision_known` says that some target of the combo is known to
/// read images: then one of which nothing is known does not count as able to.
#[must_use]
pub fn capability_barrier(leaf: &Leaf, request: &Request, vision_known: bool) -> Option<Barrier> {
    let needs = &request.needs;
    if !leaf.provider.dialects.contains(&request.dialect) {
        let detail = format!("provider `{}` does not speak {}", leaf.provider.name, dialect_name(request.dialect));
        return Some(Barrier { reason: ExclusionReason::DialectNotSpoken, detail });
    }
    let lacks = |feature: Feature| leaf.features.as_ref().is_some_and(|known| !known.contains(&feature));
    let missing = if needs.tools && lacks(Feature::Tools) {
        "tools".to_owned()
    } else if needs.vision && (lacks(Feature::Vision) || (leaf.features.is_none() && vision_known)) {
        "vision".to_owned()
    } else if needs.structured_output && lacks(Feature::StructuredOutput) {
        "structured output".to_owned()
    } else if let (Some(wanted), Some(cap)) = (needs.output_tokens, leaf.max_output)
        && wanted > cap
    {
        format!("an output of {wanted} tokens (at most {cap})")
    } else {
        return None;
    };
    Some(Barrier { reason: ExclusionReason::CapabilityMismatch, detail: missing })
}

/// How a request fits into a context window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fit {
    /// It fits, or nothing is known.
    Fits,
    /// By the estimate it does not: other targets go first.
    Tight,
    /// Even half of the estimate does not fit: an upstream would refuse it.
    TooLarge,
}

/// How a request fits into a window. The input is an estimate, so only a wide miss is certain.
#[must_use]
pub fn fit(window: Option<u64>, needs: &Needs) -> Fit {
    let Some(window) = window else { return Fit::Fits };
    let output = needs.output_tokens.unwrap_or(0);
    if needs.input_tokens.saturating_add(output) <= window {
        Fit::Fits
    } else if (needs.input_tokens / 2).saturating_add(output) <= window {
        Fit::Tight
    } else {
        Fit::TooLarge
    }
}

/// The name of a dialect, as in manifests.
#[must_use]
pub const fn dialect_name(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::ChatCompletions => "ChatCompletions",
        Dialect::Responses => "Responses",
        Dialect::Messages => "Messages",
        Dialect::Embeddings => "Embeddings",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_wide_miss_is_certain() {
        let needs = |input_tokens, output_tokens| Needs { input_tokens, output_tokens, ..Needs::default() };
        assert_eq!(fit(None, &needs(1_000_000, None)), Fit::Fits);
        assert_eq!(fit(Some(100), &needs(100, None)), Fit::Fits);
        assert_eq!(fit(Some(100), &needs(101, None)), Fit::Tight);
        assert_eq!(fit(Some(100), &needs(90, Some(20))), Fit::Tight);
        assert_eq!(fit(Some(100), &needs(202, None)), Fit::TooLarge);
        assert_eq!(fit(Some(100), &needs(0, Some(101))), Fit::TooLarge);
    }

    #[test]
    fn rules_add_up_on_the_way_down() {
        let parent = WindowRules::default().and(&ContextRules { min_window: Some(10), max_window: Some(90), ..ContextRules::default() });
        let child = parent.and(&ContextRules { min_window: Some(20), drop_unknown: true, ..ContextRules::default() });
        assert!(child.barrier(Some(15), true).is_some());
        assert!(child.barrier(Some(91), true).is_some());
        assert!(child.barrier(Some(20), true).is_none());
        assert!(child.barrier(None, true).is_some());
        assert!(child.barrier(None, false).is_none());
        let silent = WindowRules::default().and(&ContextRules { drop_unknown: true, ..ContextRules::default() });
        assert!(silent.barrier(None, true).is_none(), "without a bound nothing is required of the window");
    }
}
