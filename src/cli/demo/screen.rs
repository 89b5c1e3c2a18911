//! What the audience sees: a table that is redrawn, or lines.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;

use super::stage::{Served, Stage};
use crate::api::time::EpochMs;
use crate::gateway::clock;
use crate::resilience::{ConnectionPhase, ConnectionState};

/// Requests that the live table shows.
const SHOWN: usize = 8;

/// The terminal.
pub(super) struct Screen {
    live: bool,
    /// Lines of the table that stand on the screen.
    drawn: usize,
    /// What was said last in lines, so that nothing is said twice.
    states: BTreeMap<String, String>,
    told: usize,
    run: Option<(String, usize)>,
}

impl Screen {
    pub fn new(live: bool) -> Self {
        Self { live, drawn: 0, states: BTreeMap::new(), told: 0, run: None }
    }

    /// Explains what happens next.
    pub fn narrate(&mut self, text: &str) {
        self.wipe();
        self.end_run();
        for (index, line) in text.lines().enumerate() {
            let mark = if index == 0 { "▸" } else { " " };
            println!("{}", if self.live { format!("\x1b[1m{mark} {line}\x1b[0m") } else { format!("{mark} {line}") });
        }
    }

    /// Shows how things stand.
    pub fn show(&mut self, stage: &Stage) {
        if self.live { self.redraw(stage) } else { self.tell(stage) }
    }

    /// Prints the last words below everything.
    pub fn finish(&mut self, text: &str) {
        self.wipe();
        self.end_run();
        println!("{text}");
    }

    fn wipe(&mut self) {
        if self.drawn > 0 {
            print!("\x1b[{}A\x1b[J", self.drawn);
            self.drawn = 0;
        }
    }

    fn redraw(&mut self, stage: &Stage) {
        let mut text = String::from("\n  CONNECTION       PROVIDER   STATE    REASON             UNTIL\n");
        for connection in stage.gateway.state().connections {
            let color = if connection.state == ConnectionPhase::Active { "32" } else { "33" };
            let (state, reason, until) = columns(&connection);
            let _ =
                writeln!(text, "  {:<16} {:<10} \x1b[{color}m{state:<8}\x1b[0m {reason:<18} {until}", connection.name, connection.provider);
        }
        let served = stage.served();
        text.push_str("\n  REQUEST          SERVED BY                                     ATTEMPTS\n");
        let from = served.len().saturating_sub(SHOWN);
        for (number, one) in served.iter().enumerate().skip(from) {
            let kind = if one.streamed { "stream" } else { "" };
            let color = if one.good { "32" } else { "31" };
            let _ = writeln!(text, "  #{:<4} \x1b[{color}m{:<3}\x1b[0m {kind:<7} {:<46}{}", number + 1, one.status, by(one), one.attempts);
        }
        let failed = served.iter().filter(|s| !s.good).count();
        let _ = writeln!(text, "\n  {} requests, {failed} failed, {} s", served.len(), stage.started.elapsed().as_secs());
        self.wipe();
        self.drawn = text.lines().count();
        print!("{text}");
        let _ = std::io::stdout().flush();
    }

    fn tell(&mut self, stage: &Stage) {
        let served = stage.served();
        for one in served.iter().skip(self.told) {
            let by = by(one);
            let moved = self.run.as_ref().is_none_or(|(before, _)| *before != by);
            if moved {
                self.end_run();
                println!("    request #{} is served by {by} after {} attempt(s)", self.told + 1, one.attempts);
            }
            let count = self.run.as_ref().map_or(0, |(_, n)| *n);
            self.run = Some((by, if moved { 1 } else { count + 1 }));
            self.told += 1;
        }
        for connection in stage.gateway.state().connections {
            let (state, reason, until) = columns(&connection);
            let key = format!("{state} {reason} {}", connection.until.map(|u| u.rfc3339()).unwrap_or_default());
            if self.states.insert(connection.name.clone(), key.clone()).is_none_or(|before| before != key) {
                println!("    {:<16} {state} {reason} {until}", connection.name);
            }
        }
    }

    fn end_run(&mut self) {
        if let Some((by, count)) = self.run.take().filter(|_| !self.live) {
            println!("    {count} request(s) in a row were served by {by}");
        }
    }
}

fn by(one: &Served) -> String {
    if one.connection.is_empty() { "nobody".to_owned() } else { format!("{} via {}", one.target, one.connection) }
}

fn columns(connection: &ConnectionState) -> (String, String, String) {
    let state = format!("{:?}", connection.state);
    let reason = connection.reason.clone().unwrap_or_else(|| "-".to_owned());
    (state, reason, connection.until.map_or_else(|| "-".to_owned(), until))
}

/// A deadline as the time of day and the time that is left.
fn until(at: EpochMs) -> String {
    let text = at.rfc3339();
    let time = text.split_once('T').map_or(text.as_str(), |(_, time)| time);
    format!("{time} (in {} s)", at.since(clock::now()).div_ceil(1000))
}
