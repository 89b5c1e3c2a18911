//! One request, several calls: panels with a judge and pipelines of steps, on real sockets.

use std::time::Duration;

use omniroute::snapshot::{Combo, Fusion, Strategy, Target, TargetKind};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio::sync::oneshot;

use crate::support::{Reply, Served, Setup, Vendor};

/// Four vendors `one` to `four`, each with one connection `a` to `d`.
async fn vendors() -> (Vec<Vendor>, Setup) {
    let mut setup = Setup::new();
    let mut all = Vec::new();
    for (name, key) in [("one", "a"), ("two", "b"), ("three", "c"), ("four", "d")] {
        let vendor = Vendor::start().await;
        setup = setup.provider(name, &vendor.base_url()).connection(name, key, 1);
        all.push(vendor);
    }
    (all, setup)
}

fn change(setup: Setup, combo: &str, change: impl FnOnce(&mut Combo)) -> Setup {
    setup.change(|snapshot| change(snapshot.combos.iter_mut().find(|c| c.name == combo).unwrap()))
}

/// A panel of one/m, two/m, three/m.
fn panel(setup: Setup, options: Fusion) -> Setup {
    change(setup.combo("panel", Strategy::Fusion, &["one/m", "two/m", "three/m"]), "panel", |combo| {
        combo.attempts.retry_delay_ms = 0;
        combo.options.fusion = Some(options);
    })
}

fn judged_by_four() -> Fusion {
    Fusion { judge: Some(("four".to_owned(), "judge".to_owned())), min_panel: 3, ..Fusion::default() }
}

fn calls(vendors: &[Vendor]) -> Vec<usize> {
    vendors.iter().map(|vendor| vendor.calls().len()).collect()
}

fn last_turn(body: &Value) -> String {
    body["messages"].as_array().unwrap().last().unwrap()["content"].as_str().unwrap().to_owned()
}

