//! The gateway's metrics (interface 7): counters and histograms that the request path touches, and gauges that are built from the ledger
//! at scrape time, so that a deadline that has passed is never scraped.
//!
//! Every label value is an enum of this crate or the name of an object of the snapshot; nothing that a client sends becomes a label.

use std::sync::OnceLock;

use prometheus::core::Collector;
use prometheus::{
    Encoder, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
    TextEncoder,
};

use super::relay::Recovered;
use crate::api::time::EpochMs;
use crate::classify::Reason;
use crate::protocol::Endpoint;
use crate::resilience::{BreakerPhase, ConnectionPhase, StateReport};

/// Where a request came in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum EndpointLabel {
    /// `/v1/chat/completions`.
    ChatCompletions,
    /// `/v1/responses`.
    Responses,
    /// `/v1/messages`.
    Messages,
    /// `/v1/messages/count_tokens`.
    CountTokens,
    /// `/v1/embeddings`.
    Embeddings,
    /// `/v1/models`.
    Models,
    /// Anything else.
    Other,
}

const ENDPOINTS: [&str; 7] = ["chat_completions", "responses", "messages", "count_tokens", "embeddings", "models", "other"];

impl From<Endpoint> for EndpointLabel {
    fn from(endpoint: Endpoint) -> Self {
        match endpoint {
            Endpoint::ChatCompletions => Self::ChatCompletions,
            Endpoint::Responses => Self::Responses,
            Endpoint::Messages => Self::Messages,
            Endpoint::CountTokens => Self::CountTokens,
            Endpoint::Embeddings => Self::Embeddings,
        }
    }
}

impl EndpointLabel {
    /// The label value.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        ENDPOINTS.get(self as usize).copied().unwrap_or("other")
    }
}

/// Who made an answer (interface 4).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum Origin {
    /// The provider.
    Provider,
    /// This gateway.
    Gateway,
    /// A rule about who may do what.
    Policy,
}

const ORIGINS: [&str; 3] = ["provider", "gateway", "policy"];

impl Origin {
    /// The value of `x-omniroute-origin` and of the label.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        ORIGINS.get(self as usize).copied().unwrap_or("gateway")
    }
}

const CLASSES: [&str; 4] = ["2xx", "3xx", "4xx", "5xx"];

/// The counters of one combo (or of direct requests), resolved once so that a request takes no lock to count itself.
#[derive(Debug)]
pub struct RequestCounters {
    combo: String,
    cells: [OnceLock<IntCounter>; ENDPOINTS.len() * ORIGINS.len() * CLASSES.len()],
}

impl RequestCounters {
    /// Counters for a combo by name; empty for requests that name no combo.
    #[must_use]
    pub fn new(combo: &str) -> Self {
        Self { combo: combo.to_owned(), cells: [const { OnceLock::new() }; ENDPOINTS.len() * ORIGINS.len() * CLASSES.len()] }
    }

    /// Counts one answered request.
    pub fn count(&self, metrics: &Metrics, endpoint: EndpointLabel, origin: Origin, status: u16) {
        let class = usize::from(status / 100).clamp(2, 5) - 2;
        let index = (endpoint as usize * ORIGINS.len() + origin as usize) * CLASSES.len() + class;
        let Some(cell) = self.cells.get(index) else { return };
        cell.get_or_init(|| {
            let class = CLASSES.get(class).copied().unwrap_or("5xx");
            metrics.requests.with_label_values(&[endpoint.as_str(), &self.combo, origin.as_str(), class])
        })
        .inc();
    }
}

/// The counters of one connection.
#[derive(Debug)]
pub struct AttemptCounters {
    provider: String,
    connection: String,
    cells: [OnceLock<IntCounter>; OUTCOMES],
}

/// `success`, `cancelled` and one per [`Reason`].
const OUTCOMES: usize = Reason::Unknown as usize + 3;

