//! What a row of the decision tables is. The tables themselves: [`super::detectors`], [`super::request_shape`], [`super::global_table`],
//! [`super::transport`].

use super::evidence::Seen;
use super::status::Statuses;
use super::{Failover, Reason, Scope};

/// One row: when all its conditions hold, its outcome is the verdict. Rows are asked in order; the first that holds decides.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Stable id: `decidedBy` of the verdict, and what `disabledBuiltins` names.
    pub id: &'static str,
    /// Where the specification has it.
    pub spec: &'static str,
    /// Statuses on which it acts.
    pub on: Statuses,
    /// At least one of these was seen; empty = always.
    pub seen: Seen,
    /// None of these was seen.
    pub unless: Seen,
    /// On a 429 of a provider with keys it acts only if the body carries a quota phrase (QS of 7).
    pub gate: bool,
    /// Further conditions; all hold.
    pub only: &'static [Only],
    /// What it means.
    pub outcome: Outcome,
}

/// A condition on something else than status and text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Only {
    /// The catalog id of the provider is one of these.
    Providers(&'static [&'static str]),
    /// The provider is one of Google's clouds.
    GoogleCloud,
    /// The text names Google's quota metrics (7.2 e).
    GeminiMetric,
    /// A provider with keys.
    ApiKey,
    /// The model is known.
    ModelKnown,
    /// All models draw on one wallet, or the models are the account's own: an empty wallet is final.
    MoneyIsFinal,
    /// No short wait is declared beside it (8.2 step 3).
    NoShortWait,
    /// A header states a wait, or the provider declares its daily reset (7.4 1).
    ResetKnown,
    /// Any wait is stated.
    WaitStated,
    /// Both a file-like resource and `not found` (6.7 row 4).
    BothResourceAndNotFound,
    /// A concurrency wording is there as well.
    Concurrent,
    /// The provider has an allowance per model.
    PerModelQuota,
    /// Type `permission_error` beside a model-access phrase (7.5, 400 row 3).
    PermissionBesideModel,
}

/// How long the failing thing rests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rest {
    /// Not at all.
    None,
    /// A fixed time, milliseconds.
    Fixed(u64),
    /// retryable(R) of 7: a stated wait, an override of rate limits, else scaled backoff.
    Backoff,
    /// A stated wait, else this many milliseconds.
    StatedOr(u64),
    /// A stated wait, else until the daily reset.
    DailyReset,
    /// The deadline that another gateway names; from one hour on it is a quota (8.2 step 3).
    PeerDeadline,
    /// The base cooldown; the level stays.
    Base,
    /// A stated wait, else this many milliseconds; the level stays.
    LevelKept(u64),
    /// 5, 10, 20 minutes by the number of strikes (decisions 1.7).
    AuthStrike,
    /// Doubled with each rejection, at most one hour (decisions 1.8).
    RejectionStrike,
}

/// What a row means.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// Reason.
    pub reason: Reason,
    /// Rest.
    pub rest: Rest,
    /// Scope.
    pub scope: Scope,
    /// Failover.
    pub failover: Failover,
    /// The account is dead.
    pub dead: bool,
    /// The account has no money.
    pub credits: bool,
    /// An auth strike is counted.
    pub strike: bool,
    /// Never counts for the breaker.
    pub skip_breaker: bool,
}

/// Rests the connection, another one may go on.
pub(super) const fn rest(reason: Reason, rest: Rest) -> Outcome {
    Outcome {
        reason,
        rest,
        scope: Scope::Connection,
        failover: Failover::OtherConnection,
        dead: false,
        credits: false,
        strike: false,
        skip_breaker: false,
    }
}

impl Outcome {
    /// A problem of the model, not of the account.
    pub(super) const fn model(self) -> Self {
        Self { scope: Scope::Model, ..self }
    }

    /// Another model may take it, a sibling connection would not.
    pub(super) const fn other_model(self) -> Self {
        Self { failover: Failover::OtherModel, ..self }
    }

    /// Nothing rests.
    pub(super) const fn request(self) -> Self {
        Self { scope: Scope::Request, ..self }
    }

    /// The request goes no further.
    pub(super) const fn stop(self) -> Self {
        Self { scope: Scope::Request, failover: Failover::Stop, ..self }
    }

    /// Never counts for the breaker.
    pub(super) const fn no_breaker(self) -> Self {
        Self { skip_breaker: true, ..self }
    }

    /// The account is dead.
    pub(super) const fn dead(self) -> Self {
        Self { dead: true, ..self }
    }

    /// The account has no money.
    pub(super) const fn credits(self) -> Self {
        Self { credits: true, ..self }
    }

    /// An auth strike.
    pub(super) const fn strike(self) -> Self {
        Self { strike: true, ..self }
    }
}

/// A row without further conditions.
pub(super) const fn row(id: &'static str, spec: &'static str, on: Statuses, seen: Seen, outcome: Outcome) -> Row {
    Row { id, spec, on, seen, unless: Seen::of(&[]), gate: false, only: &[], outcome }
}

impl Row {
    /// Needs the quota gate.
    pub(super) const fn gated(self) -> Self {
        Self { gate: true, ..self }
    }

    /// Vetoed by these.
    pub(super) const fn unless(self, unless: Seen) -> Self {
        Self { unless, ..self }
    }

    /// Further conditions.
    pub(super) const fn only(self, only: &'static [Only]) -> Self {
        Self { only, ..self }
    }
}

/// A second, a minute, an hour, a day in milliseconds.
pub(super) const SECOND: u64 = 1_000;
pub(super) const MINUTE: u64 = 60 * SECOND;
pub(super) const HOUR: u64 = 60 * MINUTE;
pub(super) const DAY: u64 = 24 * HOUR;
