//! Facts: addresses of which it is known, in the middle of a block, that they are near memory of the space, so that
//! accesses need no [check](crate::long::low) of them.
//!
//! A *fact* says that an address lies at no more than some distance from one in a unit that the space owns near. A
//! check leads to one, and so does an access, since nothing but such units has memory within reach of it. A register
//! that moves by a constant takes its facts along, at a larger distance; any other change ends them. The distance of a
//! fact, what a displacement adds and what an index of 32 bits adds, 38 GiB at most, are far below a unit, so an
//! access on a fact reaches units that the space owns or their guards.
//!
//! Facts are for the near units and those of the [second group](crate::long::distances) apart: a site accesses units of
//! one group, and those of the other have another distance.
//!
//! Facts are about registers and about which units are owned. Translated code that was left at an instruction goes on
//! there with the same registers, so facts hold still, unless the space has [lost](crate::memory::units::losses) a unit
//! meanwhile. Then only the entry of a block is entered, before which nothing is known.
//!
//! A block that leads to itself checks before its head what all rounds need, and its branch leads behind that. What is
//! known at the head then must be known again at the branch: at most at the distance [`AT_HEAD`].

use iced_x86::{Code, Instruction, Mnemonic, OpAccess, OpKind, Register};

use crate::long::far_sites::Reach;
use crate::long::tables::{Tables, is_plain, only_reads};

/// The number of a guest's register: those of RAX to R15, and these.
pub(crate) const FS_BASE: u8 = 16;
pub(crate) const GS_BASE: u8 = 17;
const RSP: u8 = 4;
const RBP: u8 = 5;

/// The largest distance of a fact, in bytes.
const MOST_DISTANT: u64 = 1 << 32;
/// The largest distance of what is known where a loop begins.
const AT_HEAD: u64 = 1 << 31;
/// Upper bound of the facts in one place.
const MOST_FACTS: usize = 12;
/// Upper bound of the checks before a loop.
const MOST_AT_HEAD: usize = 6;

/// An address near memory of some units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) address: Address,
    /// The group of these units: never all.
    pub(crate) reach: Reach,
}

/// An address, by what it is computed from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Address {
    /// The value of a register.
    Register(u8),
    /// That of a base register, unless there is none, and an index register times a scale.
    Sum { base: Option<u8>, index: u8, scale: u8 },
    /// Any address of this unit.
    Unit(i64),
}

impl Address {
    /// Returns the address in the guest's `register`, of 64 bits.
    pub(crate) fn of(register: Register) -> Address {
        Address::Register(number(register))
    }

    /// Returns the sum of base and index of `instruction`'s memory operand, which has no segment base. Returns None if
    /// it has neither, or something else.
    pub(crate) fn of_operand(instruction: &Instruction) -> Option<Address> {
        let known = |register: Register| register.is_gpr64().then(|| number(register));
        let (base, index) = (instruction.memory_base(), instruction.memory_index());
        if index == Register::None {
            return known(base).map(Address::Register);
        }
        let base = if base == Register::None { None } else { Some(known(base)?) };
        let scale = instruction.memory_index_scale() as u8;
        Some(Address::Sum { base, index: known(index)?, scale })
    }

    /// Returns by how much it moves when `register` moves by 1.
    fn share(self, register: u8) -> u64 {
        match self {
            Address::Register(own) => (own == register).into(),
            Address::Sum { base, index, scale } => {
                let scale = if index == register { scale.into() } else { 0 };
                scale + u64::from(base == Some(register))
            }
            Address::Unit(_) => 0,
        }
    }

    fn uses(self, register: u8) -> bool {
        self.share(register) != 0
    }
}

/// Returns the number of the general register that contains `register`.
fn number(register: Register) -> u8 {
    register.full_register().number() as u8
}

#[derive(Debug, Clone, Copy)]
struct Fact {
    place: Place,
    /// Bytes between it and an address in a unit of that group that is owned, at most.
    distance: u64,
}

/// See the module.
#[derive(Debug, Clone, Default)]
pub(crate) struct Facts {
    known: Vec<Fact>,
    /// The registers that hold numbers of 32 bits, with a sign or without, by bits.
    small: u32,
    /// The registers whose values no longer are those at the beginning of the block, but for a constant, by bits.
    changed: u32,
    /// What was checked that could have been at the beginning of the block.
    wanted: Vec<Place>,
}

impl Facts {
    /// Returns what is known behind checks of `places` before a loop, in all of its rounds.
    pub(crate) fn at_head(places: &[Place]) -> Facts {
        let known = places.iter().map(|place| Fact { place: *place, distance: AT_HEAD });
        Facts { known: known.collect(), ..Facts::default() }
    }

    /// Returns what is known where a call returns to.
    pub(crate) fn after_call() -> Facts {
        Facts { changed: u32::MAX, ..Facts::default() }
    }

