//! The order of one combo's entries for one request: filters, then the strategy, then pins and windows.

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::filter::{Barrier, Fit, WindowRules, capability_barrier, fit};
use super::live::{ExclusionReason, Live};
use super::random::Random;
use super::request::Request;
use super::strategies::{Candidate, Measured, OrderContext, Traits};
use super::topology::{ComboNode, ConnectionNode, Leaf, Router, Unit, UnitKind};
use crate::api::time::EpochMs;
use crate::snapshot::{Combo, Feature};

/// Entries that can serve, with their positions. Most combos have few of them.
pub(super) type Kept<'n> = SmallVec<[(usize, &'n Unit); 8]>;
/// The connection that each candidate stands for, where it stands for one.
type Connections = SmallVec<[Option<Arc<ConnectionNode>>; 8]>;

/// What stays the same on the whole walk of one request.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Scope {
    /// The key names the combo that was asked for: inner targets need no permission of their own.
    pub targets_allowed: bool,
    /// Some target below the combo is known to read images.
    pub vision_known: bool,
}

/// One entry in its place.
#[derive(Clone, Debug)]
pub(super) struct Place {
    /// Position among the combo's entries.
    pub unit: usize,
    /// Key of the candidate, for the strategy's events.
    pub key: u64,
    /// The one connection it stands for, when the strategy spreads targets over connections.
    pub connection: Option<Arc<ConnectionNode>>,
    /// The strategy's figure.
    pub score: Option<f64>,
    /// How it came about.
    pub note: Option<String>,
}

/// The order of one combo.
#[derive(Clone, Debug, Default)]
pub(super) struct Ordered {
    pub places: Vec<Place>,
    /// Targets that were filtered out.
    pub barred: Vec<(Arc<Leaf>, Barrier)>,
    /// Key of the candidate that the strategy put first and counts as entered.
    pub first: Option<(usize, u64)>,
}

impl Scope {
    pub(super) fn of(node: &ComboNode, targets_allowed: bool) -> Self {
        let reads_images = |leaf: &Arc<Leaf>| leaf.features.as_ref().is_some_and(|f| f.contains(&Feature::Vision));
        Self { targets_allowed, vision_known: node.leaves.iter().any(reads_images) }
    }

    /// Why a target cannot serve the request whatever the present is like.
    pub(super) fn barrier(&self, leaf: &Leaf, request: &Request) -> Option<Barrier> {
        if !self.targets_allowed && !request.key.allows_name(&leaf.label) {
            let detail = format!("the key does not allow {}", leaf.label);
            return Some(Barrier { reason: ExclusionReason::KeyPolicy, detail });
        }
        capability_barrier(leaf, request, self.vision_known)
    }
}

/// Why a connection may not serve this request whatever the present is like.
pub(super) fn connection_barrier(connection: &ConnectionNode, request: &Request) -> Option<ExclusionReason> {
    if request.only_connection.is_some_and(|only| only != connection.index) {
        return Some(ExclusionReason::BoundElsewhere);
    }
    (!request.key.allows_connection(connection.index)).then_some(ExclusionReason::KeyPolicy)
}

/// Everything that one ordering looks at.
pub(super) struct Ordering<'a> {
    pub router: &'a Router,
    pub request: &'a Request,
    pub scope: Scope,
    pub rules: WindowRules,
    pub live: &'a dyn Live,
    pub now: EpochMs,
}

