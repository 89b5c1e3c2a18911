//! From the end of a walk to the answer.

use super::super::live::{Exclusion, ExclusionReason};
use super::{
    Answer, Diagnostics, Excluded, FailureKind, FailureRecord, Family, MAX_EXCLUDED, MAX_SKIPPED, Origin, Recovery, mixed_status, summary,
};
use crate::api::time::EpochMs;
use crate::classify::Reason;

/// Why a walk ended without an answer from a target.
#[derive(Clone, PartialEq, Debug)]
pub(in super::super) enum Why {
    /// The last failure says that nothing else would help.
    Stop,
    /// The client asked for one call and its answer as it is.
    SingleCall,
    /// Nothing is left to try.
    NothingLeft,
    /// All dispatches are used up.
    MaxAttempts,
    /// The time for the whole request is over.
    Deadline { limit_ms: u64 },
    /// A protected target failed, or is out, for another reason than its quota.
    Protected { gate: Option<Exclusion> },
}

/// Everything that the answer depends on.
#[derive(Clone, PartialEq, Debug)]
pub struct Ending<'a> {
    /// The name that the client asked for.
    pub name: &'a str,
    /// A combo was asked for, not a model.
    pub is_combo: bool,
    /// Why it ended.
    pub(in super::super) why: Why,
    /// Failed attempts, in order.
    pub failures: &'a [FailureRecord],
    /// Every connection and target that is out, as it stands at the end.
    pub excluded: Vec<Excluded>,
    /// A target could be used right now: a retry may help at once.
    pub usable_now: bool,
    /// Targets below the combo.
    pub pool_size: usize,
    /// Dispatches.
    pub attempted: u32,
    /// `provider/model` of every dispatch.
    pub attempt_order: Vec<String>,
    /// A local limit that alone kept the request from the only targets left.
    pub local: Option<Answer>,
    /// Now.
    pub now: EpochMs,
}

/// The answer at the end of a walk.
pub(in super::super) fn after(mut ending: Ending<'_>) -> Answer {
    let mut answer = match &ending.why {
        Why::Stop => stopped(&ending),
        Why::SingleCall => single(&ending),
        Why::Protected { gate } => protected(&ending, *gate),
        Why::MaxAttempts => {
            let message = format!("Maximum combo retry limit: {} attempts failed: {}", ending.attempted, summary(ending.failures));
            Answer::new(503, "max_attempts_exceeded", Family::Unavailable, message)
                .because("max_attempts_exceeded", Recovery::TryAuto)
                .retry_at(ending.earliest(), ending.now)
        }
        Why::Deadline { limit_ms } => {
            let tried: Vec<String> = ending.failures.iter().map(|f| format!("{} ({})", f.label, f.status)).collect();
            let message = format!("`{}` found no answer within {limit_ms}ms; tried {}", ending.name, tried.join(", "));
            Answer::new(504, "COMBO_TIMEOUT", Family::Timeout, message).because("combo_timeout", Recovery::Retry)
        }
        Why::NothingLeft if ending.failures.is_empty() => refusal(&mut ending),
        Why::NothingLeft => failed(&ending),
    };
    answer.diagnostics = diagnostics(&ending, answer.terminal_reason);
    answer
}

impl Ending<'_> {
    /// The exclusions that are not a matter of configuration.
    fn dynamic(&self) -> impl Iterator<Item = &Excluded> {
        self.excluded.iter().filter(|e| !e.reason.is_static())
    }

    fn timers(&self) -> impl Iterator<Item = &Excluded> {
        self.excluded.iter().filter(|e| e.reason.is_timer())
    }

    /// When a retry can succeed, if something must end first.
    fn earliest(&self) -> Option<EpochMs> {
        if self.usable_now { None } else { self.timers().filter_map(|e| e.until).min() }
    }
}

