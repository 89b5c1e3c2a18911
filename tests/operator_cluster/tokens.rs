//! OAuth tokens: refreshed at a real token endpoint, kept in a Secret of our own.

use std::sync::Arc;
use std::time::{Duration, Instant};

use omniroute::api::time::EpochMs;
use omniroute::compile::oauth::{Grant, Tokens};
use omniroute::oauth::{Keeper, Kept};
use omniroute::operator::leader::{Leadership, Timing};
use omniroute::operator::metrics::Metrics;
use omniroute::operator::tokens::TokenSecrets;
use omniroute::snapshot::{Connection, Secret, Snapshot};
use serde_json::{Value, json};

use crate::support::{Cluster, FakePod, eventually, text};
use crate::token_endpoint::{AUTHORITY, TokenEndpoint};
use crate::{LEASE, now_ms};

const OWN: &str = "omniroute-oauth-claude";

async fn setup(cluster: &Cluster, endpoint: &TokenEndpoint) {
    cluster
        .apply(&format!(
            r#"
apiVersion: omniroute.dev/v1alpha1
kind: ResilienceSettings
metadata: {{name: default}}
spec: {{gateway: {{replicas: 0}}}}
---
apiVersion: omniroute.dev/v1alpha1
kind: Provider
metadata: {{name: claude}}
spec:
  baseURL: https://api.example/v1
  dialects: [Messages]
  authClass: OAuth
  tls: {{caBundle: {{configMapRef: {{name: ca, key: ca.crt}}}}}}
---
apiVersion: omniroute.dev/v1alpha1
kind: Connection
metadata: {{name: claude}}
spec: {{providerRef: {{name: claude}}, credentials: {{oauth: {{secretRef: {{name: claude}}, tokenURL: "{}", clientID: app}}}}}}
---
apiVersion: v1
kind: ConfigMap
metadata: {{name: ca}}
data: {{ca.crt: {}}}
"#,
            endpoint.url(),
            json!(AUTHORITY)
        ))
        .await;
}

/// The owner writes tokens that end in two minutes.
fn tokens(access: &str, refresh: &str) -> Value {
    json!({"stringData": {"accessToken": access, "refreshToken": refresh, "expiresAt": (now_ms() + 120_000).to_string()}})
}

fn claude(snapshot: &Snapshot) -> Option<&Connection> {
    snapshot.connections.iter().find(|c| c.name == "claude")
}

