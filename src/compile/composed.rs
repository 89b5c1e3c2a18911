//! What combos of several calls need beside their targets: the judge and the size of a panel, who hands over to whom.

use super::combo::{KIND, known_model};
use super::{Finding, Index, Severity, names};
use crate::api::{self, combo::Strategy};
use crate::snapshot::{Snapshot, TargetKind};

/// Checks the options of Fusion and ContextRelay. `None` when the combo cannot serve: a judge that is not there must not mean "anyone".
pub(super) fn check(name: &str, spec: &api::ComboSpec, index: &Index<'_>, snapshot: &Snapshot, findings: &mut Vec<Finding>) -> Option<()> {
    if spec.strategy == Strategy::Fusion {
        let fusion = spec.fusion.clone().unwrap_or_default();
        let (targets, most) = (spec.targets.len(), fusion.max_panel);
        if targets > usize::try_from(most).unwrap_or(0) {
            let message = format!(
                "has {targets} targets, more than fusion.maxPanel allows ({most}): every request would be refused; remove targets or raise fusion.maxPanel"
            );
            findings.push(Finding::new((KIND, name), "spec.targets", "InvalidSpec", Severity::Error, message));
        }
        if let Some(judge) = &fusion.judge {
            known_model((KIND, name, "spec.fusion.judge"), (&judge.provider, &judge.model), index, snapshot, findings)?;
        }
    }
    if spec.strategy == Strategy::ContextRelay {
        if let Some(model) = &spec.handoff_model {
            known_model((KIND, name, "spec.handoffModel"), (&model.provider, &model.model), index, snapshot, findings)?;
        }
        someone_hands_over(name, spec, snapshot, findings);
    }
    Some(())
}

/// Warns when no target belongs to a provider that hands over. An empty list is a choice.
fn someone_hands_over(name: &str, spec: &api::ComboSpec, snapshot: &Snapshot, findings: &mut Vec<Finding>) {
    let listed = |provider: &String| {
        let preset = snapshot.providers.iter().find(|p| p.name == *provider).map(|p| &p.traits.catalog_id);
        spec.handoff_providers.iter().any(|wanted| wanted == provider || preset == Some(wanted))
    };
    let nested = spec.targets.iter().any(|t| t.combo.is_some());
    if nested || spec.handoff_providers.is_empty() || spec.targets.iter().filter_map(|t| t.provider.as_ref()).any(listed) {
        return;
    }
    let providers = spec.targets.iter().filter_map(|t| t.provider.as_deref()).collect();
    let message = format!(
        "names no provider of the targets ({}), so no account ever hands over and the order is that of `Priority`: list one of them by name or preset",
        names(&providers)
    );
    findings.push(Finding::new((KIND, name), "spec.handoffProviders", "InvalidSpec", Severity::Warning, message));
}

/// Says where a combo that hands conversations over is only a target of another one: there its order holds, and nothing more.
pub(super) fn note_nested_relays(snapshot: &Snapshot, findings: &mut Vec<Finding>) {
    let relays = |name: &String| snapshot.combos.iter().any(|c| c.name == *name && c.options.handoff.is_some());
    for combo in &snapshot.combos {
        for target in &combo.targets {
            let TargetKind::Combo { combo: child } = &target.kind else { continue };
            if relays(child) {
                let message = format!(
                    "Combo `{child}` hands conversations over only in requests that ask for it by name; as a target of this combo it has the order of `Priority`"
                );
                findings.push(Finding::new((KIND, &combo.name), "spec.targets", "InvalidSpec", Severity::Warning, message));
            }
        }
    }
}

/// Panels and pipelines make several calls of one request: in a list of which one entry serves they have no place.
pub(super) fn drop_from_lists(snapshot: &mut Snapshot, findings: &mut Vec<Finding>) {
    let composed: Vec<(String, String)> =
        snapshot.combos.iter().filter(|c| c.strategy.is_composed()).map(|c| (c.name.clone(), format!("{:?}", c.strategy))).collect();
    for combo in snapshot.combos.iter_mut().filter(|c| !c.strategy.is_composed()) {
        let (name, strategy) = (combo.name.clone(), combo.strategy);
        combo.targets.retain(|target| {
            let TargetKind::Combo { combo: child } = &target.kind else { return true };
            let Some((_, kind)) = composed.iter().find(|(composed, _)| composed == child) else { return true };
            let message = format!(
                "Combo `{child}` has strategy {kind}, which makes several calls of one request; a combo with strategy {strategy:?} cannot have it as target. Ask for `{child}` by name, or put it into a Fusion or Pipeline combo"
            );
            findings.push(Finding::new((KIND, &name), "spec.targets", "InvalidSpec", Severity::Error, message));
            false
        });
    }
}
