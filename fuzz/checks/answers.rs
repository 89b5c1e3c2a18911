//! No answer makes a check panic, and a whole answer that becomes a stream becomes a good one.

use crate::protocol::progress::Classifier;
use crate::protocol::quality::{Expectations, QualityFailure, ValidateResponse, check_answer, is_error};
use crate::protocol::restream::as_stream;
use crate::protocol::sse::{Decoder, Event, Flow};
use crate::protocol::{Dialect, Endpoint};

/// Any bytes.
pub fn check(data: &[u8]) {
    let validate = ValidateResponse { min_content_length: 1, forbidden: vec!["x".to_owned()], ..ValidateResponse::default() };
    for endpoint in Endpoint::ALL {
        for validate in [&ValidateResponse::default(), &validate] {
            let expect = Expectations { validate, empty_stop_is_valid: false };
            let checked = check_answer(endpoint, Some("application/json"), data, expect);
            assert!(!is_error(data) || matches!(checked, Err(QualityFailure::ErrorInside)), "{checked:?}");
        }
    }
    for dialect in [Dialect::ChatCompletions, Dialect::Messages, Dialect::Responses] {
        let Some(stream) = as_stream(dialect, data) else { continue };
        let mut classifier = Classifier::new(dialect);
        Decoder::new().push(&stream, |event| {
            if let Event::Frame { name, data } = event {
                classifier.frame(name, data);
            }
            Flow::Continue
        });
        assert!(classifier.facts().frames > 0);
    }
}
