//! The layout as a test: imports point downwards only, the deciding modules touch no socket, file, clock or random source, and a file is about one thing.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The rooms of `src/`, lowest first. A room may use the rooms below it and those on its own floor.
const FLOORS: &[&[&str]] = &[
    &["api", "protocol", "telemetry"],
    &["snapshot", "classify", "resilience", "manifest"],
    &["compile", "routing"],
    &["dial", "oauth"],
    &["operator", "gateway"],
    &["cli"],
];

/// Rooms on one floor that never use each other.
const STRANGERS: &[(&str, &str)] = &[("operator", "gateway")];

/// Rooms that decide: clock, chance and the world come in as values.
const PURE: &[&str] = &["api", "protocol", "snapshot", "classify", "resilience", "manifest", "compile", "routing"];

/// What a pure room must not name.
const WORLD: &[&str] = &[
    "std::net",
    "std::fs",
    "std::env",
    "std::process",
    "std::thread",
    "SystemTime",
    "Instant::now",
    "time::Instant",
    "Timestamp::now",
    "Zoned::now",
    "tokio::",
    "hyper::",
    "hyper_util::",
    "axum::",
    "kube::Client",
    "kube::Api",
    "kube::runtime",
    "kube::client",
    "rand::",
    "rusqlite::",
    "socket2::",
    "println!",
    "eprintln!",
];

/// A file with more lines is usually two files.
const MAX_LINES: usize = 600;

