//! The snapshot as routing walks it: references followed, names numbered, strategy state attached. Built once when a snapshot is loaded,
//! so that a request looks nothing up by name except the model it asks for.

use std::collections::HashMap;
use std::sync::Arc;

use super::accounts::Accounts;
use super::attempts::Dispatch;
use super::expand::{Nesting, ordered_targets};
use super::latency::Speed;
use super::live::{Exclusion, ExclusionReason, Live};
use super::quota::{self, QuotaCell};
use super::request::glob_matches;
use super::strategies::{self, Strategy};
use crate::api::time::EpochMs;
use crate::classify::Reason;
use crate::snapshot::{AccountStrategy, Combo, Connection, Dialect, Feature, Model, Price, Snapshot, Target, TargetKind};

/// Everything that routing knows about one snapshot. Shared by all threads; the state inside survives a reload where nothing changed.
#[derive(Debug)]
pub struct Router {
    pub(super) snapshot: Arc<Snapshot>,
    pub(super) combos: Vec<ComboNode>,
    pub(super) providers: HashMap<String, Arc<ProviderNode>>,
    /// In the order of `Snapshot::connections`; those of unknown providers are missing at the end.
    connections: Vec<Arc<ConnectionNode>>,
    learns_quota: bool,
    /// Exact client names of combos.
    pub(super) exact: HashMap<String, usize>,
    /// Lower-cased client names of combos; the first in order of combo names wins.
    pub(super) folded: HashMap<String, usize>,
}

/// A connection.
#[derive(Debug)]
pub struct ConnectionNode {
    /// Position in `Snapshot::connections`.
    pub index: usize,
    /// Name of the resource.
    pub name: Arc<str>,
    /// Identity that survives reloads.
    pub key: u64,
    /// Lower first.
    pub priority: i32,
    /// Share in weighted choices.
    pub weight: u32,
    /// What its answers said about its allowances.
    pub(super) quota: Arc<QuotaCell>,
}

impl PartialEq for ConnectionNode {
    fn eq(&self, other: &Self) -> bool {
        self.index == other.index && self.name == other.name
    }
}

/// A provider with its connections, lowest priority number first, then by name.
#[derive(Debug)]
pub struct ProviderNode {
    /// Position in `Snapshot::providers`.
    pub index: usize,
    /// Name of the resource.
    pub name: Arc<str>,
    /// Dialects it speaks.
    pub dialects: Vec<Dialect>,
    /// Every model has an allowance of its own.
    pub per_model_quota: bool,
    /// Its connections.
    pub connections: Vec<Arc<ConnectionNode>>,
    /// How a connection is chosen, with the state of that choice.
    pub accounts: Arc<Accounts>,
}

/// One model of a provider that can be dispatched.
#[derive(Debug)]
pub struct Leaf {
    /// Stable name inside its combo; `PROVIDER/MODEL` for direct requests.
    pub name: Arc<str>,
    /// `PROVIDER/MODEL`.
    pub label: Arc<str>,
    /// Its provider.
    pub provider: Arc<ProviderNode>,
    /// Upstream model id.
    pub model: Arc<str>,
    /// Context window in tokens.
    pub window: Option<u64>,
    /// Longest output in tokens.
    pub max_output: Option<u64>,
    /// What the model can do; `None` = unknown.
    pub features: Option<Vec<Feature>>,
    /// Price.
    pub price: Option<Price>,
    /// Connections that may serve it.
    pub connections: Vec<Arc<ConnectionNode>>,
    /// Connections that are named or belong to the provider and never serve it: name, and the reason in words.
    pub barred: Vec<(Arc<str>, String)>,
    /// How fast it answers; `None` where no combo asks.
    pub(super) speed: Option<Arc<Speed>>,
}

/// One entry of a combo, in the order of its tiers.
#[derive(Debug)]
pub struct Unit {
    /// Name of the target inside its combo.
    pub name: Arc<str>,
    /// Identity that survives reloads.
    pub key: u64,
    /// Share in weighted choices.
    pub weight: u32,
    /// Move past it only when every failure on it was quota exhaustion.
    pub protected: bool,
    /// Largest known context window below it.
    pub window: Option<u64>,
    /// Lowest known price below it.
    pub price: Option<Price>,
    /// What the model is told in a pipeline, beside what it works on.
    pub prompt: Option<Arc<str>>,
    /// What it is.
    pub kind: UnitKind,
}

/// A model or a nested combo.
#[derive(Debug, Clone)]
pub enum UnitKind {
    /// One model.
    Leaf(Arc<Leaf>),
    /// A combo, by position in `Snapshot::combos`.
    Nested(usize),
}

