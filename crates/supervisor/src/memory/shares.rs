//! Who gets how much: arithmetic alone.

use crate::fill::fill;

/// The weight of a machine whose definition gives none.
pub(super) const WEIGHT: u32 = 100;
/// A guest keeps this much, and an eighth of what it needs, beyond what it cannot do without.
const HEADROOM: u64 = 32 << 20;
/// Balloons take memory when less than this part of the budget is left, and give it back when more than twice as much is.
const LITTLE: u64 = 8;
/// How much more weight a machine has that stands still for lack of memory.
const WAITING: u64 = 8;

/// Bytes that are lent to the machine that holds the most, unless the budget is small.
const LOAN: u64 = 16 << 20;

/// What a machine has and needs, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) size: u64,
    pub(super) held: u64,
    pub(super) actual: Option<u64>,
    pub(super) available: Option<u64>,
    pub(super) waits: bool,
    pub(super) reserve: u64,
    pub(super) weight: u32,
}

impl Claim {
    /// Returns what the guest cannot do without, and some more.
    fn need(&self) -> u64 {
        let used = match (self.actual, self.available) {
            (Some(actual), Some(available)) => actual.saturating_sub(available),
            // Its driver has said nothing yet.
            _ => self.held,
        };
        let need = used.saturating_add(used / 8).saturating_add(HEADROOM);
        need.max(self.reserve).min(self.size)
    }
}

/// What a machine gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Share {
    /// What the host may hold for it.
    pub(super) limit: u64,
    /// What its guest should have, if its balloon is to move.
    pub(super) target: Option<u64>,
}

/// Shares out `budget` bytes. The limits are at most the budget together, or else what is held already.
pub(super) fn share(budget: u64, claims: &[Claim]) -> Vec<Share> {
    let held: u64 = claims.iter().map(|claim| claim.held).sum();
    let left = budget.saturating_sub(held);
    let loan = LOAN.min(budget / 16);
    let free = left.saturating_sub(loan);
    let mut growth = split(free, claims, |claim| {
        let weight = u64::from(claim.weight.max(1)) * if claim.waits { WAITING } else { 1 };
        // What a reserve promises goes first.
        (
            claim.reserve.saturating_sub(claim.held),
            claim.size_held_most().saturating_sub(claim.held),
            weight,
        )
    });
    // Who holds the most beyond its part goes on: it alone can give something back, which a guest that stands still cannot.
    let parts =
        split(budget, claims, |claim| (claim.reserve, claim.size, claim.weight.max(1).into()));
    let beyond = (0..claims.len())
        .max_by_key(|index| i128::from(claims[*index].held) - i128::from(parts[*index]));
    if let Some(index) = beyond {
        let claim = &claims[index];
        let most = claim.size_held_most().saturating_sub(claim.held);
        growth[index] = most.min(growth[index] + left.min(loan));
    }
    let targets: Option<Vec<u64>> = if free < budget / LITTLE {
        Some(split(budget, claims, |claim| {
            (claim.reserve, claim.need(), claim.weight.max(1).into())
        }))
    } else if free > budget / LITTLE * 2 {
        Some(claims.iter().map(|claim| claim.size).collect())
    } else {
        None
    };
    let whole = |index: usize| {
        let claim = &claims[index];
        let target = targets.as_ref()?[index];
        // What nobody needs stays where it is: the least that a guest is asked to do with is what it needs.
        Some(target.max(claim.reserve).max(LEAST.min(claim.size)))
    };
    (0..claims.len())
        .map(|index| Share { limit: claims[index].held + growth[index], target: whole(index) })
        .collect()
}

/// No guest is asked to do with less.
const LEAST: u64 = 32 << 20;

impl Claim {
    /// Returns the most that the host ever holds: RAM, and memory beside it such as the screen's.
    fn size_held_most(&self) -> u64 {
        self.size.saturating_add(BESIDE)
    }
}

/// Upper bound of the memory beside RAM, in bytes.
const BESIDE: u64 = 64 << 20;

