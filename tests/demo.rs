//! The README's first command, as a newcomer runs it.
#![allow(clippy::expect_used, missing_docs)]

use std::process::Command;

/// Exit code 0 stands for every promise of the summary: nothing failed, traffic moved, and came back.
#[test]
fn the_demo_keeps_its_promises() {
    let output = Command::new(env!("CARGO_BIN_EXE_omniroute")).args(["demo", "--plain"]).output().expect("runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!((text.matches("  ✓ ").count(), text.matches("  ✗ ").count()), (7, 0), "{text}");
    assert!(!text.contains('\x1b'), "plain output has no escape sequences");
    for key in ["sk-replace-me-a", "sk-replace-me-b", "sk-ant-replace-me", "client-key-replace-me"] {
        assert!(!text.contains(key), "no credential is shown");
    }
}
