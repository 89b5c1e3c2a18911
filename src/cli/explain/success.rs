//! What the gateway makes of a 2xx, which is checked before it counts as an answer.

use crate::classify::TransportError;
use crate::protocol::progress::{Classifier, Progress};
use crate::protocol::quality::{Expectations, QualityFailure, ValidateResponse, check_answer, check_stream_end, is_stream};
use crate::protocol::sse::{Decoder, Event, Flow};
use crate::protocol::{Dialect, Endpoint};

/// Dialects that have streams.
const STREAMED: [Dialect; 3] = [Dialect::ChatCompletions, Dialect::Messages, Dialect::Responses];

/// What a 2xx turns out to be.
#[derive(Debug)]
pub(super) enum Success {
    /// An answer of this endpoint.
    Answer(Endpoint),
    /// A stream with something that a client can use.
    Stream,
    /// None: why.
    NoAnswer(QualityFailure),
    /// A stream that ended before anything of it counted.
    Interrupted,
    /// An error, which is classified by what it says.
    ErrorInside,
    /// A stream that begins with an error frame, which is classified by what it says.
    ErrorFrame,
}

impl Success {
    /// Judges a body as the gateway does, for the endpoint of these dialects that it fits best.
    pub fn of(body: &[u8], content_type: Option<&str>, dialects: &[Dialect], empty_stop_is_valid: bool) -> Self {
        let spoken = |dialect: Dialect| dialects.is_empty() || dialects.contains(&dialect);
        if is_stream(body) {
            return Self::of_stream(body, STREAMED.into_iter().filter(|dialect| spoken(*dialect)), empty_stop_is_valid);
        }
        let validate = ValidateResponse::default();
        let mut failure = QualityFailure::EmptyBody;
        for endpoint in Endpoint::ALL.into_iter().filter(|endpoint| spoken(endpoint.dialect())) {
            match check_answer(endpoint, content_type, body, Expectations { validate: &validate, empty_stop_is_valid }) {
                Ok(_) => return Self::Answer(endpoint),
                Err(QualityFailure::ErrorInside) => return Self::ErrorInside,
                // The endpoint whose shape it has knows best what is wrong.
                Err(QualityFailure::Shape(_)) if !matches!(failure, QualityFailure::EmptyBody) => {}
                Err(other) => failure = other,
            }
        }
        Self::NoAnswer(failure)
    }

    fn of_stream(body: &[u8], dialects: impl Iterator<Item = Dialect>, empty_stop_is_valid: bool) -> Self {
        let mut outcome = Self::Interrupted;
        for dialect in dialects {
            let (mut classifier, mut seen) = (Classifier::new(dialect), Progress::None);
            let mut note = |event: Event<'_>| {
                let Event::Frame { name, data } = event else { return Flow::Continue };
                seen = classifier.frame(name, data);
                if seen.commits() || seen == Progress::Error { Flow::Stop } else { Flow::Continue }
            };
            let mut decoder = Decoder::new();
            decoder.push(body, &mut note);
            decoder.finish(&mut note);
            match seen {
                Progress::Error => return Self::ErrorFrame,
                seen if seen.commits() => return Self::Stream,
                _ if !classifier.facts().is_complete() => {}
                _ => match check_stream_end(classifier.facts(), empty_stop_is_valid) {
                    Ok(()) => return Self::Stream,
                    Err(failure) => outcome = Self::NoAnswer(failure),
                },
            }
        }
        outcome
    }

    /// How the check failed, if it did: then nothing of the answer is looked at any more.
    pub const fn failed_check(&self) -> Option<TransportError> {
        match self {
            Self::NoAnswer(_) => Some(TransportError::Quality),
            Self::Interrupted => Some(TransportError::StreamInterrupted),
            Self::Answer(_) | Self::Stream | Self::ErrorInside | Self::ErrorFrame => None,
        }
    }

    /// Nothing has failed.
    pub const fn is_answer(&self) -> bool {
        matches!(self, Self::Answer(_) | Self::Stream)
    }

    /// The same for people.
    pub fn note(&self, status: u16) -> String {
        let treated =
            "It is treated as a failed attempt and the request goes on elsewhere; when nobody else can answer, the client gets a 502.";
        match self {
            Self::Answer(endpoint) => format!(
                "This {status} is an answer of /v1{}: the gateway passes it to the client, and the connection is well. Nothing rests.\n\
                 What it would mean if a check of the combo (validateResponse) refused it: --transport quality.",
                endpoint.path()
            ),
            Self::Stream => format!(
                "This {status} is a stream with content: the gateway passes it to the client, and the connection is well. Nothing rests.\n\
                 What it would mean if it broke off: --transport stream-interrupted."
            ),
            Self::NoAnswer(why) => format!(
                "A {status} is checked before it counts as an answer, and this one is none: {}.\n{treated} This is like --transport quality.",
                match why {
                    QualityFailure::EmptyBody => "its body is empty (give the one you saw with --body)".to_owned(),
                    other => other.to_string(),
                }
            ),
            Self::Interrupted => format!(
                "A stream is held until its first content, and this {status} ends before it.\n{treated} This is like --transport stream-interrupted."
            ),
            Self::ErrorInside => {
                format!("The body of this {status} is an error: it is classified under the status that the error names, else as 502.")
            }
            Self::ErrorFrame => {
                format!("This stream with {status} begins with an error frame, before its first content: this is what such a frame means.")
            }
        }
    }
}
