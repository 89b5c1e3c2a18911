//! A map with a ceiling, for what strategies remember about entries.

use std::collections::HashMap;

/// Entries that one strategy remembers.
const MAX_ENTRIES: usize = 4_096;

/// Values by candidate key. Combos are bounded, but connections come and go while a combo stays the same.
#[derive(Debug)]
pub(super) struct Bounded<V>(HashMap<u64, V>);

impl<V> Default for Bounded<V> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<V: Default> Bounded<V> {
    /// The value of a key, if there is one.
    pub(super) fn get(&self, key: u64) -> Option<&V> {
        self.0.get(&key)
    }

    /// The value of a key, made where it is missing; the smallest by `age` goes when there are too many.
    pub(super) fn entry<A: Ord>(&mut self, key: u64, age: impl Fn(&V) -> A) -> &mut V {
        if self.0.len() >= MAX_ENTRIES && !self.0.contains_key(&key) {
            let oldest = self.0.iter().min_by_key(|(_, value)| age(value)).map(|(key, _)| *key);
            oldest.map(|key| self.0.remove(&key));
        }
        self.0.entry(key).or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_goes() {
        let mut map = Bounded::<u64>::default();
        for key in 0..=u64::try_from(MAX_ENTRIES).unwrap() {
            *map.entry(key, |v| *v) = key + 10;
        }
        assert_eq!(map.0.len(), MAX_ENTRIES);
        assert!(map.get(0).is_none() && map.get(1).is_some());
    }
}
