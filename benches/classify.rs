//! Classifications per second of a typical 429, with 100 and with 2,000 operator rules, measured in the same run.
//! `cargo bench --bench classify`. On Linux the time is that which the thread spent on a core, so that other load does not matter.

use std::hint::black_box;
use std::time::{Duration, Instant};

use omniroute::api::time::EpochMs;
use omniroute::classify::{Attempt, CooldownProfile, History, Reason, RuleSet, Scope, catalog, classify};
use omniroute::snapshot::{Rule, RuleVerdict};

/// What a vendor's rate limit looks like.
const BODY: &str = r#"{"error":{"message":"Rate limit reached for gpt-4o in organization org-abc123 on tokens per min (TPM): Limit 30000, Used 29000, Requested 2000. Please try again in 2s.","type":"tokens","param":null,"code":"rate_limit_exceeded"}}"#;
const HEADERS: &[(&str, &str)] = &[
    ("content-type", "application/json"),
    ("content-length", "251"),
    ("date", "Tue, 14 Nov 2023 22:13:20 GMT"),
    ("retry-after", "2"),
    ("x-ratelimit-limit-requests", "500"),
    ("x-ratelimit-limit-tokens", "30000"),
    ("x-ratelimit-remaining-requests", "499"),
    ("x-ratelimit-remaining-tokens", "1000"),
    ("x-ratelimit-reset-requests", "120ms"),
    ("x-ratelimit-reset-tokens", "58s"),
    ("x-request-id", "req_0123456789abcdef"),
    ("openai-processing-ms", "12"),
];

fn rules(count: usize) -> Vec<Rule> {
    let text = |i: usize| match i % 4 {
        0 => (Some(format!("vendor {i} says that the daily allowance of plan {} is spent", i % 17)), None),
        1 => (Some(format!("quota of project p-{i} exceeded")), None),
        2 => (None, Some(format!("vendor_error_{i}"))),
        _ => (Some(format!("{i}: 账户额度不足")), None),
    };
    (0..count)
        .map(|i| {
            let (text, code) = text(i);
            Rule {
                name: format!("rule-{i}"),
                providers: (i % 3 == 0).then(|| vec![format!("provider-{}", i % 20)]),
                statuses: if i % 2 == 0 { vec![429] } else { vec![400, 403, 429] },
                text,
                not_text: (i % 10 == 0).then(|| format!("not this one {i}")),
                code,
                error_type: None,
                header: None,
                transport: None,
                shadow: i % 5 == 0,
                catch_all: false,
                verdict: RuleVerdict {
                    reason: Some(Reason::QuotaExhausted),
                    scope: Scope::Connection,
                    cooldown_ms: Some(60_000),
                    at_least: false,
                    restate_status: None,
                },
            }
        })
        .collect()
}

/// Time that this thread has run; the clock where the system does not tell.
fn ran(start: Instant) -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let nanos = stat.and_then(|s| s.split(' ').next()?.parse().ok());
    nanos.map_or_else(|| start.elapsed(), Duration::from_nanos)
}

/// Classifications per second of running time, over at least `time`.
fn rate(set: &RuleSet, time: Duration) -> f64 {
    let provider = catalog::traits("openai", None);
    let attempt = Attempt {
        provider: &provider,
        model: Some("gpt-4o"),
        status: 429,
        headers: HEADERS,
        body: BODY.as_bytes(),
        transport: None,
        via_proxy: false,
    };
    let history = History::fresh(EpochMs(1_700_000_000_000), CooldownProfile::of(provider.auth_class));
    let (start, mut done) = (Instant::now(), 0u32);
    let before = ran(start);
    while ran(start) - before < time {
        for _ in 0..1_000 {
            black_box(classify(black_box(&attempt), black_box(&history), set));
        }
        done += 1_000;
    }
    f64::from(done) / (ran(start) - before).as_secs_f64()
}

fn main() {
    let built = Instant::now();
    let (few, many) = (RuleSet::new(&rules(100), &[], &[]), RuleSet::new(&rules(2_000), &[], &[]));
    println!("both rule sets compiled in {:?}", built.elapsed());
    // Interleaved rounds, best of each: the other load of the machine hits both alike.
    let (mut best_few, mut best_many) = (0.0f64, 0.0f64);
    for _ in 0..5 {
        best_few = best_few.max(rate(&few, Duration::from_millis(300)));
        best_many = best_many.max(rate(&many, Duration::from_millis(300)));
    }
    println!("  100 rules: {best_few:>10.0} classifications/s");
    println!("2,000 rules: {best_many:>10.0} classifications/s");
    println!("ratio: {:.2}", best_many / best_few);
}
