//! What a failure or a success changes: the one component that records them (DESIGN: idea 4).

use std::sync::Arc;

use super::breaker::ProbeToken;
use super::cell::{ConnectionCell, ConnectionRecord, ProviderCell, ProviderConfig};
use super::commands::of_credential;
use super::cooldown::{Applied, Rest, jittered_ms};
use super::effect::Cause;
use super::ledger::{Index, Ledger};
use super::lockout::{Escalation, LockKey, LockRequest, LockScope, LockWait, Locked};
use super::permit::Permit;
use super::scope::{Landing, landing, lock_reason, lock_wait};
use super::terminal::TerminalState;
use super::{BreakerPhase, Effect};
use crate::api::time::{EpochMs, next_daily};
use crate::classify::{Failover, ProviderTraits, Reason, Strike, Terminal, Verdict, WaitSource};

/// A rest that something asks for without saying how long, milliseconds (spec: resilience 2.2, egress and connection rules).
const FALLBACK_REST_MS: u64 = 120_000;

/// One failure on its way through the ledger.
struct Failure<'a> {
    index: &'a Index,
    connection: &'a Arc<ConnectionCell>,
    config: Arc<ProviderConfig>,
    verdict: &'a Verdict,
    model: Option<&'a str>,
    status: u16,
    now: EpochMs,
    jitter: f64,
    /// Sequence at which the request began.
    began: u64,
    /// Sequence of this failure.
    sequence: u64,
    /// How long the request ran, milliseconds.
    ran_ms: u64,
}

impl Ledger {
    /// Records a failed request. `status` is that of the answer (0 = none), `jitter` lies in −1..=1 and spreads computed waits by ±10 %.
    pub fn failure(
        &self,
        mut permit: Permit,
        model: Option<&str>,
        status: u16,
        verdict: &Verdict,
        now: EpochMs,
        jitter: f64,
    ) -> Vec<Effect> {
        let index = self.index.load_full();
        self.count_rules(verdict, now);
        // A restated status, or that of an error inside a 200, is the one that means something.
        let status = verdict.restated_status.unwrap_or(status);
        let connection = Arc::clone(permit.connection());
        let config = connection.provider().config();
        let mut effects = Vec::new();
        let place = landing(verdict, status, model.is_some(), &config.traits, &index.settings.lockout);
        let probe = permit.take_probe();
        if verdict.counts_for_breaker && !verdict.skip_breaker {
            effects.extend(self.provider_failure(connection.provider(), &permit, probe, verdict, &index, now));
        } else if let Some(token) = probe {
            connection.provider().release(token);
        }
        let of_old_credential = permit.credential != connection.credential() && blames_credential(verdict);
        if place == Landing::Nowhere || of_old_credential {
            return effects;
        }
        let mut failure = Failure {
            index: &index,
            connection: &connection,
            config,
            verdict,
            model,
            status,
            now,
            jitter,
            began: permit.began,
            sequence: 0,
            ran_ms: now.since(permit.started),
        };
        let (changes, rests) = connection.update(now, |record| {
            failure.sequence = connection.next_sequence();
            failure.on_connection(record, place)
        });
        effects.extend(changes);
        self.changed(connection.read(|record| record.next_change(now)));
        if rests {
            let siblings = failure.on_siblings(place);
            self.changed(siblings.iter().filter_map(Effect::until).min());
            effects.extend(siblings);
        }
        effects
    }

    /// Records a successful request: errors and level are cleared, unless a failure was recorded after the request began.
    pub fn success(&self, mut permit: Permit, model: Option<&str>, now: EpochMs) -> Vec<Effect> {
        let connection = Arc::clone(permit.connection());
        let provider = connection.provider();
        let mut effects = Vec::new();
        let probe = permit.take_probe();
        if probe.is_some() || provider.is_dirty() {
            let (ended, shown) = provider_success(provider, probe, permit.provider_began, now);
            effects.extend(ended);
            if shown {
                self.changed(None);
            }
        }
        if connection.is_dirty() {
            let config = provider.config();
            let (ended, shown) = connection.update(now, |record| {
                let mut effects = Vec::new();
                let cleared = permit.began == connection.sequence() && clear_errors(record, &connection, now, &mut effects);
                if cleared {
                    record.ended.by_success(permit.started);
                }
                if let Some(model) = model {
                    let touched = record.locks.of_model(model, &config.families, permit.began);
                    record.ended.single_locks(touched, permit.started);
                    let locks = record.locks.success(model, &config.families, permit.began, now);
                    effects.extend(locks.iter().map(|key| lockout_ended(&connection, key, Cause::Success)));
                }
                let shown = cleared || !effects.is_empty();
                (effects, shown)
            });
            effects.extend(ended);
            if shown {
                self.changed(connection.read(|record| record.next_change(now)));
            }
        }
        effects
    }

