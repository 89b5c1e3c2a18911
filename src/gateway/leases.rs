//! Exclusive leases on the wire (routing spec 9.6, decisions 6): `POST /api/v1/session-leases`, and the fences of managed requests. The table
//! itself is [`crate::routing::leases`].

use std::sync::Arc;
use std::time::Duration;

use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Response};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout_at};

use super::answer::Refusal;
use super::auth::{AuthError, Caller};
use super::body::Body;
use super::config::Loaded;
use super::live::Present;
use super::metrics::Origin;
use super::pipeline::Shared;
use super::service::{Answered, Worker};
use super::shared::{Leases, SharedError};
use super::{Gateway, clock, ending};
use crate::api::time::EpochMs;
use crate::protocol::Endpoint;
use crate::routing::leases::{Caller as Owner, EndReason, Lease, LeaseError, LeaseState, LeaseTable, OwnerHash, parse_generation};
use crate::routing::{Request, Resolved};
use crate::snapshot::KeyScope;

/// Names the owner of a lease; only its hash is kept.
static OWNER: HeaderName = HeaderName::from_static("x-omniroute-lease-owner");
/// Names the generation that a managed request runs under.
static GENERATION: HeaderName = HeaderName::from_static("x-omniroute-lease-generation");
/// Longest wait for a free connection.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// The lease that a request runs under.
#[derive(Clone, Debug)]
pub(super) struct Managed {
    pub owner: OwnerHash,
    pub generation: u64,
    key: String,
}

impl Managed {
    fn caller(&self) -> Owner<'_> {
        Owner { owner: &self.owner, key: &self.key }
    }

    /// The last fence, right before the upstream call. The guard keeps the lease from expiring under the request.
    pub fn enter(&self, gateway: &Arc<Gateway>, connection: &str, ttl_ms: u64) -> Result<Running, LeaseError> {
        let lease = gateway.leases().enter(self.caller(), self.generation, connection, clock::now())?;
        Ok(Running { managed: self.clone(), gateway: Arc::clone(gateway), ttl_ms, binding: lease.binding })
    }
}

/// A request that runs under a lease.
#[derive(Debug)]
pub(super) struct Running {
    managed: Managed,
    gateway: Arc<Gateway>,
    ttl_ms: u64,
    /// See [`Lease::binding`].
    pub binding: u64,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.gateway.leases().leave(self.managed.caller(), self.managed.generation, self.ttl_ms, clock::now());
        self.gateway.leases_changed();
        self.gateway.shared().news();
    }
}

/// Does an operation on the leases: here, or in the store that replicas share.
async fn on_table<T>(gateway: &Gateway, operation: impl Fn(&LeaseTable, EpochMs) -> T) -> Result<T, Refusal> {
    match gateway.shared().leases() {
        Leases::Alone => Ok(operation(gateway.leases(), clock::now())),
        Leases::Shared(session) => session.with_leases(gateway, operation).await.map_err(|error| unavailable(&error)),
        Leases::Away => Err(refusal(&LeaseError::Unavailable)),
    }
}

/// Asks the leases something that changes none, here or in the store: any number of requests at once.
async fn ask_table<T>(gateway: &Gateway, question: impl Fn(&LeaseTable, EpochMs) -> T) -> Result<T, Refusal> {
    match gateway.shared().leases() {
        Leases::Alone => Ok(question(gateway.leases(), clock::now())),
        Leases::Shared(session) => session.ask_leases(gateway, question).await.map_err(|error| unavailable(&error)),
        Leases::Away => Err(refusal(&LeaseError::Unavailable)),
    }
}

fn unavailable(error: &SharedError) -> Refusal {
    tracing::warn!(%error, "an operation on leases failed");
    refusal(&LeaseError::Unavailable)
}

