//! One failed attempt -> [`Verdict`]. Pure.

mod attempt;
pub mod catalog;
mod verdict;

pub use attempt::*;
pub use verdict::*;