    fn count_rules(&self, verdict: &Verdict, now: EpochMs) {
        if let Some(rule) = &verdict.rule {
            self.rule_matched(rule, false, now);
        }
        for rule in &verdict.shadow_rules {
            self.rule_matched(rule, true, now);
        }
    }

    /// Counts a failure against the breaker and the window gate.
    fn provider_failure(
        &self,
        provider: &Arc<ProviderCell>,
        permit: &Permit,
        probe: Option<ProbeToken>,
        verdict: &Verdict,
        index: &Index,
        now: EpochMs,
    ) -> Vec<Effect> {
        let (effects, next) = provider.update(now, |record, config| {
            let sequence = provider.next_sequence();
            let mut effects = Vec::new();
            let before = record.breaker.phase(now, &config.breaker);
            let origin = ProviderCell::origin(record, probe, permit.provider_began);
            record.breaker.failure(now, verdict.kind, origin, &config.breaker);
            let after = record.breaker.phase(now, &config.breaker);
            if before != after {
                if after == BreakerPhase::Open {
                    record.opened_by = sequence;
                }
                effects.extend(breaker_effect(provider, record.breaker.state(now, &config.breaker)));
            }
            if index.settings.provider_cooldown.enabled {
                let rested = record.window.until(now, &config.window).is_some();
                if let Some(until) = record.window.failure(now, &config.window).filter(|_| !rested) {
                    record.gated_by = sequence;
                    effects.push(Effect::ProviderCooldownStarted { provider: Arc::clone(provider.name()), until });
                }
            }
            let gate = record.window.until(now, &config.window);
            (effects, record.breaker.next_change(now, &config.breaker).into_iter().chain(gate).min())
        });
        self.changed(next);
        effects
    }
}

/// A success seen by the provider: the breaker's and the window's business. Also answers whether what is shown changed.
fn provider_success(provider: &Arc<ProviderCell>, probe: Option<ProbeToken>, began: u64, now: EpochMs) -> (Vec<Effect>, bool) {
    provider.update(now, |record, config| {
        let mut effects = Vec::new();
        let before = record.breaker.state(now, &config.breaker);
        let origin = ProviderCell::origin(record, probe, began);
        record.breaker.success(now, origin, &config.breaker);
        let after = record.breaker.state(now, &config.breaker);
        if before.state != after.state && after.state == BreakerPhase::Closed {
            record.breaker_ended_ms = now.0;
            effects.push(Effect::BreakerClosed { provider: Arc::clone(provider.name()), by: Cause::Success });
        }
        let rests = record.window.until(now, &config.window).is_some();
        if !rests || began >= record.gated_by {
            record.window.success();
            record.window_ended_ms = now.0;
            if rests {
                effects.push(Effect::ProviderCooldownEnded { provider: Arc::clone(provider.name()), by: Cause::Success });
            }
        }
        let shown = before != after || !effects.is_empty();
        (effects, shown)
    })
}

fn breaker_effect(provider: &Arc<ProviderCell>, state: super::BreakerState) -> Option<Effect> {
    let provider = Arc::clone(provider.name());
    match (state.state, state.until) {
        (BreakerPhase::Degraded, _) => Some(Effect::BreakerDegraded { provider, failures: state.failures }),
        (BreakerPhase::Open, Some(until)) => {
            Some(Effect::BreakerOpened { provider, failures: state.failures, until, open_cycles: state.open_cycles })
        }
        _ => None,
    }
}

/// True when the failure is about the credential that the request carried: a later one has nothing to do with it.
const fn blames_credential(verdict: &Verdict) -> bool {
    verdict.terminal.is_some() || matches!(verdict.strike, Some(Strike::Auth)) || of_credential(verdict.reason)
}

/// Forgets every error of a connection; answers whether there was one.
fn clear_errors(record: &mut ConnectionRecord, cell: &ConnectionCell, now: EpochMs, effects: &mut Vec<Effect>) -> bool {
    let found = record.has_errors(now);
    let (provider, connection) = (Arc::clone(cell.provider().name()), Arc::clone(cell.name()));
    if let Some(terminal) = record.terminal.take() {
        effects.push(Effect::TerminalCleared {
            provider: Arc::clone(&provider),
            connection: Arc::clone(&connection),
            state: terminal.state,
            by: Cause::Success,
        });
    }
    if record.cooldown.until(now).is_some() || record.gate.until(now).is_some() {
        effects.push(Effect::CooldownEnded { provider, connection, by: Cause::Success });
    }
    record.cooldown.clear();
    record.strikes.clear();
    record.gate.success();
    record.rotation = Default::default();
    record.last_status = None;
    record.last_reason = None;
    found
}

