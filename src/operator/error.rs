//! What can go wrong while the operator talks to the API server, and what to do about it.

use std::time::Duration;

use kube::core::Status;

/// A failed step of the operator. Each variant says what was being attempted.
#[derive(thiserror::Error, Debug)]
pub enum Error {
    /// A call to the API server failed.
    #[error("{doing}: {source}")]
    Api {
        /// What was attempted (`applying Deployment team-a/omniroute-gateway`).
        doing: String,
        /// The client's error.
        #[source]
        source: Box<kube::Error>,
    },
    /// A call did not answer in time.
    #[error("{doing}: no answer within {} s", after.as_secs())]
    Timeout {
        /// What was attempted.
        doing: String,
        /// The limit.
        after: Duration,
    },
    /// This replica does not hold the lease (any more), so it must not write.
    #[error("{doing}: not written, this replica is not the leader")]
    NotLeader {
        /// What was attempted.
        doing: String,
    },
    /// An object of a name that the gateway needs belongs to somebody else.
    #[error(
        "{kind} `{name}` exists and is not controlled by ResilienceSettings `{settings}`; it is left alone: rename or delete it, the gateway needs this name"
    )]
    NameConflict {
        /// Kind of the foreign object.
        kind: String,
        /// Its name.
        name: String,
        /// Our settings object.
        settings: String,
    },
    /// Another installation has claimed the namespace, and the caches do not show it yet.
    #[error("namespace `{namespace}` was claimed by the operator installation `{by}` a moment ago")]
    Claimed {
        /// The namespace.
        namespace: String,
        /// Whose it is.
        by: String,
    },
    /// A Secret of the name under which refreshed tokens are kept belongs to somebody else.
    #[error(
        "Secret `{name}` exists and is not controlled by Connection `{connection}`; it is left alone: rename or delete it, refreshed tokens need this name"
    )]
    ForeignTokens {
        /// The Secret.
        name: String,
        /// Whose tokens are not kept.
        connection: String,
    },
    /// A child still belongs to a ResilienceSettings that was deleted; the garbage collector is about to remove it.
    #[error("{kind} `{name}` belongs to a ResilienceSettings before `{settings}` and is being removed")]
    Predecessor {
        /// Kind of the child.
        kind: String,
        /// Its name.
        name: String,
        /// Our settings object.
        settings: String,
    },
    /// A value could not be encoded; names the object.
    #[error("encoding {what}: {source}")]
    Encode {
        /// What was encoded.
        what: String,
        /// Why not.
        #[source]
        source: serde_json::Error,
    },
    /// The operating system gave no random bytes.
    #[error("drawing {what} from the operating system's random source: {message}")]
    Random {
        /// What was drawn.
        what: &'static str,
        /// Why not.
        message: String,
    },
    /// A socket of the operator itself failed.
    #[error("{doing}: {source}")]
    Io {
        /// What was attempted.
        doing: String,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
}

/// What to do after a failed step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Retry {
    /// Again at once, after the caches have caught up (a stale resourceVersion).
    Soon,
    /// Again with growing pauses.
    Backoff,
    /// Only after something changes: the same call would fail again.
    OnChange,
}

impl Error {
    /// Wraps a client error with what was attempted.
    pub fn api(doing: impl Into<String>, source: kube::Error) -> Self {
        Self::Api { doing: doing.into(), source: Box::new(source) }
    }

    /// The API server's own words, when it answered at all.
    #[must_use]
    pub fn status(&self) -> Option<&Status> {
        match self {
            Self::Api { source, .. } => match source.as_ref() {
                kube::Error::Api(status) => Some(status),
                _ => None,
            },
            _ => None,
        }
    }

    /// Whether nothing can be made in the namespace any more: it is on its way out, or gone.
    #[must_use]
    pub fn is_namespace_gone(&self) -> bool {
        let ends = |s: &Status| {
            let causes = s.details.as_ref().map_or(&[][..], |details| &details.causes);
            s.is_forbidden() && causes.iter().any(|cause| cause.reason == "NamespaceTerminating")
        };
        self.status().is_some_and(|s| s.is_not_found() || ends(s))
    }

