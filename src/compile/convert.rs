//! Types of the API -> types of the snapshot, where they only differ in their room.

use crate::api::common as from;
use crate::api::provider as fromp;
use crate::{classify, snapshot};

macro_rules! same {
    ($from:ty => $to:ty { $($variant:ident),+ $(,)? }) => {
        impl From<$from> for $to {
            fn from(value: $from) -> Self {
                match value { $(<$from>::$variant => Self::$variant),+ }
            }
        }
    };
}

same!(from::AuthClass => classify::AuthClass { OAuth, ApiKey, Local });
same!(from::Dialect => snapshot::Dialect { ChatCompletions, Responses, Messages, Embeddings });
same!(from::RetryHints => classify::RetryHints { None, Typed, All });
same!(fromp::AccountStrategy => snapshot::AccountStrategy { FillFirst, RoundRobin, P2C, Weighted, Random, LeastUsed });
same!(fromp::Feature => snapshot::Feature { Tools, Vision, Reasoning, StructuredOutput });

same!(crate::api::combo::Strategy => snapshot::Strategy {
    Priority, Weighted, RoundRobin, ContextRelay, FillFirst, P2C, Random, LeastUsed, CostOptimized, ResetAware, ResetWindow, Headroom, QuotaWeighted,
    StrictRandom, Auto, Lkgp, ContextOptimized, CacheOptimized, Fusion, Pipeline,
});

impl From<&fromp::UpstreamAuth> for snapshot::UpstreamAuth {
    fn from(value: &fromp::UpstreamAuth) -> Self {
        match (value.scheme, &value.header) {
            (fromp::AuthScheme::Header, Some(name)) => Self::Header(name.to_ascii_lowercase()),
            (fromp::AuthScheme::None, _) => Self::None,
            _ => Self::Bearer,
        }
    }
}

/// A bounded integer of the API, which the schema keeps from being negative.
pub(super) fn unsigned(value: i32) -> u32 {
    u32::try_from(value).unwrap_or(0)
}
