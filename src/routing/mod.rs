//! Which target of which combo serves a request, in which order, and what happens after a failure. Pure: the present, the clock and
//! randomness come in as values.
//!
//! [`Router`] is built once per snapshot. [`Router::resolve_for`] turns the model that a client asks for into a combo or a direct target,
//! [`Walk`] takes the request over the plan, one dispatch at a time, and ends with an [`Answer`] when nothing served.

mod accounts;
mod answers;
mod attempts;
mod eligible;
mod exhaustion;
mod expand;
mod filter;
mod latency;
pub mod leases;
mod live;
mod order;
mod plan;
mod quota;
mod random;
mod request;
mod resolve;
pub mod strategies;
mod topology;
mod wait;

pub use accounts::Accounts;
pub use answers::*;
pub use attempts::{Dispatch, Entered, Failure, Hop, Step, TOTAL_CEILING_MS, Walk};
pub use expand::too_deep;
pub use live::{AllWell, Exclusion, ExclusionReason, Live, Load};
pub use plan::{Plan, Planned};
pub use quota::{Quota, QuotaWindow, WindowKind};
pub use random::{Random, Seeded};
pub use request::{Budget, Inner, KeyPolicy, Needs, Request, glob_matches};
pub use resolve::{Part, Resolved};
pub use strategies::Strategy;
pub use topology::{ConnectionNode, Leaf, ProviderNode, Router, Unit, UnitKind};
pub use wait::Patience;
