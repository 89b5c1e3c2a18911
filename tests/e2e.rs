//! The end-to-end suite; it lives in `e2e/`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../e2e/mod.rs"]
mod e2e;

use std::process::ExitCode;

fn main() -> ExitCode {
    e2e::main()
}
