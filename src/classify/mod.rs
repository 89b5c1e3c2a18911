//! One failed attempt -> [`Verdict`]. Pure.

mod attempt;
mod verdict;

pub use attempt::*;
pub use verdict::*;
