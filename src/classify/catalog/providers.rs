//! What is known about providers by id: data, wider than the presets (spec: resilience 2.1, 6.2, 8.3, 11, 12.2, 12.3).

use std::collections::HashMap;
use std::sync::LazyLock;

use super::super::{AuthClass, ProviderTraits, QuotaReset};
use crate::classify::QuotaFamily;

/// Facts about one provider id. What a row does not say is the behaviour of a plain provider.
#[derive(Clone, Copy, Debug)]
pub struct ProviderFacts {
    /// Id and its aliases, lower case; the first one is canonical. A trailing `*` matches any rest, a leading one any start.
    pub ids: &'static [&'static str],
    /// Auth class.
    pub auth_class: AuthClass,
    /// Every model has an allowance of its own (12.2).
    pub per_model_quota: bool,
    /// Passes models of others through (12.2).
    pub passthrough_models: bool,
    /// All models draw on one wallet (6.4 row 12).
    pub shared_wallet: bool,
    /// Counts per client address (11).
    pub egress_bucketed: bool,
    /// Authenticates with a browser's cookie: a plain 401 says nothing final (6.2).
    pub web_cookie: bool,
    /// Zone-less instants are UTC+8 (8.3).
    pub china_time: bool,
    /// Google Cloud style refusals: geo and project phrases (6.7 rows 10 and 14).
    pub google_cloud: bool,
    /// Daily reset: IANA zone and hour (7.4).
    pub quota_reset: Option<(&'static str, u8)>,
    /// Families in the order in which they are asked: name and globs (12.3).
    pub families: &'static [(&'static str, &'static [&'static str])],
}

/// A plain provider with a key.
const PLAIN: ProviderFacts = ProviderFacts {
    ids: &[],
    auth_class: AuthClass::ApiKey,
    per_model_quota: false,
    passthrough_models: false,
    shared_wallet: false,
    egress_bucketed: false,
    web_cookie: false,
    china_time: false,
    google_cloud: false,
    quota_reset: None,
    families: &[],
};
/// A subscription.
const OAUTH: ProviderFacts = ProviderFacts { auth_class: AuthClass::OAuth, ..PLAIN };
/// A web session.
const COOKIE: ProviderFacts = ProviderFacts { web_cookie: true, ..PLAIN };
/// A self-hosted server.
const LOCAL: ProviderFacts = ProviderFacts { auth_class: AuthClass::Local, per_model_quota: true, passthrough_models: true, ..PLAIN };
/// A gateway to models of others.
const PASSTHROUGH: ProviderFacts = ProviderFacts { per_model_quota: true, passthrough_models: true, ..PLAIN };

/// Families of codex: whatever is not spark shares the codex allowance.
const CODEX: &[(&str, &[&str])] = &[("spark", &["*spark*", "*bengalfox*"]), ("codex", &["*"])];
/// Families of antigravity.
const ANTIGRAVITY: &[(&str, &[&str])] = &[("family:gemini", &["*gemini*"]), ("family:claude", &["claude-*", "cloud-*", "*anthropic*"])];

/// All rows; the first whose id matches counts.
pub static PROVIDERS: &[ProviderFacts] = &[
    // subscriptions
    ProviderFacts { ids: &["claude", "claude-code", "cc"], ..OAUTH },
    ProviderFacts { ids: &["codex", "cx"], per_model_quota: true, families: CODEX, ..OAUTH },
    ProviderFacts { ids: &["github", "github-copilot", "copilot"], per_model_quota: true, ..OAUTH },
    ProviderFacts { ids: &["antigravity", "agy"], per_model_quota: true, google_cloud: true, families: ANTIGRAVITY, ..OAUTH },
    ProviderFacts { ids: &["gemini-cli", "cloudcode", "cloud-code"], google_cloud: true, ..OAUTH },
    ProviderFacts { ids: &["cursor"], ..OAUTH },
    ProviderFacts { ids: &["kiro", "amazon-q"], ..OAUTH },
    ProviderFacts { ids: &["cline"], ..OAUTH },
    ProviderFacts { ids: &["grok-cli", "xai-oauth"], shared_wallet: true, ..OAUTH },
    ProviderFacts { ids: &["kimi-coding"], ..OAUTH },
    // keys
    ProviderFacts { ids: &["gemini"], per_model_quota: true, google_cloud: true, quota_reset: Some(("America/Los_Angeles", 0)), ..PLAIN },
    ProviderFacts { ids: &["vertex", "vertex-ai"], google_cloud: true, ..PLAIN },
    ProviderFacts { ids: &["glm", "zai", "glm-cn", "glmt"], china_time: true, ..PLAIN },
    ProviderFacts { ids: &["moonshot", "kimi"], shared_wallet: true, ..PLAIN },
    ProviderFacts { ids: &["grok-web"], shared_wallet: true, ..COOKIE },
    ProviderFacts { ids: &["perplexity-web", "chatgpt-web", "claude-web", "gemini-web", "qwen-web", "deepseek-web", "kimi-web"], ..COOKIE },
    // gateways
    ProviderFacts { ids: &["openrouter"], ..PASSTHROUGH },
    ProviderFacts { ids: &["agentrouter"], ..PASSTHROUGH },
    ProviderFacts { ids: &["nvidia"], ..PASSTHROUGH },
    ProviderFacts { ids: &["opencode-zen"], ..PASSTHROUGH },
    ProviderFacts { ids: &["opencode-go", "opencode-cli", "opencode"], egress_bucketed: true, ..PASSTHROUGH },
    ProviderFacts { ids: &["github-models"], per_model_quota: true, ..PLAIN },
    ProviderFacts { ids: &["minimax-passthrough"], ..PASSTHROUGH },
    ProviderFacts {
        ids: &["openai-compatible", "openai-compatible-*", "anthropic-compatible", "anthropic-compatible-*", "*-compatible-*"],
        shared_wallet: true,
        ..PASSTHROUGH
    },
    // self-hosted
    ProviderFacts {
        ids: &["ollama", "vllm", "lmstudio", "lm-studio", "llamacpp", "llama-cpp", "sglang", "localai", "tgi", "local"],
        ..LOCAL
    },
    // known, and plain
    ProviderFacts {
        ids: &[
            "openai",
            "anthropic",
            "azure-openai",
            "groq",
            "mistral",
            "deepseek",
            "minimax",
            "cloudflare-ai",
            "ollama-cloud",
            "qwen",
            "mimocode",
            "command-code",
            "fireworks",
            "cerebras",
            "tavily",
            "pollinations",
            "longcat",
            "9router",
        ],
        ..PLAIN
    },
];

