//! Exclusive leases: one client session owns one connection across requests (routing spec 9.6, decisions 6). Pure: time comes in.
//!
//! Only managed requests take the lock of the table; ordinary ones ask [`LeaseTable::held`], which reads an immutable map.

use std::cmp::Ordering;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::api::time::EpochMs;
use crate::snapshot::hex;

/// Owners whose last generation is remembered; the one unused for longest goes first, active ones never.
const MAX_OWNERS: usize = 10_000;
/// Shortest and longest lifetime, milliseconds.
const TTL_MS: std::ops::RangeInclusive<u64> = 1_000..=1_800_000;

/// The hash by which an owner is known: its token itself is never stored.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct OwnerHash(String);

impl OwnerHash {
    /// Hashes the value of the owner header: `vlo_` and 43 characters of base64url.
    ///
    /// # Errors
    /// `LEASE_CONTEXT_INVALID` for anything else.
    pub fn new(header: &str) -> Result<Self, LeaseError> {
        let rest = header.strip_prefix("vlo_").ok_or(LeaseError::ContextInvalid("X-OmniRoute-Lease-Owner"))?;
        if rest.len() == 43 && rest.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-') {
            Ok(Self(hex(&Sha256::digest(header.as_bytes()))))
        } else {
            Err(LeaseError::ContextInvalid("X-OmniRoute-Lease-Owner"))
        }
    }
}

/// Parses the generation header: a positive safe integer without leading zeros.
///
/// # Errors
/// `LEASE_CONTEXT_INVALID`.
pub fn parse_generation(header: &str) -> Result<u64, LeaseError> {
    let bad = LeaseError::ContextInvalid("X-OmniRoute-Lease-Generation");
    if header.starts_with('0') || !header.bytes().all(|b| b.is_ascii_digit()) {
        return Err(bad);
    }
    header.parse().ok().filter(|n| *n > 0 && *n < (1 << 53)).ok_or(bad)
}

/// How a lease stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum LeaseState {
    /// Owned.
    Active,
    /// Given back.
    Released,
    /// Not renewed in time.
    Expired,
    /// Ended by the gateway.
    Invalidated,
}

/// Why a lease ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum EndReason {
    /// The owner is done.
    OwnerExit,
    /// The client gave up.
    ClientCancelled,
    /// Not renewed in time.
    TtlExpired,
    /// The key may no longer use the connection.
    AuthorizationChanged,
    /// The key is gone.
    ManagedKeyRevoked,
    /// The connection is gone or switched off.
    ConnectionIneligible,
    /// The connection may not serve the model.
    ModelIneligible,
    /// The connection's quota is used up.
    QuotaUnavailable,
    /// The connection rests or is dead.
    HealthOrCooldown,
}

/// One lease, as its owner sees it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Lease {
    /// How it stands.
    pub state: LeaseState,
    /// Monotonic per owner.
    pub generation: u64,
    /// Grows when the generation moves to another connection (decisions 6).
    pub binding: u64,
    /// The connection it owns.
    pub connection: String,
    /// Name of the client key.
    pub key: String,
    /// When it was acquired.
    pub acquired: EpochMs,
    /// When it was last renewed.
    pub renewed: EpochMs,
    /// When it ends unless it is renewed.
    pub expires: EpochMs,
    /// Why it ended.
    pub end_reason: Option<EndReason>,
    #[serde(skip)]
    in_flight: u32,
}

impl Lease {
    fn live(&self, now: EpochMs) -> bool {
        self.state == LeaseState::Active && (self.in_flight > 0 || self.expires > now)
    }

    /// Its end where both are versions of the same lease: a request may have moved it. A renewal that only one has heard of counts alone,
    /// also when it is shorter than those before.
    fn latest_end(&self, other: &Self) -> EpochMs {
        match self.renewed.cmp(&other.renewed) {
            Ordering::Less => other.expires,
            Ordering::Equal => self.expires.max(other.expires),
            Ordering::Greater => self.expires,
        }
    }

    /// Whether `other` is this lease after it was given back or ended by the gateway: nothing revives it. What ran out elsewhere may have been
    /// renewed here.
    fn ended_as(&self, other: &Self) -> bool {
        let over = matches!(other.state, LeaseState::Released | LeaseState::Invalidated);
        over && self.state == LeaseState::Active && (self.generation, self.acquired) == (other.generation, other.acquired)
    }

