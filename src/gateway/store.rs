//! Where state survives a restart. The request path never asks a store: it reads local memory, and a writer follows its changes.

use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// What is kept, by name; each is one document.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Document {
    /// Deadlines, terminal states, strikes, lockouts: the ledger's checkpoint.
    Ledger,
    /// Session pins and the map from response ids to connections.
    Sessions,
    /// Exclusive leases.
    Leases,
    /// What the compiler of `run` must remember: the fingerprint key and the accepted commands.
    Identity,
    /// OAuth tokens that `run` refreshed.
    Tokens,
}

impl Document {
    const fn key(self) -> &'static str {
        match self {
            Self::Ledger => "ledger",
            Self::Sessions => "sessions",
            Self::Leases => "leases",
            Self::Identity => "identity",
            Self::Tokens => "tokens",
        }
    }
}

/// Why a store could not do what it was asked.
#[derive(thiserror::Error, Debug)]
pub enum StoreError {
    /// The file cannot be opened or prepared.
    #[error("opening the state file {path}: {source}; name a writable file with --state-file, or remove a file that is no state file")]
    Open {
        /// The file.
        path: PathBuf,
        /// What SQLite said.
        source: rusqlite::Error,
    },
    /// Reading failed.
    #[error("reading `{document}` from the state file: {source}")]
    Read {
        /// What was read.
        document: &'static str,
        /// What SQLite said.
        source: rusqlite::Error,
    },
    /// Writing failed; it is tried again with the next change.
    #[error("writing `{document}` to the state file: {source}")]
    Write {
        /// What was written.
        document: &'static str,
        /// What SQLite said.
        source: rusqlite::Error,
    },
}

/// A place for documents. Calls may block: they are made from threads that may.
pub trait Store: Send + Sync + std::fmt::Debug {
    /// The document as it was saved last.
    ///
    /// # Errors
    /// The place cannot be read.
    fn load(&self, document: Document) -> Result<Option<Vec<u8>>, StoreError>;

    /// Replaces a document. When this returns, a killed process keeps it.
    ///
    /// # Errors
    /// The place cannot be written.
    fn save(&self, document: Document, bytes: &[u8]) -> Result<(), StoreError>;
}

/// Keeps nothing beyond the process.
#[derive(Debug, Default)]
pub struct Memory;

impl Store for Memory {
    fn load(&self, _document: Document) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(None)
    }

    fn save(&self, _document: Document, _bytes: &[u8]) -> Result<(), StoreError> {
        Ok(())
    }
}

/// A SQLite file (`--state-file`).
#[derive(Debug)]
pub struct Sqlite(Mutex<rusqlite::Connection>);

impl Sqlite {
    /// Opens the file, or creates it.
    ///
    /// # Errors
    /// The file cannot be opened, or is no SQLite database.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        // It holds tokens and a key; whoever made it before has chosen who reads it.
        let private = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        drop(private);
        let prepare = || {
            let connection = rusqlite::Connection::open(path)?;
            // A write is in the log when it returns, so that a kill loses nothing; only a power cut may lose the last ones.
            connection.pragma_update(None, "journal_mode", "WAL")?;
            connection.pragma_update(None, "synchronous", "NORMAL")?;
            connection.execute("CREATE TABLE IF NOT EXISTS document (name TEXT PRIMARY KEY, content BLOB NOT NULL) STRICT", [])?;
            Ok(connection)
        };
        prepare().map(|connection| Self(Mutex::new(connection))).map_err(|source| StoreError::Open { path: path.to_owned(), source })
    }
}

impl Store for Sqlite {
    fn load(&self, document: Document) -> Result<Option<Vec<u8>>, StoreError> {
        let connection = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = connection.query_row("SELECT content FROM document WHERE name = ?1", [document.key()], |row| row.get(0));
        match found {
            Ok(bytes) => Ok(Some(bytes)),
            Err(rusqlite::Error::QueryReturnedNoRows) => Ok(None),
            Err(source) => Err(StoreError::Read { document: document.key(), source }),
        }
    }

    fn save(&self, document: Document, bytes: &[u8]) -> Result<(), StoreError> {
        let connection = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let upsert = "INSERT INTO document (name, content) VALUES (?1, ?2) ON CONFLICT (name) DO UPDATE SET content = ?2";
        let written = connection.execute(upsert, rusqlite::params![document.key(), bytes]);
        written.map(drop).map_err(|source| StoreError::Write { document: document.key(), source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_survive_the_process() {
        let path = std::env::temp_dir().join(format!("omniroute-store-{}.db", rand::random::<u64>()));
        let store = Sqlite::open(&path).unwrap();
        assert_eq!(store.load(Document::Ledger).unwrap(), None);
        store.save(Document::Ledger, b"one").unwrap();
        store.save(Document::Ledger, b"two").unwrap();
        store.save(Document::Sessions, b"pins").unwrap();
        // Not dropped first: a killed process closes nothing.
        let again = Sqlite::open(&path).unwrap();
        assert_eq!(again.load(Document::Ledger).unwrap().as_deref(), Some(&b"two"[..]));
        assert_eq!(again.load(Document::Sessions).unwrap().as_deref(), Some(&b"pins"[..]));
        let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&path).unwrap().permissions());
        assert_eq!(mode & 0o077, 0, "for its owner only");
        drop((store, again));
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_file_that_is_no_database_is_refused_with_its_name() {
        let path = std::env::temp_dir().join(format!("omniroute-store-{}.txt", rand::random::<u64>()));
        std::fs::write(&path, "not a database, but long enough to be read as the header of one".repeat(20)).unwrap();
        let error = Sqlite::open(&path).unwrap_err().to_string();
        assert!(error.contains(&path.display().to_string()) && error.contains("--state-file"), "{error}");
        std::fs::remove_file(path).unwrap();
    }
}
