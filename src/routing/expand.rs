//! Nested combos: which reference which, how deep, and in which order a combo's entries stand (routing spec 1.7, 1.8; decisions 4.1).
//!
//! A nested combo is never flattened into its parent: it is one unit of the parent's order and is ordered by its own strategy when the
//! walk reaches it. What is here decides how far the walk may go down.

use std::collections::{HashMap, HashSet, VecDeque};

use crate::snapshot::{Combo, Target, TargetKind};

/// The references between combos.
#[derive(Debug)]
pub struct Nesting<'a> {
    positions: HashMap<&'a str, usize>,
    children: Vec<Vec<usize>>,
}

impl<'a> Nesting<'a> {
    /// Reads the references. References to combos that do not exist are left out; the compiler reports them.
    #[must_use]
    pub fn of(combos: &'a [Combo]) -> Self {
        let positions: HashMap<&str, usize> = combos.iter().enumerate().map(|(i, c)| (c.name.as_str(), i)).collect();
        let children = combos.iter().map(|c| c.targets.iter().filter_map(|t| positions.get(child_name(t)?).copied()).collect()).collect();
        Self { positions, children }
    }

    /// The position of a combo.
    #[must_use]
    pub fn position(&self, name: &str) -> Option<usize> {
        self.positions.get(name).copied()
    }

    /// The combo itself and everything within `depth` references below it, each once, nearest first.
    #[must_use]
    pub fn below(&self, combo: usize, depth: u32) -> Vec<usize> {
        let mut seen = HashSet::from([combo]);
        let mut order = vec![combo];
        let mut queue = VecDeque::from([(combo, 0)]);
        while let Some((at, level)) = queue.pop_front() {
            if level >= depth {
                continue;
            }
            for child in self.children.get(at).into_iter().flatten() {
                if seen.insert(*child) {
                    order.push(*child);
                    queue.push_back((*child, level + 1));
                }
            }
        }
        order
    }
}

/// The combos (by position) that nest deeper than their `maxDepth`: the compiler refuses them. The walk itself never goes deeper.
#[must_use]
pub fn too_deep(combos: &[Combo]) -> Vec<usize> {
    let nesting = Nesting::of(combos);
    (0..combos.len()).filter(|i| combos.get(*i).is_some_and(|c| nesting.deeper_than(*i, c.options.max_depth))).collect()
}

impl Nesting<'_> {
    /// Whether some chain of references below a combo is longer than `limit`. Combos at the same distance are looked at once each.
    fn deeper_than(&self, combo: usize, limit: u32) -> bool {
        let mut level = HashSet::from([combo]);
        for _ in 0..=limit {
            level = level.iter().flat_map(|at| self.children.get(*at).into_iter().flatten()).copied().collect();
        }
        !level.is_empty()
    }
}

/// The targets of a combo in the order of its tiers: those that a tier names first, the others after them as declared.
#[must_use]
pub fn ordered_targets(combo: &Combo) -> Vec<&Target> {
    let rank: HashMap<&str, usize> = combo.tier_order.iter().enumerate().map(|(i, n)| (n.as_str(), i)).collect();
    let mut targets: Vec<&Target> = combo.targets.iter().collect();
    targets.sort_by_key(|t| rank.get(t.name.as_str()).copied().unwrap_or(usize::MAX));
    targets
}

fn child_name(target: &Target) -> Option<&str> {
    match &target.kind {
        TargetKind::Combo { combo } => Some(combo),
        TargetKind::Model { .. } => None,
    }
}