impl AttemptCounters {
    /// Counters for a connection.
    #[must_use]
    pub fn new(provider: &str, connection: &str) -> Self {
        Self { provider: provider.to_owned(), connection: connection.to_owned(), cells: [const { OnceLock::new() }; OUTCOMES] }
    }

    /// Counts a success.
    pub fn success(&self, metrics: &Metrics) {
        self.count(metrics, 0, "success");
    }

    /// Counts an attempt that the client gave up on.
    pub fn cancelled(&self, metrics: &Metrics) {
        self.count(metrics, 1, "cancelled");
    }

    /// Counts a failure.
    pub fn failure(&self, metrics: &Metrics, reason: Reason) {
        self.count(metrics, 2 + reason as usize, reason.snake());
    }

    fn count(&self, metrics: &Metrics, index: usize, outcome: &str) {
        if let Some(cell) = self.cells.get(index) {
            cell.get_or_init(|| metrics.attempts.with_label_values(&[&self.provider, &self.connection, outcome])).inc();
        }
    }
}

/// How a broken stream is recovered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RecoveryKind {
    /// Opened again before anything of it went to the client.
    Reopen,
    /// Continued behind the text that the client has.
    Continue,
}

impl RecoveryKind {
    /// The label value.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Reopen => "reopen",
            Self::Continue => "continue",
        }
    }
}

/// Everything that is counted while requests run.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    requests: IntCounterVec,
    attempts: IntCounterVec,
    failovers: IntCounterVec,
    duration: HistogramVec,
    /// Those of `duration` by [`EndpointLabel`]: a request looks nothing up by name.
    durations: [Histogram; ENDPOINTS.len()],
    overhead: Histogram,
    ttft: HistogramVec,
    first_tokens: [Histogram; ENDPOINTS.len()],
    in_flight: IntGauge,
    rule_matches: IntCounterVec,
    load_failures: IntCounter,
    snapshot_info: IntGaugeVec,
    store_failures: IntCounter,
    store_up: IntGaugeVec,
    limit_resets: IntCounterVec,
    skipped_frames: IntCounter,
    stream_recoveries: IntCounterVec,
}

impl Metrics {
    /// A registry of its own with every metric of the gateway.
    ///
    /// # Errors
    /// Only when two metrics of this module had the same name.
    pub fn new() -> Result<Self, prometheus::Error> {
        let seconds = vec![0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0];
        let fine = vec![0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.05, 0.1, 1.0];
        let registry = Registry::new();
        let counters = |name: &str, help: &str, labels: &[&str]| IntCounterVec::new(Opts::new(name, help), labels);
        let duration = HistogramVec::new(
            HistogramOpts::new("omniroute_request_duration_seconds", "Time from the request's head to the end of its answer.")
                .buckets(seconds.clone()),
            &["endpoint"],
        )?;
        let ttft = HistogramVec::new(
            HistogramOpts::new("omniroute_time_to_first_token_seconds", "Time from the request's head to the first content of a stream.")
                .buckets(seconds),
            &["endpoint"],
        )?;
        let metrics = Self {
            requests: counters(
                "omniroute_requests_total",
                "Requests answered, by endpoint, combo, origin of the answer and class of its status.",
                &["endpoint", "combo", "origin", "code_class"],
            )?,
            attempts: counters(
                "omniroute_attempts_total",
                "Dispatches to a provider, by outcome: success, cancelled or the reason of the failure.",
                &["provider", "connection", "outcome"],
            )?,
            failovers: counters(
                "omniroute_failovers_total",
                "Requests that moved on from one connection to another, by the reason of the failure.",
                &["from", "to", "reason"],
            )?,
            durations: ENDPOINTS.map(|endpoint| duration.with_label_values(&[endpoint])),
            duration,
            overhead: Histogram::with_opts(
                HistogramOpts::new(
                    "omniroute_gateway_overhead_seconds",
                    "Time that the gateway itself took until the answer started, without waiting for clients, providers, queues and timers.",
                )
                .buckets(fine),
            )?,
            first_tokens: ENDPOINTS.map(|endpoint| ttft.with_label_values(&[endpoint])),
            ttft,
            in_flight: IntGauge::new("omniroute_requests_in_flight", "Requests whose answer has not ended.")?,
            rule_matches: counters("omniroute_rule_matches_total", "Failed attempts that an operator rule matched.", &["rule", "mode"])?,
            load_failures: IntCounter::new("omniroute_snapshot_load_failures_total", "Snapshots that were refused; the last good one stays.")?,
            snapshot_info: IntGaugeVec::new(Opts::new("omniroute_snapshot_info", "The snapshot that is served, by its hash."), &["hash"])?,
            store_failures: IntCounter::new(
                "omniroute_state_store_failures_total",
                "Times that the store in which replicas share state was lost or could not be reached.",
            )?,
            store_up: IntGaugeVec::new(
                Opts::new("omniroute_state_store_up", "1 while the store in which replicas share state can be reached; absent without one."),
                &["store"],
            )?,
            limit_resets: counters(
                "omniroute_claude_limit_resets_total",
                "Requests for the weekly reset of a Claude subscription's limit.",
                &["connection", "result"],
            )?,
            skipped_frames: IntCounter::new("omniroute_stream_skipped_frames_total", "Malformed frames of provider streams that were skipped.")?,
            stream_recoveries: counters(
                "omniroute_stream_recoveries_total",
                "Requests for the stream, or the rest of a text, that a provider had broken off; each is billed by the provider.",
                &["kind", "outcome"],
            )?,
            registry,
        };
        for collector in metrics.collectors() {
            metrics.registry.register(collector)?;
        }
        Ok(metrics)
    }

