//! What is asked: one failed attempt, from flags or from a JSON line.

use std::collections::BTreeMap;

use clap::ValueEnum;
use serde::{Deserialize, Deserializer};

use crate::classify::{AuthClass, TransportError};

/// One failed attempt as a person or a program describes it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Question {
    /// Echoed in the answer of a batch.
    pub id: Option<serde_json::Value>,
    /// Provider: a resource of the manifests, else an id that the catalog may know.
    #[serde(deserialize_with = "or_default")]
    pub provider: String,
    /// Connection; the first of the provider when it is not named.
    pub connection: Option<String>,
    /// Model as sent upstream.
    pub model: Option<String>,
    /// HTTP status; 0 or absent with a transport failure.
    pub status: u16,
    /// Response headers.
    #[serde(deserialize_with = "or_default")]
    pub headers: BTreeMap<String, String>,
    /// The body: text as it came, or a JSON value.
    pub body: serde_json::Value,
    /// How the transport failed.
    pub transport: Option<Transport>,
    /// Auth class, when no manifest declares it.
    pub auth_class: Option<Class>,
}

/// Reads null like an absent value.
fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(d: D) -> Result<T, D::Error> {
    Option::deserialize(d).map(Option::unwrap_or_default)
}

impl Question {
    /// The body as bytes.
    #[must_use]
    pub fn body(&self) -> Vec<u8> {
        match &self.body {
            serde_json::Value::Null => Vec::new(),
            serde_json::Value::String(text) => text.clone().into_bytes(),
            other => other.to_string().into_bytes(),
        }
    }
}

/// Transport failures by the names of the rules.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, ValueEnum)]
pub enum Transport {
    /// Name resolution or TCP connect.
    Connect,
    /// TLS.
    Tls,
    /// Reset.
    Reset,
    /// No answer in time.
    Timeout,
    /// A stream broke after its first content.
    StreamInterrupted,
    /// A stream had no content in time.
    StreamNotReady,
    /// The answer failed the quality check.
    Quality,
}

impl From<Transport> for TransportError {
    fn from(kind: Transport) -> Self {
        match kind {
            Transport::Connect => Self::Connect,
            Transport::Tls => Self::Tls,
            Transport::Reset => Self::Reset,
            Transport::Timeout => Self::Timeout,
            Transport::StreamInterrupted => Self::StreamInterrupted,
            Transport::StreamNotReady => Self::StreamNotReady,
            Transport::Quality => Self::Quality,
        }
    }
}

/// Auth classes; the spelling of the resources or that of the specification.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, ValueEnum)]
pub enum Class {
    /// Subscription accounts.
    #[serde(alias = "oauth")]
    #[value(name = "OAuth", alias = "oauth")]
    OAuth,
    /// Keys.
    #[serde(alias = "apikey")]
    #[value(name = "ApiKey", alias = "apikey")]
    ApiKey,
    /// Self-hosted servers.
    #[serde(alias = "local")]
    #[value(name = "Local", alias = "local")]
    Local,
}

impl From<Class> for AuthClass {
    fn from(class: Class) -> Self {
        match class {
            Class::OAuth => Self::OAuth,
            Class::ApiKey => Self::ApiKey,
            Class::Local => Self::Local,
        }
    }
}