pub(super) fn lockout_ended(cell: &ConnectionCell, key: &LockKey, by: Cause) -> Effect {
    Effect::LockoutEnded {
        provider: Arc::clone(cell.provider().name()),
        connection: Arc::clone(cell.name()),
        model: key.name().to_owned(),
        by,
    }
}

impl Failure<'_> {
    /// The part that concerns the failing connection itself; also answers whether anything may rest. Called with its record locked.
    fn on_connection(&self, record: &mut ConnectionRecord, place: Landing) -> (Vec<Effect>, bool) {
        record.last_status = Some(self.status).filter(|s| *s > 0);
        record.last_reason = Some(self.verdict.reason);
        if record.terminal.is_some() {
            return (Vec::new(), place == Landing::Provider); // nothing weakens or changes it
        }
        let mut effects = Vec::new();
        if let Some(terminal) = self.terminal(record, &mut effects) {
            record.terminal = Some(TerminalState::new(terminal, self.verdict.reason, self.status, self.now));
            effects.push(self.terminal_entered(terminal));
            return (effects, false);
        }
        if !matches!(place, Landing::Model(_) | Landing::RecordOnly) {
            record.cooldown.change_level(self.verdict.level, self.began, self.sequence, self.now);
        }
        let rests = place != Landing::RecordOnly && self.may_rest(record);
        let cooling = !self.connection.config().disable_cooling;
        let started = if rests && cooling { self.start(record, place) } else { None };
        if cooling {
            self.gate(record);
        }
        effects.push(started.unwrap_or_else(|| self.recorded()));
        (effects, rests && (cooling || place == Landing::Provider))
    }

    /// Starts the rest of the model or the connection.
    fn start(&self, record: &mut ConnectionRecord, place: Landing) -> Option<Effect> {
        match place {
            Landing::Model(scope) => self.lock(record, scope),
            Landing::Connection | Landing::EgressGroup | Landing::Provider => {
                cool(record, self.connection, &self.jittered(&self.rest(place)?, self.jitter), self.now)
            }
            Landing::Nowhere | Landing::RecordOnly => None,
        }
    }

    /// Connections that rest because this one failed. Each record is locked on its own.
    fn on_siblings(&self, place: Landing) -> Vec<Effect> {
        let provider = self.connection.provider().name();
        let siblings: &[Arc<ConnectionCell>] = match place {
            Landing::Provider => self.index.of_provider(provider),
            Landing::EgressGroup => {
                let group = self.connection.config().egress_group.clone();
                group.and_then(|group| self.index.egress.get(&group)).map_or(&[], Vec::as_slice)
            }
            _ => &[],
        };
        let Some(rest) = self.rest(place) else { return Vec::new() };
        let others = siblings.iter().filter(|cell| !Arc::ptr_eq(cell, self.connection) && !cell.config().disable_cooling);
        let cooled = others.enumerate().filter_map(|(n, cell)| {
            let rest = self.jittered(&rest, spread(self.jitter, n));
            cell.update(self.now, |record| if record.terminal.is_some() { None } else { cool(record, cell, &rest, self.now) })
        });
        cooled.collect()
    }

    /// The terminal state to enter. Strikes of one herd count once, so one that was counted already leads to none.
    fn terminal(&self, record: &mut ConnectionRecord, effects: &mut Vec<Effect>) -> Option<Terminal> {
        if self.verdict.strike != Some(Strike::Auth) {
            return self.verdict.terminal;
        }
        if !record.strikes.add(self.began, self.sequence, self.now) {
            return None;
        }
        let strikes = record.strikes.count();
        effects.push(Effect::StrikeCounted {
            provider: Arc::clone(self.connection.provider().name()),
            connection: Arc::clone(self.connection.name()),
            strikes,
        });
        self.verdict.terminal
    }

    /// The rest that the verdict asks for, before jitter.
    fn rest(&self, place: Landing) -> Option<Rest> {
        let verdict = self.verdict;
        let rejected = verdict.strike == Some(Strike::RequestRejected);
        let reason = if rejected { Reason::RequestRejected } else { verdict.reason };
        match verdict.wait_source {
            Some(source) if verdict.cooldown_ms > 0 => Some(Rest { reason, source, wait_ms: verdict.cooldown_ms }),
            // An egress group, or a declared scope, rests even where nothing says how long.
            None if verdict.scope_declared || place == Landing::EgressGroup => {
                Some(Rest { reason, source: WaitSource::Fixed, wait_ms: FALLBACK_REST_MS })
            }
            _ => None,
        }
    }

    fn jittered(&self, rest: &Rest, jitter: f64) -> Rest {
        let computed = rest.source.computed() && !self.verdict.exact_wait;
        Rest { wait_ms: if computed { jittered_ms(rest.wait_ms, jitter) } else { rest.wait_ms }, ..*rest }
    }

    /// Rotation thresholds: they gate the limits and failures of an account, not what a rule declared and not strikes.
    fn may_rest(&self, record: &mut ConnectionRecord) -> bool {
        self.verdict.scope_declared
            || self.verdict.strike.is_some()
            || record.rotation.may_cool(self.status, &self.index.settings.rotation, self.now)
    }

    /// The window gate's rest of the connection, counted once per rest.
    fn gate(&self, record: &mut ConnectionRecord) {
        let settings = &self.index.settings.provider_cooldown;
        if settings.enabled && self.verdict.failover == Failover::OtherConnection && record.gate.until(self.now).is_none() {
            record.gate.failure(self.now, settings);
        }
    }

    fn lock(&self, record: &mut ConnectionRecord, scope: LockScope) -> Option<Effect> {
        let lockout = &self.index.settings.lockout;
        let model = self.model?;
        let until_reset = until_reset_ms(&self.config.traits, self.now);
        let (wait, source) = lock_wait(self.verdict, self.status, &self.config.traits, lockout, until_reset)?;
        let computed = source.computed() && !self.verdict.exact_wait;
        let jitter = if computed { self.jitter } else { 0.0 };
        let request = LockRequest {
            reason: lock_reason(self.verdict, self.status),
            source,
            wait: match wait {
                LockWait::Exact { ms } => LockWait::Exact { ms: jittered_ms(ms, jitter) },
                wait => wait,
            },
            rejection: self.verdict.strike == Some(Strike::RequestRejected),
            jitter,
            began: self.began,
            sequence: self.sequence,
        };
        let key = LockKey::new(scope, model, &self.config.families);
        let escalation = Escalation::of(lockout, request.reason);
        let slow = self.is_slow() && matches!(wait, LockWait::Escalating { .. });
        let locked = if slow {
            record.locks.lock_slow(key.clone(), &request, &lockout.slow_start, &escalation, self.now)
        } else {
            record.locks.lock(key.clone(), &request, &escalation, self.now)
        };
        let (provider, connection) = (Arc::clone(self.connection.provider().name()), Arc::clone(self.connection.name()));
        match locked {
            Locked::Until(until) => Some(Effect::LockoutStarted {
                provider,
                connection,
                model: key.name().to_owned(),
                exact: key.is_literal(),
                reason: request.reason,
                until,
                source: request.source,
            }),
            Locked::Omitted => Some(Effect::LockoutOmitted { provider, connection, model: key.name().to_owned() }),
            Locked::Kept(_) | Locked::Observed => None,
        }
    }

    /// Slow start concerns failures that took long, of the providers that the settings name (by name or catalog id).
    fn is_slow(&self) -> bool {
        let slow = &self.index.settings.lockout.slow_start;
        let named = |name: &String| **self.connection.provider().name() == **name || self.config.traits.catalog_id == *name;
        slow.enabled && self.ran_ms > slow.threshold_ms && slow.providers.iter().any(named)
    }

    fn terminal_entered(&self, state: Terminal) -> Effect {
        Effect::TerminalEntered {
            provider: Arc::clone(self.connection.provider().name()),
            connection: Arc::clone(self.connection.name()),
            state,
            reason: self.verdict.reason,
            status: self.status,
        }
    }

    fn recorded(&self) -> Effect {
        Effect::ErrorRecorded {
            provider: Arc::clone(self.connection.provider().name()),
            connection: Arc::clone(self.connection.name()),
            reason: self.verdict.reason,
            status: self.status,
        }
    }
}

