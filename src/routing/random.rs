//! Randomness comes in as a value, so that every decision can be replayed.

/// A source of random numbers. Every closure `FnMut() -> u64` is one.
pub trait Random {
    /// The next 64 uniformly distributed bits.
    fn next_u64(&mut self) -> u64;

    /// A number in `[0, 1)`.
    fn unit(&mut self) -> f64 {
        // 53 bits: every value is exactly representable and 1.0 cannot appear.
        #[allow(clippy::cast_precision_loss)]
        let bits = (self.next_u64() >> 11) as f64;
        bits / 9_007_199_254_740_992.0
    }

    /// An index below `n`; 0 when `n` is 0.
    fn below(&mut self, n: usize) -> usize {
        let wide = u128::from(self.next_u64()) * u128::try_from(n).unwrap_or(0);
        usize::try_from(wide >> 64).unwrap_or(0)
    }
}

impl<F: FnMut() -> u64> Random for F {
    fn next_u64(&mut self) -> u64 {
        self()
    }
}

/// A small seeded generator (SplitMix64): the same seed gives the same decisions. Used by tests and by `omniroute plan --seed`.
#[derive(Clone, Debug)]
pub struct Seeded(pub u64);

impl Random for Seeded {
    fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// Puts the slice into a uniformly random order (Fisher–Yates).
pub(crate) fn shuffle<T>(items: &mut [T], rng: &mut dyn Random) {
    for last in (1..items.len()).rev() {
        items.swap(last, rng.below(last + 1));
    }
}

/// A weighted draw, half-open: the first index whose accumulated weight exceeds `r · total`. Weights that sum to 0 give a uniform draw.
/// `None` only without any weights.
pub(crate) fn draw(weights: &[f64], rng: &mut dyn Random) -> Option<usize> {
    if weights.is_empty() {
        return None;
    }
    let total: f64 = weights.iter().sum();
    if total <= 0.0 || !total.is_finite() {
        return Some(rng.below(weights.len()));
    }
    let r = rng.unit() * total;
    let mut accumulated = 0.0;
    for (index, weight) in weights.iter().enumerate() {
        accumulated += weight;
        if accumulated > r {
            return Some(index);
        }
    }
    // Rounding may leave r at the very end: the last index that can be drawn at all.
    weights.iter().rposition(|w| *w > 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_draw_is_half_open() {
        // r = 0 never picks a leading zero weight, r at a boundary belongs to the next index.
        assert_eq!(draw(&[0.0, 10.0], &mut || 0), Some(1));
        let two_thirds = |w: &[f64]| draw(w, &mut || (u64::MAX / 3) * 2 + 2);
        assert_eq!(two_thirds(&[40.0, 20.0]), Some(1));
        assert_eq!(draw(&[1.0, 0.0], &mut || u64::MAX), Some(0));
        assert_eq!(draw(&[], &mut || 0), None);
    }

    #[test]
    fn units_stay_below_one_and_indexes_below_n() {
        assert!((|| u64::MAX).unit() < 1.0);
        assert_eq!((|| u64::MAX).below(3), 2);
        assert_eq!((|| 0).below(0), 0);
    }
}
