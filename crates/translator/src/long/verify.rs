//! The checker of translated 64-bit code: it decodes a block's finished host code, and derives anew for each access
//! that it reaches memory of the space or none. It shares nothing with [`facts`](crate::long::facts), by which checks
//! were left out, nor with what wrote the code. A block of which it is not convinced is not executed.
//!
//! It follows the [ways] through the code from the block's entry, where nothing is known. It knows the host's registers
//! and the fields of the context that hold registers of the guest by *names*, and of each value at which distance from
//! a unit that is owned near it lies at most, whether it is a number of 32 bits, and whether it is the sum of other
//! names.

use std::ops::Range;

use iced_x86::{Code, Instruction, InstructionInfoFactory, Mnemonic, OpKind, Register};

use crate::long::context::{LongContext, at, register_at};
use crate::long::low::{Addresses, CHECK_SHIFT};
use crate::memory::units::SHIFT;
use crate::returns::ROOM_CHECK;
use effects::has_memory_operand;
use state::{
    Kind, MOST_DISTANT, NEAR, NOTHING, Name, R9, RAX, REGISTERS, RSP, SECOND, State, Subject, Sum,
    UNKNOWN, Value, name_of,
};
use ways::Ways;

mod effects;
mod state;
#[cfg(test)]
mod tests;
mod ways;

/// Bytes from an address in a unit to an access on its fact, at most: well below a unit.
const REACH: u64 = 48 << 30;
/// Bytes below the address that is the budget that may be read.
const BUDGET: i64 = 1 << 7;
/// What a bit's number of 32 bits adds to an address.
const BITS: u64 = 1 << 29;

/// See the module.
#[derive(Debug)]
pub(crate) struct Checker {
    addresses: Addresses,
    /// The tables of checks, by the group that each is for. The supervisor has one.
    tables: Vec<u32>,
    far_table: u32,
    /// The host addresses of the bytes that the code was made from, which it may read.
    guest_code: Range<u64>,
    factory: InstructionInfoFactory,
    ways: Ways,
}

impl Checker {
    /// Returns a checker of code of users (`is_user`) or of the supervisor.
    pub(crate) fn new(addresses: Addresses, is_user: bool) -> Checker {
        let side = usize::from(is_user);
        let tables = if is_user { &addresses.tables[1..] } else { &addresses.tables[..1] };
        Checker {
            addresses,
            tables: tables.to_vec(),
            far_table: addresses.far_tables[side],
            guest_code: 0..0,
            factory: InstructionInfoFactory::new(),
            ways: Ways::default(),
        }
    }

    /// Lets code read the bytes at these host addresses, from which it was made, and no others.
    pub(crate) fn reading(&mut self, guest_code: Range<u64>) -> &mut Checker {
        self.guest_code = guest_code;
        self
    }

    /// Returns the name of the field of the context at `address`.
    fn field(&self, address: u64) -> Option<Name> {
        let offset = address.checked_sub(self.addresses.context.into())?;
        let place = |first: u32, count: u64| {
            let number = offset.checked_sub(first.into())?;
            (number % 8 == 0 && number / 8 < count).then_some((number / 8) as Name)
        };
        let register = place(register_at(Register::R8), 4).map(|number| REGISTERS + number);
        register.or_else(|| place(at::BASES, 2).map(|number| REGISTERS + 4 + number))
    }

    /// Returns whether the `bytes` at `address` are part of the context.
    fn is_in_context(&self, address: u64) -> bool {
        let offset = address.wrapping_sub(self.addresses.context.into());
        offset < size_of::<LongContext>() as u64
    }

    /// Returns whether all of the memory operand of `instruction`, at `address`, is among the bytes that the code was
    /// made from.
    fn is_guest_code(&self, instruction: &Instruction, address: u64) -> bool {
        let last = address.wrapping_add(instruction.memory_size().size() as u64).wrapping_sub(1);
        self.guest_code.contains(&address) && self.guest_code.contains(&last)
    }

