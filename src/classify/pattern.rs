//! The notation of [`super::phrases`], compiled: literal atoms for the automaton, and the conditions between them.

/// Longest stretch of one line that ` .. ` spans, in bytes: keeps the cost of hostile bodies bounded.
const MAX_LINE: usize = 4096;

/// What may lie between two atoms.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Gap {
    /// Anything on the same line.
    Line,
    /// At most this many characters, line breaks allowed.
    AtMost(usize),
    /// One character or none.
    OneOrNone,
    /// White space, at least one.
    Space,
}

/// One literal of a pattern.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Atom {
    /// Lower-case text.
    pub text: String,
    /// A word starts here.
    pub left: bool,
    /// A word ends here.
    pub right: bool,
}

/// A compiled pattern: `atoms[i] gaps[i] atoms[i + 1]`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Pattern {
    /// Literals, at least one.
    pub atoms: Vec<Atom>,
    /// Conditions between them.
    pub gaps: Vec<Gap>,
}

/// Compiles a phrase; alternatives give several patterns.
pub(super) fn compile(phrase: &str) -> Vec<Pattern> {
    expand(phrase).iter().map(|text| sequence(text)).filter(|p| !p.atoms.is_empty()).collect()
}

/// Writes out the alternatives.
fn expand(phrase: &str) -> Vec<String> {
    let Some((head, rest)) = phrase.split_once('{') else { return vec![phrase.to_owned()] };
    let Some((choices, tail)) = rest.split_once('}') else { return vec![phrase.to_owned()] };
    let tails = expand(tail);
    choices.split('|').flat_map(|choice| tails.iter().map(move |tail| format!("{head}{choice}{tail}"))).collect()
}

/// Splits one phrase without alternatives.
fn sequence(text: &str) -> Pattern {
    let mut pattern = Pattern::default();
    let mut atom = String::new();
    let mut left = false;
    let mut rest = text;
    let finish = |atom: &mut String, left: &mut bool, right: bool, pattern: &mut Pattern| {
        if !atom.is_empty() {
            pattern.atoms.push(Atom { text: atom.to_lowercase(), left: std::mem::take(left), right });
            atom.clear();
        }
    };
    while let Some(c) = rest.chars().next() {
        if let Some((gap, after)) = gap_at(rest) {
            finish(&mut atom, &mut left, false, &mut pattern);
            pattern.gaps.push(gap);
            rest = after;
            continue;
        }
        rest = &rest[c.len_utf8()..];
        match c {
            '‹' => left = true,
            '›' => {
                finish(&mut atom, &mut left, true, &mut pattern);
            }
            _ => atom.push(c),
        }
    }
    finish(&mut atom, &mut left, false, &mut pattern);
    pattern
}

/// Reads a gap at the start of `text`.
fn gap_at(text: &str) -> Option<(Gap, &str)> {
    if let Some(rest) = text.strip_prefix('°') {
        return Some((Gap::OneOrNone, rest));
    }
    if let Some(rest) = text.strip_prefix('␣') {
        return Some((Gap::Space, rest));
    }
    if let Some(rest) = text.strip_prefix(" .. ") {
        return Some((Gap::Line, rest));
    }
    let (number, rest) = text.strip_prefix(" ..")?.split_once(".. ")?;
    Some((Gap::AtMost(number.parse().ok()?), rest))
}

impl Gap {
    /// Whether these bytes may stand between two atoms.
    pub(super) fn allows(self, between: &[u8]) -> bool {
        match self {
            Self::Line => between.len() <= MAX_LINE && memchr::memchr(b'\n', between).is_none(),
            Self::AtMost(n) => between.len() <= n * 4 && characters(between) <= n,
            Self::OneOrNone => between.len() <= 4 && characters(between) <= 1,
            Self::Space => !between.is_empty() && between.iter().all(u8::is_ascii_whitespace),
        }
    }

    /// Whether a longer text could still be allowed when this one is not.
    pub(super) fn may_grow(self, between: &[u8]) -> bool {
        match self {
            Self::Line => between.len() <= MAX_LINE,
            Self::AtMost(n) => between.len() <= n * 4,
            Self::OneOrNone => between.len() <= 4,
            Self::Space => between.len() <= 64,
        }
    }
}

/// Characters of UTF-8 bytes (continuation bytes do not count).
fn characters(bytes: &[u8]) -> usize {
    bytes.iter().filter(|b| **b & 0xC0 != 0x80).count()
}

impl Atom {
    /// Whether the word boundaries of this atom hold around `start..end` of `text`.
    pub(super) fn fits(&self, text: &[u8], start: usize, end: usize) -> bool {
        let word = |b: Option<&u8>| b.is_some_and(|b| b.is_ascii_alphanumeric() || *b == b'_');
        (!self.left || start == 0 || !word(text.get(start - 1))) && (!self.right || !word(text.get(end)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_notation_compiles_to_atoms_and_gaps() {
        let patterns = compile("‹has reached {its |}end°of life› ..40.. Gone");
        assert_eq!(patterns.len(), 2);
        let texts: Vec<&str> = patterns[1].atoms.iter().map(|a| a.text.as_str()).collect();
        assert_eq!(texts, ["has reached end", "of life", "gone"]);
        assert_eq!(patterns[1].gaps, [Gap::OneOrNone, Gap::AtMost(40)]);
        assert!(patterns[1].atoms[0].left && patterns[1].atoms[1].right && !patterns[1].atoms[2].right);
    }

    #[test]
    fn every_phrase_of_the_table_has_atoms_and_fitting_gaps() {
        for list in crate::classify::phrases::PHRASES {
            for phrase in list.phrases {
                let patterns = compile(phrase);
                assert!(!patterns.is_empty(), "{}: {phrase}", list.id);
                for p in patterns {
                    assert_eq!(p.gaps.len() + 1, p.atoms.len(), "{}: {phrase}", list.id);
                    assert!(p.atoms.iter().all(|a| a.text.len() > 1), "{}: {phrase}", list.id);
                }
            }
        }
    }

    #[test]
    fn gaps_hold_what_they_say() {
        assert!(Gap::Line.allows(b" x ") && !Gap::Line.allows(b"\n"));
        assert!(Gap::AtMost(2).allows("限额".as_bytes()) && !Gap::AtMost(1).allows("限额".as_bytes()));
        assert!(Gap::OneOrNone.allows(b"") && Gap::OneOrNone.allows("—".as_bytes()) && !Gap::OneOrNone.allows(b"ab"));
        assert!(Gap::Space.allows(b"\t ") && !Gap::Space.allows(b""));
    }
}
