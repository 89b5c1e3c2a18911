//! The upstream side of a stream: reads, splits into events, classifies them.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::HeaderMap;
use http::header::CONTENT_ENCODING;
use http_body::Body;

use super::closing::close_open_event;
use super::inflate::Inflate;
use super::trail::Trail;
use crate::gateway::upstream::BodyError;
use crate::protocol::Dialect;
use crate::protocol::progress::{Classifier, Progress, StreamFacts};
use crate::protocol::sse::{Decoder, Event, Flow};

/// One read and what its frames mean.
#[derive(Debug, Default)]
pub(super) struct Step {
    /// The bytes as they came, up to the end of the last frame that counts.
    pub bytes: Bytes,
    /// A frame that a client can use was among them.
    pub commits: bool,
    /// Content other than reasoning was among them.
    pub content: bool,
    /// Text was among them.
    pub text: bool,
    /// A reasoning frame was among them.
    pub reasoning: bool,
    /// Anything that counts as progress was among them.
    pub progress: bool,
    /// The regular last frame was among them.
    pub terminal: bool,
    /// The data of an error frame; nothing after it is read.
    pub error: Option<Bytes>,
    /// The body has ended.
    pub eof: bool,
}

impl Step {
    /// Takes over what an earlier read meant.
    pub fn after(mut self, earlier: &Self) -> Self {
        self.commits |= earlier.commits;
        self.content |= earlier.content;
        self.text |= earlier.text;
        self.reasoning |= earlier.reasoning;
        self.progress |= earlier.progress;
        self.terminal |= earlier.terminal;
        self
    }

    fn note(&mut self, progress: Progress) {
        self.commits |= progress.commits();
        self.content |= progress.is_content();
        self.text |= progress == Progress::Content;
        self.reasoning |= progress == Progress::Reasoning;
        self.progress |= progress.is_progress();
        self.terminal |= progress == Progress::Terminal;
    }
}

/// A body being read as a stream of events.
#[derive(Debug)]
pub(super) struct Source<B> {
    /// `None` when the frames were made from a whole answer.
    body: Option<B>,
    inflate: Option<Inflate>,
    decoder: Decoder,
    classifier: Classifier,
    /// What is kept so that the answer can be continued when it breaks.
    trail: Option<Box<Trail>>,
}

impl<B> Source<B> {
    /// What was seen so far.
    pub const fn facts(&self) -> &StreamFacts {
        self.classifier.facts()
    }

    /// Whether frames came compressed, or were made from a body of another kind.
    pub const fn is_rewritten(&self) -> bool {
        self.inflate.is_some() || self.body.is_none()
    }

    /// The frames that were made from a whole answer, and what they mean.
    pub fn of_whole(frames: Bytes, dialect: Dialect) -> (Self, Step) {
        let mut source = Self { body: None, inflate: None, decoder: Decoder::new(), classifier: Classifier::new(dialect), trail: None };
        let step = Step { eof: true, ..source.absorb(frames) };
        (source, step)
    }

    /// Keeps what is needed to continue the answer.
    pub fn with_trail(mut self, trail: Option<Box<Trail>>) -> Self {
        self.trail = trail;
        self
    }

    /// Gives the trail up, if the answer can be continued where it stands.
    pub fn take_trail(&mut self) -> Option<Box<Trail>> {
        let facts = self.facts();
        let only_text = !(facts.tool_call || facts.refusal || facts.other_content || facts.is_complete());
        self.trail.take_if(|trail| only_text && trail.leads_on())
    }

    fn absorb(&mut self, mut bytes: Bytes) -> Step {
        let mut step = Step::default();
        let (classifier, trail) = (&mut self.classifier, &mut self.trail);
        let read = self.decoder.push(&bytes, |event| classify(classifier, trail, &mut step, event));
        bytes.truncate(read);
        step.bytes = match trail {
            None => bytes,
            Some(trail) => trail.give_out(bytes, self.decoder.ended()),
        };
        step
    }

    /// True where something else may be said to the client.
    pub fn between_events(&self) -> bool {
        self.trail.as_ref().is_some_and(|trail| trail.is_whole()) || self.decoder.between_events()
    }

    /// What ends an event that the client has the beginning of.
    pub fn closing(&self, dialect: Dialect) -> Vec<u8> {
        if self.between_events() { Vec::new() } else { close_open_event(&self.decoder, dialect) }
    }
}

impl<B> Source<B>
where
    B: Body<Data = Bytes, Error = BodyError> + Unpin,
{
    /// # Errors
    /// The body has an encoding that cannot be decoded.
    pub fn new(body: B, headers: &HeaderMap, dialect: Dialect) -> Result<Self, String> {
        let encoding = headers.get(CONTENT_ENCODING).and_then(|v| v.to_str().ok()).unwrap_or("identity");
        let inflate = Inflate::for_encoding(encoding)?;
        Ok(Self { body: Some(body), inflate, decoder: Decoder::new(), classifier: Classifier::new(dialect), trail: None })
    }

    pub async fn next(&mut self) -> Result<Step, BodyError> {
        poll_fn(|cx| self.poll_step(cx)).await
    }

    pub fn poll_step(&mut self, cx: &mut Context<'_>) -> Poll<Result<Step, BodyError>> {
        loop {
            let Some(body) = &mut self.body else { return Poll::Ready(Ok(self.finish())) };
            let Some(frame) = ready!(Pin::new(body).poll_frame(cx)) else {
                return Poll::Ready(Ok(self.finish()));
            };
            let Ok(mut bytes) = frame?.into_data() else { continue };
            if let Some(inflate) = &mut self.inflate {
                bytes = inflate.push(&bytes)?;
            }
            if !bytes.is_empty() {
                return Poll::Ready(Ok(self.absorb(bytes)));
            }
        }
    }

    fn finish(&mut self) -> Step {
        let mut step = Step { eof: true, ..Step::default() };
        let (classifier, trail) = (&mut self.classifier, &mut self.trail);
        let text_before = trail.as_ref().map_or(0, |trail| trail.text().len());
        self.decoder.finish(|event| classify(classifier, trail, &mut step, event));
        if let Some(trail) = trail {
            step.bytes = trail.finish(classifier.facts().is_complete(), text_before);
        }
        step
    }
}

fn classify(classifier: &mut Classifier, trail: &mut Option<Box<Trail>>, step: &mut Step, event: Event<'_>) -> Flow {
    let progress = match event {
        Event::Comment => return Flow::Continue,
        Event::Oversized => classifier.oversized(),
        Event::Frame { name, data } => classifier.frame(name, data),
    };
    if let Event::Frame { data, .. } = event
        && progress == Progress::Error
    {
        step.error = Some(Bytes::copy_from_slice(data));
        return Flow::Stop;
    }
    if let Some(trail) = trail {
        trail.saw(event, progress);
    }
    step.note(progress);
    Flow::Continue
}
