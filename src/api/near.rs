//! The candidate that was probably meant.

/// The candidate nearest to `wanted` by edit distance, if it is near enough to be a slip: something of what was written must be left.
#[must_use]
pub fn suggest<'a>(wanted: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let length = wanted.chars().count();
    let limit = (length / 3).clamp(1, 4);
    candidates
        .into_iter()
        .map(|c| (distance(&wanted.to_lowercase(), &c.to_lowercase()), c))
        .filter(|(d, _)| *d <= limit && *d < length)
        .min()
        .map(|(_, c)| c)
}

/// How many insertions, deletions, replacements and swaps of neighbours lie between two words.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    let mut above = (row.clone(), None);
    for (i, x) in a.chars().enumerate() {
        let mut next = Vec::with_capacity(row.len());
        next.push(i + 1);
        for (j, y) in b.iter().enumerate() {
            let at = |row: &[usize], j: usize| row.get(j).copied().unwrap_or(usize::MAX / 2);
            let replaced = at(&row, j) + usize::from(x != *y);
            let mut least = replaced.min(at(&row, j + 1) + 1).min(at(&next, j) + 1);
            if let Some(before) = j.checked_sub(1)
                && above.1 == Some(*y)
                && b.get(before) == Some(&x)
            {
                least = least.min(at(&above.0, before) + 1);
            }
            next.push(least);
        }
        above = (std::mem::replace(&mut row, next), Some(x));
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suggests_slips_and_nothing_else() {
        let known = ["gpt-5.2", "gpt-5-mini", "claude-sonnet-5"];
        assert_eq!(suggest("gpt-5.3", known), Some("gpt-5.2"));
        assert_eq!(suggest("GPT-5-mini", known), Some("gpt-5-mini"));
        assert_eq!(suggest("claude-sonet-5", known), Some("claude-sonnet-5"));
        assert_eq!(suggest("llama", known), None);
        assert_eq!(suggest("jugde", ["judge"]), Some("judge"), "neighbours that changed places are one slip");
        assert_eq!(suggest("q", ["p"]), None, "nothing of it is left");
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("ab", "ba"), 1);
        assert_eq!(distance("xaby", "xbay"), 1);
    }
}
