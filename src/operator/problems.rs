//! What went wrong while the children of a gateway were applied.

use super::error::{Error, Retry};
use super::status::Trouble;

/// Collects what goes wrong with children: one that fails does not keep the others from being applied.
#[derive(Default)]
pub struct Problems {
    trouble: Option<Trouble>,
    error: Option<Error>,
}

impl Problems {
    /// Takes note of a failed step; `Err` when going on makes no sense.
    ///
    /// # Errors
    /// The failed step's.
    pub fn note<T>(&mut self, step: Result<T, Error>) -> Result<Option<T>, Error> {
        let error = match step {
            Ok(value) => return Ok(Some(value)),
            Err(error) => error,
        };
        if matches!(error, Error::NotLeader { .. } | Error::Timeout { .. } | Error::Claimed { .. }) || error.reason() == "ApiUnreachable" {
            return Err(error);
        }
        // A stale object is nobody's trouble: the next look, a moment later, sees the new one.
        if error.retry() != Retry::Soon && self.trouble.is_none() {
            let stalled = matches!(error.reason(), "NameConflict" | "Rejected");
            self.trouble = Some(Trouble { reason: error.reason().to_owned(), message: error.to_string(), stalled });
        }
        if self.error.as_ref().is_none_or(|held| held.retry() == Retry::Soon) {
            self.error = Some(error);
        }
        Ok(None)
    }

    /// Something that only its owner can mend.
    pub fn stall(&mut self, reason: &str, message: String) {
        self.trouble.get_or_insert(Trouble { reason: reason.to_owned(), message, stalled: true });
    }

    /// What to show, and what the whole look comes to.
    ///
    /// # Errors
    /// The gravest failed step's.
    pub fn finish(self) -> (Option<Trouble>, Result<(), Error>) {
        (self.trouble, self.error.map_or(Ok(()), Err))
    }
}
