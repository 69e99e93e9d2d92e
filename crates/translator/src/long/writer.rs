//! Writes host code for 64-bit code: the sequences that its translation consists of, above those of [`Emitter`].

use iced_x86::{Code, Instruction, MemoryOperand, Register};

use crate::code::emitter::{Branch, Emitter};
use crate::long::context::{at, reason, register_at};
use crate::long::facts::{Address, FS_BASE, Facts, Place};
use crate::long::far_sites::Reach;
use crate::long::jump_table::{CODE, INDEX_ROTATION, slot_offset};
use crate::long::low::{Addresses, CHECK_SHIFT, Table};
use crate::long::tables::Tables;
use crate::memory::units::{first_of, unit_of};

/// The opcode of JRCXZ.
pub(crate) const JRCXZ: u8 = 0xe3;
// Opcodes of MOV from and to memory, MOVZX of a byte, and LEA.
const LOAD: [u8; 2] = [0, 0x8b];
const STORE: [u8; 2] = [0, 0x89];
const LOAD_BYTE: [u8; 2] = [0x0f, 0xb6];
const LEA: [u8; 2] = [0, 0x8d];
/// Bytes of a near jump.
pub(crate) const JUMP: u8 = 5;

/// Host code that is being written for 64-bit code of the supervisor or of users.
pub(crate) struct Writer {
    pub(crate) emitter: Emitter,
    pub(crate) addresses: Addresses,
    pub(crate) is_user: bool,
    /// The units that the accesses of the present site go to.
    pub(crate) reach: Reach,
    /// What is known of addresses here.
    pub(crate) facts: Facts,
    /// The guest's RSP less R8. Instructions that push and pop, which mostly come several in a row, change only this.
    pub(crate) stack_offset: i16,
    pub(crate) tables: Tables,
}

/// The registers that hold nothing at some place.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Scratch {
    Both,
    R10,
    R11,
}

/// Returns whether the guest's `register`, of any size, is one that the context holds: R8 to R11.
pub(crate) fn is_in_context(register: Register) -> bool {
    register.is_gpr()
        && matches!(
            register.full_register(),
            Register::R8 | Register::R9 | Register::R10 | Register::R11
        )
}

/// Returns the host's register that has the guest's `register`, which is not in the context.
pub(crate) fn rename(register: Register) -> Register {
    match register {
        Register::RSP => Register::R8,
        Register::ESP => Register::R8D,
        Register::SP => Register::R8W,
        Register::SPL => Register::R8L,
        other => other,
    }
}

/// Returns the register of the size of `register` that is a part of `whole`, one of R8 to R15.
pub(crate) fn of_size(whole: Register, register: Register) -> Register {
    let number = whole.number() as u32;
    match register.size() {
        1 => Register::R8L + (number - 8),
        2 => Register::AX + number,
        4 => Register::EAX + number,
        _ => whole,
    }
}

/// Returns the operand at `displacement` from the linear address in `base`, which has been checked.
pub(crate) fn in_window(base: Register, displacement: i64) -> MemoryOperand {
    // RBP and R13 without a displacement are other encodings (SDM vol. 2, table 2-5).
    let is_bare = displacement == 0 && !matches!(base, Register::RBP | Register::R13);
    let size = u32::from(!is_bare);
    MemoryOperand::new(base, Register::None, 1, displacement, size, false, Register::GS)
}

/// Returns the operand at `displacement` from the host address in `base`, plus `index`.
pub(crate) fn on_host(base: Register, index: Register, displacement: i64) -> MemoryOperand {
    let is_bare = displacement == 0 && !matches!(base, Register::RBP | Register::R13);
    let size = u32::from(!is_bare);
    MemoryOperand::new(base, index, 1, displacement, size, false, Register::None)
}

impl Writer {
    pub(crate) fn new(host: u32, addresses: Addresses, is_user: bool) -> Writer {
        Writer {
            emitter: Emitter::new(host),
            addresses,
            is_user,
            reach: Reach::Near,
            facts: Facts::default(),
            stack_offset: 0,
            tables: Tables::default(),
        }
    }

    /// Returns the field of the context at `offset`.
    pub(crate) fn field(&self, offset: u32) -> MemoryOperand {
        let address = i64::from(self.addresses.context + offset);
        MemoryOperand::with_base_displ_size(Register::RIP, address, 8)
    }

    /// Returns the field with the guest's `register`, one of R8 to R11.
    pub(crate) fn register(&self, register: Register) -> MemoryOperand {
        self.field(register_at(register.full_register()))
    }

    /// `mov r64, [address]`.
    pub(crate) fn load(&mut self, to: Register, from: MemoryOperand) {
        self.emitter.access(LOAD, to, &from);
    }

