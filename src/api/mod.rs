//! The five kinds of group `omniroute.dev`, shared types, conditions and reasons.

/// Points in time and Gateway API durations.
pub mod time;
