//! The routing cases of the specification (`tests/data/routing.jsonl`). Every line is accounted for: it is driven here, or it stands in
//! one of the lists below with the part that owns it. A line of the file that is in neither fails the test.

mod order;
mod scores;
mod walk;

use std::collections::BTreeSet;

use serde_json::Value;

/// One line of the file.
#[allow(missing_docs)] // the names are the file's
pub struct Case {
    pub id: String,
    pub given: Value,
    pub when: Value,
    pub expect: Value,
}

impl Case {
    /// The list of texts at a path of `expect`.
    pub fn expected(&self, key: &str) -> Vec<String> {
        texts(&self.expect[key])
    }
}

/// A list of texts.
pub fn texts(value: &Value) -> Vec<String> {
    value.as_array().unwrap_or_else(|| panic!("no list: {value}")).iter().map(|v| v.as_str().unwrap().to_owned()).collect()
}

/// A list of numbers.
pub fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap_or_else(|| panic!("no list: {value}")).iter().map(|v| v.as_f64().unwrap()).collect()
}

/// Driven against the whole gateway (HTTP in, fake upstream behind), the ledger, the classifier or the streams.
const ELSEWHERE: &[(&str, &[&str])] = &[
    ("compiler: tests/compile", &["RC-002"]),
    (
        "edge: metrics, quality check, headers, emergency hop, learned limits, admission, hedging",
        &[
            "RC-054", "RC-179", "RC-180", "RC-181", "RC-182", "RC-183", "RC-184", "RC-223", "RC-248", "RC-250", "RC-251", "RC-252",
            "RC-253", "RC-255", "RC-256", "RC-257", "RC-259", "RC-260", "RC-263", "RC-265", "RC-266", "RC-267", "RC-268", "RC-269",
            "RC-274", "RC-277", "RC-279",
        ],
    ),
    ("composed requests: tests/gateway/compose.rs", &["RC-136", "RC-139", "RC-140", "RC-142", "RC-144", "RC-145", "RC-147"]),
    (
        "edge: leases",
        &[
            "RC-283", "RC-285", "RC-286", "RC-287", "RC-288", "RC-289", "RC-292", "RC-295", "RC-296", "RC-297", "RC-298", "RC-299",
            "RC-300", "RC-301", "RC-302",
        ],
    ),
    ("ledger and classifier", &["RC-160", "RC-244", "RC-245"]),
    (
        "streams",
        &[
            "RC-303", "RC-304", "RC-305", "RC-306", "RC-308", "RC-309", "RC-310", "RC-311", "RC-312", "RC-313", "RC-314", "RC-316",
            "RC-317", "RC-318",
        ],
    ),
];

/// Not part of the product, or decided otherwise.
const DEPARTS: &[(&str, &[&str])] = &[
    ("decisions 4.1: refused at admission (tests/compile)", &["RC-007"]),
    ("decisions 8.2: no writes through the API", &["RC-015"]),
    ("what a request reserved ends with its walk: there is no lease on it that could expire", &["RC-134"]),
    (
        "decisions 9.20, interface 2: keys have allowed-connections and allowed-models only",
        &["RC-023", "RC-024", "RC-025", "RC-026", "RC-027"],
    ),
    ("interface 2: there is no compatFilterFailOpen", &["RC-030"]),
    ("decisions 4.11: no evaluation-driven order", &["RC-035"]),
    ("decisions 9.3: evidence against our credential is never the client's 401 (tests/gateway/compose.rs: 503)", &["RC-146"]),
    ("decisions 4.11: the reasoning buffer is off", &["RC-170", "RC-171", "RC-172", "RC-174", "RC-175"]),
    ("no shadow traffic for targets", &["RC-176", "RC-177"]),
    ("quotas are learned from answers, never fetched; bounds are in the schema", &["RC-106", "RC-107", "RC-114", "RC-115"]),
    ("no task fitness tables (decisions 4.11: no task-aware order)", &["RC-097", "RC-098"]),
];

#[test]
fn every_case() {
    let text = include_str!("../data/routing.jsonl");
    let mut known: BTreeSet<&str> = BTreeSet::new();
    for (_, ids) in ELSEWHERE.iter().chain(DEPARTS) {
        for id in *ids {
            assert!(known.insert(id), "{id} is listed twice");
        }
    }
    let (mut driven, mut missing) = (0, Vec::new());
    for line in text.lines().filter(|l| !l.trim().is_empty()) {
        let value: Value = serde_json::from_str(line).unwrap();
        let case = Case {
            id: value["id"].as_str().unwrap().to_owned(),
            given: value["given"].clone(),
            when: value["when"].clone(),
            expect: value["expect"].clone(),
        };
        let test = order::find(&case.id).or_else(|| walk::find(&case.id)).or_else(|| scores::find(&case.id));
        match test {
            Some(test) => {
                assert!(!known.contains(case.id.as_str()), "{} is both driven and listed", case.id);
                test(&case);
                driven += 1;
            }
            None if known.contains(case.id.as_str()) => {}
            None => missing.push(case.id),
        }
    }
    assert!(missing.is_empty(), "{driven} driven; not accounted for: {missing:?}");
}
