//! What a gateway writes into its log, as a program reads it.

use std::io::Read;
use std::process::Stdio;

use serde_json::Value;

use crate::run::{Folder, Run};
use crate::support::{Reply, Vendor};

/// Serves some requests at a level; answers the log, line by line.
async fn life(vendor: &Vendor, level: Option<&str>, requests: usize) -> Vec<Value> {
    let folder = Folder::new(vendor);
    let mut run = Run::start_with(&folder.0, &[], |command| {
        command.env_remove("OMNIROUTE_LOG").env("OMNIROUTE_LOG_FORMAT", "json").stderr(Stdio::piped());
        level.into_iter().fold(command, |command, level| command.env("OMNIROUTE_LOG", level))
    });
    let mut log = run.child.stderr.take().unwrap();
    let reader = tokio::task::spawn_blocking(move || {
        let mut text = String::new();
        log.read_to_string(&mut text).unwrap();
        text
    });
    for _ in 0..requests {
        assert_eq!(run.chat("assistant").await.status, 200);
    }
    run.signal("TERM");
    let text = reader.await.unwrap();
    text.lines().map(read).collect()
}

/// A line of the log, in which no name stands twice: some readers would refuse it, others see one of the two.
fn read(line: &str) -> Value {
    let value: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    for name in value.as_object().unwrap().keys() {
        assert_eq!(line.matches(&format!("\"{name}\":")).count(), 1, "{name} in {line}");
    }
    value
}

fn of<'a>(log: &'a [Value], level: &str) -> Vec<&'a str> {
    log.iter().filter(|line| line["level"] == level).map(|line| line["message"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn the_log_is_json_line_by_line_and_says_nothing_about_single_requests() {
    let vendor = Vendor::start().await;
    let (few, many) = tokio::join!(life(&vendor, None, 1), life(&vendor, None, 9));
    for line in &many {
        assert!(line["timestamp"].is_string() && line["target"].is_string() && line["message"].is_string(), "{line}");
    }
    assert!(of(&many, "INFO").contains(&"serving"), "{many:?}");
    assert!(of(&many, "DEBUG").is_empty() && of(&many, "TRACE").is_empty());
    // Whatever is told, it does not grow with the requests.
    assert_eq!(many.len(), few.len(), "{many:#?}");

    // What failed, and why, is worth a line, which names the connection.
    vendor.script("a", [Reply::error(429, "slow").header("retry-after", 120)]);
    let failed = life(&vendor, Some("info"), 3).await;
    let attempts: Vec<&Value> = failed.iter().filter(|line| line["message"].as_str().unwrap().starts_with("attempt failed")).collect();
    assert_eq!(attempts.len(), 1, "{failed:#?}");
    assert_eq!((&attempts[0]["connection"], &attempts[0]["status"]), (&"a".into(), &429.into()));

    let (loud, quiet) = tokio::join!(life(&vendor, Some("omniroute=debug,trace"), 1), life(&vendor, Some("error"), 1));
    assert!(loud.len() > few.len(), "{loud:#?}");
    assert_eq!(quiet, Vec::<Value>::new());
}
