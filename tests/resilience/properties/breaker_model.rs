//! The breaker against a reference that keeps nothing but the list of events and works everything out anew, by the words of the
//! specification, each time it is asked.

use omniroute::api::time::EpochMs;
use omniroute::classify::{AuthClass, FailureKind};
use omniroute::resilience::BreakerPhase;
use omniroute::resilience::breaker::{Admission, Breaker, Origin, ProbeToken};
use omniroute::snapshot::BreakerProfile;

use crate::support::{NOW, Random};

#[derive(Clone, Copy, Debug)]
enum Event {
    Failure {
        kind: FailureKind,
        source: Source,
    },
    Success {
        source: Source,
    },
    /// Probe number n was admitted.
    Admitted(usize),
    Released(usize),
    Reset,
}

#[derive(Clone, Copy, Debug)]
enum Source {
    Before,
    Current,
    Probe(usize),
}

/// What the reference works out.
#[derive(Clone, Debug)]
struct Facts {
    phase: BreakerPhase,
    failures: u32,
    cycles: u32,
    opened: i64,
    last_failure: i64,
    kind: FailureKind,
    running: Vec<(usize, i64)>,
    /// How often it has opened or closed.
    turns: u32,
    /// Admitted probes, and the turn in which each was.
    probes: Vec<(usize, u32)>,
}

const FRESH: Facts = Facts {
    phase: BreakerPhase::Closed,
    failures: 0,
    cycles: 0,
    opened: 0,
    last_failure: 0,
    kind: FailureKind::Transient,
    running: Vec::new(),
    turns: 0,
    probes: Vec::new(),
};

impl Facts {
    fn turn(&mut self) {
        self.turns += 1;
        self.running.clear();
    }

    fn close(&mut self) {
        let probes = std::mem::take(&mut self.probes);
        *self = Self { turns: self.turns, probes, ..FRESH };
        self.turn();
    }

    fn open(&mut self, now: i64) {
        (self.phase, self.opened) = (BreakerPhase::Open, now);
        self.turn();
    }

    /// The result of a probe counts until the breaker opens again or closes, however long it takes.
    fn judged_by(&self, probe: usize) -> bool {
        self.probes.contains(&(probe, self.turns))
    }
}

struct Reference<'a> {
    profile: &'a BreakerProfile,
    events: Vec<(i64, Event)>,
}

