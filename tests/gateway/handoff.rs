//! A conversation goes on with another account: a summary is made when the first one has nearly used up its quota, told once, and forgotten.

use std::time::Duration;

use http_body_util::Full;
use omniroute::snapshot::{Handoff, Strategy};
use serde_json::{Value, json};

use crate::eventually::eventually;
use crate::support::{Got, Reply, Served, Setup, Vendor, request};

/// Provider `one` with the accounts a and b, and the combo `relay`.
async fn relay(change: impl FnOnce(&mut Handoff)) -> (Vendor, Served) {
    let vendor = Vendor::start().await;
    let mut options = Handoff { threshold_percent: 85, model: None, providers: vec!["one".to_owned()], max_messages: 30 };
    change(&mut options);
    let setup = Setup::new().provider("one", &vendor.base_url()).connection("one", "a", 1).connection("one", "b", 2).combo(
        "relay",
        Strategy::ContextRelay,
        &["one/m"],
    );
    let served = setup.change(|snapshot| {
        snapshot.combos[0].options.handoff = Some(options);
        // The only thing that is remembered of a session here is what it hands over.
        snapshot.settings.session_affinity_ttl_ms = 0;
    });
    (vendor, served.start())
}

/// An answer of an account that has so many of its 100 requests left.
fn answer(text: &str, left: u32) -> Reply {
    Reply::chat(text).header("x-ratelimit-limit-requests", 100).header("x-ratelimit-remaining-requests", left)
}

