//! The compiled rule set: one automaton, and an index that finds the operator's rules without walking through them.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock};

use smallvec::SmallVec;

use super::TransportError;
use super::body::Body;
use super::evidence::Evidence;
use super::scan::{Builder, Field, Found, Scanner};
use crate::snapshot::{Rule, RuleTransport, RuleVerdict};

/// Everything that [`super::classify()`] matches with, compiled once per snapshot: the built-in phrases, the operator's rules and ban signals.
#[derive(Debug)]
pub struct RuleSet {
    scanner: Arc<Scanner>,
    disabled: HashSet<String>,
    pub(super) rules: Vec<OperatorRule>,
    index: Index,
    catch_all: ByProvider,
    /// At least one rule looks for a text.
    has_texts: bool,
    /// At least one rule restates a status.
    pub(super) restates: bool,
}

/// One operator rule, resolved against the automaton.
#[derive(Debug)]
pub(super) struct OperatorRule {
    /// Name of the resource.
    pub name: Arc<str>,
    providers: Option<Vec<String>>,
    pub(super) statuses: Vec<u16>,
    text: Option<u32>,
    not_text: Option<u32>,
    code: Option<Key>,
    error_type: Option<Key>,
    header: Option<(String, Option<String>)>,
    transport: Option<RuleTransport>,
    /// Counts, does not act.
    pub shadow: bool,
    /// What it says.
    pub verdict: RuleVerdict,
}

/// A structured value that a rule wants.
#[derive(Debug, Clone, Copy)]
struct Key {
    index: u32,
    /// The value is an HTTP status.
    status: Option<u16>,
}

/// Rules for all providers, and those of one provider; each in the order in which they are asked.
#[derive(Debug, Default)]
struct ByProvider {
    any: Vec<u32>,
    named: HashMap<String, Vec<u32>>,
}

impl ByProvider {
    fn add(&mut self, rule: u32, providers: Option<&[String]>) {
        match providers {
            None => self.any.push(rule),
            Some(names) => {
                for name in names {
                    self.named.entry(name.clone()).or_default().push(rule);
                }
            }
        }
    }

    fn lists<'s>(&'s self, provider: &str, out: &mut Lists<'s>) {
        if !self.any.is_empty() {
            out.push(&self.any);
        }
        if !self.named.is_empty()
            && let Some(list) = self.named.get(provider)
        {
            out.push(list);
        }
    }
}

/// Sorted lists of rules that may hold.
type Lists<'s> = SmallVec<[&'s [u32]; 8]>;

/// Each rule stands in exactly one place: under its most selective condition.
#[derive(Debug, Default)]
struct Index {
    texts: HashMap<u32, ByProvider>,
    keys: HashMap<u32, ByProvider>,
    numeric: HashMap<u16, ByProvider>,
    headers: HashMap<String, ByProvider>,
    transports: [ByProvider; 4],
    statuses: HashMap<u16, ByProvider>,
    /// Rules without any of these (only a text that must be absent).
    rest: ByProvider,
}

/// What a rule is compared with.
#[derive(Clone, Copy)]
pub(super) struct Facts<'a> {
    /// Name of the Provider resource.
    pub provider: &'a str,
    /// Original status.
    pub original: u16,
    /// Status after restatement.
    pub status: u16,
    /// Response headers.
    pub headers: &'a [(&'a str, &'a str)],
    /// Transport failure.
    pub transport: Option<TransportError>,
    /// Numeric code of the body.
    pub body_status: Option<u16>,
    /// What the scan found.
    pub found: &'a Found,
}

/// The scanner of the built-in phrases alone, for callers without a rule set.
pub(super) fn builtin_scanner() -> &'static Arc<Scanner> {
    static SCANNER: OnceLock<Arc<Scanner>> = OnceLock::new();
    SCANNER.get_or_init(|| Arc::new(Builder::with_builtins().build()))
}

impl Default for RuleSet {
    fn default() -> Self {
        Self::new(&[], &[], &[])
    }
}

