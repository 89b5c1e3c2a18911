//! The compiler: golden pairs, order independence, findings.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod goldens;
#[path = "../support/resources.rs"]
mod support;

use omniroute::api::time::EpochMs;
use omniroute::compile::{Compiled, Options, Resources, Severity, compile};
use proptest::prelude::*;
use serde_json::json;
use support::resources;

fn options() -> Options {
    Options { fingerprint_key: b"test".to_vec(), now: EpochMs(1_700_000_000_000), ..Options::default() }
}

fn run(yaml: &str) -> Compiled {
    compile(&resources(yaml), &options())
}

const QUICKSTART: &str = include_str!("../golden/compile/quickstart.in.yaml");

fn shuffled(all: &Resources, seed: u64) -> Resources {
    fn turn<T: Clone>(list: &[T], seed: u64) -> Vec<T> {
        let mut list = list.to_vec();
        let mut state = seed | 1;
        for i in (1..list.len()).rev() {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            list.swap(i, usize::try_from(state >> 33).unwrap() % (i + 1));
        }
        list
    }
    Resources {
        providers: turn(&all.providers, seed),
        connections: turn(&all.connections, seed),
        combos: turn(&all.combos, seed),
        settings: turn(&all.settings, seed),
        rules: turn(&all.rules, seed),
        secrets: turn(&all.secrets, seed),
        config_maps: turn(&all.config_maps, seed),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    #[test]
    fn the_order_of_the_input_does_not_matter(seed: u64) {
        for (name, yaml) in goldens::inputs() {
            let (all, options) = (resources(&yaml), goldens::options_of(&yaml));
            let (one, other) = (compile(&all, &options), compile(&shuffled(&all, seed), &options));
            prop_assert_eq!(one.snapshot.canonical_json().unwrap(), other.snapshot.canonical_json().unwrap(), "{}", name);
            prop_assert_eq!(one.findings, other.findings, "{}", name);
        }
    }
}

#[test]
fn the_quickstart_has_no_findings_and_round_trips() {
    let compiled = run(QUICKSTART);
    assert_eq!(compiled.findings, vec![]);
    assert_eq!(compiled.gateway.as_deref(), Some("default"));
    let json = compiled.snapshot.canonical_json().unwrap();
    let back = omniroute::snapshot::Snapshot::from_json(&json).unwrap();
    assert_eq!(back, compiled.snapshot);
    assert_eq!(back.hash().unwrap(), compiled.snapshot.hash().unwrap());
}

#[test]
fn no_credential_shows_in_findings_or_debug() {
    let yaml = QUICKSTART.replace("sk-replace-me-a", "sk canary a").replace("client-key-replace-me", "canary");
    let compiled = run(&yaml);
    assert!(compiled.findings.len() >= 2, "{:?}", compiled.findings);
    let text = format!("{:?} {:?}", compiled.findings, compiled.snapshot);
    assert!(!text.contains("canary") && !text.contains("sk-replace"), "{text}");
}

#[test]
fn one_bad_object_does_not_stop_the_others() {
    let compiled = run(&QUICKSTART.replace("openai-team-a: sk-replace-me-a", "openai-team-a: ''"));
    let bad: Vec<_> = compiled.findings.iter().map(|f| (f.kind.as_str(), f.name.as_str(), f.reason.as_str())).collect();
    assert_eq!(bad, [("Connection", "openai-team-a", "CredentialMissing")]);
    let names: Vec<_> = compiled.snapshot.connections.iter().map(|c| c.name.as_str()).collect();
    assert_eq!(names, ["anthropic-main", "openai-team-b"]);
    assert_eq!(compiled.snapshot.unusable_connections.len(), 1);
    assert_eq!(compiled.snapshot.combos.len(), 1);
}

#[test]
fn only_the_fragment_of_the_edited_object_changes() {
    let before = run(QUICKSTART).snapshot.fragments;
    let after = run(&QUICKSTART.replace("priority: 2", "priority: 3")).snapshot.fragments;
    let changed: Vec<_> = before.iter().filter(|(k, v)| after.get(*k) != Some(v)).map(|(k, _)| k.as_str()).collect();
    assert_eq!(changed, ["Connection/openai-team-b"]);
}

#[test]
fn a_command_keeps_the_time_at_which_it_was_first_seen() {
    let yaml =
        QUICKSTART.replace("metadata: {name: openai-team-b}", "metadata: {name: openai-team-b, annotations: {omniroute.dev/reset: '1'}}");
    let all = resources(&yaml);
    let first = compile(&all, &options()).snapshot;
    assert_eq!(first.commands.len(), 1);
    let later = Options { accepted: first.commands.clone(), now: EpochMs(1_800_000_000_000), ..options() };
    assert_eq!(compile(&all, &later).snapshot.hash().unwrap(), first.hash().unwrap());
    let again = compile(&resources(&yaml.replace("'1'", "'2'")), &later).snapshot;
    assert_eq!(again.commands[0].accepted_time, EpochMs(1_800_000_000_000));
}

#[test]
fn a_changed_credential_changes_its_fingerprint_and_another_key_makes_another() {
    let print = |yaml: &str, options: &Options| compile(&resources(yaml), options).snapshot.connections[1].credential_fingerprint.clone();
    let one = print(QUICKSTART, &options());
    assert_ne!(one, print(&QUICKSTART.replace("sk-replace-me-a", "sk-other"), &options()));
    assert_ne!(one, print(QUICKSTART, &Options { fingerprint_key: b"other".to_vec(), ..options() }));
    assert_eq!(one.len(), 32);
}

#[test]
fn two_thousand_rules_compile() {
    let mut all = resources(QUICKSTART);
    for i in 0..2_000 {
        let rule = json!({"apiVersion": "omniroute.dev/v1alpha1", "kind": "OperatorErrorRule", "metadata": {"name": format!("r{i}")},
            "spec": {"match": {"statuses": [429], "text": format!("code {i} end")}, "verdict": {"cooldown": "1m"}}});
        all.rules.push(std::sync::Arc::new(serde_json::from_value(rule).unwrap()));
    }
    let compiled = compile(&all, &options());
    assert_eq!(compiled.snapshot.rules.len(), 2_000);
    assert!(!compiled.findings.iter().any(|f| f.severity == Severity::Error));
}

#[test]
fn refreshed_tokens_are_in_force_as_long_as_they_descend_from_the_owners() {
    use omniroute::compile::oauth::Tokens;
    let account = |access: &str, more: &str| {
        format!(
            "
apiVersion: omniroute.dev/v1alpha1
kind: Provider
metadata: {{name: p}}
spec: {{baseURL: https://api.example, dialects: [Messages], authClass: OAuth}}
---
apiVersion: omniroute.dev/v1alpha1
kind: Connection
metadata: {{name: c, annotations: {{note: plain{more}}}}}
spec: {{providerRef: {{name: p}}, credentials: {{oauth: {{secretRef: {{name: s}}, tokenURL: https://auth.example/t}}}}}}
---
apiVersion: v1
kind: Secret
metadata: {{name: s, annotations: {{omniroute.dev/allowed-hosts: \"api.example, auth.example\"}}}}
stringData: {{accessToken: {access}, refreshToken: rt-0, expiresAt: \"1900000000\"}}
"
        )
    };
    let with = |yaml: &str, kept: &Tokens, uid: &str| {
        let mut all = resources(yaml);
        all.secrets.push(std::sync::Arc::new(kept.secret("c", uid)));
        compile(&all, &options())
    };
    let token = |compiled: &Compiled| compiled.snapshot.connections[0].credential.clone().unwrap().expose().to_owned();
    let seed = run(&account("at-0", ""));
    assert_eq!((token(&seed).as_str(), seed.grants.len(), &seed.findings[..]), ("at-0", 1, &[][..]));
    let grant = &seed.grants[0];
    let kept = grant.renewed(omniroute::snapshot::Secret::new("at-1"), None, Some(1_000), EpochMs(1_700_000_000_000));
    let refreshed = with(&account("at-0", ""), &kept, "");
    let (before, after) = (&seed.snapshot.connections[0], &refreshed.snapshot.connections[0]);
    assert_eq!((token(&refreshed).as_str(), after.token_expires), ("at-1", Some(EpochMs(1_700_000_001_000))));
    assert_eq!(before.credential_fingerprint, after.credential_fingerprint, "a refresh of ours clears nothing");
    let json = String::from_utf8(refreshed.snapshot.canonical_json().unwrap()).unwrap();
    assert!(!json.contains("rt-0") && !json.contains("auth.example/t"), "a gateway has no business with the refresh token");
    let owner = with(&account("at-new", ""), &kept, "");
    assert_eq!(token(&owner), "at-new");
    assert_ne!(owner.snapshot.connections[0].credential_fingerprint, before.credential_fingerprint);
    // A Secret of that name that belongs to somebody else is neither read nor written.
    let foreign = with(&account("at-0", ""), &kept, "another");
    assert_eq!((token(&foreign).as_str(), foreign.grants.len(), foreign.findings[0].reason.as_str()), ("at-0", 0, "NameConflict"));
    // A refusal is a fact about the account, and void after a reset.
    let refused = with(&account("at-0", ""), &grant.refused("no".into()), "");
    assert!(refused.snapshot.connections[0].refresh_refused);
    assert_eq!((refused.findings[0].severity, refused.findings[0].reason.as_str()), (Severity::Warning, "Expired"));
    let reset = with(&account("at-0", ", omniroute.dev/reset: again"), &grant.refused("no".into()), "");
    assert!(!reset.snapshot.connections[0].refresh_refused);
    let elsewhere = run(&account("at-0", "").replace(", auth.example", ""));
    assert_eq!((elsewhere.snapshot.connections.len(), elsewhere.findings[0].field.as_str()), (0, "spec.credentials.oauth.tokenURL"));
}

#[test]
fn a_bound_credential_goes_through_no_proxy_that_could_read_it() {
    let bound = |provider: &str, proxy: &str| {
        run(&format!(
            "
apiVersion: omniroute.dev/v1alpha1
kind: Provider
metadata: {{name: p}}
spec: {{dialects: [Messages], {provider}}}
---
apiVersion: omniroute.dev/v1alpha1
kind: Connection
metadata: {{name: c}}
spec: {{providerRef: {{name: p}}, credentials: {{apiKey: {{secretRef: {{name: s, key: k}}}}}}{proxy}}}
---
apiVersion: v1
kind: Secret
metadata: {{name: s, annotations: {{omniroute.dev/allowed-hosts: \"api.example, proxy.example\"}}}}
stringData: {{k: sk-1}}
"
        ))
    };
    let (https, plain) = ("baseURL: 'https://api.example'", "baseURL: 'http://api.example', allowInsecureHTTP: true");
    let (listed, other) = (", proxyURL: 'http://proxy.example:3128'", ", proxyURL: 'http://u:pw@evil.example:3128'");
    for (provider, proxy, serves) in [(https, other, true), (plain, "", true), (plain, listed, true), (plain, other, false)] {
        let compiled = bound(provider, proxy);
        assert_eq!(compiled.snapshot.connections.len(), usize::from(serves), "{provider}{proxy} {:?}", compiled.findings);
    }
    let finding = &bound(plain, other).findings[0];
    assert!(
        finding.field == "spec.proxyURL" && finding.message.contains("`evil.example`") && !finding.message.contains("pw"),
        "{finding:?}"
    );
}

#[test]
fn addresses_that_an_older_schema_let_in_are_findings_without_their_passwords() {
    let compiled = |oauth: &str, proxy: &str| {
        run(&format!(
            "
apiVersion: omniroute.dev/v1alpha1
kind: Provider
metadata: {{name: p}}
spec: {{dialects: [Messages], baseURL: 'https://api.example', authClass: OAuth}}
---
apiVersion: omniroute.dev/v1alpha1
kind: Connection
metadata: {{name: c}}
spec: {{providerRef: {{name: p}}, credentials: {{oauth: {{secretRef: {{name: s}}, tokenURL: '{oauth}'}}}}{proxy}}}
---
apiVersion: v1
kind: Secret
metadata: {{name: s}}
stringData: {{accessToken: at, refreshToken: rt}}
"
        ))
    };
    let good = "https://auth.example/token";
    for (oauth, proxy, field, serves) in [
        ("https://app:canary@auth.example/token", "", "spec.credentials.oauth.tokenURL", true),
        ("https://", "", "spec.credentials.oauth.tokenURL", true),
        ("http://auth.example/token", "", "spec.credentials.oauth.tokenURL", true),
        (good, ", proxyURL: 'https://u:canary@proxy.example'", "spec.proxyURL", false),
        (good, ", proxyURL: 'u:canary@proxy.example'", "spec.proxyURL", false),
    ] {
        let compiled = compiled(oauth, proxy);
        let found = &compiled.findings[0];
        assert!(found.field == field && found.reason == "InvalidSpec" && !found.message.contains("canary"), "{oauth}{proxy} {found:?}");
        assert_eq!((compiled.grants.len(), compiled.snapshot.connections.len()), (0, usize::from(serves)), "{oauth}{proxy}");
    }
    assert_eq!(compiled(good, "").grants.len(), 1);
}
