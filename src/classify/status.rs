//! Sets of HTTP statuses in tables.

/// On which statuses a row acts.
#[derive(Clone, Copy, Debug)]
pub enum Statuses {
    /// Any 4xx and 5xx.
    Any,
    /// These.
    Of(&'static [u16]),
    /// Any 5xx and these.
    ServerAnd(&'static [u16]),
    /// Any 4xx and 5xx but these.
    AllBut(&'static [u16]),
}

impl Statuses {
    /// Whether a status is among them.
    #[must_use]
    pub fn has(self, status: u16) -> bool {
        match self {
            Self::Any => true,
            Self::Of(list) => list.contains(&status),
            Self::ServerAnd(list) => status >= 500 || list.contains(&status),
            Self::AllBut(list) => !list.contains(&status),
        }
    }
}

impl std::fmt::Display for Statuses {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let join = |list: &[u16]| list.iter().map(u16::to_string).collect::<Vec<_>>().join(", ");
        match self {
            Self::Any => f.write_str("4xx, 5xx"),
            Self::Of(list) => f.write_str(&join(list)),
            Self::ServerAnd([]) => f.write_str("5xx"),
            Self::ServerAnd(list) => write!(f, "{}, 5xx", join(list)),
            Self::AllBut(list) => write!(f, "4xx, 5xx except {}", join(list)),
        }
    }
}
