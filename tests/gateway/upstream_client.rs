//! The upstream client and the relay against real sockets on loopback.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use http_body_util::BodyExt;
use omniroute::classify::{AuthClass, TransportError};
use omniroute::cli::fake::{Answer, FakeUpstream, FaultKind, Match, Outcome, Rule, Script};
use omniroute::dial::tls::TlsConfigs;
use omniroute::gateway::admission::Buffers;
use omniroute::gateway::relay::{Hooks, Opened, StreamBody, StreamEnd, StreamOutcome, StreamPolicy, open_stream};
use omniroute::gateway::upstream::{Call, Client, Collected, PoolLimits, SendError, Upstream, UpstreamBody, collect};
use omniroute::protocol::scan::{RequestHead, scan_request, splice_model};
use omniroute::protocol::{Dialect, Endpoint};
use omniroute::snapshot::{Connection, Provider, Secret, Timeouts};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const LONG: Duration = Duration::from_secs(20);

fn provider(base_url: &str) -> Provider {
    Provider {
        name: "p".into(),
        base_url: base_url.into(),
        dialects: vec![Dialect::ChatCompletions, Dialect::Responses, Dialect::Messages, Dialect::Embeddings],
        ..Provider::default()
    }
}

fn connection() -> Connection {
    Connection { name: "c".into(), provider: "p".into(), credential: Some(Secret::new("sk-a")), ..Connection::default() }
}

fn upstream(base_url: &str) -> Upstream {
    Upstream::new(&provider(base_url), &connection(), &TlsConfigs::default()).expect("upstream")
}

async fn send(client: &Client, upstream: &Upstream, body: &'static str) -> Result<http::Response<UpstreamBody>, SendError> {
    let call = Call {
        endpoint: Endpoint::ChatCompletions,
        headers: &HeaderMap::new(),
        body: Bytes::from_static(body.as_bytes()).into(),
        response_start: LONG,
        extra: None,
    };
    client.send(upstream, call).await
}

async fn whole(response: http::Response<UpstreamBody>) -> Bytes {
    match collect(response.into_body(), 1 << 20, LONG, &Buffers::default()).await.expect("body") {
        Collected::Whole { bytes, .. } => bytes,
        Collected::TooLarge { .. } => panic!("too large"),
    }
}

async fn fake(rules: Vec<Rule>) -> FakeUpstream {
    FakeUpstream::start("127.0.0.1:0", Script { rules, ..Script::default() }).await.expect("fake")
}

fn rule(answer: Answer) -> Vec<Rule> {
    vec![Rule::new("r", Match::default(), answer)]
}

const CHAT: &str = r#"{"model":"m","messages":[{"role":"user","content":"hi"}]}"#;
const CHAT_STREAM: &str = r#"{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}"#;

