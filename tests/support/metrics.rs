//! Every metric that the product may export, as its registries describe them.

// Every test file uses its own part of this.
#![allow(dead_code)]

use std::collections::BTreeSet;

use omniroute::{gateway, operator};
use prometheus::core::Collector;
use prometheus::proto::MetricType;

/// One metric.
#[derive(Clone, Debug)]
pub struct Metric {
    pub name: String,
    pub kind: &'static str,
    pub labels: Vec<String>,
    pub help: String,
}

impl Metric {
    /// Names of its series.
    pub fn series(&self) -> Vec<String> {
        match self.kind {
            "histogram" => ["bucket", "sum", "count"].iter().map(|suffix| format!("{}_{suffix}", self.name)).collect(),
            _ => vec![self.name.clone()],
        }
    }

    /// Labels of its series by itself, without those of a scrape.
    pub fn series_labels(&self) -> BTreeSet<&str> {
        let le = (self.kind == "histogram").then_some("le");
        self.labels.iter().map(String::as_str).chain(le).collect()
    }
}

/// Metrics of the gateway.
pub fn of_gateway() -> Vec<Metric> {
    describe(gateway::metrics::Metrics::new().expect("metrics").described().expect("metrics"))
}

/// Metrics of the operator.
pub fn of_operator() -> Vec<Metric> {
    describe(operator::metrics::Metrics::new().expect("metrics").described())
}

fn describe(collectors: Vec<Box<dyn Collector>>) -> Vec<Metric> {
    let mut all: Vec<Metric> = collectors
        .iter()
        .map(|collector| {
            let desc = collector.desc()[0];
            let kind = match collector.collect()[0].get_field_type() {
                MetricType::COUNTER => "counter",
                MetricType::GAUGE => "gauge",
                MetricType::HISTOGRAM => "histogram",
                other => panic!("{}: teach this about {other:?}", desc.fq_name),
            };
            Metric { name: desc.fq_name.clone(), kind, labels: desc.variable_labels.clone(), help: desc.help.clone() }
        })
        .collect();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all
}
