//! The config Secret: one canonical snapshot, compressed so that the same snapshot always gives the same bytes.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;

use super::{ANNOTATION_HASH, Meta, names};
use crate::operator::child::{Child, ChildKind};
use crate::snapshot::packed::pack;
use crate::snapshot::{SCHEMA_VERSION, Snapshot};

/// The sum of a Secret's values may be at most this (decisions 10.18).
pub const MAX_BYTES: usize = 1 << 20;
/// From here on a finding warns.
pub const WARN_BYTES: usize = MAX_BYTES / 5 * 4;

/// A snapshot as it is delivered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Delivery {
    /// Hash of the canonical JSON.
    pub hash: String,
    /// Compressed canonical JSON.
    pub gzip: Vec<u8>,
    /// Uncompressed size, bytes.
    pub json_bytes: usize,
}

/// How large a delivery is, compared with what a Secret may hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Size {
    /// Fits.
    Good,
    /// Fits, but little more will.
    Near,
    /// Does not fit: the last good config stays.
    TooLarge,
}

impl Delivery {
    /// Packs a snapshot.
    ///
    /// # Errors
    /// If it cannot be represented in JSON, which no snapshot can fail at.
    pub fn pack(snapshot: &Snapshot) -> Result<Self, serde_json::Error> {
        let json = snapshot.canonical_json()?;
        Ok(Self { hash: snapshot.hash()?, gzip: pack(&json), json_bytes: json.len() })
    }

    /// How large it is.
    #[must_use]
    pub fn size(&self) -> Size {
        match self.gzip.len() {
            n if n > MAX_BYTES => Size::TooLarge,
            n if n > WARN_BYTES => Size::Near,
            _ => Size::Good,
        }
    }
}

/// The parts of a snapshot that take most of its room, largest first, for the message that refuses it.
#[must_use]
pub fn largest(snapshot: &Snapshot) -> Vec<(String, usize)> {
    fn weigh<'a, T: serde::Serialize + 'a>(
        kind: &str,
        items: impl IntoIterator<Item = (&'a String, &'a T)>,
        out: &mut Vec<(String, usize)>,
    ) {
        out.extend(items.into_iter().map(|(name, item)| (format!("{kind} `{name}`"), serde_json::to_vec(item).map_or(0, |b| b.len()))));
    }
    let mut parts = Vec::new();
    weigh("Provider", snapshot.providers.iter().map(|p| (&p.name, p)), &mut parts);
    weigh("Connection", snapshot.connections.iter().map(|c| (&c.name, c)), &mut parts);
    weigh("Combo", snapshot.combos.iter().map(|c| (&c.name, c)), &mut parts);
    weigh("OperatorErrorRule", snapshot.rules.iter().map(|r| (&r.name, r)), &mut parts);
    weigh("API key Secret", snapshot.api_keys.iter().map(|k| (&k.name, k)), &mut parts);
    parts.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    parts.truncate(5);
    parts
}

/// The config Secret.
///
/// # Errors
/// As [`Child::new`].
pub(super) fn secret(meta: &Meta<'_>, delivery: &Delivery) -> serde_json::Result<Child> {
    let mut object = Secret {
        metadata: meta.object(names::CONFIG),
        type_: Some("Opaque".to_owned()),
        data: Some(BTreeMap::from([(key(SCHEMA_VERSION), ByteString(delivery.gzip.clone()))])),
        ..Secret::default()
    };
    object.metadata.annotations.get_or_insert_default().insert(ANNOTATION_HASH.to_owned(), delivery.hash.clone());
    Child::new(ChildKind::Secret, names::CONFIG, &object)
}

/// The key of a schema version. The first one has the plain name; a later one is written beside the one before it, so that pods of
/// both versions find theirs (decisions 10.9).
fn key(version: u32) -> String {
    if version <= 1 { names::CONFIG_KEY.to_owned() } else { format!("snapshot.v{version}.json.gz") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::packed::unpack;

    #[test]
    fn the_same_snapshot_gives_the_same_bytes() {
        let snapshot = Snapshot { schema_version: 1, ..Snapshot::default() };
        let (a, b) = (Delivery::pack(&snapshot).unwrap(), Delivery::pack(&snapshot).unwrap());
        assert_eq!(a, b);
        let json = unpack(&a.gzip).unwrap();
        assert_eq!(Snapshot::from_json(&json).unwrap(), snapshot);
        assert_eq!(json.len(), a.json_bytes);
    }

    #[test]
    fn sizes_are_judged_and_contributors_named() {
        let of = |n: usize| Delivery { hash: String::new(), gzip: vec![0; n], json_bytes: 0 }.size();
        assert_eq!(
            [of(WARN_BYTES), of(WARN_BYTES + 1), of(MAX_BYTES), of(MAX_BYTES + 1)],
            [Size::Good, Size::Near, Size::Near, Size::TooLarge]
        );
        let snapshot = Snapshot {
            providers: vec![crate::snapshot::Provider {
                name: "big".into(),
                base_url: "x".repeat(10_000),
                ..crate::snapshot::Provider::default()
            }],
            combos: vec![crate::snapshot::Combo { name: "small".into(), ..crate::snapshot::Combo::default() }],
            ..Snapshot::default()
        };
        assert_eq!(largest(&snapshot).first().map(|p| p.0.as_str()), Some("Provider `big`"));
    }
}
