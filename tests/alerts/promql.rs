//! Which series a PromQL expression reads, by which labels it chooses them, and by which it groups.

use std::collections::BTreeSet;

/// What an expression needs.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Series, with the labels in their braces.
    pub series: Vec<(String, BTreeSet<String>)>,
    /// Labels of `by`, `on`, `ignoring` and the like.
    pub grouping: BTreeSet<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Word(String),
    Text,
    Sign(char),
}

/// Words, quoted texts and signs. A range in brackets is skipped: it holds a duration or a variable.
fn tokens(expression: &str) -> Vec<Token> {
    let mut characters = expression.chars().peekable();
    let mut all = Vec::new();
    while let Some(c) = characters.next() {
        if c.is_ascii_alphanumeric() || "_:$.".contains(c) {
            let mut word = c.to_string();
            while let Some(next) = characters.next_if(|c| c.is_ascii_alphanumeric() || "_:.".contains(*c)) {
                word.push(next);
            }
            all.push(Token::Word(word));
        } else if c == '"' || c == '\'' {
            while let Some(inner) = characters.next().filter(|inner| *inner != c) {
                if inner == '\\' {
                    characters.next();
                }
            }
            all.push(Token::Text);
        } else if c == '[' {
            characters.by_ref().find(|c| *c == ']').expect("a closed range");
        } else if !c.is_whitespace() {
            all.push(Token::Sign(c));
        }
    }
    all
}

const GROUPING: [&str; 6] = ["by", "without", "on", "ignoring", "group_left", "group_right"];
const OPERATORS: [&str; 6] = ["and", "or", "unless", "bool", "offset", "atan2"];

/// Reads an expression. Metrics named by `{__name__=…}` are not known here.
pub fn needs(expression: &str) -> Needs {
    let tokens = tokens(expression);
    let (mut needs, mut at) = (Needs::default(), 0);
    // The words between two signs; `at` is on the first of them.
    let words_until = |at: &mut usize, end: char| {
        let mut words = Vec::new();
        while let Some(token) = tokens.get(*at).filter(|token| **token != Token::Sign(end)) {
            if let Token::Word(word) = token {
                words.push(word.clone());
            }
            *at += 1;
        }
        *at += 1;
        words
    };
    while let Some(token) = tokens.get(at) {
        at += 1;
        let Token::Word(word) = token else { continue };
        let follows = |sign: char| tokens.get(at) == Some(&Token::Sign(sign));
        let first = word.chars().next().unwrap_or_default();
        if GROUPING.contains(&word.as_str()) {
            if follows('(') {
                at += 1;
                needs.grouping.extend(words_until(&mut at, ')'));
            }
        } else if first.is_ascii_digit() || first == '$' || first == '.' || OPERATORS.contains(&word.as_str()) {
            // A number, a variable or an operator.
        } else if follows('{') {
            at += 1;
            let labels = words_until(&mut at, '}').into_iter().collect();
            needs.series.push((word.clone(), labels));
        } else if !follows('(') && !aggregation_with_grouping_first(&tokens, at) {
            needs.series.push((word.clone(), BTreeSet::new()));
        }
    }
    needs
}

/// `sum by (a) (…)`: the word before `by` is no series.
fn aggregation_with_grouping_first(tokens: &[Token], at: usize) -> bool {
    matches!(tokens.get(at), Some(Token::Word(word)) if word == "by" || word == "without")
}

#[test]
fn expressions_are_read() {
    let of = |expression: &str| {
        let needs = needs(expression);
        let series: Vec<String> = needs.series.iter().map(|(name, labels)| format!("{name}{labels:?}")).collect();
        (series.join(" "), needs.grouping.into_iter().collect::<Vec<_>>().join(" "))
    };
    for (expression, series, grouping) in [
        ("up", "up{}", ""),
        ("absent(a_b)", "a_b{}", ""),
        ("sum(a) by (x, y)", "a{}", "x y"),
        (r#"sum by (x) (rate(a_total{k="v,w{}",l!~"a|b"}[5m])) / 2e3 > bool 0.5"#, r#"a_total{"k", "l"}"#, "x"),
        (r#"max(a{n=~"$n"} + 2 * ignoring (s) b{n=~"$n"})"#, r#"a{"n"} b{"n"}"#, "s"),
        ("a:b:rate5m > 1 and on (n) sum by (n) (rate(c[$__rate_interval]))", "a:b:rate5m{} c{}", "n"),
        ("histogram_quantile(0.9, sum by (le) (rate(h_bucket[1m:10s] offset 5m)))", "h_bucket{}", "le"),
        ("a - time() or vector(0)", "a{}", ""),
        ("a * on (x) group_left b", "a{} b{}", "x"),
    ] {
        assert_eq!(of(expression), (series.to_owned(), grouping.to_owned()), "{expression}");
    }
}
