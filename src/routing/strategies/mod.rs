//! The strategies, one file each. A strategy puts the entries of one combo into an order and learns from what happened; it dispatches
//! nothing and excludes nothing. One engine walks the order for all of them (decisions 4.1).

pub mod auto;
mod bounded;
mod by_facts;
mod cache_optimized;
mod declared;
mod headroom;
mod least_used;
mod lkgp;
mod p2c;
mod quota_share;
mod quota_weighted;
mod random_order;
mod reset_aware;
mod reset_window;
mod round_robin;
mod strict_random;
mod weighted;

use std::fmt::Debug;
use std::sync::Arc;

use super::quota::Quota;
use super::random::Random;
use super::request::Request;
use crate::api::time::EpochMs;
use crate::snapshot::{Combo, Price, Settings, Strategy as Kind};

pub use auto::AutoOrder;
pub use by_facts::{ContextOptimized, CostOptimized, expected_cost};
pub use cache_optimized::CacheOptimized;
pub use declared::Declared;
pub use headroom::Headroom;
pub use least_used::LeastUsed;
pub use lkgp::LastKnownGood;
pub use p2c::PowerOfTwo;
pub use quota_share::QuotaShare;
pub use quota_weighted::QuotaWeighted;
pub use random_order::RandomOrder;
pub use reset_aware::ResetAware;
pub use reset_window::ResetWindow;
pub use round_robin::RoundRobin;
pub use strict_random::StrictRandom;
pub use weighted::Weighted;

/// One entry of a combo, as a strategy sees it.
#[derive(Clone, PartialEq, Debug)]
pub struct Candidate {
    /// Position among the combo's entries (tiers applied): the same for every request while the combo is unchanged.
    pub unit: usize,
    /// Identity that survives reloads; with `connection` it also covers the connection.
    pub key: u64,
    /// Share in weighted choices.
    pub weight: u32,
    /// Whether anything below it can take the request now. Filled for strategies that ask for it; otherwise true.
    pub available: bool,
    /// Largest known context window below it, tokens.
    pub window: Option<u64>,
    /// Lowest known price below it.
    pub price: Option<Price>,
    /// Key of the connection, when the strategy spreads targets over connections.
    pub connection: Option<u64>,
    /// What the gateway measures about it. Filled for strategies that ask for it.
    pub measured: Measured,
}

/// What the gateway measures about a candidate.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Measured {
    /// Requests in flight on its connections together.
    pub in_flight: u32,
    /// Each of its connections has as many requests in flight as it may have (`maxConcurrent`).
    pub full: bool,
    /// A breaker below it is half open.
    pub probing: bool,
    /// Allowances of its connection.
    pub quota: Option<Quota>,
    /// Whether the session is pinned to it; `None` without a session.
    pub pinned: Option<bool>,
}

/// What a strategy may look at beside the candidates.
pub struct OrderContext<'a> {
    /// The request.
    pub request: &'a Request,
    /// Now.
    pub now: EpochMs,
    /// Randomness.
    pub rng: &'a mut dyn Random,
}

/// One place of an order.
#[derive(Clone, PartialEq, Debug)]
pub struct Ranked {
    /// Position in the list of candidates that was given.
    pub candidate: usize,
    /// The figure that decided, where the strategy has one.
    pub score: Option<f64>,
    /// How it came about, for `omniroute plan`.
    pub note: Option<String>,
}

impl Ranked {
    /// A place without a figure.
    #[must_use]
    pub const fn plain(candidate: usize) -> Self {
        Self { candidate, score: None, note: None }
    }
}

/// What happened to an entry.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Event {
    /// Position of the entry among the combo's entries.
    pub unit: usize,
    /// Its key, as in [`Candidate::key`].
    pub key: u64,
    /// Whether it was the first of the order that this request got.
    pub first: bool,
    /// When.
    pub now: EpochMs,
    /// What.
    pub kind: EventKind,
}

