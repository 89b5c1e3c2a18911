//! Any split of a stream gives the same events, and no frame makes a classifier panic.

use crate::protocol::Dialect;
use crate::protocol::progress::{Classifier, Progress};
use crate::protocol::sse::{Decoder, Event, Flow};

fn read<'a>(pieces: impl Iterator<Item = &'a [u8]>, dialect: Dialect) -> Vec<Option<Progress>> {
    let (mut decoder, mut classifier, mut seen) = (Decoder::new(), Classifier::new(dialect), Vec::new());
    let mut note = |event: Event<'_>| {
        seen.push(match event {
            Event::Comment => None,
            Event::Oversized => Some(classifier.oversized()),
            Event::Frame { name, data } => Some(classifier.frame(name, data)),
        });
        Flow::Continue
    };
    for piece in pieces {
        decoder.push(piece, &mut note);
    }
    decoder.finish(&mut note);
    seen
}

/// A stream; its last byte says how long the pieces are.
pub fn check(data: &[u8]) {
    let size = usize::from(data.last().copied().unwrap_or_default());
    for dialect in [Dialect::ChatCompletions, Dialect::Messages, Dialect::Responses] {
        let whole = read(std::iter::once(data), dialect);
        assert_eq!(read(data.chunks(size % 16 + 1), dialect), whole);
    }
}