/// The lease that the headers of an inference request name, if any, and whether the key may have one.
pub(super) fn managed(headers: &HeaderMap, caller: Caller<'_>) -> Result<Option<Managed>, Refusal> {
    let Some(owner) = headers.get(&OWNER) else {
        return match headers.get(&GENERATION) {
            Some(_) => Err(refusal(&LeaseError::ContextRequired("X-OmniRoute-Lease-Owner"))),
            None => Ok(None),
        };
    };
    entitled(caller)?;
    let owner = owner_of(owner)?;
    let generation = headers.get(&GENERATION).ok_or(LeaseError::ContextRequired("X-OmniRoute-Lease-Generation"));
    let generation = generation.and_then(|value| parse_generation(value.to_str().unwrap_or_default())).map_err(|error| refusal(&error))?;
    Ok(Some(Managed { owner, generation, key: caller.name.to_owned() }))
}

fn owner_of(value: &HeaderValue) -> Result<OwnerHash, Refusal> {
    OwnerHash::new(value.to_str().unwrap_or_default()).map_err(|error| refusal(&error))
}

/// Leases are for keys that have the scope and name the connections they may own.
fn entitled(caller: Caller<'_>) -> Result<(), Refusal> {
    let Some(key) = caller.key.filter(|key| key.scopes.contains(&KeyScope::LeaseExclusive)) else {
        return Err(refuse(403, "LEASE_SCOPE_REQUIRED", "the API key has no scope `lease:exclusive`"));
    };
    if key.allowed_connections.as_ref().is_none_or(Vec::is_empty) {
        let message = "a key with leases must name its connections in the annotation `omniroute.dev/allowed-connections`";
        return Err(refuse(403, "LEASE_KEY_POLICY_INVALID", message));
    }
    Ok(())
}

/// The connection that a managed request goes to. When the bound one can no longer serve, the same generation moves to a free one.
pub(super) async fn bind(shared: &Shared, managed: &Managed, resolved: &Resolved, request: &Request) -> Result<usize, Refusal> {
    let (gateway, loaded) = (shared.gateway(), &shared.loaded);
    let lease = ask_table(gateway, |table, now| table.bound(managed.caller(), managed.generation, now)).await?;
    let lease = lease.map_err(|error| refusal(&error))?;
    let eligible = eligible(shared, resolved, request);
    let lease = if eligible.iter().any(|name| **name == lease.connection) {
        lease
    } else {
        let names: Vec<&str> = eligible.iter().map(AsRef::as_ref).collect();
        let ttl = loaded.snapshot.settings.session_lease_ttl_ms;
        let moved = on_table(gateway, |table, now| table.acquire(managed.caller(), &names, ttl, now)).await?;
        gateway.leases_changed();
        match moved {
            Ok(moved) => moved,
            // Nothing is free or nothing is eligible: the bound connection says best what is wrong.
            Err(LeaseError::NoEligibleConnection | LeaseError::Capacity { .. }) => lease,
            Err(error) => return Err(refusal(&error)),
        }
    };
    loaded.by_name.get(lease.connection.as_str()).copied().ok_or_else(|| refusal(&LeaseError::NoEligibleConnection))
}

/// The connections that could serve now, whoever owns them.
fn eligible(shared: &Shared, resolved: &Resolved, request: &Request) -> Vec<Arc<str>> {
    let request = Request { only_connection: None, ..request.clone() };
    shared.loaded.router.eligible(resolved, &request, &Present { shared, ignore_leases: true }, clock::now())
}

/// Bodies of the endpoint.
#[derive(Deserialize)]
#[serde(tag = "action", rename_all = "lowercase", rename_all_fields = "camelCase")]
enum Action {
    Acquire {
        model: String,
        #[serde(default)]
        wait_ms: u64,
    },
    Renew {
        generation: u64,
    },
    Release {
        generation: u64,
        reason: Reason,
    },
    Status {
        generation: u64,
    },
}

#[derive(Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
enum Reason {
    OwnerExit,
    ClientCancelled,
}

