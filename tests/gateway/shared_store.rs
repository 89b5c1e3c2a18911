//! Two gateways that share their state through a real Redis server.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command as Process, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::Full;
use omniroute::gateway::sessions::response_key;
use omniroute::gateway::{Gateway, clock};
use omniroute::resilience::Selection;
use omniroute::snapshot::{KeyScope, Secret, StateStore, Strategy};
use serde_json::{Value, json};

use crate::eventually::eventually;
use crate::support::{Got, Reply, Served, Setup, Vendor, request};
use crate::tools;

const PASSWORD: &str = "hush-7f3a";
/// Longer than anything here takes, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// A Redis server of the test's own.
struct Redis {
    program: PathBuf,
    port: u16,
    server: Child,
}

impl Redis {
    /// `None` without a server program: see `tools::find`.
    async fn start() -> Option<Self> {
        let program = tools::find("redis-server")?;
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let server = launch(&program, &["--port", &port.to_string()]);
        let redis = Self { program, port, server };
        redis.answers().await;
        Some(redis)
    }

    /// One that speaks TLS with a certificate that nobody trusts.
    async fn with_tls() -> Option<Self> {
        let program = tools::find("redis-server")?;
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let tls = |name: &str| tools::root().join("tests/data/tls").join(name).display().to_string();
        let (certificate, key, ca) = (tls("server.pem"), tls("server.key"), tls("ca.pem"));
        let arguments = ["--port", "0", "--tls-port", &port.to_string(), "--tls-cert-file", &certificate, "--tls-key-file", &key];
        let server = launch(&program, &[&arguments[..], &["--tls-ca-cert-file", &ca, "--tls-auth-clients", "no"]].concat());
        let redis = Self { program, port, server };
        redis.answers().await;
        Some(redis)
    }

    fn url(&self) -> String {
        format!("redis://:{PASSWORD}@127.0.0.1:{}/0", self.port)
    }

    async fn answers(&self) {
        let address: SocketAddr = ([127, 0, 0, 1], self.port).into();
        until("the server listens", || async { tokio::net::TcpStream::connect(address).await.is_ok() }).await;
    }

    /// Kills it: nothing is written anywhere, so that it comes back without a memory.
    fn kill(&mut self) {
        self.server.kill().unwrap();
        self.server.wait().unwrap();
    }

