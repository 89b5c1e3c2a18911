//! Refreshing against a token endpoint on loopback, behind TLS.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::api::time::EpochMs;
use crate::compile::oauth::{Grant, Tokens};
use crate::dial::tls::TlsConfigs;
use crate::snapshot::Secret;

#[path = "../../tests/support/token_endpoint.rs"]
#[allow(dead_code)] // shared with the tests of `run` and of the operator
mod endpoint;

use endpoint::{AUTHORITY, TokenEndpoint};

const QUICK: [Duration; 3] = [Duration::from_millis(5); 3];

fn now() -> EpochMs {
    EpochMs(i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()).unwrap())
}

fn grant(endpoint: &TokenEndpoint) -> Grant {
    let tokens = Tokens { seed: "s".into(), access: Secret::new("at-0"), refresh: Secret::new("rt-0"), ..Tokens::default() };
    Grant {
        connection: "claude".into(),
        token_url: endpoint.url(),
        client_id: Some("app".into()),
        ca_bundle: Some(AUTHORITY.into()),
        attempt: "a".into(),
        tokens,
        ..Grant::default()
    }
}

/// Keeps in memory; fails as often as it is told.
struct Shelf {
    tokens: Mutex<Option<Tokens>>,
    failures: Mutex<u32>,
    /// How far its clock is ahead.
    ahead: AtomicI64,
    told: mpsc::UnboundedSender<Outcome>,
    kept: mpsc::UnboundedSender<Tokens>,
    looked: mpsc::UnboundedSender<()>,
    /// Attempts that are over.
    ended: Mutex<Vec<EpochMs>>,
}

impl Keeper for Arc<Shelf> {
    type Error = String;

    fn now(&self) -> EpochMs {
        EpochMs(now().0 + self.ahead.load(Ordering::Relaxed))
    }

    async fn latest(&self, namespace: &str, grant: Grant) -> Result<Option<Grant>, String> {
        assert_eq!(namespace, "team-a");
        let kept = self.tokens.lock().unwrap().clone();
        let _ = self.looked.send(());
        Ok(Some(grant.with(kept)))
    }

    async fn begin(&self, _: &str, grant: &Grant, at: EpochMs) -> Result<Kept, String> {
        self.put(Tokens { asked: Some(at), ..grant.tokens.clone() })?;
        Ok(Kept::Yes)
    }

    async fn ended(&self, _: &str, _: &Grant, at: EpochMs) -> Result<(), String> {
        self.ended.lock().unwrap().push(at);
        Ok(())
    }

    async fn keep(&self, _: &str, _: &Grant, tokens: &Tokens) -> Result<Kept, String> {
        self.put(tokens.clone())?;
        Ok(Kept::Yes)
    }

    fn came_to(&self, outcome: Outcome) {
        let _ = self.told.send(outcome);
    }
}

impl Shelf {
    fn put(&self, tokens: Tokens) -> Result<(), String> {
        {
            let mut failures = self.failures.lock().unwrap();
            if *failures > 0 {
                *failures -= 1;
                return Err("the disk is full".into());
            }
        }
        *self.tokens.lock().unwrap() = Some(tokens.clone());
        let _ = self.kept.send(tokens);
        Ok(())
    }
}

struct Setup {
    refresher: Refresher<Arc<Shelf>>,
    keeper: Arc<Shelf>,
    told: mpsc::UnboundedReceiver<Outcome>,
    kept: mpsc::UnboundedReceiver<Tokens>,
    looked: mpsc::UnboundedReceiver<()>,
    stop: CancellationToken,
}

impl Setup {
    /// The next outcome that is kept: that an attempt begins is kept before it.
    async fn issued(&mut self) -> Tokens {
        loop {
            let tokens = self.kept.recv().await.unwrap();
            if tokens.asked.is_none() {
                return tokens;
            }
        }
    }
}

fn setup() -> Setup {
    let (told, hear) = mpsc::unbounded_channel();
    let (keep, kept) = mpsc::unbounded_channel();
    let (look, looked) = mpsc::unbounded_channel();
    let keeper = Arc::new(Shelf {
        tokens: Mutex::default(),
        failures: Mutex::new(0),
        ahead: AtomicI64::new(0),
        told,
        kept: keep,
        looked: look,
        ended: Mutex::default(),
    });
    let stop = CancellationToken::new();
    let refresher = Refresher::new(Arc::clone(&keeper), QUICK, stop.clone());
    tokio::spawn(refresher.clone().run());
    Setup { refresher, keeper, told: hear, kept, looked, stop }
}

