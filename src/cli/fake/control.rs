//! The control endpoint: changes the script and reads what arrived, while the fake upstream runs.

use std::time::Duration;

use bytes::Bytes;
use http::{Method, Response, StatusCode, request};
use serde_json::{Value, json};

use super::record::Recorded;
use super::script::{Rule, Script};
use super::server::{FakeBody, Shared, json as answer};

/// Longest time that a request for requests may wait.
const MAX_WAIT: Duration = Duration::from_secs(60);

pub(super) async fn handle(head: &request::Parts, body: &Bytes, shared: &Shared) -> Response<FakeBody> {
    let query = head.uri.query().unwrap_or_default();
    let route = (&head.method, head.uri.path());
    match route {
        (&Method::GET, "/_control/health") => answer(StatusCode::OK, &json!({"status": "ok"})),
        (&Method::GET, "/_control/script") => answer(StatusCode::OK, &json!(*shared.script())),
        (&Method::PUT, "/_control/script") => match Script::parse(&String::from_utf8_lossy(body)) {
            Ok(script) => {
                let rules = script.rules.len();
                shared.set_script(script);
                answer(StatusCode::OK, &json!({"rules": rules}))
            }
            Err(error) => answer(StatusCode::BAD_REQUEST, &json!({"error": error.to_string()})),
        },
        (&Method::DELETE, "/_control/script") => {
            shared.set_script(Script::default());
            answer(StatusCode::OK, &json!({"rules": 0}))
        }
        (&Method::POST, "/_control/rules") => match serde_saphyr::from_str::<Rule>(&String::from_utf8_lossy(body)) {
            Ok(rule) => {
                shared.push_rule(rule);
                answer(StatusCode::OK, &json!({"rules": shared.script().rules.len()}))
            }
            Err(error) => answer(StatusCode::BAD_REQUEST, &json!({"error": format!("reading the rule: {error}")})),
        },
        (&Method::GET, "/_control/requests") => requests(query, shared).await,
        (&Method::DELETE, "/_control/requests") => {
            shared.log.clear();
            answer(StatusCode::OK, &json!([]))
        }
        (&Method::POST, "/_control/drop-connections") => {
            shared.drop_connections();
            answer(StatusCode::OK, &json!({}))
        }
        _ => answer(StatusCode::NOT_FOUND, &json!({"error": "no such control; docs/fake-upstream.md lists them"})),
    }
}

/// `?key=…&model=…` filter; `?wait=N` waits for that many, at most a minute.
async fn requests(query: &str, shared: &Shared) -> Response<FakeBody> {
    let (mut key, mut model, mut wait) = (None, None, 0);
    for (name, value) in query.split('&').filter(|p| !p.is_empty()).filter_map(|p| p.split_once('=')) {
        match name {
            "key" => key = Some(value),
            "model" => model = Some(value),
            "wait" => wait = value.parse().unwrap_or(0),
            _ => return answer(StatusCode::BAD_REQUEST, &json!({"error": "the query takes key, model and wait"})),
        }
    }
    let wanted = |r: &&Recorded| key.is_none_or(|k| r.key == k) && model.is_none_or(|m| r.model == m);
    shared.log.wait(|all| all.iter().filter(wanted).count() >= wait, MAX_WAIT).await;
    let found: Vec<Recorded> = shared.log.all().iter().filter(wanted).cloned().collect();
    answer(StatusCode::OK, &json!(found))
}

/// The list of models as vendors give it.
pub(super) fn models(names: &[String]) -> Value {
    let data: Vec<Value> = names.iter().map(|n| json!({"id": n, "object": "model", "created": 0, "owned_by": "fake"})).collect();
    json!({"object": "list", "data": data})
}