/// A combo.
#[derive(Debug)]
pub struct ComboNode {
    /// Name of the resource.
    pub name: Arc<str>,
    /// Its entries.
    pub units: Vec<Unit>,
    /// Its strategy and the strategy's state.
    pub strategy: Arc<dyn Strategy>,
    /// Every model below it, each once: what availability looks at.
    pub leaves: Vec<Arc<Leaf>>,
}

impl Router {
    /// Builds the router of a snapshot. Strategy state moves over from `previous` for every combo whose definition is the same, account
    /// state for every provider that still exists.
    #[must_use]
    pub fn new(snapshot: Arc<Snapshot>, previous: Option<&Self>) -> Self {
        let providers = provider_nodes(&snapshot, previous);
        let nesting = Nesting::of(&snapshot.combos);
        let mut speeds = kept_speeds(previous);
        let mut combos: Vec<ComboNode> = Vec::with_capacity(snapshot.combos.len());
        for combo in &snapshot.combos {
            let mut units: Vec<Unit> =
                ordered_targets(combo).into_iter().filter_map(|t| unit(t, &snapshot, &providers, &nesting)).collect();
            if combo.options.predictive_ttft_ms > 0 {
                units.iter_mut().for_each(|unit| measure(unit, &mut speeds));
            }
            let strategy = kept_strategy(combo, &snapshot, previous).unwrap_or_else(|| strategies::build(combo, &snapshot.settings));
            combos.push(ComboNode { name: combo.name.as_str().into(), units, strategy, leaves: Vec::new() });
        }
        summarise(&mut combos, &snapshot.combos, &nesting);
        let (mut exact, mut folded) = (HashMap::new(), HashMap::new());
        for (index, combo) in snapshot.combos.iter().enumerate().filter(|(_, c)| !c.targets.is_empty()) {
            for name in &combo.model_names {
                exact.entry(name.clone()).or_insert(index);
                folded.entry(name.to_lowercase()).or_insert(index);
            }
        }
        let mut connections: Vec<Arc<ConnectionNode>> = providers.values().flat_map(|p| p.connections.iter().cloned()).collect();
        connections.sort_by_key(|c| c.index);
        let by_quota = snapshot.providers.iter().any(|p| p.account_strategy == AccountStrategy::P2C);
        let hands_over = snapshot.combos.iter().any(|c| c.options.handoff.is_some());
        let learns_quota = by_quota
            || hands_over
            || snapshot.settings.quota_preflight.enabled
            || combos.iter().any(|c: &ComboNode| c.strategy.traits().quota);
        Self { snapshot, combos, providers, connections, learns_quota, exact, folded }
    }

    /// Takes over what the headers of an answer say about the allowances of a connection (its position in the snapshot). `header` looks a
    /// header up by its lower-case name. Costs nothing while no strategy looks at allowances.
    pub fn learn_quota<'h>(&self, connection: usize, header: impl Fn(&str) -> Option<&'h str>, now: EpochMs) {
        if !self.learns_quota {
            return;
        }
        if let (Some(node), Some(quota)) = (self.connection(connection), quota::from_headers(header, now)) {
            node.quota.learn(quota);
        }
    }

    /// Notes for the choice among the connections of a provider that a dispatch is made. One that was refused before is no use of its connection.
    pub fn dispatched(&self, dispatch: &Dispatch, now: EpochMs) {
        if let Some(provider) = self.providers.get(&*dispatch.provider_name) {
            provider.accounts.dispatched(&dispatch.connection, now);
        }
    }

    /// How much of its tightest allowance a connection (its position in the snapshot) has used, in percent, and when that starts again; `None`
    /// while nothing is known, or nobody asks.
    #[must_use]
    pub fn used_percent(&self, connection: usize, now: EpochMs) -> Option<(f64, Option<EpochMs>)> {
        let quota = self.connection(connection)?.quota.get()?;
        Some(((1.0 - quota.remaining(now)) * 100.0, quota.tightest_reset(now)))
    }

    fn connection(&self, index: usize) -> Option<&Arc<ConnectionNode>> {
        self.connections.binary_search_by_key(&index, |c| c.index).ok().and_then(|at| self.connections.get(at))
    }

    /// Whether a connection may take a model now: what the present says, then the quota preflight (routing spec 5.2 gate 6).
    pub(super) fn check(&self, live: &dyn Live, connection: &ConnectionNode, model: &str, now: EpochMs) -> Result<(), Exclusion> {
        live.check(connection.index, model, now)?;
        let preflight = &self.snapshot.settings.quota_preflight;
        let Some(quota) = preflight.enabled.then(|| connection.quota.get()).flatten() else { return Ok(()) };
        if quota.remaining(now) * 100.0 > f64::from(preflight.cutoff_percent) {
            return Ok(());
        }
        // Without a known end the next answer must be able to say that it is over: such an allowance is not held against it.
        match quota.tightest_reset(now) {
            Some(until) => Err(Exclusion {
                reason: ExclusionReason::QuotaCutoff,
                until: Some(until),
                cause: Some(Reason::QuotaExhausted),
                stated: true,
            }),
            None => Ok(()),
        }
    }

    /// The snapshot it was built from.
    #[must_use]
    pub const fn snapshot(&self) -> &Arc<Snapshot> {
        &self.snapshot
    }

    /// A target that no combo names: `PROVIDER/MODEL`, asked for directly.
    pub(super) fn direct_leaf(&self, provider: &Arc<ProviderNode>, model: &str) -> Arc<Leaf> {
        let label: Arc<str> = format!("{}/{model}", provider.name).into();
        Arc::new(leaf(label.clone(), label, provider.clone(), model, &[], &self.snapshot))
    }

    /// A model that is named beside the targets of a combo; `None` without such a provider.
    #[must_use]
    pub fn model(&self, provider: &str, model: &str) -> Option<Arc<Leaf>> {
        self.providers.get(provider).map(|provider| self.direct_leaf(provider, model))
    }

    /// The entries of a combo, in the order of its tiers.
    #[must_use]
    pub fn units(&self, combo: usize) -> &[Unit] {
        self.combos.get(combo).map_or(&[], |node| &node.units)
    }

    /// The definition of a combo.
    pub(super) fn combo(&self, index: usize) -> Option<(&ComboNode, &Combo)> {
        Some((self.combos.get(index)?, self.snapshot.combos.get(index)?))
    }
}

