//! The wire protocols and the endpoints that speak them.

use serde::{Deserialize, Serialize};

/// The wire protocols a provider speaks and a client may use.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Dialect {
    /// OpenAI chat completions.
    ChatCompletions,
    /// OpenAI responses.
    Responses,
    /// Anthropic messages.
    Messages,
    /// OpenAI embeddings.
    Embeddings,
}

impl Dialect {
    /// The name used in manifests, messages and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::ChatCompletions => "ChatCompletions",
            Self::Responses => "Responses",
            Self::Messages => "Messages",
            Self::Embeddings => "Embeddings",
        }
    }
}

/// One operation of a dialect: what a client calls and what is called upstream.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Endpoint {
    /// `POST /v1/chat/completions`.
    ChatCompletions,
    /// `POST /v1/responses`.
    Responses,
    /// `POST /v1/messages`.
    Messages,
    /// `POST /v1/messages/count_tokens`.
    CountTokens,
    /// `POST /v1/embeddings`.
    Embeddings,
}

impl Endpoint {
    /// All of them, in the order of their discriminants.
    pub const ALL: [Self; 5] = [Self::ChatCompletions, Self::Responses, Self::Messages, Self::CountTokens, Self::Embeddings];

    /// The dialect that a provider must speak to serve it.
    #[must_use]
    pub const fn dialect(self) -> Dialect {
        match self {
            Self::ChatCompletions => Dialect::ChatCompletions,
            Self::Responses => Dialect::Responses,
            Self::Messages | Self::CountTokens => Dialect::Messages,
            Self::Embeddings => Dialect::Embeddings,
        }
    }

    /// What is appended to a provider's base URL (interface.md 2).
    #[must_use]
    pub const fn path(self) -> &'static str {
        match self {
            Self::ChatCompletions => "/chat/completions",
            Self::Responses => "/responses",
            Self::Messages => "/messages",
            Self::CountTokens => "/messages/count_tokens",
            Self::Embeddings => "/embeddings",
        }
    }

    /// The endpoint behind a path of the gateway (`/v1/chat/completions`).
    #[must_use]
    pub fn from_path(path: &str) -> Option<Self> {
        let rest = path.strip_prefix("/v1")?;
        Self::ALL.into_iter().find(|e| e.path() == rest)
    }

    /// True where an answer may be a stream.
    #[must_use]
    pub const fn may_stream(self) -> bool {
        matches!(self, Self::ChatCompletions | Self::Responses | Self::Messages)
    }

    /// The label for metrics and logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::ChatCompletions => "chat_completions",
            Self::Responses => "responses",
            Self::Messages => "messages",
            Self::CountTokens => "count_tokens",
            Self::Embeddings => "embeddings",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_endpoint_is_found_by_its_own_path_only() {
        for endpoint in Endpoint::ALL {
            assert_eq!(Endpoint::from_path(&format!("/v1{}", endpoint.path())), Some(endpoint));
        }
        for path in ["/v1", "/v1/models", "/chat/completions", "/v1/chat/completions/", "/v1//messages"] {
            assert_eq!(Endpoint::from_path(path), None, "{path}");
        }
    }
}
