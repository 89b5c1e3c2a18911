//! What is wrong with a manifest.

use std::fmt;

use serde::Serialize;

/// How bad a problem is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// The API server would take it.
    Warning,
    /// The API server would refuse it; the object is not used.
    Error,
}

/// Where something was written.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize)]
pub struct Place {
    /// Name of the source.
    pub source: String,
    /// Number of the document inside it, from 1.
    pub document: u32,
    /// Line inside the source, from 1.
    pub line: u32,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.source, self.line)
    }
}

/// One thing that is wrong with a manifest, with the way out.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Problem {
    /// Where.
    #[serde(flatten)]
    pub place: Place,
    /// How bad.
    pub level: Level,
    /// Which check said so (`UnknownField`, `InvalidValue`, …): the rule id in SARIF.
    pub reason: Reason,
    /// Kind of the object, where it is known.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// Name of the object, where it is known.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Dotted path of the field, empty for the object itself.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub field: String,
    /// What is wrong and the way out.
    pub message: String,
}

/// Which check found a problem.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
pub enum Reason {
    /// No YAML, or no object.
    Syntax,
    /// A key that stands twice.
    DuplicateKey,
    /// A value that YAML 1.1 and 1.2 read differently.
    YamlVersion,
    /// A kind or version that is not ours.
    UnknownKind,
    /// A field that does not exist.
    UnknownField,
    /// A required field that is absent.
    RequiredField,
    /// A value of the wrong type.
    WrongType,
    /// A value outside its bounds.
    InvalidValue,
    /// A cross-field rule.
    Rule,
    /// Two objects with one identity.
    DuplicateObject,
}

impl Reason {
    /// The wire name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Syntax => "Syntax",
            Self::DuplicateKey => "DuplicateKey",
            Self::YamlVersion => "YamlVersion",
            Self::UnknownKind => "UnknownKind",
            Self::UnknownField => "UnknownField",
            Self::RequiredField => "RequiredField",
            Self::WrongType => "WrongType",
            Self::InvalidValue => "InvalidValue",
            Self::Rule => "Rule",
            Self::DuplicateObject => "DuplicateObject",
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.place)?;
        if !self.kind.is_empty() {
            write!(f, "{} `{}`: ", self.kind, self.name)?;
        }
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        f.write_str(&self.message)
    }
}
