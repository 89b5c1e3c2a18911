//! One YAML document -> one JSON value with the line of every field.
//!
//! Made on the parser's events rather than through serde, because lines, duplicate keys and the differences of YAML versions are lost there.

use std::collections::{BTreeMap, HashMap};

use serde_json::{Map, Value};
use serde_saphyr::granit_parser::{Event, Parser, ScalarStyle, ScanError, Span, StrInput, Tag};

use super::plain;
use super::problem::Reason;

/// Most nodes of one document, aliases expanded: far above any manifest, far below an alias bomb.
const MAX_NODES: usize = 200_000;
/// Deepest nesting: the API server's own limit is of this order.
const MAX_DEPTH: usize = 64;

/// A document that could be read.
#[derive(Debug, Default)]
pub struct Composed {
    /// The value; null for an empty document.
    pub value: Value,
    /// Line of each field by its path, from 1, relative to the document.
    pub lines: BTreeMap<String, u32>,
    /// What is questionable.
    pub notes: Vec<Note>,
}

/// Something questionable in a document that could be read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Note {
    /// Line, from 1, relative to the document.
    pub line: u32,
    /// Path of the field.
    pub path: String,
    /// Which check.
    pub reason: Reason,
    /// What, and the way out.
    pub message: String,
}

/// Why a document could not be read: line (relative to the document) and message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// Line, from 1.
    pub line: u32,
    /// What is wrong.
    pub message: String,
}

/// Reads one document.
///
/// # Errors
/// Says where the text is no YAML, or which construct cannot be a manifest.
pub fn compose(text: &str) -> Result<Composed, Failure> {
    let mut composer = Composer { parser: Parser::new_from_str(text), anchors: HashMap::new(), out: Composed::default(), nodes: 0 };
    let mut documents = 0;
    loop {
        let (event, span) = composer.next()?;
        match event {
            Event::StreamStart | Event::DocumentEnd => {}
            Event::DocumentStart(..) => {
                documents += 1;
                if documents > 1 {
                    return fail(span, "a second document starts here; separate documents with `---`");
                }
            }
            Event::StreamEnd => return Ok(composer.out),
            event => {
                composer.out.value = composer.node(event, span, "", 0)?;
            }
        }
    }
}

struct Composer<'a> {
    parser: Parser<'a, StrInput<'a>>,
    anchors: HashMap<usize, Value>,
    out: Composed,
    nodes: usize,
}

fn line(span: Span) -> u32 {
    u32::try_from(span.start.line()).unwrap_or(u32::MAX)
}

fn fail<T>(span: Span, message: impl Into<String>) -> Result<T, Failure> {
    Err(Failure { line: line(span), message: message.into() })
}

impl<'a> Composer<'a> {
    fn next(&mut self) -> Result<(Event<'a>, Span), Failure> {
        loop {
            match self.parser.next_event() {
                Some(Ok((Event::Comment(..), _))) => {}
                Some(Ok(next)) => return Ok(next),
                Some(Err(error)) => return Err(scan_failure(&error)),
                None => return Ok((Event::StreamEnd, Span::default())),
            }
        }
    }

    fn node(&mut self, event: Event<'a>, span: Span, path: &str, depth: usize) -> Result<Value, Failure> {
        self.nodes += 1;
        if self.nodes > MAX_NODES {
            return fail(span, format!("the document has more than {MAX_NODES} values once its aliases are expanded"));
        }
        if depth > MAX_DEPTH {
            return fail(span, format!("the document is nested deeper than {MAX_DEPTH} levels"));
        }
        self.out.lines.entry(path.to_owned()).or_insert_with(|| line(span));
        let (value, anchor) = match event {
            Event::Alias(id) => {
                let value = self.anchors.get(&id).cloned();
                let Some(value) = value else { return fail(span, "an alias refers to an anchor that contains it") };
                self.nodes += count(&value);
                return Ok(value);
            }
            Event::Scalar(text, style, anchor, tag) => (self.scalar(&text, style, tag.as_deref(), span, path)?, anchor),
            Event::SequenceStart(_, anchor, tag) => {
                container_tag(tag.as_deref(), "seq", span)?;
                (self.sequence(path, depth)?, anchor)
            }
            Event::MappingStart(_, anchor, tag) => {
                container_tag(tag.as_deref(), "map", span)?;
                (self.mapping(path, depth)?, anchor)
            }
            _ => return fail(span, "a value was expected here"),
        };
        if anchor > 0 {
            self.anchors.insert(anchor, value.clone());
        }
        Ok(value)
    }

    fn sequence(&mut self, path: &str, depth: usize) -> Result<Value, Failure> {
        let mut items = Vec::new();
        loop {
            let (event, span) = self.next()?;
            if event == Event::SequenceEnd {
                return Ok(Value::Array(items));
            }
            let item = format!("{path}[{}]", items.len());
            items.push(self.node(event, span, &item, depth + 1)?);
        }
    }

