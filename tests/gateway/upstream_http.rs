//! What providers may send over HTTP/1.1, byte by byte, and what becomes of the connection afterwards. hyper's client is the judge of what is
//! understood.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::header::HeaderMap;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use omniroute::classify::TransportError;
use omniroute::dial::tls::TlsConfigs;
use omniroute::gateway::upstream::{Call, Client, SendError, Upstream, UpstreamBody};
use omniroute::protocol::{Dialect, Endpoint};
use omniroute::snapshot::{Connection, Provider};
use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Sends one request.
async fn ask(client: &Client, address: SocketAddr, body: Bytes) -> Result<http::Response<UpstreamBody>, SendError> {
    let provider = Provider {
        name: "p".into(),
        base_url: format!("http://{address}/v1"),
        dialects: vec![Dialect::ChatCompletions],
        ..Provider::default()
    };
    let connection = Connection { name: "c".into(), provider: "p".into(), ..Connection::default() };
    let upstream = Upstream::new(&provider, &connection, &TlsConfigs::default()).expect("upstream");
    let headers = HeaderMap::new();
    let call = Call {
        endpoint: Endpoint::ChatCompletions,
        headers: &headers,
        body: body.into(),
        response_start: Duration::from_secs(20),
        extra: None,
    };
    client.send(&upstream, call).await
}

/// The head of a request, and its body as far as it came with the last read.
async fn request(socket: &mut TcpStream) -> Vec<u8> {
    let mut request = Vec::new();
    while !request.windows(4).any(|w| w == b"\r\n\r\n") {
        assert_ne!(socket.read_buf(&mut request).await.expect("request"), 0, "the client left");
    }
    request
}

/// What was read, and how it ended.
async fn read(answer: Result<http::Response<UpstreamBody>, SendError>) -> Result<(u16, Vec<u8>), String> {
    let answer = answer.map_err(|e| format!("{:?}: {e}", e.transport))?;
    let status = answer.status().as_u16();
    let (mut body, mut read) = (answer.into_body(), Vec::new());
    while let Some(frame) = body.frame().await {
        match frame {
            Ok(frame) => read.extend_from_slice(&frame.into_data().expect("data")),
            Err(error) => return Err(format!("after {:?}: {error}", String::from_utf8_lossy(&read))),
        }
    }
    Ok((status, read))
}

/// Answers the first request in these pieces and looks whether the next one comes on the same connection.
async fn served(pieces: Vec<Vec<u8>>, close: bool) -> (Result<(u16, Vec<u8>), String>, bool) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let address = listener.local_addr().expect("address");
    let server = tokio::spawn(async move {
        let (mut first, _) = listener.accept().await.expect("accept");
        first.set_nodelay(true).expect("nodelay");
        request(&mut first).await;
        for piece in pieces {
            if first.write_all(&piece).await.is_err() {
                // It has heard enough.
                return false;
            }
            tokio::task::yield_now().await;
        }
        if close {
            drop(first);
            return false;
        }
        tokio::select! {
            // A connection that is given up ends.
            read = first.read_u8() => read.is_ok(),
            _ = listener.accept() => false,
        }
    });
    let client = Client::default();
    let answer = read(ask(&client, address, Bytes::from_static(b"{}")).await).await;
    let again = tokio::spawn(async move { ask(&client, address, Bytes::from_static(b"{}")).await.is_ok() });
    let reused = server.await.expect("server");
    again.abort();
    (answer, reused)
}

fn pieces(text: &str, size: usize) -> Vec<Vec<u8>> {
    text.as_bytes().chunks(size).map(<[u8]>::to_vec).collect()
}

#[tokio::test]
async fn an_answer_may_come_in_any_pieces_and_the_connection_serves_again() {
    let chunked = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n6\r\n world\r\n0\r\nx-trailer: y\r\n\r\n";
    let length = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 11\r\nx: y\r\n\r\nhello world";
    for answer in [chunked, length] {
        for size in [1, 3, 50, 500] {
            let (read, reused) = served(pieces(answer, size), false).await;
            assert_eq!((read, reused), (Ok((200, b"hello world".to_vec())), true), "{size}");
        }
    }
}

