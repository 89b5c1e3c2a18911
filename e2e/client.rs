//! The official OpenAI SDK as a child process (`client.py`), driven line by line.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};

use super::cluster::{Outcome, parse};

/// A running client.
#[derive(Debug)]
pub struct Client {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Client {
    /// Starts it for a gateway at this address, `http://HOST:PORT`.
    pub fn start(gateway: &str) -> Outcome<Self> {
        let own = concat!(env!("CARGO_MANIFEST_DIR"), "/target/venv/bin/python");
        let python = std::env::var("OMNIROUTE_PYTHON").unwrap_or_else(|_| own.to_owned());
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/e2e/client.py");
        let mut child = Command::new(&python)
            .args([script, &format!("{gateway}/v1")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("{python} (scripts/test makes it, or set OMNIROUTE_PYTHON): {error}"))?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let (Some(input), Some(output)) = (input, output) else { return Err("no pipes".to_owned()) };
        Ok(Self { child, input, output: BufReader::new(output) })
    }

    fn ask(&mut self, command: &Value) -> Outcome<Value> {
        writeln!(self.input, "{command}").map_err(|error| format!("the SDK client is gone: {error}"))?;
        let mut line = String::new();
        self.output.read_line(&mut line).map_err(|error| error.to_string())?;
        parse(&line)
    }

    /// One request; its answer as `client.py` describes it.
    pub fn chat(&mut self, key: &str, model: &str) -> Outcome<Value> {
        self.ask(&json!({"op": "chat", "key": key, "model": model, "stream": false}))
    }

    /// One request with a streamed answer.
    pub fn stream(&mut self, key: &str, model: &str) -> Outcome<Value> {
        self.ask(&json!({"op": "chat", "key": key, "model": model, "stream": true}))
    }

    /// One request that must succeed; the connection that served it.
    pub fn served_by(&mut self, key: &str, model: &str) -> Outcome<String> {
        let answer = self.chat(key, model)?;
        match answer["connection"].as_str() {
            Some(connection) => Ok(connection.to_owned()),
            None => Err(format!("the request failed: {answer}")),
        }
    }

    /// Requests without a pause from two threads, one of them with streams, until `stop`.
    pub fn load(&mut self, key: &str, model: &str) -> Outcome {
        self.ask(&json!({"op": "load", "key": key, "model": model, "threads": 2})).map(drop)
    }

    /// Waits for this many more answers of the load.
    pub fn more(&mut self, requests: u32) -> Outcome {
        self.ask(&json!({"op": "count", "more": requests})).map(drop)
    }

    /// Ends the load. Fails if a single request of it has failed; answers how many each connection served.
    pub fn stop(&mut self) -> Outcome<Value> {
        let report = self.ask(&json!({"op": "stop"}))?;
        match report["failures"].as_array() {
            Some(failures) if failures.is_empty() => Ok(report["connections"].clone()),
            _ => Err(format!("requests failed: {report}")),
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