#[tokio::test]
async fn a_rotated_refresh_token_is_kept_before_it_is_needed() {
    let endpoint = TokenEndpoint::start("rt-0", 2).await;
    let mut setup = setup();
    setup.refresher.set("team-a", vec![grant(&endpoint)]);
    for n in 1..=2 {
        let tokens = setup.issued().await;
        assert_eq!((tokens.access.expose(), tokens.refresh.expose()), (format!("at-{n}").as_str(), format!("rt-{n}").as_str()));
        assert_eq!(setup.told.recv().await, Some(Outcome::Refreshed));
        // However soon they end, half a minute passes between two.
        setup.keeper.ahead.fetch_add(31_000, Ordering::Relaxed);
        // What the caches know is behind what was kept.
        setup.refresher.set("team-a", vec![grant(&endpoint)]);
    }
    let seen = endpoint.seen();
    assert_eq!(seen, ["rt-0", "rt-1"].map(|rt| format!("grant_type=refresh_token&refresh_token={rt}&client_id=app")), "each once");
    setup.stop.cancel();
}

#[tokio::test]
async fn what_cannot_be_kept_is_not_asked_for() {
    let endpoint = TokenEndpoint::start("rt-0", 3_600).await;
    let mut setup = setup();
    *setup.keeper.failures.lock().unwrap() = 2;
    setup.refresher.set("team-a", vec![grant(&endpoint)]);
    let first = setup.kept.recv().await.unwrap();
    assert!(first.access.expose() == "at-0" && first.asked.is_some(), "first that it is asked: {first:?}");
    assert_eq!((setup.issued().await.access.expose(), endpoint.seen().len()), ("at-1", 1));
    setup.stop.cancel();
}

#[tokio::test]
async fn three_bounded_retries_and_then_expired() {
    let endpoint = TokenEndpoint::start("rt-0", 3_600).await;
    endpoint.script(&[(500, "{}"), (503, "away"), (429, "{}"), (500, "{}")]);
    let mut setup = setup();
    setup.refresher.set("team-a", vec![grant(&endpoint)]);
    let mut begun = Vec::new();
    let tokens = loop {
        let tokens = setup.kept.recv().await.unwrap();
        match tokens.asked {
            Some(at) => begun.push(at),
            None => break tokens,
        }
    };
    assert_eq!((begun.len(), &*setup.keeper.ended.lock().unwrap()), (4, &begun), "each is over with its answer");
    assert_eq!(tokens.access.expose(), "at-0", "the old token stays until it ends");
    let refused = tokens.refused.clone().unwrap();
    assert!(refused.why.contains("500") && refused.attempt == "a", "{refused:?}");
    let mut told = Vec::new();
    while let Ok(outcome) = setup.told.try_recv() {
        told.push(outcome);
    }
    assert_eq!(told, [Outcome::Failed, Outcome::Failed, Outcome::Failed, Outcome::Refused]);
    // The owner says: again.
    let again = Grant { attempt: "b".into(), tokens, ..grant(&endpoint) };
    setup.refresher.set("team-a", vec![again]);
    let tokens = loop {
        let tokens = setup.issued().await;
        if tokens.refused.is_none() {
            break tokens;
        }
    };
    assert_eq!(tokens.access.expose(), "at-1");
    assert_eq!(endpoint.seen().len(), 5);
    setup.stop.cancel();
}

#[tokio::test]
async fn a_refusal_by_the_standard_is_final_at_once() {
    let endpoint = TokenEndpoint::start("another", 3_600).await;
    let mut setup = setup();
    setup.refresher.set("team-a", vec![grant(&endpoint)]);
    let refused = setup.issued().await.refused.unwrap();
    assert!(refused.why.contains("invalid_grant") && !refused.why.contains("used before"), "{refused:?}");
    assert_eq!((setup.told.recv().await, endpoint.seen().len()), (Some(Outcome::Refused), 1));
    setup.stop.cancel();
}