    /// What is counted while requests run; a new metric of this kind belongs into this list.
    fn collectors(&self) -> Vec<Box<dyn Collector>> {
        vec![
            Box::new(self.requests.clone()),
            Box::new(self.attempts.clone()),
            Box::new(self.failovers.clone()),
            Box::new(self.duration.clone()),
            Box::new(self.overhead.clone()),
            Box::new(self.ttft.clone()),
            Box::new(self.in_flight.clone()),
            Box::new(self.rule_matches.clone()),
            Box::new(self.load_failures.clone()),
            Box::new(self.snapshot_info.clone()),
            Box::new(self.limit_resets.clone()),
            Box::new(self.skipped_frames.clone()),
            Box::new(self.store_failures.clone()),
            Box::new(self.store_up.clone()),
            Box::new(self.stream_recoveries.clone()),
        ]
    }

    /// Every metric that a gateway may export, for the reference page and for the check of alerts and dashboards.
    ///
    /// # Errors
    /// Only when two metrics of this module had the same name.
    pub fn described(&self) -> Result<Vec<Box<dyn Collector>>, prometheus::Error> {
        let mut all = self.collectors();
        all.extend(Gauges::new()?.collectors());
        Ok(all)
    }

    /// Counts a move from one connection to another.
    pub fn failover(&self, from: &str, to: &str, reason: Reason) {
        self.failovers.with_label_values(&[from, to, reason.snake()]).inc();
    }

    /// Counts a match of an operator rule.
    pub fn rule_match(&self, rule: &str, shadow: bool) {
        self.rule_matches.with_label_values(&[rule, if shadow { "shadow" } else { "enforce" }]).inc();
    }

    /// A request started; [`Self::finished`] ends it.
    pub fn started(&self) {
        self.in_flight.inc();
    }

    /// An answer has ended, `seconds` after its request started.
    pub fn finished(&self, endpoint: EndpointLabel, seconds: f64) {
        self.in_flight.dec();
        if let Some(duration) = self.durations.get(endpoint as usize) {
            duration.observe(seconds);
        }
    }

    /// Requests whose answer has not ended.
    #[must_use]
    pub fn in_flight(&self) -> i64 {
        self.in_flight.get()
    }

    /// The gateway's own share of the time until the answer started.
    pub fn overhead(&self, seconds: f64) {
        self.overhead.observe(seconds);
    }