async fn ask(served: &Served, extra: Value) -> crate::support::Got {
    let mut body = json!({"model": "panel", "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "why?"}]});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    served.post("/v1/chat/completions", &body).await
}

#[tokio::test]
async fn a_panel_is_asked_at_once_and_the_judge_writes_the_answer() {
    let (vendors, setup) = vendors().await;
    let served = panel(setup, judged_by_four()).start();
    let got = ask(&served, json!({"temperature": 0.5})).await;
    assert_eq!(got.content(), "d");
    assert_eq!(got.header("x-omniroute-decision"), Some("strategy=Fusion; target=four/judge; connection=d; attempts=4"));
    assert_eq!(calls(&vendors), [1, 1, 1, 1]);
    let asked = vendors[0].seen()[0].json();
    assert_eq!((&asked["model"], &asked["temperature"], last_turn(&asked).as_str()), (&json!("m"), &json!(0.5), "why?"));
    let judged = vendors[3].seen()[0].json();
    assert_eq!((judged["model"].as_str(), judged["messages"].as_array().unwrap().len()), (Some("judge"), 3));
    let turn = last_turn(&judged);
    let at = |text: &str| turn.find(text).unwrap_or_else(|| panic!("{text}: {turn}"));
    let order = ["<source number=\"1\">\na\n", "<source number=\"2\">\nb\n", "<source number=\"3\">\nc\n"].map(at);
    assert!(order.is_sorted() && !turn.contains("one/m"), "{turn}");
    let metrics = served.manage("GET", "/api/combos/metrics?combo=panel", "").await.json();
    assert_eq!((&metrics["totalRequests"], &metrics["totalSuccesses"]), (&json!(1), &json!(1)), "{metrics}");
    assert_eq!(metrics["byTarget"]["two/m"]["successes"], 1);
}

#[tokio::test]
async fn a_stream_is_the_judges_and_the_panel_never_streams() {
    let (vendors, setup) = vendors().await;
    let served = panel(setup, judged_by_four()).start();
    let got = ask(&served, json!({"stream": true, "stream_options": {"include_usage": true}})).await;
    assert_eq!((got.status, got.body), (200, Reply::chat_stream("d").body.into()));
    let asked = vendors[1].seen()[0].json();
    assert_eq!((asked["stream"].as_bool(), asked.get("stream_options")), (Some(false), None));
    let judged = vendors[3].seen()[0].json();
    assert_eq!((judged["stream"].as_bool(), &judged["stream_options"]), (Some(true), &json!({"include_usage": true})));
}

#[tokio::test]
async fn tools_go_to_the_judge_alone() {
    let (vendors, setup) = vendors().await;
    let served = panel(setup.clone(), judged_by_four()).start();
    let tools = json!([{"type": "function", "function": {"name": "f"}}]);
    assert_eq!(ask(&served, json!({"tools": tools})).await.content(), "d");
    assert_eq!(calls(&vendors), [0, 0, 0, 1]);
    assert_eq!(vendors[3].seen()[0].json()["tools"], tools);
    // Tools that must not be called do not keep the panel away, and do not reach it.
    assert_eq!(ask(&served, json!({"tools": tools, "tool_choice": "none"})).await.content(), "d");
    assert_eq!(calls(&vendors), [1, 1, 1, 2]);
    assert!(vendors[0].seen()[0].json().get("tools").is_none());
    assert_eq!(vendors[3].seen()[1].json()["tools"], tools);
    // Without a judge the first target is meant.
    let served = panel(setup, Fusion::default()).start();
    assert_eq!(ask(&served, json!({"tools": tools})).await.content(), "a");
    assert_eq!(calls(&vendors), [2, 1, 1, 2]);
}

#[tokio::test]
async fn one_call_only_is_one_call() {
    let (vendors, setup) = vendors().await;
    let served = panel(setup, judged_by_four()).start();
    let body = json!({"model": "panel", "messages": []}).to_string();
    let request = crate::support::request("POST", "/v1/chat/completions", "client").header("x-omniroute-fallback", "none");
    let got = served.send(request.body(http_body_util::Full::new(body.into())).unwrap()).await;
    assert_eq!((got.content().as_str(), calls(&vendors)), ("a", vec![1, 0, 0, 0]));
}

/// A vendor that reads a request and never answers; it tells when the caller has closed.
async fn silent() -> (String, oneshot::Receiver<()>, oneshot::Receiver<()>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    let (asked, was_asked) = oneshot::channel();
    let (closed, was_closed) = oneshot::channel();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut buffer = [0; 4096];
        let first = stream.read(&mut buffer).await.unwrap();
        assert!(first > 0);
        let _ = asked.send(());
        while stream.read(&mut buffer).await.is_ok_and(|n| n > 0) {}
        let _ = closed.send(());
    });
    (url, was_asked, was_closed)
}

/// The third voice of the panel never answers.
fn third_is(setup: Setup, url: &str) -> Setup {
    setup.change(|snapshot| snapshot.providers.iter_mut().find(|p| p.name == "three").unwrap().base_url = url.to_owned())
}

#[tokio::test]
async fn a_straggler_is_dropped_and_its_call_is_cancelled() {
    let (vendors, setup) = vendors().await;
    let (url, asked, closed) = silent().await;
    let options = Fusion { min_panel: 2, straggler_grace_ms: 50, ..judged_by_four() };
    let served = panel(third_is(setup, &url), options).start();
    let got = ask(&served, json!({})).await;
    assert_eq!(got.content(), "d");
    asked.await.unwrap();
    tokio::time::timeout(Duration::from_secs(20), closed).await.expect("the vendor sees the close").unwrap();
    let turn = last_turn(&vendors[3].seen()[0].json());
    assert!(turn.contains("<source number=\"2\">\nb\n") && !turn.contains("<source number=\"3\">"), "{turn}");
    assert_eq!(served.connection("c").await["state"], "Active", "nobody is blamed for being slow");
}

#[tokio::test]
async fn a_client_that_leaves_takes_the_panel_with_it() {
    let (_vendors, setup) = vendors().await;
    let (url, asked, closed) = silent().await;
    let served = panel(third_is(setup, &url), judged_by_four()).start();
    let waiting = async {
        let _ = ask(&served, json!({})).await;
    };
    tokio::select! {
        () = waiting => panic!("nobody answers"),
        asked = asked => asked.unwrap(),
    }
    tokio::time::timeout(Duration::from_secs(20), closed).await.expect("the vendor sees the close").unwrap();
}

