//! What the gateway makes of a 2xx, which is checked before it counts as an answer.

use crate::protocol::Endpoint;
use crate::protocol::quality::{Expectations, QualityFailure, ValidateResponse, check_answer, is_stream};

/// What a 2xx turns out to be.
#[derive(Debug)]
pub(super) enum Success {
    /// An answer of one of the endpoints.
    Answer,
    /// None: why.
    NoAnswer(QualityFailure),
    /// An error, which is classified by what it says.
    ErrorInside,
    /// A stream; only an error frame before any content makes it a failed attempt.
    Stream,
}

impl Success {
    /// Judges a body as the gateway does, for the endpoint that it fits best.
    pub fn of(body: &[u8], content_type: Option<&str>, empty_stop_is_valid: bool) -> Self {
        if is_stream(body) {
            return Self::Stream;
        }
        let validate = ValidateResponse::default();
        let mut failure = None;
        for endpoint in Endpoint::ALL {
            match check_answer(endpoint, content_type, body, Expectations { validate: &validate, empty_stop_is_valid }) {
                Ok(_) => return Self::Answer,
                Err(QualityFailure::ErrorInside) => return Self::ErrorInside,
                // The endpoint whose shape it has knows best what is wrong.
                Err(shape @ QualityFailure::Shape(_)) => drop(failure.get_or_insert(shape)),
                Err(other) => failure = Some(other),
            }
        }
        failure.map_or(Self::Answer, Self::NoAnswer)
    }

    /// The same for people.
    pub fn note(&self, status: u16) -> String {
        match self {
            Self::Answer => format!(
                "This {status} is an answer: the gateway passes it to the client, and the connection is well. Nothing rests.\n\
                 What it would mean if a check of the combo (validateResponse) refused it: --transport quality."
            ),
            Self::NoAnswer(why) => format!(
                "A {status} is checked before it counts as an answer, and this one is none: {}.\n\
                 It is treated as a failed attempt (like --transport quality) and the request goes on elsewhere; when nobody else can answer, the client gets a 502.",
                match why {
                    QualityFailure::EmptyBody => "its body is empty (give the one you saw with --body)".to_owned(),
                    other => other.to_string(),
                }
            ),
            Self::ErrorInside => {
                format!("The body of this {status} is an error: it is classified under the status that the error names, else as 502.")
            }
            Self::Stream => {
                format!("A stream with {status} fails only by an error frame before its first content; this is what such a frame means.")
            }
        }
    }
}
