//! The walk of one request over its plan: which connection of which target is next, after every kind of outcome (routing spec 5;
//! decisions 9.1, 9.2, 9.6). A pure state machine: the gateway dispatches, sleeps and reads the clock.
//!
//! ```text
//! loop { match walk.next(live, now, rng) {
//!     Dispatch(d) => { sleep d.delay_ms; router.dispatched(d) and dispatch; walk.succeeded(..) and return, or walk.failed(..) }
//!     or, when nothing could be sent, walk.refused_locally(..)
//!     Wait { ms, .. } => sleep ms
//!     Stop(answer) => return answer
//!     // In place of the last two, a slot may come first that some dispatch lacked: walk.slot_free(dispatch)
//! } }
//! ```

mod entered;
mod finish;
mod hedge;
mod local;
mod moves;

use std::sync::Arc;

use smallvec::SmallVec;

pub use entered::Entered;
pub(super) use finish::excluded_entry;
use hedge::Aside;
use local::Slotless;

use super::answers::{self, Answer, Excluded, FailureRecord, Why};
use super::exhaustion::{Exhaustion, is_dead_credential};
use super::filter::WindowRules;
use super::live::{Exclusion, Live, transient};
use super::order::{Place, Scope};
use super::random::Random;
use super::request::Request;
use super::resolve::{Part, Resolved};
use super::strategies::EventKind;
use super::topology::{ConnectionNode, Leaf, Router};
use super::wait::Patience;
use crate::api::time::EpochMs;
use crate::classify::{Failover, Verdict};
use crate::snapshot::Attempts;

/// Ceiling of a request without a deadline of its own, milliseconds (routing spec 5.8).
pub const TOTAL_CEILING_MS: u64 = 600_000;
/// Deadline of a target without one of its own, milliseconds (decisions 9.8).
pub const TARGET_DEFAULT_MS: u64 = 600_000;
/// Dispatches per request, whatever is configured (routing spec 1.5).
const MAX_ATTEMPTS: u32 = 30;
/// Passes over the list, whatever ends first: keeps every walk finite.
const MAX_PASSES: u32 = 32;
/// The same request-shape error this often ends the walk.
const MAX_SAME_SHAPE: u32 = 3;
/// Pauses before the next target happen only after rests up to this length, milliseconds (routing spec 5.6).
const MAX_FALLBACK_REST_MS: u64 = 5_000;
/// Connections of a request that are remembered for its answer.
const MAX_SEEN: usize = 4_096;

/// What the gateway does next.
#[derive(Clone, PartialEq, Debug)]
pub enum Step {
    /// Send the request.
    Dispatch(Box<Dispatch>),
    /// Wait, then ask again.
    Wait {
        /// How long, milliseconds.
        ms: u64,
        /// What is waited for.
        until: EpochMs,
    },
    /// Answer the client.
    Stop(Box<Answer>),
}

/// How the walk came to a dispatch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hop {
    /// The first of the request.
    First,
    /// The same connection again.
    SameConnection,
    /// Another connection of the same target.
    NextConnection,
    /// Another target.
    NextTarget,
}

/// One dispatch.
#[derive(Clone, PartialEq, Debug)]
pub struct Dispatch {
    /// Identity of the target: names from the combo that was asked for downwards, joined by `>`.
    pub target: Arc<str>,
    /// `provider/model`.
    pub label: Arc<str>,
    /// Provider, by position in the snapshot.
    pub provider: usize,
    /// Provider's name.
    pub provider_name: Arc<str>,
    /// Upstream model id.
    pub model: Arc<str>,
    /// Connection.
    pub connection: Arc<ConnectionNode>,
    /// Number of this dispatch, from 1.
    pub attempt: u32,
    /// How it came about.
    pub hop: Hop,
    /// Pause before it, milliseconds.
    pub delay_ms: u64,
    /// The attempt must commit before this instant.
    pub deadline: EpochMs,
    /// The time of the whole request is over at this instant: nothing that is waited for before the attempt carries its deadline beyond it.
    pub ends: EpochMs,
    /// The connection rests by a computed cooldown that this request set itself: the ledger's gate is not asked again.
    pub ignores_rest: bool,
    /// The one hop of the emergency fallback: the answer says so in a header.
    pub emergency: bool,
    /// The combo whose entry it is, by position in the snapshot; `None` for direct requests.
    pub combo: Option<usize>,
}