impl Ordering<'_> {
    /// Orders the entries of a combo. The strategy's state advances.
    pub(super) fn order(&self, node: &ComboNode, definition: &Combo, rng: &mut dyn Random) -> Ordered {
        let mut ordered = Ordered::default();
        let kept = self.filter(node, &mut ordered.barred);
        let traits = node.strategy.traits();
        let (candidates, connections) = self.candidates(&kept, traits);
        let mut ctx = OrderContext { request: self.request, now: self.now, rng };
        let ranked = node.strategy.order(&candidates, &mut ctx);
        let mut taken: SmallVec<[bool; 32]> = smallvec![false; candidates.len()];
        for rank in ranked {
            let (Some(candidate), Some(slot)) = (candidates.get(rank.candidate), taken.get_mut(rank.candidate)) else { continue };
            if !std::mem::replace(slot, true) {
                let connection = connections.get(rank.candidate).cloned().flatten();
                ordered.places.push(Place { unit: candidate.unit, key: candidate.key, connection, score: rank.score, note: rank.note });
            }
        }
        ordered.first = ordered.places.first().map(|p| (p.unit, p.key));
        if !traits.protects_first && !definition.options.disable_session_stickiness {
            self.move_pinned(node, &mut ordered.places);
        }
        self.move_slow(node, definition.options.predictive_ttft_ms, &mut ordered.places);
        self.move_by_window(node, definition, &mut ordered.places);
        ordered
    }

    /// The entries that can serve the request; what cannot goes to `barred` with its reason. Targets of unknown window that the rules drop
    /// stay when nothing else would (routing spec 3.3).
    pub(super) fn filter<'n>(&self, node: &'n ComboNode, barred: &mut Vec<(Arc<Leaf>, Barrier)>) -> Kept<'n> {
        let mut kept = Kept::with_capacity(node.units.len());
        let mut unknown = Vec::new();
        for (index, unit) in node.units.iter().enumerate() {
            let UnitKind::Leaf(leaf) = &unit.kind else {
                kept.push((index, unit));
                continue;
            };
            if let Some(barrier) = self.scope.barrier(leaf, self.request).or_else(|| self.rules.barrier(leaf.window, false)) {
                barred.push((leaf.clone(), barrier));
            } else if let Some(barrier) = self.rules.barrier(leaf.window, true) {
                unknown.push((index, unit, leaf.clone(), barrier));
            } else {
                kept.push((index, unit));
            }
        }
        if kept.is_empty() {
            kept.extend(unknown.into_iter().map(|(index, unit, ..)| (index, unit)));
        } else {
            barred.extend(unknown.into_iter().map(|(.., leaf, barrier)| (leaf, barrier)));
        }
        kept
    }

    fn candidates(&self, kept: &[(usize, &Unit)], traits: Traits) -> (Vec<Candidate>, Connections) {
        let mut candidates = Vec::with_capacity(kept.len());
        let mut connections = Connections::with_capacity(kept.len());
        for (index, unit) in kept {
            let candidate = |key, connection: Option<&Arc<ConnectionNode>>| Candidate {
                unit: *index,
                key,
                weight: unit.weight,
                available: !traits.availability || self.available(unit, connection),
                window: unit.window,
                price: unit.price,
                connection: connection.map(|c| c.key),
                measured: self.measure(unit, connection, traits),
            };
            match &unit.kind {
                UnitKind::Leaf(leaf) if traits.per_connection && leaf.connections.len() > 1 => {
                    for connection in leaf.connections.iter().filter(|c| connection_barrier(c, self.request).is_none()) {
                        candidates.push(candidate(unit.key ^ connection.key.rotate_left(1), Some(connection)));
                        connections.push(Some(connection.clone()));
                    }
                }
                UnitKind::Leaf(leaf) if traits.per_connection => {
                    candidates.push(candidate(unit.key, leaf.connections.first()));
                    connections.push(None);
                }
                _ => {
                    candidates.push(candidate(unit.key, None));
                    connections.push(None);
                }
            }
        }
        (candidates, connections)
    }

    /// Whether anything below an entry can take the request now.
    fn available(&self, unit: &Unit, only: Option<&Arc<ConnectionNode>>) -> bool {
        let open = |connection: &Arc<ConnectionNode>, leaf: &Leaf| {
            only.is_none_or(|o| o.index == connection.index)
                && connection_barrier(connection, self.request).is_none()
                && self.router.check(self.live, connection, &leaf.model, self.now).is_ok()
        };
        match &unit.kind {
            UnitKind::Leaf(leaf) => leaf.connections.iter().any(|c| open(c, leaf)),
            UnitKind::Nested(child) => self.router.combos.get(*child).is_some_and(|node| {
                node.leaves.iter().any(|leaf| {
                    self.scope.barrier(leaf, self.request).is_none()
                        && self.rules.barrier(leaf.window, false).is_none()
                        && leaf.connections.iter().any(|c| open(c, leaf))
                })
            }),
        }
    }

    fn measure(&self, unit: &Unit, only: Option<&Arc<ConnectionNode>>, traits: Traits) -> Measured {
        let mut measured = Measured::default();
        if !traits.load && !traits.quota && !traits.session {
            return measured;
        }
        let nested = match &unit.kind {
            UnitKind::Leaf(_) => None,
            UnitKind::Nested(child) => self.router.combos.get(*child),
        };
        let own = match &unit.kind {
            UnitKind::Leaf(leaf) => Some(leaf),
            UnitKind::Nested(_) => None,
        };
        let (mut connections, mut full) = (0, 0);
        for leaf in own.into_iter().chain(nested.into_iter().flat_map(|node| &node.leaves)) {
            let pin = traits.session.then(|| self.live.pinned(leaf.provider.index)).flatten();
            for connection in leaf.connections.iter().filter(|c| only.is_none_or(|o| o.index == c.index)) {
                if traits.load {
                    let load = self.live.load(connection.index);
                    measured.in_flight = measured.in_flight.saturating_add(load.in_flight);
                    measured.probing |= load.probing;
                    let cap = self.router.snapshot.connections.get(connection.index).map_or(0, |c| c.max_concurrent);
                    connections += 1;
                    full += u32::from(cap > 0 && load.in_flight >= cap);
                }
                if traits.quota && measured.quota.is_none() {
                    measured.quota = connection.quota.get();
                }
                if let Some(pin) = pin {
                    measured.pinned = Some(measured.pinned.unwrap_or(false) || pin == connection.index);
                }
            }
        }
        measured.full = connections > 0 && full == connections;
        measured
    }

    /// Moves the target of the session's connection to the front, if it can serve now.
    fn move_pinned(&self, node: &ComboNode, places: &mut [Place]) {
        if places.len() < 2 {
            return;
        }
        let pinned_here = |leaf: &Arc<Leaf>, only: Option<&Arc<ConnectionNode>>| {
            let Some(pin) = self.live.pinned(leaf.provider.index) else { return false };
            only.is_none_or(|o| o.index == pin)
                && leaf.connections.iter().any(|c| {
                    c.index == pin
                        && connection_barrier(c, self.request).is_none()
                        && self.router.check(self.live, c, &leaf.model, self.now).is_ok()
                })
        };
        let at = places.iter().position(|place| match node.units.get(place.unit).map(|u| &u.kind) {
            Some(UnitKind::Leaf(leaf)) => pinned_here(leaf, place.connection.as_ref()),
            Some(UnitKind::Nested(child)) => {
                self.router.combos.get(*child).is_some_and(|nested| nested.leaves.iter().any(|leaf| pinned_here(leaf, None)))
            }
            None => false,
        });
        if let Some(front) = at.and_then(|at| places.get_mut(..=at)) {
            front.rotate_right(1);
        }
    }

    /// Targets that are slower on average than the combo allows go behind the others: excluded for good, they could never show that they
    /// became faster.
    fn move_slow(&self, node: &ComboNode, limit_ms: u64, places: &mut [Place]) {
        if limit_ms > 0 {
            places.sort_by_key(|place| match node.units.get(place.unit).map(|u| &u.kind) {
                Some(UnitKind::Leaf(leaf)) => leaf.speed.as_ref().is_some_and(|speed| speed.is_slower_than(limit_ms, self.now)),
                _ => false,
            });
        }
    }

    /// Larger windows first, where the combo wishes that; what does not fit goes last.
    fn move_by_window(&self, node: &ComboNode, definition: &Combo, places: &mut [Place]) {
        let window = |place: &Place| node.units.get(place.unit).and_then(|u| u.window);
        if definition.context.prefer_large {
            places.sort_by_key(|place| std::cmp::Reverse(window(place).unwrap_or(0)));
        }
        if self.request.needs.input_tokens > 0 || self.request.needs.output_tokens.is_some() {
            places.sort_by_key(|place| fit(window(place), &self.request.needs) != Fit::Fits);
        }
    }
}
