//! The five kinds of group `omniroute.dev`, shared types, conditions and reasons.
//!
//! The Rust types are the source of `crds/`: [`schema`] turns them into CustomResourceDefinitions exactly as an API server stores them.
//! A field that an environment variable can set has no schema default, because presence decides (environment < settings < connection,
//! decisions 8.1); its description states the effective default.

/// Points in time and Gateway API durations.
pub mod time;

/// `Combo`: a named virtual model.
pub mod combo;
/// What several kinds share: references, enums, CEL helpers.
pub mod common;
/// Condition types and reasons.
pub mod conditions;
/// `Connection`: one credential of a provider.
pub mod connection;
/// A duration as a field of a resource.
pub mod duration;
/// The part of `ResilienceSettings` that describes the gateway's workload.
pub mod gateway;
/// The candidate that was probably meant.
pub mod near;
/// `Provider`: one upstream vendor or gateway.
pub mod provider;
/// The objects of one namespace.
pub mod resources;
/// `OperatorErrorRule`: what an error of an upstream means.
pub mod rule;
/// The CustomResourceDefinitions.
pub mod schema;
/// `ResilienceSettings`: the gateway of a namespace.
pub mod settings;
/// Status of every kind.
pub mod status;

pub use combo::{Combo, ComboSpec};
pub use connection::{Connection, ConnectionSpec};
pub use duration::Duration;
pub use provider::{Provider, ProviderSpec};
pub use resources::Resources;
pub use rule::{OperatorErrorRule, OperatorErrorRuleSpec};
pub use settings::{ResilienceSettings, ResilienceSettingsSpec};

/// API group.
pub const GROUP: &str = "omniroute.dev";
/// Version.
pub const VERSION: &str = "v1alpha1";
/// `group/version`.
pub const API_VERSION: &str = "omniroute.dev/v1alpha1";

/// Label that makes a Secret a client key (value `true`, data key `key`).
pub const LABEL_API_KEY: &str = "omniroute.dev/api-key";
/// Annotation of a client key: what it may do, comma separated.
pub const ANNOTATION_SCOPES: &str = "omniroute.dev/scopes";
/// Annotation of a client key: the connections it may use, comma separated.
pub const ANNOTATION_ALLOWED_CONNECTIONS: &str = "omniroute.dev/allowed-connections";
/// Annotation of a client key: the combos and models it may ask for, comma separated.
pub const ANNOTATION_ALLOWED_MODELS: &str = "omniroute.dev/allowed-models";
/// Annotation of a Secret with an upstream credential: the hosts it may be sent to, comma separated (decisions 10.19).
pub const ANNOTATION_ALLOWED_HOSTS: &str = "omniroute.dev/allowed-hosts";
/// Annotation command: end the timers of a Connection or Provider.
pub const ANNOTATION_CLEAR_COOLDOWN: &str = "omniroute.dev/clear-cooldown";
/// Annotation command: also end terminal states, strikes and the breaker.
pub const ANNOTATION_RESET: &str = "omniroute.dev/reset";
