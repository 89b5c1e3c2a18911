//! What must hold for any input. The fuzzers look for input that breaks it; `tests/corpora.rs` runs what is kept in `fuzz/corpus` with every
//! `cargo test`. Both compile these files, each with the rooms of the crate as modules of its root.

pub mod answers;
pub mod http1;
pub mod resume;
pub mod rules;
pub mod scanner;
pub mod snapshot;
pub mod sse;

/// A check of bytes; it panics when something does not hold.
pub type Check = fn(&[u8]);

/// The checks by the name of their target and of its folder below `fuzz/corpus`.
pub const ALL: &[(&str, Check)] = &[
    ("answers", answers::check),
    ("http1", http1::check),
    ("resume", resume::check),
    ("rules", rules::check),
    ("scanner", scanner::check),
    ("snapshot", snapshot::check),
    ("sse", sse::check),
];

/// Input of several parts, separated by a byte that no text holds.
pub struct Parts<'a>(std::slice::Split<'a, u8, fn(&u8) -> bool>);

impl<'a> Parts<'a> {
    /// The parts of an input.
    pub fn of(data: &'a [u8]) -> Self {
        Self(data.split(|byte| *byte == 0xff))
    }

    /// The next part; empty behind the last one.
    pub fn bytes(&mut self) -> &'a [u8] {
        self.0.next().unwrap_or_default()
    }

    /// The next part as text; what is none stands as replacement characters.
    pub fn text(&mut self) -> String {
        String::from_utf8_lossy(self.bytes()).into_owned()
    }

    /// The next part, if there is one.
    pub fn next(&mut self) -> Option<&'a [u8]> {
        self.0.next()
    }
}
