//! Plain (unquoted) scalars: their value in the YAML 1.2 core schema, and where YAML 1.1, which kubectl reads, sees something else.

use serde_json::{Number, Value};

/// The value of a plain scalar in the YAML 1.2 core schema; an error for numbers that JSON cannot say, which
/// does not quote them: they may stand in a Secret.
pub fn value(text: &str) -> Result<Value, &'static str> {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Ok(Value::Null),
        "true" | "True" | "TRUE" => return Ok(Value::Bool(true)),
        "false" | "False" | "FALSE" => return Ok(Value::Bool(false)),
        _ => {}
    }
    if let Some(number) = integer(text) {
        return Ok(number);
    }
    if is_float(text) {
        return text.parse::<f64>().ok().and_then(Number::from_f64).map(Value::Number).ok_or("this number is too large");
    }
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    if [".inf", ".Inf", ".INF"].contains(&unsigned) || [".nan", ".NaN", ".NAN"].contains(&text) {
        return Err("this is no number that JSON can say; put it in quotes if it is a text");
    }
    Ok(Value::String(text.to_owned()))
}

fn integer(text: &str) -> Option<Value> {
    if let Some(hex) = text.strip_prefix("0x") {
        return i64::from_str_radix(hex, 16).ok().map(Value::from);
    }
    if let Some(octal) = text.strip_prefix("0o") {
        return i64::from_str_radix(octal, 8).ok().map(Value::from);
    }
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    text.parse::<i64>().ok().map(Value::from).or_else(|| text.parse::<u64>().ok().map(Value::from))
}

/// `[-+]? ( \. [0-9]+ | [0-9]+ ( \. [0-9]* )? ) ( [eE] [-+]? [0-9]+ )?`
fn is_float(text: &str) -> bool {
    let text = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (mantissa, exponent) = match text.find(['e', 'E']) {
        Some(at) => (text.get(..at).unwrap_or_default(), text.get(at + 1..)),
        None => (text, None),
    };
    let digits = |t: &str| t.bytes().all(|b| b.is_ascii_digit());
    let mantissa_ok = match mantissa.split_once('.') {
        Some((whole, fraction)) => digits(whole) && digits(fraction) && !(whole.is_empty() && fraction.is_empty()),
        None => !mantissa.is_empty() && digits(mantissa),
    };
    mantissa_ok
        && exponent.is_none_or(|e| {
            let e = e.strip_prefix(['+', '-']).unwrap_or(e);
            !e.is_empty() && digits(e)
        })
}

/// What YAML 1.1 sees in a plain scalar when that is something else than YAML 1.2 sees.
pub fn yaml_1_1(text: &str) -> Option<String> {
    let lower = text.to_ascii_lowercase();
    // Only the spellings `yes`, `Yes` and `YES` count, not `yEs`.
    let regular = text == lower || text == lower.to_ascii_uppercase() || capitalised(&lower) == text;
    if regular && ["y", "yes", "on"].contains(&lower.as_str()) {
        return Some("the boolean true".to_owned());
    }
    if regular && ["n", "no", "off"].contains(&lower.as_str()) {
        return Some("the boolean false".to_owned());
    }
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let bytes = unsigned.as_bytes();
    if bytes.len() > 1 && bytes.first() == Some(&b'0') && bytes.iter().all(|b| (b'0'..=b'7').contains(b)) {
        return i64::from_str_radix(unsigned, 8).ok().map(|n| format!("the octal number {n}"));
    }
    if unsigned.starts_with("0o") {
        return Some("a text".to_owned());
    }
    if bytes.first().is_some_and(u8::is_ascii_digit) && unsigned.contains('_') && bytes.iter().all(|b| b.is_ascii_digit() || *b == b'_') {
        return Some(format!("the number {}", unsigned.replace('_', "")));
    }
    if let Some(binary) = unsigned.strip_prefix("0b")
        && let Ok(n) = i64::from_str_radix(binary, 2)
    {
        return Some(format!("the number {n}"));
    }
    sexagesimal(unsigned).map(|n| format!("the base-60 number {n}"))
}

fn capitalised(lower: &str) -> String {
    let mut chars = lower.chars();
    chars.next().map(|c| c.to_uppercase().chain(chars).collect()).unwrap_or_default()
}

/// `1:30` = 90.
fn sexagesimal(text: &str) -> Option<u64> {
    let mut parts = text.split(':');
    let first = parts.next()?;
    if first.is_empty() || first.starts_with('0') || !first.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let mut total: u64 = first.parse().ok()?;
    let mut any = false;
    for part in parts {
        let digits = !part.is_empty() && part.len() <= 2 && part.bytes().all(|b| b.is_ascii_digit());
        let value: u64 = part.parse().ok().filter(|v| digits && *v < 60)?;
        total = total.checked_mul(60)?.checked_add(value)?;
        any = true;
    }
    any.then_some(total)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_core_schema() {
        for (text, want) in [
            ("", json!(null)),
            ("~", json!(null)),
            ("true", json!(true)),
            ("yes", json!("yes")),
            ("12", json!(12)),
            ("-3", json!(-3)),
            ("0123", json!(123)),
            ("0o17", json!(15)),
            ("0x1F", json!(31)),
            ("1.5", json!(1.5)),
            ("1e3", json!(1000.0)),
            ("5m", json!("5m")),
            ("1.2.3", json!("1.2.3")),
            ("18446744073709551615", json!(u64::MAX)),
            ("e", json!("e")),
            (".", json!(".")),
        ] {
            assert_eq!(value(text), Ok(want), "{text}");
        }
        assert!(value(".inf").is_err());
        assert!(value("1e999").is_err());
    }

    #[test]
    fn where_yaml_1_1_differs() {
        for (text, says) in [
            ("y", "the boolean true"),
            ("No", "the boolean false"),
            ("OFF", "the boolean false"),
            ("0123", "the octal number 83"),
            ("1_000", "the number 1000"),
            ("0b11", "the number 3"),
            ("1:30", "the base-60 number 90"),
            ("0o17", "a text"),
        ] {
            assert_eq!(yaml_1_1(text).as_deref(), Some(says), "{text}");
        }
        for same in ["true", "12", "0", "08:15", "yEs", "none", "gpt-5.2", "5m", "a:b", "1:99", "0x1F", "10.0.0.1:80"] {
            assert_eq!(yaml_1_1(same), None, "{same}");
        }
    }
}
