//! One failed attempt -> [`Verdict`]: one classifier for every path (decisions 1.1). Pure.
//!
//! How an attempt is read: `body.rs` picks message fields, codes and waits out of the answer; one automaton (`scan/`) turns them into
//! [`Evidence`]; the ordered tables ask for evidence and never for text. To find a row of the specification, look here or for its id:
//!
//! | spec: resilience | table |
//! |---|---|
//! | 6.7 | `error_type.rs` |
//! | 7.1, 7.2 | `detectors.rs` |
//! | 7.3, 7.5, 8.1 phrases | `phrases.rs`; codes: `codes.rs` |
//! | 7.5 text and status rows | `global_table.rs`; 400, 413, 422: `request_shape.rs` |
//! | 8.2, 3.5 | `kind.rs` |
//! | 8.3 | `hints/` |
//! | 9.2 | `catalog/rules.rs`; provider facts: `catalog/providers.rs` |
//! | 9.4, 9.5 | `rules.rs` |
//! | 10 | `restatement.rs` |
//! | 6.2 | `terminal.rs` |

mod attempt;
mod body;
pub mod catalog;
pub mod codes;
mod context;
pub mod detectors;
mod engine;
mod error_type;
mod evidence;
pub mod global_table;
pub mod hints;
mod kind;
mod lookup;
mod pattern;
pub mod phrases;
pub mod reference;
pub mod request_shape;
pub mod restatement;
mod row;
mod rules;
mod scan;
mod status;
pub mod terminal;
mod timer;
mod transport;
mod verdict;

pub use attempt::*;
pub use engine::classify;
pub use evidence::{Evidence, Seen};
pub use lookup::*;
pub use row::{Only, Outcome, Rest, Row};
pub use rules::RuleSet;
pub use status::Statuses;
pub use verdict::*;