fn stopped(ending: &Ending<'_>) -> Answer {
    let Some(last) = ending.failures.last() else {
        if let Some(local) = &ending.local {
            return local.clone();
        }
        return Answer::new(503, "no_upstream_response", Family::Unavailable, format!("`{}` gave no answer", ending.name))
            .because("no_upstream_response", Recovery::Retry);
    };
    let mut answer = of_failure(last, summary(std::slice::from_ref(last)));
    answer.no_retry |= last.stop;
    with_wait(answer, ending)
}

/// The one answer that the client asked for: even about our own credential.
fn single(ending: &Ending<'_>) -> Answer {
    let mut answer = stopped(ending);
    if let Some(last) = ending.failures.last().filter(|f| f.passable) {
        answer.pass_upstream = true;
        (answer.status, answer.origin) = (last.status, Origin::Provider);
    }
    answer
}

/// The answer that one failure gives: the upstream's own where there is one.
fn of_failure(failure: &FailureRecord, message: String) -> Answer {
    let (code, family) = match failure.kind {
        FailureKind::Auth => return all_inactive(message),
        FailureKind::RateLimit => ("rate_limit_exceeded", Family::RateLimit),
        FailureKind::Timeout => ("upstream_timeout", Family::Timeout),
        FailureKind::Provider => ("upstream_error", Family::Upstream),
        FailureKind::Model => ("upstream_rejected", Family::InvalidRequest),
        FailureKind::Quality => ("bad_gateway", Family::Upstream),
    };
    let terminal = if failure.quota { "quota_exhausted" } else { "all_models_failed" };
    let recovery = if failure.quota { Recovery::SwitchCombo } else { Recovery::TryAuto };
    let mut answer = Answer::new(failure.status, code, family, message).because(terminal, recovery);
    if failure.passable {
        answer.pass_upstream = true;
        answer.origin = Origin::Provider;
    }
    answer
}

fn all_inactive(detail: String) -> Answer {
    let mut answer =
        Answer::new(503, "ALL_ACCOUNTS_INACTIVE", Family::Unavailable, detail).because("all_accounts_inactive", Recovery::SwitchCombo);
    answer.no_retry = true;
    answer
}

/// Adds the wait where one is of use: after limits and failures of the upstream, never after a wrong request.
fn with_wait(answer: Answer, ending: &Ending<'_>) -> Answer {
    let waits = matches!(answer.status, 408 | 429 | 500..);
    if waits { answer.retry_at(ending.earliest(), ending.now) } else { answer }
}

fn failed(ending: &Ending<'_>) -> Answer {
    let failures = ending.failures;
    let Some(last) = failures.last() else { return stopped(ending) };
    let all = |kind: FailureKind| failures.iter().all(|f| f.kind == kind);
    if all(FailureKind::Auth) {
        let mut answer = all_inactive(format!("no account of `{}` is usable: {}", ending.name, summary(failures)));
        // One that comes back by itself makes a retry worth while.
        answer.no_retry = ending.earliest().is_none();
        return answer.retry_at(ending.earliest(), ending.now);
    }
    let one_provider = failures.iter().all(|f| f.provider == last.provider);
    if last.kind != FailureKind::Auth && last.passable && (one_provider || all(FailureKind::Model)) {
        return with_wait(of_failure(last, summary(failures)), ending);
    }
    let status = mixed_status(failures, 503);
    let quota = failures.iter().all(|f| f.quota);
    let family = match status {
        429 => Family::RateLimit,
        408 | 504 => Family::Timeout,
        400..=499 => Family::InvalidRequest,
        503 => Family::Unavailable,
        _ => Family::Upstream,
    };
    let (code, recovery) = if quota { ("quota_exhausted", Recovery::SwitchCombo) } else { ("all_models_failed", Recovery::TryAuto) };
    let answer = Answer::new(status, code, family, summary(failures)).because(code, recovery);
    with_wait(answer, ending)
}