async fn until_token(cluster: &Cluster, token: &str) -> Connection {
    let carries = |s: &Snapshot| claude(s).and_then(|c| c.credential.as_ref()).is_some_and(|c| c.expose() == token);
    claude(&cluster.until_snapshot(token, Duration::from_secs(10), carries).await).unwrap().clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn expiring_tokens_are_refreshed_and_the_owners_secret_stays_untouched() {
    let Some(cluster) = Cluster::open("op-oauth").await else { return };
    let endpoint = TokenEndpoint::start("rt-0", 3_600).await;
    setup(&cluster, &endpoint).await;
    cluster.apply("apiVersion: v1\nkind: Secret\nmetadata: {name: claude}\n").await;
    cluster.edit("Secret", "claude", tokens("at-0", "rt-0")).await;
    let seed = cluster.get("Secret", "claude").await.unwrap();
    let operator = cluster.operator("one", LEASE);
    let _pod = FakePod::start(&cluster, "pod-1").await;
    let first = until_token(&cluster, "at-1").await;
    cluster.until_ready("Connection", "claude", "True", "Accepted").await;
    assert_eq!(cluster.get("Secret", "claude").await.unwrap(), seed);
    let own = cluster.get("Secret", OWN).await.unwrap();
    let connection = cluster.get("Connection", "claude").await.unwrap();
    let owner = &own["metadata"]["ownerReferences"][0];
    assert_eq!((&owner["uid"], &owner["controller"]), (&connection["metadata"]["uid"], &json!(true)));
    assert_eq!(first.token_expires.map(|at| (at.0 - now_ms() + 30_000) / 60_000), Some(60), "the new token's end");
    operator.terminate().await;

    // Another replica goes on with what was kept: the refresh token of the owner is used up.
    let operator = cluster.operator("two", LEASE);
    cluster.edit("Connection", "claude", json!({"spec": {"priority": 3}})).await;
    let carries = |s: &Snapshot| claude(s).is_some_and(|c| c.priority == 3);
    let second = cluster.until_snapshot("the new priority", Duration::from_secs(10), carries).await;
    let second = claude(&second).unwrap().clone();
    assert_eq!((second.credential.as_ref().map(|c| c.expose()), endpoint.seen().len()), (Some("at-1"), 1));
    assert_eq!(second.credential_fingerprint, first.credential_fingerprint, "a refresh of ours clears nothing");

    // The owner's new tokens count, and clear what the old ones caused.
    endpoint.accept("rt-new");
    cluster.edit("Secret", "claude", tokens("at-new", "rt-new")).await;
    let third = until_token(&cluster, "at-2").await;
    assert_ne!(third.credential_fingerprint, first.credential_fingerprint);

    // A refusal is final, until the owner says otherwise.
    cluster.edit("Secret", "claude", tokens("at-dead", "rt-dead")).await;
    let refused = |s: &Snapshot| claude(s).is_some_and(|c| c.refresh_refused);
    cluster.until_snapshot("refused", Duration::from_secs(10), refused).await;
    let asked = endpoint.seen().len();
    let ready = cluster.until_ready("Connection", "claude", "True", "Accepted").await;
    assert_eq!(text(&ready, "/kind"), "Connection", "a vendor's refusal is no mistake in the configuration");
    endpoint.accept("rt-dead");
    cluster.edit("Connection", "claude", json!({"metadata": {"annotations": {"omniroute.dev/reset": "1"}}})).await;
    let fourth = until_token(&cluster, "at-3").await;
    assert!(!fourth.refresh_refused);
    assert_eq!(endpoint.seen().len(), asked + 1);

    cluster.delete("Connection", "claude").await;
    eventually("the tokens go with their Connection", Duration::from_secs(20), || async { cluster.get("Secret", OWN).await.is_none() })
        .await;
    operator.terminate().await;
}

/// The first replica hands the lease over while the vendor still thinks. Its successor does not send the same refresh token, and what the vendor
/// issues is kept by the one who asked.
#[tokio::test(flavor = "multi_thread")]
async fn a_rotated_token_survives_the_loss_of_the_lease() {
    let Some(cluster) = Cluster::open("op-oauth-lease").await else { return };
    let endpoint = TokenEndpoint::start("rt-0", 3_600).await;
    endpoint.hold(true);
    setup(&cluster, &endpoint).await;
    cluster.apply("apiVersion: v1\nkind: Secret\nmetadata: {name: claude}\n").await;
    cluster.edit("Secret", "claude", tokens("at-0", "rt-0")).await;
    let first = cluster.operator("one", LEASE);
    eventually("the first asks", Duration::from_secs(15), || async { endpoint.seen().len() == 1 }).await;
    assert!(cluster.get("Secret", OWN).await.unwrap()["data"].get("askedAt").is_some(), "it is known that it asks");
    let second = cluster.operator("two", LEASE);
    let begun = Instant::now();
    let ended = tokio::spawn(first.terminate());
    eventually("the second leads", Duration::from_secs(5), || async { cluster.leader().await == "two" }).await;
    assert!(begun.elapsed() < Duration::from_secs(2), "a vendor that thinks holds up no hand-over: {:?}", begun.elapsed());
    // The second knows the account.
    cluster.edit("Connection", "claude", json!({"spec": {"priority": 3}})).await;
    let carries = |s: &Snapshot| claude(s).is_some_and(|c| c.priority == 3);
    cluster.until_snapshot("the new priority", Duration::from_secs(5), carries).await;
    endpoint.hold(false);
    until_token(&cluster, "at-1").await;
    assert!(ended.await.unwrap() < Duration::from_secs(10));
    let kept = cluster.get("Secret", OWN).await.unwrap();
    assert!(kept["data"].get("askedAt").is_none() && kept["data"].get("refused").is_none(), "{kept:#}");
    assert_eq!(endpoint.seen().len(), 1, "sent once");
    second.terminate().await;
}

/// What a replica that lost the lease may still write: the successor of the very tokens that stand there, and nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn without_the_lease_only_the_successor_of_what_stands_there_is_kept() {
    let ns = "op-oauth-late";
    let Some(cluster) = Cluster::open(ns).await else { return };
    let endpoint = TokenEndpoint::start("rt-0", 3_600).await;
    setup(&cluster, &endpoint).await;
    let connection = cluster.get("Connection", "claude").await.unwrap();
    let keeper = |leadership: Leadership| TokenSecrets::new(cluster.client.clone(), leadership, Arc::new(Metrics::new().unwrap()));
    let (leader, late) = (keeper(Leadership::always()), keeper(Leadership::none(&Timing::of(LEASE))));
    let owners = Tokens { seed: "s".into(), access: Secret::new("at-0"), refresh: Secret::new("rt-0"), ..Tokens::default() };
    let grant = Grant { connection: "claude".into(), uid: text(&connection, "/metadata/uid"), tokens: owners, ..Grant::default() };
    let at = |n: i64| EpochMs(1_900_000_000_000 + n);
    let issued = |n: i64| grant.renewed(Secret::new(format!("at-{n}")), Some(Secret::new(format!("rt-{n}"))), None, at(n));
    let stands = async || leader.latest(ns, grant.clone()).await.unwrap().unwrap().tokens;

    assert!(late.latest(ns, grant.clone()).await.unwrap().is_none(), "it asks for nothing");
    assert!(late.begin(ns, &grant, at(5)).await.is_err());
    assert_eq!(late.keep(ns, &grant, &issued(1)).await.unwrap(), Kept::Overtaken, "what is gone is not made again");
    assert_eq!(leader.begin(ns, &grant, at(5)).await.unwrap(), Kept::Yes);
    assert_eq!(leader.begin(ns, &grant, at(6)).await.unwrap(), Kept::Overtaken, "another one has begun since");
    assert_eq!(late.keep(ns, &grant, &grant.refused("no".into())).await.unwrap(), Kept::Overtaken, "a refusal is no loss");
    assert_eq!(stands().await.asked, Some(at(5)));

    // Who got an answer without tokens says so, about its own attempt only.
    leader.ended(ns, &grant, at(4)).await.unwrap();
    assert!(late.ended(ns, &grant, at(5)).await.is_err());
    assert_eq!(stands().await.asked, Some(at(5)));
    leader.ended(ns, &grant, at(5)).await.unwrap();
    assert_eq!(stands().await.asked, None);

    // The next leader was told that the token was used before: what was issued for it undoes that.
    assert_eq!(leader.keep(ns, &grant, &grant.refused("invalid_grant".into())).await.unwrap(), Kept::Yes);
    assert_eq!(late.keep(ns, &grant, &issued(1)).await.unwrap(), Kept::Yes);
    assert_eq!(stands().await, issued(1));
    // Or it has gone on: nothing is undone.
    assert_eq!(late.keep(ns, &grant, &issued(2)).await.unwrap(), Kept::Overtaken);
    assert_eq!(stands().await, issued(1));
    // Or the namespace is gone: there is nobody to keep them for.
    assert_eq!(leader.keep("op-oauth-nowhere", &grant, &issued(1)).await.unwrap(), Kept::Overtaken);
}
