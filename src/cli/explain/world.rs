//! Where the attempt happened: the compiled manifests, or what the catalog knows about a provider id.

use crate::api::near::suggest;
use crate::api::time::EpochMs;
use crate::classify::{
    Attempt, AuthClass, CooldownProfile, Failover, History, NearMiss, Reason, RuleSet, Scope, Strike, Terminal, Verdict, catalog, classify,
    near_misses,
};
use crate::compile::{Options, compile};
use crate::manifest::{self, Source};
use crate::resilience::{Effect, Ledger};
use crate::snapshot::{Connection, Provider, Snapshot};

use super::question::Question;
use super::success::Success;

/// Why a question has no answer.
#[derive(thiserror::Error, Debug)]
pub enum AskError {
    /// The provider is not among the manifests.
    #[error("provider: `{name}` is not among the manifests, or has errors that `omniroute validate` shows{hint}")]
    NoProvider {
        /// The name.
        name: String,
        /// A near name.
        hint: String,
    },
    /// The connection is not one of the provider's.
    #[error("connection: `{name}` is no connection of provider `{provider}`{hint}")]
    NoConnection {
        /// The name.
        name: String,
        /// The provider.
        provider: String,
        /// A near name.
        hint: String,
    },
    /// Neither a status nor a transport failure.
    #[error("status: `{status}` is no HTTP status; give one between 100 and 599, or a transport failure")]
    NoStatus {
        /// The value.
        status: u16,
    },
}

/// What verdicts depend on beside the attempt.
#[derive(Debug, Default)]
pub struct World {
    snapshot: Option<Snapshot>,
    rules: RuleSet,
}

/// An answer, ready to be printed.
#[derive(Debug, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Answer {
    /// What the question was called.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<serde_json::Value>,
    /// What the gateway makes of a 2xx, before there is anything to classify.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// The verdict; null where nothing has failed.
    pub verdict: Option<VerdictView>,
    /// What the ledger would do with it, on a connection without any failure before.
    pub effects: Vec<Effect>,
    /// Rows and rules that saw evidence and did not decide.
    pub near_misses: Vec<NearMiss>,
}

/// A verdict with stable names.
#[derive(Debug, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct VerdictView {
    reason: Reason,
    error_type: Option<&'static str>,
    scope: Scope,
    cooldown_ms: u64,
    terminal: Option<Terminal>,
    failover: Failover,
    skip_breaker: bool,
    /// Where the wait comes from; null without one.
    hint_source: Option<&'static str>,
    restated_status: Option<u16>,
    decided_by: String,
    strike: Option<Strike>,
    counts_for_breaker: bool,
    daily_quota: bool,
    quota_reset_ms: Option<u64>,
    shadow_rules: Vec<String>,
}

impl VerdictView {
    fn of(v: &Verdict) -> Self {
        Self {
            reason: v.reason,
            error_type: v.error_type,
            scope: v.scope,
            cooldown_ms: v.cooldown_ms,
            terminal: v.terminal,
            failover: v.failover,
            skip_breaker: v.skip_breaker,
            hint_source: v.wait_source.map(crate::classify::WaitSource::as_str),
            restated_status: v.restated_status,
            decided_by: v.decided_by.to_string(),
            strike: v.strike,
            counts_for_breaker: v.counts_for_breaker,
            daily_quota: v.daily_quota,
            quota_reset_ms: v.quota_reset_ms,
            shadow_rules: v.shadow_rules.iter().map(ToString::to_string).collect(),
        }
    }

    /// Lines for people.
    fn lines(&self) -> String {
        let or_none = |text: Option<String>| text.unwrap_or_else(|| "none".to_owned());
        let wait = match self.hint_source {
            Some(source) => format!("{} ({source})", crate::api::time::format_duration(self.cooldown_ms)),
            None => "none".to_owned(),
        };
        format!(
            "reason      {:?}\ntype        {}\ndecided by  {}\nwait        {wait}\nscope       {:?}\nfailover    {:?}\nterminal    {}\nbreaker     {}\n",
            self.reason,
            self.error_type.unwrap_or("none"),
            self.decided_by,
            self.scope,
            self.failover,
            or_none(self.terminal.map(|t| format!("{t:?}"))),
            if self.counts_for_breaker { "counts" } else { "does not count" },
        ) + &self.restated_status.map(|s| format!("restated    {s}\n")).unwrap_or_default()
    }
}

impl Answer {
    /// For people.
    #[must_use]
    pub fn text(&self) -> String {
        let note = self.note.as_ref().map(|note| format!("{note}\n"));
        let parts = [note, self.verdict.as_ref().map(VerdictView::lines)];
        let mut out = parts.into_iter().flatten().collect::<Vec<_>>().join("\n");
        let mut list = |title: &str, lines: Vec<String>| {
            if !lines.is_empty() {
                out.push_str(&format!("\n{title}\n"));
                lines.iter().for_each(|line| out.push_str(&format!("  {line}\n")));
            }
        };
        list("effects", self.effects.iter().map(ToString::to_string).collect());
        list("near misses", self.near_misses.iter().map(|m| format!("{}: {}", m.id, m.why)).collect());
        out
    }
}

