//! The objects of one namespace.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, Secret};

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
