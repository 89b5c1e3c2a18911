//! The whole order at once, for people: what would be tried, in which order, and why the rest would not. Nothing is dispatched.

use std::sync::Arc;

use serde::Serialize;

use super::accounts::AccountContext;
use super::answers::Excluded;
use super::attempts::excluded_entry;
use super::filter::{Barrier, Fit, WindowRules, fit};
use super::live::{Exclusion, ExclusionReason, Live};
use super::order::{Ordering, Scope, connection_barrier};
use super::random::Random;
use super::request::Request;
use super::resolve::Resolved;
use super::topology::{ConnectionNode, Leaf, Router, Unit, UnitKind};
use crate::api::time::EpochMs;
use crate::snapshot::{Combo, Fusion, Strategy};

/// What a request would meet.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    /// Targets that could serve, in the order in which they would be tried.
    pub targets: Vec<Planned>,
    /// Targets and connections that could not, with the reason and, for timers, the end.
    pub excluded: Vec<Excluded>,
}

/// One target of a plan.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Planned {
    /// Names from the combo downwards, joined by `>`.
    pub target: String,
    /// Provider.
    pub provider: String,
    /// Upstream model id.
    pub model: String,
    /// Connections that could serve, in the order in which they would be tried.
    pub connections: Vec<String>,
    /// The strategy's figure, where it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub score: Option<f64>,
    /// How the place came about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Only a used-up quota lets the walk go past it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub protected: bool,
}

impl Router {
    /// Plans a request without sending it. The state of the strategies advances as for a request: use a router of your own.
    #[must_use]
    pub fn plan(&self, resolved: &Resolved, request: &Request, live: &dyn Live, now: EpochMs, rng: &mut dyn Random) -> Plan {
        let mut planner =
            Planner { router: self, request, live, now, rng, scope: Scope::default(), visited: Vec::new(), plan: Plan::default() };
        match resolved {
            Resolved::Unknown { .. } | Resolved::Part { .. } => {}
            Resolved::Direct(leaf) => {
                planner.scope.targets_allowed = true;
                planner.leaf(leaf, leaf.label.to_string(), None, (None, None), false);
            }
            Resolved::Combo(index) => {
                if let Some((node, combo)) = self.combo(*index) {
                    planner.scope = Scope::of(node, self.key_allows_combo(*index, &request.key));
                    planner.combo(*index, "", WindowRules::default(), combo.options.max_depth, false);
                }
            }
        }
        planner.plan
    }
}

struct Planner<'a> {
    router: &'a Router,
    request: &'a Request,
    live: &'a dyn Live,
    now: EpochMs,
    rng: &'a mut dyn Random,
    scope: Scope,
    visited: Vec<usize>,
    plan: Plan,
}

