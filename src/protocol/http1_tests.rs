use proptest::prelude::*;

use super::*;

/// A whole answer as it is understood, however it is cut: status, body, whether the connection may be kept, and what is left in it.
#[derive(PartialEq, Eq, Debug)]
struct Understood {
    status: u16,
    body: Vec<u8>,
    keep_alive: bool,
    end: Framing,
    surplus: usize,
}

fn understand(input: &[u8], cut: usize) -> Result<Option<Understood>, Malformed> {
    let (mut held, mut answer): (Vec<u8>, Option<(Head, Vec<u8>)>) = (Vec::new(), None);
    let mut surplus = 0;
    for piece in input.chunks(cut.max(1)) {
        held.extend_from_slice(piece);
        if answer.is_none() {
            let (read, head) = read_head(&held)?;
            held.drain(..read);
            answer = head.map(|head| (head, Vec::new()));
        }
        if let Some((head, body)) = &mut answer {
            let decoded = head.framing.decode(&mut held);
            body.extend_from_slice(&held[..decoded.payload]);
            surplus += held.len() - decoded.consumed;
            held.clear();
        }
    }
    Ok(answer.map(|(head, body)| {
        // What follows a mistake is not an answer's.
        let surplus = if matches!(head.framing, Framing::Broken(_)) { 0 } else { surplus };
        Understood { status: head.status.as_u16(), body, keep_alive: head.keep_alive, end: head.framing, surplus }
    }))
}

fn read(input: &str) -> Understood {
    let whole = understand(input.as_bytes(), usize::MAX).expect("HTTP/1.1").expect("a whole head");
    for cut in [1, 2, 3, 7] {
        assert_eq!(
            understand(input.as_bytes(), cut).as_ref(),
            Ok(&Some(understand(input.as_bytes(), usize::MAX).expect("read").expect("head")))
        );
    }
    whole
}

#[test]
fn a_body_ends_where_its_head_says() {
    for (rest, body, keep_alive, end, surplus) in [
        ("200 OK\r\ncontent-length: 2\r\n\r\nok", "ok", true, Framing::Ended, 0),
        ("200 OK\r\ncontent-length: 2\r\n\r\noklahoma", "ok", true, Framing::Ended, 6),
        ("200 OK\r\ncontent-length: 5\r\n\r\nok", "ok", true, Framing::Length(3), 0),
        ("200 OK\r\nContent-Length: 2, 2\r\ncontent-length: 2\r\n\r\nok", "ok", true, Framing::Ended, 0),
        ("200 OK\r\ncontent-length: 0\r\n\r\n", "", true, Framing::Ended, 0),
        ("200\r\ncontent-length: 2\r\nconnection: x, Close\r\n\r\nok", "ok", false, Framing::Ended, 0),
        ("200 OK\r\n\r\nuntil the end", "until the end", false, Framing::UntilClose, 0),
        ("200 OK\r\ntransfer-encoding: identity\r\ncontent-length: 2\r\n\r\nok", "ok", false, Framing::Ended, 0),
        ("200 OK\r\ntransfer-encoding: identity\r\n\r\nok", "ok", false, Framing::UntilClose, 0),
        ("204 No\r\ncontent-length: 2\r\n\r\n", "", true, Framing::Ended, 0),
        ("304 No\r\n\r\n", "", true, Framing::Ended, 0),
        ("503 Busy\r\nTransfer-Encoding: CHUNKED\r\n\r\n2\r\nok\r\n0\r\n\r\n", "ok", true, Framing::Ended, 0),
        (
            "200 OK\r\ntransfer-encoding: chunked\r\n\r\nA;x=\"y\"\r\n0123456789\r\n00002 \r\nok\r\n0;z\r\na: b\r\nc: d\r\n\r\n!",
            "0123456789ok",
            true,
            Framing::Ended,
            1,
        ),
        // Whoever believed the length read something else.
        ("200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: 9\r\n\r\n2\r\nok\r\n0\r\n\r\n", "ok", false, Framing::Ended, 0),
        ("200 OK\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", "ok", false, Framing::Ended, 0),
        // Something to ignore comes first.
        (
            "100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nlink: x\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
            "ok",
            true,
            Framing::Ended,
            0,
        ),
    ] {
        let understood = read(&format!("HTTP/1.1 {rest}"));
        assert_eq!((String::from_utf8_lossy(&understood.body).as_ref(), understood.keep_alive), (body, keep_alive), "{rest}");
        assert_eq!((understood.end, understood.surplus), (end, surplus), "{rest}");
    }
    assert!(!read("HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok").keep_alive);
    assert!(read("HTTP/1.0 200 OK\r\ncontent-length: 2\r\nconnection: Keep-Alive\r\n\r\nok").keep_alive);
    assert!(!read("HTTP/1.0 200 OK\r\ncontent-length: 2\r\nconnection: keep-alive, close\r\n\r\nok").keep_alive);
    assert_eq!(read("\r\n\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").body, b"ok");
}