#[tokio::test]
async fn a_lone_survivor_is_not_asked_twice() {
    let (vendors, setup) = vendors().await;
    for (vendor, key) in [(&vendors[0], "a"), (&vendors[2], "c")] {
        vendor.script(key, [Reply::error(500, "broken")]);
    }
    let served = panel(setup.clone(), Fusion::default()).start();
    let got = ask(&served, json!({})).await;
    assert_eq!(got.content(), "b");
    assert!(got.header("x-omniroute-decision").unwrap().starts_with("strategy=Fusion; target=two/m; connection=b; attempts="));
    assert_eq!(vendors[1].calls().len(), 1);
    // The client that wants a stream gets one.
    let served = panel(setup.clone(), Fusion::default()).start();
    let got = ask(&served, json!({"stream": true})).await;
    assert_eq!((got.status, got.header("content-type")), (200, Some("text/event-stream")));
    assert!(got.text().contains("\"content\":\"b\"") && got.text().ends_with("data: [DONE]\n\n"), "{}", got.text());
    assert_eq!(vendors[1].calls().len(), 2);
    // Where its answer has not the shape that the client asked for, it is asked itself.
    let served = panel(setup.clone(), Fusion::default()).start();
    assert_eq!(ask(&served, json!({"n": 2})).await.content(), "b");
    assert_eq!((vendors[1].calls().len(), &vendors[1].seen()[3].json()["n"]), (4, &json!(2)));
    // A judge that is named judges one answer as well.
    let served = panel(setup, Fusion { min_panel: 2, ..judged_by_four() }).start();
    assert_eq!(ask(&served, json!({})).await.content(), "d");
}

#[tokio::test]
async fn without_a_judge_the_first_that_answered_judges() {
    let (vendors, setup) = vendors().await;
    vendors[0].script("a", [Reply::error(500, "broken")]);
    let served = panel(setup, Fusion::default()).start();
    let got = ask(&served, json!({})).await;
    assert_eq!(got.content(), "b");
    let seen = vendors[1].seen();
    assert_eq!((seen.len(), seen[1].json()["messages"].as_array().unwrap().len()), (2, 3));
    assert!(last_turn(&seen[1].json()).contains("<source number=\"2\">\nc\n"));
}

#[tokio::test]
async fn when_nobody_answers_each_reason_is_told() {
    let (vendors, setup) = vendors().await;
    let (url, _asked, closed) = silent().await;
    vendors[0].script("a", [Reply::error(500, "broken")]);
    vendors[1].script("b", [Reply::chat("")]);
    let served = panel(third_is(setup, &url), Fusion { timeout_ms: 1_000, ..judged_by_four() }).start();
    let got = ask(&served, json!({})).await;
    assert_eq!((got.status, got.code().as_str()), (503, "fusion_panel_failed"), "{}", got.text());
    let message = got.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.ends_with("one/m=status_500, two/m=empty_content, three/m=timeout"), "{message}");
    assert_eq!(got.header("x-omniroute-combo-terminal-reason"), Some("fusion_panel_failed"));
    assert_eq!(got.header("x-omniroute-combo-pool-size"), Some("3"));
    assert!(vendors[3].calls().is_empty(), "there is nothing to judge");
    closed.await.unwrap();
}

#[tokio::test]
async fn a_panel_that_rests_answers_like_every_other_combo() {
    let (vendors, setup) = vendors().await;
    for (vendor, key, wait) in [(&vendors[0], "a", 50), (&vendors[1], "b", 20), (&vendors[2], "c", 90)] {
        vendor.script(key, [Reply::error(429, "slow down").header("retry-after", wait)]);
    }
    let served = panel(setup, judged_by_four()).start();
    let first = ask(&served, json!({})).await;
    assert_eq!((first.status, first.code().as_str()), (503, "fusion_panel_failed"), "{}", first.text());
    let second = ask(&served, json!({})).await;
    assert_eq!(second.status, 429, "{}", second.text());
    for got in [&first, &second] {
        let wait: u64 = got.header("retry-after").unwrap().parse().unwrap();
        assert!((15..=20).contains(&wait), "{wait}");
    }
    assert_eq!(calls(&vendors), [1, 1, 1, 0]);
}

