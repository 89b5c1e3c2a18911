//! Properties of the classifier: it never panics, key order does not matter, the rule index answers like a walk through all rules,
//! and every row of the tables can decide.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "support/rules.rs"]
mod rules;

use omniroute::api::time::EpochMs;
use omniroute::classify::{self, Attempt, AuthClass, CooldownProfile, History, Reason, RuleSet, Scope, TransportError, Verdict, catalog};
use omniroute::snapshot::{Rule, RuleVerdict};
use proptest::prelude::*;
use rules::rule;

const NOW: EpochMs = EpochMs(1_700_000_000_000);

fn verdict(provider: &str, status: u16, headers: &[(&str, &str)], body: &[u8], rules: &RuleSet) -> Verdict {
    let traits = catalog::traits(provider, None);
    let attempt = Attempt { provider: &traits, model: Some("m"), status, headers, body, transport: None, via_proxy: false };
    classify::classify(&attempt, &History::fresh(NOW, CooldownProfile::of(traits.auth_class)), rules)
}

/// Words that the tables and the wait parser know, and pieces that almost are.
const WORDS: &[&str] = &[
    "rate limit",
    "quota",
    "exceeded",
    "daily",
    "limit",
    "reset at ",
    "resets in ",
    "try again in ",
    "99999999999999999999",
    "1h",
    "-5",
    "限额将在 ",
    " 重置",
    "2026-02-30",
    "额度不足",
    "\n",
    "\"",
    "{",
    "}",
    "[1308]",
    "model",
    "not found",
    "insufficient",
    "balance",
    "suspended",
    "\u{feff}",
    "秒后重试",
    "please retry in ",
    "1e308s",
    "0x",
    "PT",
    "Oct 99th, 20265",
    "retry after ",
    "reached|",
    "1700000000000000",
    "µs",
    "again at ",
    "13:61 PM",
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_bytes_never_panic(body in proptest::collection::vec(any::<u8>(), 0..400), status in 0u16..700, value in ".{0,40}") {
        let rules = RuleSet::default();
        let headers = [("retry-after", value.as_str()), ("x-ratelimit-reset", value.as_str()), ("anthropic-ratelimit-unified-reset", value.as_str()), (value.as_str(), "")];
        let v = verdict("openai", status, &headers, &body, &rules);
        prop_assert!(!v.decided_by.is_empty());
    }

    #[test]
    fn known_words_in_any_order_never_panic(words in proptest::collection::vec(proptest::sample::select(WORDS), 0..30), wrap in any::<bool>(), status in 200u16..600) {
        let text = words.concat();
        let body = if wrap { serde_json::json!({"error": {"message": text, "retry_after": text, "resets_at": text, "details": [{"retryDelay": text}]}}).to_string() } else { text };
        let v = verdict("zai", status, &[("retry-after", &body), ("x-ratelimit-reset-tokens", &body)], body.as_bytes(), &RuleSet::default());
        // No computed or stated wait is beyond its cap; a dead account is the only exception.
        prop_assert!(v.cooldown_ms <= 30 * 86_400_000 || v.terminal.is_some(), "{v:?}");
        prop_assert_eq!(v.cooldown_ms == 0, v.wait_source.is_none());
    }

    #[test]
    fn the_order_of_keys_does_not_matter(order in Just((0..FIELDS.len()).collect::<Vec<_>>()).prop_shuffle(), take in 1usize..8, status in proptest::sample::select(&[400u16, 401, 403, 429, 500][..])) {
        let mut fields: Vec<&str> = order.iter().take(take).map(|i| FIELDS[*i]).collect();
        let build = |fields: &[&str]| format!("{{\"error\":{{{}}}}}", fields.join(","));
        let one = verdict("glm", status, &[], build(&fields).as_bytes(), &RuleSet::default());
        fields.reverse();
        let other = verdict("glm", status, &[], build(&fields).as_bytes(), &RuleSet::default());
        prop_assert_eq!(one, other);
    }
}