impl RuleSet {
    /// Compiles the rules of a snapshot (in the order in which they are asked). `disabled_builtins` are ids of built-in rows that do not
    /// act; `custom_banned` are literal texts that mean that the account is dead (spec: resilience 6.3).
    #[must_use]
    pub fn new(rules: &[Rule], disabled_builtins: &[String], custom_banned: &[String]) -> Self {
        let mut builder = Builder::default();
        for signal in custom_banned {
            builder.add_plain(signal, Evidence::AccountDead);
        }
        let compiled: Vec<OperatorRule> = rules.iter().map(|rule| OperatorRule::compile(rule, &mut builder)).collect();
        let (mut index, mut catch_all) = (Index::default(), ByProvider::default());
        for (i, (rule, source)) in compiled.iter().zip(rules).enumerate() {
            let i = u32::try_from(i).unwrap_or(u32::MAX);
            if source.catch_all { catch_all.add(i, source.providers.as_deref()) } else { index.add(i, rule) }
        }
        let has_texts = compiled.iter().any(|r| r.text.is_some() || r.not_text.is_some());
        let restates = rules.iter().any(|r| r.verdict.restate_status.is_some() && !r.shadow);
        let disabled = disabled_builtins.iter().cloned().collect();
        // Without own texts and codes every rule set shares the automaton of the built-in phrases.
        let scanner = if builder.is_empty() { Arc::clone(builtin_scanner()) } else { Arc::new(builder.add_builtins().build()) };
        Self { scanner, disabled, rules: compiled, index, catch_all, has_texts, restates }
    }

    /// Whether a built-in row acts.
    pub(super) fn acts(&self, id: &str) -> bool {
        self.disabled.is_empty() || !self.disabled.contains(id)
    }

    /// Reads what a body says. Operator texts are looked for in all of it, JSON included: an operator knows the body, not our idea of its
    /// message fields.
    pub(super) fn scan(&self, body: &Body<'_>, raw: &[u8]) -> Found {
        let whole = (self.has_texts && body.json).then(|| super::body::payload(raw));
        self.scanner.scan(body, whole)
    }

    /// The first rule that holds and acts, and the shadow rules that hold before it.
    pub(super) fn first(&self, facts: Facts<'_>) -> (Option<&OperatorRule>, Vec<Arc<str>>) {
        let mut lists = Lists::new();
        self.index.lists(facts, &mut lists);
        self.walk(lists, facts)
    }

    /// The first catch-all default for these facts (9.5), and shadow ones before it.
    pub(super) fn first_catch_all(&self, facts: Facts<'_>) -> (Option<&OperatorRule>, Vec<Arc<str>>) {
        let applies = matches!(facts.status, 402 | 403 | 408 | 429) || facts.status >= 500;
        let mut lists = Lists::new();
        if applies {
            self.catch_all.lists(facts.provider, &mut lists);
        }
        self.walk(lists, facts)
    }

    /// The first rule that restates and holds.
    pub(super) fn first_restating(&self, facts: Facts<'_>) -> Option<&OperatorRule> {
        let mut lists = Lists::new();
        self.index.lists(facts, &mut lists);
        merged(lists).filter_map(|i| self.rules.get(i as usize)).find(|r| r.verdict.restate_status.is_some() && !r.shadow && r.holds(facts))
    }

    fn walk(&self, lists: Lists<'_>, facts: Facts<'_>) -> (Option<&OperatorRule>, Vec<Arc<str>>) {
        let mut shadows = Vec::new();
        for rule in merged(lists).filter_map(|i| self.rules.get(i as usize)) {
            if !rule.holds(facts) {
                continue;
            }
            if !rule.shadow {
                return (Some(rule), shadows);
            }
            shadows.push(Arc::clone(&rule.name));
        }
        (None, shadows)
    }
}

/// Walks several sorted lists in order, each rule once.
fn merged(mut lists: Lists<'_>) -> impl Iterator<Item = u32> {
    let mut last = None;
    std::iter::from_fn(move || {
        loop {
            let (at, next) = lists.iter().enumerate().filter_map(|(at, l)| l.first().map(|r| (at, *r))).min_by_key(|(_, r)| *r)?;
            if let Some(list) = lists.get_mut(at) {
                *list = list.get(1..).unwrap_or_default();
            }
            if last != Some(next) {
                last = Some(next);
                return Some(next);
            }
        }
    })
}

impl Index {
    fn add(&mut self, i: u32, rule: &OperatorRule) {
        let providers = rule.providers.as_deref();
        if let Some(text) = rule.text {
            self.texts.entry(text).or_default().add(i, providers);
        } else if let Some(key) = rule.code.or(rule.error_type) {
            match key.status {
                Some(status) => self.numeric.entry(status).or_default().add(i, providers),
                None => self.keys.entry(key.index).or_default().add(i, providers),
            }
        } else if let Some((name, _)) = &rule.header {
            self.headers.entry(name.clone()).or_default().add(i, providers);
        } else if let Some(transport) = rule.transport {
            if let Some(list) = self.transports.get_mut(transport as usize) {
                list.add(i, providers);
            }
        } else if rule.statuses.is_empty() {
            self.rest.add(i, providers);
        } else {
            for status in &rule.statuses {
                self.statuses.entry(*status).or_default().add(i, providers);
            }
        }
    }

