//! Builders for ledgers and verdicts, and a small deterministic random source.

use std::sync::Arc;

use omniroute::api::time::EpochMs;
use omniroute::classify::{AuthClass, Failover, FailureKind, LevelChange, Reason, Scope, Strike, Terminal, Verdict, WaitSource};
use omniroute::resilience::{ConnectionCell, ConnectionState, Effect, Ledger, ProviderState};
use omniroute::snapshot::{BreakerProfile, Connection, Provider, Snapshot, WindowGateProfile};

pub const NOW: EpochMs = EpochMs(1_800_000_000_000);

/// A provider of an auth class with the numbers of that class.
pub fn provider(name: &str, class: AuthClass) -> Provider {
    let mut provider = Provider {
        name: name.to_owned(),
        breaker: BreakerProfile::of(class),
        window_gate: WindowGateProfile::of(class),
        ..Provider::default()
    };
    provider.traits.auth_class = class;
    provider.traits.catalog_id = name.to_owned();
    provider
}

pub fn connection(name: &str, provider: &Provider) -> Connection {
    Connection {
        name: name.to_owned(),
        provider: provider.name.clone(),
        credential_fingerprint: format!("fingerprint of {name}"),
        cooldown: omniroute::classify::CooldownProfile::of(provider.traits.auth_class),
        ..Connection::default()
    }
}

/// A snapshot with one provider `p` and connections `a`, `b`, `c`.
pub fn snapshot(change: impl FnOnce(&mut Provider)) -> Snapshot {
    let mut provider = provider("p", AuthClass::ApiKey);
    change(&mut provider);
    let connections = ["a", "b", "c"].map(|name| connection(name, &provider)).to_vec();
    Snapshot { providers: vec![provider], connections, ..Snapshot::default() }
}

pub fn ledger(snapshot: &Snapshot) -> Ledger {
    let ledger = Ledger::new();
    ledger.configure(snapshot, NOW);
    ledger
}

/// A rate limit without a stated wait, at backoff level 0.
pub fn verdict() -> Verdict {
    Verdict {
        reason: Reason::RateLimitExceeded,
        error_type: None,
        scope: Scope::Connection,
        scope_declared: false,
        failover: Failover::OtherConnection,
        cooldown_ms: 3_000,
        wait_source: Some(WaitSource::Scaled),
        level: LevelChange::Set(1),
        terminal: None,
        strike: None,
        skip_breaker: false,
        counts_for_breaker: false,
        kind: FailureKind::RateLimit,
        daily_quota: false,
        quota_reset_ms: None,
        ambiguous_auth: false,
        restated_status: None,
        restated_wait_ms: None,
        decided_by: Arc::from("status.429"),
        rule: None,
        shadow_rules: Vec::new(),
        exact_wait: false,
    }
}

/// A wait that a header stated.
pub fn stated(ms: u64) -> Verdict {
    Verdict { cooldown_ms: ms, wait_source: Some(WaitSource::Header), level: LevelChange::Set(0), ..verdict() }
}

/// A failure of the service.
pub fn server_error() -> Verdict {
    Verdict { reason: Reason::ServerError, counts_for_breaker: true, kind: FailureKind::Transient, ..verdict() }
}

/// Evidence of a bad key, after so many strikes; the third one is final.
pub fn strike(before: u32) -> Verdict {
    Verdict {
        reason: Reason::AuthError,
        cooldown_ms: 300_000,
        wait_source: Some(WaitSource::Fixed),
        level: LevelChange::Unchanged,
        strike: Some(Strike::Auth),
        terminal: (before >= 2).then_some(Terminal::Expired),
        ..verdict()
    }
}

pub fn terminal(state: Terminal) -> Verdict {
    Verdict {
        reason: Reason::AuthError,
        cooldown_ms: 0,
        wait_source: None,
        level: LevelChange::Unchanged,
        terminal: Some(state),
        ..verdict()
    }
}

/// Sends one request that fails.
pub fn fail(ledger: &Ledger, name: &str, model: &str, status: u16, verdict: &Verdict, now: EpochMs) -> Vec<Effect> {
    let permit = ledger.begin(&cell(ledger, name), now).expect("the breaker lets it through");
    ledger.failure(permit, Some(model), status, verdict, now, 0.0)
}

pub fn succeed(ledger: &Ledger, name: &str, model: &str, now: EpochMs) -> Vec<Effect> {
    let permit = ledger.begin(&cell(ledger, name), now).expect("the breaker lets it through");
    ledger.success(permit, Some(model), now)
}

pub fn cell(ledger: &Ledger, name: &str) -> Arc<ConnectionCell> {
    ledger.connection(name).expect("a connection of the snapshot")
}

pub fn state(ledger: &Ledger, name: &str, now: EpochMs) -> ConnectionState {
    ledger.report(now).connections.into_iter().find(|c| c.name == name).expect("a connection of the snapshot")
}

pub fn provider_state(ledger: &Ledger, name: &str, now: EpochMs) -> ProviderState {
    ledger.report(now).providers.into_iter().find(|p| p.name == name).expect("a provider of the snapshot")
}

/// xorshift64*: the same sequence on every machine.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 16) % n
    }

    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[usize::try_from(self.below(items.len() as u64)).expect("an index")]
    }

    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}
