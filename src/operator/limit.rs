//! An API server that has hung is as good as none: whoever waits for it must notice.

use std::time::Duration;

use http::Request;
use kube::Client;
use kube::client::Body;

/// Longest wait for the first byte of any answer, those of lists and watches too. An API server that is busy keeps a request in line for up to 15 s.
pub const ANSWER_LIMIT: Duration = Duration::from_secs(20);

/// Why a request was given up.
#[derive(thiserror::Error, Debug)]
#[error("the API server did not begin to answer within {} s", ANSWER_LIMIT.as_secs())]
struct NoAnswer;

/// The same client, whose requests fail when the API server does not begin to answer. What it has begun is not cut: a watch may be silent for minutes.
#[must_use]
pub fn impatient(client: &Client) -> Client {
    let (inner, namespace) = (client.clone(), client.default_namespace().to_owned());
    let service = tower::service_fn(move |request: Request<Body>| {
        let inner = inner.clone();
        async move {
            match tokio::time::timeout(ANSWER_LIMIT, inner.send(request)).await {
                Ok(answer) => answer.map_err(tower::BoxError::from),
                Err(_) => Err(tower::BoxError::from(NoAnswer)),
            }
        }
    });
    Client::new(service, namespace)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use k8s_openapi::api::core::v1::Secret;
    use kube::Api;
    use kube::api::ListParams;

    #[tokio::test(start_paused = true)]
    async fn a_list_that_is_not_answered_fails_and_the_next_one_may_work() {
        let asked = Arc::new(AtomicUsize::new(0));
        let count = asked.clone();
        let server = tower::service_fn(move |_: Request<Body>| {
            let first = count.fetch_add(1, Ordering::SeqCst) == 0;
            async move {
                if first {
                    std::future::pending::<()>().await;
                }
                let empty = serde_json::json!({"apiVersion": "v1", "kind": "SecretList", "metadata": {}, "items": []});
                Ok::<_, tower::BoxError>(http::Response::new(Body::from(empty.to_string().into_bytes())))
            }
        });
        let client = impatient(&Client::new(server, "a"));
        assert_eq!(client.default_namespace(), "a");
        let secrets: Api<Secret> = Api::default_namespaced(client);
        let error = secrets.list(&ListParams::default()).await.unwrap_err();
        assert!(error.to_string().contains("did not begin to answer within 20 s"), "{error}");
        assert!(secrets.list(&ListParams::default()).await.unwrap().items.is_empty());
    }
}
