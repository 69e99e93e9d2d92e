//! Filling up to bounds by weight.

/// Raises what was `given` to each, by weight, up to its bound, and returns what is left of `amount`.
pub(crate) fn fill(amount: u64, given: &mut [u64], bounds: &[(u64, u64)]) -> u64 {
    let mut left = amount;
    // Each round brings at least one to its bound, or uses up all but what divisions leave.
    for _ in 0..bounds.len() {
        let open: Vec<usize> =
            (0..bounds.len()).filter(|index| given[*index] < bounds[*index].0).collect();
        let weights: u128 = open.iter().map(|index| u128::from(bounds[*index].1)).sum();
        if weights == 0 || left == 0 {
            break;
        }
        let before = left;
        for index in open {
            let (bound, weight) = bounds[index];
            let part = (u128::from(before) * u128::from(weight) / weights) as u64;
            let part = part.min(bound - given[index]);
            given[index] += part;
            left -= part;
        }
    }
    left
}
