//! Environment variables that are defaults of settings (spec: resilience 2.2, 5.4, 14; decisions 8.1: environment < settings < connection).

use std::collections::BTreeMap;

/// The variables of the process that compiles, as values. Pure: the caller reads the environment once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment(BTreeMap<String, String>);

/// Prefixes of all variables that [`Environment`] keeps.
const PREFIXES: &[&str] = &[
    "OMNIROUTE_",
    "PROVIDER_COOLDOWN_",
    "RATE_LIMIT_",
    "STREAM_",
    "QUOTA_PREFLIGHT_",
    "CREDENTIAL_HEALTH_",
    "MISTRAL_",
    "PROBE_",
    "HEALTHCHECK_",
    "REQUEST_REJECTED_",
];

impl FromIterator<(String, String)> for Environment {
    fn from_iter<T: IntoIterator<Item = (String, String)>>(variables: T) -> Self {
        Self(variables.into_iter().filter(|(name, _)| PREFIXES.iter().any(|p| name.starts_with(p))).collect())
    }
}

impl Environment {
    /// The trimmed value of a variable; blank counts as unset.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(|v| v.trim()).filter(|v| !v.is_empty())
    }

    /// `true/1/yes/on` or `false/0/no/off` in any case; anything else is ignored.
    #[must_use]
    pub fn boolean(&self, name: &str) -> Option<bool> {
        match self.get(name)?.to_ascii_lowercase().as_str() {
            "true" | "1" | "yes" | "on" => Some(true),
            "false" | "0" | "no" | "off" => Some(false),
            _ => None,
        }
    }

    /// A finite number that is not negative; fractions are cut.
    #[must_use]
    pub fn number(&self, name: &str) -> Option<u64> {
        let value: f64 = self.get(name)?.parse().ok()?;
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        (value.is_finite() && (0.0..=9e15).contains(&value)).then_some(value as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn junk_is_ignored_and_other_variables_are_not_kept() {
        let env: Environment = [
            ("STREAM_A", " on "),
            ("STREAM_B", "maybe"),
            ("RATE_LIMIT_X", "-1"),
            ("RATE_LIMIT_Y", "15.5"),
            ("HOME", "/root"),
            ("STREAM_C", " "),
        ]
        .into_iter()
        .map(|(k, v)| (k.to_owned(), v.to_owned()))
        .collect();
        assert_eq!(env.boolean("STREAM_A"), Some(true));
        assert_eq!(env.boolean("STREAM_B"), None);
        assert_eq!(env.number("RATE_LIMIT_X"), None);
        assert_eq!(env.number("RATE_LIMIT_Y"), Some(15));
        assert_eq!(env.get("HOME"), None);
        assert_eq!(env.get("STREAM_C"), None);
    }
}