    fn end(&mut self, state: LeaseState, reason: EndReason) {
        self.state = state;
        self.end_reason = Some(reason);
    }
}

/// Why a lease operation was refused; `code` and `status` are those of the specification.
#[derive(thiserror::Error, Clone, PartialEq, Eq, Debug)]
pub enum LeaseError {
    /// A header is malformed.
    #[error("header {0} is malformed: the owner is vlo_ and 43 base64url characters, the generation a positive integer")]
    ContextInvalid(&'static str),
    /// A header is missing.
    #[error("header {0} is missing: managed requests carry owner and generation of their lease")]
    ContextRequired(&'static str),
    /// The owner has no active lease.
    #[error("this owner has no active lease: acquire one first")]
    Required,
    /// Another generation is current, or the owner is active with another key.
    #[error("this generation of the lease is no longer current: acquire again")]
    FenceStale,
    /// The lease belongs to another key.
    #[error("the lease was acquired with another API key")]
    AuthorizationMismatch,
    /// The request would go to another connection.
    #[error("the lease does not own the connection that was selected: acquire again")]
    ConnectionMismatch,
    /// No eligible connection at all.
    #[error("no connection that this key may use can serve now")]
    NoEligibleConnection,
    /// Replicas share their leases, and the store in which they do cannot be asked.
    #[error("the store of leases is away: nobody can say who owns a connection; try again")]
    Unavailable,
    /// All eligible connections are owned by others.
    #[error("all {eligible} eligible connections are owned by other sessions")]
    Capacity {
        /// Earliest end of a foreign lease, whole seconds from now, 1–3,600.
        retry_after_s: u64,
        /// Eligible connections.
        eligible: usize,
    },
}

impl LeaseError {
    /// Machine-readable code.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::ContextInvalid(_) => "LEASE_CONTEXT_INVALID",
            Self::ContextRequired(_) => "LEASE_CONTEXT_REQUIRED",
            Self::Required => "LEASE_REQUIRED",
            Self::FenceStale => "LEASE_FENCE_STALE",
            Self::AuthorizationMismatch => "LEASE_AUTHORIZATION_MISMATCH",
            Self::ConnectionMismatch => "LEASE_CONNECTION_MISMATCH",
            Self::NoEligibleConnection => "LEASE_NO_ELIGIBLE_CONNECTION",
            Self::Unavailable => "LEASE_SERVICE_UNAVAILABLE",
            Self::Capacity { .. } => "LEASE_CAPACITY_UNAVAILABLE",
        }
    }

    /// HTTP status.
    #[must_use]
    pub const fn status(&self) -> u16 {
        match self {
            Self::ContextInvalid(_) | Self::ContextRequired(_) => 400,
            Self::Required | Self::FenceStale | Self::AuthorizationMismatch | Self::ConnectionMismatch => 409,
            Self::NoEligibleConnection | Self::Unavailable => 503,
            Self::Capacity { .. } => 429,
        }
    }
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Table {
    /// The newest lease of each owner.
    owners: BTreeMap<OwnerHash, Lease>,
    /// Owners in the order of their last change, for eviction.
    order: VecDeque<OwnerHash>,
}

impl Table {
    /// Requests in flight are known only where they run, and so is at first what their end adds to the lease.
    fn keep_running(&mut self, here: &Self) {
        for (owner, lease) in &mut self.owners {
            let Some(known) = here.owners.get(owner).filter(|known| known.generation == lease.generation) else { continue };
            lease.in_flight = known.in_flight;
            if known.binding == lease.binding && lease.state == LeaseState::Active && known.state == LeaseState::Active {
                lease.expires = lease.latest_end(known);
            }
        }
    }
}

/// All leases of a gateway.
#[derive(Debug, Default)]
pub struct LeaseTable {
    table: Mutex<Table>,
    held: ArcSwap<BTreeMap<String, (OwnerHash, EpochMs)>>,
}

/// Who asks.
#[derive(Clone, Copy, Debug)]
pub struct Caller<'a> {
    /// The owner.
    pub owner: &'a OwnerHash,
    /// Name of the client key.
    pub key: &'a str,
}