#[tokio::test]
async fn a_request_arrives_with_the_providers_credential_and_listed_headers_only() {
    let fake = fake(vec![]).await;
    let mut headers = HeaderMap::new();
    for (name, value) in [
        ("authorization", "Bearer client"),
        ("cookie", "a=b"),
        ("x-omniroute-session", "s"),
        ("x-session-id", "s"),
        ("idempotency-key", "k"),
        ("x-forwarded-for", "1.1.1.1"),
    ] {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    let body = Bytes::from_static(b" {\"stream\" : false, \"model\":\"combo\" ,\"messages\":[]}\n");
    let head = scan_request(&body).expect("scan");
    let call = Call {
        endpoint: Endpoint::ChatCompletions,
        headers: &headers,
        body: splice_model(&body, &head, "gpt-5.2"),
        response_start: LONG,
        extra: None,
    };
    let response = Client::default().send(&upstream(&fake.base_url()), call).await.expect("answer");
    assert_eq!(response.status(), 200);
    whole(response).await;
    let seen = fake.requests().pop().expect("request");
    assert_eq!(
        (seen.path.as_str(), seen.key.as_str(), seen.body.as_str()),
        ("/v1/chat/completions", "sk-a", " {\"stream\" : false, \"model\":\"gpt-5.2\" ,\"messages\":[]}\n")
    );
    let names: Vec<&str> = seen.headers.keys().map(String::as_str).collect();
    assert_eq!(names, ["accept-encoding", "authorization", "content-length", "content-type", "host", "idempotency-key", "user-agent"]);
    assert_eq!((seen.headers["accept-encoding"].as_str(), seen.headers["host"].clone()), ("identity", fake.addr().to_string()));
}

#[tokio::test]
async fn every_endpoint_has_its_path_and_a_good_answer() {
    let fake = fake(vec![]).await;
    let (client, up) = (Client::default(), upstream(&fake.base_url()));
    for endpoint in Endpoint::ALL {
        let call = Call {
            endpoint,
            headers: &HeaderMap::new(),
            body: Bytes::from_static(br#"{"model":"m","input":"x"}"#).into(),
            response_start: LONG,
            extra: None,
        };
        let body = whole(client.send(&up, call).await.expect("answer")).await;
        let expect = omniroute::protocol::quality::Expectations { validate: &Default::default(), empty_stop_is_valid: false };
        omniroute::protocol::quality::check_answer(endpoint, Some("application/json"), &body, expect).expect("good answer");
    }
    let paths: Vec<String> = fake.requests().into_iter().map(|r| r.path).collect();
    assert_eq!(paths, ["/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens", "/v1/embeddings"]);
}

/// Counts connections in front of a fake upstream: everything is passed through.
async fn counting(target: std::net::SocketAddr) -> (String, Arc<Mutex<usize>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let base = format!("http://{}/v1", listener.local_addr().expect("addr"));
    let count = Arc::new(Mutex::new(0));
    let counter = Arc::clone(&count);
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            *counter.lock().expect("lock") += 1;
            tokio::spawn(async move {
                let mut server = TcpStream::connect(target).await.expect("connect");
                let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
            });
        }
    });
    (base, count)
}

#[tokio::test]
async fn connections_are_reused_after_answers_of_every_kind() {
    let fake = fake(vec![]).await;
    let (base, count) = counting(fake.addr()).await;
    let (client, up) = (Client::default(), upstream(&base));
    for answer in [Answer::default(), Answer::status(429), Answer::status(204).body(""), Answer::default()] {
        fake.set_script(Script { rules: rule(answer), ..Script::default() });
        whole(send(&client, &up, CHAT).await.expect("answer")).await;
        let stream = send(&client, &up, CHAT_STREAM).await.expect("answer");
        stream.into_body().collect().await.expect("body");
    }
    assert_eq!((*count.lock().expect("lock"), fake.requests().len()), (1, 8));
}

#[tokio::test]
async fn a_reused_connection_that_died_is_replaced_once() {
    let fake = fake(vec![]).await;
    let (client, up) = (Client::default(), upstream(&fake.base_url()));
    whole(send(&client, &up, CHAT).await.expect("first")).await;
    // It dies when the next request is already on its way.
    fake.push_rule(Rule::new("die", Match::default(), Answer::fault(FaultKind::Close, 0)).times(1));
    let response = send(&client, &up, CHAT).await.expect("replayed");
    assert_eq!(response.status(), 200);
    whole(response).await;
    assert_eq!(fake.requests().iter().map(|r| r.outcome).collect::<Vec<_>>(), [Outcome::Answered, Outcome::Fault, Outcome::Answered]);
    // It dies while it is idle.
    fake.drop_connections();
    whole(send(&client, &up, CHAT).await.expect("fresh")).await;
    // A fresh connection that dies is a failure.
    fake.set_script(Script { rules: rule(Answer::fault(FaultKind::Close, 0)), ..Script::default() });
    let error = send(&Client::default(), &up, CHAT).await.expect_err("dead");
    assert_eq!((error.transport, error.via_proxy), (TransportError::Reset, false));
    // So is a second death in a row.
    let before = fake.requests().len();
    assert_eq!(send(&client, &up, CHAT).await.expect_err("dead").transport, TransportError::Reset);
    assert_eq!(fake.requests().len() - before, 2);
}

