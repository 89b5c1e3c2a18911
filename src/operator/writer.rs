//! Writes status: drains the queue with a few concurrent requests, only while this replica leads.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kube::api::{ListParams, Patch, PatchParams};
use kube::core::DynamicObject;
use kube::{Api, Client};
use serde_json::json;
use tokio::sync::{Notify, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::error::{CALL_TIMEOUT, Error, Retry, call};
use super::events::Events;
use super::leader::Leadership;
use super::metrics::Metrics;
use super::object::ObjectKey;
use super::queue::{Class, Next, Queue, StatusWrite};
use crate::api;

/// Field manager of status.
pub const STATUS_MANAGER: &str = "omniroute-operator/status";
/// Requests at a time.
const CONCURRENCY: usize = 16;

/// Called when a write found the object changed: its namespace has to be looked at again.
pub type OnStale = Arc<dyn Fn(&str) + Send + Sync>;

/// The one writer of status.
#[derive(Clone)]
pub struct Writer {
    shared: Arc<Shared>,
}

struct Shared {
    client: Client,
    leadership: Leadership,
    metrics: Arc<Metrics>,
    queue: Mutex<Queue>,
    wake: Notify,
    on_stale: OnStale,
    events: Events,
}

impl Writer {
    /// A writer with an empty queue; [`Self::run`] makes it work.
    #[must_use]
    pub fn new(client: Client, leadership: Leadership, metrics: Arc<Metrics>, events: Events, on_stale: OnStale) -> Self {
        let queue = Mutex::new(Queue::new(Instant::now()));
        Self { shared: Arc::new(Shared { client, leadership, metrics, queue, wake: Notify::new(), on_stale, events }) }
    }

    /// Asks for a status to be written.
    pub fn put(&self, write: StatusWrite, class: Class) {
        let key = write.key.clone();
        if !self.shared.queue().put(write, class, Instant::now()) {
            self.shared.metrics.status_write(key.kind.name(), "Dropped");
            tracing::warn!(object = %key, "status not written: too many objects wait");
        }
        self.shared.wake.notify_one();
    }

    /// The object's status is what it should be: nothing to write.
    pub fn cancel(&self, key: &ObjectKey) {
        self.shared.queue().cancel(key);
    }

    /// The object is gone.
    pub fn forget(&self, key: &ObjectKey) {
        self.shared.queue().forget(key);
    }

    /// Objects that wait for a write.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.shared.queue().len()
    }

    /// Writes until `stop`; what is on its way then is finished.
    pub async fn run(self, stop: CancellationToken) {
        let permits = Arc::new(Semaphore::new(CONCURRENCY));
        let running = TaskTracker::new();
        let mut leading = self.shared.leadership.subscribe();
        loop {
            if !*leading.borrow_and_update() {
                self.shared.queue().clear();
                tokio::select! {
                    () = stop.cancelled() => break,
                    changed = leading.changed() => if changed.is_err() { break },
                }
                continue;
            }
            let permit = tokio::select! {
                () = stop.cancelled() => break,
                permit = permits.clone().acquire_owned() => match permit { Ok(permit) => permit, Err(_) => break },
            };
            let (term, next) = {
                let mut queue = self.shared.queue();
                (queue.term(), queue.take(Instant::now()))
            };
            let pause = match next {
                Next::Write(write, class) => {
                    let shared = self.shared.clone();
                    running.spawn(async move {
                        shared.write(*write, class, term).await;
                        drop(permit);
                    });
                    continue;
                }
                Next::Reread(write, class) => {
                    let shared = self.shared.clone();
                    running.spawn(async move {
                        shared.reread(*write, class, term).await;
                        drop(permit);
                    });
                    continue;
                }
                Next::Wait(pause) => pause,
                Next::Idle => Duration::from_secs(3600),
            };
            drop(permit);
            tokio::select! {
                () = stop.cancelled() => break,
                () = self.shared.wake.notified() => {}
                () = tokio::time::sleep(pause) => {}
                changed = leading.changed() => if changed.is_err() { break },
            }
        }
        running.close();
        running.wait().await;
    }
}