/// The facts of an id (any case); `None` = nothing is known about it.
#[must_use]
pub fn facts(id: &str) -> Option<&'static ProviderFacts> {
    static EXACT: LazyLock<HashMap<&str, &ProviderFacts>> = LazyLock::new(|| {
        // Of a repeated id the first row counts.
        PROVIDERS.iter().rev().flat_map(|row| row.ids.iter().map(move |id| (*id, row))).filter(|(id, _)| !id.contains('*')).collect()
    });
    if id.is_empty() {
        return None;
    }
    EXACT.get(id).copied().or_else(|| by_pattern(id))
}

/// The row whose pattern fits; also for ids in another case.
fn by_pattern(id: &str) -> Option<&'static ProviderFacts> {
    PROVIDERS.iter().find(|row| row.ids.iter().any(|pattern| id_matches(pattern, id)))
}

/// Compares an id with a pattern of [`ProviderFacts::ids`], ignoring ASCII case.
fn id_matches(pattern: &str, id: &str) -> bool {
    let contains = |part: &str| id.as_bytes().windows(part.len().max(1)).any(|w| w.eq_ignore_ascii_case(part.as_bytes()));
    match (pattern.strip_prefix('*'), pattern.strip_suffix('*')) {
        (Some(rest), Some(_)) => contains(rest.trim_end_matches('*')),
        (None, Some(prefix)) => id.get(..prefix.len()).is_some_and(|head| head.eq_ignore_ascii_case(prefix)),
        _ => id.eq_ignore_ascii_case(pattern),
    }
}

/// The traits of a provider id: what the catalog knows, else a plain provider. `auth` overrides the catalog's auth class.
/// An empty id stands for an unknown provider.
#[must_use]
pub fn traits(id: &str, auth: Option<AuthClass>) -> ProviderTraits {
    let facts = facts(id).unwrap_or(&PLAIN);
    ProviderTraits {
        name: id.to_owned(),
        catalog_id: id.to_ascii_lowercase(),
        auth_class: auth.unwrap_or(facts.auth_class),
        per_model_quota: facts.per_model_quota,
        passthrough_models: facts.passthrough_models,
        shared_wallet: facts.shared_wallet,
        egress_bucketed: facts.egress_bucketed,
        empty_stop_is_valid: false,
        quota_reset: facts.quota_reset.map(|(zone, hour)| QuotaReset { time_zone: zone.to_owned(), hour }),
        retry_delay_ms: None,
    }
}

/// The quota families of a provider id, in the order in which they are asked; a model that fits none is its own family.
#[must_use]
pub fn quota_families(id: &str) -> Vec<QuotaFamily> {
    let rows = facts(id).map_or(&[][..], |f| f.families);
    rows.iter()
        .map(|(name, globs)| QuotaFamily { name: (*name).to_owned(), models: globs.iter().map(|g| (*g).to_owned()).collect() })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_match_by_alias_case_and_pattern() {
        assert_eq!(traits("CX", None).auth_class, AuthClass::OAuth);
        assert!(traits("openai-compatible-chat-1234", None).passthrough_models);
        assert!(traits("my-anthropic-compatible-node", None).passthrough_models);
        assert!(!traits("acme", None).per_model_quota);
        assert_eq!(traits("acme", Some(AuthClass::OAuth)).auth_class, AuthClass::OAuth);
        assert_eq!(quota_families("agy").first().map(|f| f.name.clone()), Some("family:gemini".to_owned()));
        assert!(facts("").is_none());
    }
}