#[tokio::test]
async fn a_connection_that_breaks_within_the_answer_is_not_replayed() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let base = format!("http://{}/v1", listener.local_addr().expect("addr"));
    let accepted = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.expect("accept");
        let mut buffer = vec![0; 4096];
        assert_ne!(socket.read(&mut buffer).await.expect("read"), 0);
        socket.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await.expect("write");
        assert_ne!(socket.read(&mut buffer).await.expect("read"), 0);
        socket.write_all(b"HTTP/1.1 20").await.expect("write");
        drop(socket);
        tokio::time::timeout(Duration::from_millis(300), listener.accept()).await.is_ok()
    });
    let (client, up) = (Client::default(), upstream(&base));
    whole(send(&client, &up, CHAT).await.expect("first")).await;
    assert_eq!(send(&client, &up, CHAT).await.expect_err("broken").transport, TransportError::Reset);
    assert!(!accepted.await.expect("server"), "no second connection");
}

#[tokio::test]
async fn failures_have_their_kinds() {
    let fake = fake(rule(Answer::fault(FaultKind::Hang, 0))).await;
    let closed = TcpListener::bind("127.0.0.1:0").await.expect("bind").local_addr().expect("addr");
    let client = Client::default();
    let error = send(&client, &upstream(&format!("http://{closed}/v1")), CHAT).await.expect_err("refused");
    assert_eq!(error.transport, TransportError::Connect);
    let error = send(&client, &upstream("http://no-such-host.invalid/v1"), CHAT).await.expect_err("no name");
    assert_eq!(error.transport, TransportError::Connect);
    let up = upstream(&fake.base_url());
    let call = Call {
        endpoint: Endpoint::ChatCompletions,
        headers: &HeaderMap::new(),
        body: Bytes::from_static(b"{}").into(),
        response_start: Duration::from_millis(60),
        extra: None,
    };
    let error = client.send(&up, call).await.expect_err("silent");
    assert_eq!(error.transport, TransportError::Timeout);
    assert!(fake.wait(|r| r.iter().all(|r| r.outcome == Outcome::Aborted)).await, "the connection was closed");
    fake.set_script(Script { rules: rule(Answer::fault(FaultKind::Reset, 0)), ..Script::default() });
    assert_eq!(send(&client, &up, CHAT).await.expect_err("reset").transport, TransportError::Reset);
    // Plain HTTP where TLS is expected.
    let up = upstream(&fake.base_url().replace("http://", "https://"));
    assert_eq!(send(&client, &up, CHAT).await.expect_err("no TLS").transport, TransportError::Tls);
}

/// The unspecified address stands for the forbidden ones: it leads to loopback, so nothing outside is ever asked.
#[tokio::test]
async fn forbidden_addresses_are_refused_unless_the_provider_is_local() {
    let fake = fake(vec![]).await;
    let mut provider = provider(&format!("http://0.0.0.0:{}/v1", fake.addr().port()));
    let guarded = Upstream::new(&provider, &connection(), &TlsConfigs::default()).expect("upstream");
    let error = send(&Client::default(), &guarded, CHAT).await.expect_err("guarded");
    assert_eq!(error.transport, TransportError::Connect);
    assert!(error.message.contains("refused unless the provider's authClass is Local"), "{error}");
    assert_eq!(fake.requests().len(), 0);
    provider.traits.auth_class = AuthClass::Local;
    let local = Upstream::new(&provider, &connection(), &TlsConfigs::default()).expect("upstream");
    assert_eq!(send(&Client::default(), &local, CHAT).await.expect("allowed").status(), 200);
}

#[tokio::test]
async fn redirects_are_answers() {
    let fake = fake(rule(Answer::status(307).header("location", "/elsewhere").body(""))).await;
    let response = send(&Client::default(), &upstream(&fake.base_url()), CHAT).await.expect("answer");
    assert_eq!((response.status().as_u16(), fake.requests().len()), (307, 1));
}

