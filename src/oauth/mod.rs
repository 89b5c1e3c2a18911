//! Refreshes OAuth tokens at the token endpoint that a Connection declares (RFC 6749, section 6), for the operator and for `run`, which differ only
//! in where tokens are kept.

mod client;
mod jobs;
mod refresher;

pub use client::{RefreshError, Renewed, refresh};
pub use jobs::{PAUSES, Retry};
pub use refresher::{Keeper, Kept, Outcome, Refresher};

#[cfg(test)]
mod tests;
