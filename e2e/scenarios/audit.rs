//! What the API server's audit log says about the whole run: every status ever written, every right used, every writer.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};

use super::super::cluster::Outcome;
use super::super::health::{argo_health, condition_status, flux_complaints, kstatus};
use super::super::world::{SYSTEM, World};
use super::ensure;

const OPERATOR: &str = "system:serviceaccount:omniroute-system:omniroute-operator";

fn text<'a>(event: &'a Value, pointer: &str) -> &'a str {
    event.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn by_operator(event: &Value) -> bool {
    text(event, "/user/username") == OPERATOR
}

fn is_write(event: &Value) -> bool {
    ["create", "update", "patch", "delete", "deletecollection"].contains(&text(event, "/verb"))
}

fn succeeded(event: &Value) -> bool {
    event.pointer("/responseStatus/code").and_then(Value::as_i64).is_some_and(|code| (200..300).contains(&code))
}

/// The statuses that the operator has written, as the API server answered.
fn written_statuses(events: &[Value]) -> Vec<Value> {
    events
        .iter()
        .filter(|event| by_operator(event) && succeeded(event))
        .filter(|event| text(event, "/objectRef/subresource") == "status" && text(event, "/objectRef/apiGroup") == "omniroute.dev")
        .map(|event| event["responseObject"].clone())
        .filter(Value::is_object)
        .collect()
}

pub fn statuses(world: &World) -> Outcome {
    let statuses = written_statuses(&world.cluster.audit()?);
    ensure(statuses.len() > 20, || format!("only {} statuses were written", statuses.len()))?;
    let verdicts = kstatus(&statuses)?;
    ensure(verdicts.len() == statuses.len(), || format!("{} verdicts for {} statuses", verdicts.len(), statuses.len()))?;
    let mut wrong = BTreeSet::new();
    let mut health = BTreeMap::new();
    for (object, verdict) in statuses.iter().zip(&verdicts) {
        let mut complaints = flux_complaints(object);
        complaints.extend(unknown_reasons(object));
        let expected = expected_verdict(object);
        if verdict != expected && object["metadata"]["deletionTimestamp"].is_null() {
            complaints.push(format!("kstatus says {verdict} instead of {expected}"));
        }
        if !complaints.is_empty() {
            wrong.insert(format!("{} {}: {complaints:?} in {}", object["kind"], object["metadata"]["name"], object["status"]));
        }
        // One object for each verdict and kind is enough for the slower check.
        health.entry((object["kind"].to_string(), verdict.clone())).or_insert(object);
    }
    for ((kind, verdict), object) in health {
        let argo = argo_health(object)?;
        let expected = match verdict.as_str() {
            "Current" => "Healthy",
            "Failed" => "Degraded",
            _ => "Progressing",
        };
        if argo != expected {
            wrong.insert(format!("{kind}: Argo CD says {argo} where kstatus says {verdict}: {}", object["status"]));
        }
    }
    ensure(wrong.is_empty(), || {
        format!("{} of {} statuses:\n{}", wrong.len(), statuses.len(), wrong.into_iter().collect::<Vec<_>>().join("\n"))
    })
}

/// Reasons that the reference page of conditions does not explain.
fn unknown_reasons(object: &Value) -> Vec<String> {
    let page = include_str!("../../docs/reference/conditions.md");
    let conditions = object["status"]["conditions"].as_array().into_iter().flatten();
    let told = conditions.filter_map(|condition| Some((condition["type"].as_str()?, condition["reason"].as_str()?)));
    told.filter(|(kind, reason)| {
        // The two that are only there while true carry the reason of Ready.
        let title = if ["Reconciling", "Stalled"].contains(kind) { "Ready" } else { kind };
        let section = page.split("\n## ").find(|section| section.starts_with(&format!("{title}\n")));
        section.is_none_or(|section| !section.contains(&format!("| `{reason}` |")))
    })
    .map(|(kind, reason)| format!("{kind} has the reason {reason}, which docs/reference/conditions.md does not know"))
    .collect()
}

/// What a waiter should make of our conditions.
fn expected_verdict(object: &Value) -> &'static str {
    if object["status"]["observedGeneration"] != object["metadata"]["generation"] || condition_status(object, "Reconciling") == "True" {
        "InProgress"
    } else if condition_status(object, "Stalled") == "True" {
        "Failed"
    } else if condition_status(object, "Ready") == "True" {
        "Current"
    } else {
        "InProgress"
    }
}

