//! Data by provider id: facts, and the built-in error rules.

mod providers;
mod rules;

pub use providers::{PROVIDERS, ProviderFacts, facts, quota_families, traits};
pub use rules::{CATALOG, CatalogCooldown, CatalogRule};
