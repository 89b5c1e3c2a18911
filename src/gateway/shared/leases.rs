//! Exclusive leases in the store: one table for all replicas. An operation is tried on a copy and stored only if nobody changed the table in
//! between, so that of two who want the last connection one gets it.

use std::time::Duration;

use super::{Session, SharedError};
use crate::api::time::EpochMs;
use crate::gateway::{Gateway, clock};
use crate::routing::leases::LeaseTable;

/// Longest wait for the store, all attempts together.
const PATIENCE: Duration = Duration::from_secs(2);
/// Attempts before an operation is given up: each that fails means that another replica's was stored.
const ATTEMPTS: u32 = 64;
/// How long the table is kept after its last change: generations of owners are remembered that long.
const KEPT_MS: u64 = 7 * 86_400_000;

/// Stores a table unless it was changed since it was read.
const STORE: &str = "if (redis.call('HGET', KEYS[1], 'version') or '') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'version', ARGV[2], 'table', ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[4])
redis.call('PUBLISH', KEYS[2], ARGV[5])
return 1";

impl Session {
    /// Does an operation on the shared leases; its answer holds for all replicas.
    pub async fn with_leases<T>(&self, gateway: &Gateway, operation: impl Fn(&LeaseTable, EpochMs) -> T) -> Result<T, SharedError> {
        let work = async {
            let _turn = gateway.shared.lease_turn.lock().await;
            for attempt in 0..ATTEMPTS {
                if let Some(answer) = self.try_leases(gateway, &operation).await? {
                    return Ok(answer);
                }
                let pause = f64::from(attempt.min(8)) * 2.0 * clock::random();
                tokio::time::sleep(Duration::from_secs_f64(pause / 1_000.0)).await;
            }
            Err(SharedError::Contended(ATTEMPTS))
        };
        tokio::time::timeout(PATIENCE, work).await.unwrap_or(Err(SharedError::Silent(PATIENCE)))
    }

    /// `None` when another replica was faster.
    async fn try_leases<T>(&self, gateway: &Gateway, operation: &impl Fn(&LeaseTable, EpochMs) -> T) -> Result<Option<T>, SharedError> {
        let mut connection = self.connection.clone();
        let key = self.key("leases");
        let read = redis::cmd("HMGET").arg(&key).arg("version").arg("table").to_owned();
        let (version, stored): (Option<String>, Option<Vec<u8>>) = read.query_async(&mut connection).await?;
        let now = clock::now();
        // A server that has lost its memory gets back what was known last.
        let base = match &stored {
            Some(bytes) => bytes.clone(),
            None => gateway.leases.export()?,
        };
        let copy = gateway.leases.copy_of(&base, now)?;
        let answer = operation(&copy, now);
        let changed = copy.export()?;
        if stored.as_ref() != Some(&changed) {
            let next = crate::snapshot::hex(&rand::random::<[u8; 8]>());
            let stored: i64 = redis::cmd("EVAL")
                .arg(STORE)
                .arg(2)
                .arg(&key)
                .arg(self.key("messages"))
                .arg(version.unwrap_or_default())
                .arg(next)
                .arg(&changed)
                .arg(KEPT_MS)
                .arg(super::replica::LEASES_MESSAGE)
                .query_async(&mut connection)
                .await?;
            if stored == 0 {
                return Ok(None);
            }
        }
        gateway.leases.adopt(&changed, clock::now())?;
        gateway.lease_changes.notify_waiters();
        Ok(Some(answer))
    }

    /// Takes over what other replicas did with leases.
    pub async fn look_at_leases(&self, gateway: &Gateway) -> Result<(), SharedError> {
        let mut connection = self.connection.clone();
        let read = redis::cmd("HGET").arg(self.key("leases")).arg("table").to_owned();
        let stored: Option<Vec<u8>> = read.query_async(&mut connection).await?;
        if let Some(bytes) = stored {
            // Not while an operation of our own is between its reading and its writing.
            let _turn = gateway.shared.lease_turn.lock().await;
            gateway.leases.adopt(&bytes, clock::now())?;
            gateway.leases_changed();
        }
        Ok(())
    }
}
