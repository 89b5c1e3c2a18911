//! Data by provider id.

mod providers;

pub use providers::{PROVIDERS, ProviderFacts, facts, quota_families, traits};
