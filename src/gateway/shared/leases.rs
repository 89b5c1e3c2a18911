//! Exclusive leases in the store: one table for all replicas. An operation is tried on a copy and stored only if nobody changed the table in
//! between, so that of two who want the last connection one gets it.

use std::time::Duration;

use super::{Session, SharedError};
use crate::api::time::EpochMs;
use crate::gateway::{Gateway, clock, lock};
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

/// The version of the table: a number that grows by one with each change, within the life of a table. A server that has lost its memory begins
/// another life.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Version {
    life: String,
    /// 0 = written by a pod that does not count.
    number: u64,
}

impl Version {
    fn parse(text: &str) -> Self {
        let counted = text.split_once(':').and_then(|(life, number)| Some((life, number.parse().ok()?)));
        let (life, number) = counted.unwrap_or((text, 0));
        Self { life: life.to_owned(), number }
    }

    /// The version after this one; the first of a life where there is none.
    fn after(before: Option<&Self>) -> Self {
        match before {
            Some(Self { life, number }) => Self { life: life.clone(), number: number + 1 },
            None => Self { life: crate::snapshot::hex(&rand::random::<[u8; 8]>()), number: 1 },
        }
    }

    fn is_before(&self, other: &Self) -> bool {
        self.life == other.life && self.number < other.number
    }
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.number {
            0 => f.write_str(&self.life),
            number => write!(f, "{}:{number}", self.life),
        }
    }
}

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

    /// Asks the shared leases something that changes none of them. The store says whether what is known here is the newest; only when it is
    /// not the table is read.
    pub async fn ask_leases<T>(&self, gateway: &Gateway, question: impl Fn(&LeaseTable, EpochMs) -> T) -> Result<T, SharedError> {
        let work = async {
            let asked = redis::cmd("HGET").arg(self.key("leases")).arg("version").to_owned();
            let newest: Option<String> = asked.query_async(&mut self.connection.clone()).await?;
            let Some(newest) = newest.as_deref().map(Version::parse) else {
                // A server that has lost its memory gets back what was known last.
                return self.with_leases(gateway, question).await;
            };
            if lock(&gateway.shared.lease_version).as_ref() != Some(&newest) {
                self.look_at_leases(gateway).await?;
            }
            Ok(question(&gateway.leases, clock::now()))
        };
        tokio::time::timeout(PATIENCE, work).await.unwrap_or(Err(SharedError::Silent(PATIENCE)))
    }

    /// The first contact with a store: it hears of the leases that are known here.
    pub async fn join_leases(&self, gateway: &Gateway) -> Result<(), SharedError> {
        // A store that was restored from an older copy goes on in the same life with a smaller number: what it has now counts all the same.
        *lock(&gateway.shared.lease_version) = None;
        self.with_leases(gateway, |table, now| table.join(&gateway.leases, now)).await?;
        gateway.leases_changed();
        Ok(())
    }

    /// Takes over what other replicas did with leases.
    pub async fn look_at_leases(&self, gateway: &Gateway) -> Result<(), SharedError> {
        if let (Some(version), Some(table)) = self.read_leases().await? {
            take_over(gateway, version, &table)?;
            gateway.leases_changed();
        }
        Ok(())
    }

    async fn read_leases(&self) -> Result<(Option<Version>, Option<Vec<u8>>), SharedError> {
        let read = redis::cmd("HMGET").arg(self.key("leases")).arg("version").arg("table").to_owned();
        let (version, table): (Option<String>, Option<Vec<u8>>) = read.query_async(&mut self.connection.clone()).await?;
        Ok((version.as_deref().map(Version::parse), table))
    }

    /// `None` when another replica was faster.
    async fn try_leases<T>(&self, gateway: &Gateway, operation: &impl Fn(&LeaseTable, EpochMs) -> T) -> Result<Option<T>, SharedError> {
        let (version, stored) = self.read_leases().await?;
        let now = clock::now();
        // A server that has lost its memory gets back what was known last.
        let base = match &stored {
            Some(bytes) => bytes.clone(),
            None => gateway.leases.export()?,
        };
        let copy = gateway.leases.copy_of(&base, now)?;
        let answer = operation(&copy, now);
        let changed = copy.export()?;
        let version = match version {
            Some(version) if stored.as_ref() == Some(&changed) => version,
            version => {
                let next = Version::after(version.as_ref());
                if !self.store_leases(version.as_ref(), &next, &changed).await? {
                    return Ok(None);
                }
                next
            }
        };
        take_over(gateway, version, &changed)?;
        gateway.lease_changes.notify_waiters();
        Ok(Some(answer))
    }

    /// False when the table is not that of `before` any more.
    async fn store_leases(&self, before: Option<&Version>, next: &Version, table: &[u8]) -> Result<bool, SharedError> {
        let stored: i64 = redis::cmd("EVAL")
            .arg(STORE)
            .arg(2)
            .arg(self.key("leases"))
            .arg(self.key("messages"))
            .arg(before.map(ToString::to_string).unwrap_or_default())
            .arg(next.to_string())
            .arg(table)
            .arg(KEPT_MS)
            .arg(super::replica::LEASES_MESSAGE)
            .query_async(&mut self.connection.clone())
            .await?;
        Ok(stored != 0)
    }
}

/// What is known here becomes this table, unless a newer one is known already.
fn take_over(gateway: &Gateway, version: Version, table: &[u8]) -> Result<(), SharedError> {
    let mut known = lock(&gateway.shared.lease_version);
    if known.as_ref().is_some_and(|known| version.is_before(known)) {
        return Ok(());
    }
    gateway.leases.adopt(table, clock::now())?;
    *known = Some(version);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_ordered_within_the_life_of_a_table_and_written_as_they_were_read() {
        let first = Version::after(None);
        let second = Version::after(Some(&first));
        assert!(first.is_before(&second) && !second.is_before(&first) && !second.is_before(&second));
        assert!(!first.is_before(&Version::after(None)), "another life");
        let uncounted = Version::parse("0011223344556677");
        assert!(uncounted.is_before(&Version::after(Some(&uncounted))));
        for version in [first, second, uncounted] {
            assert_eq!(Version::parse(&version.to_string()), version);
        }
    }
}