/// Never two writers: before every write of a pod, the last change of the Lease was made by that pod.
pub fn one_writer(world: &World) -> Outcome {
    let mut events: Vec<Value> =
        world.cluster.audit()?.into_iter().filter(|event| by_operator(event) && is_write(event) && succeeded(event)).collect();
    // A write counts from its arrival, a change of the Lease from its completion.
    let is_lease = |event: &Value| text(event, "/objectRef/resource") == "leases";
    let time = |event: &Value| text(event, if is_lease(event) { "/stageTimestamp" } else { "/requestReceivedTimestamp" }).to_owned();
    events.sort_by_key(time);
    let pod = |event: &Value| text(event, "/user/extra/authentication.kubernetes.io~1pod-name/0").to_owned();
    let mut holder = String::new();
    let (mut writers, mut wrong) = (BTreeSet::new(), Vec::new());
    for event in &events {
        if is_lease(event) {
            holder = pod(event);
        } else if text(event, "/objectRef/resource") != "events" {
            writers.insert(pod(event));
            if pod(event) != holder {
                wrong.push(format!(
                    "{} {} {} by {} while {holder} led",
                    time(event),
                    text(event, "/verb"),
                    text(event, "/requestURI"),
                    pod(event)
                ));
            }
        }
    }
    ensure(writers.len() > 1, || format!("only {writers:?} ever wrote: the hand-overs proved nothing"))?;
    ensure(wrong.is_empty(), || wrong.join("\n"))
}

/// A stale cache is no reason to ask for the same refusal again and again: no five conflicts of one status within two seconds.
pub fn few_conflicts(world: &World) -> Outcome {
    let mut refused: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for event in world.cluster.audit()?.iter().filter(|event| by_operator(event) && text(event, "/objectRef/subresource") == "status") {
        if event.pointer("/responseStatus/code") == Some(&json!(409)) {
            refused.entry(text(event, "/requestURI").to_owned()).or_default().push(text(event, "/requestReceivedTimestamp").to_owned());
        }
    }
    let close = |times: &[String]| match times {
        [first, .., last] => seconds(last).zip(seconds(first)).is_some_and(|(last, first)| last - first < 2.0),
        _ => false,
    };
    let wrong: Vec<_> = refused
        .iter_mut()
        .filter_map(|(uri, times)| {
            times.sort();
            times.windows(5).find(|window| close(window)).map(|window| format!("{uri}: {window:?}"))
        })
        .collect();
    ensure(wrong.is_empty(), || wrong.join("\n"))
}

/// Seconds since the epoch.
fn seconds(time: &str) -> Option<f64> {
    let time: k8s_openapi::jiff::Timestamp = time.parse().ok()?;
    Some(time.as_duration().as_secs_f64())
}

/// Rights in use and rights granted are the same set.
pub fn least_privilege(world: &World) -> Outcome {
    let events = world.cluster.audit()?;
    let what = |event: &&Value| {
        let (path, query) = text(event, "/requestURI").split_once('?').unwrap_or((text(event, "/requestURI"), ""));
        // A right to one object only is in the query of a list or watch.
        let one = query.split('&').find(|part| part.starts_with("fieldSelector=")).unwrap_or_default();
        format!("{} {} {path} {one}", text(event, "/user/username"), text(event, "/verb"))
    };
    let (refused, others): (Vec<_>, Vec<_>) = events
        .iter()
        .filter(|event| text(event, "/user/username").starts_with("system:serviceaccount:omniroute"))
        .partition(|event| event.pointer("/responseStatus/code") == Some(&json!(403)));
    // An API server that has just started refuses what it allows a moment later: until it has read the roles, nobody has any.
    let allowed: BTreeSet<_> = others.iter().map(what).collect();
    let refused: BTreeSet<_> = refused.iter().map(what).filter(|what| !allowed.contains(what)).collect();
    ensure(refused.is_empty(), || format!("asked for without a right: {refused:?}"))?;

    let asked = events.iter().filter(|event| by_operator(event) && !text(event, "/objectRef/resource").is_empty());
    let used: BTreeSet<_> = asked.flat_map(rights_used).collect();
    let granted = rights_granted(world)?;
    let without: Vec<_> = used.difference(&granted).collect();
    ensure(without.is_empty(), || format!("used, but not in the rules: {without:?}"))?;
    let unused: Vec<_> = granted.difference(&used).filter(|right| !RESERVED.contains(&right.as_str())).collect();
    ensure(unused.is_empty(), || format!("granted, but never used in the whole run: {unused:?}"))
}

/// Rights that no request shows. Clusters with the admission plugin OwnerReferencesPermissionEnforcement ask for the first when an owner reference blocks
/// deletion, and this one does not have it; the second is for events that repeat.
const RESERVED: &[&str] = &["omniroute.dev update resiliencesettings/finalizers", "events.k8s.io patch events"];

