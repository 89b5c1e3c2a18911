//! OAuth credentials: whose tokens are in force, and what it takes to refresh them.
//!
//! The owner of a Connection writes the first tokens into a Secret, which nobody else touches. Refreshed ones go into a Secret of our own (a
//! document of the state file under `run`), which remembers the tokens that it descends from: as soon as the owner writes others, those count.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret as KubeSecret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::ResourceExt;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::Index;
use super::connection::{data, expiry};
use crate::api;
use crate::api::time::EpochMs;
use crate::snapshot::{self, Secret, hex};

/// Keys of the owner's Secret.
pub const OWNER_KEYS: [&str; 4] = ["accessToken", "refreshToken", "expiresAt", "clientSecret"];
/// Keys of our own Secret.
pub const OWN_KEYS: [&str; 8] = ["accessToken", "refreshToken", "expiresAt", "refreshedAt", "askedAt", "seed", "refused", "refusedFor"];

/// How long before its end an access token is refreshed, at least.
const MARGIN_MS: i64 = 5 * 60_000;
/// Accounts that were set up together are spread over so much time before that.
const SPREAD_MS: i64 = 60_000;
/// Least time between two refreshes of one account, whatever lifetime the endpoint names. Identity providers that issue tokens for a minute exist.
const FLOOR_MS: i64 = 30_000;
/// Longest name of an object.
const MAX_NAME: usize = 253;
/// Lifetime of a token whose endpoint names none.
const LIFETIME_MS: i64 = 3_600_000;

/// Name of the Secret that holds the refreshed tokens of a connection.
#[must_use]
pub fn own_secret(connection: &str) -> String {
    format!("omniroute-oauth-{connection}")
}

/// The tokens of a connection.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Tokens {
    /// Digest of the owner's tokens from which these descend.
    pub seed: String,
    /// What requests carry.
    pub access: Secret,
    /// What buys the next pair.
    pub refresh: Secret,
    /// End of the access token; `None` = unknown.
    pub expires: Option<EpochMs>,
    /// When they were issued to us; `None` = they are the owner's.
    pub refreshed: Option<EpochMs>,
    /// When the refresh token was sent to the endpoint, as long as no answer was kept: it may be used up.
    pub asked: Option<EpochMs>,
    /// The token endpoint will issue no others.
    pub refused: Option<Refusal>,
}

/// Why there are no other tokens.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Refusal {
    /// For people, without secrets.
    pub why: String,
    /// What was tried ([`Grant::attempt`]): with another endpoint, client or reset it is tried again.
    pub attempt: String,
}

impl Tokens {
    /// The tokens in a Secret of our own; `None` when it holds none.
    #[must_use]
    pub fn read(secret: &KubeSecret) -> Option<Self> {
        let text = |key: &str| Some(String::from_utf8(data(secret, key)?).ok()?.trim().to_owned()).filter(|v| !v.is_empty());
        let time = |key: &str| data(secret, key).and_then(|raw| expiry(&raw));
        Some(Self {
            seed: text("seed")?,
            access: Secret::new(text("accessToken")?),
            refresh: Secret::new(text("refreshToken")?),
            expires: time("expiresAt"),
            refreshed: time("refreshedAt"),
            asked: time("askedAt"),
            refused: text("refused").map(|why| Refusal { why, attempt: text("refusedFor").unwrap_or_default() }),
        })
    }

    /// Whether both are the same pair, whatever was tried with it since.
    #[must_use]
    pub fn is_pair(&self, other: &Self) -> bool {
        self.seed == other.seed && self.refresh == other.refresh && self.access == other.access && self.refreshed == other.refreshed
    }