    /// `mov [address], r64`.
    pub(crate) fn store(&mut self, to: MemoryOperand, from: Register) {
        self.emitter.access(STORE, from, &to);
    }

    /// Loads `to`, of 64 bits, with `number`.
    pub(crate) fn load_number(&mut self, to: Register, number: u64) {
        if let Ok(low) = u32::try_from(number) {
            self.emitter.load_number(to, low);
        } else {
            self.emitter.load_long_number(to, number);
        }
    }

    /// `lea to, [base + displacement]`.
    pub(crate) fn add(&mut self, to: Register, base: Register, displacement: i64) {
        let sum = MemoryOperand::with_base_displ_size(base, displacement, 1);
        self.emitter.access(LEA, to, &sum);
    }

    /// `lea to, [a + b]`.
    pub(crate) fn add_registers(&mut self, to: Register, a: Register, b: Register) {
        let sum = MemoryOperand::with_base_index(a, b);
        self.emitter.access(LEA, to, &sum);
    }

    /// `lea to, [a + b + displacement]`.
    pub(crate) fn add_sum(&mut self, to: Register, a: Register, b: Register, displacement: i64) {
        let sum = MemoryOperand::with_base_index_scale_displ_size(a, b, 1, displacement, 1);
        self.emitter.access(LEA, to, &sum);
    }

    /// Returns `address` as a place in the units of the present site, which is not far.
    pub(crate) fn place(&self, address: Address) -> Place {
        Place { address, reach: self.reach }
    }

    /// Returns the address of the byte for linear address 0 in the table of checks for `reach`, which is not all units.
    fn table_of(&self, reach: Reach) -> i64 {
        let table = match reach {
            Reach::Second => Table::Second,
            _ => Table::near(self.is_user),
        };
        self.addresses.tables[table as usize].into()
    }

    /// Checks the linear address in `address`: faults unless its unit is shown among those of `reach`. Uses `scratch`,
    /// R10 or R11.
    pub(crate) fn check(&mut self, address: Register, scratch: Register, reach: Reach) {
        self.emitter.rotate(scratch, address, CHECK_SHIFT as u8);
        let low = scratch.full_register32();
        let byte = MemoryOperand::with_base_displ_size(low, self.table_of(reach), 4);
        self.emitter.access(LOAD_BYTE, low, &byte);
    }

    /// Loads `to`, R10 or R11, with the distance of the linear address in `address`.
    pub(crate) fn find_distance(&mut self, address: Register, to: Register) {
        self.emitter.rotate(to, address, CHECK_SHIFT as u8);
        let low = to.full_register32();
        let table = i64::from(self.addresses.far_tables[usize::from(self.is_user)]);
        let number = MemoryOperand::with_base_displ_size(low, table, 4);
        self.emitter.access(LOAD_BYTE, low, &number);
        let first = i64::from(self.addresses.context + at::distance(0));
        let distance = MemoryOperand::new(Register::None, to, 8, first, 8, false, Register::None);
        self.load(to, distance);
    }

    /// Loads `to`, R10 or R11, with the distance of the second group of units. R11 keeps it until it is used for something
    /// else: who enters translated code in the middle of a block loads it, too.
    pub(crate) fn load_second_distance(&mut self, to: Register) {
        if self.emitter.kept() == Some(to) {
            return;
        }
        self.load(to, self.field(at::SECOND_DISTANCE));
        if to == Register::R11 {
            self.emitter.keep(Some(to));
        }
    }

    /// Checks the address of `place` before a loop. Uses R10 and R11.
    pub(crate) fn check_before_loop(&mut self, place: Place) {
        let Place { address, reach } = place;
        match address {
            Address::Unit(unit) => self.check_unit(unit, reach),
            Address::Register(register) => {
                let host = self.value(register, Register::R11);
                self.check(host, Register::R10, reach);
            }
            Address::Sum { base, index, scale } => {
                let base = base.map_or(Register::None, |base| self.value(base, Register::R10));
                let index = self.value(index, Register::R11);
                let size = if base == Register::None { 8 } else { 1 };
                let sum =
                    MemoryOperand::new(base, index, scale.into(), 0, size, false, Register::None);
                self.emitter.access(LEA, Register::R11, &sum);
                self.check(Register::R11, Register::R10, reach);
            }
        }
    }

    /// Returns the host's register with the value of the guest's register with this [number](FS_BASE): `free`, into
    /// which it is loaded, if the context holds it.
    fn value(&mut self, register: u8, free: Register) -> Register {
        let guest = Register::RAX + u32::from(register.min(FS_BASE - 1));
        if register >= FS_BASE {
            self.load(free, self.field(at::BASES + 8 * u32::from(register - FS_BASE)));
        } else if is_in_context(guest) {
            self.load(free, self.register(guest));
        } else {
            return rename(guest);
        }
        free
    }