proptest! {
    // Each case compiles an automaton.
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_index_answers_like_a_walk(rules in proptest::collection::vec(any_rule(), 0..40), status in proptest::sample::select(&[400u16, 429, 500][..]), text in 0usize..4, code in 0usize..4, header in any::<bool>(), provider in 0usize..3) {
        let rules: Vec<Rule> = rules.into_iter().enumerate().map(|(i, r)| Rule { name: format!("r{i}"), ..r }).collect();
        let provider = ["alpha", "beta", "gamma"][provider];
        let body = serde_json::json!({"error": {"message": TEXTS[text], "code": CODES[code]}}).to_string();
        let headers: &[(&str, &str)] = if header { &[("X-Cause", "a")] } else { &[] };
        let got = verdict(provider, status, headers, body.as_bytes(), &RuleSet::new(&rules, &[], &[]));
        let holds = |r: &&Rule| {
            (r.statuses.is_empty() || r.statuses.contains(&status))
                && r.providers.as_ref().is_none_or(|p| p.iter().any(|n| n == provider))
                && r.text.as_ref().is_none_or(|t| TEXTS[text].contains(&t.to_lowercase()))
                && r.not_text.as_ref().is_none_or(|t| !TEXTS[text].contains(&t.to_lowercase()))
                && r.code.as_ref().is_none_or(|c| c.eq_ignore_ascii_case(CODES[code]))
                && r.header.as_ref().is_none_or(|_| header)
        };
        let acting = rules.iter().filter(holds).find(|r| !r.shadow).map(|r| r.name.clone());
        prop_assert_eq!(got.rule.as_deref().map(str::to_owned), acting.clone());
        let shadows: Vec<String> = rules.iter().filter(holds).take_while(|r| Some(&r.name) != acting.as_ref()).filter(|r| r.shadow).map(|r| r.name.clone()).collect();
        prop_assert_eq!(got.shadow_rules.iter().map(|s| s.to_string()).collect::<Vec<_>>(), shadows);
    }
}

const FIELDS: &[&str] = &[
    r#""message":"try again in 20s or wait 3 minutes""#,
    r#""title":"resets in 2h""#,
    r#""code":"1302""#,
    r#""status":429"#,
    r#""type":"overloaded_error""#,
    r#""retry_after":"30s""#,
    r#""resets_at":1700000900"#,
    r#""detail":"quota exceeded, resets at 2023-11-15T00:00:00Z""#,
];
const TEXTS: &[&str] = &["some wording", "another wording entirely", "wording", ""];
const CODES: &[&str] = &["c_one", "c_two", "c_three", ""];

fn any_rule() -> impl Strategy<Value = Rule> {
    let text = proptest::option::of(proptest::sample::select(&["WORDING", "another", "some", "entirely"][..]));
    let not_text = proptest::option::weighted(0.2, proptest::sample::select(&["some", "another"][..]));
    let code = proptest::option::weighted(0.3, proptest::sample::select(&["C_ONE", "c_two"][..]));
    let statuses = proptest::sample::select(vec![Vec::new(), vec![429u16], vec![400, 500]]);
    let providers = proptest::option::of(proptest::sample::select(vec![vec!["alpha"], vec!["beta", "gamma"]]));
    (text, not_text, code, statuses, providers, any::<bool>(), proptest::bool::weighted(0.2), proptest::bool::weighted(0.3)).prop_map(
        |(text, not_text, code, statuses, providers, shadow, header, mode)| Rule {
            statuses,
            text: text.map(str::to_owned),
            not_text: not_text.map(str::to_owned),
            code: code.map(str::to_owned),
            providers: providers.map(|p| p.iter().map(|n| (*n).to_owned()).collect()),
            header: header.then(|| ("x-cause".to_owned(), None)),
            shadow: shadow && mode,
            ..rule("")
        },
    )
}

#[test]
fn transport_failures_fail_over_and_a_proxy_is_not_the_provider() {
    let traits = catalog::traits("openai", None);
    let history = History::fresh(NOW, CooldownProfile::of(AuthClass::ApiKey));
    let rules = RuleSet::default();
    for (kind, cooldown, counts) in [
        (TransportError::Connect, 3_000, true),
        (TransportError::Tls, 3_000, true),
        (TransportError::Reset, 3_000, true),
        (TransportError::Timeout, 3_000, true),
        (TransportError::StreamInterrupted, 3_000, true),
        (TransportError::StreamNotReady, 0, true),
        (TransportError::Quality, 3_000, false),
    ] {
        let attempt =
            |via_proxy| Attempt { provider: &traits, model: None, status: 0, headers: &[], body: b"", transport: Some(kind), via_proxy };
        let direct = classify::classify(&attempt(false), &history, &rules);
        assert_eq!((direct.cooldown_ms, direct.counts_for_breaker), (cooldown, counts), "{kind:?}");
        assert_eq!(direct.failover, classify::Failover::OtherConnection);
        assert!(!classify::classify(&attempt(true), &history, &rules).counts_for_breaker, "{kind:?}");
    }
}

