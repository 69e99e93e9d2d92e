//! Writes the host's instructions.

mod alignment;
mod checks;
mod encoding;

use std::mem;

use iced_x86::{Code, Encoder, Instruction, MemoryOperand, OpKind, Register};

use crate::context::{INDEX_ROTATION, REGION_SHIFT, at};
use crate::returns::ROOM_CHECK;
use alignment::MUST_ALIGN;
use checks::HAS_FAST_LOOP;

/// Bytes of a near jump or call.
pub(crate) const JUMP_SIZE: u32 = 5;
/// Bytes of a near conditional jump.
pub(crate) const CONDITIONAL_SIZE: u32 = 6;
/// Bytes for which there is room at first.
const TYPICAL: usize = 512;

/// Host code that is being written for one address.
pub(crate) struct Emitter {
    code: Vec<u8>,
    /// The encoder of rare instructions, once there was one.
    encoder: Option<Encoder>,
    start: u32,
    /// The guest's ESP less R15D. Instructions that push and pop, which mostly come several in a row, change
    /// only this.
    stack_offset: i32,
    /// The addresses to which branches lead.
    branches: Vec<(Branch, u32)>,
    /// A register that holds what was loaded before, until an instruction names it.
    kept: Option<Register>,
    /// Counts that were set after their instruction was written.
    counts: Vec<(Count, i8)>,
    /// Whether LOOP may be used.
    has_fast_loop: bool,
    /// Whether branches are aligned.
    must_align: bool,
    /// Offset in the code of the way out for the check of the next return.
    way_out: u32,
    /// The addresses of the [counters](crate::code::counters) of the next repeated instruction, if
    /// instructions are counted.
    pub(crate) repeat_counters: Option<[u32; 2]>,
}

/// The address of the end of a displacement that will be set to a number of instructions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Count(u32);

/// The state of an emitter, to which it can go back.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mark {
    len: u32,
    stack_offset: i32,
    branches: usize,
}

/// The address of the end of a branch, whose 32-bit distance will be set.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Branch(u32);

impl Branch {
    /// Returns that address.
    pub(crate) fn end(self) -> u32 {
        self.0
    }
}

/// Returns the bytes of a displacement from the register `base`, as iced-x86 counts them.
pub(crate) fn displacement_size(base: Register, displacement: i64) -> u32 {
    match displacement {
        // RBP without a displacement is the encoding of no base at all (SDM vol. 2, table 2-2).
        0 if base.full_register() != Register::RBP => 0,
        _ if i8::try_from(displacement).is_ok() => 1,
        _ => base.size() as u32,
    }
}

/// Returns whether an address at `displacement` from that in a 32-bit register needs no wrap at 4 GiB.
/// Addresses beyond the window fault, since nothing is mapped there for a GiB on either side, and the
/// interpreter executes the instruction. Without the prefix for 32-bit addresses code is shorter.
pub(crate) fn is_near(displacement: i64) -> bool {
    i16::try_from(displacement).is_ok()
}

/// Returns the operand at `displacement` from the linear address in `register`, which has 32 bits.
pub(crate) fn in_window(register: Register, displacement: i64) -> MemoryOperand {
    let base = if is_near(displacement) { register.full_register() } else { register };
    let size = displacement_size(base, displacement);
    MemoryOperand::new(base, Register::None, 1, displacement, size, false, Register::GS)
}

/// Returns whether `instruction` may change `register`, one that no instruction changes without naming it.
fn may_change(instruction: &Instruction, register: Register) -> bool {
    (0..instruction.op_count()).any(|operand| {
        instruction.op_kind(operand) == OpKind::Register
            && instruction.op_register(operand).full_register() == register
    })
}

impl Emitter {
    /// Returns an emitter for code that begins at address `start`.
    pub(crate) fn new(start: u32) -> Emitter {
        Emitter {
            code: Vec::with_capacity(TYPICAL),
            encoder: None,
            start,
            stack_offset: 0,
            branches: Vec::new(),
            counts: Vec::new(),
            kept: None,
            has_fast_loop: *HAS_FAST_LOOP,
            must_align: *MUST_ALIGN,
            way_out: 0,
            repeat_counters: None,
        }
    }

