//! Kubernetes Events on transitions: a complement of status, never its replacement.

use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::error::CALL_TIMEOUT;
use super::leader::Leadership;
use super::metrics::Metrics;
use super::object::ObjectKey;
use crate::api;

/// Events that wait at most; further ones are dropped and counted.
const QUEUE: usize = 512;
/// Events at once and per second over the whole cluster.
const BURST: f64 = 50.0;
const PER_SECOND: f64 = 1.0;
/// The API server's limit of `note`.
const MAX_NOTE: usize = 1_024;

/// One transition worth telling.
#[derive(Clone, PartialEq, Debug)]
pub struct Notice {
    /// The object it is about.
    pub object: ObjectKey,
    /// Its unique id.
    pub uid: String,
    /// Something that somebody should look at.
    pub warning: bool,
    /// CamelCase reason, the same words as in conditions.
    pub reason: String,
    /// What happened, without secrets.
    pub note: String,
}

/// Publishes notices in the background; a full queue loses them rather than holding anything up.
#[derive(Clone)]
pub struct Events {
    sender: mpsc::Sender<Notice>,
    metrics: Arc<Metrics>,
}

impl Events {
    /// The sender and the task that drains it.
    #[must_use]
    pub fn new(client: Client, instance: String, leadership: Leadership, metrics: Arc<Metrics>) -> (Self, Publisher) {
        let (sender, receiver) = mpsc::channel(QUEUE);
        let reporter = Reporter { controller: "omniroute-operator".to_owned(), instance: Some(instance) };
        let publisher = Publisher { recorder: Recorder::new(client, reporter), receiver, leadership, metrics: metrics.clone() };
        (Self { sender, metrics }, publisher)
    }

    /// Tells a transition.
    pub fn tell(&self, notice: Notice) {
        if self.sender.try_send(notice).is_err() {
            self.metrics.event("Dropped");
        }
    }
}

/// The task behind [`Events`].
pub struct Publisher {
    recorder: Recorder,
    receiver: mpsc::Receiver<Notice>,
    leadership: Leadership,
    metrics: Arc<Metrics>,
}

impl Publisher {
    /// Publishes until `stop`.
    pub async fn run(mut self, stop: CancellationToken) {
        let (mut tokens, mut at) = (BURST, Instant::now());
        loop {
            let notice = tokio::select! {
                () = stop.cancelled() => return,
                notice = self.receiver.recv() => match notice { Some(notice) => notice, None => return },
            };
            let now = Instant::now();
            tokens = (tokens + now.saturating_duration_since(at).as_secs_f64() * PER_SECOND).min(BURST);
            at = now;
            if tokens < 1.0 {
                tokio::select! {
                    () = stop.cancelled() => return,
                    () = tokio::time::sleep(Duration::from_secs_f64((1.0 - tokens) / PER_SECOND)) => {}
                }
            }
            tokens -= 1.0;
            if self.leadership.may_write() {
                self.publish(notice).await;
            }
        }
    }

    async fn publish(&self, notice: Notice) {
        let reference = ObjectReference {
            api_version: Some(api::API_VERSION.to_owned()),
            kind: Some(notice.object.kind.name().to_owned()),
            name: Some(notice.object.name.clone()),
            namespace: Some(notice.object.namespace.clone()),
            uid: Some(notice.uid),
            ..ObjectReference::default()
        };
        let event = Event {
            type_: if notice.warning { EventType::Warning } else { EventType::Normal },
            reason: notice.reason.clone(),
            note: Some(cut(notice.note, MAX_NOTE)),
            action: "Report".to_owned(),
            secondary: None,
        };
        match tokio::time::timeout(CALL_TIMEOUT, self.recorder.publish(&event, &reference)).await {
            Ok(Ok(())) => self.metrics.event(&notice.reason),
            Ok(Err(error)) => {
                self.metrics.event("Failed");
                tracing::warn!(object = %notice.object, reason = %notice.reason, %error, "an event could not be published");
            }
            Err(_) => self.metrics.event("Failed"),
        }
    }
}

/// Cuts a text at a character, visibly.
#[must_use]
pub fn cut(mut text: String, max: usize) -> String {
    if text.len() > max {
        let end = (0..=max.saturating_sub(3)).rev().find(|i| text.is_char_boundary(*i)).unwrap_or(0);
        text.truncate(end);
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::cut;

    #[test]
    fn notes_are_cut_visibly_and_never_inside_a_character() {
        assert_eq!(cut("short".to_owned(), 10), "short");
        let long = cut("é".repeat(600), 1_024);
        assert!(long.len() <= 1_024 && long.ends_with("é…"));
    }
}
