//! What is kept of a text answer while it is relayed, so that it can be continued when it breaks (routing spec 10.4).

use bytes::{Bytes, BytesMut};

use crate::gateway::admission::{Buffered, Buffers};
use crate::protocol::progress::Progress;
use crate::protocol::resume::{AnswerHead, Joint, gather};
use crate::protocol::sse::Event;

/// Longest text that is kept; a longer answer is not continued.
const MAX_TEXT: usize = 256 * 1024;
/// Longest beginning of an event that is held back.
const MAX_OPEN: usize = 64 * 1024;
/// Reserved at once for kept text.
const STEP: usize = 4 * 1024;

/// Follows an answer: keeps its text, and gives out whole events only, so that the client never has half a sentence that is not in the text.
#[derive(Debug)]
pub(super) struct Trail {
    head: AnswerHead,
    /// What the client has, or is about to get.
    text: String,
    /// The beginning of an event whose end has not come.
    open: BytesMut,
    /// The answer is the rest of another one.
    joint: Option<Joint>,
    /// Frames of the rest that go to the client.
    out: Vec<u8>,
    buffers: Buffers,
    room: Option<Buffered>,
    /// The text is not all that the client has, or is too long: there is no way on.
    lost: bool,
}

impl Trail {
    /// The trail of an answer from its beginning. Its text counts among the bytes that all bodies may use.
    pub fn new(buffers: Buffers) -> Box<Self> {
        let (head, text, open) = (AnswerHead::default(), String::new(), BytesMut::new());
        Box::new(Self { head, text, open, joint: None, out: Vec::new(), buffers, room: None, lost: false })
    }

    /// The same trail for an answer that continues this one. What the broken answer left unfinished is forgotten.
    pub fn joined(mut self: Box<Self>) -> Box<Self> {
        self.open.clear();
        self.out.clear();
        self.joint = Some(Joint::new(self.head.clone(), &self.text));
        self
    }

    /// The text so far.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// True when there is a text, and it is what the client has.
    pub const fn leads_on(&self) -> bool {
        !self.lost && !self.text.is_empty()
    }

    /// True while the client gets whole events only.
    pub const fn is_whole(&self) -> bool {
        self.joint.is_some() || !self.lost
    }

    /// A frame was read.
    pub fn saw(&mut self, event: Event<'_>, progress: Progress) {
        let Event::Frame { data, .. } = event else { return self.lose() };
        if let Some(joint) = &mut self.joint {
            joint.frame(data, &mut self.out, &mut self.text);
            if self.lost {
                self.text.clear();
            }
        } else if !(self.lost || data.trim_ascii().is_empty() || matches!(progress, Progress::Terminal | Progress::Malformed)) {
            self.lost = !gather(data, &mut self.head, &mut self.text);
        }
        if self.text.len() > MAX_TEXT || !self.has_room() {
            self.lose();
        }
    }

    fn has_room(&mut self) -> bool {
        let reserved = self.room.as_ref().map_or(0, Buffered::bytes);
        let missing = (self.text.len() as u64).saturating_sub(reserved);
        if missing == 0 {
            return true;
        }
        match (self.buffers.reserve(missing.max(STEP as u64)), &mut self.room) {
            (None, _) => false,
            (Some(more), Some(room)) => {
                room.absorb(more);
                true
            }
            (more, room) => {
                *room = more;
                true
            }
        }
    }

    fn lose(&mut self) {
        self.lost = true;
        self.room = None;
        self.text = String::new();
    }

    /// What goes to the client of bytes of which `ended` belong to events that have ended.
    pub fn give_out(&mut self, bytes: Bytes, ended: usize) -> Bytes {
        if self.joint.is_some() {
            return std::mem::take(&mut self.out).into();
        }
        if self.open.len() + bytes.len() - ended.min(bytes.len()) > MAX_OPEN {
            self.lose();
        }
        let given = if self.lost { bytes.len() } else { ended.min(bytes.len()) };
        if self.open.is_empty() && given == bytes.len() {
            return bytes;
        }
        let (now, later) = bytes.split_at(given);
        let mut out = if given > 0 { self.open.split() } else { BytesMut::new() };
        out.extend_from_slice(now);
        self.open.extend_from_slice(later);
        out.freeze()
    }

    /// What goes to the client when the body has ended: all that is left, and what the rest of an answer lacks of a regular end. `text_before` is
    /// the length of the text before the body's end was read: a last event without its end stays here unless the answer is complete.
    pub fn finish(&mut self, complete: bool, text_before: usize) -> Bytes {
        match &mut self.joint {
            Some(joint) if complete => joint.end(&mut self.out, &mut self.text),
            Some(_) => {}
            None if complete => return self.open.split().freeze(),
            None => self.text.truncate(text_before),
        }
        std::mem::take(&mut self.out).into()
    }
}
