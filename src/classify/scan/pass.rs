//! One pass of the automaton over what a body says.

use std::ops::Range;

use aho_corasick::Anchored;
use aho_corasick::automaton::Automaton;
use aho_corasick::nfa::contiguous::NFA;
use smallvec::SmallVec;

use super::super::body::Body;
use super::super::pattern::Pattern;
use super::{Field, Found, Meaning, Scanner};

/// Hits that are remembered per text for patterns of several atoms; an attacker gains nothing by more.
const MAX_HITS: usize = 128;
/// Checks of such patterns and of operator texts per text.
const MAX_CHECKS: usize = 4096;

/// One remembered hit of an atom: literal, start, end.
type Hit = (u32, u32, u32);

/// A message field or a structured field.
#[derive(Clone)]
struct Piece {
    /// Index of the text; `u8::MAX` for structured fields.
    index: u8,
    /// Which structured field it is.
    field: Option<Field>,
    /// Where it stands in the scanned bytes.
    at: Range<usize>,
}

/// Positions are below [`super::body::INSPECTED_BYTES`].
fn narrow(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

/// Walks the automaton over a text: calls `hit` with literal, start and end of every occurrence, overlapping ones too, ordered by end.
fn drive(automaton: &NFA, text: &[u8], mut hit: impl FnMut(usize, usize, usize)) {
    let Ok(mut state) = automaton.start_state(Anchored::No) else { return };
    for (i, byte) in text.iter().enumerate() {
        state = automaton.next_state(Anchored::No, state, *byte);
        if !automaton.is_special(state) || !automaton.is_match(state) {
            continue;
        }
        for k in 0..automaton.match_len(state) {
            let id = automaton.match_pattern(state, k);
            hit(id.as_usize(), i + 1 - automaton.pattern_len(id), i + 1);
        }
    }
}

impl Scanner {
    /// Scans everything a body says. With `whole`, the operator's texts are looked for in all of the body; the fields that lie in it as
    /// they are need no pass of their own then.
    pub(in super::super) fn scan(&self, body: &Body<'_>, whole: Option<&[u8]>) -> Found {
        let mut found = Found::default();
        let Some(automaton) = &self.automaton else { return found };
        let mut inside: SmallVec<[Piece; 8]> = SmallVec::new();
        let texts = body.texts.iter().enumerate().map(|(i, t)| (u8::try_from(i).unwrap_or(u8::MAX), None, t.as_ref()));
        let codes = body.codes.iter().map(|c| (u8::MAX, Some(Field::Code), c.as_bytes()));
        let types = body.types.iter().map(|t| (u8::MAX, Some(Field::Type), t.as_bytes()));
        for (index, field, text) in texts.chain(codes).chain(types) {
            match whole.and_then(|whole| position(whole, text)) {
                Some(at) => inside.push(Piece { index, field, at }),
                None => self.piece(automaton, text, &Piece { index, field, at: 0..text.len() }, &mut found),
            }
        }
        if let Some(whole) = whole {
            inside.sort_unstable_by_key(|piece| piece.at.start);
            self.whole(automaton, whole, &inside, &mut found);
        }
        found
    }

    /// A field by itself.
    fn piece(&self, automaton: &NFA, text: &[u8], piece: &Piece, found: &mut Found) {
        let mut pass = Pass::new(self, found);
        drive(automaton, text, |literal, start, end| {
            if let Some(meaning) = self.meanings.get(literal) {
                pass.hit(meaning, literal, (start, end), text, piece);
                pass.operator_texts(meaning, start, text);
            }
        });
    }

    /// All of a body: operator texts anywhere, everything else inside of its field.
    fn whole(&self, automaton: &NFA, whole: &[u8], pieces: &[Piece], found: &mut Found) {
        let mut pass = Pass::new(self, found);
        let mut rest = pieces;
        drive(automaton, whole, |literal, start, end| {
            let Some(meaning) = self.meanings.get(literal) else { return };
            pass.operator_texts(meaning, start, whole);
            while let Some((piece, later)) = rest.split_first() {
                if piece.at.end >= end {
                    break;
                }
                rest = later;
                pass.hits.clear();
            }
            if let Some(piece) = rest.first().filter(|piece| piece.at.start <= start)
                && let Some(text) = whole.get(piece.at.clone())
            {
                let from = piece.at.start;
                pass.hit(meaning, literal, (start - from, end - from), text, piece);
            }
        });
    }
}

/// Where `part` lies in `whole`, if it is a part of the same memory.
fn position(whole: &[u8], part: &[u8]) -> Option<Range<usize>> {
    let start = (part.as_ptr() as usize).checked_sub(whole.as_ptr() as usize)?;
    let end = start.checked_add(part.len())?;
    (end <= whole.len()).then_some(start..end)
}

/// The state of one pass.
struct Pass<'s> {
    scanner: &'s Scanner,
    found: &'s mut Found,
    hits: SmallVec<[Hit; 24]>,
    checks: usize,
}

impl<'s> Pass<'s> {
    fn new(scanner: &'s Scanner, found: &'s mut Found) -> Self {
        Self { scanner, found, hits: SmallVec::new(), checks: 0 }
    }

    /// A literal inside of a field.
    fn hit(&mut self, meaning: &Meaning, literal: usize, (start, end): (usize, usize), text: &[u8], piece: &Piece) {
        self.found.seen.extend(meaning.direct);
        if let Some(field) = piece.field
            && start == 0
            && end == text.len()
        {
            self.exact(meaning, field);
        }
        if meaning.plain {
            return;
        }
        if self.checks < MAX_CHECKS {
            self.checks += meaning.last_of.len();
            self.patterns(meaning, (start, end), text);
        }
        if piece.field.is_none() && self.found.triggers.len() < MAX_HITS {
            self.found.triggers.extend(meaning.triggers.iter().map(|trigger| (piece.index, narrow(end), *trigger)));
        }
        if meaning.remembered && self.hits.len() < MAX_HITS {
            self.hits.push((narrow(literal), narrow(start), narrow(end)));
        }
    }

    fn exact(&mut self, meaning: &Meaning, field: Field) {
        self.found.seen.extend(meaning.exact);
        self.found.glm.extend(meaning.glm);
        for key in &meaning.exact_keys {
            if self.scanner.keys.get(*key as usize) == Some(&field) && !self.found.keys.contains(key) {
                self.found.keys.push(*key);
            }
        }
    }

    fn patterns(&mut self, meaning: &Meaning, at: (usize, usize), text: &[u8]) {
        for id in &meaning.last_of {
            let Some((pattern, atoms, evidence)) = self.scanner.patterns.get(*id as usize) else { continue };
            if !self.found.seen.has(*evidence) && backwards(pattern, atoms, pattern.atoms.len() - 1, at, text, &self.hits) {
                self.found.seen.add(*evidence);
            }
        }
    }

    fn operator_texts(&mut self, meaning: &Meaning, start: usize, text: &[u8]) {
        if meaning.literals.is_empty() || self.checks > MAX_CHECKS {
            return;
        }
        self.checks += meaning.literals.len();
        for id in &meaning.literals {
            let Some(literal) = self.scanner.literals.get(*id as usize) else { continue };
            let whole = start.checked_sub(literal.offset).and_then(|from| text.get(from..from + literal.text.len()));
            if whole.is_some_and(|w| w.eq_ignore_ascii_case(&literal.text)) && !self.found.literals.contains(id) {
                self.found.literals.push(*id);
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