#[tokio::test]
async fn a_connection_that_cannot_be_trusted_serves_nobody_else() {
    for (answer, body) in [
        ("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nokHTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil", "ok"),
        ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\nHTTP/1.1 200", "ok"),
        ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: 2\r\n\r\n2\r\nok\r\n0\r\n\r\n", "ok"),
        ("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok", "ok"),
        ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", "ok"),
        ("HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok", "ok"),
        ("HTTP/1.1 204 No Content\r\n\r\nsurprise", ""),
    ] {
        let (read, reused) = served(pieces(answer, 4096), false).await;
        assert_eq!((read.map(|(_, body)| body), reused), (Ok(body.as_bytes().to_vec()), false), "{answer}");
    }
    let (read, _) = served(pieces("HTTP/1.1 200 OK\r\n\r\nuntil the end", 9), true).await;
    assert_eq!(read, Ok((200, b"until the end".to_vec())));
}

#[tokio::test]
async fn what_breaks_says_where() {
    for (answer, said) in [
        ("", "Reset: the connection to 127.0.0.1:PORT broke before the answer: it was closed before the answer was complete"),
        (
            "HTTP/1.1 200 OK\r\nx",
            "Reset: the connection to 127.0.0.1:PORT broke within the head of the answer: it was closed before the answer was complete",
        ),
        (
            "nonsense\r\n\r\n",
            "Reset: 127.0.0.1:PORT answered something that is not HTTP/1.1: its head cannot be read: invalid HTTP version",
        ),
        (
            "HTTP/1.1 101 Switching Protocols\r\n\r\n",
            "Reset: 127.0.0.1:PORT answered something that is not HTTP/1.1: it switches to a protocol that nobody asked for",
        ),
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nok",
            "after \"ok\": reading the answer: it was closed before the answer was complete",
        ),
        (
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n",
            "after \"ok\": reading the answer: it was closed before the answer was complete",
        ),
        (
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\nx",
            "after \"ok\": reading the answer: a chunk has no valid size",
        ),
    ] {
        let (read, _) = served(pieces(answer, 4096), true).await;
        let error = read.expect_err(answer);
        let port = error.split("127.0.0.1:").nth(1).map_or("-", |rest| &rest[..rest.find(|c: char| !c.is_ascii_digit()).expect("an end")]);
        assert_eq!(error.replace(port, if port == "-" { "-" } else { "PORT" }), said);
    }
}

/// A server that refuses a large request answers before it has read it, and closes: the answer counts, not that the rest could not be sent.
#[tokio::test]
async fn an_answer_before_the_request_is_sent_counts() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let address = listener.local_addr().expect("address");
    let (done, wait) = tokio::sync::oneshot::channel::<()>();
    let server = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.expect("accept");
        request(&mut socket).await;
        socket.write_all(b"HTTP/1.1 413 Too Large\r\ncontent-length: 3\r\n\r\nno!").await.expect("write");
        wait.await.expect("the answer was read");
        // And the unfinished request is not followed by another one.
        let mut rest = Vec::new();
        socket.read_to_end(&mut rest).await.ok();
        tokio::time::timeout(Duration::from_secs(10), listener.accept()).await.is_ok()
    });
    let client = Client::default();
    let answer = ask(&client, address, vec![b' '; 32 << 20].into()).await;
    assert_eq!(read(answer).await, Ok((413, b"no!".to_vec())));
    done.send(()).expect("server");
    let next = tokio::spawn(async move { ask(&client, address, Bytes::from_static(b"{}")).await.is_ok() });
    assert!(server.await.expect("server"), "the next request has a connection of its own");
    next.abort();
}