/// A failed attempt.
#[derive(Clone, Copy, Debug)]
pub struct Failure<'a> {
    /// What it means.
    pub verdict: &'a Verdict,
    /// Status as the upstream answered; 0 = no answer.
    pub status: u16,
    /// What the upstream said, or what happened.
    pub message: &'a str,
    /// A 2xx that was no answer.
    pub quality: bool,
    /// The time of the target, or of the transport, was over.
    pub timeout: bool,
    /// The gateway holds an upstream answer that may go to the client as it is.
    pub passable: bool,
    /// How long the attempt took, milliseconds.
    pub latency_ms: u64,
}

#[derive(Clone, Debug)]
enum Root {
    Combo(usize),
    Part(usize, Part),
    Direct(Arc<Leaf>),
}

/// A combo in the middle of the walk.
#[derive(Clone, Debug)]
struct Frame {
    combo: usize,
    rules: WindowRules,
    /// Names from the root to this combo, for the identity of targets.
    path: String,
    /// Places still to come, the next one last.
    pending: Vec<Place>,
    /// What the strategy put first, and whether its reservation still stands.
    first: Option<(usize, u64)>,
    reserved: bool,
    current: Option<Current>,
}

/// The entry that the walk is in.
#[derive(Clone, Debug)]
struct Current {
    unit: usize,
    key: u64,
    protected: bool,
    /// Something other than a used-up quota went wrong in it; with the gate, when it was one.
    blocked: Option<Option<Exclusion>>,
}

/// A target in the middle of the walk.
#[derive(Clone, Debug)]
struct Visit {
    leaf: Arc<Leaf>,
    identity: Arc<str>,
    /// Connections still to come, the next one last.
    pending: Vec<Arc<ConnectionNode>>,
    /// Nothing was dispatched in it yet.
    entering: bool,
    /// What kept it out, when it was not a used-up quota.
    gate: Option<Exclusion>,
}

/// A target on a connection: the dispatch whose outcome is awaited, or one that may be repeated.
#[derive(Clone, Debug)]
struct Running {
    leaf: Arc<Leaf>,
    identity: Arc<str>,
    connection: Arc<ConnectionNode>,
    /// The combo whose entry it is; `None` for direct requests and the emergency hop.
    combo: Option<usize>,
    emergency: bool,
}

/// A pair that was looked at: a target, its identity, and the connection.
type Seen = (Arc<Leaf>, Arc<str>, Arc<ConnectionNode>);

/// The walk of one request. Dropping it releases what its strategies reserved.
#[derive(Debug)]
pub struct Walk {
    router: Arc<Router>,
    request: Request,
    name: String,
    root: Root,
    scope: Scope,
    limits: Attempts,
    target_timeout_ms: u64,
    total_ms: u64,
    patience: Patience,
    // where it is
    frames: Vec<Frame>,
    visited: SmallVec<[usize; 2]>,
    visit: Option<Visit>,
    running: Option<Running>,
    /// The attempt that `running` was started beside.
    aside: Option<Aside>,
    /// Retry on the same connection after this pause.
    again: Option<u64>,
    /// Pause before the next target.
    pause_ms: u64,
    ending: Option<Why>,
    /// A pass over the list runs.
    in_pass: bool,
    passes: u32,
    set_retries: u32,
    emergency_used: bool,
    // what happened
    exhaustion: Exhaustion,
    /// Soft ones that were passed over, for the end of the pass.
    deferred: Vec<Running>,
    /// Dispatches by connection and model in this pass.
    counts: SmallVec<[(usize, Arc<str>, u32); 1]>,
    /// Dispatches that count against `attempts.max`, and all.
    counted: u32,
    dispatched: u32,
    order: SmallVec<[Arc<str>; 1]>,
    failures: Vec<FailureRecord>,
    /// The last failure may be repeated on the same connection.
    last: Option<Running>,
    request_scoped: bool,
    shapes: Vec<(u16, u64, u32)>,
    /// Every pair that was looked at in this pass.
    seen: SmallVec<[Seen; 1]>,
    barred: Vec<Excluded>,
    /// What the gateway itself kept from being dispatched in this pass for want of a slot.
    slotless: Vec<Slotless>,
    /// One of them that has a slot now.
    granted: Option<(Running, Hop)>,
    local: Option<Answer>,
}

