//! Rotation thresholds by status class (spec: resilience 5.4; decisions 1.10): they decide whether a failure cools the connection, never
//! whether the request may go on.

use std::collections::{BTreeMap, VecDeque};

use crate::api::time::EpochMs;
use crate::snapshot::{Rotation, RotationClass};

/// Most failures that are remembered per status.
const MAX_REMEMBERED: usize = 1_000;

/// Most statuses with a window at the same time per connection (429, 502, 400 and the 5xx that occur).
const MAX_STATUSES: usize = 16;

/// Failures of one connection that have not led to a cooldown yet, by exact status.
#[derive(Clone, Debug, Default)]
pub struct RotationWindows {
    windows: BTreeMap<u16, VecDeque<i64>>,
}

impl RotationWindows {
    /// True when a failure with this status may cool the connection. Below the threshold it is only counted; reaching it empties the
    /// window.
    pub fn may_cool(&mut self, status: u16, rotation: &Rotation, now: EpochMs) -> bool {
        let Some(class) = class_of(status, rotation) else { return true };
        // A plain 400 is never gated, only opted in; whether it cools at all is the verdict's business.
        if status == 400 && !class.enabled {
            return true;
        }
        if !rotation.enabled || !class.enabled {
            return false;
        }
        class.threshold <= 1 || self.reaches(status, class, now)
    }

    fn reaches(&mut self, status: u16, class: &RotationClass, now: EpochMs) -> bool {
        if self.windows.len() >= MAX_STATUSES && !self.windows.contains_key(&status) {
            self.windows.pop_first();
        }
        let window = self.windows.entry(status).or_default();
        window.push_back(now.0);
        while window.front().is_some_and(|t| now.since(EpochMs(*t)) > class.window_ms) || window.len() > MAX_REMEMBERED {
            window.pop_front();
        }
        let reached = window.len() >= (class.threshold as usize).min(MAX_REMEMBERED);
        if reached {
            window.clear();
        }
        reached
    }
}

/// The class of a status; `None` = not gated.
fn class_of(status: u16, rotation: &Rotation) -> Option<&RotationClass> {
    match status {
        400 => Some(&rotation.on_400),
        429 => Some(&rotation.on_429),
        502 => Some(&rotation.on_502),
        500..=599 => Some(&rotation.on_500),
        _ => None,
    }
}