    fn lists<'s>(&'s self, facts: Facts<'_>, out: &mut Lists<'s>) {
        let provider = facts.provider;
        for list in facts.found.literals.iter().filter_map(|i| self.texts.get(i)) {
            list.lists(provider, out);
        }
        for list in facts.found.keys.iter().filter_map(|i| self.keys.get(i)) {
            list.lists(provider, out);
        }
        if let Some(list) = facts.body_status.and_then(|s| self.numeric.get(&s)) {
            list.lists(provider, out);
        }
        if !self.headers.is_empty() {
            for (name, _) in facts.headers {
                let lower = name.to_ascii_lowercase();
                if let Some(list) = self.headers.get(&lower) {
                    list.lists(provider, out);
                }
            }
        }
        if let Some(list) = facts.transport.and_then(rule_transport).and_then(|t| self.transports.get(t as usize)) {
            list.lists(provider, out);
        }
        if !self.statuses.is_empty() {
            if let Some(list) = self.statuses.get(&facts.status) {
                list.lists(provider, out);
            }
            if facts.original != facts.status
                && let Some(list) = self.statuses.get(&facts.original)
            {
                list.lists(provider, out);
            }
        }
        self.rest.lists(provider, out);
    }
}

/// The transport kind that rules can name.
fn rule_transport(kind: TransportError) -> Option<RuleTransport> {
    match kind {
        TransportError::Connect => Some(RuleTransport::Connect),
        TransportError::Timeout | TransportError::StreamNotReady => Some(RuleTransport::Timeout),
        TransportError::Reset | TransportError::StreamInterrupted => Some(RuleTransport::Reset),
        TransportError::Tls => Some(RuleTransport::Tls),
        TransportError::Quality => None,
    }
}

impl OperatorRule {
    fn compile(rule: &Rule, builder: &mut Builder) -> Self {
        let mut key = |field, text: &Option<String>| {
            let text = text.as_deref()?;
            let status = text.parse().ok().filter(|s| field == Field::Code && (400..600).contains(s));
            Some(Key { index: builder.add_key(field, text), status })
        };
        let (code, error_type) = (key(Field::Code, &rule.code), key(Field::Type, &rule.error_type));
        let mut literal = |text: &Option<String>| text.as_deref().filter(|t| !t.is_empty()).map(|t| builder.add_literal(t));
        Self {
            name: rule.name.as_str().into(),
            providers: rule.providers.clone(),
            statuses: rule.statuses.clone(),
            text: literal(&rule.text),
            not_text: literal(&rule.not_text),
            code,
            error_type,
            header: rule.header.as_ref().map(|(name, value)| (name.to_ascii_lowercase(), value.clone())),
            transport: rule.transport,
            shadow: rule.shadow,
            verdict: rule.verdict,
        }
    }

    /// Whether its text was found.
    pub(super) fn text_is_in(&self, found: &Found) -> bool {
        self.text.is_some_and(|t| found.literals.contains(&t))
    }

    /// Whether every condition holds.
    pub(super) fn holds(&self, facts: Facts<'_>) -> bool {
        let key = |key: Option<Key>| {
            key.is_none_or(|k| facts.found.keys.contains(&k.index) || (k.status.is_some() && k.status == facts.body_status))
        };
        let header = |(name, value): &(String, Option<String>)| {
            let mut values = facts.headers.iter().filter(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v.trim());
            values.any(|v| value.as_ref().is_none_or(|wanted| v == wanted.trim()))
        };
        (self.statuses.is_empty() || self.statuses.contains(&facts.original) || self.statuses.contains(&facts.status))
            && self.providers.as_ref().is_none_or(|names| names.iter().any(|n| n == facts.provider))
            && self.text.is_none_or(|t| facts.found.literals.contains(&t))
            && self.not_text.is_none_or(|t| !facts.found.literals.contains(&t))
            && key(self.code)
            && key(self.error_type)
            && self.header.as_ref().is_none_or(header)
            && self.transport.is_none_or(|t| facts.transport.and_then(rule_transport) == Some(t))
    }
}

impl<'a> Facts<'a> {
    /// The facts of an attempt.
    pub(super) fn of(attempt: &super::Attempt<'a>, status: u16, body: &Body<'_>, found: &'a Found) -> Self {
        Self {
            provider: &attempt.provider.name,
            original: attempt.status,
            status,
            headers: attempt.headers,
            transport: attempt.transport,
            body_status: body.status,
            found,
        }
    }
}