#[tokio::test]
async fn tokens_go_only_where_trust_and_the_guard_allow() {
    let endpoint = TokenEndpoint::start("rt-0", 3_600).await;
    let tls = TlsConfigs::default();
    let untrusted = Grant { ca_bundle: None, ..grant(&endpoint) };
    let metadata = Grant { token_url: "https://169.254.169.254/token".into(), ..grant(&endpoint) };
    let plain = Grant { token_url: endpoint.url().replace("https", "http"), ..grant(&endpoint) };
    let other_name = Grant { token_url: endpoint.url().replace("localhost", "127.0.0.1"), ..grant(&endpoint) };
    let proxied = |proxy: String| Grant { proxy_url: Some(Secret::new(proxy)), ..grant(&endpoint) };
    let through_metadata = proxied("http://u:canary@169.254.169.254:3128".into());
    for (grant, why) in [
        (untrusted, "TLS"),
        (metadata, "metadata addresses are refused"),
        (plain, "https://"),
        (other_name, "TLS"),
        (through_metadata, "metadata addresses are refused"),
    ] {
        let error = refresh(&grant, &tls).await.unwrap_err();
        let all = format!("{error} {}", error.detail().unwrap_or_default());
        assert!(all.contains(why) && !all.contains("rt-0") && !all.contains("canary"), "{all}");
        assert!(!all.contains("authClass"), "no way out that is none: {all}");
    }
    assert_eq!(endpoint.seen(), Vec::<String>::new(), "nothing was sent");
    assert_eq!(refresh(&grant(&endpoint), &tls).await.unwrap().access.expose(), "at-1");
}

/// Whoever may write a Connection reads what its status says, and must not learn from it what listens in the operator's network.
#[tokio::test]
async fn what_is_told_about_an_endpoint_is_the_same_for_open_and_closed_ports() {
    let plain = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let open = plain.local_addr().unwrap().port();
    tokio::spawn(async move { while plain.accept().await.is_ok() {} });
    let closed = {
        let gone = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        gone.local_addr().unwrap().port()
    };
    let endpoint = TokenEndpoint::start("rt-0", 3_600).await;
    let proxied = |port: u16| Grant { proxy_url: Some(Secret::new(format!("http://127.0.0.1:{port}"))), ..grant(&endpoint) };
    let direct = |port: u16| Grant { token_url: format!("https://localhost:{port}/oauth/token"), ..grant(&endpoint) };
    let tls = TlsConfigs::default();
    for (a, b) in [(direct(open), direct(closed)), (proxied(open), proxied(closed))] {
        let (a, b) = (refresh(&a, &tls).await.unwrap_err(), refresh(&b, &tls).await.unwrap_err());
        let words = |error: &RefreshError| error.to_string().replace(&open.to_string(), "PORT").replace(&closed.to_string(), "PORT");
        assert_eq!(words(&a), words(&b));
        assert_ne!(a.detail(), b.detail(), "the log tells them apart");
    }
}

#[tokio::test]
async fn a_refresh_token_that_another_process_has_just_sent_is_not_sent_again() {
    let endpoint = TokenEndpoint::start("rt-0", 3_600).await;
    let mut setup = setup();
    let sent = Tokens { asked: Some(EpochMs(now().0 - 10_000)), ..grant(&endpoint).tokens };
    *setup.keeper.tokens.lock().unwrap() = Some(sent);
    setup.refresher.set("team-a", vec![grant(&endpoint)]);
    setup.looked.recv().await.unwrap();
    // No answer has come within its time.
    setup.keeper.ahead.fetch_add(31_000, Ordering::Relaxed);
    setup.refresher.set("team-a", vec![grant(&endpoint)]);
    let begun = setup.kept.recv().await.unwrap();
    assert!(begun.asked.unwrap().since(now()) > 25_000, "not before: {begun:?}");
    assert_eq!((setup.issued().await.access.expose(), endpoint.seen().len()), ("at-1", 1));
    setup.stop.cancel();
}

#[tokio::test]
async fn an_endpoint_that_never_answers_holds_up_no_other() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = TokenEndpoint::start("rt-0", 3_600).await;
    let mut setup = setup();
    let mut stuck = Grant {
        connection: "stuck".into(),
        token_url: format!("https://localhost:{}/token", silent.local_addr().unwrap().port()),
        ..grant(&endpoint)
    };
    stuck.tokens.seed = "another".into();
    setup.refresher.set("team-a", vec![stuck, grant(&endpoint)]);
    let (asked, tokens) = tokio::join!(silent.accept(), setup.issued());
    assert_eq!((asked.is_ok(), tokens.access.expose()), (true, "at-1"));
    setup.stop.cancel();
}

#[tokio::test]
async fn a_refresher_that_is_dropped_leaves_nothing_running() {
    let endpoint = TokenEndpoint::start("rt-0", 3_600).await;
    endpoint.hold(true);
    let keeper = Arc::clone(&setup().keeper);
    let refresher = Refresher::new(Arc::clone(&keeper), QUICK, CancellationToken::new());
    refresher.set("team-a", vec![grant(&endpoint)]);
    let running = tokio::spawn(refresher.run());
    while endpoint.seen().is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    running.abort();
    let _ = running.await;
    // Its work had the keeper, long before the endpoint's time is over.
    let ended = async {
        while Arc::strong_count(&keeper) > 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), ended).await.unwrap();
}