    /// Our own Secret with these tokens, controlled by its Connection.
    #[must_use]
    pub fn secret(&self, connection: &str, uid: &str) -> KubeSecret {
        let mut data: BTreeMap<String, ByteString> = BTreeMap::new();
        let mut put = |key: &str, value: &str| data.insert(key.to_owned(), ByteString(value.as_bytes().to_vec()));
        put("seed", &self.seed);
        put("accessToken", self.access.expose());
        put("refreshToken", self.refresh.expose());
        for (key, time) in [("expiresAt", self.expires), ("refreshedAt", self.refreshed), ("askedAt", self.asked)] {
            if let Some(time) = time {
                put(key, &time.0.to_string());
            }
        }
        if let Some(refused) = &self.refused {
            put("refused", &refused.why);
            put("refusedFor", &refused.attempt);
        }
        let owner = OwnerReference {
            api_version: api::API_VERSION.to_owned(),
            kind: "Connection".to_owned(),
            name: connection.to_owned(),
            uid: uid.to_owned(),
            controller: Some(true),
            block_owner_deletion: None,
        };
        KubeSecret {
            metadata: ObjectMeta { name: Some(own_secret(connection)), owner_references: Some(vec![owner]), ..ObjectMeta::default() },
            type_: Some("Opaque".to_owned()),
            data: Some(data),
            ..KubeSecret::default()
        }
    }
}

/// Whether a Secret is the one that we keep for this Connection, and not somebody else's of the same name.
#[must_use]
pub fn is_own(secret: &KubeSecret, connection: &str, uid: &str) -> bool {
    let controller = secret.owner_references().iter().find(|owner| owner.controller == Some(true));
    controller.is_some_and(|owner| owner.kind == "Connection" && owner.name == connection && owner.uid == uid)
}

/// What it takes to refresh the tokens of a connection.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Grant {
    /// Name of the Connection.
    pub connection: String,
    /// Its unique id; empty in files.
    pub uid: String,
    /// The token endpoint, https.
    pub token_url: String,
    /// Client id, if the endpoint wants one.
    pub client_id: Option<String>,
    /// Client secret, if the endpoint wants one.
    pub client_secret: Option<Secret>,
    /// Certificates to trust beside the compiled-in roots.
    pub ca_bundle: Option<String>,
    /// The connection's proxy.
    pub proxy_url: Option<Secret>,
    /// Stands for endpoint, client and the owner's last `omniroute.dev/reset`: what a refusal is about.
    pub attempt: String,
    /// The tokens in force.
    pub tokens: Tokens,
}

impl Grant {
    /// When the tokens are to be refreshed; `None` once the endpoint has refused for good.
    #[must_use]
    pub fn due(&self) -> Option<EpochMs> {
        if self.is_refused() {
            return None;
        }
        // Nobody knows when the owner's token ends: the first refresh tells.
        let Some(expires) = self.tokens.expires else { return Some(EpochMs(0)) };
        let early = expires.0.saturating_sub(MARGIN_MS + self.spread());
        // A token that lives for minutes is used for most of its life.
        let used = self.tokens.refreshed.map_or(i64::MIN, |at| at.0.saturating_add(expires.0.saturating_sub(at.0) / 5 * 4));
        let floor = self.tokens.refreshed.map_or(i64::MIN, |at| at.0.saturating_add(FLOOR_MS));
        Some(EpochMs(early.max(used).max(floor)))
    }

    /// An account's own part of the spread.
    fn spread(&self) -> i64 {
        let digest = self.tokens.seed.get(..4).and_then(|digits| i64::from_str_radix(digits, 16).ok());
        digest.map_or(0, |digest| digest * SPREAD_MS / 0x1_0000)
    }

    /// Whether the endpoint has refused, and nothing has changed since.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        self.tokens.refused.as_ref().is_some_and(|refused| refused.attempt == self.attempt)
    }

    /// The tokens after the endpoint issued others at `now`. An endpoint that does not rotate refresh tokens sends none.
    #[must_use]
    pub fn renewed(&self, access: Secret, refresh: Option<Secret>, lifetime_ms: Option<i64>, now: EpochMs) -> Tokens {
        Tokens {
            seed: self.tokens.seed.clone(),
            access,
            refresh: refresh.unwrap_or_else(|| self.tokens.refresh.clone()),
            expires: Some(EpochMs(now.0.saturating_add(lifetime_ms.unwrap_or(LIFETIME_MS)))),
            refreshed: Some(now),
            asked: None,
            refused: None,
        }
    }

    /// The tokens after the endpoint refused to issue others.
    #[must_use]
    pub fn refused(&self, why: String) -> Tokens {
        Tokens { refused: Some(Refusal { why, attempt: self.attempt.clone() }), asked: None, ..self.tokens.clone() }
    }

    /// The same with tokens that were kept, if they descend from the owner's present ones.
    #[must_use]
    pub fn with(mut self, kept: Option<Tokens>) -> Self {
        if let Some(kept) = kept.filter(|kept| kept.seed == self.tokens.seed) {
            self.tokens = kept;
        }
        self
    }
}

