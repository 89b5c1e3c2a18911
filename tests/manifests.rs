//! Manifests as people write them: examples, slips, several problems at once.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::path::Path;

use omniroute::manifest::{Level, Parsed, Reason, Source, parse};

fn source(text: &str) -> Source {
    Source { name: "x.yaml".to_owned(), text: text.to_owned() }
}

fn problems(parsed: &Parsed) -> Vec<String> {
    parsed.problems.iter().map(|p| format!("{:?} {p}", p.level)).collect()
}

#[test]
fn every_example_is_accepted_as_it_is() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/examples");
    let mut seen = 0;
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let parsed = parse(&[Source { name: path.display().to_string(), text: std::fs::read_to_string(&path).unwrap() }]);
        assert_eq!(problems(&parsed), Vec::<String>::new());
        assert!(!parsed.objects.is_empty());
        seen += 1;
    }
    assert_eq!(seen, 5);
}

#[test]
fn the_quickstart_is_read_completely() {
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/examples/quickstart.yaml")).unwrap();
    let parsed = parse(&[source(&text)]);
    let r = &parsed.resources;
    assert_eq!((r.settings.len(), r.providers.len(), r.connections.len(), r.combos.len(), r.secrets.len()), (1, 2, 3, 1, 2));
    let data = r.secrets[0].data.as_ref().unwrap();
    assert_eq!(data["openai-team-b"].0, b"sk-replace-me-b");
    assert_eq!(r.connections[1].spec.priority, 2);
    assert_eq!(r.connections[0].spec.priority, 1);
}

#[test]
fn one_bad_object_never_hides_the_others() {
    let parsed = parse(&[source(
        "apiVersion: omniroute.dev/v1alpha1\nkind: Provider\nmetadata: {name: a}\nspec: {preset: [\n---\n\
         apiVersion: omniroute.dev/v1alpha1\nkind: Provider\nmetadata: {name: b}\nspec: {}\n---\n\
         apiVersion: omniroute.dev/v1alpha1\nkind: Provider\nmetadata: {name: c}\nspec: {preset: openai}\n",
    )]);
    assert_eq!(parsed.resources.providers.len(), 1);
    let reasons: Vec<Reason> = parsed.problems.iter().map(|p| p.reason).collect();
    assert_eq!(reasons, [Reason::Syntax, Reason::Rule, Reason::Rule], "{:?}", problems(&parsed));
    assert_eq!(parsed.problems[1].place.line, 9);
}

#[test]
fn slips_are_told_with_field_line_and_way_out() {
    let parsed = parse(&[source(
        "apiVersion: omniroute.dev/v1alpha1\nkind: Combo\nmetadata: {name: c}\nspec:\n  stratgy: Prioriti\n  strategy: Prioriti\n  targets:\n  - provider: p\n    model: m\n    weight: \"7\"\n",
    )]);
    assert_eq!(
        problems(&parsed),
        [
            "Error x.yaml:6: Combo `c`: spec.strategy: `\"Prioriti\"` is not allowed here; did you mean `Priority`? The values are Priority, Weighted, RoundRobin, ContextRelay, FillFirst, P2C, Random, LeastUsed, CostOptimized, ResetAware, ResetWindow, Headroom, QuotaWeighted, StrictRandom, Auto, Lkgp, ContextOptimized, CacheOptimized, Fusion, Pipeline",
            "Error x.yaml:5: Combo `c`: spec.stratgy: there is no field `stratgy` here; did you mean `strategy`?",
            "Error x.yaml:10: Combo `c`: spec.targets[0].weight: must be a whole number, not the text `\"7\"`; write it without quotes",
        ]
    );
    assert!(parsed.resources.combos.is_empty());
}

#[test]
fn rules_name_the_object_and_the_line_of_the_field() {
    let parsed = parse(&[source(
        "apiVersion: omniroute.dev/v1alpha1\nkind: Provider\nmetadata: {name: p}\nspec:\n  dialects: [ChatCompletions]\n  baseURL: http://x/v1\n",
    )]);
    assert_eq!(parsed.problems.len(), 1, "{:?}", problems(&parsed));
    let p = &parsed.problems[0];
    assert_eq!((p.reason, p.field.as_str(), p.kind.as_str(), p.name.as_str()), (Reason::Rule, "spec.allowInsecureHTTP", "Provider", "p"));
    assert!(p.message.starts_with("`allowInsecureHTTP` must be true"), "{}", p.message);
}

