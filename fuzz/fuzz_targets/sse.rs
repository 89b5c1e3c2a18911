//! Any split of a stream gives the same events, and no frame makes a classifier panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use omniroute_fuzz::protocol::Dialect;
use omniroute_fuzz::protocol::progress::{Classifier, Progress};
use omniroute_fuzz::protocol::sse::{Decoder, Event, Flow};

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

fuzz_target!(|input: (usize, &[u8])| {
    let (size, data) = input;
    for dialect in [Dialect::ChatCompletions, Dialect::Messages, Dialect::Responses] {
        let whole = read(std::iter::once(data), dialect);
        assert_eq!(read(data.chunks(size % 16 + 1), dialect), whole);
    }
});
