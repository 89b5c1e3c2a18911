//! Where an answer is cut does not matter: the same head, the same body, the same mistake.

use crate::protocol::http1::{Framing, Head, read_head};

/// Status, body and end; `None` for what is no answer, or not yet one.
fn read(data: &[u8], size: usize) -> Option<(u16, Vec<u8>, Framing)> {
    let mut answer: Option<(Head, Vec<u8>)> = None;
    let mut held = Vec::new();
    for piece in data.chunks(size) {
        held.extend_from_slice(piece);
        if answer.is_none() {
            let (understood, head) = read_head(&held).ok()?;
            held.drain(..understood);
            answer = head.map(|head| (head, Vec::new()));
        }
        if let Some((head, body)) = &mut answer {
            let decoded = head.framing.decode(&mut held);
            assert!(decoded.payload <= decoded.consumed && decoded.consumed <= held.len());
            body.extend_from_slice(&held[..decoded.payload]);
            held.clear();
        }
    }
    answer.map(|(head, body)| (head.status.as_u16(), body, head.framing))
}

/// An answer; its last byte says how long the pieces are.
pub fn check(data: &[u8]) {
    let size = usize::from(data.last().copied().unwrap_or_default()) % 16 + 1;
    // What is no answer may be refused early or late, but never taken for another one.
    if let (Some(whole), Some(pieces)) = (read(data, usize::MAX), read(data, size)) {
        assert_eq!(pieces, whole);
    }
}