fn digest(parts: &[&[u8]]) -> String {
    let mut digest = Sha256::new();
    for part in parts {
        digest.update((part.len() as u64).to_be_bytes());
        digest.update(part);
    }
    hex(&digest.finalize())
}

/// Why refreshed tokens of a Connection could not be kept, with the reason of a finding: then none are asked for.
pub(super) fn cannot_keep(index: &Index<'_>, connection: &api::Connection) -> Option<(&'static str, String)> {
    let url = connection.spec.credentials.oauth.as_ref()?.token_url.as_ref()?;
    // The schema says so as well; an object may have been stored under an older one.
    let authority = url.strip_prefix("https://").map(|rest| rest.split(['/', '?', '#']).next().unwrap_or_default());
    if authority.is_none_or(|authority| authority.is_empty() || authority.contains('@')) {
        let message = "tokens are not refreshed: `tokenURL` must start with https:// and carry neither user nor password; a client secret belongs into \
                       the key `clientSecret` of the Secret";
        return Some(("InvalidSpec", message.to_owned()));
    }
    let (name, uid) = (connection.name_any(), connection.metadata.uid.as_deref().unwrap_or_default());
    let own = own_secret(&name);
    if own.len() > MAX_NAME {
        return Some((
            "InvalidSpec",
            format!(
                "tokens are not refreshed: the Secret `{own}` would have a name of more than {MAX_NAME} characters; shorten the name of the Connection"
            ),
        ));
    }
    let foreign = index.secrets.get(&own).is_some_and(|secret| !is_own(secret, &name, uid));
    foreign.then(|| {
        (
            "NameConflict",
            format!("tokens are not refreshed: Secret `{own}` exists and does not belong to this Connection; rename or delete it"),
        )
    })
}

