//! `omniroute bench` measures every part: the figures of a test mean nothing, but they must be there.
#![allow(clippy::expect_used, missing_docs)]

use std::process::Command;

use serde_json::Value;

#[test]
fn every_figure_is_measured() {
    let arguments = ["bench", "--seconds", "0.1", "--rounds", "1", "--idle-streams", "20", "-o", "json"];
    let output = Command::new(env!("CARGO_BIN_EXE_omniroute")).args(arguments).output().expect("runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let rows = report["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 9);
    for (name, goal) in [("p50, 1 connection, one core", true), ("p50, 1 connection, cores free", false)] {
        let row = rows.iter().find(|row| row["name"] == name).expect(name);
        assert_eq!((row["target"].is_object(), &row["notMeasured"]), (goal, &Value::Null), "{row}");
    }
    for row in rows {
        for proxy in ["hyper", "gateway"] {
            let value = row["values"][proxy].as_f64().expect("a number");
            // A short slice may cost less than one tick of the processor's clock, and memory may have been there before.
            let exact = !["CPU", "memory"].iter().any(|name| row["name"].as_str().is_some_and(|n| n.starts_with(name)));
            assert!(value > 0.0 || (!exact && value == 0.0), "{row}");
        }
        let measured = row["ratio"].is_number() || row["target"]["beside"] != "hyper" || row["values"]["hyper"] == 0.0;
        assert!(measured, "what stands beside hyper has a ratio: {row}");
    }
}