impl Shared {
    /// The queue of this term.
    fn queue(&self) -> MutexGuard<'_, Queue> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.enter(self.leadership.term());
        queue
    }

    /// The queue for a write that was taken from it in this term; `None` when the term is over: another replica may have said something newer since.
    fn queue_of(&self, term: u64) -> Option<MutexGuard<'_, Queue>> {
        let queue = self.queue();
        (queue.term() == term && self.leadership.leads()).then_some(queue)
    }

    async fn write(&self, mut write: StatusWrite, class: Class, term: u64) {
        let kind = write.key.kind.name();
        match self.patch(&write).await {
            Ok(resource_version) => {
                std::mem::take(&mut write.notices).into_iter().for_each(|notice| self.events.tell(notice));
                self.metrics.status_write(kind, "Written");
                tracing::debug!(object = %write.key, ?class, "status written");
                if let Some(mut queue) = self.queue_of(term) {
                    queue.written(write, &resource_version, Instant::now());
                }
            }
            Err(error) => {
                self.metrics.status_write(kind, error.reason());
                self.failed(write, class, term, &error);
            }
        }
        self.wake.notify_one();
    }

    /// Writes on top of what the API server has now, if that is still what the status is about. Otherwise the watch will bring it.
    async fn reread(&self, mut write: StatusWrite, class: Class, term: u64) {
        let key = &write.key;
        let doing = || format!("reading {key}");
        // As the watches do it: no right beyond theirs is needed.
        let params = ListParams::default().fields(&format!("metadata.name={}", key.name));
        let objects: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), &key.namespace, &key.kind.resource());
        match call(doing, CALL_TIMEOUT, objects.list_metadata(&params)).await {
            Ok(found) => match found.items.into_iter().next().map(|o| o.metadata) {
                Some(meta) if meta.generation == write.status.get("observedGeneration").and_then(serde_json::Value::as_i64) => {
                    write.resource_version = meta.resource_version.unwrap_or_default();
                    return self.write(write, class, term).await;
                }
                Some(_) => {
                    if let Some(mut queue) = self.queue_of(term) {
                        queue.refused(write, class, Instant::now());
                    }
                }
                None => self.queue().forget(key),
            },
            Err(error) => self.failed(write, class, term, &error),
        }
        self.wake.notify_one();
    }

    fn failed(&self, write: StatusWrite, class: Class, term: u64, error: &Error) {
        if error.status().is_some_and(kube::core::Status::is_not_found) {
            self.queue().forget(&write.key);
            return;
        }
        let Some(mut queue) = self.queue_of(term) else { return };
        match error.retry() {
            // The object changed meanwhile: what we wanted to write may be wrong by now.
            Retry::Soon => {
                let namespace = write.key.namespace.clone();
                queue.refused(write, class, Instant::now());
                drop(queue);
                (self.on_stale)(&namespace);
            }
            // Only the renewal of the lease is late.
            Retry::OnChange if matches!(error, Error::NotLeader { .. }) => {
                queue.put_back(write, class, Instant::now() + Duration::from_secs(1));
            }
            Retry::OnChange => {}
            Retry::Backoff => {
                tracing::warn!(object = %write.key, %error, "status could not be written, trying again");
                queue.put_back(write, class, Instant::now() + Duration::from_secs(2));
            }
        }
    }

    async fn patch(&self, write: &StatusWrite) -> Result<String, Error> {
        let key = &write.key;
        let doing = || format!("writing the status of {key}");
        let body = json!({
            "apiVersion": api::API_VERSION,
            "kind": key.kind.name(),
            "metadata": {"name": key.name, "namespace": key.namespace, "resourceVersion": write.resource_version},
            "status": write.status,
        });
        let objects: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), &key.namespace, &key.kind.resource());
        self.leadership.check(doing)?;
        let params = PatchParams::apply(STATUS_MANAGER).force();
        let patch = Patch::Apply(body);
        let written = call(doing, self.leadership.write_limit(), objects.patch_status(&key.name, &params, &patch)).await?;
        Ok(written.metadata.resource_version.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use http::{Request, Response, StatusCode};
    use kube::client::Body;
    use tokio::sync::{mpsc, oneshot};

    use super::*;
    use crate::operator::leader::Timing;
    use crate::operator::object::ObjectKind;

    /// Requests as they come, each to be answered by the test.
    type Requests = mpsc::UnboundedReceiver<oneshot::Sender<StatusCode>>;

    fn server() -> (Client, Requests) {
        let (asked, requests) = mpsc::unbounded_channel();
        let server = tower::service_fn(move |_: Request<Body>| {
            let (answer, status) = oneshot::channel();
            asked.send(answer).unwrap();
            async move { Ok::<_, std::io::Error>(Response::builder().status(status.await.unwrap()).body(Body::empty()).unwrap()) }
        });
        (Client::new(server, "n"), requests)
    }

    #[tokio::test]
    async fn a_status_of_an_old_term_is_not_written_in_the_next_one() {
        let (client, mut requests) = server();
        let leadership = Leadership::none(&Timing::default());
        let long = || Instant::now() + Duration::from_secs(60);
        let metrics = Arc::new(Metrics::new().unwrap());
        let (events, _publisher) = Events::new(client.clone(), "one".into(), leadership.clone(), metrics.clone());
        let writer = Writer::new(client, leadership.clone(), metrics, events, Arc::new(|_| {}));
        let put = |name: &str| {
            let key = ObjectKey { kind: ObjectKind::Combo, namespace: "n".into(), name: name.into() };
            let write = StatusWrite { key, resource_version: "1".into(), status: json!({}), notices: Vec::new() };
            writer.put(write, Class::Answer);
        };
        leadership.lead_until(long());
        let term = leadership.term();
        // The same term: it is tried again.
        put("a");
        let stop = CancellationToken::new();
        let running = tokio::spawn(writer.clone().run(stop.clone()));
        requests.recv().await.unwrap().send(StatusCode::INTERNAL_SERVER_ERROR).unwrap();
        let again = requests.recv().await.unwrap();
        // The lease is lost and found so fast that nobody has seen it, and only then is the write refused; another one waits.
        put("b");
        leadership.stop();
        leadership.lead_until(long());
        assert_eq!((leadership.term(), writer.depth()), (term + 1, 0));
        again.send(StatusCode::INTERNAL_SERVER_ERROR).unwrap();
        stop.cancel();
        running.await.unwrap();
        assert_eq!(writer.depth(), 0);
        put("c");
        assert_eq!(writer.depth(), 1, "what this term says stays");
    }
}