/// Splits `amount`: first each gets its least, and then, by weight, up to its most. `of` returns least, most and weight. If
/// there is not enough for what is the least, that is split by weight.
fn split(amount: u64, claims: &[Claim], of: impl Fn(&Claim) -> (u64, u64, u64)) -> Vec<u64> {
    let all: Vec<(u64, u64, u64)> = claims.iter().map(of).collect();
    let mut given = vec![0; all.len()];
    let mut left = fill(
        amount,
        &mut given,
        &all.iter().map(|(least, _, weight)| (*least, *weight)).collect::<Vec<_>>(),
    );
    left = fill(
        left,
        &mut given,
        &all.iter().map(|(least, most, weight)| ((*most).max(*least), *weight)).collect::<Vec<_>>(),
    );
    debug_assert!(given.iter().sum::<u64>() + left <= amount.max(1));
    given
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn guest(held: u64, actual: u64, available: u64) -> Claim {
        Claim {
            size: 512 * MIB,
            held: held * MIB,
            actual: Some(actual * MIB),
            available: Some(available * MIB),
            weight: WEIGHT,
            ..Claim::default()
        }
    }

    #[test]
    fn limits_add_up_to_the_budget() {
        let budget = 2048 * MIB;
        for held in [0, 60, 200, 250] {
            let claims = vec![guest(held, 512, 512 - held); 8];
            let shares = share(budget, &claims);
            let sum: u64 = shares.iter().map(|share| share.limit).sum();
            assert!(sum <= budget && sum > budget - 8, "{held}: {}", sum / MIB);
        }
        // Who holds more than there is may hold no more, and what is left last is lent to who holds the most.
        let limits = |budget: u64| -> Vec<u64> {
            let shares = share(budget * MIB, &[guest(190, 512, 100), guest(160, 512, 100)]);
            shares.iter().map(|share| share.limit / MIB).collect()
        };
        assert_eq!(limits(350), [190, 160]);
        assert_eq!(limits(360), [200, 160]);
        assert_eq!(limits(386), [216, 170]);
        let shares = share(100 * MIB, &[guest(90, 512, 100), guest(60, 512, 100)]);
        assert_eq!(shares.iter().map(|share| share.limit / MIB).collect::<Vec<_>>(), [90, 60]);
    }

    #[test]
    fn growth_goes_by_weight_and_first_to_those_who_wait() {
        let limits = |claims: &[Claim]| -> Vec<u64> {
            share(1000 * MIB, claims).iter().map(|share| (share.limit + MIB / 2) / MIB).collect()
        };
        let plain = guest(350, 512, 100);
        assert_eq!(limits(&[plain, Claim { weight: 200, ..plain }]), [461, 539]);
        assert_eq!(limits(&[plain, Claim { waits: true, ..plain }]), [408, 576]);
        assert_eq!(limits(&[plain, Claim { reserve: 500 * MIB, ..plain }]), [433, 567]);
    }

    #[test]
    fn balloons_take_what_idle_guests_keep_when_little_is_left() {
        let targets = |budget: u64, claims: &[Claim]| -> Vec<Option<u64>> {
            share(budget * MIB, claims)
                .iter()
                .map(|share| share.target.map(|bytes| bytes / MIB))
                .collect()
        };
        let (idle, busy) = (guest(400, 512, 432), guest(450, 512, 32));
        assert_eq!(targets(2000, &[idle, busy]), [Some(512), Some(512)]);
        assert_eq!(targets(1000, &[idle, busy]), [None, None]);
        assert_eq!(targets(900, &[idle, busy]), [Some(122), Some(512)]);
        // Both need more than there is: by weight.
        let shares = targets(600, &[busy, Claim { weight: 300, ..busy }]);
        assert_eq!(shares, [Some(150), Some(450)]);
        let shares = targets(600, &[Claim { reserve: 400 * MIB, ..busy }, busy]);
        assert_eq!(shares, [Some(500), Some(100)]);
        // No guest is asked for all.
        assert_eq!(targets(20, &[busy, busy]), [Some(32), Some(32)]);
    }

    #[test]
    fn nonsense_of_a_guest_is_harmless() {
        let strange = Claim {
            actual: Some(0),
            available: Some(u64::MAX),
            held: u64::MAX / 4,
            weight: 0,
            waits: true,
            ..guest(1, 1, 1)
        };
        let shares = share(
            600 * MIB,
            &[strange, guest(10, 512, 480), Claim { weight: u32::MAX, ..strange }],
        );
        assert_eq!(shares.len(), 3);
        assert_eq!(share(0, &[]), []);
    }
}
