//! Which connections could serve a request, for those who have to choose one before it is sent: a look that moves no strategy on.

use std::sync::Arc;

use super::filter::{Fit, WindowRules, fit};
use super::live::{ExclusionReason, Live};
use super::order::{Ordering, Scope, connection_barrier};
use super::request::Request;
use super::resolve::Resolved;
use super::topology::{Leaf, Router, UnitKind};
use crate::api::time::EpochMs;

impl Router {
    /// The connections that could serve a request now, each once: targets in declared order, their connections by priority, then name.
    #[must_use]
    pub fn eligible(&self, resolved: &Resolved, request: &Request, live: &dyn Live, now: EpochMs) -> Vec<Arc<str>> {
        let mut look = Look { router: self, request, live, now, scope: Scope::default(), visited: Vec::new(), names: Vec::new() };
        match resolved {
            Resolved::Unknown { .. } | Resolved::Part { .. } => {}
            Resolved::Direct(leaf) => {
                look.scope.targets_allowed = true;
                let barrier = look.scope.barrier(leaf, request);
                if barrier.is_none_or(|barrier| barrier.reason != ExclusionReason::DialectNotSpoken) {
                    look.leaf(leaf);
                }
            }
            Resolved::Combo(index) => {
                if let Some((node, combo)) = self.combo(*index) {
                    look.scope = Scope::of(node, self.key_allows_combo(*index, &request.key));
                    look.combo(*index, WindowRules::default(), combo.options.max_depth);
                }
            }
        }
        look.names
    }
}

struct Look<'a> {
    router: &'a Router,
    request: &'a Request,
    live: &'a dyn Live,
    now: EpochMs,
    scope: Scope,
    visited: Vec<usize>,
    names: Vec<Arc<str>>,
}

impl Look<'_> {
    fn combo(&mut self, index: usize, rules: WindowRules, depth: u32) {
        let Some((node, definition)) = self.router.combo(index) else { return };
        if self.visited.contains(&index) {
            return;
        }
        self.visited.push(index);
        let rules = rules.and(&definition.context);
        let Self { router, request, scope, live, now, .. } = *self;
        for (_, unit) in (Ordering { router, request, scope, rules, live, now }).filter(node, &mut Vec::new()) {
            match &unit.kind {
                UnitKind::Leaf(leaf) if fit(leaf.window, &request.needs) != Fit::TooLarge => self.leaf(leaf),
                UnitKind::Nested(child) if depth > 0 => self.combo(*child, rules, depth - 1),
                UnitKind::Leaf(_) | UnitKind::Nested(_) => {}
            }
        }
    }

    fn leaf(&mut self, leaf: &Leaf) {
        for connection in &leaf.connections {
            let open = connection_barrier(connection, self.request).is_none()
                && self.router.check(self.live, connection, &leaf.model, self.now).is_ok();
            if open && !self.names.contains(&connection.name) {
                self.names.push(Arc::clone(&connection.name));
            }
        }
    }
}
