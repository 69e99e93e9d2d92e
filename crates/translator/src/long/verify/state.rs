//! What the [checker](super) knows before an instruction.

use iced_x86::Register;

use crate::memory::units::unit_of;

/// The names of the host's registers are their numbers; behind them are those of the fields of the context with R8 to
/// R11 and the bases of FS and GS.
pub(super) type Name = u8;
pub(super) const REGISTERS: Name = 16;
pub(super) const FIELDS: Name = 6;
const NAMES: usize = (REGISTERS + FIELDS) as usize;

/// Returns the name of the host's general register that contains `register`.
pub(super) fn name_of(register: Register) -> Name {
    register.full_register().number() as Name
}

pub(super) const RAX: Name = 0;
pub(super) const RSP: Name = 4;
pub(super) const R9: Name = 9;

/// The largest distance that is of use.
pub(super) const MOST_DISTANT: u64 = 8 << 30;
/// The distance that is assumed where it grows.
pub(super) const IN_LOOP: u64 = 1 << 31;
/// The largest number of 32 bits, with a sign or without.
pub(super) const SMALL: u64 = 1 << 32;

/// The numbers of the groups of units: those that are near, and those of the second group.
pub(super) const NEAR: usize = 0;
pub(super) const SECOND: usize = 1;

/// The sum of names and a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sum {
    pub(super) base: Option<Name>,
    pub(super) index: Option<(Name, u8)>,
    pub(super) displacement: i64,
}

/// The sum of nothing.
pub(super) const NOTHING: Sum = Sum { base: None, index: None, displacement: 0 };

impl Sum {
    pub(super) fn share(&self, name: Name) -> u64 {
        let index =
            self.index.filter(|(index, _)| *index == name).map_or(0, |(_, scale)| scale.into());
        index + u64::from(self.base == Some(name))
    }

    /// Returns its names, by bits.
    fn names(&self) -> u32 {
        let bit = |name: Option<Name>| name.map_or(0, |name| 1 << name);
        bit(self.base) | bit(self.index.map(|(index, _)| index))
    }

    pub(super) fn has_same_names(&self, other: &Sum) -> bool {
        (self.base, self.index) == (other.base, other.index)
    }
}

/// An address that is looked for in a table: what has it, if that is not overwritten, and of what it is the sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Subject {
    pub(super) name: Option<Name>,
    pub(super) sum: Option<Sum>,
}