/// Starts or extends a rest.
fn cool(record: &mut ConnectionRecord, cell: &ConnectionCell, rest: &Rest, now: EpochMs) -> Option<Effect> {
    let applied = record.cooldown.apply(rest, now);
    let until = record.cooldown.until(now).filter(|_| applied != Applied::Kept)?;
    Some(Effect::CooldownStarted {
        provider: Arc::clone(cell.provider().name()),
        connection: Arc::clone(cell.name()),
        reason: rest.reason,
        until,
        source: rest.source,
        level: record.cooldown.level(now),
        extended: applied == Applied::Extended,
    })
}

/// Time to the provider's daily reset; UTC midnight where none is declared (decisions 1.6).
fn until_reset_ms(traits: &ProviderTraits, now: EpochMs) -> u64 {
    let declared = traits.quota_reset.as_ref().and_then(|r| next_daily(now, &r.time_zone, r.hour));
    declared.or_else(|| next_daily(now, "UTC", 0)).map_or(super::lockout::MAX_WAIT_MS, |at| at.since(now))
}

/// Another jitter for each sibling, so that they do not all come back at the same instant.
fn spread(jitter: f64, n: usize) -> f64 {
    #[allow(clippy::cast_precision_loss)] // a count of connections
    let turn = (n + 1) as f64 * 0.618_033_988_749_895;
    (f64::midpoint(jitter, 1.0) + turn).fract().mul_add(2.0, -1.0)
}