    /// Checks the address of the guest's register that is in `base` unless it is [known](Facts). Returns the operand at
    /// `displacement` from it, which may contain R11, or R10 if `scratch` is that alone.
    pub(crate) fn checked(
        &mut self,
        base: Register,
        displacement: i64,
        scratch: Scratch,
    ) -> MemoryOperand {
        let (scratch, distance) = match scratch {
            Scratch::Both => (Register::R10, Register::R11),
            Scratch::R10 => (Register::R10, Register::R10),
            Scratch::R11 => (Register::R11, Register::R11),
        };
        if self.reach == Reach::All {
            self.find_distance(base, distance);
            return on_host(base, distance, displacement);
        }
        let place =
            self.place(Address::of(if base == Register::R8 { Register::RSP } else { base }));
        if !self.facts.knows(place) {
            self.check(base, scratch, self.reach);
            self.facts.note_check(place, 0);
        }
        if self.reach == Reach::Near {
            return in_window(base, displacement);
        }
        self.load_second_distance(distance);
        on_host(base, distance, displacement)
    }

    /// Checks the linear address in R11, which is so many bytes away from the address `of`, unless that is known.
    /// Returns the operand at `displacement` from it, which does not contain R10. Uses R10 and R11.
    pub(crate) fn checked_in_r11(
        &mut self,
        displacement: i64,
        of: Option<(Address, i64)>,
    ) -> MemoryOperand {
        if self.reach == Reach::All {
            self.find_distance(Register::R11, Register::R10);
            self.add_registers(Register::R11, Register::R11, Register::R10);
            return on_host(Register::R11, Register::None, displacement);
        }
        let of = of.map(|(address, distance)| (self.place(address), distance));
        if of.is_none_or(|(place, _)| !self.facts.knows(place)) {
            self.check(Register::R11, Register::R10, self.reach);
            if let Some((place, distance)) = of {
                self.facts.note_check(place, distance);
            }
        }
        if self.reach == Reach::Near {
            return in_window(Register::R11, displacement);
        }
        self.load_second_distance(Register::R10);
        self.add_registers(Register::R11, Register::R11, Register::R10);
        on_host(Register::R11, Register::None, displacement)
    }

    /// Checks the canonical address `linear`, unless its unit is known. The present site is not far. Uses R10.
    pub(crate) fn check_number(&mut self, linear: u64) {
        let place = self.place(Address::Unit(unit_of(linear)));
        if !self.facts.knows(place) {
            self.facts.note_check(place, 0);
            self.check_unit(unit_of(linear), self.reach);
        }
    }

    /// Checks that `unit` is one of those of `reach`. Uses R10.
    fn check_unit(&mut self, unit: i64, reach: Reach) {
        let byte = self.table_of(reach) + (first_of(unit) as i64 >> CHECK_SHIFT);
        let byte =
            MemoryOperand::new(Register::None, Register::None, 1, byte, 8, false, Register::None);
        self.emitter.access(LOAD_BYTE, Register::R10D, &byte);
    }

    /// Loads R11 with the address of the context.
    pub(crate) fn load_context(&mut self) {
        self.emitter.load_number(Register::R11D, self.addresses.context);
    }

    /// Jumps to the address in the field of the context at `offset`.
    pub(crate) fn jump_by(&mut self, offset: u32) {
        self.emitter.jump_to(&self.field(offset));
    }

    /// Leaves translated code for the reason `number`.
    pub(crate) fn leave(&mut self, number: u32) {
        self.emitter.load_number(Register::R10D, number);
        self.jump_by(at::WAY_OUT);
    }

    /// Stores R10, the target of a branch, in the context.
    pub(crate) fn note_target(&mut self) {
        self.store(self.field(at::RIP), Register::R10);
    }

    /// Leaves translated code to look for the code of the address in R10.
    pub(crate) fn leave_to_look_up(&mut self) {
        self.note_target();
        self.leave(reason::LOOK_UP);
    }

    /// Calls the routine whose address is in the field of the context at `offset`, with the address of the
    /// context in R11.
    pub(crate) fn call(&mut self, offset: u32) {
        self.load_context();
        let routine = MemoryOperand::with_base_displ(Register::R11, offset.into());
        self.emitter.instruction(Instruction::with1(Code::Call_rm64, routine));
    }