impl Reference<'_> {
    fn base(&self, kind: FailureKind) -> i64 {
        let own = match kind {
            FailureKind::RateLimit => self.profile.rate_limit_cooldown_ms,
            FailureKind::QuotaExhausted => self.profile.quota_cooldown_ms,
            FailureKind::Transient => None,
        };
        own.unwrap_or(self.profile.reset_timeout_ms) as i64
    }

    fn open_window(&self, facts: &Facts) -> i64 {
        let mut factor = 1i64;
        for cycle in 1..=facts.cycles {
            if cycle > self.profile.backoff_escalation_count && factor < i64::from(self.profile.max_backoff_multiplier) {
                factor *= 2;
            }
        }
        self.base(facts.kind) * factor.min(i64::from(self.profile.max_backoff_multiplier))
    }

    fn at(&self, now: i64) -> Facts {
        let mut facts = FRESH;
        for (when, event) in &self.events {
            self.pass(&mut facts, *when);
            self.happen(&mut facts, *when, *event);
        }
        self.pass(&mut facts, now);
        facts
    }

    fn pass(&self, facts: &mut Facts, now: i64) {
        if facts.phase == BreakerPhase::Open && now - facts.opened >= self.open_window(facts) {
            facts.phase = BreakerPhase::HalfOpen;
            facts.running.clear();
        }
        facts.running.retain(|(_, started)| now - started < self.profile.reset_timeout_ms as i64);
        let calm = now - facts.last_failure >= self.base(facts.kind) * i64::from(self.profile.max_backoff_multiplier);
        if matches!(facts.phase, BreakerPhase::Closed | BreakerPhase::Degraded) && facts.failures > 0 && calm {
            facts.phase = BreakerPhase::Closed;
            facts.failures = 0;
        }
    }

    fn happen(&self, facts: &mut Facts, now: i64, event: Event) {
        match event {
            Event::Reset => facts.close(),
            Event::Admitted(n) => {
                facts.running.push((n, now));
                facts.probes.push((n, facts.turns));
            }
            Event::Released(n) => facts.running.retain(|(m, _)| *m != n),
            Event::Failure { kind, source } => {
                match source {
                    Source::Probe(n) if !facts.judged_by(n) => return,
                    Source::Before if facts.phase == BreakerPhase::HalfOpen => return,
                    _ => {}
                }
                facts.failures += 1;
                facts.last_failure = now;
                match facts.phase {
                    BreakerPhase::Open => {}
                    BreakerPhase::HalfOpen => {
                        facts.kind = kind;
                        facts.cycles += 1;
                        facts.open(now);
                    }
                    BreakerPhase::Closed | BreakerPhase::Degraded => {
                        facts.kind = kind;
                        if facts.failures >= self.profile.failure_threshold {
                            facts.open(now);
                        } else if facts.failures >= self.profile.degradation_threshold {
                            facts.phase = BreakerPhase::Degraded;
                        }
                    }
                }
            }
            Event::Success { source } => match (facts.phase, source) {
                (BreakerPhase::Closed | BreakerPhase::Degraded, _) => {
                    facts.failures = facts.failures.saturating_sub(1);
                    if facts.failures <= self.profile.degradation_threshold {
                        facts.phase = BreakerPhase::Closed;
                    }
                }
                (BreakerPhase::HalfOpen, Source::Probe(n)) if facts.judged_by(n) => facts.close(),
                (_, Source::Current) => facts.close(),
                _ => {}
            },
        }
    }
}

fn profiles() -> Vec<BreakerProfile> {
    let mut kinds = BreakerProfile::of(AuthClass::OAuth);
    kinds.rate_limit_cooldown_ms = Some(90_000);
    kinds.quota_cooldown_ms = Some(400_000);
    kinds.half_open_requests = 3;
    let quick = BreakerProfile { failure_threshold: 3, degradation_threshold: 1, ..BreakerProfile::of(AuthClass::Local) };
    vec![BreakerProfile::of(AuthClass::OAuth), BreakerProfile::of(AuthClass::ApiKey), BreakerProfile::of(AuthClass::Local), kinds, quick]
}