impl Walk {
    /// Starts the walk of a request for something that was resolved; `name` is what the client asked for. `None` for an unknown name.
    #[must_use]
    pub fn new(router: &Arc<Router>, resolved: &Resolved, name: &str, request: Request) -> Option<Self> {
        let settings = &router.snapshot.settings;
        let (root, scope, limits, target, total, patience) = match resolved {
            Resolved::Unknown { .. } => return None,
            Resolved::Direct(leaf) => {
                let patience = Patience::new(&settings.wait_for_cooldown, true);
                (Root::Direct(leaf.clone()), Scope { targets_allowed: true, ..Scope::default() }, Attempts::default(), 0, 0, patience)
            }
            Resolved::Combo(index) | Resolved::Part { combo: index, .. } => {
                let (node, combo) = router.combo(*index)?;
                let scope = Scope::of(node, router.key_allows_combo(*index, &request.key));
                let patience = Patience::new(&settings.combo_cooldown_wait, combo.cooldown_wait);
                let root = match resolved {
                    Resolved::Part { part, .. } => Root::Part(*index, part.clone()),
                    _ => Root::Combo(*index),
                };
                (root, scope, combo.attempts, combo.target_timeout_ms, combo.total_timeout_ms, patience)
            }
        };
        let impatient = request.single_call || request.inner.as_ref().is_some_and(|inner| !inner.patient);
        let patience = if impatient { Patience::none() } else { patience };
        let total = if total == 0 { TOTAL_CEILING_MS } else { total };
        let inherited = request.inner.as_ref().map_or(u64::MAX, |inner| inner.budget.deadline.since(request.received));
        Some(Self {
            router: router.clone(),
            name: name.to_owned(),
            root,
            scope,
            limits,
            target_timeout_ms: if target == 0 { TARGET_DEFAULT_MS } else { target },
            total_ms: total.min(inherited),
            patience,
            request,
            frames: Vec::new(),
            visited: SmallVec::new(),
            visit: None,
            running: None,
            aside: None,
            again: None,
            pause_ms: 0,
            ending: None,
            in_pass: false,
            passes: 0,
            set_retries: 0,
            emergency_used: false,
            exhaustion: Exhaustion::default(),
            deferred: Vec::new(),
            counts: SmallVec::new(),
            counted: 0,
            dispatched: 0,
            order: SmallVec::new(),
            failures: Vec::new(),
            last: None,
            request_scoped: false,
            shapes: Vec::new(),
            seen: SmallVec::new(),
            barred: Vec::new(),
            slotless: Vec::new(),
            granted: None,
            local: None,
        })
    }

    /// The request that is walked.
    #[must_use]
    pub const fn request(&self) -> &Request {
        &self.request
    }

    /// Dispatches so far, those of the other calls of a composed request included.
    #[must_use]
    pub fn attempts(&self) -> u32 {
        self.request.inner.as_ref().map_or(self.dispatched, |inner| inner.budget.dispatched())
    }

    /// The combo that was asked for, by position in the snapshot.
    #[must_use]
    pub const fn combo(&self) -> Option<usize> {
        match self.root {
            Root::Combo(index) | Root::Part(index, _) => Some(index),
            Root::Direct(_) => None,
        }
    }

