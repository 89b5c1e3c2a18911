//! The table: figures, the ratios that the project promises itself, and whether they hold.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::load::Figures;

/// One figure in the table.
struct Row {
    name: &'static str,
    unit: &'static str,
    /// The figure, or why it was not measured.
    get: fn(&Figures) -> Result<f64, &str>,
    /// Beside whom, what must hold, what is aimed at; `None` = told without a target.
    target: Option<(&'static str, f64, f64)>,
    /// More is better.
    more: bool,
}

/// Below the table.
const NOTE: &str = "\
The p50 with a goal has load, upstream and proxy on one core. With the cores free, one request at a time mostly measures where the kernel places
three processes: waking another, halted core costs several times as much as waking the next process on this one.
";

const ROWS: [Row; 9] = [
    Row { name: "CPU per request", unit: "µs", get: |f| Ok(f.cpu_per_request), target: Some(("hyper", 2.0, 1.5)), more: false },
    Row { name: "requests/s, 32 connections", unit: "", get: |f| Ok(f.rps), target: Some(("nginx", 0.60, 0.75)), more: true },
    Row {
        name: "p50, 1 connection, one core",
        unit: "µs",
        get: |f| f.p50.as_ref().map(|v| *v).map_err(String::as_str),
        target: Some(("nginx", 1.35, 1.15)),
        more: false,
    },
    Row { name: "p50, 1 connection, cores free", unit: "µs", get: |f| Ok(f.p50_free), target: None, more: false },
    Row { name: "p99, 128 connections", unit: "µs", get: |f| Ok(f.p99), target: Some(("nginx", 1.6, 1.25)), more: false },
    Row {
        name: "CPU per stream, 64 streams", unit: "µs", get: |f| Ok(f.cpu_per_stream), target: Some(("nginx", 1.75, 1.25)), more: false
    },
    Row { name: "streams/s, 64 streams", unit: "", get: |f| Ok(f.streams), target: None, more: true },
    Row {
        name: "memory per 1,000 idle streams",
        unit: "KiB",
        get: |f| Ok(f.memory_per_stream * 1000.0 / 1024.0),
        target: Some(("nginx", 1.5, 1.15)),
        more: false,
    },
    Row { name: "cold start", unit: "ms", get: |f| Ok(f.cold_start), target: None, more: false },
];

impl Row {
    /// Why one of the proxies has no figure; such a row is not judged.
    fn not_measured<'a>(&self, figures: &'a [Figures]) -> Option<&'a str> {
        figures.iter().find_map(|f| (self.get)(f).err())
    }
}

/// How the gateway stands beside another: the ratio and the word for it.
fn verdict(row: &Row, figures: &[Figures]) -> Option<(f64, &'static str)> {
    let (beside, must, aim) = row.target?;
    let value = |name: &str| figures.iter().find(|f| f.name == name).and_then(|f| (row.get)(f).ok());
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
            let _ = match (row.get)(f) {
                Ok(value) => write!(out, "{value:>12.1}"),
                Err(_) => write!(out, "{:>12}", "-"),
            };
        }
        match (row.target, verdict(row, figures), row.not_measured(figures)) {
            (_, _, Some(why)) => {
                let _ = write!(out, "   not measured: {why}");
            }
            (Some((beside, must, aim)), Some((ratio, word)), None) => {
                let sign = if row.more { '≥' } else { '≤' };
                let _ = write!(out, "   {ratio:.2} × {beside} (must {sign} {must:.2}, aim {aim:.2}): {word}");
            }
            (Some((beside, ..)), None, None) => {
                let _ = write!(out, "   - ({beside} was not measured)");
            }
            (None, _, None) => {}
        }
        out.push('\n');
    }
    out.push_str(NOTE);
    out
}

/// For programs.
pub(super) fn json(figures: &[Figures]) -> Value {
    let rows = ROWS.iter().map(|row| {
        let values: serde_json::Map<String, Value> = figures.iter().map(|f| (f.name.to_owned(), json!((row.get)(f).ok()))).collect();
        let target = row.target.map(|(beside, must, aim)| json!({"beside": beside, "must": must, "aim": aim}));
        let (ratio, verdict) = verdict(row, figures).map_or((None, None), |(r, v)| (Some(r), Some(v)));
        json!({"name": row.name, "unit": row.unit, "values": values, "target": target, "ratio": ratio, "verdict": verdict,
               "notMeasured": row.not_measured(figures)})
    });
    json!({"debugBuild": cfg!(debug_assertions), "rows": rows.collect::<Vec<_>>()})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(name: &'static str, cpu_per_request: f64, rps: f64, p50: Result<f64, &str>) -> Figures {
        Figures {
            name,
            cpu_per_request,
            rps,
            p50: p50.map_err(str::to_owned),
            p50_free: 70.0,
            p99: 1.0,
            cpu_per_stream: 1.0,
            streams: 1.0,
            memory_per_stream: 1.0,
            cold_start: 1.0,
        }
    }

    #[test]
    fn ratios_are_judged_in_their_direction() {
        let judge = |cpu: f64, rps: f64| {
            let all = [("hyper", 10.0, 100.0), ("nginx", 8.0, 100.0), ("gateway", cpu, rps)].map(|(n, c, r)| figures(n, c, r, Ok(1.0)));
            [&ROWS[0], &ROWS[1]].map(|row| verdict(row, &all).map(|(_, word)| word))
        };
        assert_eq!(judge(14.0, 80.0), [Some("aim reached"), Some("aim reached")]);
        assert_eq!(judge(19.0, 61.0), [Some("holds"), Some("holds")]);
        assert_eq!(judge(21.0, 59.0), [Some("FALLS SHORT"), Some("FALLS SHORT")]);
        let alone = [figures("hyper", 10.0, 1.0, Ok(1.0)), figures("gateway", 10.0, 1.0, Ok(1.0))];
        assert!(verdict(&ROWS[1], &alone).is_none() && table(&alone).contains("nginx was not measured"));
    }

    #[test]
    fn a_figure_that_could_not_be_measured_says_why_and_is_not_judged() {
        let refused = "the system refuses";
        for (nginx, gateway, judged) in [(Ok(38.0), Ok(50.0), true), (Ok(38.0), Err(refused), false), (Err(refused), Ok(50.0), false)] {
            let all = [figures("hyper", 1.0, 1.0, Ok(39.0)), figures("nginx", 1.0, 1.0, nginx), figures("gateway", 1.0, 1.0, gateway)];
            let (text, json) = (table(&all), json(&all));
            assert_eq!(text.contains("not measured: the system refuses"), !judged, "{text}");
            assert_eq!(text.contains("1.32 × nginx (must ≤ 1.35, aim 1.15): holds"), judged, "{text}");
            let row = json["rows"].as_array().unwrap().iter().find(|r| r["name"] == "p50, 1 connection, one core").unwrap();
            assert_eq!(row["notMeasured"], if judged { Value::Null } else { refused.into() });
            assert_eq!((row["values"]["gateway"].as_f64(), row["ratio"].is_number()), (gateway.ok(), judged), "{row}");
        }
    }
}