#[test]
fn identities_are_unique_over_all_sources() {
    let text = "apiVersion: omniroute.dev/v1alpha1\nkind: Provider\nmetadata: {name: p}\nspec: {preset: openai}\n";
    let parsed = parse(&[source(text), Source { name: "y.yaml".to_owned(), text: format!("# again\n{text}") }]);
    assert_eq!(
        problems(&parsed),
        ["Error y.yaml:4: Provider `p`: metadata.name: Provider `p` is defined twice, first at x.yaml:1; keep one of them"]
    );
    assert_eq!(parsed.resources.providers.len(), 1);
}

#[test]
fn other_kinds_are_skipped_and_lists_are_opened() {
    let parsed = parse(&[source(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\n---\napiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: ConfigMap\n  metadata: {name: ca}\n  data: {ca.crt: x}\n- apiVersion: omniroute.dev/v1alpha1\n  kind: Comb\n  metadata: {name: c}\n",
    )]);
    assert_eq!(parsed.resources.config_maps.len(), 1);
    let levels: Vec<(Level, u32)> = parsed.problems.iter().map(|p| (p.level, p.place.line)).collect();
    assert_eq!(levels, [(Level::Warning, 1), (Level::Error, 12)], "{:?}", problems(&parsed));
    assert!(parsed.problems[1].message.contains("did you mean `Combo`"));
}

#[test]
fn yaml_versions_are_a_warning_and_the_object_is_used() {
    let parsed = parse(&[source("apiVersion: omniroute.dev/v1alpha1\nkind: Provider\nmetadata: {name: y}\nspec: {preset: openai}\n")]);
    assert_eq!(parsed.problems.iter().map(|p| (p.level, p.reason)).collect::<Vec<_>>(), [(Level::Warning, Reason::YamlVersion)]);
    assert_eq!(parsed.resources.providers.len(), 1);
}

#[test]
fn no_value_of_a_secret_is_ever_quoted() {
    let parsed = parse(&[source(
        "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\ndata: {a: canary-value, b: 1234567}\nstringData: {c: 7654321, d: off}\nextra: canary-extra\n",
    )]);
    let all = problems(&parsed).join("\n");
    assert!(parsed.has_errors() && parsed.resources.secrets.is_empty());
    for secret in ["canary", "1234567", "7654321", "`off`"] {
        assert!(!all.contains(secret), "{all}");
    }
    for field in ["data.a", "data.b", "stringData.c", "stringData.d", "extra"] {
        assert!(all.contains(field), "{field}: {all}");
    }
}

#[test]
fn labels_must_be_texts() {
    let parsed = parse(&[source(
        "apiVersion: v1\nkind: Secret\nmetadata:\n  name: s\n  labels: {omniroute.dev/api-key: true}\nstringData: {key: k}\n",
    )]);
    assert_eq!(
        problems(&parsed),
        ["Error x.yaml:5: Secret `s`: metadata.labels.omniroute.dev/api-key: must be a text, not the boolean `true`; put it in quotes"]
    );
}

#[test]
fn annotations_are_kept() {
    let parsed = parse(&[source(
        "apiVersion: omniroute.dev/v1alpha1\nkind: Provider\nmetadata:\n  name: p\n  annotations: {omniroute.dev/reset: \"1\"}\nspec: {preset: openai}\n",
    )]);
    let annotations = parsed.resources.providers[0].metadata.annotations.as_ref().unwrap();
    assert_eq!(annotations["omniroute.dev/reset"], "1");
}

#[test]
fn json_is_read_too() {
    let parsed = parse(&[source(
        "{\n\t\"apiVersion\": \"omniroute.dev/v1alpha1\", \"kind\": \"Provider\",\n\t\"metadata\": {\"name\": \"p\"}, \"spec\": {\"displayName\": \"\\ud83d\\ude00\", \"preset\": \"openai\"}\n}",
    )]);
    assert_eq!(problems(&parsed), Vec::<String>::new());
    assert_eq!(parsed.resources.providers[0].spec.display_name.as_deref(), Some("😀"));
}
