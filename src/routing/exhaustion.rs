//! What failed already in this request, with exactly the scope of the verdict (decisions 9.6), and what of it the request may use again
//! when nothing else is left (decisions 9.1).

use std::sync::Arc;

use super::live::{Exclusion, ExclusionReason, transient};
use super::topology::{ConnectionNode, Leaf};
use crate::classify::{Failover, Reason, Scope, Verdict};

/// The rows of the classifier that say that the request is longer than the context window (`codes.context-overflow`, …).
const CONTEXT_OVERFLOW: &str = "context-overflow";

/// What a failure keeps the request from.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Reach {
    /// The model on this connection.
    Model(usize, Arc<str>),
    /// The connection.
    Connection(usize),
    /// The provider.
    Provider(usize),
    /// The model on every connection of the provider.
    EveryConnection(usize, Arc<str>),
    /// The model wherever it is served: the request is too long for it.
    EveryProvider(Arc<str>),
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Mark {
    reach: Reach,
    /// The wait was computed by the product and its reason passes: the request may come back when nothing else is left.
    soft: bool,
    /// It holds for the rest of the request, also after a wait.
    lasting: bool,
}

/// How a pair of target and connection stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Standing {
    /// Nothing failed there.
    Fresh,
    /// Something failed there, but it may be used when nothing else is left.
    Soft,
    /// Not again in this request.
    Out,
}

/// What failed in this request.
#[derive(Clone, Debug, Default)]
pub(super) struct Exhaustion {
    marks: Vec<Mark>,
    /// What the gateway itself could not dispatch in this pass.
    refused: Vec<Reach>,
    /// Computed rests that this request caused itself, also in earlier passes.
    own: Vec<Reach>,
}

impl Exhaustion {
    /// Notes a failure.
    pub(super) fn add(&mut self, leaf: &Leaf, connection: &ConnectionNode, verdict: &Verdict, status: u16) {
        let dead = is_dead_credential(verdict);
        let reach = if verdict.failover == Failover::OtherModel && verdict.decided_by.ends_with(CONTEXT_OVERFLOW) {
            Reach::EveryProvider(leaf.model.clone())
        } else if verdict.failover == Failover::OtherModel {
            Reach::EveryConnection(leaf.provider.index, leaf.model.clone())
        } else if dead {
            Reach::Connection(connection.index)
        } else {
            match effective_scope(verdict, leaf.provider.per_model_quota, status) {
                Scope::Request => return,
                Scope::Model => Reach::Model(connection.index, leaf.model.clone()),
                Scope::Connection => Reach::Connection(connection.index),
                Scope::Provider => Reach::Provider(leaf.provider.index),
            }
        };
        let soft = verdict.failover == Failover::OtherConnection && !dead && !verdict.wait_is_stated() && transient(verdict.reason);
        if soft {
            self.own.push(reach.clone());
        }
        self.marks.push(Mark { reach, soft, lasting: dead || verdict.failover == Failover::OtherModel });
    }

    /// Notes that the gateway itself could not dispatch: not again in this pass.
    pub(super) fn refuse(&mut self, leaf: &Leaf, connection: &ConnectionNode) {
        self.refused.push(Reach::Model(connection.index, leaf.model.clone()));
    }

    /// What was refused can be dispatched after all.
    pub(super) fn admit(&mut self, leaf: &Leaf, connection: &ConnectionNode) {
        self.refused.retain(|reach| !reach.covers(leaf, connection));
    }

    /// How a target stands on a connection.
    pub(super) fn standing(&self, leaf: &Leaf, connection: &ConnectionNode) -> Standing {
        if self.refused.iter().any(|reach| reach.covers(leaf, connection)) {
            return Standing::Out;
        }
        let mut standing = Standing::Fresh;
        for mark in self.marks.iter().filter(|mark| mark.reach.covers(leaf, connection)) {
            if !mark.soft {
                return Standing::Out;
            }
            standing = Standing::Soft;
        }
        standing
    }

    /// Whether an exclusion is a computed cooldown or lock that this request set itself, so that it may be ignored; never a stated one.
    pub(super) fn is_own(&self, exclusion: &Exclusion, leaf: &Leaf, connection: &ConnectionNode) -> bool {
        !exclusion.stated
            && matches!(exclusion.reason, ExclusionReason::ConnectionCooldown | ExclusionReason::ModelLockout)
            && self.own.iter().any(|reach| reach.covers(leaf, connection))
    }

    /// Forgets what makes another pass worth while.
    pub(super) fn start_over(&mut self) {
        self.marks.retain(|mark| mark.lasting);
        self.refused.clear();
    }

    /// From now on rests are respected, whoever caused them.
    pub(super) fn forget_own(&mut self) {
        self.own.clear();
    }
}

impl Reach {
    fn covers(&self, leaf: &Leaf, connection: &ConnectionNode) -> bool {
        match self {
            Self::Model(c, model) => *c == connection.index && *model == leaf.model,
            Self::Connection(c) => *c == connection.index,
            Self::Provider(p) => *p == leaf.provider.index,
            Self::EveryConnection(p, model) => *p == leaf.provider.index && *model == leaf.model,
            Self::EveryProvider(model) => *model == leaf.model,
        }
    }
}

/// A credential that does not work: rotation over such ones does not use up attempts (decisions 9.1).
pub(super) fn is_dead_credential(verdict: &Verdict) -> bool {
    verdict.failover == Failover::OtherConnection
        && (verdict.terminal.is_some() || matches!(verdict.reason, Reason::AuthError | Reason::CreditsExhausted))
}

/// With per-model allowances the trouble of one model says nothing about its siblings, unless the upstream as a whole did not answer or
/// a rule declared the scope.
fn effective_scope(verdict: &Verdict, per_model_quota: bool, status: u16) -> Scope {
    let upstream_down = matches!(status, 0 | 408 | 502 | 503 | 504 | 524);
    if verdict.scope == Scope::Connection && per_model_quota && !verdict.scope_declared && !upstream_down {
        Scope::Model
    } else {
        verdict.scope
    }
}
