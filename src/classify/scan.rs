//! One automaton over every literal: the atoms of the phrase table, the structured codes, the wait triggers and the texts of the operator's
//! rules. Two thousand rules make it larger, not slower.

use std::collections::HashMap;

use aho_corasick::{AhoCorasick, AhoCorasickBuilder, AhoCorasickKind, MatchKind};
use smallvec::SmallVec;

use super::body::Body;
use super::codes::{CODES, GLM_CODES};
use super::evidence::{Evidence, Seen};
use super::hints::TRIGGERS;
use super::pattern::{self, Pattern};
use super::phrases::PHRASES;

/// Longest piece of an operator's text that goes into the automaton; the rest is compared where it hits.
const WINDOW: usize = 24;
/// Above this many bytes of literals the automaton is built in its compact form.
const DFA_BYTES: usize = 96 * 1024;
/// Hits that are remembered per text for patterns of several atoms; an attacker gains nothing by more.
const MAX_HITS: usize = 128;
/// Checks of such patterns and of operator texts per text.
const MAX_CHECKS: usize = 4096;

/// What one literal of the automaton means.
#[derive(Debug, Default, Clone)]
struct Meaning {
    /// Evidence of the literal itself.
    direct: Seen,
    /// Evidence when a code or type is exactly this.
    exact: Seen,
    /// Evidence when a code is exactly this and the provider is GLM's.
    glm: Seen,
    /// Patterns whose last atom this is.
    last_of: Vec<u32>,
    /// It is an atom of a longer pattern and not its last.
    remembered: bool,
    /// Triggers of the wait parser.
    triggers: Vec<u8>,
    /// Operator texts of which it is the window.
    literals: Vec<u32>,
    /// Operator codes and types that are exactly this.
    exact_keys: Vec<u32>,
}

impl Meaning {
    fn is_direct_only(&self) -> bool {
        self.last_of.is_empty() && !self.remembered && self.triggers.is_empty() && self.literals.is_empty()
    }
}

/// A text of the operator.
#[derive(Debug)]
struct Literal {
    text: Box<[u8]>,
    offset: usize,
}

/// Which structured field a key of the operator is compared with.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Field {
    /// `code` and its relatives.
    Code,
    /// `type`.
    Type,
}

/// The compiled automaton.
pub(super) struct Scanner {
    automaton: Option<AhoCorasick>,
    meanings: Vec<Meaning>,
    simple: Vec<bool>,
    patterns: Vec<(Pattern, Vec<usize>, Evidence)>,
    literals: Vec<Literal>,
    keys: Vec<Field>,
}

impl std::fmt::Debug for Scanner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scanner").field("literals", &self.meanings.len()).finish_non_exhaustive()
    }
}

/// What a scan found.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Evidence.
    pub seen: Seen,
    /// Evidence that holds for GLM's providers only.
    pub glm: Seen,
    /// Wait triggers: text, end of the trigger, index into [`TRIGGERS`].
    pub triggers: SmallVec<[(u8, u32, u8); 4]>,
    /// Operator texts that are present, by index.
    pub literals: SmallVec<[u32; 8]>,
    /// Operator codes and types that are present, by index.
    pub keys: SmallVec<[u32; 8]>,
}

/// Collects literals before the automaton is built.
#[derive(Debug, Default)]
pub(super) struct Builder {
    index: HashMap<String, usize>,
    texts: Vec<String>,
    meanings: Vec<Meaning>,
    patterns: Vec<(Pattern, Vec<usize>, Evidence)>,
    operator: HashMap<String, u32>,
    keys: HashMap<(Field, String), u32>,
}

impl Builder {
    /// A builder with everything that is built in.
    pub(super) fn with_builtins() -> Self {
        Self::default().add_builtins()
    }

    /// True when nothing was added.
    pub(super) fn is_empty(&self) -> bool {
        self.texts.is_empty() && self.operator.is_empty() && self.keys.is_empty()
    }

