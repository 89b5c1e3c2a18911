//! Terminal states and the strikes that lead to one (spec: resilience 6.1; decisions 1.7): left only by a success, an operator or a
//! changed credential.

use serde::{Deserialize, Serialize};

use super::ConnectionPhase;
use crate::api::time::EpochMs;
use crate::classify::{Reason, Terminal};

/// A terminal state with its history. Ordered so that the graver state wins a merge, then the earlier knowledge of it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TerminalState {
    /// Which.
    pub phase: ConnectionPhase,
    /// Since when, milliseconds since the epoch.
    pub since_ms: i64,
    /// Why.
    pub reason: Reason,
    /// Which.
    pub state: Terminal,
    /// Status of the answer that led to it.
    pub status: u16,
}

impl TerminalState {
    /// A state that begins now.
    #[must_use]
    pub const fn new(state: Terminal, reason: Reason, status: u16, now: EpochMs) -> Self {
        Self { phase: phase(state), since_ms: now.0, reason, state, status }
    }
}

/// The phase that shows a terminal state.
#[must_use]
pub const fn phase(state: Terminal) -> ConnectionPhase {
    match state {
        Terminal::Banned => ConnectionPhase::Banned,
        Terminal::Expired => ConnectionPhase::Expired,
        Terminal::CreditsExhausted => ConnectionPhase::CreditsExhausted,
    }
}

/// Auth failures in a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Strikes {
    count: u32,
    last_ms: i64,
    /// Sequence of the failure that was counted last: those of the same herd count once.
    counted_by: u64,
}

/// What a checkpoint keeps of strikes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StrikesMemory {
    /// How many.
    pub count: u32,
    /// The last one, milliseconds since the epoch.
    pub last_ms: i64,
}

impl Strikes {
    /// Strikes so far.
    #[must_use]
    pub const fn count(&self) -> u32 {
        self.count
    }

    /// Strikes before a failure of a request that began at `sequence`: what its herd has counted already is left out.
    #[must_use]
    pub const fn before(&self, sequence: u64) -> u32 {
        if self.is_herd(sequence) { self.count.saturating_sub(1) } else { self.count }
    }

    /// True when the last strike was counted after the request began.
    #[must_use]
    pub const fn is_herd(&self, sequence: u64) -> bool {
        sequence < self.counted_by
    }

    /// Counts one strike unless its herd was counted already; answers whether it was counted.
    pub fn add(&mut self, began: u64, sequence: u64, now: EpochMs) -> bool {
        if self.is_herd(began) {
            return false;
        }
        *self = Self { count: self.count.saturating_add(1), last_ms: now.0, counted_by: sequence };
        true
    }

    /// Forgets them.
    pub const fn clear(&mut self) {
        self.count = 0;
    }

    /// What a checkpoint keeps.
    #[must_use]
    pub fn memory(&self) -> Option<StrikesMemory> {
        (self.count > 0).then_some(StrikesMemory { count: self.count, last_ms: self.last_ms })
    }

    /// Takes over what a checkpoint remembers; the higher count wins.
    pub fn restore(&mut self, memory: &StrikesMemory) {
        if memory.count > self.count {
            *self = Self { count: memory.count, last_ms: memory.last_ms, counted_by: self.counted_by };
        }
    }
}