    /// Notes what `instruction` does. Returns false if it may access what is not the guest's.
    fn execute(&mut self, state: &mut State, instruction: &Instruction) -> bool {
        if instruction.is_invalid() {
            return false;
        }
        let has_operand = has_memory_operand(instruction);
        let accesses =
            has_operand && !matches!(instruction.mnemonic(), Mnemonic::Lea | Mnemonic::Nop);
        let is_implicit = matches!(
            instruction.mnemonic(),
            Mnemonic::Xlatb | Mnemonic::Maskmovq | Mnemonic::Maskmovdqu | Mnemonic::Vmaskmovdqu
        );
        if is_implicit
            || instruction.is_string_instruction() && !Checker::walks_on(state, instruction)
        {
            return false;
        }
        let mut result = None;
        if accesses {
            if instruction.memory_segment() == Register::GS {
                let sum = Checker::operand(instruction);
                if !sum.is_some_and(|sum| self.is_on_facts(state, instruction, sum, NEAR)) {
                    return false;
                }
            } else if let Some(sum) = Checker::at_second_distance(state, instruction) {
                if !self.is_on_facts(state, instruction, sum, SECOND) {
                    return false;
                }
            } else if !self.reads_table(state, instruction, &mut result)
                && !self.is_ours(state, instruction, &mut result)
            {
                return false;
            }
        }
        let to = effects::first_register(instruction);
        // The host's stack is ours, and only these move it.
        if to == Some(RSP)
            && !(instruction.mnemonic() == Mnemonic::Lea
                && instruction.memory_base() == Register::RSP)
            && !matches!(instruction.mnemonic(), Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Push)
        {
            return false;
        }
        if let (Some(to), Some(value)) = (to, result) {
            state.set(to, value);
            return true;
        }
        match instruction.mnemonic() {
            Mnemonic::Call => {
                // The routines that are called within a block keep the guest's registers, or do not come back. What
                // else is called comes back with others.
                let context = Kind::Number(self.addresses.context.into());
                let offset = instruction.memory_displacement64() as u32;
                if instruction.memory_base() == Register::R11
                    && state.value(name_of(Register::R11)).kind == context
                    && matches!(
                        offset,
                        at::VECTOR_CHECK
                            | at::AVX_CHECK
                            | at::X87_CHECK
                            | at::POPF
                            | at::ASK_INTERPRETER
                    )
                {
                    for register in [Register::R10, Register::R11] {
                        state.set(name_of(register), UNKNOWN);
                    }
                } else {
                    state.clear();
                }
                return true;
            }
            Mnemonic::Mov if instruction.code() == Code::Mov_rm64_r64 && has_operand => {
                return self.store(state, instruction);
            }
            _ => {}
        }
        if let Some(to) = to
            && Checker::moves(state, instruction, to)
        {
            return true;
        }
        let is_small = match instruction.code() {
            Code::Cdqe => Some(RAX),
            _ => to.filter(|_| effects::leaves_small_number(instruction)),
        };
        for written in self.written(instruction).names() {
            state.set(written, Value { is_small: is_small == Some(written), ..UNKNOWN });
        }
        true
    }

    /// Returns whether `instruction`, a string instruction, only accesses memory of the guest from host
    /// addresses of that on, however often it is repeated: elements lie side by side, so it faults in a guard before it
    /// meets anything else. Afterwards nothing is known of its registers.
    fn walks_on(state: &State, instruction: &Instruction) -> bool {
        instruction.op_kinds().all(|kind| {
            let index = match kind {
                OpKind::MemorySegRSI => Register::RSI,
                OpKind::MemoryESRDI => Register::RDI,
                // INS and OUTS have DX.
                OpKind::Register => return true,
                _ => return false,
            };
            let is_flat = index == Register::RDI || instruction.segment_prefix() == Register::None;
            is_flat && matches!(state.value(name_of(index)).kind, Kind::Placed(_))
        }) && !instruction.op_kinds().enumerate().any(|(number, kind)| {
            kind == OpKind::Register && instruction.op_register(number as u32) == Register::DX
        })
    }

    /// Returns the operand of `instruction` as a sum of registers, unless it has others than those of 64 bits.
    fn operand(instruction: &Instruction) -> Option<Sum> {
        let name = |register: Register| match register {
            Register::None | Register::RIP => Some(None),
            register if register.is_gpr64() => Some(Some(name_of(register))),
            _ => None,
        };
        Some(Sum {
            base: name(instruction.memory_base())?,
            index: name(instruction.memory_index())?
                .map(|index| (index, instruction.memory_index_scale() as u8)),
            displacement: instruction.memory_displacement64() as i64,
        })
    }