impl LeaseTable {
    /// Acquires, or extends the lease that this owner and key already have. `eligible` are the connections that may serve now, best first;
    /// the bound one stays bound as long as it is among them, otherwise the same generation moves to a free one.
    ///
    /// # Errors
    /// [`LeaseError::FenceStale`] when the owner is active with another key, [`LeaseError::Capacity`], [`LeaseError::NoEligibleConnection`].
    pub fn acquire(&self, caller: Caller<'_>, eligible: &[&str], ttl_ms: u64, now: EpochMs) -> Result<Lease, LeaseError> {
        let ttl_ms = ttl_ms.clamp(*TTL_MS.start(), *TTL_MS.end());
        let mut table = self.lock();
        table.expire(now);
        let previous = table.owners.get(caller.owner).cloned();
        if let Some(lease) = previous.as_ref().filter(|l| l.live(now)) {
            if lease.key != caller.key {
                return Err(LeaseError::FenceStale);
            }
            if eligible.contains(&lease.connection.as_str()) {
                let lease = Lease { renewed: now, expires: now.plus(ttl_ms), ..lease.clone() };
                return Ok(self.store(table, caller.owner, lease, now));
            }
        }
        if eligible.is_empty() {
            return Err(LeaseError::NoEligibleConnection);
        }
        let foreign = |name: &str| {
            table.owners.iter().find(|(owner, l)| *owner != caller.owner && l.connection == name && l.live(now)).map(|(_, l)| l.expires)
        };
        let Some(free) = eligible.iter().find(|name| foreign(name).is_none()) else {
            let earliest = eligible.iter().filter_map(|name| foreign(name)).min().unwrap_or(now);
            return Err(LeaseError::Capacity {
                retry_after_s: earliest.since(now).div_ceil(1_000).clamp(1, 3_600),
                eligible: eligible.len(),
            });
        };
        let lease = match previous {
            // The bound connection can no longer serve: the owner keeps its generation and learns of the move by the binding.
            Some(lease) if lease.live(now) => {
                Lease { connection: (*free).to_owned(), binding: lease.binding + 1, renewed: now, expires: now.plus(ttl_ms), ..lease }
            }
            other => Lease {
                state: LeaseState::Active,
                generation: other.as_ref().map_or(1, |l| l.generation + 1),
                binding: other.as_ref().map_or(1, |l| l.binding + 1),
                connection: (*free).to_owned(),
                key: caller.key.to_owned(),
                acquired: now,
                renewed: now,
                expires: now.plus(ttl_ms),
                end_reason: None,
                in_flight: 0,
            },
        };
        Ok(self.store(table, caller.owner, lease, now))
    }

    /// Extends a lease.
    ///
    /// # Errors
    /// [`LeaseError::FenceStale`] unless owner, generation and key are those of a live lease.
    pub fn renew(&self, caller: Caller<'_>, generation: u64, ttl_ms: u64, now: EpochMs) -> Result<Lease, LeaseError> {
        let mut table = self.lock();
        table.expire(now);
        let lease = table.current(caller, generation, now)?.clone();
        let lease = Lease { renewed: now, expires: now.plus(ttl_ms.clamp(*TTL_MS.start(), *TTL_MS.end())), ..lease };
        Ok(self.store(table, caller.owner, lease, now))
    }

    /// Gives a lease back; repeating it answers the same.
    ///
    /// # Errors
    /// [`LeaseError::FenceStale`] when owner, generation and key do not fit.
    pub fn release(&self, caller: Caller<'_>, generation: u64, reason: EndReason, now: EpochMs) -> Result<Lease, LeaseError> {
        let mut table = self.lock();
        table.expire(now);
        let lease =
            table.owners.get(caller.owner).filter(|l| l.generation == generation && l.key == caller.key).ok_or(LeaseError::FenceStale)?;
        let mut lease = lease.clone();
        if lease.state == LeaseState::Active {
            lease.end(LeaseState::Released, reason);
        }
        Ok(self.store(table, caller.owner, lease, now))
    }

    /// How a lease stands.
    ///
    /// # Errors
    /// [`LeaseError::FenceStale`] when owner, generation and key do not fit a live lease.
    pub fn status(&self, caller: Caller<'_>, generation: u64, now: EpochMs) -> Result<Lease, LeaseError> {
        let mut table = self.lock();
        table.expire(now);
        table.current(caller, generation, now).cloned()
    }

    /// The lease that a managed request runs under, checked in the order of the specification.
    ///
    /// # Errors
    /// [`LeaseError::Required`], [`LeaseError::FenceStale`], [`LeaseError::AuthorizationMismatch`].
    pub fn bound(&self, caller: Caller<'_>, generation: u64, now: EpochMs) -> Result<Lease, LeaseError> {
        let mut table = self.lock();
        table.expire(now);
        table.fence(caller, generation, now).cloned()
    }

