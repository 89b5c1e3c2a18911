//! The objects of one namespace.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::ResourceExt;

use super::{Combo, Connection, OperatorErrorRule, Provider, ResilienceSettings};

/// The objects of one namespace: what `compile` is fed with, from the API server or from files.
#[derive(Clone, Debug, Default)]
pub struct Resources {
    /// Providers.
    pub providers: Vec<Arc<Provider>>,
    /// Connections.
    pub connections: Vec<Arc<Connection>>,
    /// Combos.
    pub combos: Vec<Arc<Combo>>,
    /// Settings; the oldest one is the gateway.
    pub settings: Vec<Arc<ResilienceSettings>>,
    /// Operator rules.
    pub rules: Vec<Arc<OperatorErrorRule>>,
    /// Secrets that are referenced or labelled as client keys; others are ignored.
    pub secrets: Vec<Arc<Secret>>,
    /// ConfigMaps with CA bundles.
    pub config_maps: Vec<Arc<ConfigMap>>,
}

impl Resources {
    /// The objects by namespace, for inputs that hold several. Objects without one belong to whatever namespace the owner applies them
    /// to: they join the only one that is named, or stay together.
    #[must_use]
    pub fn by_namespace(&self) -> BTreeMap<Option<String>, Self> {
        let mut named = BTreeSet::new();
        macro_rules! each {
            ($($list:ident)+) => {{
                $(named.extend(self.$list.iter().filter_map(|o| o.namespace()));)+
                let only = if named.len() == 1 { named.first().cloned() } else { None };
                let mut out: BTreeMap<Option<String>, Self> = BTreeMap::new();
                $(for object in &self.$list {
                    let namespace = object.namespace().or_else(|| only.clone());
                    out.entry(namespace).or_default().$list.push(Arc::clone(object));
                })+
                out
            }};
        }
        each!(providers connections combos settings rules secrets config_maps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn provider(name: &str, namespace: Option<&str>) -> Arc<Provider> {
        let mut provider = Provider::new(name, super::super::ProviderSpec::default());
        provider.metadata.namespace = namespace.map(str::to_owned);
        Arc::new(provider)
    }

    #[test]
    fn objects_without_a_namespace_join_the_only_one() {
        let resources = Resources { providers: vec![provider("a", None), provider("b", Some("x"))], ..Resources::default() };
        let groups = resources.by_namespace();
        assert_eq!(groups.keys().cloned().collect::<Vec<_>>(), [Some("x".to_owned())]);
        assert_eq!(groups[&Some("x".to_owned())].providers.len(), 2);
        let resources =
            Resources { providers: vec![provider("a", None), provider("b", Some("x")), provider("c", Some("y"))], ..Resources::default() };
        assert_eq!(resources.by_namespace().len(), 3);
    }
}
