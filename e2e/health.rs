//! What waiters make of a status: the real kstatus library (Flux, Helm), Argo CD's interpreter, and the rules that Flux checks on conditions.

use std::process::Command;

use serde_json::{Value, json};

use super::cluster::{Outcome, run};

/// kstatus of objects: one of Current, InProgress, Failed, Terminating for each.
pub fn kstatus(objects: &[Value]) -> Outcome<Vec<String>> {
    if objects.is_empty() {
        return Ok(Vec::new());
    }
    let mut command = Command::new("kstatus");
    command.args(["-want", ""]);
    let input: String = objects.iter().map(|object| format!("{object}\n")).collect();
    let output = run(command, &input).map_err(|error| format!("kstatus: {error}"))?;
    Ok(output.lines().filter_map(|line| line.split('\t').next()).map(str::to_owned).collect())
}

/// Argo CD's health of an object by the script that we ship: Healthy, Progressing, Degraded, Suspended.
pub fn argo_health(object: &Value) -> Outcome<String> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/config/argocd/health.lua");
    // The exit code only says whether the health is Healthy.
    let command = super::cluster::shell(&format!("luahealth {script}; test $? -lt 2"));
    let output = run(command, &object.to_string()).map_err(|error| format!("luahealth: {error}"))?;
    Ok(output.split('\t').next().unwrap_or_default().to_owned())
}

/// A condition of an object.
pub fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    object["status"]["conditions"].as_array()?.iter().find(|condition| condition["type"] == json!(kind))
}

/// Status of a condition: True, False, Unknown, or empty when it is not there.
pub fn condition_status<'a>(object: &'a Value, kind: &str) -> &'a str {
    condition(object, kind).and_then(|condition| condition["status"].as_str()).unwrap_or_default()
}

/// Reason of a condition, empty when it is not there.
pub fn condition_reason<'a>(object: &'a Value, kind: &str) -> &'a str {
    condition(object, kind).and_then(|condition| condition["reason"].as_str()).unwrap_or_default()
}

/// What Flux's own checks would complain about in a status, one line each.
pub fn flux_complaints(object: &Value) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut claim = |holds: bool, message: &str| {
        if !holds {
            wrong.push(message.to_owned());
        }
    };
    let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let has = |kind: &str| conditions.iter().any(|condition| condition["type"] == json!(kind));
    let ready = condition_status(object, "Ready");
    let generation = object["metadata"]["generation"].as_i64().unwrap_or_default();
    let observed = object["status"]["observedGeneration"].as_i64();

    claim(has("Ready"), "no Ready condition");
    claim(has("Programmed") && has("Available"), "Programmed and Available are always there");
    claim(observed.is_some_and(|observed| (0..=generation).contains(&observed)), "observedGeneration is missing or ahead");
    for abnormal in ["Reconciling", "Stalled"] {
        let status = condition_status(object, abnormal);
        claim(status.is_empty() || status == "True", &format!("{abnormal} is there without being True"));
        claim(ready != "True" || status.is_empty(), &format!("{abnormal} beside Ready=True"));
    }
    claim(!(has("Reconciling") && has("Stalled")), "Reconciling and Stalled together");
    claim(ready != "Unknown" || has("Reconciling"), "Ready=Unknown without Reconciling");
    claim(ready != "False" || has("Reconciling") || has("Stalled"), "Ready=False, and neither Reconciling nor Stalled");
    for condition in &conditions {
        let kind = condition["type"].as_str().unwrap_or_default();
        let text = |field: &str| condition[field].as_str().unwrap_or_default();
        claim(!text("reason").is_empty(), &format!("{kind} has no reason"));
        claim(!text("lastTransitionTime").is_empty(), &format!("{kind} has no lastTransitionTime"));
        claim(text("message").len() <= 1024, &format!("the message of {kind} is too long"));
        claim(condition["observedGeneration"].as_i64() == observed, &format!("{kind} has another observedGeneration than its status"));
    }
    wrong
}
