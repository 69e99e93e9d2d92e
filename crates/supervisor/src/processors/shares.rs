//! Who gets how much: arithmetic alone. All is in parts of the time of one processor, of which there are [`PROCESSOR`].

use crate::fill::fill;

/// The parts of the time of one processor.
pub(super) const PROCESSOR: u64 = 10_000;
/// What a machine may use beyond an eighth more than in the last interval before it counts as kept waiting.
const HEADROOM: u64 = PROCESSOR / 20;

/// What a machine uses and may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Claim {
    /// What it has used in the last interval.
    pub(super) used: u64,
    /// Whether its limit has kept it waiting then.
    pub(super) waits: bool,
    pub(super) weight: u32,
    /// The most that its definition lets it use; none uses more than a processor.
    pub(super) most: u64,
}

impl Claim {
    /// Returns what it could use in the next interval.
    fn demand(&self) -> u64 {
        let more = if self.waits { PROCESSOR } else { self.used + self.used / 8 + HEADROOM };
        more.min(self.most)
    }
}

/// Shares out `budget` parts. Returns the limits; None is no limit.
pub(super) fn share(budget: u64, claims: &[Claim]) -> Vec<Option<u64>> {
    let shares = |bound: fn(&Claim) -> u64| {
        let bounds: Vec<_> =
            claims.iter().map(|claim| (bound(claim), claim.weight.max(1).into())).collect();
        let mut given = vec![0; claims.len()];
        fill(budget, &mut given, &bounds);
        given
    };
    let (wanted, promised) = (shares(Claim::demand), shares(|claim| claim.most));
    let is_enough = claims.iter().map(Claim::demand).sum::<u64>() <= budget;
    let limit = |(index, claim): (usize, &Claim)| {
        let limit = if is_enough {
            claim.most
        } else if wanted[index] < claim.demand() {
            wanted[index]
        } else {
            // It uses little, and has its part at once when it needs more.
            wanted[index].max(promised[index])
        };
        (limit < PROCESSOR).then_some(limit.max(1))
    };
    claims.iter().enumerate().map(limit).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(used: u64, waits: bool, weight: u32) -> Claim {
        Claim { used, waits, weight, most: PROCESSOR }
    }

    /// Returns what busy machines with these weights use after some rounds on a host that gives each what its limit
    /// allows, and no more than a processor's equal part.
    fn settle(budget: u64, weights: &[u32]) -> Vec<u64> {
        let equal = (budget / weights.len() as u64).min(PROCESSOR);
        let mut claims: Vec<_> =
            weights.iter().map(|weight| claim(equal, false, *weight)).collect();
        for _ in 0..20 {
            let limits = share(budget, &claims);
            // Those without a limit, or with one that is out of reach, share what the others leave.
            let mut used = vec![0; claims.len()];
            let bounds: Vec<_> =
                limits.iter().map(|limit| (limit.unwrap_or(PROCESSOR), 1)).collect();
            fill(budget, &mut used, &bounds);
            for ((claim, used), limit) in claims.iter_mut().zip(used).zip(limits) {
                (claim.used, claim.waits) = (used, limit.is_some_and(|limit| used >= limit));
            }
        }
        claims.iter().map(|claim| claim.used).collect()
    }

    #[test]
    fn busy_machines_share_by_weight_and_use_all() {
        assert_eq!(settle(2 * PROCESSOR, &[100, 100, 200, 400]), [2500, 2500, 5000, 10_000]);
        assert_eq!(settle(PROCESSOR, &[100, 100, 200, 400]), [1250, 1250, 2500, 5000]);
        assert_eq!(settle(2 * PROCESSOR, &[1, 1]), [PROCESSOR, PROCESSOR]);
        // One machine has no use for more than a processor.
        assert_eq!(settle(2 * PROCESSOR, &[100, 100, 1000]), [5000, 5000, PROCESSOR]);
        assert_eq!(settle(PROCESSOR / 2, &[7]), [PROCESSOR / 2]);
    }

    #[test]
    fn without_a_shortage_there_are_no_limits() {
        let claims = [claim(PROCESSOR, false, 1), claim(500, false, 9), claim(0, false, 9)];
        assert_eq!(share(2 * PROCESSOR, &claims), [None; 3]);
        let limited = Claim { most: 3000, ..claim(1000, false, 1) };
        assert_eq!(share(2 * PROCESSOR, &[limited]), [Some(3000)]);
    }

    #[test]
    fn idle_machines_leave_their_parts_to_others_and_keep_the_right_to_them() {
        let (busy, idle) = (claim(5000, true, 100), claim(0, false, 100));
        let limits = share(PROCESSOR, &[busy, idle, idle, busy]);
        let half = (PROCESSOR - 2 * HEADROOM) / 2;
        assert_eq!(limits, [Some(half), Some(2500), Some(2500), Some(half)]);
    }

    #[test]
    fn any_numbers_are_shared_out() {
        for budget in [0, 1, PROCESSOR, u64::MAX] {
            for weight in [0, 1, u32::MAX] {
                let claims = [claim(u64::MAX / 16, true, weight), claim(0, false, weight)];
                assert!(share(budget, &claims).iter().flatten().all(|limit| *limit > 0));
            }
        }
    }
}