#[tokio::test]
async fn a_wrong_request_and_dead_accounts_are_told_as_such() {
    let (vendors, setup) = vendors().await;
    let wrong = Reply::error(400, "messages: at least one message is required");
    for (vendor, key) in vendors.iter().zip(["a", "b", "c"]) {
        vendor.script(key, [wrong.clone()]);
    }
    let served = panel(setup.clone(), judged_by_four()).start();
    let got = ask(&served, json!({})).await;
    assert_eq!((got.status, got.text()), (400, wrong.body));
    for (vendor, key) in vendors.iter().zip(["a", "b", "c"]) {
        vendor.script(key, [Reply::error(401, "your API key was revoked")]);
    }
    let served = panel(setup, judged_by_four()).start();
    let got = ask(&served, json!({})).await;
    assert_eq!(
        (got.status, got.code().as_str(), got.header("x-should-retry")),
        (503, "ALL_ACCOUNTS_INACTIVE", Some("false")),
        "{}",
        got.text()
    );
}

#[tokio::test]
async fn a_panel_of_the_wrong_size_calls_nobody() {
    let (vendors, setup) = vendors().await;
    let served = panel(setup.clone(), Fusion { max_panel: 2, ..judged_by_four() }).start();
    let got = ask(&served, json!({})).await;
    assert_eq!((got.status, got.code().as_str()), (400, "fusion_panel_size"));
    assert_eq!(calls(&vendors), [0, 0, 0, 0]);
    // One target alone is a plain call.
    let served = setup.combo("panel", Strategy::Fusion, &["two/m"]).start();
    assert_eq!(ask(&served, json!({"stream": true})).await.body, Reply::chat_stream("b").body);
    assert_eq!(calls(&vendors), [0, 1, 0, 0]);
}

#[tokio::test]
async fn a_combo_in_a_panel_is_one_voice_with_its_own_failover() {
    let (vendors, setup) = vendors().await;
    vendors[0].script("a", [Reply::error(500, "broken")]);
    let nested = |name: &str| Target {
        name: name.to_owned(),
        kind: TargetKind::Combo { combo: name.to_owned() },
        weight: 1,
        fallback_only_on_quota_exhaustion: false,
        prompt: None,
    };
    let setup = setup
        .combo("pair", Strategy::Priority, &["one/m", "two/m"])
        .combo("chain", Strategy::Pipeline, &["two/x", "three/y"])
        .combo("panel", Strategy::Fusion, &[]);
    let setup = change(setup, "panel", |combo| {
        combo.targets = vec![nested("pair"), nested("chain")];
        combo.options.fusion = Some(judged_by_four());
    });
    let served = setup.start();
    let got = ask(&served, json!({})).await;
    assert_eq!(got.content(), "d");
    assert_eq!(got.header("x-omniroute-decision"), Some("strategy=Fusion; target=four/judge; connection=d; attempts=5"));
    assert_eq!(calls(&vendors), [1, 2, 1, 1]);
    let turn = last_turn(&vendors[3].seen()[0].json());
    assert!(turn.contains("<source number=\"1\">\nb\n") && turn.contains("<source number=\"2\">\nc\n"), "{turn}");
}

/// A pipeline of one/m, two/m, three/m with prompts.
fn chain(setup: Setup) -> Setup {
    change(setup.combo("panel", Strategy::Pipeline, &["one/m", "two/m", "three/m"]), "panel", |combo| {
        combo.attempts.retry_delay_ms = 0;
        for (target, prompt) in combo.targets.iter_mut().zip([Some("draft"), None, Some("polish")]) {
            target.prompt = prompt.map(str::to_owned);
        }
    })
}

fn turns(body: &Value) -> Vec<(String, String)> {
    let text = |turn: &Value, name: &str| turn[name].as_str().unwrap().to_owned();
    body["messages"].as_array().unwrap().iter().map(|turn| (text(turn, "role"), text(turn, "content"))).collect()
}

fn said(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(role, text)| ((*role).to_owned(), (*text).to_owned())).collect()
}