/// What a request needed. A server-side apply that made a new object needed `create` as well.
fn rights_used(event: &Value) -> Vec<String> {
    let (resource, sub) = (text(event, "/objectRef/resource"), text(event, "/objectRef/subresource"));
    let resource = if sub.is_empty() { resource.to_owned() } else { format!("{resource}/{sub}") };
    let made = event.pointer("/responseStatus/code") == Some(&json!(201));
    let verbs = if made { vec!["create", text(event, "/verb")] } else { vec![text(event, "/verb")] };
    verbs.into_iter().map(|verb| format!("{} {verb} {resource}", text(event, "/objectRef/apiGroup"))).collect()
}

fn rights_granted(world: &World) -> Outcome<BTreeSet<String>> {
    let words = |rule: &Value, key: &str| -> Vec<String> {
        rule[key].as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let cluster_role = world.cluster.get("", &["clusterrole", "omniroute-operator-omniroute-system"])?;
    let role = world.cluster.get(SYSTEM, &["role", "omniroute-operator-leader-election"])?;
    let mut rights = BTreeSet::new();
    for rule in [cluster_role, role].iter().filter_map(|role| role["rules"].as_array()).flatten() {
        for group in words(rule, "apiGroups") {
            for verb in words(rule, "verbs") {
                rights.extend(words(rule, "resources").iter().map(|resource| format!("{group} {verb} {resource}")));
            }
        }
    }
    Ok(rights)
}

/// While nothing happens nothing is written, except the Lease.
pub fn silence(world: &World) -> Outcome {
    let writes = || -> Outcome<Vec<String>> {
        let events = world.cluster.audit()?;
        let ours = events.iter().filter(|event| text(event, "/user/username").starts_with("system:serviceaccount:omniroute"));
        let writes = ours.filter(|event| is_write(event) && text(event, "/objectRef/resource") != "leases");
        Ok(writes
            .map(|event| format!("{} {} {}", text(event, "/requestReceivedTimestamp"), text(event, "/verb"), text(event, "/requestURI")))
            .collect())
    };
    // Settle first: the last scenario may still be echoing.
    let mut before = writes()?.len();
    for _ in 0..6 {
        std::thread::park_timeout(Duration::from_secs(6));
        let now = writes()?.len();
        if now == before {
            break;
        }
        before = now;
    }
    // Silence has no event to wait for.
    std::thread::park_timeout(Duration::from_secs(20));
    let after = writes()?;
    ensure(after.len() == before, || format!("written within 20 s of rest: {:#?}", &after[before..]))
}

/// Children and statuses are written by server-side apply, by our managers, and in no other way. (Only an apply may say `force`.)
pub fn applies_only(world: &World) -> Outcome {
    let events = world.cluster.audit()?;
    let writes = events.iter().filter(|event| by_operator(event) && is_write(event) && succeeded(event));
    let (mut applies, mut wrong) = (0, BTreeSet::new());
    for event in writes.filter(|event| !["leases", "events"].contains(&text(event, "/objectRef/resource"))) {
        let manager = match (text(event, "/objectRef/resource"), text(event, "/objectRef/subresource")) {
            (_, "status") => &["omniroute-operator%2Fstatus"][..],
            ("deployments", _) => &["omniroute-operator", "omniroute-operator%2Fscale"],
            _ => &["omniroute-operator"],
        };
        let uri = text(event, "/requestURI");
        let asked: Vec<&str> = uri.split(['?', '&']).skip(1).collect();
        let by_us = manager.iter().any(|manager| asked.contains(&format!("fieldManager={manager}").as_str()));
        match text(event, "/verb") {
            "patch" if by_us && asked.contains(&"force=true") => applies += 1,
            // What the settings ask for no longer.
            "delete"
                if ["poddisruptionbudgets", "networkpolicies", "horizontalpodautoscalers"]
                    .contains(&text(event, "/objectRef/resource")) => {}
            verb => drop(wrong.insert(format!("{verb} {uri}"))),
        }
    }
    ensure(applies > 50, || format!("only {applies} applies: the run proved nothing"))?;
    ensure(wrong.is_empty(), || format!("{wrong:?}"))
}

/// The operator never writes into the user's part of an object.
pub fn user_objects_untouched(world: &World) -> Outcome {
    let events = world.cluster.audit()?;
    let wrong: BTreeSet<_> = events
        .iter()
        .filter(|event| by_operator(event) && is_write(event) && text(event, "/objectRef/apiGroup") == "omniroute.dev")
        .filter(|event| text(event, "/objectRef/subresource") != "status")
        .map(|event| format!("{} {}", text(event, "/verb"), text(event, "/requestURI")))
        .collect();
    ensure(wrong.is_empty(), || format!("{wrong:?}"))?;
    for status in written_statuses(&events) {
        ensure(status["metadata"]["finalizers"].is_null(), || format!("a finalizer on {}", status["metadata"]["name"]))?;
    }
    Ok(())
}
