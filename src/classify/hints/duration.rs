//! Durations: `90`, `1.5`, `5m`, `6m0s`, `120ms`, `1h 30m`, `2 days, 3 hours`, `an hour`, `PT1H30M`, `30 秒`.

/// Milliseconds of a unit (any case).
fn unit(word: &str) -> Option<f64> {
    const SECOND: f64 = 1_000.0;
    let is = |names: &[&str]| names.iter().any(|n| word.eq_ignore_ascii_case(n));
    let ms = if is(&["ms", "msec", "msecs", "millisecond", "milliseconds", "毫秒"]) {
        1.0
    } else if is(&["s", "sec", "secs", "second", "seconds", "秒", "秒钟"]) {
        SECOND
    } else if is(&["m", "min", "mins", "minute", "minutes", "分", "分钟"]) {
        60.0 * SECOND
    } else if is(&["h", "hr", "hrs", "hour", "hours", "小时", "个小时", "时"]) {
        3_600.0 * SECOND
    } else if is(&["d", "day", "days", "天", "日"]) {
        86_400.0 * SECOND
    } else if is(&["w", "week", "weeks", "周"]) {
        7.0 * 86_400.0 * SECOND
    } else if is(&["month", "months", "个月"]) {
        30.0 * 86_400.0 * SECOND
    } else if is(&["us", "µs", "μs", "microseconds"]) {
        0.001
    } else if is(&["ns", "nanoseconds"]) {
        0.000_001
    } else {
        return None;
    };
    Some(ms)
}

/// Rounds up to whole milliseconds; 0, negative and absurd values are absent or bounded.
pub(super) fn whole(ms: f64) -> Option<u64> {
    if !ms.is_finite() || ms <= 0.0 {
        return None;
    }
    // The bound keeps the conversion exact and everything later far from overflow.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let rounded = ms.min(1e15).ceil() as u64;
    Some(rounded)
}

/// Reads a number at the start: value and length.
pub(super) fn number(text: &str) -> Option<(f64, usize)> {
    let digits = |t: &str| t.bytes().take_while(u8::is_ascii_digit).count();
    let int = digits(text);
    if int == 0 || int > 15 {
        return None;
    }
    let mut len = int;
    if let Some(rest) = text.get(int..).and_then(|t| t.strip_prefix('.')) {
        let fraction = digits(rest);
        if fraction > 0 {
            len += 1 + fraction;
        }
    }
    Some((text.get(..len)?.parse().ok()?, len))
}

/// Length of the unit word at the start (letters, or the Chinese characters of units).
fn word_len(text: &str) -> usize {
    let mut chars = text.char_indices().peekable();
    let Some(&(_, first)) = chars.peek() else { return 0 };
    let class = |c: char| {
        if c.is_ascii_alphabetic() || matches!(c, 'µ' | 'μ') { 1 } else { 2 * u8::from("毫秒钟分小时个天日周月".contains(c)) }
    };
    let wanted = class(first);
    if wanted == 0 {
        return 0;
    }
    chars.find(|(_, c)| class(*c) != wanted).map_or(text.len(), |(i, _)| i)
}

/// The longest unit at the start of `text` and its length.
fn unit_at(text: &str) -> Option<(f64, usize)> {
    let len = word_len(text);
    let word = text.get(..len)?;
    if word.is_ascii() {
        return unit(word).map(|u| (u, len));
    }
    // Chinese is written without spaces: the longest prefix that is a unit.
    (1..=len).rev().filter(|n| text.is_char_boundary(*n)).find_map(|n| unit(text.get(..n)?).map(|u| (u, n)))
}

/// Number words.
const WORDS: &[(&str, f64)] = &[
    ("half an ", 0.5),
    ("an ", 1.0),
    ("a ", 1.0),
    ("one ", 1.0),
    ("two ", 2.0),
    ("three ", 3.0),
    ("four ", 4.0),
    ("five ", 5.0),
    ("six ", 6.0),
    ("seven ", 7.0),
    ("eight ", 8.0),
    ("nine ", 9.0),
    ("ten ", 10.0),
    ("twelve ", 12.0),
    ("thirty ", 30.0),
];