    async fn restart(&mut self) {
        self.server = launch(&self.program, &["--port", &self.port.to_string()]);
        self.answers().await;
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

fn launch(program: &PathBuf, port: &[&str]) -> Child {
    let arguments = ["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--requirepass", PASSWORD];
    Process::new(program).args(port).args(arguments).current_dir(std::env::temp_dir()).stdout(Stdio::null()).spawn().unwrap()
}

/// Waits for something that is told to nobody.
async fn until(what: &str, holds: impl AsyncFnMut() -> bool) {
    eventually(what, PATIENCE, holds).await;
}

fn setup(vendor: &Vendor, redis: &Redis) -> Setup {
    let setup = Setup::new().provider("one", &vendor.base_url()).connection("one", "a", 1).connection("one", "b", 2).combo(
        "assistant",
        Strategy::Priority,
        &["one/m1"],
    );
    setup.change(|s| {
        s.settings.session_lease_ttl_ms = 60_000;
        s.settings.session_affinity_ttl_ms = 60_000;
        s.state_store = Some(StateStore {
            settings: "default".into(),
            url: Secret::new(redis.url()),
            ca_bundle: None,
            prefix: "omniroute:{test}:".into(),
        });
        let key = s.api_keys.iter_mut().find(|key| key.name == "client").unwrap();
        key.scopes.push(KeyScope::LeaseExclusive);
        key.allowed_connections = Some(vec!["a".to_owned(), "b".to_owned()]);
    })
}

async fn start(setup: Setup) -> Served {
    let served = setup.start();
    until("the gateway is in contact", || async { served.manage("GET", "/readyz", "").await.status == 200 }).await;
    assert_eq!(up(&served).await.as_deref(), Some("1"));
    served
}

/// The metric of the store.
async fn up(served: &Served) -> Option<String> {
    let metrics = served.manage("GET", "/metrics", "").await.text();
    metrics.lines().find_map(|line| line.strip_prefix("omniroute_state_store_up{store=\"redis\"} ").map(str::to_owned))
}

async fn shows(served: &Served, connection: &str, state: &str) {
    until(&format!("{connection} is {state}"), || async { served.connection(connection).await["state"] == state }).await;
}

async fn lease(served: &Served, owner: &str, body: Value) -> Got {
    let request = request("POST", "/api/v1/session-leases", "client").header("x-omniroute-lease-owner", owner);
    served.send(request.body(Full::new(Bytes::from(body.to_string()))).unwrap()).await
}

async fn acquire(served: &Served, owner: &str) -> Got {
    lease(served, owner, json!({"action": "acquire", "model": "assistant"})).await
}

async fn managed(served: &Served, owner: &str, generation: &str) -> Got {
    let request = request("POST", "/v1/chat/completions", "client").header("x-omniroute-lease-owner", owner);
    let body = Full::from(r#"{"model":"assistant","messages":[]}"#);
    served.send(request.header("x-omniroute-lease-generation", generation).body(body).unwrap()).await
}

fn owner(letter: char) -> String {
    format!("vlo_{}", letter.to_string().repeat(43))
}

#[tokio::test]
async fn what_one_learns_rests_on_the_other_and_a_clear_holds_on_both() {
    let Some(redis) = Redis::start().await else { return };
    let vendor = Vendor::start().await;
    let (first, second) = (start(setup(&vendor, &redis)).await, start(setup(&vendor, &redis)).await);
    vendor.script("a", [Reply::error(429, "slow").header("retry-after", 600)]);
    let seen = Instant::now();
    assert_eq!(first.chat("assistant").await.content(), "b");
    shows(&second, "a", "Cooling").await;
    eprintln!("the other knew after {:?}", seen.elapsed());
    assert_eq!(first.connection("a").await["until"], second.connection("a").await["until"]);
    assert_eq!(second.chat("assistant").await.content(), "b");
    assert_eq!(vendor.calls(), ["a", "b", "b"], "the second one never asked");
    // A terminal state as well.
    vendor.script("b", [Reply::new(401, r#"{"error":{"message":"revoked","type":"x","code":"account_deactivated"}}"#)]);
    assert!(second.chat("assistant").await.status >= 400);
    shows(&first, "b", "Banned").await;
    // Who comes later learns it before it is ready.
    let third = start(setup(&vendor, &redis)).await;
    assert_eq!(
        (third.connection("a").await["state"].as_str(), third.connection("b").await["state"].as_str()),
        (Some("Cooling"), Some("Banned"))
    );
    // An operator clears it on one: that holds on all, and nobody's memory brings it back.
    let cleared = second.manage("POST", "/api/resilience/cooldowns", r#"{"connectionIds":["a"]}"#).await;
    assert_eq!(cleared.status, 200, "{}", cleared.text());
    let reset = second.gateway.ledger().reset(&Selection::Connections(["b".to_owned()].into()), clock::now());
    second.gateway.apply(&reset);
    for served in [&first, &second, &third] {
        shows(served, "a", "Active").await;
        shows(served, "b", "Active").await;
    }
    // Who comes now hears everything that each of them still says.
    let fourth = start(setup(&vendor, &redis)).await;
    for served in [&first, &second, &third, &fourth] {
        assert_eq!(
            (served.connection("a").await["state"].as_str(), served.connection("b").await["state"].as_str()),
            (Some("Active"), Some("Active"))
        );
    }
}

#[tokio::test]
async fn the_last_connection_has_one_owner_whoever_is_asked() {
    let Some(redis) = Redis::start().await else { return };
    let vendor = Vendor::start().await;
    let gateways = [Arc::new(start(setup(&vendor, &redis)).await), Arc::new(start(setup(&vendor, &redis)).await)];
    let race: Vec<_> = ('A'..='L')
        .enumerate()
        .map(|(n, letter)| {
            let served = Arc::clone(&gateways[n % 2]);
            tokio::spawn(async move { (letter, acquire(&served, &owner(letter)).await) })
        })
        .collect();
    let mut winners = Vec::new();
    for asked in race {
        let (letter, got) = asked.await.unwrap();
        match got.status {
            200 => winners.push(letter),
            429 => assert_eq!(got.code(), "LEASE_CAPACITY_UNAVAILABLE"),
            status => panic!("{status}: {}", got.text()),
        }
    }
    assert_eq!(winners.len(), 2, "two connections, two owners: {winners:?}");
    // The lease holds on both gateways, and its end frees the connection on both.
    let mine = owner(winners[0]);
    let answers = [managed(&gateways[0], &mine, "1").await, managed(&gateways[1], &mine, "1").await];
    assert_eq!((answers[0].status, answers[0].content()), (200, answers[1].content()));
    assert_eq!(gateways[0].chat("assistant").await.status, 503, "all are owned");
    let released = lease(&gateways[1], &mine, json!({"action": "release", "generation": 1, "reason": "OWNER_EXIT"})).await;
    assert_eq!(released.status, 200);
    assert_eq!(managed(&gateways[0], &mine, "1").await.code(), "LEASE_REQUIRED");
    let next = acquire(&gateways[0], &owner('Z')).await;
    assert_eq!(next.status, 200, "{}", next.text());
    assert_eq!(acquire(&gateways[1], &mine).await.status, 429);
}

/// A way to the server on which each answer takes its time, without keeping those behind it.
async fn far_away(redis: &Redis, delay: Duration) -> u16 {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (port, server) = (listener.local_addr().unwrap().port(), redis.port);
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let Ok(server) = tokio::net::TcpStream::connect(("127.0.0.1", server)).await else { continue };
            let ((mut asks, mut hears), (mut answers, mut takes)) = (client.into_split(), server.into_split());
            tokio::spawn(async move { tokio::io::copy(&mut asks, &mut takes).await });
            let (late, mut due) = tokio::sync::mpsc::unbounded_channel::<(tokio::time::Instant, Vec<u8>)>();
            tokio::spawn(async move {
                let mut piece = vec![0; 64 * 1024];
                while let Ok(n @ 1..) = answers.read(&mut piece).await {
                    let _ = late.send((tokio::time::Instant::now() + delay, piece[..n].to_vec()));
                }
            });
            tokio::spawn(async move {
                while let Some((at, piece)) = due.recv().await {
                    tokio::time::sleep_until(at).await;
                    if hears.write_all(&piece).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    port
}

#[tokio::test]
async fn requests_under_leases_ask_the_store_side_by_side() {
    let Some(redis) = Redis::start().await else { return };
    let vendor = Vendor::start().await;
    let port = far_away(&redis, Duration::from_millis(60)).await;
    let url = format!("redis://:{PASSWORD}@127.0.0.1:{port}/0");
    let served = start(setup(&vendor, &redis).change(|s| s.state_store.as_mut().unwrap().url = Secret::new(url))).await;
    let mine = owner('A');
    assert_eq!(acquire(&served, &mine).await.status, 200);
    let begin = Instant::now();
    let answers = futures::future::join_all((0..40).map(|_| managed(&served, &mine, "1"))).await;
    assert!(answers.iter().all(|got| got.status == 200));
    assert!(begin.elapsed() < Duration::from_millis(40 * 60 / 2), "{:?}", begin.elapsed());
}

#[tokio::test]
async fn another_store_hears_of_everything() {
    let Some(redis) = Redis::start().await else { return };
    let vendor = Vendor::start().await;
    let first = start(setup(&vendor, &redis)).await;
    let answer = response_key("client", "resp_1");
    first.gateway.sessions().remember_response(answer, &"b".into(), clock::now());
    assert_eq!(acquire(&first, &owner('A')).await.status, 200);
    vendor.script("b", [Reply::error(429, "slow").header("retry-after", 600)]);
    assert_ne!(first.chat("assistant").await.status, 200, "`a` is owned");
    // Another database of the same server has nothing of the one before; its messages come to all, so it has a prefix of its own.
    let elsewhere = |setup: Setup| {
        setup.change(|s| {
            let store = s.state_store.as_mut().unwrap();
            (store.url, store.prefix) = (Secret::new(redis.url().replace("/0", "/1")), "omniroute:{elsewhere}:".into());
        })
    };
    first.gateway.load(elsewhere(setup(&vendor, &redis)).0, Vec::new()).unwrap();
    let second = start(elsewhere(setup(&vendor, &redis))).await;
    shows(&second, "b", "Cooling").await;
    let known = || async { second.gateway.sessions().response(&answer, clock::now()).as_deref() == Some("b") };
    until("the other knows the answer", known).await;
    until("the lease holds", || async { managed(&second, &owner('A'), "1").await.status == 200 }).await;
    assert_eq!(acquire(&second, &owner('B')).await.code(), "LEASE_CAPACITY_UNAVAILABLE", "the one is owned, the other rests");
}

#[tokio::test]
async fn a_store_that_was_restored_from_an_older_copy_counts_all_the_same() {
    let Some(redis) = Redis::start().await else { return };
    let vendor = Vendor::start().await;
    let served = start(setup(&vendor, &redis)).await;
    assert_eq!(acquire(&served, &owner('A')).await.status, 200);
    let mut store = redis::Client::open(redis.url()).unwrap().get_multiplexed_async_connection().await.unwrap();
    let key = "omniroute:{test}:leases";
    let copy: String = redis::cmd("HGET").arg(key).arg("version").query_async(&mut store).await.unwrap();
    let (life, _) = copy.split_once(':').unwrap();
    let later = format!("{life}:1000000");
    let () = redis::cmd("HSET").arg(key).arg("version").arg(later).query_async(&mut store).await.unwrap();
    assert_eq!(managed(&served, &owner('A'), "1").await.status, 200, "the later version is known");
    let () = redis::cmd("HSET").arg(key).arg("version").arg(&copy).query_async(&mut store).await.unwrap();
    let () = redis::cmd("CLIENT").arg(&["KILL", "TYPE", "pubsub"]).query_async(&mut store).await.unwrap();
    until("another lease is granted", || async { acquire(&served, &owner('B')).await.status == 200 }).await;
    until("it holds", || async { managed(&served, &owner('B'), "1").await.status == 200 }).await;
}

#[tokio::test]
async fn a_store_that_was_restored_hears_of_the_bindings_since() {
    let Some(redis) = Redis::start().await else { return };
    let vendor = Vendor::start().await;
    let served = start(setup(&vendor, &redis)).await;
    let store = redis::Client::open(redis.url()).unwrap().get_multiplexed_async_connection().await.unwrap();
    let [bindings, replicas] = ["bindings", "replicas"].map(|name| format!("omniroute:{{test}}:{name}"));
    let all = async |key: &str| -> Vec<String> { redis::cmd("HGETALL").arg(key).query_async(&mut store.clone()).await.unwrap() };
    until("the store knows the gateway", async || all(&replicas).await.len() == 2).await;
    let copy = all(&replicas).await;
    served.gateway.sessions().remember_response(response_key("client", "resp_1"), &"b".into(), clock::now());
    assert_eq!(served.chat("assistant").await.status, 200);
    until("the binding is stored", async || !all(&bindings).await.is_empty()).await;
    let mut restore = redis::pipe();
    restore.atomic().cmd("CLIENT").arg(&["KILL", "TYPE", "normal", "SKIPME", "yes"]).cmd("CLIENT").arg(&["KILL", "TYPE", "pubsub"]);
    restore.cmd("DEL").arg(&bindings).cmd("HSET").arg(&replicas).arg(copy);
    let _: redis::Value = restore.query_async(&mut store.clone()).await.unwrap();
    until("the binding is stored again", async || !all(&bindings).await.is_empty()).await;
}

#[tokio::test]
async fn a_store_that_was_restored_brings_back_nothing_that_was_given_back() {
    let Some(redis) = Redis::start().await else { return };
    let vendor = Vendor::start().await;
    let served = start(setup(&vendor, &redis)).await;
    let store = redis::Client::open(redis.url()).unwrap().get_multiplexed_async_connection().await.unwrap();
    let keys = ["bindings", "replicas", "leases"].map(|name| format!("omniroute:{{test}}:{name}"));
    let all = async |key: &str| -> Vec<String> { redis::cmd("HGETALL").arg(key).query_async(&mut store.clone()).await.unwrap() };
    // A pin and a lease, both in the copy, and then both given back.
    let session = response_key("client", "session");
    served.gateway.sessions().pin(session, &"b".into(), 60_000, clock::now());
    assert_eq!(acquire(&served, &owner('A')).await.status, 200);
    until("the pin is stored", async || !all(&keys[0]).await.is_empty()).await;
    let copies = [all(&keys[0]).await, all(&keys[1]).await, all(&keys[2]).await];
    served.gateway.sessions().unpin(&session, "b");
    let given_back = lease(&served, &owner('A'), json!({"action": "release", "generation": 1, "reason": "OWNER_EXIT"})).await;
    assert_eq!(given_back.status, 200, "{}", given_back.text());
    until("the pin is gone", async || all(&keys[0]).await.is_empty()).await;
    let mut restore = redis::pipe();
    restore.atomic().cmd("CLIENT").arg(&["KILL", "TYPE", "normal", "SKIPME", "yes"]).cmd("CLIENT").arg(&["KILL", "TYPE", "pubsub"]);
    for (key, copy) in keys.iter().zip(copies) {
        restore.cmd("DEL").arg(key).cmd("HSET").arg(key).arg(copy);
    }
    let _: redis::Value = restore.query_async(&mut store.clone()).await.unwrap();
    until("the pin is gone again", async || all(&keys[0]).await.is_empty()).await;
    assert_eq!(served.gateway.sessions().pinned(&session, clock::now()), None);
    let two = async || acquire(&served, &owner('B')).await.status == 200 && acquire(&served, &owner('C')).await.status == 200;
    until("both connections are free", two).await;
    assert_eq!(managed(&served, &owner('A'), "1").await.code(), "LEASE_REQUIRED");
}

#[tokio::test]
async fn sessions_and_answers_lead_to_the_same_connection_everywhere() {
    let Some(redis) = Redis::start().await else { return };
    let vendor = Vendor::start().await;
    let (first, second) = (start(setup(&vendor, &redis)).await, start(setup(&vendor, &redis)).await);
    let answer = response_key("client", "resp_1");
    first.gateway.sessions().remember_response(answer, &"b".into(), clock::now());
    // The task that tells it is woken by traffic.
    assert_eq!(first.chat("assistant").await.status, 200);
    let known = |gateway: Arc<Gateway>| async move { gateway.sessions().response(&answer, clock::now()).as_deref() == Some("b") };
    until("the other knows the answer", || known(Arc::clone(&second.gateway))).await;
    let third = start(setup(&vendor, &redis)).await;
    assert!(known(Arc::clone(&third.gateway)).await, "who comes later knows it before it is ready");
}

#[tokio::test]
async fn traffic_goes_on_while_the_store_is_away_and_leases_wait() {
    let Some(mut redis) = Redis::start().await else { return };
    let vendor = Vendor::start().await;
    let (first, second) = (Arc::new(start(setup(&vendor, &redis)).await), start(setup(&vendor, &redis)).await);
    assert_eq!(acquire(&first, &owner('A')).await.status, 200);
    let stop = Arc::new(AtomicBool::new(false));
    let traffic = tokio::spawn({
        let (first, stop) = (Arc::clone(&first), Arc::clone(&stop));
        async move {
            let mut answered = 0;
            while !stop.load(Ordering::Acquire) {
                let got = first.chat("assistant").await;
                assert_eq!(got.status, 200, "{}", got.text());
                answered += 1;
                // The pace of the traffic, so that it leaves the processor to the others.
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            answered
        }
    });
    redis.kill();
    for served in [&*first, &second] {
        until("the gateway notices", || async { up(served).await.as_deref() == Some("0") }).await;
    }
    let state = first.manage("GET", "/state", "").await;
    let finding = state.json()["findings"][0].clone();
    assert_eq!((finding["reason"].as_str(), finding["name"].as_str()), (Some("StateStoreUnavailable"), Some("default")), "{finding}");
    assert!(!state.text().contains(PASSWORD));
    let refused = acquire(&first, &owner('B')).await;
    assert_eq!((refused.status, refused.code().as_str(), refused.header("retry-after")), (503, "LEASE_SERVICE_UNAVAILABLE", Some("1")));
    assert_eq!(managed(&second, &owner('A'), "1").await.code(), "LEASE_SERVICE_UNAVAILABLE");
    assert_eq!(first.manage("GET", "/readyz", "").await.status, 200, "a store that is away is no reason to take no traffic");
    // It comes back without a memory; the gateways still know.
    redis.restart().await;
    for served in [&*first, &second] {
        until("the gateway is back", || async { up(served).await.as_deref() == Some("1") }).await;
    }
    assert!(first.manage("GET", "/state", "").await.json()["findings"].as_array().unwrap().is_empty());
    assert_eq!(managed(&second, &owner('A'), "1").await.status, 200, "the lease has survived");
    stop.store(true, Ordering::Release);
    assert!(traffic.await.unwrap() > 0);
    vendor.script("b", [Reply::error(429, "slow").header("retry-after", 600)]);
    assert_ne!(first.chat("assistant").await.status, 200);
    shows(&second, "b", "Cooling").await;
}

#[tokio::test]
async fn a_store_that_comes_after_the_gateways_is_found_and_shared() {
    let Some(mut redis) = Redis::start().await else { return };
    redis.kill();
    let vendor = Vendor::start().await;
    let (first, second) = (setup(&vendor, &redis).start(), setup(&vendor, &redis).start());
    for served in [&first, &second] {
        until("it takes traffic without the store", || async { served.manage("GET", "/readyz", "").await.status == 200 }).await;
        assert_eq!(up(served).await.as_deref(), Some("0"));
    }
    vendor.script("a", [Reply::error(429, "slow").header("retry-after", 600)]);
    assert_eq!(first.chat("assistant").await.content(), "b");
    redis.restart().await;
    for served in [&first, &second] {
        until("the store is found", || async { up(served).await.as_deref() == Some("1") }).await;
    }
    shows(&second, "a", "Cooling").await;
}

#[tokio::test]
async fn a_certificate_that_nobody_vouches_for_is_not_accepted() {
    let Some(redis) = Redis::with_tls().await else { return };
    let vendor = Vendor::start().await;
    let url = format!("rediss://:{PASSWORD}@localhost:{}/0", redis.port);
    let setup = setup(&vendor, &redis).change(|s| s.state_store.as_mut().unwrap().url = Secret::new(url));
    let served = setup.clone().start();
    until("the first attempt is over", || async { served.manage("GET", "/readyz", "").await.status == 200 }).await;
    assert_eq!(up(&served).await.as_deref(), Some("0"));
    let finding = served.manage("GET", "/state", "").await.json()["findings"][0].clone();
    let message = finding["message"].as_str().unwrap();
    assert!(message.contains("certificate") && !message.contains(PASSWORD), "{message}");
    assert_eq!(served.chat("assistant").await.content(), "a");
    // Its owner's authority is named.
    let authority = std::fs::read_to_string(tools::root().join("tests/data/tls/ca.pem")).unwrap();
    let trusting = setup.change(|s| s.state_store.as_mut().unwrap().ca_bundle = Some(authority));
    served.gateway.load(trusting.0, Vec::new()).unwrap();
    until("the store is found", || async { up(&served).await.as_deref() == Some("1") }).await;
}
