//! Known providers, read from `presets.yaml`.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::Deserialize;

use crate::classify::{ProviderTraits, QuotaReset, catalog};
use crate::snapshot::{Dialect, Feature, Model, Price, QuotaFamily, UpstreamAuth};

/// One known provider.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Preset {
    /// Name for `spec.preset`; also the id by which the classifier's catalog knows the provider.
    pub id: String,
    /// Display name.
    pub title: String,
    /// Where requests go.
    #[serde(rename = "baseURL")]
    pub base_url: Option<String>,
    /// The shape of the address, for presets that need one from the user.
    #[serde(rename = "needsBaseURL")]
    pub needs_base_url: Option<String>,
    /// Dialects.
    pub dialects: Vec<Dialect>,
    #[serde(default)]
    auth: PresetAuth,
    #[serde(default)]
    auth_by_dialect: BTreeMap<Dialect, PresetAuth>,
    /// Static headers.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// An official endpoint: empty but regular ends of answers are valid (decisions 9.9).
    #[serde(default)]
    pub official: bool,
    quota_reset: Option<QuotaReset>,
    #[serde(default)]
    models: Vec<PresetModel>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
enum PresetAuth {
    #[default]
    Bearer,
    Header(String),
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PresetModel {
    name: String,
    context_window: Option<u64>,
    max_output_tokens: Option<u64>,
    features: Option<Vec<Feature>>,
    price: Option<PresetPrice>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PresetPrice {
    input: String,
    output: String,
    cached_input: Option<String>,
}

impl Preset {
    /// How its limits behave: the classifier's catalog, with the preset's own reset clock where it has one.
    #[must_use]
    pub fn traits(&self) -> ProviderTraits {
        let known = catalog::traits(&self.id, None);
        ProviderTraits { quota_reset: self.quota_reset.clone().or(known.quota_reset.clone()), ..known }
    }

    /// Models that share an allowance.
    #[must_use]
    pub fn quota_families(&self) -> Vec<QuotaFamily> {
        catalog::quota_families(&self.id)
    }

    /// How the credential is sent.
    #[must_use]
    pub fn auth(&self) -> UpstreamAuth {
        self.auth.upstream()
    }

    /// Exceptions by dialect.
    #[must_use]
    pub fn auth_by_dialect(&self) -> BTreeMap<Dialect, UpstreamAuth> {
        self.auth_by_dialect.iter().map(|(d, a)| (*d, a.upstream())).collect()
    }

    /// Known models.
    #[must_use]
    pub fn models(&self) -> Vec<Model> {
        self.models
            .iter()
            .map(|m| Model {
                name: m.name.clone(),
                context_window: m.context_window,
                max_output_tokens: m.max_output_tokens,
                features: m.features.clone(),
                price: m.price.as_ref().map(|p| Price {
                    input: micro_usd(&p.input).unwrap_or_default(),
                    output: micro_usd(&p.output).unwrap_or_default(),
                    cached_input: p.cached_input.as_deref().and_then(micro_usd),
                }),
            })
            .collect()
    }
}

impl PresetAuth {
    fn upstream(&self) -> UpstreamAuth {
        match self {
            Self::Bearer => UpstreamAuth::Bearer,
            Self::Header(name) => UpstreamAuth::Header(name.clone()),
        }
    }
}

/// Parses a decimal string of USD into micro-USD; at most six decimals.
#[must_use]
pub fn micro_usd(text: &str) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(fraction) || fraction.len() > 6 {
        return None;
    }
    let fraction: u64 = format!("{fraction:0<6}").parse().ok()?;
    whole.parse::<u64>().ok()?.checked_mul(1_000_000)?.checked_add(fraction)
}

static PRESETS: LazyLock<Vec<Preset>> = LazyLock::new(|| serde_saphyr::from_str(include_str!("presets.yaml")).unwrap_or_default());

/// All presets, in documentation order.
#[must_use]
pub fn presets() -> &'static [Preset] {
    &PRESETS
}

/// The preset of that id.
#[must_use]
pub fn preset(id: &str) -> Option<&'static Preset> {
    PRESETS.iter().find(|p| p.id == id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_is_usable() {
        assert!(
            presets().len() >= 21,
            "presets.yaml does not parse: {:?}",
            serde_saphyr::from_str::<Vec<Preset>>(include_str!("presets.yaml")).err()
        );
        let mut ids: Vec<&str> = presets().iter().map(|p| p.id.as_str()).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), presets().len(), "an id stands twice");
        for p in presets() {
            assert!(p.base_url.is_some() != p.needs_base_url.is_some(), "{}: exactly one of baseURL and needsBaseURL", p.id);
            assert!(!p.dialects.is_empty(), "{}", p.id);
            assert!(catalog::facts(&p.id).is_some(), "{} is not in the classifier's catalog", p.id);
            for m in &p.models {
                if let Some(price) = &m.price {
                    assert!(micro_usd(&price.input).is_some() && micro_usd(&price.output).is_some(), "{} {}", p.id, m.name);
                }
            }
        }
    }

    #[test]
    fn money_is_exact() {
        assert_eq!(micro_usd("1.75"), Some(1_750_000));
        assert_eq!(micro_usd("0"), Some(0));
        assert_eq!(micro_usd("0.000001"), Some(1));
        for bad in ["", ".5", "1.2345678", "-1", "1e3"] {
            assert_eq!(micro_usd(bad), None, "{bad}");
        }
    }
}