    /// Keeps what `other` knows, too, where another way joins.
    pub(crate) fn meet(&mut self, other: &Facts) {
        self.known.retain_mut(|fact| {
            let distance = other.distance(fact.place);
            fact.distance = fact.distance.max(distance.unwrap_or(0));
            distance.is_some()
        });
        self.small &= other.small;
        self.changed |= other.changed;
        for place in &other.wanted {
            if self.wanted.len() < MOST_AT_HEAD && !self.wanted.contains(place) {
                self.wanted.push(*place);
            }
        }
    }

    /// Returns those of `places` that are known again where the loop goes to its next round.
    pub(crate) fn still_at_head(&self, places: &[Place]) -> Vec<Place> {
        let is_known =
            |place: &&Place| self.distance(**place).is_some_and(|distance| distance <= AT_HEAD);
        places.iter().filter(is_known).copied().collect()
    }

    /// Returns what was checked that could have been checked at the beginning of the block.
    pub(crate) fn wanted(&self) -> &[Place] {
        &self.wanted
    }

    fn distance(&self, place: Place) -> Option<u64> {
        self.known.iter().find(|fact| fact.place == place).map(|fact| fact.distance)
    }

    pub(crate) fn knows(&self, place: Place) -> bool {
        self.distance(place).is_some()
    }

    /// Returns whether `register` holds a number of 32 bits, which may be an index beside an address that is known.
    pub(crate) fn is_small(&self, register: u8) -> bool {
        self.small & 1 << register != 0
    }

    /// Notes a check of an address that is `displacement` bytes away from `place`.
    pub(crate) fn note_check(&mut self, place: Place, displacement: i64) {
        let has_changed = (0..u32::BITS as u8)
            .any(|register| self.changed & 1 << register != 0 && place.address.uses(register));
        if !has_changed && self.wanted.len() < MOST_AT_HEAD && !self.wanted.contains(&place) {
            self.wanted.push(place);
        }
        self.note(place, displacement.unsigned_abs());
    }

    /// Notes that `place` is at most so distant from an address in a unit of its group that is owned.
    fn note(&mut self, place: Place, distance: u64) {
        if distance > MOST_DISTANT {
            return;
        }
        if let Some(fact) = self.known.iter_mut().find(|fact| fact.place == place) {
            fact.distance = fact.distance.min(distance);
            return;
        }
        if self.known.len() == MOST_FACTS {
            self.known.remove(0);
        }
        self.known.push(Fact { place, distance });
    }

    /// Notes that `register` moves by `bytes`.
    fn step(&mut self, register: u8, bytes: i64) {
        for fact in &mut self.known {
            let moves = fact.place.address.share(register).saturating_mul(bytes.unsigned_abs());
            fact.distance = fact.distance.saturating_add(moves);
        }
        self.known.retain(|fact| fact.distance <= MOST_DISTANT);
        self.small &= !(1 << register);
    }

    /// Notes that `register` has another value, of which nothing is known.
    pub(crate) fn forget(&mut self, register: u8) {
        self.known.retain(|fact| !fact.place.address.uses(register));
        self.small &= !(1 << register);
        self.changed |= 1 << register;
    }

    /// Notes that `to` now is `displacement` bytes away from `address`.
    fn copy(&mut self, to: u8, address: Address, displacement: i64) {
        if address == Address::Register(to) {
            self.step(to, displacement);
            return;
        }
        let of_address = self.known.iter().filter(|fact| fact.place.address == address);
        let known: Vec<Fact> = of_address.copied().collect();
        self.forget(to);
        for Fact { place: Place { reach, .. }, distance } in known {
            let place = Place { address: Address::Register(to), reach };
            self.note(place, distance.saturating_add(displacement.unsigned_abs()));
        }
    }

    /// Notes what `instruction`, which was translated, changes. Its accesses are to the units `reach`.
    pub(crate) fn follow(&mut self, instruction: &Instruction, reach: Reach, tables: &mut Tables) {
        self.note_access(instruction, reach);
        let top = Place { address: Address::Register(RSP), reach };
        match instruction.code() {
            Code::Push_r64
            | Code::Push_rm64
            | Code::Pushq_imm8
            | Code::Pushq_imm32
            | Code::Pushfq => {
                self.step(RSP, -8);
                self.improve(top, 0);
                return;
            }
            Code::Pop_r64 | Code::Pop_rm64 => {
                self.improve(top, 0);
                self.step(RSP, 8);
                if instruction.op0_kind() == OpKind::Register {
                    self.forget(number(instruction.op0_register()));
                }
                return;
            }
            Code::Popfq => return self.step(RSP, 8),
            Code::Leaveq => {
                self.copy(RSP, Address::Register(RBP), 8);
                return self.forget(RBP);
            }
            Code::Swapgs => return self.forget(GS_BASE),
            _ => {}
        }
        if self.follow_move(instruction) {
            return;
        }
        let becomes_small = becomes_small(instruction);
        if is_plain(instruction) {
            let first = instruction.op0_register();
            let is_register = instruction.op0_kind() == OpKind::Register && first.is_gpr();
            if is_register && !only_reads(instruction) {
                self.forget(number(first));
            }
        } else {
            for used in tables.info(instruction).used_registers() {
                let is_read = matches!(used.access(), OpAccess::Read | OpAccess::CondRead);
                if used.register().is_gpr() && !is_read {
                    self.forget(number(used.register()));
                }
            }
        }
        if let Some(register) = becomes_small {
            self.small |= 1 << register;
        }
    }

