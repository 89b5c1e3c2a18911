//! Reference pages that are made from the tables of this module; `docs/reference` holds them and a test compares.

use std::fmt::Write as _;

use super::presets::{Preset, presets};
use super::settings::{ROWS, Unit};
use crate::snapshot::UpstreamAuth;

/// Variables that do not stand in the table of settings, with what they do.
const OTHERS: &[(&str, &str)] = &[
    ("STREAM_IDLE_TIMEOUT_MS", "Default of `timeouts.streamIdle` of every Provider; 0 = off."),
    ("STREAM_CONTENT_STALL_TIMEOUT_MS", "Default of `timeouts.streamContentStall` of every Provider; 0 = off."),
    ("STREAM_ACTIVE_TIMEOUT_MS", "Default of `timeouts.total` of every Provider; 0 = off."),
];

/// Variables of the original that have no effect here, and why.
const WITHOUT_EFFECT: &[(&str, &str)] = &[
    ("OMNIROUTE_ROTATION_DISABLE_TAG_WITHOUT_RESET", "mirrors a preference of a web console that does not exist here"),
    ("OMNIROUTE_EGRESS_IP_LOCK_PROVIDERS", "declare `capabilities.egressBucketed` on the Provider and `egressGroup` on its Connections"),
    ("MISTRAL_AMBIGUOUS_401_SOFT_LOCKOUT", "every 401 counts strikes before it becomes terminal"),
    ("CREDENTIAL_HEALTH_CHECK_INTERVAL", "the gateway sends no health requests of its own"),
    ("HEALTHCHECK_STAGGER_MS", "likewise"),
    ("OMNIROUTE_DISABLE_TOKEN_HEALTHCHECK", "likewise"),
    ("OMNIROUTE_HEALTHCHECK_SKIP_PROVIDERS", "likewise"),
    ("REQUEST_REJECTED_MAX_COOLDOWN_MS", "the cap is one hour"),
    ("OMNIROUTE_EMERGENCY_FALLBACK", "opt in with `emergencyFallback` of the ResilienceSettings"),
];

/// Page of the environment variables.
#[must_use]
pub fn environment_page() -> String {
    let mut page = String::from(
        "# Environment variables\n\n<!-- Made from the code; run `UPDATE=1 cargo test --test reference` after a change. -->\n\n\
         Defaults of settings, read by the process that compiles (`omniroute operator`, `omniroute run`). A field of `ResilienceSettings` beats the variable, \
         a field of a `Connection` or `Provider` beats both. `GET /api/resilience` shows the value that is in force and where it comes from.\n\n\
         | variable | unit | field |\n|---|---|---|\n",
    );
    let mut rows: Vec<(&str, &str, &str)> = ROWS
        .iter()
        .filter_map(|row| {
            let (name, unit) = row.env?;
            let unit = match unit {
                Unit::Ms => "milliseconds",
                Unit::Seconds => "seconds",
                Unit::Plain => "number or switch",
            };
            Some((name, unit, row.path))
        })
        .collect();
    rows.sort_unstable();
    for (name, unit, path) in rows {
        let _ = writeln!(page, "| `{name}` | {unit} | `{path}` |");
    }
    page.push_str("\nSwitches take `true`, `1`, `yes`, `on` and their opposites; a number is finite and not negative; anything else is ignored.\n\n## Without a field in ResilienceSettings\n\n| variable | effect |\n|---|---|\n");
    for (name, effect) in OTHERS {
        let _ = writeln!(page, "| `{name}` | {effect} |");
    }
    page.push_str("\n## Known from the original, without effect here\n\n| variable | why, or what to use |\n|---|---|\n");
    for (name, why) in WITHOUT_EFFECT {
        let _ = writeln!(page, "| `{name}` | {why} |");
    }
    page
}

/// Page of the presets.
#[must_use]
pub fn presets_page() -> String {
    let mut page = String::from(
        "# Presets\n\n<!-- Made from the code; run `UPDATE=1 cargo test --test reference` after a change. -->\n\n\
         `Provider.spec.preset` names a known vendor. Every field of the resource overrides the preset.\n\n\
         | preset | vendor | base URL | dialects | auth class | credential | limits |\n|---|---|---|---|---|---|---|\n",
    );
    for p in presets() {
        let dialects: Vec<String> = p.dialects.iter().map(|d| format!("{d:?}")).collect();
        let _ = writeln!(
            page,
            "| `{}` | {} | {} | {} | {:?} | {} | {} |",
            p.id,
            p.title,
            p.base_url
                .as_ref()
                .map_or_else(|| format!("give one like `{}`", p.needs_base_url.as_deref().unwrap_or_default()), |u| format!("`{u}`")),
            dialects.join(", "),
            p.traits().auth_class,
            credential(p),
            limits(p),
        );
    }
    page.push_str("\n## Models\n\nPrices are USD per million tokens of input and output.\n\n| preset | model | context window | longest output | price |\n|---|---|---|---|---|\n");
    for p in presets() {
        for m in p.models() {
            let number = |n: Option<u64>| n.map_or_else(|| "–".to_owned(), |n| n.to_string());
            let price = m.price.map_or_else(|| "–".to_owned(), |p| format!("{} / {}", usd(p.input), usd(p.output)));
            let _ =
                writeln!(page, "| `{}` | `{}` | {} | {} | {price} |", p.id, m.name, number(m.context_window), number(m.max_output_tokens));
        }
    }
    page
}

fn credential(p: &Preset) -> String {
    let name = |a: &UpstreamAuth| match a {
        UpstreamAuth::Bearer => "`Authorization: Bearer`".to_owned(),
        UpstreamAuth::Header(h) => format!("`{h}`"),
        UpstreamAuth::None => "none".to_owned(),
    };
    let mut text = name(&p.auth());
    for (dialect, auth) in p.auth_by_dialect() {
        let _ = write!(text, ", {dialect:?}: {}", name(&auth));
    }
    text
}

fn limits(p: &Preset) -> String {
    let c = p.traits();
    let mut words: Vec<String> = [
        (c.per_model_quota, "per model"),
        (c.passthrough_models, "passes models through"),
        (c.shared_wallet, "one wallet"),
        (c.egress_bucketed, "per client address"),
    ]
    .into_iter()
    .filter(|(on, _)| *on)
    .map(|(_, word)| word.to_owned())
    .collect();
    if let Some(reset) = &c.quota_reset {
        words.push(format!("daily reset {}:00 {}", reset.hour, reset.time_zone));
    }
    if words.is_empty() { "per account".to_owned() } else { words.join(", ") }
}

fn usd(micro: u64) -> String {
    format!("{}.{:02}", micro / 1_000_000, micro % 1_000_000 / 10_000)
}
