//! Ends an event that the provider left half sent, so that the error frame behind it is read.

use crate::protocol::Dialect;
use crate::protocol::json::complete;
use crate::protocol::sse::Decoder;

/// What must be sent so that the next event starts cleanly.
///
/// Bytes that were relayed cannot be taken back, and clients give up on an event that is not JSON before they look at the next one. So a
/// half Messages event is renamed to a ping, which clients ignore, and the JSON of a half Chat or Responses event is closed where it stands.
pub(super) fn close_open_event(decoder: &Decoder, dialect: Dialect) -> Vec<u8> {
    if decoder.between_events() {
        return Vec::new();
    }
    let line = decoder.open_line();
    let data = line.strip_prefix(b"data:").map(|d| d.strip_prefix(b" ").unwrap_or(d));
    let mut out = Vec::new();
    match (dialect, data) {
        (Dialect::Messages, _) => out.extend_from_slice(if line.is_empty() { b"event: ping\n\n" } else { b"\nevent: ping\n\n" }),
        (_, Some(data)) if decoder.open_data().is_empty() => {
            out.extend_from_slice(&complete(data));
            out.extend_from_slice(b"\n\n");
        }
        _ => out.extend_from_slice(b"\n\n"),
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::sse::{Event, Flow};

    /// Closing after any prefix of a stream leaves nothing but well-formed events, and the next event is read.
    #[test]
    fn any_cut_leaves_readable_events() {
        let chat = "data: {\"id\":\"a\",\"choices\":[{\"delta\":{\"content\":\"漢\\u6f22\\n\"},\"n\":-1.5e3,\"b\":[true,null]}]}\r\n\r\n";
        let messages = "event: content_block_delta\ndata: {\"type\":\"content_block_delta\"}\n\n";
        for (dialect, text) in [(Dialect::ChatCompletions, chat), (Dialect::Messages, messages)] {
            for cut in 0..=text.len() {
                let mut decoder = Decoder::new();
                let mut seen = Vec::new();
                let mut read = |d: &mut Decoder, bytes: &[u8]| {
                    d.push(bytes, |e| {
                        if let Event::Frame { name, data } = e {
                            seen.push((name.to_vec(), String::from_utf8(data.to_vec()).expect("UTF-8")));
                        }
                        Flow::Continue
                    });
                };
                read(&mut decoder, &text.as_bytes()[..cut]);
                let closing = close_open_event(&decoder, dialect);
                read(&mut decoder, &closing);
                read(&mut decoder, b"data: last\n\n");
                assert_eq!(seen.pop(), Some((vec![], "last".to_owned())), "cut at {cut}");
                for (name, data) in seen {
                    let good = data.is_empty() || serde_json::from_str::<serde_json::Value>(&data).is_ok() || name == b"ping";
                    assert!(good, "{dialect:?} cut at {cut}: {data}");
                }
            }
        }
    }
}
