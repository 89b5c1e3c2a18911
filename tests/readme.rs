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

/// Every test in the last column of a page's table exists: as a function, a scenario, or a line of the case files. Answers how many rows there are.
fn proved(page: &str, heading: &str) -> usize {
    let text = file(page);
    let table = text.split(heading).nth(1).expect("the table");
    let mut tests = String::new();
    for folder in ["src", "tests", "e2e"] {
        sources(&root().join(folder), &mut tests);
    }
    let cases = ["classification", "classification_more"].map(|name| file(&format!("tests/data/{name}.jsonl"))).concat();
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    rows.inspect(|row| {
        let proofs = quoted(row.rsplit('|').nth(1).expect("the last column"));
        assert!(!proofs.is_empty(), "no proof in {row}");
        for proof in proofs {
            let exists = tests.contains(&format!("fn {proof}("))
                || tests.contains(&format!("(\"{proof}\""))
                || cases.contains(&format!("\"id\": \"{proof}\""));
            assert!(exists, "{proof} is no test");
        }
    })
    .count()
}

#[test]
fn every_promise_has_its_proof() {
    assert!(proved("README.md", "| promise | proof |") > 10);
}

#[test]
fn every_failure_of_others_has_its_proof() {
    assert!(proved("docs/reference/failures.md", "| id | went wrong elsewhere | proof |") > 60);
}

/// Every page for people, as paths from the checkout.
fn pages() -> Vec<String> {
    fn walk(folder: &str, pages: &mut Vec<String>) {
        for entry in std::fs::read_dir(root().join(folder)).expect("docs") {
            let path = format!("{folder}/{}", entry.expect("entry").file_name().to_string_lossy());
            if root().join(&path).is_dir() {
                walk(&path, pages);
            } else if path.ends_with(".md") {
                pages.push(path);
            }
        }
    }
    let mut pages =
        ["README.md", "CONTRIBUTING.md", "charts/omniroute-operator/README.md", "e2e/cluster/README.md"].map(str::to_owned).to_vec();
    walk("docs", &mut pages);
    pages
}

#[test]
fn every_link_leads_somewhere() {
    let pages = pages();
    assert!(pages.len() > 25);
    let mut links = 0;
    for page in &pages {
        let folder = Path::new(page).parent().expect("folder").to_owned();
        for link in file(page).split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if !link.starts_with("http") {
                let target = root().join(&folder).join(link.split('#').next().unwrap_or(link));
                assert!(target.exists(), "{page} links to {link}");
                links += 1;
            }
        }
    }
    assert!(links > 20);
}

#[test]
fn every_page_is_reached_from_the_readme() {
    let pages = pages();
    let readme = file("README.md");
    // A link to a folder leads to what lies in it.
    let linked = |page: &String| {
        let folder = Path::new(page).parent().expect("folder").to_string_lossy().into_owned();
        [page.as_str(), folder.as_str()].iter().any(|target| !target.is_empty() && readme.contains(&format!("]({target})")))
    };
    let lost: Vec<&String> = pages.iter().filter(|page| page.starts_with("docs/") && !linked(page)).collect();
    assert!(lost.is_empty(), "no link in the README leads to {lost:?}");
}

#[test]
fn files_named_in_commands_exist() {
    let mut named = 0;
    for page in pages() {
        let text = file(&page);
        for word in text.split("```").skip(1).step_by(2).flat_map(str::split_whitespace) {
            if ["scripts/", "config/", "charts/", "e2e/"].iter().any(|folder| word.starts_with(folder)) {
                assert!(root().join(word.trim_end_matches([',', ';'])).exists(), "{page}: {word}");
                named += 1;
            }
        }
    }
    assert!(named > 10);
}