impl Planner<'_> {
    fn combo(&mut self, index: usize, path: &str, rules: WindowRules, depth: u32, protected: bool) {
        let Some((node, definition)) = self.router.combo(index) else { return };
        if self.visited.contains(&index) {
            return;
        }
        self.visited.push(index);
        let rules = rules.and(&definition.context);
        let ordering = Ordering { router: self.router, request: self.request, scope: self.scope, rules, live: self.live, now: self.now };
        let ordered = ordering.order(node, definition, self.rng);
        for (leaf, barrier) in ordered.barred {
            self.bar(&leaf, format!("{path}{}", leaf.name), barrier);
        }
        let of = ordered.places.len();
        for (number, place) in ordered.places.into_iter().enumerate() {
            let Some(unit) = node.units.get(place.unit) else { continue };
            let protected = protected || unit.protected;
            match &unit.kind {
                UnitKind::Leaf(leaf) => {
                    let note = place.note.or_else(|| self.role(definition, (number + 1, of), unit, leaf));
                    self.leaf(leaf, format!("{path}{}", leaf.name), place.connection.as_ref(), (place.score, note), protected);
                }
                UnitKind::Nested(child) if depth > 0 => self.combo(*child, &format!("{path}{}>", unit.name), rules, depth - 1, protected),
                UnitKind::Nested(_) => {}
            }
        }
        let judge = definition.options.fusion.as_ref().filter(|_| definition.strategy == Strategy::Fusion && of > 1);
        let judge = judge.and_then(|fusion| fusion.judge.as_ref()).and_then(|(provider, model)| self.router.model(provider, model));
        if let Some(judge) = judge {
            let note = "judge: writes the answer from those of the voices; a request with tools is for the judge alone".to_owned();
            self.leaf(&judge, format!("{path}{}", judge.label), None, (None, Some(note)), false);
        }
    }

    /// What a target does where one request becomes several calls, or goes on with another account.
    fn role(&self, combo: &Combo, (number, of): (usize, usize), unit: &Unit, leaf: &Leaf) -> Option<String> {
        let options = &combo.options;
        match combo.strategy {
            Strategy::Fusion if of > 1 => {
                let enough = options.fusion.as_ref().map_or_else(|| Fusion::default().min_panel, |fusion| fusion.min_panel);
                Some(format!(
                    "voice {number} of {of}, all asked at once; {} answers are enough",
                    enough.min(u32::try_from(of).unwrap_or(u32::MAX))
                ))
            }
            Strategy::Pipeline => {
                let prompt = if unit.prompt.is_some() { ", with a prompt of its own" } else { "" };
                Some(format!("step {number} of {of}{prompt}"))
            }
            Strategy::ContextRelay => {
                let preset = self.router.snapshot().providers.get(leaf.provider.index).map_or("", |p| &p.traits.catalog_id);
                let handoff = options.handoff.as_ref().filter(|handoff| handoff.covers(&leaf.provider.name, preset))?;
                Some(format!("hands its sessions over when {} % of a quota are used", handoff.threshold_percent))
            }
            _ => None,
        }
    }

    fn leaf(
        &mut self,
        leaf: &Arc<Leaf>,
        target: String,
        only: Option<&Arc<ConnectionNode>>,
        (score, note): (Option<f64>, Option<String>),
        protected: bool,
    ) {
        if fit(leaf.window, &self.request.needs) == Fit::TooLarge {
            let detail = format!("a context window of {} is too small", leaf.window.unwrap_or(0));
            self.bar(leaf, target, Barrier { reason: ExclusionReason::ContextWindow, detail });
            return;
        }
        let identity: Arc<str> = target.as_str().into();
        for (connection, why) in &leaf.barred {
            let mut entry = excluded_entry(leaf, &identity, None, Exclusion::of(ExclusionReason::Unavailable), Some(why.clone()));
            entry.connection = Some(connection.to_string());
            self.plan.excluded.push(entry);
        }
        let mut open = Vec::new();
        for connection in leaf.connections.iter().filter(|c| only.is_none_or(|o| o.index == c.index)) {
            let exclusion = connection_barrier(connection, self.request)
                .map(Exclusion::of)
                .or_else(|| self.router.check(self.live, connection, &leaf.model, self.now).err());
            match exclusion {
                None => open.push(connection.clone()),
                Some(exclusion) => self.plan.excluded.push(excluded_entry(leaf, &identity, Some(connection), exclusion, None)),
            }
        }
        if leaf.connections.is_empty() && leaf.barred.is_empty() {
            let detail = Some(format!("provider `{}` has no connection for it", leaf.provider.name));
            self.plan.excluded.push(excluded_entry(leaf, &identity, None, Exclusion::of(ExclusionReason::Unavailable), detail));
        }
        if open.is_empty() {
            return;
        }
        let pinned = self.live.pinned(leaf.provider.index);
        let mut ctx = AccountContext { live: self.live, pinned, after_failure: false, now: self.now, rng: &mut *self.rng };
        let connections = leaf.provider.accounts.order(open, &mut ctx).iter().map(|c| c.name.to_string()).collect();
        self.plan.targets.push(Planned {
            target,
            provider: leaf.provider.name.to_string(),
            model: leaf.model.to_string(),
            connections,
            score,
            note,
            protected,
        });
    }

    fn bar(&mut self, leaf: &Arc<Leaf>, target: String, barrier: Barrier) {
        let entry = excluded_entry(leaf, &target.into(), None, Exclusion::of(barrier.reason), Some(barrier.detail));
        self.plan.excluded.push(entry);
    }
}
