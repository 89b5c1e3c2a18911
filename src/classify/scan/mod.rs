//! One automaton over every literal: the atoms of the phrase table, the structured codes, the wait triggers and the texts of the operator's
//! rules. Two thousand rules make it larger, not slower.

mod builder;
mod pass;

use aho_corasick::nfa::contiguous::NFA;
use aho_corasick::{MatchKind, nfa};
use smallvec::SmallVec;

use super::evidence::{Evidence, Seen};
use super::pattern::Pattern;

pub(super) use builder::Builder;

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
    /// Nothing but `direct` and `exact` is there.
    plain: bool,
}

impl Meaning {
    fn is_plain(&self) -> bool {
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

/// Builds the automaton. Its compact form: the fast one is ten times larger, which costs more in caches than it saves in steps.
fn matcher(texts: &[String]) -> Option<NFA> {
    let mut builder = nfa::contiguous::Builder::new();
    builder.ascii_case_insensitive(true).match_kind(MatchKind::Standard).prefilter(false);
    // The only errors are sizes beyond what it can address; bounds of the resources keep them away.
    builder.build(texts).ok()
}

/// The compiled automaton.
pub(super) struct Scanner {
    automaton: Option<NFA>,
    meanings: Vec<Meaning>,
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