/// A protected target: the upstream's answer if there was one, else what kept it out (routing spec 5.7).
fn protected(ending: &Ending<'_>, gate: Option<Exclusion>) -> Answer {
    let mut answer = match (gate, ending.failures.last()) {
        (None, Some(last)) if last.kind != FailureKind::Quality => of_failure(last, summary(ending.failures)),
        (None, Some(_)) => Answer::new(502, "bad_gateway", Family::Upstream, format!("`{}` gave an unusable answer", ending.name)),
        (gate, _) => {
            let reason = gate.map_or(ExclusionReason::Unavailable, |g| g.reason);
            let status = if matches!(reason, ExclusionReason::CircuitOpen | ExclusionReason::RequestExhaustion) { 502 } else { 503 };
            let family = if status == 502 { Family::Upstream } else { Family::Unavailable };
            let message =
                format!("`{}` is protected and out of use ({}); only a used-up quota lets others take over", ending.name, reason.as_str());
            Answer::new(status, reason.as_str(), family, message)
        }
    };
    answer = with_wait(answer, ending);
    answer.because("protected_priority_stop", if ending.earliest().is_some() { Recovery::Wait } else { Recovery::Retry })
}

/// Nothing was dispatched.
fn refusal(ending: &mut Ending<'_>) -> Answer {
    if ending.dynamic().next().is_none() {
        return static_refusal(ending);
    }
    let name = ending.name;
    if ending.timers().next().is_some() {
        return cooling(ending);
    }
    if ending.dynamic().all(|e| matches!(e.reason, ExclusionReason::Terminal | ExclusionReason::CredentialGate)) {
        return all_inactive(format!("every account of `{name}` is out of use until its operator acts: {}", excluded_in_words(ending)));
    }
    if ending.dynamic().all(|e| matches!(e.reason, ExclusionReason::ConcurrencyCap | ExclusionReason::AdmissionLane))
        && let Some(local) = ending.local.take()
    {
        return local;
    }
    let message = format!("every target of `{name}` was skipped: {}", excluded_in_words(ending));
    Answer::new(503, "ALL_TARGETS_SKIPPED", Family::Unavailable, message).because("all_targets_skipped", Recovery::SwitchCombo)
}

/// Everything that could serve rests (decisions 4.2).
fn cooling(ending: &Ending<'_>) -> Answer {
    let until = ending.earliest();
    let limits = ending.timers().all(|e| e.exclusion.is_limit() && e.until.is_some());
    let circuits = ending.timers().all(|e| e.reason == ExclusionReason::CircuitOpen);
    let code = match (ending.is_combo, limits, circuits) {
        (false, true, _) => "model_cooldown",
        (false, _, true) => "provider_circuit_open",
        _ => "all_targets_cooling_down",
    };
    let when = until.map_or_else(String::new, |u| format!("; the first is back at {u}"));
    let message = format!("every target of `{}` rests: {}{when}", ending.name, excluded_in_words(ending));
    let (status, family) = if limits { (429, Family::RateLimit) } else { (503, Family::Unavailable) };
    Answer::new(status, code, family, message).because("all_targets_cooling_down", Recovery::Wait).retry_at(until, ending.now)
}

