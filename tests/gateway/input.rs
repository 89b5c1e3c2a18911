//! What clients send wrongly: a clear answer in their dialect, bounded memory, no harm to others.

use crate::support::{Got, Served, Setup, Vendor, request};
use bytes::Bytes;
use http_body_util::Full;
use omniroute::snapshot::Strategy;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

async fn serve(change: impl FnOnce(&mut omniroute::snapshot::Snapshot)) -> (Vendor, Served) {
    let vendor = Vendor::start().await;
    let setup =
        Setup::new().provider("one", &vendor.base_url()).connection("one", "a", 1).combo("assistant", Strategy::Priority, &["one/m1"]);
    (vendor, setup.change(change).start())
}

async fn post(served: &Served, path: &str, body: impl Into<Bytes>) -> Got {
    served.send(request("POST", path, "client").body(Full::new(body.into())).unwrap()).await
}

/// Writes raw bytes and reads until the gateway closes or says no more for a moment.
async fn raw(served: &Served, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(served.running.listen_addr()).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    stream.shutdown().await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn malformed_bodies_are_refused_in_the_dialect_of_the_endpoint() {
    let (vendor, served) = serve(|_| {}).await;
    let deep = format!("{{\"model\":\"assistant\",\"x\":{}1{}}}", "[".repeat(100_000), "]".repeat(100_000));
    let bodies: [(&str, &[u8], &str); 8] = [
        ("empty", b"", "invalid_json"),
        ("text", b"hello", "invalid_json"),
        ("array", b"[]", "invalid_json"),
        ("truncated", br#"{"model":"assistant""#, "invalid_json"),
        ("no model", b"{}", "model_required"),
        ("model twice", br#"{"model":"assistant","mod\u0065l":"b"}"#, "duplicate_member"),
        ("wrong type", br#"{"model":5}"#, "invalid_type"),
        ("no text", b"{\"model\":\"\xff\"}", "invalid_json"),
    ];
    for (name, body, code) in bodies {
        let got = post(&served, "/v1/chat/completions", Bytes::copy_from_slice(body)).await;
        assert_eq!((got.status, got.code().as_str()), (400, code), "{name}: {}", got.text());
        assert_eq!(got.header("x-omniroute-origin"), Some("gateway"));
        assert_eq!(got.header("x-should-retry"), Some("false"));
        let got = post(&served, "/v1/messages", Bytes::copy_from_slice(body)).await;
        let json = got.json();
        assert_eq!(
            (got.status, json["type"].as_str(), json["error"]["type"].as_str()),
            (400, Some("error"), Some("invalid_request_error")),
            "{name}"
        );
    }
    assert_eq!(post(&served, "/v1/chat/completions", deep).await.status, 400);
    assert_eq!(vendor.calls().len(), 0);
    assert_eq!(served.chat("assistant").await.status, 200);
}

#[tokio::test]
async fn absurd_model_names_are_names_of_nothing() {
    let (vendor, served) = serve(|s| s.providers[0].open_model_list = false).await;
    for model in ["..", "one/../../etc", "%2f", "a\r\nx: y", "one/", "/", &"x".repeat(10_240)] {
        let got = served.chat(model).await;
        assert!(matches!(got.status, 400 | 404), "{model:.20}: {} {}", got.status, got.text());
        assert!(got.body.len() < 2_048, "{model:.20}: the name is not echoed at length");
    }
    assert_eq!(vendor.calls().len(), 0);
}

#[tokio::test]
async fn what_is_too_large_is_refused_and_the_answer_is_seen() {
    let (_vendor, served) = serve(|s| s.settings.max_request_bytes = 1_000).await;
    let big = json!({"model": "assistant", "messages": [{"role": "user", "content": "x".repeat(3_000_000)}]}).to_string();
    let got = post(&served, "/v1/chat/completions", big.clone()).await;
    assert_eq!((got.status, got.code().as_str()), (413, "request_too_large"));
    let got = post(&served, "/v1/messages", big).await;
    assert_eq!((got.status, got.json()["error"]["type"].as_str()), (413, Some("request_too_large")));
    // Without a stated length it is noticed on the way.
    let chunk = format!("{:x}\r\n{}\r\n", 2_000, "x".repeat(2_000));
    let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\nauthorization: Bearer client\r\ntransfer-encoding: chunked\r\n\r\n";
    assert!(raw(&served, format!("{head}{chunk}").as_bytes()).await.starts_with("HTTP/1.1 413"));
}

#[tokio::test]
async fn memory_for_bodies_is_bounded() {
    let (_vendor, served) = serve(|s| s.settings.max_buffered_bytes = 500).await;
    let got = post(&served, "/v1/chat/completions", json!({"model": "assistant", "x": "y".repeat(600)}).to_string()).await;
    assert_eq!((got.status, got.code().as_str(), got.header("retry-after")), (503, "admission_queue_full", Some("1")));
    assert_eq!(served.chat("assistant").await.status, 200);
}

#[tokio::test]
async fn only_json_is_taken() {
    let (_vendor, served) = serve(|_| {}).await;
    for (name, value) in [("content-type", "text/plain"), ("content-encoding", "gzip")] {
        let mut request =
            request("POST", "/v1/chat/completions", "client").body(Full::new(Bytes::from_static(br#"{"model":"assistant"}"#))).unwrap();
        request.headers_mut().insert(name, value.parse().unwrap());
        assert_eq!(served.send(request).await.status, 415, "{name}");
    }
}

#[tokio::test]
async fn requests_that_do_not_wait_for_the_answer_before_are_not_read() {
    let (vendor, served) = serve(|_| {}).await;
    let body = json!({"model": "assistant", "messages": []}).to_string();
    let post = "POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\nauthorization: Bearer client\r\n";
    let plain = format!("{post}content-length: {}\r\n\r\n{body}", body.len());
    let chunked = format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
    let both = format!("{post}content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n{chunked}");
    let answer = raw(&served, format!("{plain}{both}{plain}").as_bytes()).await;
    assert_eq!((answer.matches("HTTP/1.1 ").count(), answer.contains("connection: close")), (1, true), "{answer}");
    assert_eq!(vendor.calls().len(), 1);
    // Who waits for each answer may go on.
    let mut stream = TcpStream::connect(served.running.listen_addr()).await.unwrap();
    for _ in 0..3 {
        stream.write_all(plain.as_bytes()).await.unwrap();
        let mut answer = String::new();
        while !answer.contains("total_tokens") || !answer.ends_with('}') {
            let mut piece = [0; 4_096];
            let n = stream.read(&mut piece).await.unwrap();
            assert!(n > 0, "{answer}");
            answer.push_str(std::str::from_utf8(&piece[..n]).unwrap());
        }
    }
    assert_eq!(vendor.calls().len(), 4);
}

#[tokio::test]
async fn ambiguous_lengths_are_refused_in_any_order() {
    let (vendor, served) = serve(|_| {}).await;
    let smuggled = "0\r\n\r\nPOST /v1/chat/completions HTTP/1.1\r\nhost: g\r\n\r\n";
    for framing in ["content-length: 5\r\ntransfer-encoding: chunked", "transfer-encoding: chunked\r\nContent-Length: 5"] {
        let head = format!("POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\nauthorization: Bearer client\r\n{framing}\r\n\r\n{smuggled}");
        let answer = raw(&served, head.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("ambiguous_length"), "{answer}");
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "nothing behind it is read: {answer}");
    }
    assert_eq!(vendor.calls().len(), 0);
}

#[tokio::test]
async fn head_floods_end_with_a_4xx() {
    let (_vendor, served) = serve(|_| {}).await;
    let many: String = (0..500).map(|n| format!("x-{n}: y\r\n")).collect();
    let long = format!("x: {}\r\n", "y".repeat(100_000));
    for headers in [many, long] {
        for (path, messages) in [("/v1/chat/completions", false), ("/v1/messages", true)] {
            let answer = raw(&served, format!("POST {path} HTTP/1.1\r\nhost: g\r\n{headers}\r\n").as_bytes()).await;
            assert!(answer.starts_with("HTTP/1.1 431 "), "{answer:.100}");
            let error = refusal(&answer);
            assert_eq!((error["type"] == "error", error["error"]["code"].as_str()), (messages, Some("headers_too_large")), "{answer}");
        }
    }
    assert_eq!(served.chat("assistant").await.status, 200);
}

/// The body of a refusal that says who refuses and which request it was.
fn refusal(answer: &str) -> serde_json::Value {
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.contains("x-omniroute-origin: gateway") && head.contains("x-omniroute-request-id: req_"), "{answer}");
    serde_json::from_str(body).unwrap()
}

#[tokio::test]
async fn what_is_no_http_is_answered_with_a_body() {
    let (vendor, served) = serve(|_| {}).await;
    for bytes in
        ["hello\r\n\r\n", "GET /v1/models\r\n\r\n", "POST /v1/chat/completions HTTP/1.1\r\nhost g\r\n\r\n", "GET /\u{7} HTTP/1.1\r\n\r\n"]
    {
        let answer = raw(&served, bytes.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 400 "), "{bytes:?}: {answer}");
        assert_eq!(refusal(&answer)["error"]["code"], "malformed_request", "{answer}");
    }
    let answer = raw(&served, b"POST /v1/messages HTTP/1.1\r\nbad header: x\r\n\r\n").await;
    assert_eq!(refusal(&answer)["type"], "error", "{answer}");
    assert_eq!(vendor.calls().len(), 0);
}

#[tokio::test]
async fn line_feeds_alone_hide_no_framing_header() {
    let (vendor, served) = serve(|_| {}).await;
    let head =
        "POST /v1/chat/completions HTTP/1.1\nhost: g\nauthorization: Bearer client\ncontent-length: 5\ntransfer-encoding: chunked\n\n0\n\n";
    for prefix in ["", "\r\n\r\n"] {
        let answer = raw(&served, format!("{prefix}{head}").as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("ambiguous_length"), "{answer}");
    }
    assert_eq!(vendor.calls().len(), 0);
}

#[tokio::test]
async fn the_late_body_of_a_refused_request_is_not_the_head_of_the_next() {
    let (_vendor, served) = serve(|_| {}).await;
    let mut stream = TcpStream::connect(served.running.listen_addr()).await.unwrap();
    let late = "\ncontent-length: 1\ntransfer-encoding: chunked\r\n\r\n";
    let head =
        format!("POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\nauthorization: Bearer nobody\r\ncontent-length: {}\r\n\r\n", late.len());
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = vec![0; 4096];
    let n = stream.read(&mut answer).await.unwrap();
    assert!(answer[..n].starts_with(b"HTTP/1.1 401"), "{}", String::from_utf8_lossy(&answer[..n]));
    stream.write_all(late.as_bytes()).await.unwrap();
    stream.write_all(b"GET /v1/models HTTP/1.1\r\nhost: g\r\nauthorization: Bearer client\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut rest = String::new();
    stream.read_to_string(&mut rest).await.unwrap();
    assert!(rest.contains("HTTP/1.1 200") && !rest.contains("ambiguous_length"), "{rest}");
}

#[tokio::test]
async fn a_client_that_breaks_off_harms_nobody() {
    let (vendor, served) = serve(|_| {}).await;
    let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\nauthorization: Bearer client\r\ncontent-length: 500\r\n\r\n{\"model\":";
    raw(&served, head.as_bytes()).await;
    assert_eq!(served.chat("assistant").await.status, 200);
    assert_eq!(vendor.calls(), ["a"]);
    assert_eq!(served.gateway.metrics().in_flight(), 0);
}

#[tokio::test]
async fn unknown_paths_methods_and_keys_are_answered_in_the_clients_dialect() {
    let (_vendor, served) = serve(|_| {}).await;
    let openai = served.get("/v1/nothing").await;
    assert_eq!((openai.status, openai.code().as_str()), (404, "unknown_endpoint"));
    let anthropic = served.get("/v1/messages/nothing").await;
    assert_eq!((anthropic.status, anthropic.json()["error"]["type"].as_str()), (404, Some("not_found_error")));
    let method = served.get("/v1/chat/completions").await;
    assert_eq!((method.status, method.header("allow")), (405, Some("POST")));
    let ask = async |path: &str, name: &str, value: &str| {
        let body = Full::new(Bytes::from_static(br#"{"model":"assistant","messages":[]}"#));
        served.send(http::Request::post(path).header(name, value).body(body).unwrap()).await
    };
    let none = ask("/v1/chat/completions", "x-nothing", "x").await;
    assert_eq!((none.status, none.code().as_str(), none.header("x-omniroute-origin")), (401, "missing_api_key", Some("policy")));
    let wrong = ask("/v1/messages", "x-api-key", "nope").await;
    assert_eq!((wrong.status, wrong.json()["error"]["type"].as_str()), (401, Some("authentication_error")));
    assert_eq!(ask("/v1/messages", "authorization", "Bearer boss").await.status, 403);
    assert_eq!(ask("/v1/chat/completions", "x-api-key", "client").await.status, 200);
}