#[tokio::test]
async fn a_large_answer_is_handed_on_where_it_exceeds_the_limit() {
    let fake = fake(rule(Answer::default().body("x".repeat(300_000)))).await;
    let response = send(&Client::default(), &upstream(&fake.base_url()), CHAT).await.expect("answer");
    let Collected::TooLarge { prefix, rest, .. } = collect(response.into_body(), 100_000, LONG, &Buffers::default()).await.expect("body")
    else {
        panic!("held")
    };
    assert!((100_001..300_000).contains(&prefix.len()), "{}", prefix.len());
    assert_eq!(prefix.len() + rest.collect().await.expect("rest").to_bytes().len(), 300_000);
}

/// A proxy that answers CONNECT and absolute-form requests; notes the head of each request.
async fn proxy(refuse: bool) -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let url = format!("http://user:pw@{}", listener.local_addr().expect("addr"));
    let heads = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&heads);
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let seen = Arc::clone(&seen);
            tokio::spawn(async move {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(client.read_u8().await.expect("head"));
                }
                let head = String::from_utf8(head).expect("text");
                seen.lock().expect("lock").push(head.clone());
                if refuse {
                    client.write_all(b"HTTP/1.1 407 No\r\ncontent-length: 0\r\n\r\n").await.expect("write");
                } else if head.starts_with("CONNECT ") {
                    let target = head.split(' ').nth(1).expect("target");
                    let mut server = TcpStream::connect(target).await.expect("connect");
                    client.write_all(b"HTTP/1.1 200 Connected\r\n\r\n").await.expect("write");
                    let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
                } else {
                    client.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").await.expect("write");
                }
            });
        }
    });
    (url, heads)
}

fn proxied(base: &str, proxy: &str) -> Upstream {
    let connection = Connection { proxy_url: Some(Secret::new(proxy)), ..connection() };
    Upstream::new(&provider(base), &connection, &TlsConfigs::default()).expect("upstream")
}

#[tokio::test]
async fn plain_requests_go_to_the_proxy_with_the_whole_url() {
    let (url, heads) = proxy(false).await;
    let response = send(&Client::default(), &proxied("http://vendor.invalid:81/v1", &url), CHAT).await.expect("answer");
    assert_eq!(response.status(), 200);
    let head = heads.lock().expect("lock").pop().expect("request");
    assert!(head.starts_with("POST http://vendor.invalid:81/v1/chat/completions HTTP/1.1\r\n"), "{head}");
    assert!(head.contains("proxy-authorization: Basic dXNlcjpwdw==\r\n") && head.contains("host: vendor.invalid:81\r\n"), "{head}");
}

#[tokio::test]
async fn tls_requests_go_through_a_tunnel_and_failures_of_the_proxy_are_its_own() {
    let fake = fake(vec![]).await;
    let (url, heads) = proxy(false).await;
    let up = proxied(&fake.base_url().replace("http://", "https://"), &url);
    let error = send(&Client::default(), &up, CHAT).await.expect_err("the fake speaks no TLS");
    assert_eq!((error.transport, error.via_proxy), (TransportError::Tls, false));
    let head = heads.lock().expect("lock").pop().expect("request");
    assert!(
        head.starts_with(&format!("CONNECT {} HTTP/1.1\r\n", fake.addr())) && head.contains("Proxy-Authorization: Basic dXNlcjpwdw==\r\n"),
        "{head}"
    );
    assert!(!head.contains("sk-a"), "the credential stays inside the tunnel");
    let (refusing, _) = proxy(true).await;
    for base in ["https://vendor.invalid/v1", "http://vendor.invalid/v1"] {
        let error = send(&Client::default(), &proxied(base, &refusing), CHAT).await.expect_err("refused");
        assert!(error.via_proxy && error.message.contains("407") && !error.message.contains("pw"), "{error}");
    }
    let closed = TcpListener::bind("127.0.0.1:0").await.expect("bind").local_addr().expect("addr");
    let error =
        send(&Client::default(), &proxied("https://vendor.invalid/v1", &format!("http://{closed}")), CHAT).await.expect_err("no proxy");
    assert_eq!((error.transport, error.via_proxy), (TransportError::Connect, true));
}

