//! What the operator says about itself: `/metrics`.

use std::collections::BTreeMap;

use prometheus::core::Collector;
use prometheus::proto::MetricFamily;
use prometheus::{Gauge, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, TextEncoder};

use crate::oauth::Outcome;

/// Metrics of the operator. Names start with `omniroute_operator_`; labels are kinds, outcomes and condition states, never names of
/// objects.
pub struct Metrics {
    registry: Registry,
    build: IntGaugeVec,
    reconciles: IntCounterVec,
    reconcile_seconds: Histogram,
    status_writes: IntCounterVec,
    child_writes: IntCounterVec,
    watch_restarts: IntCounterVec,
    observations: IntCounterVec,
    events: IntCounterVec,
    oauth_refreshes: IntCounterVec,
    transitions: IntCounter,
    leader: IntGauge,
    dirty: IntGauge,
    status_queue: IntGauge,
    objects: IntGaugeVec,
    not_ready: IntGaugeVec,
    pods: IntGaugeVec,
    oldest_observation: Gauge,
}

/// Why the metrics could not be set up: two of the same name, which is a defect.
pub type SetupError = prometheus::Error;

impl Metrics {
    /// Registers everything.
    ///
    /// # Errors
    /// If two metrics have the same name.
    pub fn new() -> Result<Self, SetupError> {
        let opts = |name: &str, help: &str| Opts::new(format!("omniroute_operator_{name}"), help);
        let counters = |name: &str, help: &str, labels: &[&str]| IntCounterVec::new(opts(name, help), labels);
        let gauges = |name: &str, help: &str, labels: &[&str]| IntGaugeVec::new(opts(name, help), labels);
        let gauge = |name: &str, help: &str| IntGauge::with_opts(opts(name, help));
        let build = gauges("build_info", "Version of the operator; the value is always 1.", &["version"])?;
        build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        let metrics = Self {
            build,
            reconciles: counters("reconciles_total", "Namespaces brought up to date, by outcome.", &["outcome"])?,
            reconcile_seconds: Histogram::with_opts(
                HistogramOpts::new("omniroute_operator_reconcile_duration_seconds", "Time to bring one namespace up to date.")
                    .buckets(vec![0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0]),
            )?,
            status_writes: counters("status_writes_total", "Status writes by kind and outcome.", &["kind", "outcome"])?,
            child_writes: counters("child_writes_total", "Writes of children by kind and outcome.", &["kind", "outcome"])?,
            watch_restarts: counters("watch_restarts_total", "Watches that failed and were started again, by kind.", &["kind"])?,
            observations: counters("observations_total", "Looks at gateway pods by outcome.", &["outcome"])?,
            events: counters("events_total", "Events by reason.", &["reason"])?,
            transitions: IntCounter::with_opts(opts(
                "leader_transitions_total",
                "Times that this replica began or ceased to be the leader.",
            ))?,
            oauth_refreshes: counters("oauth_refreshes_total", "Attempts to refresh OAuth tokens by outcome.", &["outcome"])?,
            leader: gauge("leader", "1 while this replica is the leader.")?,
            dirty: gauge("dirty_namespaces", "Namespaces that wait to be brought up to date.")?,
            status_queue: gauge("status_queue_depth", "Objects that wait for a status write.")?,
            objects: gauges("objects", "Managed objects by kind and status of their Ready condition.", &["kind", "ready"])?,
            not_ready: gauges(
                "objects_not_ready",
                "Managed objects that are not ready, by kind and reason of their Ready condition.",
                &["kind", "reason"],
            )?,
            pods: gauges("observed_pods", "Gateway pods by whether they answer.", &["state"])?,
            oldest_observation: Gauge::with_opts(opts(
                "oldest_observation_seconds",
                "Age of the oldest answer of a gateway pod; 0 without pods.",
            ))?,
            registry: Registry::new(),
        };
        // What has never happened is 0: an alert sees only what grows.
        for outcome in [Outcome::Refreshed, Outcome::Failed, Outcome::Refused] {
            metrics.oauth_refreshes.with_label_values(&[format!("{outcome:?}").as_str()]);
        }
        for collector in metrics.described() {
            metrics.registry.register(collector)?;
        }
        Ok(metrics)
    }

    /// Every metric that the operator may export: for its registry, the reference page, and the check of alerts and dashboards. A new one belongs into this
    /// list.
    #[must_use]
    pub fn described(&self) -> Vec<Box<dyn Collector>> {
        vec![
            Box::new(self.build.clone()),
            Box::new(self.reconciles.clone()),
            Box::new(self.reconcile_seconds.clone()),
            Box::new(self.status_writes.clone()),
            Box::new(self.child_writes.clone()),
            Box::new(self.watch_restarts.clone()),
            Box::new(self.observations.clone()),
            Box::new(self.events.clone()),
            Box::new(self.oauth_refreshes.clone()),
            Box::new(self.transitions.clone()),
            Box::new(self.leader.clone()),
            Box::new(self.dirty.clone()),
            Box::new(self.status_queue.clone()),
            Box::new(self.objects.clone()),
            Box::new(self.not_ready.clone()),
            Box::new(self.pods.clone()),
            Box::new(self.oldest_observation.clone()),
        ]
    }

