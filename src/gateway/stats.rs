//! Counts per combo and target (`/api/combos/metrics`).

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use serde_json::{Map, Value, json};

use crate::snapshot::{Combo, Snapshot};

/// Targets per combo that are counted; a combo cannot have more.
const MAX_TARGETS: usize = 4_096;

/// The counts of one combo since the process started.
#[derive(Debug, Default)]
pub struct ComboStats {
    requests: AtomicU64,
    successes: AtomicU64,
    targets: RwLock<HashMap<Arc<str>, Arc<TargetStats>>>,
}

#[derive(Debug, Default)]
struct TargetStats {
    successes: AtomicU64,
    failures: AtomicU64,
}

impl ComboStats {
    /// A request was answered.
    pub fn request(&self, good: bool) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.successes.fetch_add(u64::from(good), Ordering::Relaxed);
    }

    /// An attempt on a target ended.
    pub fn attempt(&self, target: &Arc<str>, good: bool) {
        let known = self.targets.read().unwrap_or_else(PoisonError::into_inner).get(target).cloned();
        let stats = known.unwrap_or_else(|| {
            let mut targets = self.targets.write().unwrap_or_else(PoisonError::into_inner);
            if targets.len() >= MAX_TARGETS {
                return Arc::default();
            }
            Arc::clone(targets.entry(Arc::clone(target)).or_default())
        });
        let counter = if good { &stats.successes } else { &stats.failures };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    fn clear(&self) {
        self.requests.store(0, Ordering::Relaxed);
        self.successes.store(0, Ordering::Relaxed);
        self.targets.write().unwrap_or_else(PoisonError::into_inner).clear();
    }

    fn render(&self, combo: &Combo) -> Value {
        let targets = self.targets.read().unwrap_or_else(PoisonError::into_inner);
        let sorted: BTreeMap<&str, &TargetStats> = targets.iter().map(|(name, stats)| (&**name, &**stats)).collect();
        let by_target: Map<String, Value> = sorted
            .into_iter()
            .map(|(name, stats)| {
                let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
                (name.to_owned(), json!({"successes": count(&stats.successes), "failures": count(&stats.failures)}))
            })
            .collect();
        json!({
            "totalRequests": self.requests.load(Ordering::Relaxed),
            "totalSuccesses": self.successes.load(Ordering::Relaxed),
            "strategy": format!("{:?}", combo.strategy),
            "byTarget": by_target,
        })
    }
}

/// The counts of all combos; they stay over reloads.
#[derive(Debug, Default)]
pub struct Stats(Mutex<HashMap<String, Arc<ComboStats>>>);

impl Stats {
    /// The counts of each combo of a snapshot, in its order; combos that are gone are forgotten.
    #[must_use]
    pub fn of(&self, snapshot: &Snapshot) -> Vec<Arc<ComboStats>> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|name, _| snapshot.combos.iter().any(|combo| combo.name == *name));
        snapshot.combos.iter().map(|combo| Arc::clone(all.entry(combo.name.clone()).or_default())).collect()
    }
}

/// The answer of the endpoint: one combo, or all by name; `None` for an unknown name.
#[must_use]
pub fn render(combos: &[Combo], stats: &[Arc<ComboStats>], wanted: Option<&str>) -> Option<Value> {
    let mut all = combos.iter().zip(stats);
    match wanted {
        Some(name) => all.find(|(combo, _)| combo.name == name).map(|(combo, stats)| stats.render(combo)),
        None => Some(json!({"combos": all.map(|(combo, stats)| (combo.name.clone(), stats.render(combo))).collect::<Map<_, _>>()})),
    }
}

/// Starts counting anew; answers how many combos that concerned.
#[must_use]
pub fn clear(combos: &[Combo], stats: &[Arc<ComboStats>], wanted: Option<&str>) -> usize {
    let chosen = combos.iter().zip(stats).filter(|(combo, _)| wanted.is_none_or(|name| combo.name == name));
    chosen.map(|(_, stats)| stats.clear()).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_stay_over_a_reload_and_can_be_cleared() {
        let combo = |name: &str| Combo { name: name.to_owned(), ..Combo::default() };
        let mut snapshot = Snapshot { combos: vec![combo("a"), combo("b")], ..Snapshot::default() };
        let all = Stats::default();
        let first = all.of(&snapshot);
        first[1].request(true);
        first[1].attempt(&"p/m".into(), false);
        first[1].attempt(&"p/n".into(), true);
        snapshot.combos.remove(0);
        let again = all.of(&snapshot);
        let expected = json!({"totalRequests": 1, "totalSuccesses": 1, "strategy": "Priority",
            "byTarget": {"p/m": {"successes": 0, "failures": 1}, "p/n": {"successes": 1, "failures": 0}}});
        assert_eq!(render(&snapshot.combos, &again, Some("b")), Some(expected));
        assert_eq!(render(&snapshot.combos, &again, Some("a")), None);
        assert_eq!(clear(&snapshot.combos, &again, None), 1);
        assert_eq!(render(&snapshot.combos, &again, None).unwrap()["combos"]["b"]["totalRequests"], 0);
    }
}