#[tokio::test]
async fn each_step_works_on_the_answer_before_it() {
    let (vendors, setup) = vendors().await;
    let served = chain(setup).start();
    let tools = json!([{"type": "function", "function": {"name": "f"}}]);
    let got = ask(&served, json!({"stream": true, "tools": tools})).await;
    assert_eq!((got.status, got.body.clone()), (200, Reply::chat_stream("c").body.into()));
    assert_eq!(got.header("x-omniroute-decision"), Some("strategy=Pipeline; target=three/m; connection=c; attempts=3"));
    let bodies: Vec<Value> = vendors[..3].iter().map(|vendor| vendor.seen()[0].json()).collect();
    assert_eq!(turns(&bodies[0]), said(&[("system", "be brief"), ("system", "draft"), ("user", "why?")]));
    assert_eq!(turns(&bodies[1]), said(&[("user", "a")]));
    assert_eq!(turns(&bodies[2]), said(&[("system", "polish"), ("user", "b")]));
    let streams: Vec<Option<bool>> = bodies.iter().map(|body| body["stream"].as_bool()).collect();
    assert_eq!(streams, [Some(false), Some(false), Some(true)]);
    assert_eq!(bodies.iter().map(|body| body.get("tools").is_some()).collect::<Vec<_>>(), [false, false, true]);
}

#[tokio::test]
async fn other_dialects_have_panels_and_pipelines_too() {
    let (vendors, setup) = vendors().await;
    let message = |text: &str| json!({"id": "m", "type": "message", "role": "assistant", "content": [{"type": "text", "text": text}], "stop_reason": "end_turn", "usage": {}});
    let response = |text: &str| json!({"id": "r", "status": "completed", "output": [{"type": "message", "content": [{"type": "output_text", "text": text}]}]});
    let served = chain(setup).start();
    for (vendor, key) in vendors.iter().zip(["a", "b", "c"]) {
        vendor.script(key, [Reply::new(200, message(key)), Reply::new(200, response(key))]);
    }
    let body = json!({"model": "panel", "max_tokens": 9, "system": "be brief", "messages": [{"role": "user", "content": "why?"}]});
    let got = served.post("/v1/messages", &body).await;
    assert_eq!((got.status, &got.json()["content"][0]["text"]), (200, &json!("c")), "{}", got.text());
    assert_eq!(vendors[0].seen()[0].json()["system"], "be brief\n\ndraft");
    assert_eq!(vendors[1].seen()[0].json(), json!({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "a"}]}));
    let got = served.post("/v1/responses", &json!({"model": "panel", "input": "why?"})).await;
    assert_eq!((got.status, &got.json()["output"][0]["content"][0]["text"]), (200, &json!("c")), "{}", got.text());
    assert_eq!(vendors[2].seen()[1].json(), json!({"model": "m", "instructions": "polish", "input": [{"role": "user", "content": "b"}]}));
}

#[tokio::test]
async fn a_step_is_repeated_after_a_limit_and_then_goes_on() {
    let (vendors, setup) = vendors().await;
    vendors[0].script("a", [Reply::error(429, "slow down"), Reply::chat("a")]);
    let served = chain(setup).start();
    assert_eq!(ask(&served, json!({})).await.content(), "c");
    assert_eq!(calls(&vendors), [2, 1, 1, 0]);
}

#[tokio::test]
async fn a_step_that_fails_is_named_and_nothing_comes_after_it() {
    for (reply, status, cause) in [
        (Reply::error(500, "out of order"), 500, "out of order"),
        (Reply::error(429, "slow down").header("retry-after", 30), 429, "slow down"),
        (Reply::error(401, "your API key was revoked"), 503, ""),
        (Reply::chat(""), 502, "no content"),
    ] {
        let (vendors, setup) = vendors().await;
        vendors[1].script("b", [reply]);
        let served = chain(setup).start();
        let got = ask(&served, json!({})).await;
        assert_eq!((got.status, got.code().as_str()), (status, "pipeline_step_failed"), "{}", got.text());
        let error = got.json()["error"].clone();
        let message = error["message"].as_str().unwrap();
        assert!(message.starts_with("Pipeline step 2 failed (two/m): ") && message.contains(cause), "{message}");
        assert_eq!((&error["step"], got.header("retry-after").is_some()), (&json!(2), status != 503), "{:?}", got.headers);
        assert_eq!(vendors[2].calls().len(), 0);
    }
}