type Outcomes = Arc<Mutex<Vec<StreamOutcome>>>;

async fn open(fake: &FakeUpstream, timeouts: Timeouts) -> (Opened, Outcomes) {
    let up = upstream(&fake.base_url());
    let started = tokio::time::Instant::now();
    let response = send(&Client::default(), &up, CHAT_STREAM).await.expect("answer");
    let (head, body) = response.into_parts();
    let policy = StreamPolicy::new(Dialect::ChatCompletions, started, &timeouts, &RequestHead::default());
    let outcomes = Outcomes::default();
    let slot = Arc::clone(&outcomes);
    let on_end = Box::new(move |o| slot.lock().expect("lock").push(o));
    let hooks = Hooks { on_end, buffers: Buffers::default(), resume: None };
    (open_stream(body, &head.headers, policy, hooks).await, outcomes)
}

async fn committed(fake: &FakeUpstream, timeouts: Timeouts) -> (Box<StreamBody>, Outcomes) {
    match open(fake, timeouts).await {
        (Opened::Committed(body), outcomes) => (body, outcomes),
        (other, _) => panic!("{other:?}"),
    }
}

/// Tries a few times: other work on this machine is not ours.
async fn soon(fake: &FakeUpstream, drop_one: impl AsyncFn()) {
    let mut best = Duration::MAX;
    for _ in 0..5 {
        drop_one().await;
        let dropped = Instant::now();
        assert!(fake.wait(|r| r.iter().all(|r| r.outcome == Outcome::Aborted)).await);
        best = best.min(dropped.elapsed());
    }
    assert!(best < Duration::from_millis(100), "{best:?}");
}

#[tokio::test]
async fn a_dropped_stream_closes_the_upstream_within_100_ms() {
    let fake = fake(rule(Answer::fault(FaultKind::Stall, 3))).await;
    soon(&fake, async || {
        let (mut body, outcomes) = committed(&fake, Timeouts::default()).await;
        body.frame().await.expect("content").expect("infallible");
        drop(body);
        assert_eq!(outcomes.lock().expect("lock")[0].end, StreamEnd::Aborted);
    })
    .await;
}

#[tokio::test]
async fn a_dropped_call_closes_the_upstream_within_100_ms() {
    let fake = fake(rule(Answer::fault(FaultKind::Hang, 0))).await;
    let (client, up) = (Client::default(), upstream(&fake.base_url()));
    soon(&fake, async || {
        let before = fake.requests().len();
        tokio::select! {
            _ = send(&client, &up, CHAT) => panic!("answered"),
            arrived = fake.wait(|r| r.len() > before) => assert!(arrived),
        }
    })
    .await;
}

#[tokio::test]
async fn every_way_to_break_is_said_to_the_client() {
    for (answer, code) in [
        (Answer::fault(FaultKind::Cut, 3), "stream_interrupted"),
        (Answer::fault(FaultKind::Reset, 3), "stream_interrupted"),
        (Answer::fault(FaultKind::Eof, 3), "stream_interrupted"),
        (Answer::fault(FaultKind::Stall, 3), "stream_idle_timeout"),
        (Answer::fault(FaultKind::Ping, 3), "stream_idle_timeout"),
        (Answer::fault(FaultKind::ErrorFrame, 3), "overloaded"),
    ] {
        let fake = fake(rule(answer.clone())).await;
        let timeouts = Timeouts { stream_idle_ms: 300, ..Timeouts::default() };
        let (body, outcomes) = committed(&fake, timeouts).await;
        let text = String::from_utf8(body.collect().await.expect("infallible").to_bytes().to_vec()).expect("text");
        let last = text.trim_end().rsplit("\n\n").next().expect("frame");
        assert!(last.starts_with("data: {\"error\":") && last.contains(code) && !text.contains("[DONE]"), "{answer:?}: {text}");
        assert!(matches!(outcomes.lock().expect("lock")[..], [StreamOutcome { end: StreamEnd::Interrupted(_), .. }]), "{answer:?}");
    }
}

