//! What routing must know about a request and about the key that sent it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::api::time::EpochMs;
use crate::snapshot::{ApiKey, Dialect, Snapshot};

/// One client request.
#[derive(Clone, Debug)]
pub struct Request {
    /// The client's dialect.
    pub dialect: Dialect,
    /// What the model must be able to do.
    pub needs: Needs,
    /// What the client's key allows.
    pub key: Arc<KeyPolicy>,
    /// The one connection that may serve it (lease, `previous_response_id`), by position in the snapshot.
    pub only_connection: Option<usize>,
    /// `x-omniroute-fallback: none`: exactly one upstream call, its answer as it is.
    pub single_call: bool,
    /// What `CacheOptimized` hashes: `prompt_cache_key` or a hash of the reusable prefix.
    pub cache_key: Option<String>,
    /// When the gateway received it.
    pub received: EpochMs,
    /// The composed request that it is a call of.
    pub inner: Option<Inner>,
}

/// What a call of a composed request inherits (decisions 4.1).
#[derive(Clone, Debug)]
pub struct Inner {
    /// What all calls may spend together.
    pub budget: Arc<Budget>,
    /// It may wait for timers, as a request of its own may.
    pub patient: bool,
}

/// What the calls of a composed request may spend together. Each call may dispatch once, whatever the others did; what comes after a failure
/// is shared.
#[derive(Debug)]
pub struct Budget {
    failures_left: AtomicU32,
    dispatched: AtomicU32,
    /// All calls must have committed before this instant.
    pub deadline: EpochMs,
}

impl Budget {
    /// A budget of so many failed dispatches.
    #[must_use]
    pub const fn new(failures: u32, deadline: EpochMs) -> Self {
        Self { failures_left: AtomicU32::new(failures), dispatched: AtomicU32::new(0), deadline }
    }

    /// Dispatches of all calls so far.
    #[must_use]
    pub fn dispatched(&self) -> u32 {
        self.dispatched.load(Ordering::Relaxed)
    }

    pub(super) fn dispatch(&self) {
        self.dispatched.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn take_back(&self) {
        self.dispatched.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn fail(&self) {
        let less = |left: u32| left.checked_sub(1);
        // At zero there is nothing left to take.
        let _ = self.failures_left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    pub(super) fn is_spent(&self) -> bool {
        self.failures_left.load(Ordering::Relaxed) == 0
    }
}

impl Request {
    /// A plain request without special needs.
    #[must_use]
    pub fn new(dialect: Dialect, received: EpochMs) -> Self {
        Self {
            dialect,
            needs: Needs::default(),
            key: Arc::new(KeyPolicy::default()),
            only_connection: None,
            single_call: false,
            cache_key: None,
            received,
            inner: None,
        }
    }
}

/// What a request needs from a model (routing spec 3.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Needs {
    /// Tools are offered.
    pub tools: bool,
    /// Images are sent.
    pub vision: bool,
    /// A JSON schema is asked for.
    pub structured_output: bool,
    /// Estimated input, tokens; 0 = not known.
    pub input_tokens: u64,
    /// Requested longest output, tokens.
    pub output_tokens: Option<u64>,
}

/// What a client key may use, resolved against one snapshot. The default allows everything.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct KeyPolicy {
    /// Positions of allowed connections, ascending; `None` = all.
    connections: Option<Vec<usize>>,
    /// Globs of names, lower case; `None` = all.
    models: Option<Vec<String>>,
}

impl KeyPolicy {
    /// Resolves a key against its snapshot; connections that do not exist are simply not there.
    #[must_use]
    pub fn new(key: &ApiKey, snapshot: &Snapshot) -> Self {
        let connections = key.allowed_connections.as_ref().map(|names| {
            let position = |name: &String| snapshot.connections.iter().position(|c| c.name == *name);
            let mut found: Vec<usize> = names.iter().filter_map(position).collect();
            found.sort_unstable();
            found
        });
        let models = key.allowed_models.as_ref().map(|globs| globs.iter().map(|g| g.to_lowercase()).collect());
        Self { connections, models }
    }

    /// Whether this connection may be used.
    #[must_use]
    pub fn allows_connection(&self, connection: usize) -> bool {
        self.connections.as_ref().is_none_or(|allowed| allowed.binary_search(&connection).is_ok())
    }

    /// Whether a combo name or `PROVIDER/MODEL` may be asked for.
    #[must_use]
    pub fn allows_name(&self, name: &str) -> bool {
        self.models.as_ref().is_none_or(|globs| {
            let name = name.to_lowercase();
            globs.iter().any(|glob| glob_matches(glob, &name))
        })
    }

    /// Whether it restricts names at all.
    #[must_use]
    pub const fn restricts_names(&self) -> bool {
        self.models.is_some()
    }
}

/// Whether a glob, in which only `*` is special, matches the whole text. Linear in both; case as given.
#[must_use]
pub fn glob_matches(glob: &str, text: &str) -> bool {
    let mut parts = glob.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else { return rest.is_empty() };
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = rest.get(at + part.len()..).unwrap_or_default(),
            None => return false,
        }
    }
    rest.len() >= last.len() && rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs() {
        for (glob, text, expected) in [
            ("gpt-*", "gpt-4o", true),
            ("gpt-*", "gpt-", true),
            ("*", "", true),
            ("*mini*", "gpt-4o-mini", true),
            ("a*b*c", "a-b-c", true),
            ("a*a", "a", false),
            ("gpt-4o", "gpt-4o-mini", false),
            ("gpt-4o", "gpt-4o", true),
            ("", "x", false),
        ] {
            assert_eq!(glob_matches(glob, text), expected, "{glob} on {text}");
        }
    }
}
