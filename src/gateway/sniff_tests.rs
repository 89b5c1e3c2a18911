use super::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

fn sniffed<S>(stream: S, watch: &Arc<HeadWatch>) -> Sniffed<S> {
    Sniffed::new(stream, Arc::clone(watch), WRITE_STALL)
}

/// The head and the JSON body of an answer whose length is stated truly.
fn parsed(answer: &str) -> (&str, serde_json::Value) {
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(
        head.contains(&format!("content-length: {}\r\n", body.len())) || head.ends_with(&format!("content-length: {}", body.len())),
        "{answer}"
    );
    assert!(head.contains("x-omniroute-request-id: req_") && head.contains("x-omniroute-origin: gateway"), "{answer}");
    (head, serde_json::from_str(body).unwrap())
}

#[tokio::test(start_paused = true)]
async fn a_head_that_takes_too_long_is_answered_and_an_idle_connection_closed() {
    let (mut client, server) = tokio::io::duplex(4096);
    let mut stream = sniffed(server, &HeadWatch::new());
    client.write_all(b"POST /v1/messages HTTP/1.1\r\n").await.unwrap();
    let begin = Instant::now();
    let mut bytes = [0; 64];
    assert_eq!(stream.read(&mut bytes).await.unwrap(), 28);
    assert_eq!(stream.read(&mut bytes).await.unwrap_err().kind(), io::ErrorKind::TimedOut);
    assert_eq!(begin.elapsed().as_secs(), 10);
    drop(stream);
    let mut answer = String::new();
    client.read_to_string(&mut answer).await.unwrap();
    assert_eq!(parsed(&answer).1["type"], "error", "in the dialect of the path: {answer}");

    let (_client, server) = tokio::io::duplex(64);
    let begin = Instant::now();
    assert!(sniffed(server, &HeadWatch::new()).read(&mut bytes).await.is_err());
    assert_eq!(begin.elapsed().as_secs(), 120);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_takes_nothing_is_given_up_and_a_slow_one_is_not() {
    let (mut client, server) = tokio::io::duplex(8);
    let mut stream = sniffed(server, &HeadWatch::new());
    let reading = async {
        for _ in 0..5 {
            tokio::time::sleep(Duration::from_secs(119)).await;
            client.read_exact(&mut [0; 8]).await.unwrap();
        }
        // From here on it reads no more.
        std::future::pending::<()>().await;
    };
    let begin = Instant::now();
    let error = tokio::select! {
        result = stream.write_all(&[b'x'; 100]) => result.unwrap_err(),
        () = reading => unreachable!(),
    };
    assert_eq!((error.kind(), begin.elapsed().as_secs()), (io::ErrorKind::TimedOut, 5 * 119 + 120));
}

#[tokio::test(start_paused = true)]
async fn who_still_takes_an_answer_is_not_idle() {
    let (mut client, server) = tokio::io::duplex(8);
    let (mut reads, mut writes) = tokio::io::split(sniffed(server, &HeadWatch::new()));
    let taking = async {
        for _ in 0..3 {
            tokio::time::sleep(Duration::from_secs(100)).await;
            client.read_exact(&mut [0; 8]).await.unwrap();
        }
    };
    let mut bytes = [0; 8];
    tokio::select! {
        (written, ()) = async { tokio::join!(writes.write_all(&[b'x'; 32]), taking) } => written.unwrap(),
        ended = reads.read(&mut bytes) => panic!("{ended:?}"),
    }
}

#[tokio::test]
async fn empty_answers_of_the_parser_get_a_body_and_no_others() {
    let bare = |status: &str| format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: 0\r\ndate: x\r\n\r\n");
    for (status, code) in [("400 Bad Request", "malformed_request"), ("414 URI Too Long", "uri_too_long"), ("431 X", "headers_too_large")] {
        let (client, server) = tokio::io::duplex(16);
        let mut stream = sniffed(server, &HeadWatch::new());
        let write = async move { stream.write_all(bare(status).as_bytes()).await };
        let read = async {
            let (mut client, mut answer) = (client, String::new());
            client.read_to_string(&mut answer).await.map(|_| answer)
        };
        let (written, answer) = tokio::join!(write, read);
        written.unwrap();
        let answer = answer.unwrap();
        let (head, body) = parsed(&answer);
        assert!(head.starts_with(&format!("HTTP/1.1 {}", &status[..3])) && head.contains("connection: close"), "{head}");
        assert_eq!(body["error"]["code"], code);
    }
    for other in ["HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nx-omniroute-request-id: x\r\n\r\n", &bare("404 X"), "4", ""] {
        assert_eq!(instead_of(other.as_bytes(), Dialect::Messages), None, "{other}");
    }
}

fn conflict(pieces: &[&str]) -> bool {
    let watch = HeadWatch::new();
    let mut stream = sniffed((), &watch);
    pieces.iter().for_each(|piece| stream.look(piece.as_bytes()));
    watch.begin_request().0 == Head::Conflict
}

/// What is seen of two requests, of the first alone if it is the last: `first` comes before that one begins, `then` after it has ended.
fn second(first: &[&str], then: &[&str]) -> Head {
    let watch = HeadWatch::new();
    let mut stream = sniffed((), &watch);
    first.iter().for_each(|piece| stream.look(piece.as_bytes()));
    let (head, request) = watch.begin_request();
    if head != Head::Good {
        return head;
    }
    drop(request);
    then.iter().for_each(|piece| stream.look(piece.as_bytes()));
    watch.begin_request().0
}

#[tokio::test]
async fn a_head_that_does_not_wait_for_the_request_before_it_is_not_read() {
    let get = "GET / HTTP/1.1\r\n\r\n";
    let both = "POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n";
    let sized = "POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello";
    let chunks = "POST / HTTP/1.1\nTransfer-Encoding: chunked\n\n5\r\nhello\r\n0\r\n\r\n";
    for first in [get, sized, chunks] {
        for cut in 1..first.len() {
            let (one, two) = first.split_at(cut);
            assert_eq!(second(&[one, two], &[get]), Head::Good, "{first:?} cut at {cut}");
            assert_eq!(second(&[one, two], &[both]), Head::Conflict, "{first:?} cut at {cut}");
            assert_eq!(second(&[one, &format!("{two}{both}")], &[]), Head::Last, "{first:?} cut at {cut}");
            for half in 1..both.len() - 4 {
                let (begin, rest) = both.split_at(half);
                let seen = second(&[one, &format!("{two}{begin}")], &[rest]);
                assert_ne!(seen, Head::Good, "{first:?} cut at {cut}, the next one at {half}");
            }
        }
    }
}

#[tokio::test]
async fn both_framing_headers_are_seen_in_any_order_and_in_pieces() {
    assert!(conflict(&["POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n"]));
    assert!(conflict(&["POST / HTTP/1.1\r\ntransfer-", "encoding: chunked\r\nCONTENT-LENGTH: 1\r\n\r", "\n"]));
    assert!(!conflict(&["POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", "\ncontent-length: 1\r\n\r\n"]));
    assert!(!conflict(&["POST / HTTP/1.1\r\nContent-Length: 40\r\n\r\n\ntransfer-encoding: chunked\r\n\r\n"]));
    assert!(!conflict(&["POST / HTTP/1.1\r\nContent-Lengths: 40\r\nTransfer-Encoding: chunked\r\n\r\n"]));
}

/// Whatever a lenient parser takes for the end of a line or of a head is one here, and however the bytes are cut.
#[tokio::test]
async fn bare_line_feeds_and_empty_lines_hide_nothing() {
    for head in [
        "POST / HTTP/1.1\nContent-Length: 1\nTransfer-Encoding: chunked\n\n",
        "POST / HTTP/1.1\nContent-Length: 1\nTransfer-Encoding: chunked\n\r\n",
        "POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\n",
        "\r\n\r\nPOST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        "\n\nPOST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
    ] {
        for cut in 0..head.len() {
            let (one, two) = head.split_at(cut);
            assert!(conflict(&[one, two]), "{head:?} cut at {cut}");
        }
    }
}

#[tokio::test]
async fn every_request_of_a_connection_is_looked_at() {
    let watch = HeadWatch::new();
    let mut stream = sniffed((), &watch);
    stream.look(b"GET / HTTP/1.1\r\n\r\n");
    let (head, request) = watch.begin_request();
    assert_eq!(head, Head::Good);
    stream.look(b"x\ncontent-length: 1\ntransfer-encoding: chunked\r\n\r\n");
    drop(request);
    stream.look(b"GET / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n");
    assert_eq!(watch.begin_request().0, Head::Conflict);
}

#[tokio::test]
async fn the_rest_of_a_refused_body_is_no_head() {
    let watch = HeadWatch::new();
    let mut stream = sniffed((), &watch);
    stream.look(b"POST / HTTP/1.1\r\ncontent-length: 99\r\n\r\n");
    let (_, answer) = watch.begin_request();
    let body = answer.clone();
    drop(answer);
    stream.look(b"x\ncontent-length: 1\ntransfer-encoding: chunked\r\n\r\n");
    drop(body);
    stream.look(b"GET / HTTP/1.1\r\n\r\n");
    let (head, rest) = watch.begin_request();
    assert_ne!(head, Head::Conflict, "the next request is judged by its own head");
    // The one after it begins before the end of this one was noticed.
    let (_, next) = watch.begin_request();
    drop(rest);
    stream.look(b"x\ncontent-length: 1\ntransfer-encoding: chunked\r\n\r\n");
    drop(next);
    stream.look(b"GET / HTTP/1.1\r\n\r\n");
    assert_ne!(watch.begin_request().0, Head::Conflict, "a body is no head, whatever ends before it");
}