/// Kinds of events. `order` counts its first candidate as entered, so that two requests at the same instant see each other.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum EventKind {
    /// The request moved to it (not sent for the first of the order).
    Entered,
    /// The request moved on from it, or ended.
    Left,
    /// It served the request.
    Succeeded {
        /// Time until the answer started, milliseconds.
        latency_ms: u64,
    },
    /// An attempt on it failed.
    Failed {
        /// Time until the failure, milliseconds.
        latency_ms: u64,
    },
}

/// What a strategy needs to see and which rights it has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Traits {
    /// It looks at `available`.
    pub availability: bool,
    /// It looks at `measured.in_flight`, `measured.full` and `measured.probing`.
    pub load: bool,
    /// It looks at `measured.quota`.
    pub quota: bool,
    /// It looks at `measured.pinned`.
    pub session: bool,
    /// A target with several connections is several candidates, one each.
    pub per_connection: bool,
    /// Its first candidate stays first: session pins do not move another one in front.
    pub protects_first: bool,
}

/// One strategy with its state. Shared by all threads; bounded by the number of the combo's entries.
pub trait Strategy: Send + Sync + Debug {
    /// Puts the candidates into an order: each exactly once. State may advance.
    fn order(&self, candidates: &[Candidate], ctx: &mut OrderContext<'_>) -> Vec<Ranked>;

    /// Learns from what happened.
    fn observe(&self, _event: &Event) {}

    /// What it needs to see.
    fn traits(&self) -> Traits {
        Traits::default()
    }
}

/// Makes the strategy of a combo, with fresh state. The voices of a panel and the steps of a pipeline stand in declared order; who calls them,
/// and with what, is the gateway's affair. So are the summaries of [`Kind::ContextRelay`].
#[must_use]
pub fn build(combo: &Combo, settings: &Settings) -> Arc<dyn Strategy> {
    let options = &combo.options;
    match combo.strategy {
        Kind::RoundRobin => {
            let limit = options.sticky_round_robin_limit.unwrap_or(settings.combo_sticky_round_robin_limit);
            Arc::new(RoundRobin::new(combo.targets.len(), limit))
        }
        Kind::Weighted => Arc::new(Weighted::new(options.sticky_weighted_limit, !combo.tier_order.is_empty())),
        Kind::Random => Arc::new(RandomOrder),
        Kind::P2C => Arc::new(PowerOfTwo::default()),
        Kind::StrictRandom => Arc::new(StrictRandom::default()),
        Kind::LeastUsed => Arc::new(LeastUsed::default()),
        Kind::CostOptimized => Arc::new(CostOptimized),
        Kind::ContextOptimized => Arc::new(ContextOptimized),
        Kind::Lkgp => Arc::new(LastKnownGood::default()),
        Kind::CacheOptimized => Arc::new(CacheOptimized),
        Kind::ResetAware => Arc::new(ResetAware::new(options.reset_aware_tie_band_percent, options.reset_aware_exhaustion_guard_percent)),
        Kind::ResetWindow => Arc::new(ResetWindow::new(options.reset_window_tie_band_ms)),
        Kind::Headroom => Arc::new(Headroom),
        Kind::QuotaWeighted if options.quota_share => Arc::new(QuotaShare::default()),
        Kind::QuotaWeighted => {
            Arc::new(QuotaWeighted::new(options.quota_weighted_floor_percent, options.reset_aware_exhaustion_guard_percent))
        }
        Kind::Auto => Arc::new(AutoOrder::new(options.auto.as_ref())),
        Kind::Priority | Kind::FillFirst | Kind::ContextRelay | Kind::Fusion | Kind::Pipeline => Arc::new(Declared),
    }
}

/// The available candidates by position, then the others by position: what most strategies start from.
pub(crate) fn split(candidates: &[Candidate]) -> (Vec<usize>, Vec<usize>) {
    (0..candidates.len()).partition(|i| candidates.get(*i).is_some_and(|c| c.available))
}