/// A hash that is the same in every process and build (FNV-1a).
#[must_use]
pub fn stable_key(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

fn provider_nodes(snapshot: &Snapshot, previous: Option<&Router>) -> HashMap<String, Arc<ProviderNode>> {
    let mut by_provider: HashMap<&str, Vec<Arc<ConnectionNode>>> = HashMap::new();
    let before = previous.into_iter().flat_map(|p| p.connections.iter());
    let kept: HashMap<&str, Arc<QuotaCell>> = before.map(|c| (&*c.name, c.quota.clone())).collect();
    for (index, connection) in snapshot.connections.iter().enumerate() {
        by_provider.entry(&connection.provider).or_default().push(Arc::new(ConnectionNode {
            index,
            name: connection.name.as_str().into(),
            key: stable_key(&connection.name),
            priority: connection.priority,
            weight: connection.weight,
            quota: kept.get(connection.name.as_str()).cloned().unwrap_or_default(),
        }));
    }
    let mut nodes = HashMap::with_capacity(snapshot.providers.len());
    for (index, provider) in snapshot.providers.iter().enumerate() {
        let mut connections = by_provider.remove(provider.name.as_str()).unwrap_or_default();
        connections.sort_by(|a, b| (a.priority, &a.name).cmp(&(b.priority, &b.name)));
        let weight = snapshot.settings.p2c_latency_weight;
        let kept = previous.and_then(|p| p.providers.get(&provider.name)).map(|p| p.accounts.clone());
        let accounts = kept
            .filter(|a| a.is_for(provider.account_strategy, weight))
            .unwrap_or_else(|| Arc::new(Accounts::new(provider.account_strategy, weight)));
        let node = ProviderNode {
            index,
            name: provider.name.as_str().into(),
            dialects: provider.dialects.clone(),
            per_model_quota: provider.traits.per_model_quota,
            connections,
            accounts,
        };
        nodes.insert(provider.name.clone(), Arc::new(node));
    }
    nodes
}

fn kept_strategy(combo: &Combo, snapshot: &Snapshot, previous: Option<&Router>) -> Option<Arc<dyn Strategy>> {
    let previous = previous?;
    let index = previous.snapshot.combos.iter().position(|c| c == combo)?;
    let same_defaults = previous.snapshot.settings.combo_sticky_round_robin_limit == snapshot.settings.combo_sticky_round_robin_limit;
    same_defaults.then(|| previous.combos.get(index).map(|c| c.strategy.clone())).flatten()
}

/// What is known about the speed of targets, by `PROVIDER/MODEL`.
fn kept_speeds(previous: Option<&Router>) -> HashMap<Arc<str>, Arc<Speed>> {
    let leaves = previous.into_iter().flat_map(|p| &p.combos).flat_map(|c| &c.leaves);
    leaves.filter_map(|leaf| Some((leaf.label.clone(), leaf.speed.clone()?))).collect()
}

/// Lets the speed of a target be measured.
fn measure(unit: &mut Unit, speeds: &mut HashMap<Arc<str>, Arc<Speed>>) {
    if let UnitKind::Leaf(leaf) = &mut unit.kind
        && let Some(leaf) = Arc::get_mut(leaf)
    {
        leaf.speed = Some(speeds.entry(leaf.label.clone()).or_default().clone());
    }
}

/// `None` for a reference to nothing: such a target cannot be dispatched, and the compiler has said so.
fn unit(target: &Target, snapshot: &Snapshot, providers: &HashMap<String, Arc<ProviderNode>>, nesting: &Nesting<'_>) -> Option<Unit> {
    let name: Arc<str> = target.name.as_str().into();
    let kind = match &target.kind {
        TargetKind::Model { provider, model, connections } => {
            let provider = providers.get(provider)?;
            let label = format!("{}/{model}", provider.name).into();
            UnitKind::Leaf(Arc::new(leaf(name.clone(), label, provider.clone(), model, connections, snapshot)))
        }
        TargetKind::Combo { combo } => UnitKind::Nested(nesting.position(combo)?),
    };
    let (window, price) = match &kind {
        UnitKind::Leaf(leaf) => (leaf.window, leaf.price),
        UnitKind::Nested(_) => (None, None),
    };
    Some(Unit {
        key: stable_key(&target.name),
        name,
        weight: target.weight,
        protected: target.fallback_only_on_quota_exhaustion,
        window,
        price,
        prompt: target.prompt.as_deref().map(Into::into),
        kind,
    })
}

fn leaf(name: Arc<str>, label: Arc<str>, provider: Arc<ProviderNode>, model: &str, only: &[String], snapshot: &Snapshot) -> Leaf {
    let known = snapshot.providers.get(provider.index).and_then(|p| p.models.iter().find(|m| m.name == model));
    let Model { context_window, max_output_tokens, features, price, .. } = known.cloned().unwrap_or_default();
    let mut connections = Vec::new();
    let mut barred = Vec::new();
    for node in &provider.connections {
        if !only.is_empty() && !only.iter().any(|o| **o == *node.name) {
            continue;
        }
        match snapshot.connections.get(node.index).and_then(|c| model_bar(c, model)) {
            Some(why) => barred.push((node.name.clone(), why)),
            None => connections.push(node.clone()),
        }
    }
    let out_of_use = snapshot.unusable_connections.iter().filter(|u| *u.provider == *provider.name);
    for out in out_of_use.filter(|u| only.is_empty() || only.contains(&u.name)) {
        barred.push((out.name.as_str().into(), out.reason.clone()));
    }
    Leaf {
        name,
        label,
        provider,
        model: model.into(),
        window: context_window,
        max_output: max_output_tokens,
        features,
        price,
        connections,
        barred,
        speed: None,
    }
}

/// Why the globs of a connection keep it from a model.
fn model_bar(connection: &Connection, model: &str) -> Option<String> {
    let model = model.to_lowercase();
    let matches = |globs: &[String]| globs.iter().find(|g| glob_matches(&g.to_lowercase(), &model)).cloned();
    if let Some(glob) = matches(&connection.models_deny) {
        return Some(format!("models.deny contains `{glob}`"));
    }
    (!connection.models_allow.is_empty() && matches(&connection.models_allow).is_none())
        .then(|| "models.allow does not contain it".to_owned())
}

/// Fills what is known about nested units from what lies below them, and the leaves of every combo.
fn summarise(combos: &mut [ComboNode], definitions: &[Combo], nesting: &Nesting<'_>) {
    for index in 0..combos.len() {
        let Some(definition) = definitions.get(index) else { continue };
        let below = nesting.below(index, definition.options.max_depth);
        let mut leaves: Vec<Arc<Leaf>> = Vec::new();
        for node in below.iter().filter_map(|i| combos.get(*i)) {
            leaves.extend(node.units.iter().filter_map(|u| match &u.kind {
                UnitKind::Leaf(leaf) => Some(leaf.clone()),
                UnitKind::Nested(_) => None,
            }));
        }
        if let Some(node) = combos.get_mut(index) {
            node.leaves = leaves;
        }
    }
    let facts: Vec<(Option<u64>, Option<Price>)> = combos
        .iter()
        .map(|combo| {
            let window = combo.leaves.iter().filter_map(|l| l.window).max();
            let price = combo.leaves.iter().filter_map(|l| l.price).min_by_key(|p| (p.input.saturating_add(p.output), p.input));
            (window, price)
        })
        .collect();
    for unit in combos.iter_mut().flat_map(|c| &mut c.units) {
        if let UnitKind::Nested(child) = unit.kind
            && let Some((window, price)) = facts.get(child)
        {
            (unit.window, unit.price) = (*window, *price);
        }
    }
}