    /// The last fence, right before the upstream call: counts the request as running under the lease, so that the lease does not expire under it.
    /// Every success is followed by exactly one [`Self::leave`].
    ///
    /// # Errors
    /// As [`Self::bound`], and [`LeaseError::ConnectionMismatch`].
    pub fn enter(&self, caller: Caller<'_>, generation: u64, connection: &str, now: EpochMs) -> Result<Lease, LeaseError> {
        let mut table = self.lock();
        table.expire(now);
        let mut lease = table.fence(caller, generation, now)?.clone();
        if lease.connection != connection {
            return Err(LeaseError::ConnectionMismatch);
        }
        lease.in_flight += 1;
        Ok(self.store(table, caller.owner, lease, now))
    }

    /// The end of a request that entered: the lease lives at least its lifetime from here.
    pub fn leave(&self, caller: Caller<'_>, generation: u64, ttl_ms: u64, now: EpochMs) {
        let table = self.lock();
        let Some(lease) = table.owners.get(caller.owner).filter(|l| l.generation == generation).cloned() else { return };
        let extended = now.plus(ttl_ms.clamp(*TTL_MS.start(), *TTL_MS.end()));
        let mut lease = Lease { in_flight: lease.in_flight.saturating_sub(1), ..lease };
        if lease.state == LeaseState::Active {
            lease.expires = lease.expires.max(extended);
        }
        self.store(table, caller.owner, lease, now);
    }

    /// Whether somebody else owns a connection right now: ordinary requests and other owners pass it over.
    #[must_use]
    pub fn held(&self, connection: &str, by_other_than: Option<&OwnerHash>, now: EpochMs) -> bool {
        self.held.load().get(connection).is_some_and(|(owner, expires)| *expires > now && Some(owner) != by_other_than)
    }

    /// Ends all leases for which `why` names a reason (a key was revoked, a connection is gone).
    pub fn invalidate(&self, why: impl Fn(&Lease) -> Option<EndReason>, now: EpochMs) {
        let mut table = self.lock();
        for lease in table.owners.values_mut().filter(|l| l.state == LeaseState::Active) {
            if let Some(reason) = why(lease) {
                lease.end(LeaseState::Invalidated, reason);
            }
        }
        self.publish(&table, now);
    }

    /// Live leases: count, for metrics.
    #[must_use]
    pub fn active(&self, now: EpochMs) -> usize {
        self.held.load().values().filter(|(_, expires)| *expires > now).count()
    }

    /// The table as JSON for the store; owners are hashes.
    ///
    /// # Errors
    /// Never for this type; the signature is serde's.
    pub fn export(&self) -> Result<Vec<u8>, serde_json::Error> {
        serde_json::to_vec(&*self.lock())
    }

    /// Takes over an exported table.
    ///
    /// # Errors
    /// Not a table of this shape.
    pub fn restore(&self, json: &[u8], now: EpochMs) -> Result<(), serde_json::Error> {
        let mut restored: Table = serde_json::from_slice(json)?;
        restored.expire(now);
        let mut table = self.lock();
        *table = restored;
        self.publish(&table, now);
        Ok(())
    }

    /// Takes over the table that all replicas share; what runs here goes on running.
    ///
    /// # Errors
    /// It is something else.
    pub fn adopt(&self, json: &[u8], now: EpochMs) -> Result<(), serde_json::Error> {
        let mut shared: Table = serde_json::from_slice(json)?;
        let mut table = self.lock();
        shared.keep_running(&table);
        shared.expire(now);
        *table = shared;
        self.publish(&table, now);
        Ok(())
    }

    /// A copy to try an operation on: the shared table, and what runs here.
    ///
    /// # Errors
    /// It is something else.
    pub fn copy_of(&self, json: &[u8], now: EpochMs) -> Result<Self, serde_json::Error> {
        let copy = Self::default();
        let mut shared: Table = serde_json::from_slice(json)?;
        shared.keep_running(&self.lock());
        shared.expire(now);
        *copy.lock() = shared;
        Ok(copy)
    }

