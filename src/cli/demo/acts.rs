//! The play: what goes wrong, when, and what must come of it.

use std::time::{Duration, Instant};

use super::DemoError;
use super::screen::Screen;
use super::stage::{KEY_A, Served, Stage};
use crate::cli::fake::{Answer, Match, Outcome, Recorded, Rule, Script};
use crate::resilience::ConnectionPhase;

/// Between two looks.
const TICK: Duration = Duration::from_millis(50);
/// Longest wait for one event.
const PATIENCE: Duration = Duration::from_secs(15);
/// What the limited account says: how long to wait.
const RETRY_AFTER: u64 = 8;

/// Accounts by the names of the quickstart.
const TEAM_A: &str = "openai-team-a";
const TEAM_B: &str = "openai-team-b";
const SECOND_VENDOR: &str = "anthropic-main";

pub(super) async fn play(stage: &Stage, screen: &mut Screen) -> Result<(), DemoError> {
    screen.narrate(&format!(
        "OmniRoute serves the quickstart's manifests on http://{}. Clients ask for the model `assistant`:\n\
         first openai with its accounts team-a and team-b, behind them the vendor anthropic. Both vendors are fakes in this process.",
        stage.address
    ));
    until(stage, screen, "team-a serves", |s| streak(s, TEAM_A) >= 6).await?;

    screen.narrate(&format!("team-a runs into its rate limit: 429 with Retry-After: {RETRY_AFTER}. Watch who serves, and the deadline."));
    let limited = Answer::status(429).header("retry-after", &RETRY_AFTER.to_string());
    stage.openai.push_rule(Rule::new("team-a is limited", Match::key(KEY_A), limited));
    until(stage, screen, "team-b takes over", |s| streak(s, TEAM_B) >= 8).await?;
    until_state(stage, screen, "team-a cools down", TEAM_A, ConnectionPhase::Cooling).await?;

    screen.narrate("Now all of openai answers 503. The request in flight goes on to the second vendor.");
    stage.openai.push_rule(Rule::new("openai is down", Match::default(), Answer::status(503)));
    until(stage, screen, "anthropic takes over", |s| streak(s, SECOND_VENDOR) >= 6).await?;

    screen.narrate("openai is well again. Nobody tells the gateway; it comes back by itself when the deadlines pass, best account first.");
    stage.openai.set_script(Script::default());
    stage.openai.push_rule(Rule::new("good", Match::default(), Answer::default()));
    until(stage, screen, "team-a serves again", |s| streak(s, TEAM_A) >= 6).await?;
    summary(stage, screen)
}

/// Requests in a row, up to now, that this connection served.
fn streak(served: &[Served], connection: &str) -> usize {
    served.iter().rev().take_while(|s| s.connection == connection && s.good).count()
}

async fn until(stage: &Stage, screen: &mut Screen, what: &str, happened: impl Fn(&[Served]) -> bool) -> Result<(), DemoError> {
    let began = Instant::now();
    while !happened(&stage.served()) {
        if began.elapsed() > PATIENCE {
            return Err(DemoError::Waited { what: what.to_owned(), seconds: PATIENCE.as_secs() });
        }
        screen.show(stage);
        tokio::time::sleep(TICK).await;
    }
    screen.show(stage);
    Ok(())
}

async fn until_state(stage: &Stage, screen: &mut Screen, what: &str, name: &str, state: ConnectionPhase) -> Result<(), DemoError> {
    until(stage, screen, what, |_| stage.gateway.state().connections.iter().any(|c| c.name == name && c.state == state)).await
}

/// Holds what was promised against what happened.
fn summary(stage: &Stage, screen: &mut Screen) -> Result<(), DemoError> {
    let served = stage.served();
    let count = |name: &str| served.iter().filter(|s| s.connection == name).count();
    let failed = served.iter().filter(|s| !s.good).count();
    let slowest = served.iter().map(|s| s.took.as_millis()).max().unwrap_or(0);
    let moved = ["openai", "anthropic"].map(|vendor| served.iter().any(|s| s.target.starts_with(vendor)));
    let seconds = stage.started.elapsed().as_secs();
    let promises = [
        (
            failed == 0,
            format!(
                "no client request failed: {} of {}, streamed ones included (slowest {slowest} ms)",
                served.len() - failed,
                served.len()
            ),
        ),
        (
            count(TEAM_B) > 0 && count(SECOND_VENDOR) > 0 && moved == [true; 2],
            format!("traffic moved: {TEAM_A} {}, {TEAM_B} {}, {SECOND_VENDOR} {}", count(TEAM_A), count(TEAM_B), count(SECOND_VENDOR)),
        ),
        (
            served.iter().any(|s| s.attempts > 1),
            "the requests that met a failure were answered all the same, by the next in line".to_owned(),
        ),
        (rested(&stage.openai.requests()), format!("team-a was left alone for the {RETRY_AFTER} s that its vendor asked for")),
        (stage.anthropic.requests().iter().all(|r| r.key != KEY_A), "no credential went to another vendor".to_owned()),
        (streak(&served, TEAM_A) > 0, "team-a is back in service, without anybody's help".to_owned()),
        (seconds < 30, format!("all of it took {seconds} s")),
    ];
    let lines: Vec<String> = promises.iter().map(|(held, text)| format!("  {} {text}", if *held { "✓" } else { "✗" })).collect();
    let broken = promises.iter().filter(|(held, _)| !held).count();
    screen.finish(&format!(
        "\n{}\n\nThe same manifests serve real vendors: put your keys into config/samples/quickstart.yaml and run\n  omniroute run -f config/samples/quickstart.yaml\n",
        lines.join("\n")
    ));
    if broken == 0 { Ok(()) } else { Err(DemoError::Broken(broken)) }
}

/// Between its 429 and its next request team-a had the rest that the 429 asked for.
fn rested(requests: &[Recorded]) -> bool {
    let of_a: Vec<&Recorded> = requests.iter().filter(|r| r.key == KEY_A && r.outcome != Outcome::Running).collect();
    let limits: Vec<usize> = of_a.iter().enumerate().filter(|(_, r)| r.status == 429).map(|(i, _)| i).collect();
    // Requests that were under way when the first one was refused may have been refused as well.
    let [.., last] = limits[..] else { return false };
    match (of_a.get(last), of_a.get(last + 1)) {
        (Some(limit), Some(next)) => next.time.since(limit.time) + 50 >= RETRY_AFTER * 1000,
        _ => false,
    }
}