impl World {
    /// The world of manifests: their providers, connections, settings and rules. Answers how much is wrong with them beside it.
    #[must_use]
    pub fn of_manifests(sources: &[Source], namespace: Option<&str>, options: &Options) -> (Self, usize) {
        let parsed = manifest::parse(sources);
        let mut groups = parsed.resources.by_namespace();
        let wanted = namespace.map(str::to_owned).or_else(|| groups.keys().next().cloned().flatten());
        let resources = groups.remove(&wanted).or_else(|| groups.remove(&None)).unwrap_or_default();
        let compiled = compile(&resources, options);
        let problems = parsed.problems.len() + compiled.findings.len();
        let settings = &compiled.snapshot.settings;
        let rules = RuleSet::new(&compiled.snapshot.rules, &settings.disabled_builtins, &settings.custom_banned_signals);
        (Self { snapshot: Some(compiled.snapshot), rules }, problems)
    }

    /// Answers a question.
    ///
    /// # Errors
    /// Names what is not there, with a near name.
    pub fn ask(&self, question: &Question, now: EpochMs) -> Result<Answer, AskError> {
        if question.transport.is_none() && !(100..=599).contains(&question.status) {
            return Err(AskError::NoStatus { status: question.status });
        }
        let small = self.small_snapshot(question)?;
        let (Some(provider), Some(connection)) = (small.providers.first(), small.connections.first()) else {
            return Err(AskError::NoProvider { name: question.provider.clone(), hint: String::new() });
        };
        let headers: Vec<(&str, &str)> = question.headers.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
        let body = question.body();
        let success = (question.transport.is_none() && (200..300).contains(&question.status)).then(|| {
            let content_type = headers.iter().find(|(name, _)| name.eq_ignore_ascii_case("content-type")).map(|(_, value)| *value);
            Success::of(&body, content_type, &provider.dialects, provider.traits.empty_stop_is_valid)
        });
        let note = success.as_ref().map(|success| success.note(question.status));
        if success.as_ref().is_some_and(Success::is_answer) {
            return Ok(Answer { id: question.id.clone(), note, verdict: None, effects: Vec::new(), near_misses: Vec::new() });
        }
        let failed_check = success.as_ref().and_then(Success::failed_check);
        let attempt = Attempt {
            provider: &provider.traits,
            model: question.model.as_deref(),
            status: question.status,
            // What failed the check is not evidence for anything else.
            headers: if failed_check.is_some() { &[] } else { &headers },
            body: if failed_check.is_some() { &[] } else { &body },
            transport: question.transport.map(Into::into).or(failed_check),
            via_proxy: false,
        };
        let ledger = Ledger::new();
        ledger.configure(&small, now);
        let fresh = History::fresh(now, connection.cooldown);
        let permit = ledger.connection(&connection.name).and_then(|cell| ledger.begin(&cell, now).ok());
        let history = permit.as_ref().map_or(fresh, |p| p.history(question.model.as_deref(), now));
        let mut verdict = classify(&attempt, &history, &self.rules);
        ledger.complete(&mut verdict, question.status, &history);
        let status = verdict.restated_status.unwrap_or(question.status);
        let effects = permit.map(|p| ledger.failure(p, question.model.as_deref(), status, &verdict, now, 0.0)).unwrap_or_default();
        Ok(Answer {
            id: question.id.clone(),
            near_misses: near_misses(&attempt, &history, &self.rules),
            note,
            verdict: Some(VerdictView::of(&verdict)),
            effects,
        })
    }

    /// A snapshot of one provider and its connections, the asked one first.
    fn small_snapshot(&self, question: &Question) -> Result<Snapshot, AskError> {
        let Some(snapshot) = &self.snapshot else { return Ok(synthetic(question)) };
        let name = &question.provider;
        let provider = snapshot.providers.iter().find(|p| p.name == *name).ok_or_else(|| AskError::NoProvider {
            name: name.clone(),
            hint: did_you_mean(name, snapshot.providers.iter().map(|p| p.name.as_str())),
        })?;
        let mut connections: Vec<Connection> = snapshot.connections.iter().filter(|c| c.provider == *name).cloned().collect();
        let unusable = snapshot.unusable_connections.iter().filter(|c| c.provider == *name).map(|c| c.name.clone());
        // A missing Secret keeps a connection out of a gateway, not out of an explanation.
        connections.extend(unusable.map(|n| connection(n, name, provider.traits.auth_class)));
        if let Some(wanted) = &question.connection {
            let Some(at) = connections.iter().position(|c| c.name == *wanted) else {
                let hint = did_you_mean(wanted, connections.iter().map(|c| c.name.as_str()));
                return Err(AskError::NoConnection { name: wanted.clone(), provider: name.clone(), hint });
            };
            connections.swap(0, at);
        }
        if connections.is_empty() {
            connections.push(connection(format!("{name}-connection"), name, provider.traits.auth_class));
        }
        Ok(Snapshot { settings: snapshot.settings.clone(), providers: vec![provider.clone()], connections, ..Snapshot::default() })
    }
}

/// A provider that only the catalog knows, with one connection.
fn synthetic(question: &Question) -> Snapshot {
    let traits = catalog::traits(&question.provider, question.auth_class.map(Into::into));
    let name = question.connection.clone().unwrap_or_else(|| format!("{}-connection", question.provider));
    let connection = connection(name, &question.provider, traits.auth_class);
    let provider = Provider {
        name: question.provider.clone(),
        quota_families: catalog::quota_families(&question.provider),
        traits,
        ..Provider::default()
    };
    Snapshot { providers: vec![provider], connections: vec![connection], ..Snapshot::default() }
}

fn connection(name: String, provider: &str, class: AuthClass) -> Connection {
    Connection { name, provider: provider.to_owned(), cooldown: CooldownProfile::of(class), ..Connection::default() }
}

fn did_you_mean<'a>(wanted: &str, names: impl Iterator<Item = &'a str>) -> String {
    suggest(wanted, names).map(|near| format!("; did you mean `{near}`?")).unwrap_or_default()
}