    /// A stream's first content, `seconds` after its request started.
    pub fn first_token(&self, endpoint: EndpointLabel, seconds: f64) {
        if let Some(first_token) = self.first_tokens.get(endpoint as usize) {
            first_token.observe(seconds);
        }
    }

    /// Malformed frames of a stream that were skipped.
    pub fn skipped_frames(&self, frames: u64) {
        self.skipped_frames.inc_by(frames);
    }

    /// What became of an attempt to recover a broken stream.
    pub fn stream_recovery(&self, kind: RecoveryKind, outcome: Recovered) {
        let outcome = match outcome {
            Recovered::Yes => "recovered",
            Recovered::No => "failed",
            Recovered::Refused => "refused",
            Recovered::Aborted => "aborted",
        };
        self.stream_recoveries.with_label_values(&[kind.as_str(), outcome]).inc();
    }

    /// The weekly reset of a Claude limit was asked for.
    pub fn limit_reset(&self, connection: &str, result: &str) {
        self.limit_resets.with_label_values(&[connection, result]).inc();
    }

    /// The store that replicas share was lost, or could not be reached.
    pub fn store_failed(&self) {
        self.store_failures.inc();
    }

    /// Whether the store that replicas share can be reached; `None` without one.
    pub fn store_up(&self, up: Option<bool>) {
        self.store_up.reset();
        if let Some(up) = up {
            self.store_up.with_label_values(&["redis"]).set(i64::from(up));
        }
    }

    /// A snapshot was refused.
    pub fn refused(&self) {
        self.load_failures.inc();
    }

    /// A snapshot is served from now on.
    pub fn loaded(&self, hash: &str) {
        self.snapshot_info.reset();
        self.snapshot_info.with_label_values(&[hash]).set(1);
    }

    /// Forgets the series of objects that are gone: `known` says whether a name of this kind still exists.
    pub fn prune(&self, known: impl Fn(Kind, &str) -> bool) {
        prune(&self.requests, &["endpoint", "combo", "origin", "code_class"], |label, value| {
            label != "combo" || value.is_empty() || known(Kind::Combo, value)
        });
        prune(&self.attempts, &["provider", "connection", "outcome"], |label, value| {
            label != "connection" || known(Kind::Connection, value)
        });
        prune(&self.failovers, &["from", "to", "reason"], |label, value| label == "reason" || known(Kind::Connection, value));
        prune(&self.limit_resets, &["connection", "result"], |label, value| label == "result" || known(Kind::Connection, value));
        prune(&self.rule_matches, &["rule", "mode"], |label, value| label != "rule" || known(Kind::Rule, value));
    }

    /// The text that Prometheus scrapes.
    ///
    /// # Errors
    /// Only when two metrics of this module had the same name.
    pub fn render(&self, report: &StateReport, now: EpochMs) -> Result<Vec<u8>, prometheus::Error> {
        let mut families = self.registry.gather();
        families.extend(gauges(report, now)?.gather());
        families.sort_by(|a, b| a.name().cmp(b.name()));
        let mut text = Vec::with_capacity(8 * 1024);
        TextEncoder::new().encode(&families, &mut text)?;
        Ok(text)
    }
}

/// Kinds of objects whose names are label values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Kind {
    Combo,
    Connection,
    Rule,
}

fn prune(vec: &IntCounterVec, labels: &[&str], keep: impl Fn(&str, &str) -> bool) {
    for family in vec.collect() {
        for metric in family.get_metric() {
            let value = |name: &str| metric.get_label().iter().find(|pair| pair.name() == name).map_or("", |pair| pair.value());
            let values: Vec<&str> = labels.iter().map(|name| value(name)).collect();
            if !labels.iter().zip(&values).all(|(label, value)| keep(label, value)) {
                // An error says that it is gone already.
                let _ = vec.remove_label_values(&values);
            }
        }
    }
}

