//! Condition types and reasons (interface.md 8).

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One condition; the same shape and schema as `metav1.Condition`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Type of condition in CamelCase or in foo.example.com/CamelCase.
    #[serde(rename = "type")]
    #[schemars(
        length(max = 316),
        regex(
            pattern = r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$"
        )
    )]
    pub type_: String,
    /// Status of the condition, one of True, False, Unknown.
    #[schemars(extend("enum" = ["True", "False", "Unknown"]))]
    pub status: String,
    /// Generation of the object that the condition was set for.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 9_007_199_254_740_991_i64))]
    pub observed_generation: Option<i64>,
    /// Last time the condition changed from one status to another.
    #[schemars(extend("format" = "date-time", "maxLength" = 64))]
    pub last_transition_time: String,
    /// Reason of the last transition as one CamelCase word.
    #[schemars(length(min = 1, max = 1024), regex(pattern = r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"))]
    pub reason: String,
    /// Details of the transition for people.
    #[schemars(length(max = 32768))]
    pub message: String,
}

/// The condition types.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ConditionType {
    /// Accepted, references resolved, running in every ready gateway pod.
    Ready,
    /// Part of the snapshot that every ready gateway pod runs.
    Programmed,
    /// Can serve right now.
    Available,
    /// Being worked on; only while true.
    Reconciling,
    /// Needs the hand of a person; only while true.
    Stalled,
}

impl ConditionType {
    /// The wire name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "Ready",
            Self::Programmed => "Programmed",
            Self::Available => "Available",
            Self::Reconciling => "Reconciling",
            Self::Stalled => "Stalled",
        }
    }
}

impl fmt::Display for ConditionType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Declares an enum of reasons with its wire names and one line of documentation each, so that docs are generated from it.
macro_rules! reasons {
    ($(#[$meta:meta])* $name:ident { $($(#[doc = $doc:literal])+ $variant:ident,)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum $name {
            $($(#[doc = $doc])+ $variant,)+
        }

        impl $name {
            /// Every reason with its description, for the reference page.
            pub const ALL: &'static [(Self, &'static str)] = &[$((Self::$variant, concat!($($doc),+))),+];

            /// The wire name.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => stringify!($variant)),+ }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

reasons! {
    /// Reasons of `Ready`.
    ReadyReason {
        /// Accepted, resolved and running.
        Accepted,
        /// Being worked on, or not running in every gateway pod yet.
        Progressing,
        /// The object contradicts itself, or cannot be read; the message names the field.
        InvalidSpec,
        /// The Provider that it names does not exist.
        ProviderNotFound,
        /// A Connection that it names does not exist.
        ConnectionNotFound,
        /// A Combo that it names does not exist.
        ComboNotFound,
        /// The Secret that it names does not exist.
        SecretNotFound,
        /// The Secret has no such key.
        SecretKeyNotFound,
        /// The credential is empty or blank.
        CredentialMissing,
        /// Another, older object has the same model name or key.
        DuplicateName,
        /// Combos refer to each other in a circle.
        CycleDetected,
        /// Another, older object of the same purpose is in force, or another installation of the operator has claimed the namespace.
        Conflict,
        /// An object with a name that the operator needs belongs to somebody else; rename or delete it.
        NameConflict,
        /// The namespace has no ResilienceSettings.
        NoGateway,
        /// Reserved, and given by nothing in this version: every field does what it says. It would name a field whose feature does not exist yet.
        NotImplemented,
        /// The rule can never fire; the message says what stands before it.
        NeverMatches,
        /// The configuration of the namespace does not fit into a Secret; the last good one stays in force. Split the namespace.
        SnapshotTooLarge,
        /// The operator lacks a right over an object of the gateway; compare its role with `config/rbac`.
        Forbidden,
        /// The API server or an admission policy refuses an object of the gateway; the message quotes it.
        Rejected,
        /// The API server failed at an object of the gateway; it is tried again.
        ApiError,
        /// An object of the gateway could not be written as JSON, which is a defect.
        EncodeFailed,
        /// The operator's node gave no random bytes for a token.
        RandomFailed,
    }
}

reasons! {
    /// Reasons of `Programmed`.
    ProgrammedReason {
        /// Every ready gateway pod runs it.
        Programmed,
        /// No gateway pod is ready.
        NoReadyGateway,
        /// Some ready gateway pods do not run it yet.
        Pending,
        /// The gateway refused the snapshot and keeps the last good one.
        SnapshotRefused,
    }
}

reasons! {
    /// Reasons of `Available`.
    AvailableReason {
        /// It can serve.
        Active,
        /// It rests until a deadline.
        CoolingDown,
        /// The breaker of the provider is open.
        BreakerOpen,
        /// The account is closed.
        Banned,
        /// The credential is no longer accepted.
        Expired,
        /// The account has no money.
        CreditsExhausted,
        /// No connection can serve.
        AllConnectionsUnavailable,
        /// No target can serve.
        AllTargetsUnavailable,
        /// No gateway pod reports.
        Unknown,
    }
}
