//! Whatever rules say and whatever an upstream answers: a verdict comes out, the same one every time; its wait has a source and a bound;
//! and rules in Shadow mode are counted and change nothing.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::OnceLock;

use super::Parts;
use crate::api::time::EpochMs;
use crate::classify::{self, Attempt, AuthClass, CooldownProfile, History, Reason, RuleSet, Scope, TransportError, Verdict, catalog};
use crate::snapshot::{Rule, RuleTransport, RuleVerdict};

static NO_RULES: OnceLock<RuleSet> = OnceLock::new();
const NOW: EpochMs = EpochMs(1_700_000_000_000);
/// Longest wait that anybody but a rule can bring about, milliseconds.
const LONGEST: u64 = 30 * 86_400_000;
const PROVIDERS: &[&str] = &["openai", "anthropic", "gemini", "glm", "claude", "openrouter", "agentrouter", "nobody"];
const REASONS: &[Reason] =
    &[Reason::QuotaExhausted, Reason::CreditsExhausted, Reason::AuthError, Reason::RateLimitExceeded, Reason::RequestRejected];
const SCOPES: &[Scope] = &[Scope::Model, Scope::Connection, Scope::Provider];
const TRANSPORTS: &[TransportError] = &[TransportError::Connect, TransportError::Tls, TransportError::Reset, TransportError::Timeout];

/// An element of a list, by a byte of the input.
fn pick<T: Copy>(list: &[T], at: u8) -> T {
    list[usize::from(at) % list.len()]
}

/// The byte at a place; 0 where there is none.
fn byte(control: &[u8], at: usize) -> u8 {
    control.get(at).copied().unwrap_or_default()
}

/// A text that a rule looks for; an empty one is none.
fn wanted(text: String) -> Option<String> {
    Some(text).filter(|text| !text.is_empty())
}

/// Parts: control bytes (flags, status, scope and reason, transport), text, text that must be absent, code, header.
fn rule(control: &[u8], parts: &mut Parts<'_>, number: usize) -> Rule {
    let (flags, status) = (byte(control, 0), byte(control, 1));
    let catch_all = flags & 1 == 1;
    Rule {
        name: format!("r{number}"),
        providers: (flags & 2 == 2).then(|| vec![pick(PROVIDERS, status).to_owned()]),
        statuses: if flags & 4 == 4 { vec![400 + u16::from(status) % 200] } else { Vec::new() },
        text: wanted(parts.text()),
        not_text: wanted(parts.text()),
        code: wanted(parts.text()),
        error_type: None,
        header: wanted(parts.text()).map(|value| ("retry-after".to_owned(), Some(value))),
        transport: (flags & 8 == 8).then(|| match pick(TRANSPORTS, byte(control, 3)) {
            TransportError::Connect => RuleTransport::Connect,
            TransportError::Tls => RuleTransport::Tls,
            TransportError::Timeout => RuleTransport::Timeout,
            _ => RuleTransport::Reset,
        }),
        shadow: flags & 16 == 16,
        catch_all,
        verdict: RuleVerdict {
            reason: (flags & 32 == 32).then(|| pick(REASONS, byte(control, 2))).or((!catch_all).then_some(Reason::QuotaExhausted)),
            scope: pick(SCOPES, byte(control, 2)),
            cooldown_ms: (flags & 64 == 64).then_some(60_000),
            at_least: catch_all || status % 2 == 1,
            restate_status: (flags & 128 == 128 && !catch_all).then(|| 400 + u16::from(status) % 200),
        },
    }
}

/// Rules, compiled as they are and all in Shadow mode.
struct Sets {
    rules: Vec<Rule>,
    acting: RuleSet,
    shadows: RuleSet,
}

/// The rules of an input. To compile them takes longer than everything else: those of inputs that differ in other parts are kept.
fn sets(parts: &mut Parts<'_>) -> Rc<Sets> {
    thread_local! {
        static KEPT: RefCell<HashMap<String, Rc<Sets>>> = RefCell::default();
    }
    let mut rules = Vec::new();
    while let Some(control) = parts.next() {
        rules.push(rule(control, parts, rules.len()));
    }
    KEPT.with_borrow_mut(|kept| {
        if kept.len() > 256 {
            kept.clear();
        }
        let compile = || {
            let shadows: Vec<Rule> = rules.iter().map(|rule| Rule { shadow: true, ..rule.clone() }).collect();
            Rc::new(Sets { acting: RuleSet::new(&rules, &[], &[]), shadows: RuleSet::new(&shadows, &[], &[]), rules: rules.clone() })
        };
        Rc::clone(kept.entry(format!("{rules:?}")).or_insert_with(compile))
    })
}

/// Parts: control bytes (provider, status in two bytes, transport, strikes), body, a header's value, and rules.
pub fn check(data: &[u8]) {
    let mut parts = Parts::of(data);
    let (control, body, header) = (parts.bytes(), parts.bytes(), parts.text());
    let sets = sets(&mut parts);
    let traits = catalog::traits(pick(PROVIDERS, byte(control, 0)), None);
    let headers = [("retry-after", &*header), ("x-ratelimit-reset", &*header), ("anthropic-ratelimit-unified-reset", &*header)];
    let transport = byte(control, 3);
    let attempt = Attempt {
        provider: &traits,
        model: Some("m"),
        status: u16::from_be_bytes([byte(control, 1), byte(control, 2)]) % 600,
        headers: &headers,
        body,
        transport: (transport > 0).then(|| pick(TRANSPORTS, transport)),
        via_proxy: transport > 127,
    };
    let strikes = u32::from(byte(control, 4));
    let class = CooldownProfile::of(AuthClass::ApiKey);
    let history = History { backoff_level: strikes, auth_strikes: strikes, request_rejections: strikes, ..History::fresh(NOW, class) };
    let ask = |rules: &RuleSet| classify::classify(&attempt, &history, rules);
    let verdict = ask(&sets.acting);
    assert_eq!(verdict, ask(&sets.acting), "the same evidence means the same");
    assert!(!verdict.decided_by.is_empty());
    assert_eq!(verdict.cooldown_ms == 0, verdict.wait_source.is_none(), "{verdict:?}");
    assert!(verdict.cooldown_ms <= LONGEST || verdict.terminal.is_some(), "{verdict:?}");
    if let Some(name) = &verdict.rule {
        assert!(sets.rules.iter().any(|rule| rule.name == **name && !rule.shadow), "{verdict:?}");
    }
    let told = Verdict { shadow_rules: Vec::new(), ..ask(&sets.shadows) };
    assert_eq!(told, ask(NO_RULES.get_or_init(RuleSet::default)), "a rule in Shadow mode changes nothing");
}
