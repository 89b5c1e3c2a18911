//! See the crate documentation.

/// The strategies that are there.
pub const IMPLEMENTED: &[crate::snapshot::Strategy] =
    &[crate::snapshot::Strategy::Priority, crate::snapshot::Strategy::FillFirst, crate::snapshot::Strategy::RoundRobin];