/// What is refreshed for a Connection whose Secret has a refresh token: the owner's tokens, or ours that descend from them.
pub(super) fn grant(
    index: &Index<'_>,
    connection: &api::Connection,
    provider: &snapshot::Provider,
    owner: &KubeSecret,
    access: &str,
    expires: Option<EpochMs>,
) -> Option<Grant> {
    let oauth = connection.spec.credentials.oauth.as_ref()?;
    let token_url = oauth.token_url.clone()?;
    let text = |key: &str| Some(String::from_utf8(data(owner, key)?).ok()?.trim().to_owned()).filter(|v| !v.is_empty());
    let refresh = text("refreshToken")?;
    let (name, uid) = (connection.name_any(), connection.metadata.uid.clone().unwrap_or_default());
    let client_secret = text("clientSecret");
    let reset = connection.annotations().get(api::ANNOTATION_RESET).map_or("", String::as_str);
    let attempt = digest(&[
        token_url.as_bytes(),
        oauth.client_id.as_deref().unwrap_or_default().as_bytes(),
        client_secret.as_deref().unwrap_or_default().as_bytes(),
        reset.as_bytes(),
    ]);
    let seed = digest(&[access.as_bytes(), refresh.as_bytes()]);
    let kept = index.secrets.get(&own_secret(&name)).filter(|secret| is_own(secret, &name, &uid)).and_then(|secret| Tokens::read(secret));
    let grant = Grant {
        connection: name,
        uid,
        token_url,
        client_id: oauth.client_id.clone(),
        client_secret: client_secret.map(Secret::new),
        ca_bundle: provider.ca_bundle.clone(),
        proxy_url: connection.spec.proxy_url.as_deref().map(Secret::new),
        attempt,
        tokens: Tokens { seed, access: Secret::new(access), refresh: Secret::new(refresh), expires, ..Tokens::default() },
    };
    Some(grant.with(kept))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grant(expires: Option<i64>, refreshed: Option<i64>) -> Grant {
        let tokens = Tokens {
            seed: "s".into(),
            access: Secret::new("at"),
            refresh: Secret::new("rt"),
            expires: expires.map(EpochMs),
            refreshed: refreshed.map(EpochMs),
            asked: None,
            refused: None,
        };
        Grant { connection: "claude".into(), uid: "u".into(), attempt: "a1".into(), tokens, ..Grant::default() }
    }

    #[test]
    fn tokens_are_refreshed_five_minutes_early_and_short_ones_after_most_of_their_life() {
        const MIN: i64 = 60_000;
        for (expires, refreshed, due) in [
            (None, None, Some(0)),
            (Some(100 * MIN), None, Some(95 * MIN)),
            (Some(100 * MIN), Some(40 * MIN), Some(95 * MIN)),
            (Some(11 * MIN), Some(10 * MIN), Some(10 * MIN + 48_000)),
            // However short they live: not more often than this.
            (Some(10 * MIN + 36_000), Some(10 * MIN), Some(10 * MIN + FLOOR_MS)),
            (Some(10 * MIN + 1_000), Some(10 * MIN), Some(10 * MIN + FLOOR_MS)),
            (Some(10 * MIN), Some(10 * MIN), Some(10 * MIN + FLOOR_MS)),
            (Some(-5 * MIN), None, Some(-10 * MIN)),
        ] {
            assert_eq!(grant(expires, refreshed).due(), due.map(EpochMs), "{expires:?} {refreshed:?}");
        }
    }

    #[test]
    fn accounts_that_end_together_are_not_refreshed_together() {
        const END: i64 = 100 * 60_000;
        for (seed, due) in [("s", 300_000), ("0000ab", 300_000), ("8000ab", 330_000), ("ffffab", 359_999)] {
            let mut grant = grant(Some(END), None);
            grant.tokens.seed = seed.into();
            assert_eq!(grant.due(), Some(EpochMs(END - due)), "{seed}");
        }
    }

    #[test]
    fn a_refusal_holds_until_something_about_it_changes() {
        let mut grant = grant(Some(1), None);
        grant.tokens = grant.refused("invalid_grant".into());
        assert!(grant.is_refused() && grant.due().is_none());
        grant.attempt = "a2".into();
        assert!(!grant.is_refused() && grant.due().is_some(), "another client id or a reset");
    }

    #[test]
    fn tokens_survive_their_secret_and_only_our_own_is_read() {
        let tokens = grant(Some(1_900_000_003_600_000), Some(1_900_000_000_001)).refused("no: 400".into());
        let tokens = Tokens { asked: Some(EpochMs(1_900_000_000_009)), ..tokens };
        let secret = tokens.secret("claude", "u");
        assert_eq!(Tokens::read(&secret).as_ref(), Some(&tokens));
        assert_eq!(secret.data.as_ref().unwrap().keys().map(String::as_str).collect::<Vec<_>>().len(), OWN_KEYS.len());
        assert!(is_own(&secret, "claude", "u"));
        assert!(!is_own(&secret, "claude", "another") && !is_own(&secret, "other", "u") && !is_own(&KubeSecret::default(), "claude", "u"));
        assert!(!format!("{tokens:?}").contains("rt\""));
    }

    #[test]
    fn a_refresh_token_that_is_not_rotated_stays_and_others_of_another_seed_are_dropped() {
        let before = grant(Some(1), None);
        let renewed = before.renewed(Secret::new("at2"), None, Some(1_000), EpochMs(5));
        assert_eq!((renewed.refresh.expose(), renewed.expires, renewed.refreshed), ("rt", Some(EpochMs(1_005)), Some(EpochMs(5))));
        let rotated = before.renewed(Secret::new("at2"), Some(Secret::new("rt2")), None, EpochMs(5));
        assert_eq!((rotated.refresh.expose(), rotated.expires), ("rt2", Some(EpochMs(5 + LIFETIME_MS))));
        assert_eq!(before.clone().with(Some(rotated.clone())).tokens, rotated);
        let foreign = Tokens { seed: "other".into(), ..rotated };
        assert_eq!(before.clone().with(Some(foreign)), before, "the owner wrote new tokens since");
    }
}