/// Who may come here at all: the codes of leases differ from those of inference.
pub(super) fn authenticate<'a>(loaded: &'a Loaded, headers: &HeaderMap) -> Result<Caller<'a>, Refusal> {
    let caller = loaded.keys.authenticate(headers, KeyScope::LeaseExclusive).map_err(|error| {
        let code = match error {
            AuthError::Missing => "LEASE_AUTHENTICATION_REQUIRED",
            AuthError::Unknown => "LEASE_API_KEY_INVALID",
            AuthError::Scope => "LEASE_SCOPE_REQUIRED",
        };
        refuse(error.status(), code, &error.to_string())
    })?;
    entitled(caller)?;
    match headers.get(CONTENT_TYPE).and_then(|v| v.to_str().ok()) {
        Some(value) if value.to_ascii_lowercase().starts_with("application/json") => Ok(caller),
        _ => Err(refuse(415, "LEASE_CONTENT_TYPE_REQUIRED", "send application/json")),
    }
}

/// Answers `POST /api/v1/session-leases`.
pub(super) async fn answer(
    worker: &Arc<Worker>,
    loaded: &Arc<Loaded>,
    caller: Caller<'_>,
    parts: &Parts,
    body: &[u8],
) -> Result<Answered, Refusal> {
    let owner = parts.headers.get(&OWNER).ok_or_else(|| refusal(&LeaseError::ContextRequired("X-OmniRoute-Lease-Owner")))?;
    let owner = owner_of(owner)?;
    let action: Action = serde_json::from_slice(body).map_err(|error| refuse(400, "LEASE_ACTION_INVALID", &error.to_string()))?;
    let gateway = &worker.gateway;
    let who = Owner { owner: &owner, key: caller.name };
    let ttl = loaded.snapshot.settings.session_lease_ttl_ms;
    let lease = match action {
        Action::Acquire { model, wait_ms } => {
            return acquire(worker, loaded, caller, &owner, &model, wait_ms).await.map(|lease| shown(&lease, None));
        }
        Action::Renew { generation } => on_table(gateway, |table, now| table.renew(who, generation, ttl, now)).await?,
        Action::Release { generation, reason } => {
            let reason = match reason {
                Reason::OwnerExit => EndReason::OwnerExit,
                Reason::ClientCancelled => EndReason::ClientCancelled,
            };
            on_table(gateway, |table, now| table.release(who, generation, reason, now)).await?
        }
        Action::Status { generation } => {
            let lease = ask_table(gateway, |table, now| table.status(who, generation, now)).await?.map_err(|error| refusal(&error))?;
            let provider = loaded.by_name.get(lease.connection.as_str()).and_then(|at| loaded.snapshot.connections.get(*at));
            let label = json!({"displayName": lease.connection, "provider": provider.map(|c| &c.provider)});
            return Ok(shown(&lease, Some(label)));
        }
    };
    gateway.leases_changed();
    lease.map(|lease| shown(&lease, None)).map_err(|error| refusal(&error))
}