/// A quantity: number with unit, or `an hour`. Answers milliseconds and length.
fn quantity(text: &str) -> Option<(f64, usize)> {
    let (value, len) = number(text).or_else(|| {
        WORDS.iter().find(|(w, _)| text.get(..w.len()).is_some_and(|t| t.eq_ignore_ascii_case(w))).map(|(w, v)| (*v, w.len()))
    })?;
    let rest = text.get(len..)?;
    let gap = rest.len() - rest.trim_start_matches([' ', '-']).len();
    let (unit, unit_len) = unit_at(rest.get(gap..)?)?;
    Some((value * unit, len + gap + unit_len))
}

/// Reads a duration with units at the start of `text`; groups may be joined by spaces, commas and `and`. Milliseconds and length.
pub(super) fn prefix(text: &str) -> Option<(u64, usize)> {
    if let Some(found) = iso(text) {
        return Some(found);
    }
    let (mut total, mut len) = quantity(text)?;
    while let Some(rest) = text.get(len..) {
        let mut next = rest.trim_start_matches([' ', ',']);
        next = next.strip_prefix("and ").unwrap_or(next);
        let Some((more, more_len)) = quantity(next).filter(|_| next.starts_with(|c: char| c.is_ascii_digit())) else { break };
        total += more;
        len = text.len() - next.len() + more_len;
    }
    whole(total).map(|ms| (ms, len))
}

/// ISO 8601 (`PT1H30M`, `P1DT2H`).
fn iso(text: &str) -> Option<(u64, usize)> {
    let mut rest = text.strip_prefix(['P', 'p'])?;
    let (mut time, mut total, mut groups) = (false, 0.0, 0);
    loop {
        if let Some(after) = rest.strip_prefix(['T', 't']).filter(|_| !time) {
            time = true;
            rest = after;
            continue;
        }
        let Some((value, len)) = number(rest) else { break };
        let factor = match (rest.as_bytes().get(len)?.to_ascii_uppercase(), time) {
            (b'W', false) => 7.0 * 86_400_000.0,
            (b'D', false) => 86_400_000.0,
            (b'H', true) => 3_600_000.0,
            (b'M', true) => 60_000.0,
            (b'S', true) => 1_000.0,
            _ => return None,
        };
        total += value * factor;
        groups += 1;
        rest = rest.get(len + 1..)?;
    }
    if groups == 0 { None } else { whole(total).map(|ms| (ms, text.len() - rest.len())) }
}

/// A value that is nothing but a duration: with units, or a bare number of seconds.
pub(super) fn value(text: &str) -> Option<u64> {
    let text = text.trim();
    if let Some((seconds, len)) = number(text)
        && len == text.len()
    {
        return whole(seconds * 1_000.0);
    }
    let (ms, len) = prefix(text)?;
    text.get(len..)?.trim().is_empty().then_some(ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_written_forms_are_read() {
        for (text, ms) in [
            ("90", 90_000),
            ("1.5", 1_500),
            ("5m", 300_000),
            ("1H", 3_600_000),
            ("6m0s", 360_000),
            ("120ms", 120),
            ("1m30s", 90_000),
            ("1h 30m", 5_400_000),
            ("2 hours", 7_200_000),
            ("2 days, 3 hours and 4 minutes", 183_840_000),
            ("an hour", 3_600_000),
            ("PT1H30M", 5_400_000),
            ("P1DT1S", 86_401_000),
            ("373.801628ms", 374),
            ("38.922534355s", 38_923),
            ("30 秒", 30_000),
            ("5 小时", 18_000_000),
            ("2小时30分钟", 9_000_000),
            ("1 week", 604_800_000),
            ("164h27m24s", 592_044_000),
            ("1m26.4s", 86_400),
        ] {
            assert_eq!(value(text), Some(ms), "{text}");
        }
        for text in ["", "0", "0s", "-5", "soon", "5 apples", "P", "PT", "1e9", "5m later"] {
            assert_eq!(value(text), None, "{text}");
        }
    }
}