    /// CamelCase reason for events and conditions.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NotLeader { .. } => "NotLeader",
            Self::NameConflict { .. } | Self::ForeignTokens { .. } => "NameConflict",
            Self::Predecessor { .. } => "Progressing",
            Self::Claimed { .. } => "StaleObject",
            Self::Encode { .. } => "EncodeFailed",
            Self::Random { .. } => "RandomFailed",
            Self::Io { .. } => "SocketFailed",
            Self::Timeout { .. } => "ApiTimeout",
            Self::Api { .. } => match self.status() {
                Some(s) if s.is_forbidden() => "Forbidden",
                Some(s) if s.is_conflict() || s.is_already_exists() => "StaleObject",
                Some(s) if s.is_invalid() => "Rejected",
                Some(s) if s.is_not_found() => "NotFound",
                Some(_) => "ApiError",
                None => "ApiUnreachable",
            },
        }
    }

    /// What to do next.
    #[must_use]
    pub fn retry(&self) -> Retry {
        match self {
            Self::NotLeader { .. } | Self::NameConflict { .. } | Self::ForeignTokens { .. } | Self::Encode { .. } => Retry::OnChange,
            Self::Claimed { .. } => Retry::Soon,
            Self::Predecessor { .. } | Self::Random { .. } | Self::Io { .. } | Self::Timeout { .. } => Retry::Backoff,
            Self::Api { .. } => match self.status() {
                Some(s) if s.is_conflict() || s.is_already_exists() || s.is_not_found() || s.code == 410 => Retry::Soon,
                // 403 and 422 heal when somebody grants a role or a policy changes, of which no watch tells us.
                _ => Retry::Backoff,
            },
        }
    }
}

/// Longest wait for a read or an ungated call (decisions 10.8, checklist 53).
pub const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// Longest wait for a write. Shorter than the time between the leader's own write deadline and the end of its lease, so that a
/// write that was started in time cannot land in the term of the next leader.
pub const WRITE_TIMEOUT: Duration = Duration::from_secs(4);

/// Runs one call to the API server with a limit.
///
/// # Errors
/// The call's error or [`Error::Timeout`].
pub async fn call<T>(doing: impl Fn() -> String, limit: Duration, call: impl Future<Output = kube::Result<T>>) -> Result<T, Error> {
    match tokio::time::timeout(limit, call).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(Error::api(doing(), error)),
        Err(_) => Err(Error::Timeout { doing: doing(), after: limit }),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn api(code: u16, reason: &str) -> Error {
        Error::api("applying Role a/b", kube::Error::Api(Status::failure("no", reason).with_code(code).boxed()))
    }

    #[test]
    fn a_namespace_that_ends_is_told_from_a_missing_right() {
        let ends = json!({"code": 403, "reason": "Forbidden", "details": {"causes": [{"reason": "NamespaceTerminating", "message": "m", "field": "f"}]}});
        let ends: Status = serde_json::from_value(ends).unwrap();
        let ends = Error::api("applying Secret a/b", kube::Error::Api(ends.boxed()));
        let gone = [ends, api(404, "NotFound"), api(403, "Forbidden"), api(409, "Conflict")].map(|error| error.is_namespace_gone());
        assert_eq!(gone, [true, true, false, false]);
    }

    #[test]
    fn every_answer_has_an_action() {
        for (error, reason, retry) in [
            (api(403, "Forbidden"), "Forbidden", Retry::Backoff),
            (api(409, "Conflict"), "StaleObject", Retry::Soon),
            (api(409, "AlreadyExists"), "StaleObject", Retry::Soon),
            (api(422, "Invalid"), "Rejected", Retry::Backoff),
            (api(404, "NotFound"), "NotFound", Retry::Soon),
            (api(410, "Expired"), "ApiError", Retry::Soon),
            (api(429, "TooManyRequests"), "ApiError", Retry::Backoff),
            (api(500, "InternalError"), "ApiError", Retry::Backoff),
            (Error::Timeout { doing: String::new(), after: CALL_TIMEOUT }, "ApiTimeout", Retry::Backoff),
            (Error::NameConflict { kind: "Role".into(), name: "x".into(), settings: "default".into() }, "NameConflict", Retry::OnChange),
        ] {
            assert_eq!((error.reason(), error.retry()), (reason, retry), "{error}");
        }
    }
}