/// The configuration and the request leave nothing over.
fn static_refusal(ending: &Ending<'_>) -> Answer {
    let name = ending.name;
    let all = |reason: ExclusionReason| !ending.excluded.is_empty() && ending.excluded.iter().all(|e| e.reason == reason);
    let any = |reason: ExclusionReason| ending.excluded.iter().any(|e| e.reason == reason);
    let detail = excluded_in_words(ending);
    if all(ExclusionReason::ContextRequirements) {
        return Answer::new(
            404,
            "context_requirements_exhausted",
            Family::NotFound,
            format!("the context rules of `{name}` leave no target: {detail}"),
        )
        .because("context_requirements_exhausted", Recovery::SwitchCombo);
    }
    if any(ExclusionReason::ContextWindow) {
        return Answer::new(
            400,
            "context_length_exceeded",
            Family::InvalidRequest,
            format!("the request fits into no target of `{name}`: {detail}"),
        )
        .because("context_length_exceeded", Recovery::SwitchCombo);
    }
    if any(ExclusionReason::CapabilityMismatch) {
        return Answer::new(
            400,
            "capability_mismatch",
            Family::InvalidRequest,
            format!("no target of `{name}` can do what the request needs: {detail}"),
        )
        .because("capability_mismatch", Recovery::SwitchCombo);
    }
    if any(ExclusionReason::DialectNotSpoken) {
        let message = format!("no target of `{name}` speaks this dialect, and requests are not translated: {detail}");
        return Answer::new(400, "dialect_not_spoken", Family::InvalidRequest, message)
            .because("dialect_not_spoken", Recovery::SwitchCombo);
    }
    if any(ExclusionReason::KeyPolicy) || any(ExclusionReason::BoundElsewhere) {
        let message = format!("no eligible connections: what this request may use has nothing that serves `{name}`: {detail}");
        let mut answer =
            Answer::new(503, "no_eligible_connections", Family::Unavailable, message).because("key_policy", Recovery::SwitchCombo);
        answer.origin = Origin::Policy;
        answer.no_retry = true;
        return answer;
    }
    // Connections that exist without a usable credential are accounts out of use, not a missing model.
    if ending.excluded.iter().any(|e| e.connection.is_some()) {
        return all_inactive(format!("no account of `{name}` is usable: {detail}"));
    }
    let message = format!("Combo has no executable targets: `{name}` has no target with a connection that could serve it");
    Answer::new(404, "model_not_found", Family::NotFound, message).because("no_executable_targets", Recovery::SwitchCombo)
}

/// The first exclusions in words.
fn excluded_in_words(ending: &Ending<'_>) -> String {
    let mut parts: Vec<String> = ending
        .excluded
        .iter()
        .take(5)
        .map(|e| {
            let at = e.connection.as_ref().map_or_else(String::new, |c| format!(" ({c})"));
            let detail = e.detail.as_ref().map_or_else(String::new, |d| format!(" — {d}"));
            format!("{}/{}{at}: {}{detail}", e.provider, e.model, e.reason.as_str())
        })
        .collect();
    if ending.excluded.len() > 5 {
        parts.push(format!("(+{} more)", ending.excluded.len() - 5));
    }
    if parts.is_empty() { "nothing is configured".to_owned() } else { parts.join("; ") }
}

fn diagnostics(ending: &Ending<'_>, terminal_reason: &'static str) -> Diagnostics {
    // One entry a target: the exclusion that ends first.
    let mut targets: Vec<Excluded> = Vec::new();
    for excluded in &ending.excluded {
        let end = |e: &Excluded| e.until.unwrap_or(EpochMs(i64::MAX));
        let room = targets.len() < MAX_EXCLUDED;
        match targets.iter_mut().find(|t| t.target == excluded.target && t.provider == excluded.provider) {
            Some(known) if end(known) > end(excluded) => known.clone_from(excluded),
            None if room => targets.push(excluded.clone()),
            _ => {}
        }
    }
    targets.iter_mut().for_each(|t| t.connection = None);
    Diagnostics {
        pool_size: ending.pool_size,
        attempted: ending.attempted,
        excluded: targets,
        attempt_order: ending.attempt_order.iter().take(MAX_EXCLUDED).cloned().collect(),
        skipped: ending.excluded.iter().filter(|e| e.connection.is_some()).take(MAX_SKIPPED).cloned().collect(),
        terminal_reason,
    }
}

/// Whether evidence of this reason is quota exhaustion (routing spec 5.7).
pub(in super::super) const fn is_quota(reason: Reason) -> bool {
    matches!(reason, Reason::QuotaExhausted | Reason::CreditsExhausted)
}
