//! Every rule that the code names as its source stands on `docs/reference/sources.md`, and nothing else does.

use std::collections::BTreeSet;
use std::path::Path;

use regex::Regex;

/// Family and section, as the page has them.
type Source = (&'static str, String);

/// How comments name their sources.
struct Names {
    families: Vec<(&'static str, Regex)>,
    section: Regex,
    /// `(7.5, 400 row 3)`, and the first cell of a row.
    bare: Regex,
    dotted: Regex,
}

impl Names {
    fn new() -> Self {
        let section = r"\d{1,2}(?:\.\d+)*\b";
        let list = |before: &str| Regex::new(&format!(r"\b(?:{before}) ({section}(?:(?:, | and |–){section})*)")).unwrap();
        Self {
            families: vec![
                ("Decisions", list("decisions")),
                ("Routing", list("routing spec|spec: routing")),
                ("Resilience", list("resilience spec|spec: resilience|QS of")),
                ("Interface", list("interface")),
                ("Weaknesses", Regex::new(r"\b(W-\d+)").unwrap()),
            ],
            section: Regex::new(&format!(r"W-\d+|{section}")).unwrap(),
            bare: Regex::new(r"\(\d+\.\d+[^)]*\)|^\| \d+\.\d+[^|]*").unwrap(),
            dotted: Regex::new(r"(?:\(|^\| |, )(\d+\.\d+)(?:[ ,)–]|$)").unwrap(),
        }
    }

    /// The sources in a comment. `bare` = sections without a name are of the resilience specification.
    fn find(&self, text: &str, bare: bool, found: &mut BTreeSet<Source>) {
        for (family, list) in &self.families {
            for named in list.captures_iter(text) {
                found.extend(self.section.find_iter(&named[1]).map(|one| (*family, one.as_str().to_owned())));
            }
        }
        for part in self.bare.find_iter(text).filter(|_| bare) {
            found.extend(self.dotted.captures_iter(part.as_str()).map(|one| ("Resilience", one[1].to_owned())));
        }
    }
}

fn walk(folder: &Path, names: &Names, found: &mut BTreeSet<Source>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            walk(&path, names, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            let comment =
                |line: &str| line.trim_start().strip_prefix("//").map(|rest| rest.trim_start_matches(['/', '!']).trim().to_owned());
            let comments: Vec<String> = text.lines().filter_map(comment).collect();
            let bare = path.components().any(|part| ["classify", "resilience"].iter().any(|room| part.as_os_str() == *room));
            names.find(&comments.join(" "), bare, found);
            // Rows of a table begin their line.
            comments.iter().filter(|line| line.starts_with("| ")).for_each(|line| names.find(line, bare, found));
        }
    }
}

#[test]
fn every_source_that_the_code_names_is_explained() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let names = Names::new();
    let mut named = BTreeSet::new();
    walk(&root.join("src"), &names, &mut named);
    for row in omniroute::classify::tables().into_iter().flatten() {
        // `decisions 9.3`, `interface 5`, or a section of the resilience specification, with or without its row.
        names.find(&if row.spec.starts_with(char::is_numeric) { format!("({})", row.spec) } else { row.spec.to_owned() }, true, &mut named);
    }
    assert!(named.len() > 150, "{}", named.len());

    let page = std::fs::read_to_string(root.join("docs/reference/sources.md")).unwrap();
    let mut explained = BTreeSet::new();
    let mut family = "";
    for line in page.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            family = ["Decisions", "Resilience", "Routing", "Interface", "Weaknesses"].into_iter().find(|known| *known == heading).unwrap();
        } else if let [section, rule] = line.trim_matches('|').split(" | ").map(str::trim).collect::<Vec<_>>()[..]
            && section.contains(char::is_numeric)
        {
            assert!(rule.ends_with('.'), "{line}");
            assert!(explained.insert((family, section.to_owned())), "twice: {line}");
        }
    }
    let missing: Vec<_> = named.difference(&explained).collect();
    let left_over: Vec<_> = explained.difference(&named).collect();
    assert!(missing.is_empty() && left_over.is_empty(), "not on the page: {missing:?}; named nowhere: {left_over:?}");
}