#[test]
fn the_breaker_does_what_the_reference_says() {
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    let mut seen = std::collections::BTreeSet::new();
    for round in 0..1_000 {
        let profile = profiles()[round % 5];
        let mut breaker = Breaker::default();
        let mut reference = Reference { profile: &profile, events: Vec::new() };
        let mut tokens: Vec<ProbeToken> = Vec::new();
        let mut now = NOW.0;
        for step in 0..100 {
            now += *random.pick(&[0, 0, 1, 500, 5_000, 14_999, 15_000, 30_000, 60_000, 130_000, 500_000]);
            let source = match random.below(4) {
                0 => Source::Before,
                1 => Source::Current,
                _ if tokens.is_empty() => Source::Current,
                _ => Source::Probe(random.below(tokens.len() as u64) as usize),
            };
            let origin = match source {
                Source::Before => Origin::BeforeOpening,
                Source::Current => Origin::Current,
                Source::Probe(n) => Origin::Probe(tokens[n]),
            };
            match random.below(20) {
                0..=10 => {
                    let kind = *random.pick(&[
                        FailureKind::Transient,
                        FailureKind::Transient,
                        FailureKind::RateLimit,
                        FailureKind::QuotaExhausted,
                    ]);
                    breaker.failure(EpochMs(now), kind, origin, &profile);
                    reference.events.push((now, Event::Failure { kind, source }));
                }
                11..=13 => {
                    breaker.success(EpochMs(now), origin, &profile);
                    reference.events.push((now, Event::Success { source }));
                }
                14..=17 => {
                    let facts = reference.at(now);
                    let room = (profile.half_open_requests as usize).saturating_sub(facts.running.len());
                    match breaker.admit(EpochMs(now), &profile) {
                        Admission::Free => assert!(matches!(facts.phase, BreakerPhase::Closed | BreakerPhase::Degraded)),
                        Admission::Probe(token) => {
                            assert!(facts.phase == BreakerPhase::HalfOpen && room > 0);
                            reference.events.push((now, Event::Admitted(tokens.len())));
                            tokens.push(token);
                        }
                        Admission::Refused { until } => {
                            assert!(facts.phase == BreakerPhase::Open || room == 0, "{facts:?}");
                            assert!(until.0 > now, "a refusal names a later time");
                        }
                    }
                }
                18 => {
                    if let Source::Probe(n) = source {
                        breaker.release(tokens[n]);
                        reference.events.push((now, Event::Released(n)));
                    }
                }
                _ if random.chance(20) => {
                    breaker.reset();
                    reference.events.push((now, Event::Reset));
                }
                _ => {}
            }
            let facts = reference.at(now);
            let found = (breaker.phase(EpochMs(now), &profile), breaker.failures(), breaker.open_cycles());
            assert_eq!(found, (facts.phase, facts.failures, facts.cycles), "round {round} step {step}: {:#?}", reference.events);
            if facts.phase == BreakerPhase::Open {
                let until = breaker.retry_at(EpochMs(now), &profile);
                assert_eq!(until, Some(EpochMs(facts.opened + reference.open_window(&facts))));
            }
            seen.insert((found.0, found.2.min(4)));
        }
    }
    assert!(seen.len() >= 10, "the histories reach open breakers with several failed probes: {seen:?}");
}

/// A half-open breaker with its only probe, sent at the end of the open window.
fn probing(profile: &BreakerProfile) -> (Breaker, ProbeToken, EpochMs) {
    let mut breaker = Breaker::default();
    for _ in 0..profile.failure_threshold {
        breaker.failure(NOW, FailureKind::Transient, Origin::Current, profile);
    }
    let at = NOW.plus(profile.reset_timeout_ms);
    let Admission::Probe(token) = breaker.admit(at, profile) else { panic!("no probe") };
    (breaker, token, at)
}

#[test]
fn answers_that_take_longer_than_the_reset_timeout_close_it_or_open_it_again() {
    let profile = BreakerProfile::of(AuthClass::Local);
    let late = |at: EpochMs| at.plus(profile.reset_timeout_ms + 1);
    let (mut breaker, token, at) = probing(&profile);
    breaker.success(late(at), Origin::Probe(token), &profile);
    assert_eq!(breaker.phase(late(at), &profile), BreakerPhase::Closed);
    let (mut breaker, token, at) = probing(&profile);
    breaker.failure(late(at), FailureKind::Transient, Origin::Probe(token), &profile);
    assert_eq!((breaker.phase(late(at), &profile), breaker.open_cycles()), (BreakerPhase::Open, 1));
}

#[test]
fn a_lost_probe_blocks_nobody_and_the_result_of_an_earlier_opening_says_nothing() {
    let profile = BreakerProfile::of(AuthClass::Local);
    let (mut breaker, lost, at) = probing(&profile);
    let later = at.plus(profile.reset_timeout_ms);
    let Admission::Probe(second) = breaker.admit(later, &profile) else { panic!("wedged") };
    breaker.failure(later, FailureKind::Transient, Origin::Probe(second), &profile);
    breaker.success(later, Origin::Probe(lost), &profile);
    assert_eq!(breaker.phase(later, &profile), BreakerPhase::Open);
    let reopened = later.plus(breaker.open_duration_ms(&profile));
    assert_eq!(breaker.phase(reopened, &profile), BreakerPhase::HalfOpen);
    breaker.success(reopened, Origin::Probe(lost), &profile);
    assert_eq!(breaker.phase(reopened, &profile), BreakerPhase::HalfOpen);
}
