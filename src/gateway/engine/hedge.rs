//! Two attempts at once: the next target is started beside one that is slow, and the first acceptable answer wins (routing spec 5.9).

use std::time::{Duration, Instant};

use super::{Engine, Progress, Side};
use crate::gateway::attempt::{self, Outcome};
use crate::gateway::clock;
use crate::gateway::live::Present;
use crate::gateway::pipeline::Elsewhere;
use crate::gateway::queue::Pass;
use crate::routing::Dispatch;

/// Which of two attempts came to an end first, and how.
enum First {
    Aside(Outcome),
    Later(Outcome),
}

impl Engine {
    /// After which time another target is started beside this dispatch; `None` = never. An inner combo's own setting goes first.
    pub(super) fn hedge_delay(&self, dispatch: &Dispatch) -> Option<Duration> {
        let combos = &self.context.shared.loaded.snapshot.combos;
        let delay = |index: usize| combos.get(index).and_then(|combo| combo.options.hedge_delay_ms);
        dispatch.combo.and_then(delay).or_else(|| self.walk.combo().and_then(delay)).map(Duration::from_millis)
    }

    /// Makes a dispatch, and another one when it gives no answer within `delay`. The commit of a stream is an answer. Whoever comes too late
    /// is dropped as if its client had gone: nobody is blamed. A third one is not started before both have failed.
    pub(super) async fn race(self: Box<Self>, dispatch: Box<Dispatch>, reserved: Option<Pass>, delay: Duration) -> Progress {
        let (context, begin) = (self.context.clone(), Instant::now());
        let mut elsewhere = Elsewhere::default();
        let mut aside = Box::pin(attempt::run(&context, &dispatch, reserved, &mut elsewhere));
        let alone = tokio::time::timeout(delay, &mut aside).await;
        let mut engine = self;
        if alone.is_err() {
            while let Some(beside) = engine.beside() {
                let mut elsewhere = Elsewhere::default();
                let mut later = Box::pin(attempt::run(&context, &beside, None, &mut elsewhere));
                let first = tokio::select! {
                    biased;
                    outcome = &mut aside => First::Aside(outcome),
                    outcome = &mut later => First::Later(outcome),
                };
                match first {
                    First::Aside(outcome @ Outcome::Served { .. }) => {
                        drop((aside, later));
                        return engine.settle_since(begin, dispatch, outcome, Side::Aside);
                    }
                    First::Aside(outcome) => {
                        drop(aside);
                        engine = match engine.settle(dispatch, outcome, Side::Aside) {
                            Progress::Open(engine) => engine,
                            answered @ Progress::Answered(_) => return answered,
                        };
                        let outcome = later.as_mut().await;
                        drop(later);
                        return engine.settle_since(begin, beside, outcome, Side::Last);
                    }
                    First::Later(outcome @ Outcome::Served { .. }) => {
                        drop((aside, later));
                        return engine.settle_since(begin, beside, outcome, Side::Last);
                    }
                    First::Later(outcome) => {
                        drop(later);
                        let was_sent = !matches!(outcome, Outcome::Refused(_) | Outcome::Capped(..));
                        engine = match engine.settle(beside, outcome, Side::Last) {
                            Progress::Open(engine) => engine,
                            answered @ Progress::Answered(_) => return answered,
                        };
                        if was_sent {
                            break;
                        }
                    }
                }
            }
        }
        let outcome = match alone {
            Ok(outcome) => outcome,
            Err(_) => aside.as_mut().await,
        };
        drop(aside);
        engine.settle_since(begin, dispatch, outcome, Side::Aside)
    }

    fn beside(&mut self) -> Option<Box<Dispatch>> {
        let present = Present { shared: &self.context.shared, ignore_leases: false };
        self.walk.hedge(&present, clock::now(), &mut rand::random::<u64>)
    }

    /// Settles the last outcome of a race. While it ran, what the gateway did itself is not told apart from waiting for upstreams.
    fn settle_since(mut self: Box<Self>, begin: Instant, dispatch: Box<Dispatch>, outcome: Outcome, side: Side) -> Progress {
        self.times.elsewhere.0 += begin.elapsed();
        self.settle(dispatch, outcome, side)
    }
}
