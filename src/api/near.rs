//! The candidate that was probably meant.

/// The candidate nearest to `wanted` by edit distance, if it is near enough to be a slip.
#[must_use]
pub fn suggest<'a>(wanted: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let limit = (wanted.chars().count() / 3).clamp(1, 4);
    candidates
        .into_iter()
        .map(|c| (distance(&wanted.to_lowercase(), &c.to_lowercase()), c))
        .filter(|(d, _)| *d <= limit)
        .min()
        .map(|(_, c)| c)
}

fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut corner = i;
        let mut left = i + 1;
        if let Some(first) = row.first_mut() {
            *first = left;
        }
        for (y, cell) in b.iter().zip(row.iter_mut().skip(1)) {
            let cost = corner + usize::from(x != *y);
            corner = *cell;
            left = cost.min(left + 1).min(*cell + 1);
            *cell = left;
        }
    }
    row.last().copied().unwrap_or(0)
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
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "abc"), 3);
    }
}