async fn acquire(
    worker: &Arc<Worker>,
    loaded: &Arc<Loaded>,
    caller: Caller<'_>,
    owner: &OwnerHash,
    model: &str,
    wait_ms: u64,
) -> Result<Lease, Refusal> {
    let gateway = &worker.gateway;
    let resolved = loaded.router.resolve_for(model, caller.policy).map_err(|answer| match answer.status {
        404 => refuse(400, "LEASE_MODEL_INVALID", &answer.message),
        _ => ending::refusal(&answer),
    })?;
    let managed = Managed { owner: owner.clone(), generation: 0, key: caller.name.to_owned() };
    let deadline = Instant::now() + Duration::from_millis(wait_ms).min(MAX_WAIT);
    loop {
        let changed = gateway.lease_changes.notified();
        tokio::pin!(changed);
        // Registered before the look, so that a release in between is not missed.
        changed.as_mut().enable();
        let now = clock::now();
        let shared = Shared {
            worker: Arc::clone(worker),
            loaded: Arc::clone(loaded),
            endpoint: Endpoint::ChatCompletions,
            single_call: false,
            caller: caller.name.to_owned(),
            session: None,
            lease: Some(managed.clone()),
            relay: None,
        };
        // A lease is on the connection, whatever dialect its requests will have: each provider is asked in one that it speaks.
        let mut names: Vec<Arc<str>> = Vec::new();
        for endpoint in Endpoint::ALL {
            let request = Request { key: Arc::clone(caller.policy), ..Request::new(endpoint.dialect(), now) };
            names.extend(eligible(&shared, &resolved, &request).into_iter().filter(|name| !names.contains(name)).collect::<Vec<_>>());
        }
        let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
        let ttl = loaded.snapshot.settings.session_lease_ttl_ms;
        match on_table(gateway, |table, now| table.acquire(managed.caller(), &names, ttl, now)).await? {
            Ok(lease) => {
                gateway.leases_changed();
                return Ok(lease);
            }
            Err(LeaseError::Capacity { retry_after_s, .. }) if Instant::now() < deadline => {
                let expiry = Instant::now() + Duration::from_secs(retry_after_s);
                // Notified or not: both mean "look again".
                let _ = timeout_at(deadline.min(expiry), changed).await;
            }
            Err(error) => return Err(refusal(&error)),
        }
    }
}

fn shown(lease: &Lease, connection: Option<Value>) -> Answered {
    let mut body = json!({
        "state": lease.state, "generation": lease.generation, "acquiredAt": lease.acquired,
        "renewedAt": lease.renewed, "expiresAt": lease.expires,
    });
    if let Some(object) = body.as_object_mut() {
        if lease.state != LeaseState::Active {
            object.insert("reason".to_owned(), json!(lease.end_reason));
        }
        if let Some(connection) = connection {
            object.insert("connection".to_owned(), connection);
        }
    }
    let mut response = Response::new(Body::full(body.to_string()));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Answered { response, origin: Origin::Gateway, combo: None }
}

fn refuse(status: u16, code: &str, message: &str) -> Refusal {
    let mut refusal = Refusal::policy(status, code, message);
    refusal.body = Box::new(refusal.body.kind("lease_error"));
    refusal
}

/// A refusal in the words of the specification.
pub(super) fn refusal(error: &LeaseError) -> Refusal {
    let mut refusal = refuse(error.status(), error.code(), &error.to_string());
    if *error == LeaseError::Unavailable {
        refusal = refusal.retry_after(1);
        refusal.hopeless = false;
    }
    if let LeaseError::Capacity { retry_after_s, eligible } = error {
        refusal = refusal.retry_after(*retry_after_s);
        refusal.hopeless = false;
        let body = *refusal.body;
        refusal.body = Box::new(
            body.beside("state", "WAITING_FOR_CAPACITY")
                .beside("reason", "NO_FREE_ELIGIBLE_CONNECTION")
                .beside("retryAfter", *retry_after_s)
                .beside("eligibleCount", *eligible)
                .beside("freeCount", 0),
        );
    }
    refusal
}

/// Why a lease cannot go on under a new configuration.
pub(super) fn outdated(lease: &Lease, loaded: &Loaded) -> Option<EndReason> {
    let Some(key) = loaded.snapshot.api_keys.iter().find(|key| key.name == lease.key) else { return Some(EndReason::ManagedKeyRevoked) };
    let allowed = key.allowed_connections.as_ref().is_some_and(|names| names.contains(&lease.connection));
    if !allowed || !key.scopes.contains(&KeyScope::LeaseExclusive) {
        return Some(EndReason::AuthorizationChanged);
    }
    (!loaded.by_name.contains_key(lease.connection.as_str())).then_some(EndReason::ConnectionIneligible)
}

/// True when somebody else owns the connection.
pub(super) fn held(shared: &Shared, connection: &str, now: EpochMs) -> bool {
    shared.gateway().leases().held(connection, shared.lease.as_ref().map(|lease| &lease.owner), now)
}
