//! What is delivered to a gateway never makes it panic: bytes that are no gzip, gzip of anything, JSON of any shape, and names in it that
//! lead nowhere. What is read is written as it was.

use std::sync::Arc;

use crate::classify::RuleSet;
use crate::routing::Router;
use crate::snapshot::Snapshot;
use crate::snapshot::packed::{MAX_DOCUMENT, pack, unpack};

/// Any bytes: a packed document, or JSON.
pub fn check(data: &[u8]) {
    if let Ok(json) = unpack(data) {
        assert!(json.len() <= MAX_DOCUMENT);
        read(&json);
    }
    assert_eq!(unpack(&pack(data)).ok().as_deref(), Some(data));
    read(data);
}

fn read(json: &[u8]) {
    let Ok(snapshot) = Snapshot::from_json(json) else { return };
    let written = snapshot.canonical_json().unwrap();
    let again = Snapshot::from_json(&written).unwrap();
    assert_eq!(again.canonical_json().unwrap(), written);
    let _ = RuleSet::new(&snapshot.rules, &snapshot.settings.disabled_builtins, &snapshot.settings.custom_banned_signals);
    let router = Router::new(Arc::new(snapshot), None);
    let _ = Router::new(Arc::new(again), Some(&router));
}
