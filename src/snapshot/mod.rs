//! The compiled configuration of one gateway: what `compile` answers, what the config Secret carries, what a gateway runs.
//!
//! Everything is resolved here: durations are milliseconds, references are names that exist, defaults are merged. Lists are sorted by
//! name, so that the same resources in any order give byte-identical canonical JSON.

mod combo;
pub mod packed;
mod provider;
mod rule;
mod secret;
mod settings;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

pub use combo::*;
pub use provider::*;
pub use rule::*;
pub use secret::Secret;
pub use settings::*;

use crate::api::time::EpochMs;
pub use crate::protocol::Dialect;
pub use crate::protocol::quality::{JsonCondition, JsonPredicate, ValidateResponse};

/// The schema version that this binary writes; it reads this one and the one before (decisions 10.9).
pub const SCHEMA_VERSION: u32 = 1;

/// One immutable configuration. A gateway runs exactly one at a time.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Snapshot {
    /// Schema version of this document.
    pub schema_version: u32,
    /// Settings of the gateway as a whole.
    pub settings: Settings,
    /// Where replicas share state; `None` = each keeps its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state_store: Option<StateStore>,
    /// Providers by name.
    pub providers: Vec<Provider>,
    /// Connections by name; those without a usable credential are absent.
    pub connections: Vec<Connection>,
    /// Connections that exist but cannot be used (missing credential, invalid), with the reason, so that answers can name them.
    pub unusable_connections: Vec<UnusableConnection>,
    /// Combos by name.
    pub combos: Vec<Combo>,
    /// Operator rules in the order in which they are asked.
    pub rules: Vec<Rule>,
    /// Client keys.
    pub api_keys: Vec<ApiKey>,
    /// Commands by annotation, applied once each (decisions 10.13).
    pub commands: Vec<Command>,
    /// SHA-256 (hex, 16 characters) of what each object contributes, by `Kind/name` (decisions 10.4).
    pub fragments: BTreeMap<String, String>,
}

impl Snapshot {
    /// Canonical JSON: fixed field order, sorted maps and lists, no white space.
    ///
    /// # Errors
    /// Only if a value cannot be represented in JSON, which no field of this type can be.
    pub fn canonical_json(&self) -> Result<Vec<u8>, serde_json::Error> {
        serde_json::to_vec(self)
    }

    /// The hash by which a snapshot is known: hex SHA-256 of the canonical JSON.
    ///
    /// # Errors
    /// See [`Self::canonical_json`].
    pub fn hash(&self) -> Result<String, serde_json::Error> {
        Ok(hex(&Sha256::digest(self.canonical_json()?)))
    }

    /// Reads a snapshot.
    ///
    /// # Errors
    /// Says what is wrong: no JSON of this shape, or a schema version that this binary does not read.
    pub fn from_json(json: &[u8]) -> Result<Self, SnapshotError> {
        let snapshot: Self = serde_json::from_slice(json).map_err(SnapshotError::Parse)?;
        if !(SCHEMA_VERSION.saturating_sub(1)..=SCHEMA_VERSION).contains(&snapshot.schema_version) || snapshot.schema_version == 0 {
            return Err(SnapshotError::Version { found: snapshot.schema_version, reads: SCHEMA_VERSION });
        }
        Ok(snapshot)
    }
}

/// Why a snapshot was refused.
#[derive(thiserror::Error, Debug)]
pub enum SnapshotError {
    /// Not a snapshot.
    #[error("reading the snapshot: {0}")]
    Parse(#[source] serde_json::Error),
    /// Written by another version of the product.
    #[error(
        "reading the snapshot: schema version {found} is not supported, this gateway reads {reads} and the one before; upgrade the gateway image"
    )]
    Version {
        /// Version of the document.
        found: u32,
        /// Newest version that this binary reads.
        reads: u32,
    },
}

/// Lower-case hex of bytes.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut out, b| {
        out.push(char::from_digit(u32::from(b >> 4), 16).unwrap_or('0'));
        out.push(char::from_digit(u32::from(b & 15), 16).unwrap_or('0'));
        out
    })
}

/// A Redis or Valkey server in which replicas share state.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StateStore {
    /// Name of the ResilienceSettings that asks for it.
    pub settings: String,
    /// `redis://` or `rediss://`, with the password.
    pub url: Secret,
    /// PEM certificates to trust in place of the built-in roots.
    pub ca_bundle: Option<String>,
    /// What all keys of this gateway begin with.
    pub prefix: String,
}

/// A client key.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ApiKey {
    /// Name of the Secret.
    pub name: String,
    /// Hex SHA-256 of the key.
    pub sha256: String,
    /// Scopes it grants.
    pub scopes: Vec<KeyScope>,
    /// Connections it may use; `None` = all, an empty list = none.
    pub allowed_connections: Option<Vec<String>>,
    /// Combos and models (`PROVIDER/MODEL`, globs with `*`) it may ask for; `None` = all.
    pub allowed_models: Option<Vec<String>>,
}

/// What a client key may do.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum KeyScope {
    /// Send requests.
    Inference,
    /// Own a connection exclusively.
    LeaseExclusive,
    /// Read and clear state on the management port.
    Management,
    /// The operator's own token.
    Internal,
}

/// A command to the running gateway (annotation on a user object).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Command {
    /// Kind of the object.
    pub kind: CommandKind,
    /// Name of the object.
    pub name: String,
    /// What to do.
    pub command: CommandVerb,
    /// The annotation's value; a new value is a new command.
    pub value: String,
    /// When the compiler first saw this value; a pod ignores restored state older than this for the object.
    pub accepted_time: EpochMs,
}

/// Kinds that take commands.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum CommandKind {
    Connection,
    Provider,
}

/// Commands.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum CommandVerb {
    /// `omniroute.dev/clear-cooldown`: timers end; terminal states stay.
    ClearCooldown,
    /// `omniroute.dev/reset`: also terminal states, strikes, breaker.
    Reset,
}
