//! Collects every literal, then builds the automaton.

use std::collections::HashMap;

use super::super::codes::{CODES, GLM_CODES};
use super::super::evidence::Evidence;
use super::super::hints::TRIGGERS;
use super::super::pattern::{self, Pattern};
use super::super::phrases::PHRASES;
use super::{Field, Literal, Meaning, Scanner, matcher};

/// Longest piece of an operator's text that goes into the automaton; the rest is compared where it hits.
const WINDOW: usize = 24;

/// Collects literals before the automaton is built.
#[derive(Debug, Default)]
pub(in super::super) struct Builder {
    index: HashMap<String, usize>,
    texts: Vec<String>,
    meanings: Vec<Meaning>,
    patterns: Vec<(Pattern, Vec<usize>, Evidence)>,
    operator: HashMap<String, u32>,
    keys: HashMap<(Field, String), u32>,
}

impl Builder {
    /// A builder with everything that is built in.
    pub(in super::super) fn with_builtins() -> Self {
        Self::default().add_builtins()
    }

    /// True when nothing was added.
    pub(in super::super) fn is_empty(&self) -> bool {
        self.texts.is_empty() && self.operator.is_empty() && self.keys.is_empty()
    }

    /// Adds everything that is built in.
    pub(in super::super) fn add_builtins(self) -> Self {
        let mut builder = self;
        for list in PHRASES {
            for phrase in list.phrases {
                builder.add_phrase(phrase, list.evidence);
            }
        }
        for list in CODES {
            for code in list.codes {
                builder.meaning(code).exact.add(list.evidence);
            }
        }
        for (code, evidence) in GLM_CODES {
            builder.meaning(code).glm.add(*evidence);
        }
        for (i, trigger) in TRIGGERS.iter().enumerate() {
            let i = u8::try_from(i).unwrap_or(u8::MAX);
            builder.meaning(trigger.text).triggers.push(i);
        }
        builder
    }

    /// A phrase of the operator that is evidence by itself.
    pub(in super::super) fn add_plain(&mut self, text: &str, evidence: Evidence) {
        if !text.is_empty() {
            self.meaning(text).direct.add(evidence);
        }
    }

    /// A text of an operator rule; the same text (without case) has the same index.
    pub(in super::super) fn add_literal(&mut self, text: &str) -> u32 {
        let next = u32::try_from(self.operator.len()).unwrap_or(u32::MAX);
        *self.operator.entry(text.to_lowercase()).or_insert(next)
    }

    /// A code or type of an operator rule.
    pub(in super::super) fn add_key(&mut self, field: Field, text: &str) -> u32 {
        let next = u32::try_from(self.keys.len()).unwrap_or(u32::MAX);
        *self.keys.entry((field, text.to_lowercase())).or_insert(next)
    }

    fn add_phrase(&mut self, phrase: &str, evidence: Evidence) {
        for pattern in pattern::compile(phrase) {
            let [only] = pattern.atoms.as_slice() else {
                self.add_sequence(pattern, evidence);
                continue;
            };
            if only.left || only.right {
                self.add_sequence(pattern, evidence);
            } else {
                let text = only.text.clone();
                self.meaning(&text).direct.add(evidence);
            }
        }
    }

    fn add_sequence(&mut self, pattern: Pattern, evidence: Evidence) {
        let atoms: Vec<usize> = pattern.atoms.iter().map(|a| self.literal(&a.text)).collect();
        let id = u32::try_from(self.patterns.len()).unwrap_or(u32::MAX);
        if let Some((last, before)) = atoms.split_last() {
            self.meanings[*last].last_of.push(id);
            for atom in before {
                self.meanings[*atom].remembered = true;
            }
        }
        self.patterns.push((pattern, atoms, evidence));
    }

    fn literal(&mut self, text: &str) -> usize {
        let text = text.to_lowercase();
        if let Some(i) = self.index.get(&text) {
            return *i;
        }
        let i = self.texts.len();
        self.index.insert(text.clone(), i);
        self.texts.push(text);
        self.meanings.push(Meaning::default());
        i
    }

    fn meaning(&mut self, text: &str) -> &mut Meaning {
        let i = self.literal(text);
        &mut self.meanings[i]
    }

    /// Builds the automaton.
    pub(in super::super) fn build(mut self) -> Scanner {
        let literals = self.place_operator_texts();
        let mut keys = vec![Field::Code; self.keys.len()];
        for ((field, text), i) in std::mem::take(&mut self.keys) {
            if let Some(slot) = keys.get_mut(i as usize) {
                *slot = field;
            }
            self.meaning(&text).exact_keys.push(i);
        }
        let automaton = matcher(&self.texts);
        for meaning in &mut self.meanings {
            meaning.plain = meaning.is_plain();
        }
        Scanner { automaton, meanings: self.meanings, patterns: self.patterns, literals, keys }
    }

    /// Chooses for each operator text the end that fewer other texts share.
    fn place_operator_texts(&mut self) -> Vec<Literal> {
        let mut texts: Vec<(String, u32)> = std::mem::take(&mut self.operator).into_iter().collect();
        texts.sort_by_key(|(_, i)| *i);
        let mut heads: HashMap<&str, usize> = HashMap::new();
        let mut tails: HashMap<&str, usize> = HashMap::new();
        for (text, _) in &texts {
            *heads.entry(head(text)).or_default() += 1;
            *tails.entry(tail(text)).or_default() += 1;
        }
        let mut literals = Vec::with_capacity(texts.len());
        let mut windows = Vec::with_capacity(texts.len());
        for (text, i) in &texts {
            let (h, t) = (head(text), tail(text));
            let from_head = heads.get(h) <= tails.get(t);
            let (window, offset) = if from_head { (h, 0) } else { (t, text.len() - t.len()) };
            windows.push((window.to_owned(), *i));
            literals.push(Literal { text: text.as_bytes().into(), offset });
        }
        for (window, i) in windows {
            self.meaning(&window).literals.push(i);
        }
        literals
    }
}

/// The first characters of a text, at most [`WINDOW`] bytes.
fn head(text: &str) -> &str {
    let mut end = text.len().min(WINDOW);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or(text)
}

/// The last characters of a text, at most [`WINDOW`] bytes.
fn tail(text: &str) -> &str {
    let mut start = text.len().saturating_sub(WINDOW);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    text.get(start..).unwrap_or(text)
}