fn summary() -> Reply {
    answer(r#"Here: {"summary": "they ask <why>", "keyDecisions": ["be brief"]}"#, 10)
}

fn conversation(stream: bool) -> Value {
    json!({"model": "relay", "stream": stream, "messages": [{"role": "system", "content": "rules"}, {"role": "user", "content": "why?"}]})
}

async fn say(served: &Served, session: Option<&str>, stream: bool) -> Got {
    let body = conversation(stream);
    let mut asking = request("POST", "/v1/chat/completions", "client");
    if let Some(session) = session {
        asking = asking.header("x-session-id", session);
    }
    served.send(asking.body(Full::new(body.to_string().into())).unwrap()).await
}

/// Waits until so many changes of what sessions remember have happened.
async fn changes(served: &Served, wanted: u64) {
    eventually("the summary is kept", Duration::from_secs(20), async || served.gateway.sessions().version() >= wanted).await;
    assert_eq!(served.gateway.sessions().version(), wanted);
}

fn roles(body: &Value) -> Vec<&str> {
    body["messages"].as_array().unwrap().iter().map(|turn| turn["role"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn the_next_account_is_told_once() {
    let (vendor, served) = relay(|_| ()).await;
    let full = || Reply::error(429, "slow down").header("retry-after", 60);
    vendor.script("a", [answer("a", 10), summary(), answer("a", 9), full()]);
    assert_eq!(say(&served, Some("s"), false).await.content(), "a");
    changes(&served, 1).await;
    let asked = vendor.seen()[1].json();
    assert_eq!(
        (&asked["model"], &asked["max_tokens"], &asked["temperature"], &asked["stream"]),
        (&json!("m"), &json!(800), &json!(0.1), &json!(false))
    );
    assert!(asked["messages"][1]["content"].as_str().unwrap().ends_with("user: why?\n"), "{asked}");
    // The account that handed over knows it all, and no second summary is made.
    assert_eq!(say(&served, Some("s"), false).await.content(), "a");
    assert_eq!(roles(&vendor.seen()[2].json()), ["system", "user"]);
    // Another session and a request without one know nothing of it.
    assert_eq!(say(&served, Some("other"), false).await.content(), "b");
    assert_eq!(roles(&vendor.seen()[4].json()), ["system", "user"]);
    assert_eq!(say(&served, Some("s"), true).await.status, 200);
    let told = vendor.seen()[5].json();
    assert_eq!((vendor.seen()[5].key(), roles(&told)), ("b", vec!["system", "system", "user"]));
    let turn = told["messages"][0]["content"].as_str().unwrap();
    assert!(turn.contains("<summary>they ask &lt;why&gt;</summary>") && turn.contains("<item>be brief</item>"), "{turn}");
    changes(&served, 2).await;
    assert_eq!(say(&served, Some("s"), false).await.content(), "b");
    assert_eq!(roles(&vendor.seen()[6].json()), ["system", "user"]);
    assert_eq!(vendor.calls(), ["a", "a", "a", "a", "b", "b", "b"], "the answer to a summary is no conversation");
}

#[tokio::test]
async fn what_was_told_to_an_account_that_failed_is_told_again() {
    let (vendor, served) = relay(|_| ()).await;
    vendor.script("a", [answer("a", 10), summary(), Reply::error(429, "slow down").header("retry-after", 60)]);
    vendor.script("b", [Reply::error(400, "messages: at least one message is required"), Reply::chat("b")]);
    assert_eq!(say(&served, Some("s"), false).await.content(), "a");
    changes(&served, 1).await;
    assert_eq!(say(&served, Some("s"), false).await.status, 400);
    assert_eq!(say(&served, Some("s"), false).await.content(), "b");
    let told: Vec<usize> = vendor.seen()[3..].iter().map(|seen| roles(&seen.json()).len()).collect();
    assert_eq!((told, served.gateway.sessions().version()), (vec![3, 3], 2));
}

#[tokio::test]
async fn what_there_was_no_room_to_tell_is_told_later() {
    let (vendor, served) = relay(|_| ()).await;
    vendor.script("a", [answer("a", 10), summary(), Reply::error(429, "slow down").header("retry-after", 60)]);
    assert_eq!(say(&served, Some("s"), false).await.content(), "a");
    changes(&served, 1).await;
    let room = |bytes: usize| {
        let mut snapshot = (*served.gateway.config().unwrap().snapshot).clone();
        snapshot.settings.max_buffered_bytes = bytes as u64;
        served.gateway.load(snapshot, Vec::new()).unwrap();
    };
    // The request, and what it is with what was handed over, as another session's is told.
    let (body, with) = told_sizes().await;
    // Room for the request; for both, but not for reading the one while the other is made; for all of it.
    for bytes in [2 * body, 2 * body + with - 1, 2 * body + with] {
        room(bytes);
        assert_eq!(say(&served, Some("s"), false).await.content(), "b");
    }
    let told: Vec<usize> = vendor.seen()[3..].iter().map(|seen| roles(&seen.json()).len()).collect();
    assert_eq!((told, served.gateway.sessions().version()), (vec![2, 2, 3], 2));
}

/// How long the body of a request is, and that of one which tells the summary.
async fn told_sizes() -> (usize, usize) {
    let (vendor, served) = relay(|_| ()).await;
    vendor.script("a", [answer("a", 10), summary(), Reply::error(429, "slow down").header("retry-after", 60)]);
    assert_eq!(say(&served, Some("s"), false).await.content(), "a");
    changes(&served, 1).await;
    assert_eq!(say(&served, Some("s"), false).await.content(), "b");
    let seen = vendor.seen();
    (conversation(false).to_string().len(), seen[3].body.len() + "relay".len() - "m".len())
}

#[tokio::test]
async fn a_summary_is_made_only_where_it_is_wanted() {
    // Enough left, nothing left, no session: none of these asks for one; the last one does.
    let (vendor, served) = relay(|_| ()).await;
    vendor.script("a", [answer("1", 16), answer("2", 5), answer("3", 10), answer("4", 10), summary()]);
    for (text, session) in [("1", Some("s")), ("2", Some("s")), ("3", None), ("4", Some("s"))] {
        assert_eq!(say(&served, session, false).await.content(), text);
    }
    changes(&served, 1).await;
    assert_eq!(vendor.calls().len(), 5);
    assert!(vendor.seen()[4].json()["messages"][0]["content"].as_str().unwrap().contains("hand a conversation over"));
    // A provider that is not in the list hands nothing over, however little is left.
    let (vendor, served) = relay(|options| options.providers = vec!["codex".to_owned()]).await;
    vendor.script("a", [answer("1", 10)]);
    for _ in 0..3 {
        assert_eq!(say(&served, Some("s"), false).await.content(), "1");
    }
    assert_eq!((vendor.calls().len(), served.gateway.sessions().version()), (3, 0));
}

#[tokio::test]
async fn another_model_may_write_it_and_refuse_the_settings() {
    let (vendor, served) = relay(|options| options.model = Some(("one".to_owned(), "scribe".to_owned()))).await;
    vendor.script("a", [answer("a", 10), Reply::error(400, "Unsupported parameter: temperature"), summary()]);
    vendor.script("b", [summary()]);
    assert_eq!(say(&served, Some("s"), false).await.content(), "a");
    changes(&served, 1).await;
    let asked: Vec<Value> = vendor.seen()[1..].iter().map(crate::support::Seen::json).collect();
    assert_eq!(asked.iter().map(|body| body["model"].clone()).collect::<Vec<_>>(), ["scribe", "scribe"]);
    assert_eq!((asked[0].get("temperature").is_some(), asked[1].get("temperature")), (true, None));
}

#[tokio::test]
async fn what_is_no_summary_is_asked_for_again_with_the_next_answer() {
    let (vendor, served) = relay(|_| ()).await;
    vendor.script("a", [answer("1", 10), answer("I cannot do that", 10), answer("2", 10), summary()]);
    assert_eq!(say(&served, Some("s"), false).await.content(), "1");
    vendor.called(2).await;
    // The refusal is read beside the requests: one of the next answers asks again.
    let again = async {
        while served.gateway.sessions().version() == 0 {
            assert_eq!(say(&served, Some("s"), false).await.status, 200);
        }
    };
    tokio::time::timeout(Duration::from_secs(20), again).await.expect("the summary is kept");
}
