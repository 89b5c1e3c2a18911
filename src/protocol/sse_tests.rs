use super::*;
use proptest::prelude::*;

#[derive(Clone, PartialEq, Eq, Debug)]
enum Seen {
    Comment,
    Frame(String, String),
    Oversized,
}

fn seen(event: Event<'_>) -> Seen {
    match event {
        Event::Comment => Seen::Comment,
        Event::Oversized => Seen::Oversized,
        Event::Frame { name, data } => Seen::Frame(String::from_utf8_lossy(name).into_owned(), String::from_utf8_lossy(data).into_owned()),
    }
}

fn decode<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<Seen> {
    let (mut decoder, mut out) = (Decoder::new(), Vec::new());
    for piece in pieces {
        let read = decoder.push(piece, |e| {
            out.push(seen(e));
            Flow::Continue
        });
        assert_eq!(read, piece.len());
    }
    decoder.finish(|e| {
        out.push(seen(e));
        Flow::Continue
    });
    out
}

fn frame(name: &str, data: &str) -> Seen {
    Seen::Frame(name.into(), data.into())
}

#[test]
fn lines_end_with_cr_lf_or_both() {
    for end in ["\n", "\r", "\r\n"] {
        let text =
            format!("event: a{end}data: 1{end}data:2{end}{end}: ping{end}data{end}{end}id: x{end}{end}retry: 1{end}data:  3{end}{end}");
        assert_eq!(decode([text.as_bytes()]), [frame("a", "1\n2"), Seen::Comment, frame("", ""), frame("", " 3")], "{end:?}");
    }
}

#[test]
fn a_byte_order_mark_is_skipped_once() {
    assert_eq!(decode([&b"\xef\xbb"[..], b"\xbfdata: 1\n\n\xef\xbb\xbfdata: 2\n\n"]), [frame("", "1")]);
}

#[test]
fn an_event_without_its_blank_line_counts_at_the_end() {
    assert_eq!(decode([&b"data: [DONE]"[..]]), [frame("", "[DONE]")]);
    assert_eq!(decode([&b"data: [DONE]\n"[..]]), [frame("", "[DONE]")]);
    assert_eq!(decode([&b"event: x\n"[..]]), []);
}

#[test]
fn memory_is_bounded_and_long_events_are_reported() {
    let mut decoder = Decoder::new();
    let mut out = Vec::new();
    let mut push = |d: &mut Decoder, bytes: &[u8]| {
        d.push(bytes, |e| {
            out.push(seen(e));
            Flow::Continue
        })
    };
    push(&mut decoder, b"data: ");
    for _ in 0..80 {
        push(&mut decoder, &vec![b'x'; 100_000]);
    }
    assert!(decoder.carry.len() <= MAX_EVENT_BYTES);
    push(&mut decoder, b"\n\ndata: 1\n\n");
    assert_eq!(out, [Seen::Oversized, frame("", "1")]);
}

#[test]
fn stop_leaves_what_follows_unread() {
    for (text, read) in [("data: 1\n\ndata: 2\n\n", 9), ("data: 1\r\n\r\ndata: 2\r\n\r\n", 11), ("data: 1\r\rdata: 2\r\r", 9)] {
        assert_eq!(Decoder::new().push(text.as_bytes(), |_| Flow::Stop), read, "{text:?}");
    }
}

#[test]
fn knows_where_other_bytes_may_go() {
    let mut d = Decoder::new();
    let mut between = |bytes: &[u8]| {
        d.push(bytes, |_| Flow::Continue);
        d.between_events()
    };
    assert!(!between(b"data: 1"));
    assert!(!between(b"\n"));
    assert!(between(b"\n"));
    assert!(between(b": comment\n"));
    assert!(!between(b"event: x\n"));
    assert!(!between(b": comment\n"));
    assert!(between(b"\n"));
}

proptest! {
    #[test]
    fn any_split_gives_the_same_events(
        text in r"((data|event|id|retry|foo|)(:| :|: |)[a-z{}:\u{feff} ]{0,6}(\n|\r|\r\n|\n\n|\r\n\r\n)){0,12}",
        bom in any::<bool>(), cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let text = if bom { format!("\u{feff}{text}") } else { text };
        let bytes = text.as_bytes();
        let mut cuts: Vec<usize> = cuts.iter().map(|c| c.index(bytes.len() + 1)).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        let pieces = cuts.windows(2).map(|w| &bytes[w[0]..w[1]]);
        let whole = decode([bytes]);
        prop_assert_eq!(&decode(pieces), &whole);
        prop_assert_eq!(&decode(bytes.iter().map(std::slice::from_ref)), &whole);
    }

    /// Stopping at each event in turn and going on reads the same events.
    #[test]
    fn stopping_loses_nothing(text in r"((data: [a-z]{0,3}|: c|event: e)(\n|\r|\r\n|\n\n|\r\n\r\n)){0,8}") {
        let (mut decoder, mut out, mut rest) = (Decoder::new(), Vec::new(), text.as_bytes());
        while !rest.is_empty() {
            let read = decoder.push(rest, |e| { out.push(seen(e)); Flow::Stop });
            prop_assert!(read > 0);
            rest = &rest[read..];
        }
        decoder.finish(|e| { out.push(seen(e)); Flow::Continue });
        prop_assert_eq!(out, decode([text.as_bytes()]));
    }

    #[test]
    fn no_input_makes_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        decode([&bytes[..]]);
    }
}