    /// Returns the operand of `instruction` without the distance of the second group, if that is a part of it.
    fn at_second_distance(state: &State, instruction: &Instruction) -> Option<Sum> {
        let sum = Checker::operand(instruction)?;
        let is_distance = |name: Name| state.value(name).kind == Kind::SecondDistance;
        match (sum.base, sum.index) {
            (base, Some((index, 1))) if is_distance(index) => {
                Some(Sum { base, index: None, ..sum })
            }
            (Some(base), index) if is_distance(base) => Some(Sum { base: None, index, ..sum }),
            _ => None,
        }
    }

    /// Returns whether an access to `sum` at the distance of `group` is on facts.
    fn is_on_facts(
        &mut self,
        state: &mut State,
        instruction: &Instruction,
        sum: Sum,
        group: usize,
    ) -> bool {
        let Some(distance) = state.reach(&sum, group) else { return false };
        let is_bit_test = matches!(
            instruction.mnemonic(),
            Mnemonic::Bt | Mnemonic::Bts | Mnemonic::Btr | Mnemonic::Btc
        );
        if is_bit_test
            && instruction.op1_kind() == OpKind::Register
            && instruction.op1_register().is_gpr64()
        {
            return false;
        }
        if distance + BITS > REACH {
            return false;
        }
        if self.surely_accesses(instruction) {
            let distance = sum.displacement.unsigned_abs();
            let is_known = match (sum.base, sum.index) {
                (Some(base), None) => state.value(base).near[group].is_some(),
                _ => state.distance_of(&sum, group).is_some(),
            };
            if is_known {
                state.note(sum, group, distance);
            }
            if let (Some(base), None) = (sum.base, sum.index)
                && let Kind::Sum(of) = state.value(base).kind
            {
                let displacement = of.displacement.wrapping_add(sum.displacement);
                state.note(of, group, displacement.unsigned_abs());
            }
        }
        true
    }

    /// Returns whether `instruction` reads a table of checks or what follows from that. Then `result` is what it loads.
    fn reads_table(
        &mut self,
        state: &mut State,
        instruction: &Instruction,
        result: &mut Option<Value>,
    ) -> bool {
        let (base, index) = (instruction.memory_base(), instruction.memory_index());
        let displacement = instruction.memory_displacement64();
        let of_kind = |kind| Some(Value { kind, ..UNKNOWN });
        let is_index = base == Register::None || base.is_gpr32();
        if instruction.code() == Code::Movzx_r32_rm8 && index == Register::None && is_index {
            if base == Register::None {
                let half = 1_i64 << CHECK_SHIFT;
                let found = self.tables.iter().enumerate().find_map(|(group, table)| {
                    let byte = (displacement as i64).wrapping_sub((*table).into());
                    (-half..half).contains(&byte).then_some((byte >> (SHIFT - CHECK_SHIFT), group))
                });
                let Some(unit) = found else { return false };
                state.units.push(unit);
                *result = of_kind(Kind::Any);
                return true;
            }
            let Kind::Rotated(of) = state.value(name_of(base)).kind else {
                return false;
            };
            let group = self.tables.iter().position(|table| displacement == u64::from(*table));
            if let Some(group) = group {
                state.prove(of, group);
                *result = of_kind(Kind::Any);
                return true;
            }
            *result = of_kind(Kind::DistanceNumber(of));
            return displacement == u64::from(self.far_table);
        }
        let distances = u64::from(self.addresses.context + at::distance(0));
        if instruction.code() == Code::Mov_r64_rm64
            && base == Register::None
            && index.is_gpr64()
            && instruction.memory_index_scale() == 8
            && displacement == distances
            && let Kind::DistanceNumber(of) = state.value(name_of(index)).kind
        {
            *result = of_kind(Kind::Distance(of));
            return true;
        }
        // An access at the distance of its own address.
        let is_placed = |address: Register, distance: Register| {
            address.is_gpr64()
                && distance.is_gpr64()
                && matches!(state.value(name_of(distance)).kind,
                    Kind::Distance(Subject { name, .. }) if name == Some(name_of(address)))
        };
        if instruction.memory_index_scale() == 1
            && (is_placed(base, index) || is_placed(index, base))
        {
            return true;
        }
        // An index of 32 bits adds far less than a unit.
        let is_short =
            index == Register::None || index.is_gpr64() && state.value(name_of(index)).is_small;
        if !is_short || !base.is_gpr64() {
            return false;
        }
        let Kind::Placed(of) = state.value(name_of(base)).kind else { return false };
        if let Some(of) = of.filter(|_| index == Register::None)
            && self.surely_accesses(instruction)
        {
            let distance = of.displacement.wrapping_add(displacement as i64);
            state.note(of, SECOND, distance.unsigned_abs());
        }
        true
    }

