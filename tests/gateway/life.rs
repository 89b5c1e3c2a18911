//! A gateway over time: reloads, restarts, aborts, the end.

use std::sync::Arc;
use std::time::Duration;

use crate::eventually::eventually;
use crate::support::{Reply, Served, Setup};
use omniroute::gateway::sessions::{Sessions, response_key};
use omniroute::gateway::store::{Document, Memory, Sqlite, Store};
use omniroute::gateway::{Gateway, clock};
use omniroute::snapshot::{Command, CommandKind, CommandVerb, Secret};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

#[tokio::test]
async fn state_of_unchanged_connections_survives_a_reload_and_a_new_credential_starts_afresh() {
    let (vendor, setup) = Setup::two_accounts().await;
    vendor.script("a", [Reply::error(429, "slow").header("retry-after", 60)]);
    vendor.script("b", [Reply::new(401, r#"{"error":{"message":"revoked","type":"x","code":"account_deactivated"}}"#)]);
    let served = setup.clone().start();
    assert!(served.chat("assistant").await.status >= 500);
    assert_eq!(served.connection("b").await["state"], "Banned");
    let changed = setup.change(|s| {
        s.combos[0].model_names.push("helper".to_owned());
        s.connections[1].credential_fingerprint = "another".to_owned();
    });
    served.gateway.load(changed.0, Vec::new()).unwrap();
    assert_eq!(served.connection("a").await["state"], "Cooling");
    assert_eq!(served.connection("b").await["state"], "Active");
    vendor.script("b", [Reply::chat("b")]);
    assert_eq!(served.chat("helper").await.content(), "b");
}

#[tokio::test]
async fn a_refused_snapshot_leaves_the_last_good_one_its_state_and_is_told() {
    let (vendor, setup) = Setup::two_accounts().await;
    vendor.script("a", [Reply::new(401, r#"{"error":{"message":"revoked","type":"x","code":"account_deactivated"}}"#)]);
    let served = setup.clone().start();
    assert_eq!(served.chat("assistant").await.content(), "b");
    assert_eq!(served.connection("a").await["state"], "Banned");
    let hash = served.manage("GET", "/state", "").await.json()["snapshot"]["hash"].clone();
    // It would also bring a new credential and a command: none of them may be seen in what stays.
    let broken = setup.clone().change(|s| {
        s.connections.iter_mut().for_each(|c| c.provider = "nobody".to_owned());
        s.connections[0].credential_fingerprint = "another".to_owned();
        s.commands.push(reset("a", "now"));
    });
    let error = served.gateway.load(broken.0, Vec::new()).unwrap_err().to_string();
    assert!(error.contains("`a`") && error.contains("`nobody`"), "{error}");
    assert_eq!(served.connection("a").await["state"], "Banned");
    assert_eq!(served.chat("assistant").await.content(), "b");
    let state = served.manage("GET", "/state", "").await.json();
    assert_eq!((&state["snapshot"]["hash"], state["refused"].as_str()), (&hash, Some(error.as_str())));
    assert_eq!(state["commands"], serde_json::json!({}));
    served.gateway.load(setup.0, Vec::new()).unwrap();
    assert!(served.manage("GET", "/state", "").await.json()["refused"].is_null());
    assert_eq!(served.connection("a").await["state"], "Banned");
}

fn reset(connection: &str, value: &str) -> Command {
    Command {
        kind: CommandKind::Connection,
        name: connection.to_owned(),
        command: CommandVerb::Reset,
        value: value.to_owned(),
        accepted_time: clock::now(),
    }
}

#[tokio::test]
async fn a_connection_that_cannot_be_set_up_is_left_out_and_the_others_serve() {
    let (_vendor, setup) = Setup::two_accounts().await;
    let broken = setup.clone().change(|s| {
        s.connections[0].proxy_url = Some(Secret::new("https://user:hush@proxy:8443"));
        s.fragments.insert("Connection/a".to_owned(), "1".to_owned());
    });
    // At the start as well as on a reload.
    let start = broken.clone().start();
    assert_eq!(start.chat("assistant").await.content(), "b");
    let served = setup.start();
    assert_eq!(served.chat("assistant").await.content(), "a");
    let hash = broken.0.hash().unwrap();
    served.gateway.load(broken.0, Vec::new()).unwrap();
    assert_eq!(served.chat("assistant").await.content(), "b");
    let state = served.manage("GET", "/state", "").await;
    let (text, state) = (state.text(), state.json());
    assert_eq!(state["snapshot"]["hash"], hash.as_str(), "known by the hash of what was delivered");
    let finding = &state["findings"][0];
    assert_eq!((finding["name"].as_str(), finding["field"].as_str()), (Some("a"), Some("spec.proxyURL")), "{finding}");
    assert!(state["connections"].as_array().unwrap().iter().all(|c| c["name"] != "a") && !text.contains("hush"), "{text}");
    assert_eq!(state["fragments"], serde_json::json!({}), "nobody may take it for programmed");
}

#[tokio::test]
async fn a_request_that_runs_across_a_rotation_sends_the_new_key() {
    let (vendor, setup) = Setup::two_accounts().await;
    vendor.script("a", [Reply::error(500, "slow").after(1_000)]);
    let served = Arc::new(setup.clone().start());
    let asking = tokio::spawn({
        let served = Arc::clone(&served);
        async move { served.chat("assistant").await.content() }
    });
    vendor.called(1).await;
    let rotated = setup.change(|s| {
        s.connections[1].credential = Some(Secret::new("b2"));
        s.connections[1].credential_fingerprint = "b2".to_owned();
    });
    served.gateway.load(rotated.0, Vec::new()).unwrap();
    assert_eq!(asking.await.unwrap(), "b2");
    assert_eq!(vendor.calls(), ["a", "b2"]);
}

#[tokio::test]
async fn each_stored_document_is_taken_over_on_its_own() {
    let (vendor, setup) = Setup::two_accounts().await;
    vendor.script("a", [Reply::error(429, "slow").header("retry-after", 60)]);
    let first = setup.clone().start();
    assert_eq!(first.chat("assistant").await.content(), "b");
    let delivered = first.gateway.ledger().export(clock::now());
    let path = std::env::temp_dir().join(format!("omniroute-life-{}.db", rand::random::<u64>()));
    let pins = Sessions::default();
    pins.remember_response(response_key("client", "resp_1"), &"b".into(), clock::now());
    let store = Sqlite::open(&path).unwrap();
    store.save(Document::Ledger, b"nonsense").unwrap();
    store.save(Document::Leases, b"nonsense").unwrap();
    store.save(Document::Sessions, &pins.export(clock::now()).unwrap()).unwrap();
    let second = Gateway::new(Box::new(store)).unwrap();
    second.prepare_restore(Some(&delivered)).unwrap_err();
    second.load(setup.0, Vec::new()).unwrap();
    assert!(second.state().connections[0].until.is_some(), "the delivered checkpoint counts");
    assert_eq!(second.sessions().response(&response_key("client", "resp_1"), clock::now()).as_deref(), Some("b"));
    drop(second);
    std::fs::remove_file(path).unwrap();
}

#[tokio::test]
async fn state_survives_a_kill_by_the_second() {
    let (vendor, setup) = Setup::two_accounts().await;
    vendor.script("a", [Reply::error(429, "slow").header("retry-after", 60)]);
    let path = std::env::temp_dir().join(format!("omniroute-life-{}.db", rand::random::<u64>()));
    let first = Gateway::new(Box::new(Sqlite::open(&path).unwrap())).unwrap();
    first.load(setup.0.clone(), Vec::new()).unwrap();
    let served = Served::start(first);
    assert_eq!(served.chat("assistant").await.content(), "b");
    let until = served.connection("a").await["until"].clone();
    let mut second = None;
    // Another process looks at the file while the first is still there: a killed one closes nothing either.
    let knows = async || {
        let other = Gateway::new(Box::new(Sqlite::open(&path).unwrap())).unwrap();
        other.prepare_restore(None).unwrap();
        other.load(setup.0.clone(), Vec::new()).unwrap();
        second.insert(other).state().connections[0].until.is_some()
    };
    eventually("the file tells", Duration::from_secs(15), knows).await;
    let again = Served::start(second.unwrap());
    assert_eq!(again.connection("a").await["until"], until);
    assert_eq!(again.chat("assistant").await.content(), "b");
    assert_eq!(vendor.calls(), ["a", "b", "b"]);
    drop((served, again));
    let _ = std::fs::remove_file(path);
}

#[tokio::test]
async fn without_a_snapshot_only_the_management_port_answers() {
    let served = Served::start(Gateway::new(Box::new(Memory)).unwrap());
    let ask = async |path: &str| {
        let request = http::Request::builder().uri(path).body(http_body_util::Full::<bytes::Bytes>::default()).unwrap();
        crate::support::call(served.running.management_addr(), request).await.status
    };
    assert_eq!((ask("/livez").await, ask("/readyz").await, ask("/state").await), (200, 503, 503));
    let got = served.chat("assistant").await;
    assert_eq!((got.status, got.code().as_str()), (503, "no_configuration"));
    served.gateway.load(Setup::new().0, Vec::new()).unwrap();
    assert_eq!(ask("/readyz").await, 200);
}

#[tokio::test]
async fn a_client_that_leaves_cancels_the_upstream_call_and_blames_nobody() {
    let (vendor, setup) = Setup::two_accounts().await;
    vendor.script("a", [Reply::chat("a").after(60_000)]);
    let served = setup.start();
    let mut stream = TcpStream::connect(served.running.listen_addr()).await.unwrap();
    let body = r#"{"model":"assistant","messages":[]}"#;
    let head =
        format!("POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\nauthorization: Bearer client\r\ncontent-length: {}\r\n\r\n", body.len());
    stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
    vendor.called(1).await;
    drop(stream);
    eventually("the abort ends the request", Duration::from_secs(5), async || served.gateway.metrics().in_flight() == 0).await;
    let state = served.connection("a").await;
    assert_eq!((&state["state"], &state["inFlight"]), (&"Active".into(), &0.into()));
    let metrics =
        String::from_utf8(served.gateway.metrics().render(&served.gateway.state(), omniroute::gateway::clock::now()).unwrap()).unwrap();
    assert!(metrics.contains("omniroute_attempts_total{connection=\"a\",outcome=\"cancelled\",provider=\"one\"} 1"), "{metrics}");
}

#[tokio::test]
async fn the_end_lets_running_requests_finish_and_takes_no_new_ones() {
    let (vendor, setup) = Setup::two_accounts().await;
    vendor.script("a", [Reply::chat("a").after(600)]);
    let Served { gateway: _gateway, running: server } = setup.start();
    let (listen, management) = (server.listen_addr(), server.management_addr());
    let body = http_body_util::Full::from(r#"{"model":"assistant","messages":[]}"#);
    let request = crate::support::request("POST", "/v1/chat/completions", "client").body(body).unwrap();
    let running = tokio::spawn(async move { crate::support::call(listen, request).await.content() });
    vendor.called(1).await;
    let ready = async || {
        let request = http::Request::builder().uri("/readyz").body(http_body_util::Full::<bytes::Bytes>::default()).unwrap();
        crate::support::call(management, request).await.status
    };
    assert_eq!(ready().await, 200);
    let drained = tokio::spawn(server.drain());
    eventually("nothing new is taken", Duration::from_secs(20), async || ready().await != 200).await;
    assert_eq!(running.await.unwrap(), "a");
    drained.await.unwrap();
    let mut byte = [0];
    let closed = match TcpStream::connect(listen).await {
        Err(_) => true,
        Ok(mut stream) => stream.read(&mut byte).await.is_ok_and(|read| read == 0),
    };
    assert!(closed, "nobody listens any more");
}
