//! Cuts a text into YAML documents before it is parsed, so that a syntax error in one document leaves the others readable.

/// One document.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Document<'a> {
    /// Its text without the separator.
    pub text: &'a str,
    /// Line of its first line inside the source, from 1.
    pub first_line: u32,
}

impl Document<'_> {
    /// Nothing but blanks, comments and directives (`%YAML 1.2` stands before the separator).
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.text.lines().all(|line| line.trim().is_empty() || line.starts_with('%') || line.trim_start().starts_with('#'))
    }
}

/// The documents of a text; those that hold nothing but comments and blanks are counted but empty.
#[must_use]
pub fn documents(text: &str) -> Vec<Document<'_>> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut out = Vec::new();
    let (mut start, mut offset, mut line, mut first_line) = (0, 0, 0u32, 1);
    for part in text.split_inclusive('\n') {
        line += 1;
        if is_separator(part) {
            if offset > start || !out.is_empty() {
                out.push(Document { text: text.get(start..offset).unwrap_or_default(), first_line });
            }
            // What stands behind `---` on the same line belongs to the document.
            start = offset + 3;
            first_line = line;
        }
        offset += part.len();
    }
    out.push(Document { text: text.get(start..).unwrap_or_default(), first_line });
    out
}

/// `---`, alone or followed by white space.
fn is_separator(line: &str) -> bool {
    line.strip_prefix("---").is_some_and(|rest| rest.is_empty() || rest.starts_with(char::is_whitespace))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(text: &str) -> Vec<(&str, u32)> {
        documents(text).into_iter().map(|d| (d.text, d.first_line)).collect()
    }

    #[test]
    fn cuts_at_separators_and_keeps_line_numbers() {
        assert_eq!(cut("a: 1\n"), [("a: 1\n", 1)]);
        assert_eq!(cut("---\na: 1\n---\nb: 2\n"), [("\na: 1\n", 1), ("\nb: 2\n", 3)]);
        assert_eq!(cut("# head\n---\na: 1"), [("# head\n", 1), ("\na: 1", 2)]);
        assert_eq!(cut("--- {a: 1}\n"), [(" {a: 1}\n", 1)]);
        assert_eq!(cut("text: |\n  ---\n  x\n"), [("text: |\n  ---\n  x\n", 1)]);
        assert_eq!(cut("----\n"), [("----\n", 1)]);
        assert_eq!(cut("a: 1\r\n---\r\nb: 2\r\n"), [("a: 1\r\n", 1), ("\r\nb: 2\r\n", 2)]);
        let empty: Vec<bool> = documents("%YAML 1.2\n# head\n---\na: 1\n").iter().map(Document::is_empty).collect();
        assert_eq!(empty, [true, false]);
    }
}