    /// What comes next. Call it once at the start and after every outcome and wait.
    pub fn next(&mut self, live: &dyn Live, now: EpochMs, rng: &mut dyn Random) -> Step {
        loop {
            if let Some(why) = self.ending.take() {
                return self.stop(why, live, now);
            }
            if self.dispatched > 0 && now >= self.request.received.plus(self.total_ms) {
                return self.stop(Why::Deadline { limit_ms: self.total_ms }, live, now);
            }
            if !self.in_pass {
                self.start_pass(live, now, rng);
            }
            let step = self.dispatch_granted(live, now).or_else(|| self.repeat(live, now)).or_else(|| self.next_connection(live, now));
            if let Some(step) = step {
                return step;
            }
            if self.ending.is_some() || self.next_target(live, now, rng) || self.ending.is_some() {
                continue;
            }
            if let Some(step) = self.end_of_pass(live, now) {
                return step;
            }
        }
    }

    /// The dispatched target served the request. Keep the walk until the answer's body has ended: it holds the load that its strategies see.
    pub fn succeeded(&mut self, latency_ms: u64, now: EpochMs) {
        let Some(running) = self.running.take() else { return };
        running.leaf.provider.accounts.observe(&running.connection, latency_ms, false, now);
        if let Some(speed) = &running.leaf.speed {
            speed.push(latency_ms, false, now);
        }
        self.tell_all(EventKind::Succeeded { latency_ms }, now);
    }

    /// The dispatched target failed. Tell the ledger first: what it put to rest is looked at by the next step.
    pub fn failed(&mut self, failure: &Failure<'_>, now: EpochMs) {
        let Some(running) = self.running.take() else { return };
        let verdict = failure.verdict;
        running.leaf.provider.accounts.observe(&running.connection, failure.latency_ms, true, now);
        self.tell_all(EventKind::Failed { latency_ms: failure.latency_ms }, now);
        let quota = answers::is_quota(verdict.reason) && !failure.quality && !failure.timeout;
        self.record(&running, failure, quota);
        if !is_dead_credential(verdict) {
            self.spend();
        }
        self.exhaustion.add(&running.leaf, &running.connection, verdict, failure.status);
        if !quota {
            self.block(None);
        }
        self.request_scoped |= verdict.scope == crate::classify::Scope::Request;
        self.last = None;
        if self.request.single_call {
            self.ending = Some(Why::SingleCall);
            return;
        }
        if verdict.failover == Failover::Stop || self.same_shape_again(failure) {
            self.ending = Some(Why::Stop);
            return;
        }
        if verdict.failover == Failover::OtherModel {
            self.drop_connections();
            return;
        }
        if may_repeat(failure) {
            let count = self.count(&running.connection, &running.leaf);
            if self.limits.per_target > 1 && count < self.limits.per_target {
                self.again = Some(self.limits.retry_delay_ms);
            }
            if self.limits.per_target > 1 || transient(verdict.reason) {
                self.last = Some(running);
            }
        }
        let short_rest = verdict.cooldown_ms <= MAX_FALLBACK_REST_MS && matches!(failure.status, 502..=504);
        self.pause_ms = if short_rest { verdict.cooldown_ms.min(self.limits.fallback_delay_ms) } else { 0 };
    }

    /// Counts an attempt against `attempts.max`.
    fn spend(&mut self) {
        self.counted += 1;
        if let Some(inner) = &self.request.inner {
            inner.budget.fail();
        }
    }
}

impl Drop for Walk {
    fn drop(&mut self) {
        // The instant is of no interest to the strategies: an entry is left, whenever that is.
        let now = self.request.received;
        self.decide(false, now);
        self.leave_everything(now);
    }
}

/// Whether the same connection may be tried once more after this failure (routing spec 5.5): never against a wait that the upstream, a rule
/// or a reset named, never with a dead credential.
fn may_repeat(failure: &Failure<'_>) -> bool {
    let verdict = failure.verdict;
    verdict.failover == Failover::OtherConnection
        && verdict.terminal.is_none()
        && !failure.quality
        && !failure.timeout
        && !verdict.wait_is_stated()
        && matches!(failure.status, 0 | 408 | 429 | 500 | 502 | 503 | 504 | 524 | 529)
}
