//! What the operator says about itself: `/metrics`.

use prometheus::{Histogram, HistogramOpts, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, TextEncoder};

/// Metrics of the operator. Names start with `omniroute_operator_`; labels are kinds, outcomes and condition states, never names of
/// objects.
pub struct Metrics {
    registry: Registry,
    reconciles: IntCounterVec,
    reconcile_seconds: Histogram,
    status_writes: IntCounterVec,
    child_writes: IntCounterVec,
    watch_restarts: IntCounterVec,
    observations: IntCounterVec,
    events: IntCounterVec,
    transitions: prometheus::IntCounter,
    leader: IntGauge,
    dirty: IntGauge,
    status_queue: IntGauge,
    objects: IntGaugeVec,
    pods: IntGaugeVec,
    oldest_observation: prometheus::Gauge,
}

/// Why the metrics could not be set up: two of the same name, which is a defect.
pub type SetupError = prometheus::Error;

impl Metrics {
    /// Registers everything.
    ///
    /// # Errors
    /// If two metrics have the same name.
    pub fn new() -> Result<Self, SetupError> {
        let registry = Registry::new();
        let counters = |name: &str, help: &str, labels: &[&str]| -> Result<IntCounterVec, SetupError> {
            let metric = IntCounterVec::new(Opts::new(format!("omniroute_operator_{name}"), help), labels)?;
            registry.register(Box::new(metric.clone()))?;
            Ok(metric)
        };
        let gauges = |name: &str, help: &str, labels: &[&str]| -> Result<IntGaugeVec, SetupError> {
            let metric = IntGaugeVec::new(Opts::new(format!("omniroute_operator_{name}"), help), labels)?;
            registry.register(Box::new(metric.clone()))?;
            Ok(metric)
        };
        let gauge = |name: &str, help: &str| -> Result<IntGauge, SetupError> {
            let metric = IntGauge::new(format!("omniroute_operator_{name}"), help)?;
            registry.register(Box::new(metric.clone()))?;
            Ok(metric)
        };
        let build = gauges("build_info", "Version of the operator; the value is always 1.", &["version"])?;
        build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        let transitions = prometheus::IntCounter::new(
            "omniroute_operator_leader_transitions_total",
            "Times that this replica began or ceased to be the leader.",
        )?;
        registry.register(Box::new(transitions.clone()))?;
        let oldest_observation = prometheus::Gauge::new(
            "omniroute_operator_oldest_observation_seconds",
            "Age of the oldest answer of a ready gateway pod; 0 without pods or on a standby.",
        )?;
        registry.register(Box::new(oldest_observation.clone()))?;
        let reconcile_seconds = Histogram::with_opts(
            HistogramOpts::new("omniroute_operator_reconcile_duration_seconds", "Time to bring one namespace up to date.")
                .buckets(vec![0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0]),
        )?;
        registry.register(Box::new(reconcile_seconds.clone()))?;
        Ok(Self {
            reconciles: counters("reconciles_total", "Namespaces brought up to date, by outcome.", &["outcome"])?,
            status_writes: counters("status_writes_total", "Status writes by kind and outcome.", &["kind", "outcome"])?,
            child_writes: counters("child_writes_total", "Writes of children by kind and outcome.", &["kind", "outcome"])?,
            watch_restarts: counters("watch_restarts_total", "Watches that failed and were started again, by kind.", &["kind"])?,
            observations: counters("observations_total", "Looks at gateway pods by outcome.", &["outcome"])?,
            events: counters("events_total", "Events by reason.", &["reason"])?,
            leader: gauge("leader", "1 while this replica is the leader.")?,
            dirty: gauge("dirty_namespaces", "Namespaces that wait to be brought up to date.")?,
            status_queue: gauge("status_queue_depth", "Objects that wait for a status write.")?,
            objects: gauges("objects", "Managed objects by kind and status of their Ready condition.", &["kind", "ready"])?,
            pods: gauges("observed_pods", "Gateway pods by whether they answer.", &["state"])?,
            transitions,
            oldest_observation,
            reconcile_seconds,
            registry,
        })
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