#[tokio::test]
async fn good_streams_and_odd_ones_arrive_in_full() {
    for answer in [Answer::default(), Answer::fault(FaultKind::Malformed, 3), Answer::fault(FaultKind::Drip, 0)] {
        let fake = fake(rule(answer.clone())).await;
        let (body, outcomes) = committed(&fake, Timeouts::default()).await;
        let text = String::from_utf8(body.collect().await.expect("infallible").to_bytes().to_vec()).expect("text");
        assert!(text.ends_with("data: [DONE]\n\n"), "{answer:?}: {text}");
        assert_eq!(outcomes.lock().expect("lock")[0].end, StreamEnd::Complete(None), "{answer:?}");
    }
}

#[tokio::test]
async fn failures_before_content_are_handed_back() {
    for (answer, transport) in [
        (Answer::fault(FaultKind::ErrorFrame, 1), None),
        (Answer::fault(FaultKind::Cut, 1), Some(TransportError::StreamInterrupted)),
        (Answer::fault(FaultKind::Eof, 0), Some(TransportError::StreamInterrupted)),
        (Answer::fault(FaultKind::Ping, 1), Some(TransportError::StreamNotReady)),
        (Answer::default().body(serde_json::json!({"error": {"message": "no"}})), None),
    ] {
        let fake = fake(rule(answer.clone())).await;
        let timeouts = Timeouts { response_start_ms: Some(400), ..Timeouts::default() };
        let (Opened::Failed(failure), outcomes) = open(&fake, timeouts).await else { panic!("{answer:?}") };
        assert_eq!(failure.transport, transport, "{answer:?}");
        assert_eq!(transport.is_none(), !failure.body.is_empty(), "{answer:?}");
        assert!(outcomes.lock().expect("lock").is_empty(), "nothing was committed");
    }
}

/// A client that stops reading stops the upstream read: what is in flight stays below the window of the sockets.
#[tokio::test]
async fn a_stopped_reader_stops_the_provider() {
    let frame = format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"{}\"}}}}]}}\n\n", "x".repeat(60_000));
    let fake = fake(rule(Answer::frames(std::iter::repeat_n(frame, 600)))).await;
    let (mut body, _outcomes) = committed(&fake, Timeouts::default()).await;
    let length = |frame: http_body::Frame<Bytes>| frame.into_data().map_or(0, |d| d.len());
    let mut bytes = length(body.frame().await.expect("content").expect("infallible"));
    // 36 MB wait behind the sockets' buffers; the provider cannot finish.
    assert!(!tokio::time::timeout(Duration::from_millis(500), fake.wait(|r| r[0].outcome != Outcome::Running)).await.unwrap_or(false));
    while let Some(frame) = body.frame().await {
        bytes += length(frame.expect("infallible"));
    }
    assert!(bytes > 36_000_000, "{bytes}");
}

#[tokio::test]
async fn idle_connections_expire() {
    let fake = fake(vec![]).await;
    let (base, count) = counting(fake.addr()).await;
    let limits = PoolLimits { idle_timeout: Duration::from_millis(50), ..PoolLimits::default() };
    let (client, up) = (Client::new(limits), upstream(&base));
    whole(send(&client, &up, CHAT).await.expect("answer")).await;
    // Idle time is the subject: only more of it than allowed ends a connection.
    tokio::time::sleep(Duration::from_millis(80)).await;
    whole(send(&client, &up, CHAT).await.expect("answer")).await;
    assert_eq!(*count.lock().expect("lock"), 2);
}