#[test]
fn what_precedes_a_mistake_in_the_chunks_is_the_bodys() {
    for (chunks, body, mistake) in [
        ("2\r\nok\r\nx\r\n", "ok", Malformed::ChunkSize),
        ("2\r\nokay\r\n", "ok", Malformed::ChunkEnd),
        ("2\nok", "", Malformed::ChunkSize),
        ("\r\n", "", Malformed::ChunkSize),
        (";\r\n", "", Malformed::ChunkSize),
        ("-2\r\nok", "", Malformed::ChunkSize),
        ("2 3\r\nok", "", Malformed::ChunkSize),
        ("2;a\nb\r\nok", "", Malformed::ChunkEnd),
        ("2\rok", "", Malformed::ChunkEnd),
        ("2\r\nok\r0", "ok", Malformed::ChunkEnd),
        ("10000000000000000\r\n", "", Malformed::ChunkSize),
        ("0\r\n\n", "", Malformed::ChunkEnd),
        ("0\r\n\rx", "", Malformed::ChunkEnd),
        ("0\r\na: b\n\r\n", "", Malformed::ChunkEnd),
    ] {
        let understood = read(&format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{chunks}"));
        assert_eq!((String::from_utf8_lossy(&understood.body).as_ref(), understood.end), (body, Framing::Broken(mistake)), "{chunks:?}");
    }
}

#[test]
fn nothing_beside_the_body_goes_on_for_ever() {
    let aside = "x".repeat(MAX_ASIDE);
    for (chunks, broken) in [
        (format!("2;{0}\r\nok\r\n2;{0}\r\nok\r\n0\r\n\r\n", &aside[1..]), false),
        (format!("2;{aside}\r\nok\r\n0\r\n\r\n"), true),
        (format!("0\r\n{}\r\n\r\n", &aside[1..]), false),
        (format!("0\r\n{aside}\r\nx\r\n\r\n"), true),
        ("0".repeat(MAX_ASIDE + 1), true),
        ("00001 \r\nx\r\n".repeat(MAX_ASIDE) + "0\r\n\r\n", false),
    ] {
        let understood = understand(format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{chunks}").as_bytes(), 4096);
        let end = understood.expect("a head").expect("whole").end;
        assert_eq!(end, if broken { Framing::Broken(Malformed::Aside) } else { Framing::Ended });
    }
    let head = |value: usize| format!("HTTP/1.1 200 OK\r\nx: {}\r\n\r\n", "x".repeat(value)).into_bytes();
    assert!(read_head(&head(MAX_HEAD - 40)).expect("short enough").1.is_some());
    assert_eq!(read_head(&head(MAX_HEAD)).map(|_| ()), Err(Malformed::HeadTooLong));
    assert_eq!(read_head(&head(MAX_HEAD)[..MAX_HEAD]).map(|_| ()), Err(Malformed::HeadTooLong));
    let many = |headers: usize| format!("HTTP/1.1 200 OK\r\n{}\r\n", "a: b\r\n".repeat(headers)).into_bytes();
    assert_eq!(read_head(&many(MAX_HEADERS)).expect("few enough").1.map(|h| h.headers.len()), Some(MAX_HEADERS));
    assert_eq!(read_head(&many(MAX_HEADERS + 1)).map(|_| ()), Err(Malformed::Head(httparse::Error::TooManyHeaders)));
}

#[test]
fn what_can_be_understood_in_two_ways_is_refused() {
    for (head, mistake) in [
        ("HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n", Malformed::Length),
        ("HTTP/1.1 200 OK\r\ncontent-length: 1, 2\r\n\r\n", Malformed::Length),
        ("HTTP/1.1 200 OK\r\ncontent-length: +1\r\n\r\n", Malformed::Length),
        ("HTTP/1.1 200 OK\r\ncontent-length: \r\n\r\n", Malformed::Length),
        ("HTTP/1.1 200 OK\r\ncontent-length: 18446744073709551616\r\n\r\n", Malformed::Length),
        ("HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n", Malformed::Coding),
        ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntransfer-encoding: identity\r\n\r\n", Malformed::Coding),
        ("HTTP/1.1 200 OK\r\ntransfer-encoding:\r\n\r\n", Malformed::Coding),
        ("HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", Malformed::Coding),
        ("HTTP/1.1 101 Switching\r\nupgrade: x\r\n\r\n", Malformed::Switched),
        ("HTTP/1.1 099 No\r\n\r\n", Malformed::Status(99)),
        ("HTTP/2 200 OK\r\n\r\n", Malformed::Head(httparse::Error::Version)),
        ("HTTP/1.1 200 OK\r\na b: c\r\n\r\n", Malformed::Head(httparse::Error::HeaderName)),
        ("SSH-2.0-x\r\n", Malformed::Head(httparse::Error::Version)),
    ] {
        assert_eq!(read_head(head.as_bytes()).map(|_| ()), Err(mistake), "{head}");
    }
}

#[test]
fn headers_keep_their_order_and_bytes() {
    let head = read_head(b"HTTP/1.1 200 OK\r\nX-A:  one \r\nx-b:\r\nx-a: t\xffo\r\n\r\n").expect("read").1.expect("whole");
    let all: Vec<(&str, &[u8])> = head.headers.iter().map(|(n, v)| (n.as_str(), v.as_bytes())).collect();
    assert_eq!(all, [("x-a", &b"one"[..]), ("x-a", b"t\xffo"), ("x-b", b"")]);
}

proptest! {
    #[test]
    fn chunks_come_out_as_they_went_in(chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..40), 0..8), cut in 1usize..50) {
        let mut wire = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
        for chunk in &chunks {
            wire.extend_from_slice(format!("{:X}\r\n", chunk.len()).as_bytes());
            wire.extend_from_slice(chunk);
            wire.extend_from_slice(b"\r\n");
        }
        wire.extend_from_slice(b"0\r\n\r\n");
        let understood = understand(&wire, cut).expect("read").expect("whole");
        prop_assert_eq!((understood.body, understood.end, understood.surplus), (chunks.concat(), Framing::Ended, 0));
    }

    #[test]
    fn where_an_answer_is_cut_does_not_matter(
        parts in prop::collection::vec(prop::sample::select(vec![
            "HTTP/1.1 200 OK\r\n", "HTTP/1.0 200 OK\r\n", "HTTP/1.1 100 C\r\n\r\n", "content-length: 3\r\n", "transfer-encoding: chunked\r\n",
            "connection: close\r\n", "\r\n", "3\r\n", "abc", "0\r\n", "\r", "\n", ";x", "g", "ffffffffffffffff\r\n",
        ]), 0..14),
        cut in 1usize..9,
    ) {
        let wire = parts.concat();
        // A head that is never completed may be refused early or late.
        if let (Ok(Some(whole)), cut) = (understand(wire.as_bytes(), usize::MAX), understand(wire.as_bytes(), cut)) {
            prop_assert_eq!(cut, Ok(Some(whole)));
        }
    }
}
