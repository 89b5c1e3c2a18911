//! Names for the objects of the users.

use std::fmt;

use kube::core::{ApiResource, GroupVersionKind};

use crate::api;

/// The five kinds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[allow(missing_docs)] // DESIGN.md describes each
pub enum ObjectKind {
    ResilienceSettings,
    Provider,
    Connection,
    Combo,
    OperatorErrorRule,
}

impl ObjectKind {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::ResilienceSettings, Self::Provider, Self::Connection, Self::Combo, Self::OperatorErrorRule];

    /// The kind as manifests spell it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::ResilienceSettings => "ResilienceSettings",
            Self::Provider => "Provider",
            Self::Connection => "Connection",
            Self::Combo => "Combo",
            Self::OperatorErrorRule => "OperatorErrorRule",
        }
    }

    /// The plural in URLs.
    #[must_use]
    pub const fn plural(self) -> &'static str {
        match self {
            Self::ResilienceSettings => "resiliencesettings",
            Self::Provider => "providers",
            Self::Connection => "connections",
            Self::Combo => "combos",
            Self::OperatorErrorRule => "operatorerrorrules",
        }
    }

    /// Group, version, kind and plural.
    #[must_use]
    pub fn resource(self) -> ApiResource {
        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(api::GROUP, api::VERSION, self.name()), self.plural())
    }
}

/// One object of a user.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ObjectKey {
    /// Its namespace.
    pub namespace: String,
    /// Its kind.
    pub kind: ObjectKind,
    /// Its name.
    pub name: String,
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} `{}/{}`", self.kind.name(), self.namespace, self.name)
    }
}