    /// Returns the address of the next instruction.
    pub(crate) fn here(&self) -> u32 {
        self.start + self.len()
    }

    /// Returns the bytes of the code so far.
    fn len(&self) -> u32 {
        self.code.len() as u32
    }

    /// Returns the code, with all distances and counts set.
    pub(crate) fn finish(self) -> Vec<u8> {
        let mut code = self.code;
        for (Branch(end), to) in self.branches {
            let offset = (end - self.start) as usize;
            code[offset - 4..offset].copy_from_slice(&to.wrapping_sub(end).to_le_bytes());
        }
        for (Count(end), count) in self.counts {
            code[(end - self.start) as usize - 1] = count as u8;
        }
        code
    }

    /// Appends bytes.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.code.extend_from_slice(bytes);
    }

    fn bytes_and(&mut self, bytes: &[u8], number: u32) {
        self.bytes(bytes);
        self.bytes(&number.to_le_bytes());
    }

    /// Appends an instruction. Returns false, and appends nothing, if 64-bit code has no such instruction.
    pub(crate) fn try_instruction(&mut self, instruction: &Instruction) -> bool {
        self.kept = self.kept.filter(|register| !may_change(instruction, *register));
        let here = self.here().into();
        if encoding::encode(instruction, here, &mut self.code) {
            return true;
        }
        let encoder = self.encoder.get_or_insert_with(|| Encoder::new(64));
        let len = self.code.len();
        encoder.set_buffer(mem::take(&mut self.code));
        let exists = encoder.encode(instruction, here).is_ok();
        self.code = encoder.take_buffer();
        if !exists {
            self.code.truncate(len);
        }
        exists
    }

    /// Appends an instruction of the translator's own making.
    ///
    /// # Panics
    /// When 64-bit code has no such instruction.
    pub(crate) fn instruction(&mut self, instruction: Result<Instruction, iced_x86::IcedError>) {
        let instruction = instruction.expect("the operands fit the code");
        assert!(self.try_instruction(&instruction), "{instruction} exists");
    }

    /// Notes that `register` holds something that later instructions may need, or that none does.
    pub(crate) fn keep(&mut self, register: Option<Register>) {
        self.kept = register;
    }

    /// Returns the register that still does.
    pub(crate) fn kept(&self) -> Option<Register> {
        self.kept
    }

    /// Notes that an instruction names `register`.
    fn name(&mut self, register: Register) {
        self.kept = self.kept.filter(|kept| *kept != register.full_register());
    }

    /// Appends an instruction with `register`, of 32 or 64 bits, and `memory`. The first byte of `opcode` is 0 or 0Fh.
    ///
    /// # Panics
    /// When 64-bit code has no such instruction.
    pub(crate) fn access(&mut self, opcode: [u8; 2], register: Register, memory: &MemoryOperand) {
        self.name(register);
        let here = self.here().into();
        let exists = encoding::encode_access(opcode, register, memory, here, &mut self.code);
        assert!(exists, "{opcode:02x?} has operands {register:?} and {memory:?}");
    }

    /// `mov r32, imm32`.
    pub(crate) fn load_number(&mut self, register: Register, number: u32) {
        self.name(register);
        let register = register.number() as u8;
        if register >= 8 {
            self.bytes(&[0x41]); // REX.B
        }
        self.bytes_and(&[0xb8 | register & 7], number);
    }

    /// `mov r64, imm32`, which has a sign, or `mov r64, imm64`.
    pub(crate) fn load_long_number(&mut self, register: Register, number: u64) {
        self.name(register);
        let register = register.number() as u8;
        let rex = 0x48 | register >> 3; // REX.W and REX.B
        if let Ok(short) = i32::try_from(number as i64) {
            self.bytes_and(&[rex, 0xc7, 0xc0 | register & 7], short as u32);
        } else {
            self.bytes(&[rex, 0xb8 | register & 7]);
            self.bytes(&number.to_le_bytes());
        }
    }

    /// `jmp [address]`.
    pub(crate) fn jump_to(&mut self, address: &MemoryOperand) {
        // The number of this register extends the opcode.
        self.access([0, 0xff], Register::ESP, address);
    }

    /// `rorx r64, r64, imm8`.
    pub(crate) fn rotate(&mut self, to: Register, from: Register, bits: u8) {
        self.name(to);
        self.name(from);
        let (to, from) = (to.number() as u8, from.number() as u8);
        // The highest bits of both numbers are inverted in VEX (SDM vol. 2, figure 2-9).
        let high = (to & 8) << 4 | (from & 8) << 2;
        let mod_rm = 0xc0 | (to & 7) << 3 | from & 7;
        self.bytes(&[0xc4, 0xe3 ^ high, 0xfb, 0xf0, mod_rm, bits]);
    }

    /// `mov r32, r32`, which also clears the upper half.
    pub(crate) fn copy(&mut self, to: Register, from: Register) {
        self.instruction(Instruction::with2(Code::Mov_r32_rm32, to, from));
    }

    /// `mov r64, r64`.
    pub(crate) fn copy_64(&mut self, to: Register, from: Register) {
        self.instruction(Instruction::with2(Code::Mov_r64_rm64, to, from));
    }

    /// `lea r32, [base + displacement]`: adds modulo 2^32 without changing flags.
    pub(crate) fn add(&mut self, to: Register, base: Register, displacement: i32) {
        let memory = MemoryOperand::with_base_displ(base.full_register(), displacement.into());
        self.instruction(Instruction::with2(Code::Lea_r32_m, to, memory));
    }

    /// `lea r64, [a + b + displacement]`.
    pub(crate) fn add_64(&mut self, to: Register, a: Register, b: Register, displacement: i32) {
        let memory =
            MemoryOperand::with_base_index_scale_displ_size(a, b, 1, displacement.into(), 1);
        self.instruction(Instruction::with2(Code::Lea_r64_m, to, memory));
    }

    /// `mov r32, [address]`, mostly from guest memory.
    pub(crate) fn load(&mut self, to: Register, address: MemoryOperand) {
        self.instruction(Instruction::with2(Code::Mov_r32_rm32, to, address));
    }

    /// `movzx r32, word [address]`.
    pub(crate) fn load_word(&mut self, to: Register, address: MemoryOperand) {
        self.instruction(Instruction::with2(Code::Movzx_r32_rm16, to, address));
    }

    /// Copies a doubleword from one field of the context to another. Uses R8.
    pub(crate) fn copy_field(&mut self, to: u32, from: u32) {
        let field = |field: u32| MemoryOperand::with_base_displ(Register::R14, field.into());
        self.load(Register::R8D, field(from));
        self.store(field(to), Register::R8D);
    }

    /// Clears all bits of `register` except those of `mask`, without changing flags. Uses R9.
    pub(crate) fn select_bits(&mut self, register: Register, mask: u32) {
        self.load_number(Register::R9D, mask);
        for code in [Code::VEX_Pext_r32_r32_rm32, Code::VEX_Pdep_r32_r32_rm32] {
            self.instruction(Instruction::with3(code, register, register, Register::R9D));
        }
    }

    /// `mov [address], r32`, mostly to guest memory.
    pub(crate) fn store(&mut self, address: MemoryOperand, from: Register) {
        self.instruction(Instruction::with2(Code::Mov_rm32_r32, address, from));
    }

    /// `mov dword [address], imm32`.
    pub(crate) fn store_number(&mut self, address: MemoryOperand, number: u32) {
        self.instruction(Instruction::with2(Code::Mov_rm32_imm32, address, number));
    }

    /// Returns the guest's ESP less R15D.
    pub(crate) fn stack_offset(&self) -> i32 {
        self.stack_offset
    }

    /// Returns the operand at `displacement` above the guest's ESP.
    pub(crate) fn top_of_stack(&self, displacement: i32) -> MemoryOperand {
        in_window(Register::R15D, i64::from(self.stack_offset + displacement))
    }

    /// Adds `bytes` to the guest's ESP. Addresses of later instructions include them, and
    /// [`Emitter::settle_stack`] adds them to R15D.
    pub(crate) fn move_stack(&mut self, bytes: i32) {
        self.stack_offset += bytes;
    }

    /// Makes R15D equal to the guest's ESP, without changing flags.
    pub(crate) fn settle_stack(&mut self) {
        let offset = mem::take(&mut self.stack_offset);
        if offset != 0 {
            self.add(Register::R15D, Register::R15, offset);
        }
    }

    /// Sets the guest's ESP to the sum of `base` and `displacement`.
    pub(crate) fn set_stack(&mut self, base: Register, displacement: i32) {
        self.stack_offset = 0;
        self.add(Register::R15D, base, displacement);
    }

    /// Pushes a register on the guest's stack.
    pub(crate) fn push(&mut self, from: Register) {
        self.store(self.top_of_stack(-4), from);
        self.move_stack(-4);
    }

    /// Pushes a number on the guest's stack.
    pub(crate) fn push_number(&mut self, number: u32) {
        self.store_number(self.top_of_stack(-4), number);
        self.move_stack(-4);
    }

    /// Pops a doubleword from the guest's stack into R8D.
    pub(crate) fn pop(&mut self) {
        self.load(Register::R8D, self.top_of_stack(0));
        self.move_stack(4);
    }

    /// `mov r64, [r14 + field]`: reads a field of the context.
    pub(crate) fn load_field(&mut self, to: Register, field: u32) {
        let memory = MemoryOperand::with_base_displ(Register::R14, field.into());
        self.instruction(Instruction::with2(Code::Mov_r64_rm64, to, memory));
    }

    /// Loads R9 with the base of the window for the region of the linear address in `address`.
    pub(crate) fn load_region(&mut self, address: Register) {
        self.load_number(Register::R9D, !0 << REGION_SHIFT);
        self.instruction(Instruction::with3(
            Code::VEX_Pext_r32_r32_rm32,
            Register::R9D,
            address,
            Register::R9D,
        ));
        let region = MemoryOperand::with_base_index_scale_displ_size(
            Register::R14,
            Register::R9,
            8,
            at::REGIONS.into(),
            8,
        );
        self.instruction(Instruction::with2(Code::Mov_r64_rm64, Register::R9, region));
        let window = MemoryOperand::with_base(Register::R9);
        self.instruction(Instruction::with2(Code::Mov_r64_rm64, Register::R9, window));
    }

    /// `jmp` to a target that is set later.
    pub(crate) fn jump(&mut self) -> Branch {
        self.align_branch(JUMP_SIZE);
        self.unaligned_jump()
    }

    /// `jmp` to a target that is set later, without anything before it.
    pub(crate) fn unaligned_jump(&mut self) -> Branch {
        self.bytes_and(&[0xe9], 0);
        Branch(self.here())
    }

    /// `call` of a target that is set later.
    pub(crate) fn call_near(&mut self) -> Branch {
        self.prepare_return();
        self.plain_call()
    }

    /// `call` of a target that is set later, whose landing checks nothing.
    pub(crate) fn plain_call(&mut self) -> Branch {
        self.align_branch(JUMP_SIZE);
        self.bytes_and(&[0xe8], 0);
        Branch(self.here())
    }

    /// Reads an address that faults if the host's stack has no room for one more return. Uses R9.
    pub(crate) fn check_room(&mut self) {
        self.bytes_and(&[0x44, 0x0f, 0xb6, 0x8c, 0x24], (ROOM_CHECK as u32).wrapping_neg()); // movzx r9d, byte [rsp - ...]
    }

    /// `ret`.
    pub(crate) fn ret(&mut self) {
        self.align_branch(1);
        self.bytes(&[0xc3]);
    }

    /// Conditional jump to a target that is set later. `condition` is the low four bits of its opcode.
    pub(crate) fn jump_if(&mut self, condition: u8) -> Branch {
        self.align_branch(CONDITIONAL_SIZE);
        self.unaligned_jump_if(condition)
    }

    fn unaligned_jump_if(&mut self, condition: u8) -> Branch {
        self.bytes_and(&[0x0f, 0x80 | condition], 0);
        Branch(self.here())
    }

    /// Makes `branch` lead to address `to`.
    pub(crate) fn lead(&mut self, branch: Branch, to: u32) {
        self.branches.push((branch, to));
    }

    /// Makes `branch` lead to the next instruction.
    pub(crate) fn land(&mut self, branch: Branch) {
        self.lead(branch, self.here());
    }

    /// LOOPNE, LOOPE, LOOP or JECXZ, by its `opcode`, with ECX and a target that is set later.
    pub(crate) fn loop_if(&mut self, opcode: u8) -> Branch {
        // If it is taken, it jumps over the short jump to the long one; otherwise the short jump goes over
        // the long one.
        self.bytes(&[0x67, opcode, 2, 0xeb, 5]);
        self.unaligned_jump()
    }

    /// Jumps to a target that is set later if R9D is 0, without changing flags. Uses R10.
    pub(crate) fn jump_if_zero(&mut self) -> Branch {
        self.save_rcx();
        self.bytes(&[0x44, 0x89, 0xc9]); // mov ecx, r9d
        self.jump_if_rcx_zero()
    }

    /// Jumps to a target that is set later if CX is 0. Uses R10.
    pub(crate) fn jump_if_cx_zero(&mut self) -> Branch {
        self.save_rcx();
        self.bytes(&[0x0f, 0xb7, 0xc9]); // movzx ecx, cx
        self.jump_if_rcx_zero()
    }

    /// Restores RCX from R10, and jumps to a target that is set later if it was 0 before.
    fn jump_if_rcx_zero(&mut self) -> Branch {
        self.bytes(&[0xe3, 5]); // jrcxz over the next two
        self.restore_rcx();
        self.bytes(&[0xeb, 8]); // jmp over the next two
        self.restore_rcx();
        self.unaligned_jump()
    }

    /// Decrements CX, and jumps to a target that is set later if CX is then not 0 and `condition`, the low
    /// four bits of a jump's opcode, holds. Uses R8 and R10.
    pub(crate) fn loop_by_cx(&mut self, condition: Option<u8>) -> Branch {
        self.bytes(&[0x44, 0x8d, 0x41, 0xff]); // lea r8d, [rcx - 1]
        self.bytes(&[0x66, 0x44, 0x89, 0xc1]); // mov cx, r8w
        self.save_rcx();
        self.bytes(&[0x0f, 0xb7, 0xc9]); // movzx ecx, cx
        let branch_size = if condition.is_some() { 6 } else { 5 };
        self.bytes(&[0xe3, 3 + branch_size + 2]); // jrcxz over the next three
        self.restore_rcx();
        let branch = match condition {
            Some(condition) => self.unaligned_jump_if(condition),
            None => self.unaligned_jump(),
        };
        self.bytes(&[0xeb, 3]); // jmp over the next one
        self.restore_rcx();
        branch
    }

    /// Jumps to the guest address in R8D by the jump table. The entry there leads to code that checks the
    /// address.
    pub(crate) fn jump_by_table(&mut self) {
        self.look_up();
        self.align_branch(3);
        self.bytes(&[0x41, 0xff, 0xe1]); // jmp r9
    }

    /// Calls the guest address in R8D by the jump table.
    pub(crate) fn call_by_table(&mut self) {
        self.prepare_return();
        self.look_up();
        self.align_branch(3);
        self.bytes(&[0x41, 0xff, 0xd1]); // call r9
    }

    /// Loads R9D with the entry of the jump table for the guest address in R8D.
    fn look_up(&mut self) {
        self.instruction(Instruction::with3(
            Code::VEX_Rorx_r32_rm32_imm8,
            Register::R9D,
            Register::R8D,
            INDEX_ROTATION,
        ));
        self.add_64(Register::R9, Register::R9, Register::R8, 0);
        self.instruction(Instruction::with3(
            Code::VEX_Pext_r32_r32_rm32,
            Register::R9D,
            Register::R9D,
            Register::R11D,
        ));
        self.bytes(&[0x47, 0x8b, 0x4c, 0x8d, 0x00]); // mov r9d, [r13 + r9 * 4]
    }

    /// Jumps to `target` by entry `index` of the jump table.
    pub(crate) fn jump_by_table_to(&mut self, target: u32, index: u32) {
        self.look_up_number(target, index);
        self.align_branch(3);
        self.bytes(&[0x41, 0xff, 0xe1]); // jmp r9
    }

    /// Calls `target` by entry `index` of the jump table.
    pub(crate) fn call_by_table_to(&mut self, target: u32, index: u32) {
        self.prepare_return();
        self.look_up_number(target, index);
        self.align_branch(3);
        self.bytes(&[0x41, 0xff, 0xd1]); // call r9
    }

    /// Loads R8D with `target`, and R9D with entry `index` of the jump table.
    fn look_up_number(&mut self, target: u32, index: u32) {
        self.load_number(Register::R8D, target);
        self.bytes_and(&[0x45, 0x8b, 0x8d], index * 4); // mov r9d, [r13 + ...]
    }

    /// Saves RCX in R10.
    pub(crate) fn save_rcx(&mut self) {
        self.bytes(&[0x49, 0x89, 0xca]); // mov r10, rcx
    }

    /// Restores RCX from R10.
    pub(crate) fn restore_rcx(&mut self) {
        self.bytes(&[0x4c, 0x89, 0xd1]); // mov rcx, r10
    }

    /// Jumps to a target that is set later unless the `size` bytes (1, 2, 4 or 8) at `offset` from the
    /// address in `base` are `value`. Uses RCX and `scratch`.
    pub(crate) fn jump_unless(
        &mut self,
        [base, scratch]: [Register; 2],
        offset: u32,
        size: usize,
        value: u64,
    ) -> Branch {
        let memory = MemoryOperand::with_base_displ(base, offset.into());
        let (load, register) = match size {
            1 => (Code::Movzx_r32_rm8, Register::ECX),
            2 => (Code::Movzx_r32_rm16, Register::ECX),
            4 => (Code::Mov_r32_rm32, Register::ECX),
            _ => (Code::Mov_r64_rm64, Register::RCX),
        };
        self.instruction(Instruction::with2(load, register, memory));
        if register == Register::RCX {
            let negative = value.wrapping_neg();
            self.instruction(Instruction::with2(Code::Mov_r64_imm64, scratch, negative));
            self.add_64(Register::RCX, Register::RCX, scratch, 0);
        } else {
            self.add(Register::ECX, Register::RCX, (value as i32).wrapping_neg());
        }
        self.bytes(&[0xe3, 5]); // jrcxz over the next one
        self.unaligned_jump()
    }

    /// `mov r8, imm64`: loads an address of this process.
    pub(crate) fn load_address(&mut self, address: u64) {
        self.instruction(Instruction::with2(Code::Mov_r64_imm64, Register::R8, address));
    }

    /// Loads a doubleword from an address of this process. Uses R8.
    pub(crate) fn load_from(&mut self, register: Register, address: u64) {
        self.load_address(address);
        self.load(register, MemoryOperand::with_base(Register::R8));
    }

    /// Subtracts a number of instructions, which is set later, from the budget.
    pub(crate) fn count(&mut self) -> Count {
        self.bytes(&[0x4d, 0x8d, 0x64, 0x24, 0]); // lea r12, [r12 - ...]
        Count(self.here())
    }

    /// Subtracts a number of instructions, which is set later, from the budget of 64-bit code, which is in R9.
    pub(crate) fn count_in_r9(&mut self) -> Count {
        self.bytes(&[0x4d, 0x8d, 0x49, 0]); // lea r9, [r9 - ...]
        Count(self.here())
    }

    /// Faults if a number of instructions, which is set later, is larger than the budget of 64-bit code. Uses R10.
    pub(crate) fn check_budget_in_r9(&mut self) -> Count {
        self.bytes(&[0x45, 0x0f, 0xb6, 0x51, 0]); // movzx r10d, byte [r9 - ...]
        Count(self.here())
    }

    /// Adds 1 to the counter at address `counter`. Uses R9.
    pub(crate) fn count_up(&mut self, counter: u32) {
        self.add_to_counter(counter, &[0x4d, 0x8d, 0x49, 0x01]); // lea r9, [r9 + 1]
    }

    /// Adds the count of a repeated instruction before it, in R10, to the first counter, and the count after
    /// it, in RCX, and 1 to the second one. Uses R9.
    pub(crate) fn count_iterations(&mut self, [before, after]: [u32; 2]) {
        self.add_to_counter(before, &[0x4f, 0x8d, 0x0c, 0x11]); // lea r9, [r9 + r10]
        self.add_to_counter(after, &[0x4d, 0x8d, 0x4c, 0x09, 0x01]); // lea r9, [r9 + rcx + 1]
    }

    /// Adds to the counter at address `counter` by `lea`, which adds to R9.
    fn add_to_counter(&mut self, counter: u32, lea: &[u8]) {
        for opcode in [0x8b, 0x89] {
            // mov r9, [rip + ...], and later mov [rip + ...], r9
            let end = self.here() + 7;
            self.bytes_and(&[0x4c, opcode, 0x0d], counter.wrapping_sub(end));
            if opcode == 0x8b {
                self.bytes(lea);
            }
        }
    }

    /// Adds `instructions`, at most 127, to the budget.
    pub(crate) fn give_back(&mut self, instructions: u16) {
        self.bytes(&[0x4d, 0x8d, 0x64, 0x24, instructions as u8]); // lea r12, [r12 + ...]
    }

    /// Faults if a number of instructions, which is set later, is larger than the budget. Uses R9.
    pub(crate) fn check_budget(&mut self) -> Count {
        // The read must not be into R9L, which would wait for the rest of R9.
        self.bytes(&[0x45, 0x0f, 0xb6, 0x4c, 0x24, 0]); // movzx r9d, byte [r12 - ...]
        Count(self.here())
    }

    /// Sets a number of instructions, at most 128, or at most 127 that are given back.
    pub(crate) fn set_count(&mut self, count: Count, instructions: i16) {
        self.counts.push((count, (instructions as i8).wrapping_neg()));
    }

    /// Returns the state of the code, so that what comes after it can be thrown away.
    pub(crate) fn mark(&self) -> Mark {
        Mark { len: self.len(), stack_offset: self.stack_offset, branches: self.branches.len() }
    }

    /// Throws away everything that was appended since `mark`.
    pub(crate) fn go_back(&mut self, mark: Mark) {
        self.code.truncate(mark.len as usize);
        self.stack_offset = mark.stack_offset;
        self.kept = None;
        self.branches.truncate(mark.branches);
    }

    /// Jumps to the address in a field of the context.
    pub(crate) fn jump_through(&mut self, field: u32) {
        let to = MemoryOperand::with_base_displ(Register::R14, field.into());
        self.instruction(Instruction::with1(Code::Jmp_rm64, to));
    }

    /// Calls the routine whose address is in a field of the context.
    pub(crate) fn call(&mut self, field: u32) {
        let routine = MemoryOperand::with_base_displ(Register::R14, field.into());
        self.instruction(Instruction::with1(Code::Call_rm64, routine));
    }

    /// Leaves translated code by the routine in a field of the context. The routine reads the two numbers
    /// that follow the jump to it. These sequences are frequent, so they are kept short.
    pub(crate) fn leave(&mut self, field: u32, eip: u32, info: u32) {
        let size = if i8::try_from(field).is_ok() { 4 } else { 7 };
        self.bytes_and(&[0x4c, 0x8d, 0x05], size); // lea r8, [rip + ...]
        self.jump_through(field);
        self.bytes(&eip.to_le_bytes());
        self.bytes(&info.to_le_bytes());
    }

    /// Leaves translated code so that the engine links `branch` to `target`.
    pub(crate) fn leave_to_link(&mut self, Branch(end): Branch, target: u32) {
        self.leave(at::LEAVE_TO_LINK, target, end);
    }
}
