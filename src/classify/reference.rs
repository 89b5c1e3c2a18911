//! The reference page of all verdict rows, made from the tables.

use std::fmt::Write;

use super::catalog::{CATALOG, CatalogCooldown};
use super::codes::{CODES, GLM_CODES};
use super::phrases::PHRASES;
use super::restatement::RESTATEMENTS;
use super::{Evidence, Rest, Row, Seen, tables, transport_ids};
use crate::api::time::format_duration;

/// `docs/reference/verdicts.md`.
#[must_use]
pub fn verdicts_page() -> String {
    let mut page = String::from(
        "# Verdict rows\n\n<!-- Generated from the code: UPDATE=1 cargo test --test reference -->\n\nThe id of the row that decided is `decidedBy` of a \
         verdict; `omniroute explain` shows it with the rows that came near. `spec.disabledBuiltins` of ResilienceSettings switches rows off by id. \
         Rows are asked in this order; operator rules come after the detectors, then the catalog, then the rest.\n",
    );
    for (title, table) in ["Detectors", "Specific rows", "Request shape", "Text rows", "Status rows"].iter().zip(tables()) {
        let _ = write!(
            page,
            "\n## {title}\n\n| id | statuses | evidence | reason | scope | wait | failover |\n|---|---|---|---|---|---|---|\n"
        );
        for row in table {
            page.push_str(&line(row));
        }
    }
    page.push_str("\n## Catalog\n\n| id | providers | statuses | reason | scope | wait |\n|---|---|---|---|---|---|\n");
    for rule in CATALOG {
        let wait = match rule.cooldown {
            CatalogCooldown::Normal => "computed".to_owned(),
            CatalogCooldown::Fixed(ms) => format_duration(ms),
            CatalogCooldown::Stated => "as stated".to_owned(),
        };
        let _ = writeln!(
            page,
            "| `{}` | {} | {} | {:?} | {:?} | {wait} |",
            rule.id,
            rule.providers.join(", "),
            rule.on,
            rule.reason,
            rule.scope
        );
    }
    page.push_str("\n## Restatements\n\n| id | providers | from | to | wait when none is stated |\n|---|---|---|---|---|\n");
    for row in RESTATEMENTS {
        let from: Vec<String> = row.from.iter().map(u16::to_string).collect();
        let wait = format_duration(row.default_wait_ms);
        let _ = writeln!(page, "| `{}` | {} | {} | {} | {wait} |", row.id, row.providers.join(", "), from.join(", "), row.to);
    }
    let _ =
        write!(page, "\n## Transport failures\n\n{}\n", transport_ids().iter().map(|id| format!("`{id}`")).collect::<Vec<_>>().join(", "));
    page.push_str("\n## Evidence\n\nPhrases match message fields without case: ` .. ` = later on the same line, ` ..40.. ` = at most 40 characters \
        between, `‹ ›` = word boundary, `°` = one character or none, `{a|b}` = either. Codes match whole.\n\n| evidence | phrases | codes |\n|---|---|---|\n");
    for (name, _, phrases, codes) in evidence() {
        let _ = writeln!(page, "| {name} | {} | {} |", cell(&phrases), cell(&codes));
    }
    let glm: Vec<String> = GLM_CODES.iter().map(|(code, kind)| format!("`{code}` = {}", name_of(*kind))).collect();
    let _ = write!(page, "\nGLM's codes count for its own providers only: {}.\n", glm.join(", "));
    page
}

fn line(row: &Row) -> String {
    let wait = match row.outcome.rest {
        Rest::None => "none".to_owned(),
        Rest::Fixed(ms) => format_duration(ms),
        Rest::Backoff => "stated, else backoff".to_owned(),
        Rest::StatedOr(ms) | Rest::LevelKept(ms) => format!("stated, else {}", format_duration(ms)),
        Rest::DailyReset => "stated, else the daily reset".to_owned(),
        Rest::PeerDeadline => "as stated".to_owned(),
        Rest::Base => "stated, else the base cooldown".to_owned(),
        Rest::AuthStrike => "5m, 10m, then terminal".to_owned(),
        Rest::RejectionStrike => "5s doubled, at most 1h".to_owned(),
    };
    let o = row.outcome;
    let seen: Vec<&str> = evidence().into_iter().filter(|(_, kind, ..)| row.seen.has(*kind)).map(|(name, ..)| name).collect();
    let terminal = if o.dead {
        ", terminal"
    } else if o.credits {
        ", terminal (credits)"
    } else {
        ""
    };
    format!("| `{}` | {} | {} | {:?}{terminal} | {:?} | {wait} | {:?} |\n", row.id, row.on, seen.join(", "), o.reason, o.scope, o.failover)
}

/// A kind of evidence: its name, phrases and codes.
type Kind = (&'static str, Evidence, Vec<&'static str>, Vec<&'static str>);

/// Every kind of evidence that has phrases or codes.
fn evidence() -> Vec<Kind> {
    let mut out: Vec<Kind> = Vec::new();
    let kinds = PHRASES.iter().map(|l| (l.id, l.evidence)).chain(CODES.iter().map(|l| (l.id, l.evidence)));
    let mut done = Seen::default();
    for (id, kind) in kinds {
        if done.has(kind) {
            continue;
        }
        done.add(kind);
        let phrases = PHRASES.iter().filter(|l| l.evidence == kind).flat_map(|l| l.phrases.iter().copied()).collect();
        let codes = CODES.iter().filter(|l| l.evidence == kind).flat_map(|l| l.codes.iter().copied()).collect();
        out.push((id.split_once('.').map_or(id, |(_, name)| name), kind, phrases, codes));
    }
    out
}

/// The name of a kind in this page.
fn name_of(kind: Evidence) -> &'static str {
    evidence().into_iter().find(|(_, k, ..)| *k == kind).map_or("", |(name, ..)| name)
}

fn cell(texts: &[&str]) -> String {
    texts.iter().map(|t| format!("`{}`", t.replace('|', "\\|"))).collect::<Vec<_>>().join(", ")
}
