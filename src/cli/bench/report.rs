//! The table: figures, the ratios that the project promises itself, and whether they hold.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::load::Figures;

/// One figure in the table.
struct Row {
    name: &'static str,
    unit: &'static str,
    get: fn(&Figures) -> f64,
    /// Beside whom, what must hold, what is aimed at; `None` = told without a target.
    target: Option<(&'static str, f64, f64)>,
    /// More is better.
    more: bool,
}

const ROWS: [Row; 8] = [
    Row { name: "CPU per request", unit: "µs", get: |f| f.cpu_per_request, target: Some(("hyper", 2.0, 1.5)), more: false },
    Row { name: "requests/s, 32 connections", unit: "", get: |f| f.rps, target: Some(("nginx", 0.60, 0.75)), more: true },
    Row { name: "p50, 1 connection", unit: "µs", get: |f| f.p50, target: Some(("nginx", 1.35, 1.15)), more: false },
    Row { name: "p99, 128 connections", unit: "µs", get: |f| f.p99, target: Some(("nginx", 1.6, 1.25)), more: false },
    Row { name: "CPU per stream, 64 streams", unit: "µs", get: |f| f.cpu_per_stream, target: Some(("nginx", 1.75, 1.25)), more: false },
    Row { name: "streams/s, 64 streams", unit: "", get: |f| f.streams, target: None, more: true },
    Row {
        name: "memory per 1,000 idle streams",
        unit: "KiB",
        get: |f| f.memory_per_stream * 1000.0 / 1024.0,
        target: Some(("nginx", 1.5, 1.15)),
        more: false,
    },
    Row { name: "cold start", unit: "ms", get: |f| f.cold_start, target: None, more: false },
];

/// How the gateway stands beside another: the ratio and the word for it.
fn verdict(row: &Row, figures: &[Figures]) -> Option<(f64, &'static str)> {
    let (beside, must, aim) = row.target?;
    let value = |name: &str| figures.iter().find(|f| f.name == name).map(|f| (row.get)(f));
    let ratio = value("gateway")? / value(beside).filter(|v| *v > 0.0)?;
    let within = |limit: f64| if row.more { ratio >= limit } else { ratio <= limit };
    Some((
        ratio,
        if within(aim) {
            "aim reached"
        } else if within(must) {
            "holds"
        } else {
            "FALLS SHORT"
        },
    ))
}

/// For people.
pub(super) fn table(figures: &[Figures]) -> String {
    let mut out = format!("{:<36}", "");
    for f in figures {
        let _ = write!(out, "{:>12}", f.name);
    }
    out.push_str("   gateway beside\n");
    for row in &ROWS {
        let label = if row.unit.is_empty() { row.name.to_owned() } else { format!("{}, {}", row.name, row.unit) };
        let _ = write!(out, "{label:<36}");
        for f in figures {
            let _ = write!(out, "{:>12.1}", (row.get)(f));
        }
        match (row.target, verdict(row, figures)) {
            (Some((beside, must, aim)), Some((ratio, word))) => {
                let sign = if row.more { '≥' } else { '≤' };
                let _ = write!(out, "   {ratio:.2} × {beside} (must {sign} {must:.2}, aim {aim:.2}): {word}");
            }
            (Some((beside, ..)), None) => {
                let _ = write!(out, "   - ({beside} was not measured)");
            }
            (None, _) => {}
        }
        out.push('\n');
    }
    out
}

/// For programs.
pub(super) fn json(figures: &[Figures]) -> Value {
    let rows = ROWS.iter().map(|row| {
        let values: serde_json::Map<String, Value> = figures.iter().map(|f| (f.name.to_owned(), json!((row.get)(f)))).collect();
        let target = row.target.map(|(beside, must, aim)| json!({"beside": beside, "must": must, "aim": aim}));
        let (ratio, verdict) = verdict(row, figures).map_or((None, None), |(r, v)| (Some(r), Some(v)));
        json!({"name": row.name, "unit": row.unit, "values": values, "target": target, "ratio": ratio, "verdict": verdict})
    });
    json!({"debugBuild": cfg!(debug_assertions), "rows": rows.collect::<Vec<_>>()})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(name: &'static str, cpu: f64, rps: f64) -> Figures {
        Figures { name, cpu_per_request: cpu, rps, ..Figures::default() }
    }

    #[test]
    fn ratios_are_judged_in_their_direction() {
        let judge = |cpu: f64, rps: f64| {
            let all = [figures("hyper", 10.0, 100.0), figures("nginx", 8.0, 100.0), figures("gateway", cpu, rps)];
            [&ROWS[0], &ROWS[1]].map(|row| verdict(row, &all).map(|(_, word)| word))
        };
        assert_eq!(judge(14.0, 80.0), [Some("aim reached"), Some("aim reached")]);
        assert_eq!(judge(19.0, 61.0), [Some("holds"), Some("holds")]);
        assert_eq!(judge(21.0, 59.0), [Some("FALLS SHORT"), Some("FALLS SHORT")]);
        let alone = [figures("hyper", 10.0, 1.0), figures("gateway", 10.0, 1.0)];
        assert!(verdict(&ROWS[1], &alone).is_none() && table(&alone).contains("nginx was not measured"));
    }
}