    /// Returns whether `instruction` accesses memory of ours in one of the few ways there are. Then `result` is what it
    /// loads, if that is not unknown.
    fn is_ours(
        &self,
        state: &State,
        instruction: &Instruction,
        result: &mut Option<Value>,
    ) -> bool {
        let Some(sum) = Checker::operand(instruction) else { return false };
        let only_reads = instruction.op0_kind() != OpKind::Memory
            || matches!(
                instruction.mnemonic(),
                Mnemonic::Push | Mnemonic::Jmp | Mnemonic::Call | Mnemonic::Cmp | Mnemonic::Test
            );
        let mut address = (sum.base, sum.index) == (None, None);
        let mut place = sum.displacement as u64;
        if let (Some(base), None) = (sum.base, sum.index) {
            let displacement = sum.displacement;
            match state.value(base).kind {
                Kind::Number(number) => {
                    (address, place) = (true, number.wrapping_add(displacement as u64));
                }
                Kind::Own => return only_reads && (0..1 << 31).contains(&displacement),
                // The budget, and the host's stack.
                _ if base == R9 => {
                    return only_reads && (-BUDGET..=0).contains(&displacement);
                }
                _ if base == RSP => {
                    return (-(ROOM_CHECK as i64)..=64).contains(&displacement);
                }
                _ => return false,
            }
        }
        if address && only_reads && self.is_guest_code(instruction, place) {
            return true;
        }
        if !address || !self.is_in_context(place) {
            return false;
        }
        // Nothing else changes the guest's registers there.
        let overlaps = [0, 7].iter().any(|byte| self.field((place + byte) & !7).is_some());
        if !only_reads && overlaps && instruction.code() != Code::Mov_rm64_r64 {
            return false;
        }
        if instruction.code() == Code::Mov_r64_rm64 {
            let value = if let Some(name) = self.field(place) {
                let kind = Kind::Sum(Sum { base: Some(name), index: None, displacement: 0 });
                Value { kind, ..*state.value(name) }
            } else {
                let offset = (place - u64::from(self.addresses.context)) as u32;
                let kind = match offset {
                    at::TABLE | at::CPU | at::AFTER_REPEATING => Kind::Own,
                    at::SECOND_DISTANCE if self.tables.len() > SECOND => Kind::SecondDistance,
                    _ => Kind::Any,
                };
                Value { kind, ..UNKNOWN }
            };
            *result = Some(value);
        }
        true
    }

    /// Notes a store of a register of 64 bits, which may be one to a field of the context.
    fn store(&self, state: &mut State, instruction: &Instruction) -> bool {
        let is_plain = instruction.memory_segment() != Register::GS
            && instruction.memory_index() == Register::None
            && matches!(instruction.memory_base(), Register::RIP | Register::None);
        if let Some(name) = self.field(instruction.memory_displacement64()).filter(|_| is_plain) {
            let from = *state.value(name_of(instruction.op1_register()));
            match from.kind {
                Kind::Sum(Sum { base: Some(base), index: None, displacement }) if base == name => {
                    state.step_to(name, displacement, from);
                }
                _ => state.set(name, Value { kind: Kind::Any, ..from }),
            }
        }
        true
    }