    /// Jumps to `target` by `slot` of the jump table.
    pub(crate) fn jump_by_slot(&mut self, target: u64, slot: u32) {
        let entry = self.slot_entry(target, slot);
        self.emitter.jump_to(&entry);
    }

    /// Loads R10 with `target`, and R11 with the address of the jump table. Returns the entry of `slot` there.
    pub(crate) fn slot_entry(&mut self, target: u64, slot: u32) -> MemoryOperand {
        self.load_number(Register::R10, target);
        self.load(Register::R11, self.field(at::TABLE));
        let offset = slot_offset(slot) as i64;
        MemoryOperand::with_base_displ_size(Register::R11, offset, 1)
    }

    /// Loads R11 with the address of the entry of the jump table for the guest address in R10. Returns a branch that is
    /// taken if the table has no code for it; RCX is then saved in the context.
    pub(crate) fn look_up(&mut self) -> Branch {
        self.store(self.field(at::SAVED_RCX), Register::RCX);
        self.emitter.rotate(Register::R11, Register::R10, INDEX_ROTATION as u8);
        self.add_registers(Register::R11, Register::R11, Register::R10);
        let index = Instruction::with2(Code::Movzx_r32_rm16, Register::R11D, Register::R11W);
        self.emitter.instruction(index);
        self.load(Register::RCX, self.field(at::TABLE));
        let entry = MemoryOperand::with_base_index_scale(Register::RCX, Register::R11, 8);
        self.emitter.access(LEA, Register::R11, &entry);
        self.load(Register::RCX, MemoryOperand::with_base(Register::R11));
        self.add_registers(Register::RCX, Register::RCX, Register::R10);
        self.emitter.bytes(&[JRCXZ, JUMP]);
        let missed = self.emitter.unaligned_jump();
        self.restore_rcx();
        missed
    }

    /// Leaves translated code for the reason `number` where the jump table has no code for the guest address in R10.
    pub(crate) fn leave_missed(&mut self, number: u32) {
        self.emitter.load_number(Register::R11D, number);
        self.jump_by(at::MISSED);
    }

    /// Returns the address of the code in the entry of the jump table at R11.
    pub(crate) fn found_code() -> MemoryOperand {
        MemoryOperand::with_base_displ_size(Register::R11, CODE.into(), 1)
    }

    /// Restores RCX after a look into the jump table.
    pub(crate) fn restore_rcx(&mut self) {
        self.load(Register::RCX, self.field(at::SAVED_RCX));
    }

    /// Jumps to the code in the entry of the jump table at R11.
    pub(crate) fn jump_to_found(&mut self) {
        self.emitter.jump_to(&Writer::found_code());
    }

    /// `mov [address], number`, of 64 bits. Uses `scratch`.
    pub(crate) fn store_number(&mut self, to: MemoryOperand, number: u64, scratch: Register) {
        if let Some(number) = as_signed(number) {
            self.emitter.instruction(Instruction::with2(Code::Mov_rm64_imm32, to, number));
        } else {
            self.load_number(scratch, number);
            self.store(to, scratch);
        }
    }

    /// Adds `bytes` to the guest's RSP, at once.
    pub(crate) fn move_stack(&mut self, bytes: i64) {
        let bytes = bytes + i64::from(std::mem::take(&mut self.stack_offset));
        self.add(Register::R8, Register::R8, bytes);
    }

    /// Adds `bytes` to the guest's RSP, which is in R8 only once it is [settled](Writer::settle_stack).
    pub(crate) fn move_stack_later(&mut self, bytes: i16) {
        self.stack_offset += bytes;
    }

    /// Makes R8 equal to the guest's RSP.
    pub(crate) fn settle_stack(&mut self) {
        if self.stack_offset != 0 {
            self.move_stack(0);
        }
    }

    /// Checks the guest's RSP like [`Writer::checked`]. Returns the operand at `displacement` from it.
    pub(crate) fn checked_stack(&mut self, displacement: i64, scratch: Scratch) -> MemoryOperand {
        let displacement = displacement + i64::from(self.stack_offset);
        self.checked(Register::R8, displacement, scratch)
    }

    /// LOOPNE, LOOPE, LOOP or JRCXZ, by its `opcode`, with a target that is set later.
    pub(crate) fn loop_if(&mut self, opcode: u8) -> Branch {
        // If it is taken, it jumps over the short jump to the long one; otherwise the short jump goes over the
        // long one.
        self.emitter.bytes(&[opcode, 2, 0xeb, JUMP]);
        self.emitter.unaligned_jump()
    }
}

/// Returns `number` as one of 32 bits with a sign, if it is one.
pub(crate) fn as_signed(number: u64) -> Option<i32> {
    i32::try_from(number as i64).ok()
}