#[tokio::test]
async fn all_calls_of_a_request_share_one_budget() {
    let (vendors, setup) = vendors().await;
    for (vendor, key) in vendors.iter().zip(["a", "b", "c"]) {
        vendor.script(key, [Reply::error(500, "broken")]);
    }
    let setup = setup.connection("one", "a2", 2).connection("two", "b2", 2);
    vendors[0].script("a2", [Reply::error(500, "broken")]);
    vendors[1].script("b2", [Reply::error(500, "broken")]);
    let served = change(panel(setup, judged_by_four()), "panel", |combo| combo.attempts.max = 1).start();
    assert_eq!(ask(&served, json!({})).await.status, 503);
    assert_eq!(calls(&vendors), [1, 1, 1, 0], "each voice is asked once, and no second account");
}

#[tokio::test]
async fn what_a_composed_request_reads_for_itself_counts_as_held() {
    let long = json!({"user": "x".repeat(20_000)});
    for with in [|setup| panel(setup, judged_by_four()), chain as fn(Setup) -> Setup] {
        for (room, served) in [(50_000, false), (70_000, true)] {
            let (vendors, setup) = vendors().await;
            let gateway = with(setup).change(|s| s.settings.max_buffered_bytes = room).start();
            let got = ask(&gateway, long.clone()).await;
            if served {
                assert_eq!(got.status, 200, "{}", got.text());
            } else {
                // The body, and the conversation in it: no room is left for what is to be asked.
                assert_eq!((got.status, got.code().as_str(), got.header("retry-after")), (503, "admission_queue_full", Some("1")));
                assert_eq!(calls(&vendors), [0; 4]);
            }
            assert_eq!(gateway.chat("one/m").await.status, 200, "the memory came back");
        }
    }
}

#[tokio::test]
async fn without_room_for_a_judge_that_nobody_named_one_voice_is_the_answer() {
    // Held are the request (20 kB), the answers of the panel, and what a judge would be asked; the last one does not fit.
    let long = |extra: Value| {
        let mut body = json!({"user": "x".repeat(20_000)});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        body
    };
    let said = |letter: &str| letter.repeat(6_000);
    let tight = async |options: Fusion| {
        let (vendors, setup) = vendors().await;
        for (vendor, key) in vendors.iter().zip(["a", "b", "c"]) {
            vendor.script(key, [Reply::chat(&said(key))]);
        }
        (vendors, panel(setup, options).change(|s| s.settings.max_buffered_bytes = 75_000).start())
    };
    for stream in [false, true] {
        let (vendors, served) = tight(Fusion { min_panel: 3, ..Fusion::default() }).await;
        let got = ask(&served, long(json!({"stream": stream}))).await;
        assert_eq!(got.status, 200, "{}", got.text());
        assert!(got.text().contains(&said("a")), "the first one");
        assert_eq!(calls(&vendors), [1, 1, 1, 0]);
    }
    // The shape that only the model itself can give: it is asked with the request as it is held.
    let (vendors, served) = tight(Fusion { min_panel: 3, ..Fusion::default() }).await;
    assert_eq!(ask(&served, long(json!({"n": 2}))).await.status, 200);
    assert_eq!((calls(&vendors), &vendors[0].seen()[1].json()["n"]), (vec![2, 1, 1, 0], &json!(2)));
    // A judge that is named has the last word, or nobody.
    let (vendors, served) = tight(Fusion { min_panel: 3, ..judged_by_four() }).await;
    let got = ask(&served, long(json!({}))).await;
    assert_eq!((got.status, got.code().as_str(), calls(&vendors)), (503, "admission_queue_full", vec![1, 1, 1, 0]));
}

#[tokio::test]
async fn checks_of_the_answer_concern_the_panel_and_the_last_step() {
    let (vendors, setup) = vendors().await;
    let checks = |combo: &mut Combo| combo.validate_response.forbidden = vec!["bad".to_owned()];
    vendors[1].script("b", [Reply::chat("bad")]);
    let served = change(chain(setup.clone()), "panel", checks).start();
    assert_eq!(ask(&served, json!({})).await.content(), "c", "what a step says is not what the client gets");
    let served = change(panel(setup, judged_by_four()), "panel", checks).start();
    assert_eq!(ask(&served, json!({})).await.content(), "d");
    let turn = last_turn(&vendors[3].seen()[0].json());
    assert!(turn.contains("<source number=\"2\">\nc\n") && !turn.contains("bad"), "{turn}");
}