impl Subject {
    /// Returns its names, by bits.
    fn names(&self) -> u32 {
        self.name.map_or(0, |name| 1 << name) | self.sum.map_or(0, |sum| sum.names())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Any,
    Number(u64),
    Sum(Sum),
    /// The index of an address in the tables of checks.
    Rotated(Subject),
    /// The number of its distance, and that distance.
    DistanceNumber(Subject),
    Distance(Subject),
    /// The distance of the second group of units.
    SecondDistance,
    /// The host's address of memory of the guest: at a distance of its own, or that of this sum at the distance of the
    /// second group of units.
    Placed(Option<Sum>),
    /// An address of ours, and an index of 16 bits for it.
    Own,
    Index,
}

impl Kind {
    /// Returns the names that it has to do with, by bits.
    fn names(&self) -> u32 {
        match self {
            Kind::Sum(sum) | Kind::Placed(Some(sum)) => sum.names(),
            Kind::Rotated(of) | Kind::DistanceNumber(of) | Kind::Distance(of) => of.names(),
            _ => 0,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Value {
    /// How far it is from a unit of each group that is owned, at most.
    pub(super) near: [Option<u64>; 2],
    pub(super) is_small: bool,
    pub(super) kind: Kind,
}

pub(super) const UNKNOWN: Value = Value { near: [None; 2], is_small: false, kind: Kind::Any };

/// What is known before an instruction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct State {
    values: [Value; NAMES],
    /// The names with which other values have to do, by bits, and perhaps more.
    mentioned: u32,
    /// Sums, with their distances from units of a group. Their own displacements mean nothing.
    pub(super) sums: Vec<(Sum, usize, u64)>,
    /// The units that were checked, with their groups.
    pub(super) units: Vec<(i64, usize)>,
}

impl Default for State {
    fn default() -> State {
        State { values: [UNKNOWN; NAMES], mentioned: 0, sums: Vec::new(), units: Vec::new() }
    }
}

impl State {
    /// Becomes the same as `other`.
    pub(super) fn copy(&mut self, other: &State) {
        (self.values, self.mentioned) = (other.values, other.mentioned);
        self.sums.clone_from(&other.sums);
        self.units.clone_from(&other.units);
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        (self.values, self.mentioned) = ([UNKNOWN; NAMES], 0);
        self.sums.clear();
        self.units.clear();
    }

    /// Returns what is known of the value of `name`.
    pub(super) fn value(&self, name: Name) -> &Value {
        &self.values[usize::from(name)]
    }

    fn value_mut(&mut self, name: Name) -> &mut Value {
        &mut self.values[usize::from(name)]
    }

    /// Keeps what `other` knows, too. Distances that have grown are bounded if this is where a loop begins.
    pub(super) fn meet(&mut self, other: &State, is_loop: bool) {
        let farther = |mine: u64, other: u64| match other {
            _ if other <= mine => Some(mine),
            _ if is_loop => (other <= IN_LOOP).then_some(IN_LOOP),
            _ => Some(other),
        };
        for (value, other) in self.values.iter_mut().zip(&other.values) {
            for (near, other) in value.near.iter_mut().zip(other.near) {
                *near = near.zip(other).and_then(|(mine, other)| farther(mine, other));
            }
            value.is_small &= other.is_small;
            if value.kind != other.kind {
                value.kind = Kind::Any;
            }
        }
        self.sums.retain_mut(|(sum, group, distance)| {
            let now = other.distance_of(sum, *group).and_then(|other| farther(*distance, other));
            *distance = now.unwrap_or(0);
            now.is_some()
        });
        self.units.retain(|unit| other.units.contains(unit));
    }

    pub(super) fn distance_of(&self, sum: &Sum, group: usize) -> Option<u64> {
        let mut known = self.sums.iter();
        let found = known.find(|(known, of, _)| *of == group && known.has_same_names(sum));
        found.map(|(_, _, distance)| *distance)
    }

    /// Forgets what depends on the value of `name`.
    fn forget_sums(&mut self, name: Name) {
        self.sums.retain(|(sum, ..)| sum.share(name) == 0);
        self.forget_kinds(name);
    }

    /// Forgets of other values what they have to do with `name`.
    fn forget_kinds(&mut self, name: Name) {
        if self.mentioned & 1 << name == 0 {
            return;
        }
        self.mentioned = 0;
        for value in &mut self.values {
            match &mut value.kind {
                Kind::Sum(sum) if sum.share(name) != 0 => value.kind = Kind::Any,
                Kind::Placed(of) => *of = of.filter(|sum| sum.share(name) == 0),
                Kind::Rotated(of) | Kind::DistanceNumber(of) | Kind::Distance(of) => {
                    of.name = of.name.filter(|of| *of != name);
                    of.sum = of.sum.filter(|sum| sum.share(name) == 0);
                }
                _ => {}
            }
            self.mentioned |= value.kind.names();
        }
    }

    pub(super) fn set(&mut self, name: Name, value: Value) {
        self.forget_sums(name);
        // A value that depends on the one before it has nothing to do with the name any more.
        let depends = matches!(value.kind, Kind::Sum(sum) if sum.share(name) != 0);
        let value = if depends { Value { kind: Kind::Any, ..value } } else { value };
        self.mentioned |= value.kind.names();
        *self.value_mut(name) = value;
    }

    /// Notes that `name` has moved by `bytes`, and of it what is known of `value` beside its kind.
    pub(super) fn step_to(&mut self, name: Name, bytes: i64, value: Value) {
        self.step(name, bytes);
        *self.value_mut(name) = Value { kind: Kind::Any, ..value };
    }

    /// Notes that the low bits `cleared` of `name` were cleared.
    pub(super) fn clear_bits(&mut self, name: Name, cleared: i64) {
        let near = self.value(name).near;
        self.step(name, cleared);
        let after = self.value(name).near;
        let near = std::array::from_fn(|group| near[group].and(after[group]));
        *self.value_mut(name) = Value { near, ..UNKNOWN };
    }

    /// Adds `bytes` to `name`.
    pub(super) fn step(&mut self, name: Name, bytes: i64) {
        let moved = bytes.unsigned_abs();
        let bounded =
            |distance: u64| Some(distance.saturating_add(moved)).filter(|d| *d <= MOST_DISTANT);
        for (sum, _, distance) in &mut self.sums {
            *distance = distance.saturating_add(sum.share(name).saturating_mul(moved));
        }
        self.sums.retain(|(.., distance)| *distance <= MOST_DISTANT);
        let mut value = *self.value(name);
        self.forget_kinds(name);
        value.near = value.near.map(|near| near.and_then(bounded));
        value.is_small = false;
        value.kind = match value.kind {
            Kind::Sum(sum) => {
                Kind::Sum(Sum { displacement: sum.displacement.wrapping_add(bytes), ..sum })
            }
            _ => Kind::Any,
        };
        *self.value_mut(name) = value;
    }

    /// Notes that a sum is at most so distant from a unit of `group` that is owned.
    pub(super) fn note(&mut self, sum: Sum, group: usize, distance: u64) {
        let nearer = |known: Option<u64>| Some(known.map_or(distance, |known| known.min(distance)));
        if let (Some(base), None) = (sum.base, sum.index) {
            let near = &mut self.value_mut(base).near[group];
            *near = nearer(*near);
            return;
        }
        let mut known = self.sums.iter_mut();
        match known.find(|(known, of, _)| *of == group && known.has_same_names(&sum)) {
            Some((.., known)) => *known = (*known).min(distance),
            None => self.sums.push((sum, group, distance)),
        }
    }

    /// Notes that `of` was checked for units of `group`.
    pub(super) fn prove(&mut self, of: Subject, group: usize) {
        if let Some(name) = of.name {
            self.value_mut(name).near[group] = Some(0);
        }
        if let Some(sum) = of.sum {
            self.note(sum, group, sum.displacement.unsigned_abs());
        }
    }

    /// Returns the sum that `name` is: that of other names if it is known to be one.
    pub(super) fn sum_of(&self, name: Name) -> Sum {
        match self.value(name).kind {
            Kind::Sum(sum) => sum,
            _ => Sum { base: Some(name), index: None, displacement: 0 },
        }
    }

    /// Returns the distance of the operand `sum` from a unit of `group` that is owned, at most.
    pub(super) fn reach(&self, sum: &Sum, group: usize) -> Option<u64> {
        let displacement = sum.displacement.unsigned_abs();
        let is_owned = |address: u64| self.units.contains(&(unit_of(address), group));
        let near = |name: Name| self.value(name).near[group];
        let small = |name: Name| self.value(name).is_small;
        let known = match (sum.base, sum.index) {
            (None, None) => {
                return is_owned(sum.displacement as u64).then_some(0);
            }
            (Some(base), None) if small(base) && is_owned(sum.displacement as u64) => {
                return Some(SMALL);
            }
            (Some(base), None) => match self.value(base).kind {
                Kind::Number(number) if near(base).is_none() => {
                    let address = number.wrapping_add(sum.displacement as u64);
                    return is_owned(address).then_some(0);
                }
                _ => near(base),
            },
            (Some(base), Some((index, scale))) if small(index) && near(base).is_some() => {
                near(base).map(|near| near + SMALL * u64::from(scale))
            }
            (Some(base), Some((index, 1))) if small(base) && near(index).is_some() => {
                near(index).map(|near| near + SMALL)
            }
            (None, Some((index, scale))) if small(index) && is_owned(sum.displacement as u64) => {
                return Some(SMALL * u64::from(scale));
            }
            _ => self.distance_of(sum, group),
        };
        known.map(|distance| distance + displacement)
    }
}
