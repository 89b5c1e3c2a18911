//! YAML and JSON documents -> resources, checked as an API server would check them: structure, defaults and CEL rules of the CRDs.
//!
//! Pure: text in, resources and problems out. One bad object never hides the others: it is left out with a problem that names it.

mod cel;
mod core;
mod object;
mod plain;
mod problem;
mod schema;
mod split;
mod yaml;

use std::collections::BTreeMap;
use std::sync::LazyLock;

use cel::Checker;
pub use problem::{Level, Place, Problem, Reason};

use crate::api::Resources;

/// One text with manifests.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Source {
    /// What people know it by: a file name, or `-`.
    pub name: String,
    /// The content.
    pub text: String,
}

/// Which object, for counts and for finding where it was written.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Identity {
    /// Kind.
    pub kind: String,
    /// Namespace, when it is written down.
    pub namespace: Option<String>,
    /// Name.
    pub name: String,
}

/// What a set of sources contains.
#[derive(Debug, Default)]
pub struct Parsed {
    /// The good objects.
    pub resources: Resources,
    /// What is wrong, in the order of the sources.
    pub problems: Vec<Problem>,
    /// Where each object of a known kind was written, good or bad, with the places of its fields.
    pub objects: BTreeMap<Identity, Written>,
}

/// Where an object was written.
#[derive(Clone, Debug, Default)]
pub struct Written {
    /// Source, document and first line.
    pub place: Place,
    /// Line of each field by its path (`spec.targets[1].model`).
    lines: BTreeMap<String, u32>,
}

impl Written {
    /// The place of a field, or of the nearest thing around it.
    #[must_use]
    pub fn at(&self, field: &str) -> Place {
        let mut path = field;
        loop {
            if let Some(line) = self.lines.get(path) {
                return Place { line: *line, ..self.place.clone() };
            }
            match path.rfind(['.', '[']) {
                Some(end) => path = path.get(..end).unwrap_or_default(),
                None => return self.place.clone(),
            }
        }
    }
}

impl Parsed {
    /// True when an object must not be used as it is.
    #[must_use]
    pub fn has_errors(&self) -> bool {
        self.problems.iter().any(|p| p.level == Level::Error)
    }

    /// Where an object was written; `None` for one that is not in the sources. Without a namespace the first of that name is taken.
    #[must_use]
    pub fn find(&self, kind: &str, namespace: Option<&str>, name: &str) -> Option<&Written> {
        let mut found = self.objects.iter().filter(|(id, _)| id.kind == kind && id.name == name);
        let first = found.next();
        let exact = first.into_iter().chain(found).find(|(id, _)| namespace.is_none() || id.namespace.as_deref() == namespace);
        exact.or(first).map(|(_, written)| written)
    }
}

/// Reads all sources. The definitions are compiled once per process.
#[must_use]
pub fn parse(sources: &[Source]) -> Parsed {
    static CHECKER: LazyLock<Checker> = LazyLock::new(Checker::new);
    let checker = &*CHECKER;
    let mut parsed = Parsed::default();
    for source in sources {
        for (index, document) in split::documents(&source.text).into_iter().enumerate() {
            let place =
                Place { source: source.name.clone(), document: u32::try_from(index + 1).unwrap_or(u32::MAX), line: document.first_line };
            object::read(checker, document, &place, &mut parsed);
        }
    }
    parsed
}