    /// Makes the distance of `place` no more than `distance`, if it is known.
    fn improve(&mut self, place: Place, distance: u64) {
        if self.knows(place) {
            self.note(place, distance);
        }
    }

    /// Notes that `instruction` has accessed its memory operand, in the units `reach`, if it surely has.
    fn note_access(&mut self, instruction: &Instruction, reach: Reach) {
        let is_sure = matches!(
            instruction.mnemonic(),
            Mnemonic::Mov
                | Mnemonic::Movzx
                | Mnemonic::Movsx
                | Mnemonic::Movsxd
                | Mnemonic::Add
                | Mnemonic::Sub
                | Mnemonic::And
                | Mnemonic::Or
                | Mnemonic::Xor
                | Mnemonic::Cmp
                | Mnemonic::Test
                | Mnemonic::Inc
                | Mnemonic::Dec
                | Mnemonic::Movups
                | Mnemonic::Movaps
                | Mnemonic::Movdqu
                | Mnemonic::Movdqa
                | Mnemonic::Movsd
                | Mnemonic::Movss
                | Mnemonic::Movq
                | Mnemonic::Movd
                | Mnemonic::Vmovups
                | Mnemonic::Vmovaps
                | Mnemonic::Vmovdqu
                | Mnemonic::Vmovdqa
                | Mnemonic::Vmovsd
                | Mnemonic::Vmovss
                | Mnemonic::Vmovq
                | Mnemonic::Vmovd
        );
        let has_operand = instruction.op_kinds().any(|kind| kind == OpKind::Memory);
        let has_base = matches!(instruction.memory_segment(), Register::FS | Register::GS);
        if is_sure
            && has_operand
            && !has_base
            && let Some(address) = Address::of_operand(instruction)
        {
            let displacement = instruction.memory_displacement64() as i64;
            self.improve(Place { address, reach }, displacement.unsigned_abs());
        }
    }

    /// Notes what `instruction` changes if it moves a register of 64 bits by a constant, or copies it. Returns whether
    /// it does.
    fn follow_move(&mut self, instruction: &Instruction) -> bool {
        let to = instruction.op0_register();
        if instruction.op0_kind() != OpKind::Register || !to.is_gpr64() {
            return false;
        }
        let to = number(to);
        let is_number = instruction.op_count() == 2
            && !matches!(instruction.op1_kind(), OpKind::Register | OpKind::Memory);
        let by = if is_number { instruction.immediate(1) as i64 } else { 0 };
        match instruction.mnemonic() {
            Mnemonic::Add | Mnemonic::Sub if is_number => self.step(to, by),
            Mnemonic::Inc | Mnemonic::Dec => self.step(to, 1),
            // It becomes less by the bits that are cleared.
            Mnemonic::And if is_number && by < 0 => self.step(to, !by),
            Mnemonic::Mov if instruction.op1_kind() == OpKind::Register => {
                let from = instruction.op1_register();
                if !from.is_gpr64() {
                    return false;
                }
                let is_small = self.is_small(number(from));
                self.copy(to, Address::Register(number(from)), 0);
                self.small |= u32::from(is_small) << to;
            }
            Mnemonic::Lea => {
                let Some(address) = Address::of_operand(instruction) else { return false };
                self.copy(to, address, instruction.memory_displacement64() as i64);
            }
            _ => return false,
        }
        true
    }
}

/// Returns the register in which `instruction` leaves a number of 32 bits, with a sign or without.
fn becomes_small(instruction: &Instruction) -> Option<u8> {
    use Mnemonic as M;
    if instruction.code() == Code::Cdqe {
        return Some(number(Register::RAX));
    }
    let to = instruction.op0_register();
    if instruction.op0_kind() != OpKind::Register || !to.is_gpr() {
        return None;
    }
    let is_at_least = |least: i64| {
        instruction.op1_kind() != OpKind::Register
            && instruction.op1_kind() != OpKind::Memory
            && instruction.immediate(1) as i64 >= least
    };
    let is_small = match (instruction.mnemonic(), to.size()) {
        (M::Movsxd | M::Movzx | M::Movsx, size) => size >= 4,
        (
            M::Mov
            | M::Add
            | M::Sub
            | M::And
            | M::Or
            | M::Xor
            | M::Lea
            | M::Inc
            | M::Dec
            | M::Neg
            | M::Not,
            4,
        ) => true,
        (M::Imul, 4) => instruction.op_count() > 1,
        (M::And, 8) => is_at_least(0),
        (M::Shl | M::Shr | M::Sar, 4) => is_at_least(1) && instruction.immediate(1) < 32,
        (M::Shr, 8) => is_at_least(32) && instruction.immediate(1) < 64,
        _ => instruction.code() == Code::Mov_rm64_imm32,
    };
    is_small.then(|| number(to))
}
