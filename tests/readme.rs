//! The README says nothing that no test proves, and shows nothing that is not there.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "support/tools.rs"]
mod tools;

use std::path::Path;

use tools::{file, root};

/// Every Rust source of the checkout that may hold a test.
fn sources(dir: &Path, text: &mut String) {
    for entry in std::fs::read_dir(dir).expect("folder") {
        let path = entry.expect("entry").path();
        if path.is_dir() {
            sources(&path, text);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            text.push_str(&std::fs::read_to_string(&path).expect("source"));
        }
    }
}

/// The words in back-quotes of a line.
fn quoted(line: &str) -> Vec<&str> {
    line.split('`').skip(1).step_by(2).collect()
}

#[test]
fn every_promise_has_its_proof() {
    let readme = file("README.md");
    let table = readme.split("| promise | proof |").nth(1).expect("the table of promises");
    let mut tests = String::new();
    for folder in ["src", "tests", "e2e"] {
        sources(&root().join(folder), &mut tests);
    }
    let mut promises = 0;
    for row in table.lines().skip(2).take_while(|line| line.starts_with('|')) {
        let proofs = quoted(row.rsplit('|').nth(1).expect("the last column"));
        assert!(!proofs.is_empty(), "no proof in {row}");
        for proof in proofs {
            let exists = tests.contains(&format!("fn {proof}(")) || tests.contains(&format!("(\"{proof}\""));
            assert!(exists, "{proof} is no test");
        }
        promises += 1;
    }
    assert!(promises > 10);
}

#[test]
fn every_link_leads_somewhere() {
    let mut documents = vec!["README.md".to_owned(), "CONTRIBUTING.md".to_owned()];
    for entry in std::fs::read_dir(root().join("docs")).expect("docs") {
        let name = entry.expect("entry").file_name().to_string_lossy().into_owned();
        if name.ends_with(".md") {
            documents.push(format!("docs/{name}"));
        }
    }
    for document in documents {
        let folder = Path::new(&document).parent().expect("folder").to_owned();
        for link in file(&document).split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if !link.starts_with("http") {
                let target = root().join(&folder).join(link.split('#').next().unwrap_or(link));
                assert!(target.exists(), "{document} links to {link}");
            }
        }
    }
}

#[test]
fn files_named_in_commands_exist() {
    let readme = file("README.md");
    let blocks = readme.split("```").skip(1).step_by(2);
    let mut named = 0;
    for word in blocks.flat_map(str::split_whitespace) {
        if ["scripts/", "config/", "charts/"].iter().any(|folder| word.starts_with(folder)) {
            assert!(root().join(word).exists(), "{word}");
            named += 1;
        }
    }
    assert!(named > 3);
}