    fn mapping(&mut self, path: &str, depth: usize) -> Result<Value, Failure> {
        let (mut map, mut merged) = (Map::new(), Map::new());
        loop {
            let (event, span) = self.next()?;
            if event == Event::MappingEnd {
                for (key, value) in merged {
                    map.entry(key).or_insert(value);
                }
                return Ok(Value::Object(map));
            }
            let Event::Scalar(key, style, ..) = event else { return fail(span, "a key must be a plain text") };
            let field = if path.is_empty() { key.to_string() } else { format!("{path}.{key}") };
            if style == ScalarStyle::Plain {
                self.version_note(&key, span, &field);
            }
            self.out.lines.insert(field.clone(), line(span));
            let (event, value_span) = self.next()?;
            let value = self.node(event, value_span, &field, depth + 1)?;
            if key == "<<" && style == ScalarStyle::Plain {
                merge(&mut merged, value, span)?;
            } else if map.insert(key.to_string(), value).is_some() {
                let message = format!("`{key}` stands twice in the same mapping; keep one of them");
                self.out.notes.push(Note { line: line(span), path: field, reason: Reason::DuplicateKey, message });
            }
        }
    }

    fn scalar(&mut self, text: &str, style: ScalarStyle, tag: Option<&Tag>, span: Span, path: &str) -> Result<Value, Failure> {
        let tag = match tag {
            None => None,
            Some(tag) => match tag.core_suffix() {
                Some(suffix) => Some(suffix),
                None if tag.suffix() == "!" || (tag.handle() == "!" && tag.suffix().is_empty()) => Some("str"),
                None => return fail(span, format!("the tag `{}` cannot stand in a manifest", tag.original())),
            },
        };
        match tag {
            Some("str") => Ok(Value::String(text.to_owned())),
            Some("int" | "float" | "bool" | "null") => plain::value(text).or_else(|message| fail(span, message)),
            Some(other) => fail(span, format!("the tag `!!{other}` cannot stand in a manifest")),
            None if style == ScalarStyle::Plain => {
                self.version_note(text, span, path);
                plain::value(text).or_else(|message| fail(span, message))
            }
            None => Ok(Value::String(text.to_owned())),
        }
    }

    fn version_note(&mut self, text: &str, span: Span, path: &str) {
        if let Some(other) = plain::yaml_1_1(text) {
            let message = format!(
                "`{text}` without quotes is {other} for kubectl, which reads YAML 1.1; write \"{text}\" in quotes if it is a text, or use a spelling that both versions read alike"
            );
            self.out.notes.push(Note { line: line(span), path: path.to_owned(), reason: Reason::YamlVersion, message });
        }
    }
}

fn container_tag(tag: Option<&Tag>, want: &str, span: Span) -> Result<(), Failure> {
    match tag {
        Some(tag) if tag.core_suffix() != Some(want) => fail(span, format!("the tag `{}` cannot stand in a manifest", tag.original())),
        _ => Ok(()),
    }
}

fn merge(into: &mut Map<String, Value>, value: Value, span: Span) -> Result<(), Failure> {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                into.entry(key).or_insert(value);
            }
            Ok(())
        }
        Value::Array(items) => items.into_iter().try_for_each(|item| merge(into, item, span)),
        _ => fail(span, "`<<` takes a mapping or a list of mappings"),
    }
}

fn count(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(count).sum::<usize>(),
        Value::Object(map) => 1 + map.values().map(count).sum::<usize>(),
        _ => 1,
    }
}

fn scan_failure(error: &ScanError) -> Failure {
    Failure { line: u32::try_from(error.marker().line()).unwrap_or(u32::MAX), message: format!("this is no YAML: {}", error.kind()) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_and_lines() {
        let out = compose("a: 1\nb:\n- x\n- {c: \"2\"}\n").unwrap();
        assert_eq!(out.value, json!({"a": 1, "b": ["x", {"c": "2"}]}));
        assert_eq!((out.lines["a"], out.lines["b"], out.lines["b[1]"], out.lines["b[1].c"]), (1, 2, 4, 4));
        assert_eq!(compose("# nothing\n").unwrap().value, Value::Null);
    }

    #[test]
    fn anchors_merges_and_tags() {
        let out = compose("a: &x {p: 1, q: 2}\nb: {<<: *x, q: 3}\nc: !!str 5\nd: *x\n").unwrap();
        assert_eq!(out.value, json!({"a": {"p": 1, "q": 2}, "b": {"p": 1, "q": 3}, "c": "5", "d": {"p": 1, "q": 2}}));
        assert!(compose("a: !Secret x").unwrap_err().message.contains("tag"));
    }

    #[test]
    fn duplicate_keys_and_versions_are_noted() {
        let out = compose("name: y\nname: z\n").unwrap();
        assert_eq!(out.notes.iter().map(|n| (n.line, n.reason)).collect::<Vec<_>>(), [(1, Reason::YamlVersion), (2, Reason::DuplicateKey)]);
        assert!(compose("name: \"y\"\n").unwrap().notes.is_empty());
    }

    #[test]
    fn broken_text_is_told_with_its_line() {
        let failure = compose("a: 1\nb: [1, 2\n").unwrap_err();
        assert!(failure.line >= 2 && failure.message.starts_with("this is no YAML"), "{failure:?}");
    }

    #[test]
    fn a_second_document_is_not_lost_silently() {
        assert!(compose("a: 1\n...\nb: 2\n").unwrap_err().message.contains("second document"));
        assert_eq!(compose("a: 1\n...\n").unwrap().value, json!({"a": 1}));
    }

    #[test]
    fn alias_bombs_are_refused() {
        let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for i in 1..9 {
            let before = format!("*a{}", i - 1);
            text.push_str(&format!("a{i}: &a{i} [{}]\n", vec![before; 10].join(", ")));
        }
        assert!(compose(&text).unwrap_err().message.contains("aliases"));
        assert!(compose(&("[".repeat(100) + &"]".repeat(100))).unwrap_err().message.contains("nested"));
    }
}