    /// Notes what `instruction` does if it gives register `to` a value about which something is known.
    fn moves(state: &mut State, instruction: &Instruction, to: Name) -> bool {
        let is_long = instruction.op0_register().is_gpr64();
        let op1 = instruction.op1_register();
        let from = op1.is_gpr64().then(|| name_of(op1));
        let is_number = instruction.op_count() == 2
            && !matches!(instruction.op1_kind(), OpKind::Register | OpKind::Memory);
        let number = if is_number { instruction.immediate(1) } else { 0 };
        match instruction.mnemonic() {
            Mnemonic::Mov if is_number && instruction.op0_register().size() >= 4 => {
                let kind = Kind::Number(if is_long { number } else { u64::from(number as u32) });
                let is_small =
                    i32::try_from(number as i64).is_ok() || u32::try_from(number).is_ok();
                state.set(to, Value { is_small, kind, ..UNKNOWN });
            }
            Mnemonic::Mov if is_long && from.is_some() => {
                let from = from.unwrap_or(to);
                let kind = match state.value(from).kind {
                    Kind::Any | Kind::Placed(_) => Kind::Sum(state.sum_of(from)),
                    kind => kind,
                };
                state.set(to, Value { kind, ..*state.value(from) });
            }
            Mnemonic::Add if is_long && is_number => state.step(to, number as i64),
            Mnemonic::Sub if is_long && is_number => state.step(to, (number as i64).wrapping_neg()),
            Mnemonic::Inc if is_long => state.step(to, 1),
            Mnemonic::Dec if is_long => state.step(to, -1),
            Mnemonic::And if is_long && is_number && (number as i64) < 0 => {
                state.clear_bits(to, !(number as i64));
            }
            Mnemonic::Rorx if is_long && number_of_rotation(instruction) == Some(CHECK_SHIFT) => {
                let Some(from) = from else { return false };
                let sum = state.sum_of(from);
                let of = Subject {
                    name: (from != to).then_some(from),
                    sum: (sum.share(to) == 0).then_some(sum),
                };
                state.set(to, Value { kind: Kind::Rotated(of), ..UNKNOWN });
            }
            Mnemonic::Movzx if instruction.code() == Code::Movzx_r32_rm16 && op1.is_gpr16() => {
                state.set(to, Value { is_small: true, kind: Kind::Index, ..UNKNOWN });
            }
            Mnemonic::Lea if is_long => return Checker::loads_sum(state, instruction, to),
            _ => return false,
        }
        true
    }

    /// Notes an LEA of 64 bits into `to`. Returns false if nothing is known of the sum.
    fn loads_sum(state: &mut State, instruction: &Instruction, to: Name) -> bool {
        let Some(sum) = Checker::operand(instruction) else { return false };
        if to == RSP || instruction.memory_base() == Register::RIP {
            return to == RSP;
        }
        if (sum.base, sum.index) == (Some(to), None) {
            state.step(to, sum.displacement);
            return true;
        }
        if let (Some(base), Some((index, 8)), 0) = (sum.base, sum.index, sum.displacement)
            && [base, index].map(|name| state.value(name).kind) == [Kind::Own, Kind::Index]
        {
            state.set(to, Value { kind: Kind::Own, ..UNKNOWN });
            return true;
        }
        // Its parts may have been loaded from the context.
        let is_scratch =
            |name: Name| [Register::R10, Register::R11].iter().any(|r| name_of(*r) == name);
        let whole = |name: Name| {
            is_scratch(name).then(|| state.sum_of(name)).filter(|sum| sum.index.is_none())
        };
        let kind = match (sum.base, sum.index) {
            (Some(base), Some((index, 1))) if matches!(state.value(index).kind, Kind::Distance(of) if of.name == Some(base)) => {
                Kind::Placed(None)
            }
            (Some(base), Some((index, 1)))
                if state.value(index).kind == Kind::SecondDistance
                    && state.reach(&Sum { base: Some(base), ..NOTHING }, SECOND).is_some() =>
            {
                let of = state.sum_of(base);
                let is_plain = sum.displacement == 0 && of.share(to) == 0;
                Kind::Placed(is_plain.then_some(of))
            }
            (base, index) => {
                let base =
                    base.map(|base| whole(base).unwrap_or(Sum { base: Some(base), ..NOTHING }));
                let index = index.map(|(index, scale)| {
                    let of = whole(index).filter(|of| of.displacement == 0);
                    (of.and_then(|of| of.base).unwrap_or(index), scale)
                });
                let displacement =
                    base.map_or(0, |base| if base.index.is_none() { base.displacement } else { 0 });
                Kind::Sum(Sum {
                    base: base.and_then(|base| base.base),
                    index,
                    displacement: sum.displacement.wrapping_add(displacement),
                })
            }
        };
        let near = std::array::from_fn(|group| {
            let whole = match kind {
                Kind::Sum(whole) if whole.index.is_some() => state
                    .distance_of(&whole, group)
                    .map(|distance| distance + whole.displacement.unsigned_abs()),
                _ => None,
            };
            let plain = match (sum.base, sum.index) {
                (Some(base), None) => {
                    let near = state.value(base).near[group];
                    near.map(|near| near + sum.displacement.unsigned_abs())
                }
                _ => None,
            };
            whole.or(plain).filter(|near| *near <= MOST_DISTANT)
        });
        state.set(to, Value { near, is_small: false, kind });
        true
    }
}

/// Returns by how many bits `instruction`, RORX, rotates.
fn number_of_rotation(instruction: &Instruction) -> Option<u32> {
    (instruction.op2_kind() == OpKind::Immediate8).then(|| instruction.immediate8().into())
}
