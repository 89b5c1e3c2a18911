//! Server-sent events, read incrementally. The same bytes give the same events however they are split.

/// Longest data of one event that is kept for inspection. Longer ones are relayed all the same, but count as [`Event::Oversized`].
pub const MAX_EVENT_BYTES: usize = 4 * 1024 * 1024;
/// Longest event name that is kept.
const MAX_NAME_BYTES: usize = 256;

/// What a stream says next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event<'a> {
    /// A comment line (`: ping`).
    Comment,
    /// An event with data.
    Frame {
        /// The value of the last `event:` line; empty when there was none.
        name: &'a [u8],
        /// The `data:` lines, joined by line feeds.
        data: &'a [u8],
    },
    /// An event whose data is longer than [`MAX_EVENT_BYTES`].
    Oversized,
}

/// What the caller wants after an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flow {
    /// Go on.
    Continue,
    /// Stop reading behind this event.
    Stop,
}

/// The state between two reads. Memory is bounded by [`MAX_EVENT_BYTES`].
#[derive(Debug, Default)]
pub struct Decoder {
    /// Start of a line whose end has not come yet.
    carry: Vec<u8>,
    data: Vec<u8>,
    name: Vec<u8>,
    has_data: bool,
    oversized: bool,
    /// The last byte was CR: an LF that follows belongs to it.
    after_cr: bool,
    /// A byte of the stream was seen, so a byte order mark can no longer come.
    started: bool,
    /// No line or event is open.
    between: bool,
    /// How many of the bytes that were pushed last belong to events that have ended.
    ended: usize,
}

const BOM: &[u8] = b"\xef\xbb\xbf";

impl Decoder {
    /// A decoder at the start of a stream.
    #[must_use]
    pub fn new() -> Self {
        Self { between: true, ..Self::default() }
    }

    /// Reads bytes and answers how many of them were read: all, unless `event` said [`Flow::Stop`], then those up to the end of that event.
    pub fn push(&mut self, bytes: &[u8], mut event: impl FnMut(Event<'_>) -> Flow) -> usize {
        let mut at = 0;
        self.ended = 0;
        while let Some(rest) = bytes.get(at..).filter(|r| !r.is_empty()) {
            if std::mem::take(&mut self.after_cr) && rest.first() == Some(&b'\n') {
                at += 1;
                if self.between {
                    self.ended = at;
                }
                continue;
            }
            let Some(end) = memchr::memchr2(b'\n', b'\r', rest) else {
                self.keep(rest);
                return bytes.len();
            };
            let (line, tail) = rest.split_at(end);
            self.after_cr = tail.first() == Some(&b'\r');
            at += end + 1;
            let flow = if self.carry.is_empty() {
                self.line(line, &mut event)
            } else {
                self.keep(line);
                let line = std::mem::take(&mut self.carry);
                let flow = self.line(&line, &mut event);
                self.carry = line;
                self.carry.clear();
                flow
            };
            if self.between {
                self.ended = at;
            }
            if flow == Flow::Stop {
                // The LF of a final CRLF belongs to the event.
                if self.after_cr && bytes.get(at) == Some(&b'\n') {
                    self.after_cr = false;
                    at += 1;
                }
                self.ended = at;
                return at;
            }
        }
        at
    }

    /// The stream has ended: an event without its blank line is still delivered, because some vendors leave it out.
    pub fn finish(&mut self, mut event: impl FnMut(Event<'_>) -> Flow) {
        let line = std::mem::take(&mut self.carry);
        if !line.is_empty() && self.line(&line, &mut event) == Flow::Stop {
            return;
        }
        self.dispatch(&mut event);
    }

    /// True when no line and no event is open, so that other bytes may be put between two events.
    #[must_use]
    pub fn between_events(&self) -> bool {
        self.between && self.carry.is_empty() && !self.after_cr
    }

    /// How many of the bytes of the last [`Self::push`] belong to events, comments and blank lines that have ended; what follows them is
    /// the beginning of an event.
    #[must_use]
    pub const fn ended(&self) -> usize {
        self.ended
    }

    /// The start of a line that is still open, without its end.
    #[must_use]
    pub fn open_line(&self) -> &[u8] {
        &self.carry
    }

    /// Data lines of the event that is still open.
    #[must_use]
    pub fn open_data(&self) -> &[u8] {
        &self.data
    }

    fn keep(&mut self, part: &[u8]) {
        self.between = false;
        let room = MAX_EVENT_BYTES.saturating_sub(self.carry.len());
        if part.len() > room {
            self.oversized = true;
        }
        self.carry.extend_from_slice(part.get(..room).unwrap_or(part));
    }

    fn line(&mut self, mut line: &[u8], event: &mut impl FnMut(Event<'_>) -> Flow) -> Flow {
        if !std::mem::replace(&mut self.started, true) {
            line = line.strip_prefix(BOM).unwrap_or(line);
        }
        if line.is_empty() {
            return self.dispatch(event);
        }
        self.between = false;
        if line.first() == Some(&b':') {
            self.between = !self.has_data && self.name.is_empty();
            return event(Event::Comment);
        }
        let (field, value) = match memchr::memchr(b':', line) {
            Some(colon) => (line.get(..colon).unwrap_or_default(), line.get(colon + 1..).unwrap_or_default()),
            None => (line, &[][..]),
        };
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match field {
            b"data" => {
                if self.has_data {
                    self.data.push(b'\n');
                }
                self.has_data = true;
                let room = MAX_EVENT_BYTES.saturating_sub(self.data.len());
                self.oversized |= value.len() > room;
                self.data.extend_from_slice(value.get(..room).unwrap_or(value));
            }
            b"event" => {
                self.name.clear();
                self.name.extend_from_slice(value.get(..MAX_NAME_BYTES).unwrap_or(value));
            }
            _ => {}
        }
        Flow::Continue
    }

    fn dispatch(&mut self, event: &mut impl FnMut(Event<'_>) -> Flow) -> Flow {
        let flow = match (self.has_data, self.oversized) {
            (true, false) => event(Event::Frame { name: &self.name, data: &self.data }),
            (_, true) => event(Event::Oversized),
            (false, false) => Flow::Continue,
        };
        self.data.clear();
        self.name.clear();
        if self.data.capacity() > 64 * 1024 {
            self.data.shrink_to(4096);
        }
        (self.has_data, self.oversized, self.between) = (false, false, true);
        flow
    }
}

#[cfg(test)]
#[path = "sse_tests.rs"]
mod tests;