fn source_files(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).expect("source folder") {
        let path = entry.expect("entry").path();
        if path.is_dir() {
            files.extend(source_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files.sort();
    files
}

/// The first folder or file name below `src/`.
fn room(path: &Path, src: &Path) -> String {
    let relative = path.strip_prefix(src).expect("below src");
    let first = relative.components().next().expect("a name").as_os_str();
    first.to_string_lossy().trim_end_matches(".rs").to_owned()
}

fn is_test_file(path: &Path) -> bool {
    path.components().any(|part| {
        let name = part.as_os_str().to_string_lossy();
        name == "tests" || name == "tests.rs" || name.ends_with("_tests.rs")
    })
}

/// The code of a file without comments and without its `#[cfg(test)]` items. It relies on rustfmt: an item that starts in column 0 ends at
/// the next line that starts with `}` or ends with `;`.
fn production_code(text: &str) -> Vec<(usize, String)> {
    let mut code = Vec::new();
    let mut lines = text.lines().enumerate();
    while let Some((index, line)) = lines.next() {
        if line == "#[cfg(test)]" {
            for (_, inner) in lines.by_ref() {
                let one_liner = !inner.starts_with(' ') && inner.ends_with(';');
                if inner.starts_with('}') || one_liner {
                    break;
                }
            }
            continue;
        }
        let bare = line.split("//").next().unwrap_or_default();
        if !bare.trim().is_empty() {
            code.push((index + 1, bare.to_owned()));
        }
    }
    code
}

/// The rooms that a line names as `crate::ROOM` or `use crate::{ROOM, ..}` (a nested list that spans lines starts with `use crate::{`).
fn rooms_named(code: &[(usize, String)]) -> Vec<(usize, String)> {
    let mut named = Vec::new();
    let mut in_list = false;
    for (number, line) in code {
        let mut rest = line.as_str();
        if in_list {
            let depth_one = line.strip_prefix("    ").unwrap_or(line);
            if depth_one.starts_with('}') || line.starts_with('}') {
                in_list = false;
            } else if !depth_one.starts_with(' ') {
                named.extend(words(depth_one).into_iter().map(|word| (*number, word)));
            }
        }
        while let Some(at) = rest.find("crate::") {
            rest = &rest[at + "crate::".len()..];
            if let Some(list) = rest.strip_prefix('{') {
                if list.contains('}') {
                    named.extend(words(list).into_iter().map(|word| (*number, word)));
                } else {
                    in_list = true;
                }
            } else {
                named.extend(words(rest).into_iter().take(1).map(|word| (*number, word)));
            }
        }
    }
    named.retain(|(_, word)| FLOORS.iter().flat_map(|floor| floor.iter()).any(|room| room == word));
    named
}

/// The first path segment of each comma-separated item.
fn words(list: &str) -> Vec<String> {
    list.split(',')
        .map(|item| item.trim().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect())
        .filter(|word: &String| !word.is_empty())
        .collect()
}

fn floor_of(room: &str) -> Option<usize> {
    FLOORS.iter().position(|floor| floor.contains(&room))
}

/// What is wrong with a use of `to` in `from`, if anything.
fn forbidden(from: &str, to: &str) -> Option<String> {
    let (above, below) = (floor_of(from)?, floor_of(to)?);
    if below > above {
        return Some(format!("`{from}` uses `{to}`, which lies above it"));
    }
    let strangers = STRANGERS.iter().any(|(a, b)| (from, to) == (*a, *b) || (from, to) == (*b, *a));
    strangers.then(|| format!("`{from}` uses `{to}`; the two never import each other"))
}

fn world_named(line: &str) -> Option<&'static str> {
    WORLD.iter().copied().find(|word| {
        line.match_indices(word).any(|(at, _)| {
            let before = line[..at].chars().next_back();
            let after = line[at + word.len()..].chars().next();
            let starts = before.is_none_or(|c| !c.is_alphanumeric() && c != '_');
            let open_end = word.ends_with(':') || word.ends_with('!');
            starts && (open_end || after.is_none_or(|c| !c.is_alphanumeric() && c != '_'))
        })
    })
}

fn sources() -> (PathBuf, Vec<PathBuf>) {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let files = source_files(&src);
    (src, files)
}

#[test]
fn every_room_has_a_floor() {
    let (src, files) = sources();
    let rooms: BTreeSet<String> = files.iter().map(|file| room(file, &src)).collect();
    let unknown: Vec<_> = rooms.iter().filter(|room| !matches!(room.as_str(), "lib" | "main") && floor_of(room).is_none()).collect();
    assert!(unknown.is_empty(), "rooms without a floor: {unknown:?}");
}

#[test]
fn imports_point_downwards_only() {
    let (src, files) = sources();
    let mut wrong = Vec::new();
    for file in files.iter().filter(|file| !is_test_file(file)) {
        let from = room(file, &src);
        let code = production_code(&fs::read_to_string(file).expect("source"));
        for (line, to) in rooms_named(&code) {
            if let Some(message) = forbidden(&from, &to) {
                wrong.push(format!("{}:{line}: {message}", file.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn deciding_rooms_do_not_touch_the_world() {
    let (src, files) = sources();
    let mut wrong = Vec::new();
    for file in files.iter().filter(|file| !is_test_file(file)) {
        if !PURE.contains(&room(file, &src).as_str()) {
            continue;
        }
        for (line, code) in production_code(&fs::read_to_string(file).expect("source")) {
            if let Some(word) = world_named(&code) {
                wrong.push(format!("{}:{line}: names `{word}`", file.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_file_is_about_one_thing() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let long: Vec<String> = ["src", "tests", "e2e"]
        .iter()
        .flat_map(|folder| source_files(&root.join(folder)))
        .filter_map(|file| {
            let lines = fs::read_to_string(&file).expect("source").lines().count();
            (lines > MAX_LINES).then(|| format!("{}: {lines} lines", file.display()))
        })
        .collect();
    assert!(long.is_empty(), "longer than {MAX_LINES} lines:\n{}", long.join("\n"));
}

#[test]
fn the_checks_themselves_find_what_they_should() {
    assert!(forbidden("classify", "gateway").is_some());
    assert!(forbidden("gateway", "operator").is_some());
    assert!(forbidden("operator", "gateway").is_some());
    assert!(forbidden("gateway", "classify").is_none());
    assert_eq!(world_named("    let now = SystemTime::now();"), Some("SystemTime"));
    assert_eq!(world_named("    let x = operand::value;"), None);
    assert_eq!(world_named("    use rand::Rng;"), Some("rand::"));

    let text = "use crate::gateway::Gateway; // crate::cli\nuse crate::{\n    api::Provider,\n    operator::{\n        build,\n    },\n};\n#[cfg(test)]\nmod tests {\n    use crate::cli::X;\n}\nfn f() -> crate::routing::Plan {}\n";
    let code = production_code(text);
    let named: Vec<String> = rooms_named(&code).into_iter().map(|(_, room)| room).collect();
    assert_eq!(named, ["gateway", "api", "operator", "routing"]);
}
