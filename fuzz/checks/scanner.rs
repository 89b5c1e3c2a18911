//! The request scanner never panics, and what it accepts a full parser reads in the same way.

use bytes::Bytes;
use serde_json::Value;

use crate::protocol::scan::{scan_request, splice_model};

/// Any bytes.
pub fn check(data: &[u8]) {
    let Ok(head) = scan_request(data) else { return };
    // Numbers beyond the range of a double and lone surrogates in values are JSON that serde_json does not represent.
    let Ok(value) = serde_json::from_slice::<Value>(data) else { return };
    assert_eq!(value.get("model").and_then(Value::as_str), Some(head.model.as_str()));
    assert_eq!(value.get("stream").and_then(Value::as_bool).unwrap_or(false), head.stream);
    let spliced = splice_model(&Bytes::copy_from_slice(data), &head, "other/\"model\"").into_pieces().concat();
    let mut expected = value;
    expected["model"] = Value::from("other/\"model\"");
    assert_eq!(serde_json::from_slice::<Value>(&spliced).ok(), Some(expected));
}
