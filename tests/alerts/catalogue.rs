//! What an expression may read: the metrics of the product and the recording rules.

use std::collections::{BTreeMap, BTreeSet};

use super::metrics::{Metric, of_gateway, of_operator};
use super::promql::{Needs, needs};
use super::tools::text;

/// Labels that a scrape adds.
pub const SCRAPED: [&str; 4] = ["namespace", "pod", "job", "instance"];

/// Known series and their labels.
pub struct Catalogue {
    series: BTreeMap<String, BTreeSet<String>>,
}

impl Catalogue {
    /// Everything that `/metrics` may say, and what the recording rules make of it.
    pub fn new() -> Self {
        let metrics: Vec<Metric> = of_gateway().into_iter().chain(of_operator()).collect();
        let mut series = BTreeMap::new();
        for metric in &metrics {
            let labels: BTreeSet<String> = metric.series_labels().into_iter().chain(SCRAPED).map(str::to_owned).collect();
            series.extend(metric.series().into_iter().map(|name| (name, labels.clone())));
        }
        let mut catalogue = Self { series };
        for rule in super::rules().iter().filter(|rule| rule.get("record").is_some()) {
            // A recorded series has the labels by which it was summed.
            let grouping = needs(text(rule, "/expr")).grouping;
            catalogue.series.insert(text(rule, "/record").to_owned(), grouping);
        }
        catalogue
    }

    /// Labels of a series.
    pub fn labels(&self, series: &str) -> Option<&BTreeSet<String>> {
        self.series.get(series)
    }

    /// What an expression needs, or which part of it does not exist.
    pub fn check(&self, expression: &str) -> Result<Needs, String> {
        let needs = needs(expression);
        if needs.series.is_empty() {
            return Err(format!("{expression} reads nothing"));
        }
        let mut together = BTreeSet::new();
        for (series, labels) in &needs.series {
            let known = self.series.get(series).ok_or_else(|| format!("nobody exports {series}"))?;
            if let Some(label) = labels.difference(known).next() {
                return Err(format!("{series} has no label {label}"));
            }
            together.extend(known);
        }
        match needs.grouping.iter().find(|label| !together.contains(label)) {
            Some(label) => Err(format!("grouped by {label}, which none of the series has: {expression}")),
            None => Ok(needs),
        }
    }
}

#[test]
fn the_check_sees_what_does_not_exist() {
    let catalogue = Catalogue::new();
    for (expression, wrong) in [
        ("omniroute_request_total", "nobody exports omniroute_request_total"),
        ("sum(omniroute_requests_total{model=\"x\"})", "omniroute_requests_total has no label model"),
        ("sum by (provider) (omniroute_requests_total)", "grouped by provider"),
        ("omniroute_request_duration_seconds", "nobody exports omniroute_request_duration_seconds"),
        ("1 > 0", "reads nothing"),
    ] {
        let found = catalogue.check(expression).expect_err(expression);
        assert!(found.contains(wrong), "{expression}: {found}");
    }
    assert!(catalogue.check("sum by (le) (rate(omniroute_request_duration_seconds_bucket{endpoint=\"messages\"}[5m]))").is_ok());
}
