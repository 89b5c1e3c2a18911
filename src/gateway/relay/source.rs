//! The upstream side of a stream: reads, splits into events, classifies them.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::HeaderMap;
use http::header::CONTENT_ENCODING;
use http_body::Body;

use super::inflate::Inflate;
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
    body: B,
    inflate: Option<Inflate>,
    decoder: Decoder,
    classifier: Classifier,
    converted: bool,
}

impl<B> Source<B> {
    /// What was seen so far.
    pub const fn facts(&self) -> &StreamFacts {
        self.classifier.facts()
    }

    /// Whether frames came compressed, or were made from a body of another kind.
    pub const fn is_rewritten(&self) -> bool {
        self.inflate.is_some() || self.converted
    }

    /// Starts again with the frames that were made from a whole answer.
    pub fn convert(&mut self, frames: Bytes, dialect: Dialect) -> Step {
        (self.decoder, self.classifier, self.converted) = (Decoder::new(), Classifier::new(dialect), true);
        self.absorb(frames)
    }

    fn absorb(&mut self, mut bytes: Bytes) -> Step {
        let mut step = Step::default();
        let classifier = &mut self.classifier;
        let read = self.decoder.push(&bytes, |event| classify(classifier, &mut step, event));
        bytes.truncate(read);
        step.bytes = bytes;
        step
    }

    /// The framing, to end the stream cleanly.
    pub const fn decoder(&self) -> &Decoder {
        &self.decoder
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
        Ok(Self { body, inflate, decoder: Decoder::new(), classifier: Classifier::new(dialect), converted: false })
    }

    pub async fn next(&mut self) -> Result<Step, BodyError> {
        poll_fn(|cx| self.poll_step(cx)).await
    }

    pub fn poll_step(&mut self, cx: &mut Context<'_>) -> Poll<Result<Step, BodyError>> {
        loop {
            let Some(frame) = ready!(Pin::new(&mut self.body).poll_frame(cx)) else {
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
        let classifier = &mut self.classifier;
        self.decoder.finish(|event| classify(classifier, &mut step, event));
        step
    }
}

fn classify(classifier: &mut Classifier, step: &mut Step, event: Event<'_>) -> Flow {
    match event {
        Event::Comment => Flow::Continue,
        Event::Oversized => {
            step.note(classifier.oversized());
            Flow::Continue
        }
        Event::Frame { name, data } => {
            let progress = classifier.frame(name, data);
            if progress == Progress::Error {
                step.error = Some(Bytes::copy_from_slice(data));
                return Flow::Stop;
            }
            step.note(progress);
            Flow::Continue
        }
    }
}