    /// Adds what is known here of owners and `self` does not know, or knows from before: that is how a store that is new, or lost its memory,
    /// hears of it, and one that was restored from an older copy of what ended since. Where both have an owner for a connection, the one in
    /// `self` keeps it.
    pub fn join(&self, known: &Self, now: EpochMs) {
        let known = known.lock().clone();
        let mut table = self.lock();
        for (owner, lease) in &mut table.owners {
            if let Some(ended) = known.owners.get(owner).filter(|known| lease.ended_as(known)) {
                (lease.state, lease.end_reason) = (ended.state, ended.end_reason);
            }
        }
        let mut taken: BTreeMap<String, OwnerHash> =
            table.owners.iter().filter(|(_, l)| l.live(now)).map(|(owner, l)| (l.connection.clone(), owner.clone())).collect();
        for (owner, mut lease) in known.order.iter().filter_map(|owner| Some((owner, known.owners.get(owner)?.clone()))) {
            if table.owners.get(owner).is_some_and(|there| (there.generation, there.binding) >= (lease.generation, lease.binding)) {
                continue;
            }
            if lease.live(now) && taken.entry(lease.connection.clone()).or_insert_with(|| owner.clone()) != owner {
                lease.end(LeaseState::Invalidated, EndReason::ConnectionIneligible);
            }
            table.order.retain(|o| o != owner);
            table.order.push_back(owner.clone());
            table.owners.insert(owner.clone(), lease);
        }
        table.evict(now);
        self.publish(&table, now);
    }

    /// Moves the ends of leases in `self` to where they are in `known`: requests have run under them, or still do, for at least `ttl_ms`.
    pub fn extend(&self, known: &Self, ttl_ms: u64, now: EpochMs) {
        let known = known.lock().owners.clone();
        let mut table = self.lock();
        for (owner, lease) in &mut table.owners {
            let Some(here) = known.get(owner).filter(|here| here.generation == lease.generation) else { continue };
            if lease.state == LeaseState::Active && here.state == LeaseState::Active {
                // While a request runs, half a lifetime is always left: whole ones would be news all the time.
                let running = if here.in_flight > 0 && lease.expires < now.plus(ttl_ms / 2) { now.plus(ttl_ms) } else { EpochMs(0) };
                lease.expires = lease.latest_end(here).max(running);
            }
        }
        self.publish(&table, now);
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn store(&self, mut table: MutexGuard<'_, Table>, owner: &OwnerHash, lease: Lease, now: EpochMs) -> Lease {
        table.order.retain(|o| o != owner);
        table.order.push_back(owner.clone());
        table.owners.insert(owner.clone(), lease.clone());
        table.evict(now);
        self.publish(&table, now);
        lease
    }

    fn publish(&self, table: &Table, now: EpochMs) {
        // A running request keeps its lease alive, however long it takes: its end publishes the real deadline.
        let until = |l: &Lease| if l.in_flight > 0 { EpochMs(i64::MAX) } else { l.expires };
        let held = table.owners.iter().filter(|(_, l)| l.live(now)).map(|(o, l)| (l.connection.clone(), (o.clone(), until(l)))).collect();
        self.held.store(Arc::new(held));
    }
}

impl Table {
    fn expire(&mut self, now: EpochMs) {
        for lease in self.owners.values_mut().filter(|l| l.state == LeaseState::Active && !l.live(now)) {
            lease.end(LeaseState::Expired, EndReason::TtlExpired);
        }
    }

    fn current(&self, caller: Caller<'_>, generation: u64, now: EpochMs) -> Result<&Lease, LeaseError> {
        self.owners
            .get(caller.owner)
            .filter(|l| l.generation == generation && l.key == caller.key && l.live(now))
            .ok_or(LeaseError::FenceStale)
    }

    /// Owner, generation, key, in the order of the specification.
    fn fence(&self, caller: Caller<'_>, generation: u64, now: EpochMs) -> Result<&Lease, LeaseError> {
        let lease = self.owners.get(caller.owner).filter(|l| l.live(now)).ok_or(LeaseError::Required)?;
        if lease.generation != generation {
            return Err(LeaseError::FenceStale);
        }
        if lease.key != caller.key {
            return Err(LeaseError::AuthorizationMismatch);
        }
        Ok(lease)
    }

    fn evict(&mut self, now: EpochMs) {
        let mut passes = self.order.len();
        while self.owners.len() > MAX_OWNERS && passes > 0 {
            passes -= 1;
            let Some(oldest) = self.order.pop_front() else { return };
            if self.owners.get(&oldest).is_some_and(|l| l.live(now)) {
                self.order.push_back(oldest);
            } else {
                self.owners.remove(&oldest);
            }
        }
    }
}

#[cfg(test)]
#[path = "leases_tests.rs"]
mod tests;