/// Gauges of what the ledger knows, built anew for each scrape.
struct Gauges {
    breaker: GaugeVec,
    cooldown: GaugeVec,
    terminal: GaugeVec,
    level: GaugeVec,
    lockout: GaugeVec,
}

impl Gauges {
    fn new() -> Result<Self, prometheus::Error> {
        let gauge = |name: &str, help: &str, labels: &[&str]| GaugeVec::new(Opts::new(name, help), labels);
        Ok(Self {
            breaker: gauge(
                "omniroute_provider_breaker_state",
                "1 for the state that the provider's breaker is in.",
                &["provider", "state"],
            )?,
            cooldown: gauge(
                "omniroute_connection_cooldown_until_timestamp_seconds",
                "When the connection's cooldown ends, while it rests.",
                &["provider", "connection", "reason"],
            )?,
            terminal: gauge(
                "omniroute_connection_terminal",
                "1 while the connection is in a state that only an operator or a new credential ends.",
                &["provider", "connection", "state"],
            )?,
            level: gauge("omniroute_connection_backoff_level", "Backoff level of the connection.", &["provider", "connection"])?,
            lockout: gauge(
                "omniroute_model_lockout_until_timestamp_seconds",
                "When the model of the connection may be used again, while it is locked.",
                &["provider", "connection", "model", "reason"],
            )?,
        })
    }

    fn collectors(&self) -> Vec<Box<dyn Collector>> {
        let all = [&self.breaker, &self.cooldown, &self.terminal, &self.level, &self.lockout];
        all.into_iter().map(|gauge| Box::new(gauge.clone()) as Box<dyn Collector>).collect()
    }
}

/// The gauges of what the ledger knows now.
fn gauges(report: &StateReport, now: EpochMs) -> Result<Registry, prometheus::Error> {
    let gauges = Gauges::new()?;
    let registry = Registry::new();
    for collector in gauges.collectors() {
        registry.register(collector)?;
    }
    for provider in &report.providers {
        for (phase, name) in [
            (BreakerPhase::Closed, "Closed"),
            (BreakerPhase::Degraded, "Degraded"),
            (BreakerPhase::Open, "Open"),
            (BreakerPhase::HalfOpen, "HalfOpen"),
        ] {
            gauges.breaker.with_label_values(&[&provider.name, name]).set(f64::from(u8::from(provider.breaker.state == phase)));
        }
    }
    for connection in &report.connections {
        let (provider, name) = (connection.provider.as_str(), connection.name.as_str());
        gauges.level.with_label_values(&[provider, name]).set(f64::from(connection.backoff_level));
        let state = match connection.state {
            ConnectionPhase::Banned => Some("Banned"),
            ConnectionPhase::Expired => Some("Expired"),
            ConnectionPhase::CreditsExhausted => Some("CreditsExhausted"),
            ConnectionPhase::Active | ConnectionPhase::Cooling | ConnectionPhase::RequestRejected => None,
        };
        if let Some(state) = state {
            gauges.terminal.with_label_values(&[provider, name, state]).set(1.0);
        }
        if let Some(until) = connection.until.filter(|until| *until > now) {
            let reason = connection.reason.as_deref().unwrap_or("Unknown");
            gauges.cooldown.with_label_values(&[provider, name, reason]).set(seconds(until));
        }
        for lock in connection.lockouts.iter().take(MAX_LOCKOUTS) {
            if let Some(until) = lock.until.filter(|until| *until > now) {
                gauges.lockout.with_label_values(&[provider, name, &lock.model, &lock.reason]).set(seconds(until));
            }
        }
    }
    Ok(registry)
}

/// Locked models per connection that are exported: a provider with an open model list may lock any name that a client asks for.
const MAX_LOCKOUTS: usize = 32;

#[allow(clippy::cast_precision_loss)] // milliseconds since 1970 fit a f64 until the year 287396
fn seconds(at: EpochMs) -> f64 {
    at.0 as f64 / 1000.0
}

#[cfg(test)]
#[path = "metrics_tests.rs"]
mod tests;