/// Whatever comes before the head: it may come in small pieces, but not for ever.
#[tokio::test]
async fn what_precedes_the_head_has_a_bound() {
    for skipped in ["HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n", "\r\n"] {
        let few = format!("{}HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok", skipped.repeat(50));
        assert_eq!(served(pieces(&few, 7), false).await, (Ok((200, b"ok".to_vec())), true));
        let many = skipped.repeat(1 + (80 << 10) / skipped.len());
        let error = served(pieces(&many, 1000), true).await.0.expect_err("without end");
        assert!(error.contains("its head is longer than 65536 bytes"), "{error}");
    }
}

/// A large request arrives whole, also when it is taken slowly.
#[tokio::test]
async fn a_large_request_arrives_whole() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let address = listener.local_addr().expect("address");
    let body: Bytes = (0..12_000_000u32).map(|n| (n % 251) as u8).collect::<Vec<u8>>().into();
    let expected = body.clone();
    let server = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.expect("accept");
        let mut all = request(&mut socket).await;
        let start = all.windows(4).position(|w| w == b"\r\n\r\n").expect("head") + 4;
        while all.len() < start + expected.len() {
            assert_ne!(socket.read_buf(&mut all).await.expect("body"), 0);
            tokio::task::yield_now().await;
        }
        socket.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await.expect("write");
        all[start..] == expected[..]
    });
    assert_eq!(read(ask(&Client::default(), address, body).await).await, Ok((200, b"ok".to_vec())));
    assert!(server.await.expect("server"));
}

/// What hyper's client makes of an answer.
async fn by_hyper(wire: Vec<u8>) -> Option<(u16, Vec<u8>)> {
    let (ours, mut theirs) = tokio::io::duplex(1 << 16);
    tokio::spawn(async move {
        let mut request = [0; 64];
        assert_ne!(theirs.read(&mut request).await.expect("request"), 0);
        theirs.write_all(&wire).await.expect("write");
    });
    let (mut sender, driver) = hyper::client::conn::http1::handshake::<_, Full<Bytes>>(TokioIo::new(ours)).await.expect("handshake");
    tokio::spawn(driver);
    let answer = sender.send_request(http::Request::post("/").body(Full::default()).expect("request")).await.ok()?;
    let status = answer.status().as_u16();
    answer.into_body().collect().await.ok().map(|body| (status, body.to_bytes().to_vec()))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// We understand what hyper understands, except that a nonsensical length is refused beside chunks as well.
    #[test]
    fn hyper_agrees(
        status in prop::sample::select(vec!["200 OK", "204 No", "304 No", "429 Slow", "500", "100 Continue\r\n\r\nHTTP/1.1 200 OK"]),
        version in prop::sample::select(vec!["1.1", "1.1", "1.0"]),
        headers in prop::collection::vec(prop::sample::select(vec![
            "content-length: 5", "content-length: 0", "Transfer-Encoding: chunked", "connection: close", "x: y", "content-length: 5, 5", "content-length: x",
        ]), 0..3),
        body in prop::sample::select(vec!["hello", "5\r\nhello\r\n0\r\n\r\n", "0\r\n\r\n", "5;x\r\nhello\r\n0\r\na: b\r\n\r\n", "5\r\nhell", "", "z\r\n"]),
        size in 1usize..60,
    ) {
        let lines: String = headers.iter().map(|h| format!("{h}\r\n")).collect();
        let wire = format!("HTTP/{version} {status}\r\n{lines}\r\n{body}");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
        let (ours, theirs) = runtime.block_on(async { (served(pieces(&wire, size), true).await.0.ok(), by_hyper(wire.clone().into_bytes()).await) });
        prop_assert!(ours == theirs || (ours.is_none() && headers.contains(&"content-length: x")), "{wire}\n{ours:?}\n{theirs:?}");
    }
}

#[tokio::test]
async fn failures_are_resets_for_the_classifier() {
    let (read, _) = served(vec![b"HTTP/1.1 200 OK\r\ncontent-length: 1, 2\r\n\r\n".to_vec()], true).await;
    assert!(read.expect_err("two lengths").starts_with(&format!("{:?}: ", TransportError::Reset)));
}