    /// Adds everything that is built in.
    pub(super) fn add_builtins(self) -> Self {
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
    pub(super) fn add_plain(&mut self, text: &str, evidence: Evidence) {
        if !text.is_empty() {
            self.meaning(text).direct.add(evidence);
        }
    }

    /// A text of an operator rule; the same text (without case) has the same index.
    pub(super) fn add_literal(&mut self, text: &str) -> u32 {
        let next = u32::try_from(self.operator.len()).unwrap_or(u32::MAX);
        *self.operator.entry(text.to_lowercase()).or_insert(next)
    }

    /// A code or type of an operator rule.
    pub(super) fn add_key(&mut self, field: Field, text: &str) -> u32 {
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
    pub(super) fn build(mut self) -> Scanner {
        let literals = self.place_operator_texts();
        let mut keys = vec![Field::Code; self.keys.len()];
        for ((field, text), i) in std::mem::take(&mut self.keys) {
            if let Some(slot) = keys.get_mut(i as usize) {
                *slot = field;
            }
            self.meaning(&text).exact_keys.push(i);
        }
        let bytes: usize = self.texts.iter().map(String::len).sum();
        let kind = if bytes <= DFA_BYTES { AhoCorasickKind::DFA } else { AhoCorasickKind::ContiguousNFA };
        let build =
            |kind| AhoCorasickBuilder::new().ascii_case_insensitive(true).match_kind(MatchKind::Standard).kind(kind).build(&self.texts);
        // The only errors are sizes beyond what the automaton can address; the compact form is the larger one's way out.
        let automaton = build(Some(kind)).or_else(|_| build(None)).ok();
        let simple = self.meanings.iter().map(Meaning::is_direct_only).collect();
        Scanner { automaton, meanings: self.meanings, simple, patterns: self.patterns, literals, keys }
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

/// One remembered hit of an atom.
type Hit = (u32, u32, u32);

impl Scanner {
    /// Scans everything a body says.
    pub(super) fn scan(&self, body: &Body<'_>) -> Found {
        let mut found = Found::default();
        for (i, text) in body.texts.iter().enumerate() {
            self.text(u8::try_from(i).unwrap_or(u8::MAX), text, None, &mut found);
        }
        for code in &body.codes {
            self.text(u8::MAX, code.as_bytes(), Some(Field::Code), &mut found);
        }
        for kind in &body.types {
            self.text(u8::MAX, kind.as_bytes(), Some(Field::Type), &mut found);
        }
        found
    }

    /// Looks for the operator's texts alone.
    pub(super) fn operator_texts(&self, text: &[u8], found: &mut Found) {
        let Some(automaton) = &self.automaton else { return };
        let mut checks = 0;
        for m in automaton.find_overlapping_iter(text) {
            let Some(meaning) = self.meanings.get(m.pattern().as_usize()).filter(|m| !m.literals.is_empty()) else { continue };
            checks += meaning.literals.len();
            if checks > MAX_CHECKS {
                return;
            }
            self.literals(meaning, m.start(), text, found);
        }
    }

    fn text(&self, piece: u8, text: &[u8], field: Option<Field>, found: &mut Found) {
        let Some(automaton) = &self.automaton else { return };
        let mut hits: SmallVec<[Hit; 24]> = SmallVec::new();
        let mut checks = 0;
        for m in automaton.find_overlapping_iter(text) {
            let atom = m.pattern().as_usize();
            let Some(meaning) = self.meanings.get(atom) else { continue };
            found.seen.extend(meaning.direct);
            if let Some(field) = field
                && m.start() == 0
                && m.end() == text.len()
            {
                self.exact(meaning, field, found);
            }
            if self.simple.get(atom) == Some(&true) {
                continue;
            }
            if checks < MAX_CHECKS {
                checks += meaning.last_of.len() + meaning.literals.len();
                self.hit(meaning, (m.start(), m.end()), text, &hits, found);
            }
            if field.is_none() && found.triggers.len() < MAX_HITS {
                for trigger in &meaning.triggers {
                    found.triggers.push((piece, u32::try_from(m.end()).unwrap_or(u32::MAX), *trigger));
                }
            }
            if meaning.remembered && hits.len() < MAX_HITS {
                let narrow = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
                hits.push((narrow(atom), narrow(m.start()), narrow(m.end())));
            }
        }
    }

    fn exact(&self, meaning: &Meaning, field: Field, found: &mut Found) {
        found.seen.extend(meaning.exact);
        found.glm.extend(meaning.glm);
        for key in &meaning.exact_keys {
            if self.keys.get(*key as usize) == Some(&field) && !found.keys.contains(key) {
                found.keys.push(*key);
            }
        }
    }

    fn hit(&self, meaning: &Meaning, (start, end): (usize, usize), text: &[u8], hits: &[Hit], found: &mut Found) {
        for id in &meaning.last_of {
            let Some((pattern, atoms, evidence)) = self.patterns.get(*id as usize) else { continue };
            if !found.seen.has(*evidence) && backwards(pattern, atoms, pattern.atoms.len() - 1, (start, end), text, hits) {
                found.seen.add(*evidence);
            }
        }
        self.literals(meaning, start, text, found);
    }

    fn literals(&self, meaning: &Meaning, start: usize, text: &[u8], found: &mut Found) {
        for id in &meaning.literals {
            let Some(literal) = self.literals.get(*id as usize) else { continue };
            let whole = start.checked_sub(literal.offset).and_then(|from| text.get(from..from + literal.text.len()));
            if whole.is_some_and(|w| w.eq_ignore_ascii_case(&literal.text)) && !found.literals.contains(id) {
                found.literals.push(*id);
            }
        }
    }
}

/// Whether the atoms before `at` lie in front of `start..end` as the pattern wants.
fn backwards(pattern: &Pattern, atoms: &[usize], at: usize, (start, end): (usize, usize), text: &[u8], hits: &[Hit]) -> bool {
    let Some(atom) = pattern.atoms.get(at) else { return false };
    if !atom.fits(text, start, end) {
        return false;
    }
    let Some(before) = at.checked_sub(1) else { return true };
    let (Some(gap), Some(wanted)) = (pattern.gaps.get(before), atoms.get(before)) else { return false };
    for (id, from, to) in hits.iter().rev() {
        let (from, to) = (*from as usize, *to as usize);
        if to > start {
            continue;
        }
        let between = text.get(to..start).unwrap_or_default();
        if !gap.may_grow(between) {
            // Hits are ordered by their end: what follows lies farther away.
            return false;
        }
        if *id as usize == *wanted && gap.allows(between) && backwards(pattern, atoms, before, (from, to), text, hits) {
            return true;
        }
    }
    false
}