    /// A namespace was brought up to date, or not.
    pub fn reconciled(&self, outcome: &str, seconds: f64) {
        self.reconciles.with_label_values(&[outcome]).inc();
        self.reconcile_seconds.observe(seconds);
    }

    /// A status was written, or not.
    pub fn status_write(&self, kind: &str, outcome: &str) {
        self.status_writes.with_label_values(&[kind, outcome]).inc();
    }

    /// A child was written, or not.
    pub fn child_write(&self, kind: &str, outcome: &str) {
        self.child_writes.with_label_values(&[kind, outcome]).inc();
    }

    /// A watch failed.
    pub fn watch_restart(&self, kind: &str) {
        self.watch_restarts.with_label_values(&[kind]).inc();
    }

    /// A pod was looked at.
    pub fn observation(&self, outcome: &str) {
        self.observations.with_label_values(&[outcome]).inc();
    }

    /// An event was published.
    pub fn event(&self, reason: &str) {
        self.events.with_label_values(&[reason]).inc();
    }

    /// Tokens were refreshed, or not.
    pub fn oauth_refresh(&self, outcome: Outcome) {
        self.oauth_refreshes.with_label_values(&[format!("{outcome:?}").as_str()]).inc();
    }

    /// Leadership began or ended.
    pub fn leads(&self, leads: bool) {
        if self.leader.get() != i64::from(leads) {
            self.transitions.inc();
        }
        self.leader.set(i64::from(leads));
    }

    /// How many namespaces wait.
    pub fn dirty(&self, namespaces: usize) {
        self.dirty.set(i64::try_from(namespaces).unwrap_or(i64::MAX));
    }

    /// How many objects wait for a status.
    pub fn status_queue(&self, objects: usize) {
        self.status_queue.set(i64::try_from(objects).unwrap_or(i64::MAX));
    }

    /// How many objects of a kind there are with `Ready` in this state.
    pub fn objects(&self, kind: &str, ready: &str, count: usize) {
        self.objects.with_label_values(&[kind, ready]).set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// How many objects of a kind are not ready for a reason; series of before that are not among them are forgotten.
    pub fn not_ready(&self, counts: &BTreeMap<(&'static str, String), usize>) {
        for metric in self.not_ready.collect().iter().flat_map(MetricFamily::get_metric) {
            let label = |name: &str| metric.get_label().iter().find(|pair| pair.name() == name).map_or("", |pair| pair.value());
            let (kind, reason) = (label("kind"), label("reason"));
            if !counts.keys().any(|(k, r)| (*k, r.as_str()) == (kind, reason)) {
                // An error says that it is gone already.
                let _ = self.not_ready.remove_label_values(&[kind, reason]);
            }
        }
        for ((kind, reason), count) in counts {
            self.not_ready.with_label_values(&[*kind, reason.as_str()]).set(i64::try_from(*count).unwrap_or(i64::MAX));
        }
    }

    /// How many pods answer and how many are silent, and the age of the oldest answer.
    pub fn pods(&self, reporting: usize, silent: usize, oldest_seconds: f64) {
        for (state, count) in [("Reporting", reporting), ("Silent", silent)] {
            self.pods.with_label_values(&[state]).set(i64::try_from(count).unwrap_or(i64::MAX));
        }
        self.oldest_observation.set(oldest_seconds);
    }

    /// The text that Prometheus reads.
    ///
    /// # Errors
    /// If a metric cannot be represented, which would be a defect.
    pub fn text(&self) -> Result<String, SetupError> {
        TextEncoder::new().encode_to_string(&self.registry.gather())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_that_are_gone_are_forgotten() {
        let m = Metrics::new().unwrap();
        m.not_ready(&[(("Combo", "NoGateway".to_owned()), 2), (("Connection", "SecretNotFound".to_owned()), 1)].into());
        m.not_ready(&[(("Connection", "SecretNotFound".to_owned()), 3)].into());
        let text = m.text().unwrap();
        assert!(text.contains("omniroute_operator_objects_not_ready{kind=\"Connection\",reason=\"SecretNotFound\"} 3\n"), "{text}");
        assert!(!text.contains("NoGateway"), "{text}");
    }

    #[test]
    fn a_change_of_leadership_is_counted_once() {
        let m = Metrics::new().unwrap();
        m.leads(false);
        m.leads(true);
        m.leads(true);
        let text = m.text().unwrap();
        assert!(text.contains("omniroute_operator_leader 1\n"));
        assert!(text.contains("omniroute_operator_leader_transitions_total 1\n"));
    }
}