#[test]
fn a_rule_matches_a_transport_kind() {
    let rules = RuleSet::new(&[Rule { transport: Some(omniroute::snapshot::RuleTransport::Tls), ..rule("tls") }], &[], &[]);
    let traits = catalog::traits("openai", None);
    let history = History::fresh(NOW, CooldownProfile::of(AuthClass::ApiKey));
    let ask = |kind| {
        let attempt =
            Attempt { provider: &traits, model: None, status: 0, headers: &[], body: b"", transport: Some(kind), via_proxy: false };
        classify::classify(&attempt, &history, &rules).decided_by.to_string()
    };
    assert_eq!(ask(TransportError::Tls), "rule.tls");
    assert_eq!(ask(TransportError::Connect), "transport.connect");
}

#[test]
fn a_rule_that_says_the_money_is_gone_is_terminal_unless_it_names_a_rest() {
    let broke = |cooldown_ms, scope| {
        let verdict = RuleVerdict { reason: Some(Reason::CreditsExhausted), scope, cooldown_ms, at_least: false, restate_status: None };
        let rules = RuleSet::new(&[Rule { text: Some("empty purse".to_owned()), verdict, ..rule("purse") }], &[], &[]);
        verdict_of_purse(&rules)
    };
    assert_eq!(broke(None, Scope::Connection).terminal, Some(classify::Terminal::CreditsExhausted));
    let rests = broke(Some(60_000), Scope::Connection);
    assert_eq!((rests.terminal, rests.cooldown_ms), (None, 60_000));
    assert_eq!(broke(None, Scope::Model).terminal, None);
}

fn verdict_of_purse(rules: &RuleSet) -> Verdict {
    verdict("acme", 403, &[], b"Empty Purse", rules)
}

#[test]
fn a_redirect_is_not_an_error_inside_a_success() {
    let v = verdict("acme", 302, &[], b"", &RuleSet::default());
    assert_eq!((&*v.decided_by, v.restated_status, v.counts_for_breaker), ("status.other", None, false));
}

#[test]
fn a_switched_off_row_does_not_act() {
    let body = b"You are out of credits";
    assert_eq!(&*verdict("openai", 403, &[], body, &RuleSet::default()).decided_by, "detector.credits");
    let off = RuleSet::new(&[], &["detector.credits".to_owned(), "detector.credits-of-model".to_owned()], &[]);
    assert_eq!(&*verdict("openai", 403, &[], body, &off).decided_by, "text.quota-phrase");
    let off = RuleSet::new(&[], &["restatement.agentrouter-quota-misstatus".to_owned()], &[]);
    assert_eq!(verdict("agentrouter", 403, &[], "额度不足".as_bytes(), &off).restated_status, None);
}

#[test]
fn the_operators_own_ban_signals_act() {
    let rules = RuleSet::new(&[], &[], &["Blocked by ACME policy".to_owned()]);
    let v = verdict("acme", 403, &[], b"sorry: blocked by acme policy 7", &rules);
    assert_eq!((v.terminal, &*v.decided_by), (Some(classify::Terminal::Banned), "detector.account-dead"));
}

#[test]
fn rejections_grow_to_one_hour_and_never_ban() {
    let traits = catalog::traits("claude", None);
    let attempt = Attempt {
        provider: &traits,
        model: Some("m"),
        status: 403,
        headers: &[],
        body: b"Request not allowed",
        transport: None,
        via_proxy: false,
    };
    let waits: Vec<u64> = [0, 1, 2, 9, 10, 1_000]
        .map(|n| {
            let history = History { request_rejections: n, ..History::fresh(NOW, CooldownProfile::of(AuthClass::OAuth)) };
            let v = classify::classify(&attempt, &history, &RuleSet::default());
            assert_eq!((v.terminal, v.strike), (None, Some(classify::Strike::RequestRejected)));
            v.cooldown_ms
        })
        .to_vec();
    assert_eq!(waits, [5_000, 10_000, 20_000, 2_560_000, 3_600_000, 3_600_000]);
}

#[test]
fn ids_are_well_formed_and_documented() {
    let ids: Vec<&str> = classify::builtin_ids().collect();
    assert!(ids.iter().all(|id| id.contains('.') && id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'.' || b == b'-')), "{ids:?}");
    for row in classify::tables().into_iter().flatten() {
        assert!(!row.spec.is_empty(), "{}", row.id);
    }
}
