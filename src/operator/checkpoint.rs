//! The checkpoint ConfigMap: what pods know, so that their successors know it as well.
//!
//! It is fed from the pods, written at most once in five seconds and only when its content changed, and mounted into every pod.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::ConfigMap;

use super::apply::Owner;
use super::build::{Meta, names};
use super::child::{Child, ChildKind};
use crate::resilience::Checkpoint;
use crate::snapshot::packed;

/// Least time between two writes.
pub const INTERVAL: Duration = Duration::from_secs(5);
/// A ConfigMap holds at most 1 MiB.
const MAX_BYTES: usize = 1 << 20;

/// When to ask the pods for their checkpoint. Pure.
#[derive(Debug, Default)]
pub struct Pace {
    changed: bool,
    last: Option<Instant>,
    /// Times in a row that a pod did not answer.
    missed: u32,
}

/// So often a pod that does not tell its checkpoint is waited for, before one is written that lacks what it knows.
const WAITS: u32 = 3;

impl Pace {
    /// The state of a pod changed.
    pub fn changed(&mut self) {
        self.changed = true;
    }

    /// When to ask; `None` while nothing changes.
    #[must_use]
    pub fn due(&self, now: Instant) -> Option<Instant> {
        self.changed.then(|| self.last.map_or(now, |last| (last + INTERVAL).max(now)))
    }

    /// Whether what the pods have answered may be written. It replaces what was written before, so one that is slow would lose its memory: it is asked
    /// again first.
    pub fn answered(&mut self, all: bool) -> bool {
        self.missed = if all { 0 } else { self.missed + 1 };
        self.changed |= !all;
        all || self.missed > WAITS
    }

    /// The pods are being asked.
    pub fn begun(&mut self, now: Instant) {
        self.changed = false;
        self.last = Some(now);
    }
}

/// The memory of all pods as one. The time of the export is that of the newest.
#[must_use]
pub fn merged(parts: &[Checkpoint]) -> Option<Checkpoint> {
    parts.iter().cloned().reduce(|a, b| a.merge(&b))
}

/// What a checkpoint says, without the time at which it was said: equal content is not written again.
#[must_use]
pub fn content(checkpoint: &Checkpoint) -> Checkpoint {
    Checkpoint { exported_ms: 0, ..checkpoint.clone() }
}

/// Why a checkpoint is not written.
#[derive(thiserror::Error, Debug)]
pub enum PackError {
    /// It cannot be represented in JSON.
    #[error("packing the checkpoint: {0}")]
    Encode(#[from] serde_json::Error),
    /// It does not fit.
    #[error("packing the checkpoint: {bytes} bytes are more than a ConfigMap holds (1,048,576); the last one stays")]
    TooLarge {
        /// Compressed size.
        bytes: usize,
    },
}

/// The ConfigMap.
///
/// # Errors
/// If it does not fit.
pub fn child(owner: &Owner, checkpoint: &Checkpoint) -> Result<Child, PackError> {
    let gzip = packed::pack(&serde_json::to_vec(checkpoint)?);
    if gzip.len() > MAX_BYTES {
        return Err(PackError::TooLarge { bytes: gzip.len() });
    }
    let object = ConfigMap {
        metadata: Meta::new(owner).object(names::CHECKPOINT),
        binary_data: Some(BTreeMap::from([(names::CHECKPOINT_KEY.to_owned(), ByteString(gzip))])),
        ..ConfigMap::default()
    };
    Ok(Child::new(ChildKind::ConfigMap, names::CHECKPOINT, &object)?)
}

/// Reads a checkpoint back; one that cannot be read is as good as none.
#[must_use]
pub fn unpack(map: &ConfigMap) -> Option<Checkpoint> {
    let gzip = &map.binary_data.as_ref()?.get(names::CHECKPOINT_KEY)?.0;
    Checkpoint::from_json(&packed::unpack(gzip).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resilience::RuleMemory;

    fn checkpoint(matches: u64, exported_ms: i64) -> Checkpoint {
        Checkpoint {
            version: 1,
            exported_ms,
            rules: [("r".to_owned(), RuleMemory { matches, ..RuleMemory::default() })].into(),
            ..Checkpoint::default()
        }
    }

    #[test]
    fn at_most_one_write_in_five_seconds_and_none_at_rest() {
        let t = Instant::now();
        let mut pace = Pace::default();
        assert_eq!(pace.due(t), None);
        pace.changed();
        assert_eq!(pace.due(t), Some(t));
        pace.begun(t);
        assert_eq!(pace.due(t), None);
        pace.changed();
        assert_eq!(pace.due(t + Duration::from_secs(1)), Some(t + INTERVAL));
        assert_eq!(pace.due(t + Duration::from_secs(9)), Some(t + Duration::from_secs(9)));
    }

    #[test]
    fn a_pod_that_is_slow_does_not_lose_its_memory_and_one_that_is_mute_holds_up_nobody() {
        let t = Instant::now();
        let mut pace = Pace::default();
        pace.begun(t);
        assert!(!pace.answered(false));
        assert_eq!(pace.due(t), Some(t + INTERVAL), "it is asked again");
        pace.begun(t);
        assert!(pace.answered(true) && pace.due(t).is_none());
        assert_eq!([(); 5].map(|()| pace.answered(false)), [false, false, false, true, true]);
    }

    #[test]
    fn a_checkpoint_survives_the_config_map() {
        let owner = Owner { namespace: "a".into(), name: "default".into(), uid: "u".into() };
        let all = merged(&[checkpoint(1, 5), checkpoint(3, 4)]).unwrap();
        let child = child(&owner, &all).unwrap();
        let map: ConfigMap = serde_json::from_value(child.body.clone()).unwrap();
        assert_eq!(unpack(&map), Some(all.clone()));
        assert_eq!(all.rules["r"].matches, 3);
        assert_eq!(content(&checkpoint(3, 1)), content(&checkpoint(3, 2)));
        assert_ne!(content(&checkpoint(3, 1)), content(&checkpoint(4, 1)));
        assert_eq!(unpack(&ConfigMap::default()), None);
        assert_eq!(merged(&[]), None);
    }
}
