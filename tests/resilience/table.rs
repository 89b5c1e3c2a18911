//! The cases of the resilience engine alone, with many of our own; `CASES=FILE` runs another file. The whole case file is run by
//! `classification_cases`.

use serde_json::Value;

#[test]
fn every_case_of_the_resilience_engine_holds() {
    let own = ["tests/data/classification.jsonl", "tests/data/resilience_more.jsonl"];
    let files = std::env::var("CASES").map_or_else(|_| own.map(str::to_owned).to_vec(), |file| vec![file]);
    let (mut passed, mut failed) = (0, 0);
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap_or_else(|e| panic!("reading {file}: {e}"));
        for line in text.lines().filter(|l| !l.trim().is_empty()) {
            let case: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{file}: {e}: {line}"));
            match crate::resilience_cases::run(&case) {
                None => {}
                Some(Ok(())) => passed += 1,
                Some(Err(why)) => {
                    failed += 1;
                    println!("{file}: {why}\n    {line}");
                }
            }
        }
    }
    println!("{passed} passed, {failed} failed");
    assert_eq!(failed, 0, "{failed} cases failed, see above");
    assert!(passed > 0, "no case was run");
}
