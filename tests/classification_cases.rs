//! Cases of the classifier and the resilience engine as data: one JSON object a line (`id`, `area`, `status`, `body`, `context`, `expect`, …).
//! `CASES=FILE cargo test --test classification_cases -- --nocapture` runs any file. A case that departs from its `expect` on purpose
//! names the decision in `departs` and has the new answer in `better`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "support/cases.rs"]
mod cases;
#[path = "support/resilience_cases.rs"]
mod resilience_cases;

use serde_json::Value;

/// The given cases and our own.
const FILES: &[&str] = &["tests/data/classification.jsonl", "tests/data/classification_more.jsonl"];

#[test]
fn every_case_holds() {
    let files = std::env::var("CASES").map_or_else(|_| FILES.iter().map(|f| (*f).to_owned()).collect(), |file| vec![file]);
    let (mut passed, mut failed) = (0, 0);
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap_or_else(|e| panic!("reading {file}: {e}"));
        for (n, line) in text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty()) {
            let outcome = match serde_json::from_str::<Value>(line) {
                Ok(case) => cases::run(&case).or_else(|| resilience_cases::run(&case)).unwrap_or_else(|| Err("no such area".to_owned())),
                Err(e) => Err(format!("no JSON: {e}")),
            };
            match outcome {
                Ok(()) => passed += 1,
                Err(why) => {
                    failed += 1;
                    println!("{file}:{}: {}", n + 1, why);
                    println!("    {line}");
                }
            }
        }
    }
    println!("{passed} passed, {failed} failed");
    assert_eq!(failed, 0, "{failed} cases failed, see above");
    assert!(passed > 0, "no case was run");
}
