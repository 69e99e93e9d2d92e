//! Writes the host's instructions.

mod alignment;
mod checks;

use iced_x86::{Code, Encoder, Instruction, MemoryOperand, Register};

use crate::context::{INDEX_ROTATION, REGION_SHIFT, at};
use crate::returns::ROOM_CHECK;
use checks::HAS_FAST_LOOP;

/// The bytes of a near jump or call.
const JUMP_SIZE: u32 = 5;
/// The bytes of a conditional one.
pub(crate) const CONDITIONAL_SIZE: u32 = 6;

/// Code that is being made for one place.
pub(crate) struct Emitter {
    encoder: Encoder,
    start: u32,
    len: u32,
    /// What is to be added to R15D to get the guest's ESP. Instructions that push and pop, of which there mostly are several in
    /// a row, change this alone.
    stack_offset: i32,
    /// Where branches lead.
    branches: Vec<(Branch, u32)>,
    /// Counts that were told late, by the addresses where they end.
    counts: Vec<(Count, i8)>,
    /// LOOP may be used.
    has_fast_loop: bool,
    /// Where the way out of the check of the next return begins, in bytes of code.
    way_out: u32,
}

/// The end of a number of instructions that has yet to be told.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Count(u32);

/// How much code there was.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mark {
    len: u32,
    stack_offset: i32,
    branches: usize,
}

/// The end of the distance in a branch that has yet to be told where it goes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Branch(u32);

/// The bytes of a displacement from the register `base`, as iced-x86 counts them.
pub(crate) fn displacement_size(base: Register, displacement: i64) -> u32 {
    match displacement {
        // RBP without one stands for no base at all (SDM vol. 2, table 2-2).
        0 if base.full_register() != Register::RBP => 0,
        _ if i8::try_from(displacement).is_ok() => 1,
        _ => base.size() as u32,
    }
}

/// An address in the window this near to that in a 32-bit register needs no wrap at 4 GiB: beyond the window, where the interpreter
/// helps out, nothing is mapped for longer than that. Without the prefix for 32-bit addresses code is shorter.
pub(crate) fn is_near(displacement: i64) -> bool {
    i16::try_from(displacement).is_ok()
}

/// What is at `displacement` from a register, which has 32 bits, in the window.
pub(crate) fn in_window(register: Register, displacement: i64) -> MemoryOperand {
    let base = if is_near(displacement) { register.full_register() } else { register };
    let size = displacement_size(base, displacement);
    MemoryOperand::new(base, Register::None, 1, displacement, size, false, Register::GS)
}

impl Emitter {
    /// For code that begins at address `start`.
    pub(crate) fn new(start: u32) -> Emitter {
        Emitter {
            encoder: Encoder::new(64),
            start,
            len: 0,
            stack_offset: 0,
            branches: Vec::new(),
            counts: Vec::new(),
            has_fast_loop: *HAS_FAST_LOOP,
            way_out: 0,
        }
    }

    /// The address of what comes next.
    pub(crate) fn here(&self) -> u32 {
        self.start + self.len
    }

    /// The code.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        let mut code = self.encoder.take_buffer();
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
        for byte in bytes {
            self.encoder.write_u8(*byte);
        }
        self.len += bytes.len() as u32;
    }

    fn bytes_and(&mut self, bytes: &[u8], number: u32) {
        self.bytes(bytes);
        self.bytes(&number.to_le_bytes());
    }

    /// Appends an instruction. False, and nothing is appended, if 64-bit code has none of that kind.
    pub(crate) fn try_instruction(&mut self, instruction: &Instruction) -> bool {
        match self.encoder.encode(instruction, self.here().into()) {
            Ok(len) => {
                self.len += len as u32;
                true
            }
            Err(_) => false,
        }
    }

    /// Appends an instruction of our own making.
    ///
    /// # Panics
    /// When there is none of that kind.
    pub(crate) fn instruction(&mut self, instruction: Result<Instruction, iced_x86::IcedError>) {
        let instruction = instruction.expect("the operands fit the code");
        assert!(self.try_instruction(&instruction), "{instruction} exists");
    }

    /// `mov r32, imm32`.
    pub(crate) fn load_number(&mut self, register: Register, number: u32) {
        self.instruction(Instruction::with2(Code::Mov_r32_imm32, register, number));
    }

    /// `mov r32, r32`, which also clears the upper half.
    pub(crate) fn copy(&mut self, to: Register, from: Register) {
        self.instruction(Instruction::with2(Code::Mov_r32_rm32, to, from));
    }

    /// `mov r64, r64`.
    pub(crate) fn copy_64(&mut self, to: Register, from: Register) {
        self.instruction(Instruction::with2(Code::Mov_r64_rm64, to, from));
    }

    /// `lea r32, [base + displacement]`: adds without flags, modulo 2^32.
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

    /// A load from the guest's memory.
    pub(crate) fn load(&mut self, to: Register, address: MemoryOperand) {
        self.instruction(Instruction::with2(Code::Mov_r32_rm32, to, address));
    }

    /// `movzx r32, word`.
    pub(crate) fn load_word(&mut self, to: Register, address: MemoryOperand) {
        self.instruction(Instruction::with2(Code::Movzx_r32_rm16, to, address));
    }

    /// Copies a doubleword of the context. R8 is used.
    pub(crate) fn copy_field(&mut self, to: u32, from: u32) {
        let field = |field: u32| MemoryOperand::with_base_displ(Register::R14, field.into());
        self.load(Register::R8D, field(from));
        self.store(field(to), Register::R8D);
    }

    /// Clears all bits of `register` but those of `mask`, without flags; R9 is used.
    pub(crate) fn select_bits(&mut self, register: Register, mask: u32) {
        self.load_number(Register::R9D, mask);
        for code in [Code::VEX_Pext_r32_r32_rm32, Code::VEX_Pdep_r32_r32_rm32] {
            self.instruction(Instruction::with3(code, register, register, Register::R9D));
        }
    }

    /// A store to the guest's memory.
    pub(crate) fn store(&mut self, address: MemoryOperand, from: Register) {
        self.instruction(Instruction::with2(Code::Mov_rm32_r32, address, from));
    }

    /// A store of a number.
    pub(crate) fn store_number(&mut self, address: MemoryOperand, number: u32) {
        self.instruction(Instruction::with2(Code::Mov_rm32_imm32, address, number));
    }

    /// How far the guest's ESP is above R15D.
    pub(crate) fn stack_offset(&self) -> i32 {
        self.stack_offset
    }

    /// `displacement` above the guest's ESP.
    pub(crate) fn top_of_stack(&self, displacement: i32) -> MemoryOperand {
        in_window(Register::R15D, i64::from(self.stack_offset + displacement))
    }

    /// Adds `bytes` to the guest's ESP, in an address of a later instruction or when it is settled.
    pub(crate) fn move_stack(&mut self, bytes: i32) {
        self.stack_offset += bytes;
    }

    /// Makes R15D the guest's ESP, without flags.
    pub(crate) fn settle_stack(&mut self) {
        let offset = std::mem::take(&mut self.stack_offset);
        if offset != 0 {
            self.add(Register::R15D, Register::R15, offset);
        }
    }

    /// Sets the guest's ESP to `base` and `displacement`.
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

    /// Pops into R8D.
    pub(crate) fn pop(&mut self) {
        self.load(Register::R8D, self.top_of_stack(0));
        self.move_stack(4);
    }

    /// `mov r64, [r14 + field]`: reads the context.
    pub(crate) fn load_field(&mut self, to: Register, field: u32) {
        let memory = MemoryOperand::with_base_displ(Register::R14, field.into());
        self.instruction(Instruction::with2(Code::Mov_r64_rm64, to, memory));
    }

    /// Loads R9 with the base of the window for the region of the address in `address`.
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

    /// `jmp`, to be told where.
    pub(crate) fn jump(&mut self) -> Branch {
        self.align_branch(JUMP_SIZE);
        self.unaligned_jump()
    }

    fn unaligned_jump(&mut self) -> Branch {
        self.bytes_and(&[0xe9], 0);
        Branch(self.here())
    }

    /// `call`, to be told where.
    pub(crate) fn call_near(&mut self) -> Branch {
        self.prepare_return();
        self.align_branch(JUMP_SIZE);
        self.bytes_and(&[0xe8], 0);
        Branch(self.here())
    }

    /// Faults where there is no room for one more return.
    pub(crate) fn check_room(&mut self) {
        self.bytes_and(&[0x44, 0x0f, 0xb6, 0x8c, 0x24], (ROOM_CHECK as u32).wrapping_neg()); // movzx r9d, byte [rsp - ...]
    }

    /// `ret`.
    pub(crate) fn ret(&mut self) {
        self.align_branch(1);
        self.bytes(&[0xc3]);
    }

    /// A conditional jump; `condition` is the low four bits of its opcode.
    pub(crate) fn jump_if(&mut self, condition: u8) -> Branch {
        self.align_branch(CONDITIONAL_SIZE);
        self.unaligned_jump_if(condition)
    }

    fn unaligned_jump_if(&mut self, condition: u8) -> Branch {
        self.bytes_and(&[0x0f, 0x80 | condition], 0);
        Branch(self.here())
    }

    /// Lets `branch` lead to address `to`.
    pub(crate) fn lead(&mut self, branch: Branch, to: u32) {
        self.branches.push((branch, to));
    }

    /// Lets `branch` lead here.
    pub(crate) fn land(&mut self, branch: Branch) {
        self.lead(branch, self.here());
    }

    /// One of LOOPNE, LOOPE, LOOP and JECXZ by its `opcode`, with ECX, to be told where.
    pub(crate) fn loop_if(&mut self, opcode: u8) -> Branch {
        // Taken: over the short jump, which goes over the long one.
        self.bytes(&[0x67, opcode, 2, 0xeb, 5]);
        self.unaligned_jump()
    }

    /// A jump if CX is 0, to be told where. R10 is used.
    pub(crate) fn jump_if_cx_zero(&mut self) -> Branch {
        self.save_rcx();
        self.bytes(&[0x0f, 0xb7, 0xc9]); // movzx ecx, cx
        self.bytes(&[0xe3, 5]); // jrcxz over the next two
        self.restore_rcx();
        self.bytes(&[0xeb, 8]); // jmp over the next two
        self.restore_rcx();
        self.unaligned_jump()
    }

    /// Takes 1 from CX, and jumps if it is not 0 then and the `condition` holds, which is the low four bits of a jump's opcode, to be
    /// told where. R8 and R10 are used.
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

    /// Goes on with the indirect jump to R8D: by the jump table, by way of the check at the entry there.
    pub(crate) fn jump_by_table(&mut self) {
        self.look_up();
        self.align_branch(3);
        self.bytes(&[0x41, 0xff, 0xe1]); // jmp r9
    }

    /// The same with a call.
    pub(crate) fn call_by_table(&mut self) {
        self.prepare_return();
        self.look_up();
        self.align_branch(3);
        self.bytes(&[0x41, 0xff, 0xd1]); // call r9
    }

    /// Loads R9D with what the jump table has for R8D.
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

    /// Goes on with a jump to `target`, which the jump table has at `index`.
    pub(crate) fn jump_by_table_to(&mut self, target: u32, index: u32) {
        self.look_up_number(target, index);
        self.align_branch(3);
        self.bytes(&[0x41, 0xff, 0xe1]); // jmp r9
    }

    /// The same with a call.
    pub(crate) fn call_by_table_to(&mut self, target: u32, index: u32) {
        self.prepare_return();
        self.look_up_number(target, index);
        self.align_branch(3);
        self.bytes(&[0x41, 0xff, 0xd1]); // call r9
    }

    /// Loads R8D with `target` and R9D with what the jump table has at `index`.
    fn look_up_number(&mut self, target: u32, index: u32) {
        self.load_number(Register::R8D, target);
        self.bytes_and(&[0x45, 0x8b, 0x8d], index * 4); // mov r9d, [r13 + ...]
    }

    /// Keeps RCX in R10.
    pub(crate) fn save_rcx(&mut self) {
        self.bytes(&[0x49, 0x89, 0xca]); // mov r10, rcx
    }

    /// Has it back.
    pub(crate) fn restore_rcx(&mut self) {
        self.bytes(&[0x4c, 0x89, 0xd1]); // mov rcx, r10
    }

    /// Jumps, to be told where, unless the `size` bytes (1, 2, 4 or 8) at `offset` from the address in R8 are `value`. RCX and R9
    /// are used.
    pub(crate) fn jump_unless(&mut self, offset: u32, size: usize, value: u64) -> Branch {
        let memory = MemoryOperand::with_base_displ(Register::R8, offset.into());
        let (load, register) = match size {
            1 => (Code::Movzx_r32_rm8, Register::ECX),
            2 => (Code::Movzx_r32_rm16, Register::ECX),
            4 => (Code::Mov_r32_rm32, Register::ECX),
            _ => (Code::Mov_r64_rm64, Register::RCX),
        };
        self.instruction(Instruction::with2(load, register, memory));
        if register == Register::RCX {
            let negative = value.wrapping_neg();
            self.instruction(Instruction::with2(Code::Mov_r64_imm64, Register::R9, negative));
            self.add_64(Register::RCX, Register::RCX, Register::R9, 0);
        } else {
            self.add(Register::ECX, Register::RCX, (value as i32).wrapping_neg());
        }
        self.bytes(&[0xe3, 5]); // jrcxz over the next one
        self.unaligned_jump()
    }

    /// `mov r8, imm64`: an address of this process.
    pub(crate) fn load_address(&mut self, address: u64) {
        self.instruction(Instruction::with2(Code::Mov_r64_imm64, Register::R8, address));
    }

    /// Loads a doubleword from an address of this process. R8 is used.
    pub(crate) fn load_from(&mut self, register: Register, address: u64) {
        self.load_address(address);
        self.load(register, MemoryOperand::with_base(Register::R8));
    }

    /// Takes a number of instructions, which is to be told, from the budget.
    pub(crate) fn count(&mut self) -> Count {
        self.bytes(&[0x4d, 0x8d, 0x64, 0x24, 0]); // lea r12, [r12 - ...]
        Count(self.here())
    }

    /// Gives back that many, at most 127.
    pub(crate) fn give_back(&mut self, instructions: u16) {
        self.bytes(&[0x4d, 0x8d, 0x64, 0x24, instructions as u8]); // lea r12, [r12 + ...]
    }

    /// Stops if a number of instructions, which is to be told, is more than there are.
    pub(crate) fn check_budget(&mut self) -> Count {
        // Not into R9L, which would wait for the rest of R9.
        self.bytes(&[0x45, 0x0f, 0xb6, 0x4c, 0x24, 0]); // movzx r9d, byte [r12 - ...]
        Count(self.here())
    }

    /// Tells the number, which is at most 128.
    pub(crate) fn set_count(&mut self, count: Count, instructions: u16) {
        self.counts.push((count, (instructions as i8).wrapping_neg()));
    }

    /// Where the code is, to throw away what comes after it.
    pub(crate) fn mark(&self) -> Mark {
        Mark { len: self.len, stack_offset: self.stack_offset, branches: self.branches.len() }
    }

    /// Throws away what was appended since `mark`.
    pub(crate) fn go_back(&mut self, mark: Mark) {
        let mut code = self.encoder.take_buffer();
        code.truncate(mark.len as usize);
        self.encoder.set_buffer(code);
        self.len = mark.len;
        self.stack_offset = mark.stack_offset;
        self.branches.truncate(mark.branches);
    }

    /// Goes on at the address in a field of the context.
    pub(crate) fn jump_through(&mut self, field: u32) {
        let to = MemoryOperand::with_base_displ(Register::R14, field.into());
        self.instruction(Instruction::with1(Code::Jmp_rm64, to));
    }

    /// Calls the routine whose address is in a field of the context.
    pub(crate) fn call(&mut self, field: u32) {
        let routine = MemoryOperand::with_base_displ(Register::R14, field.into());
        self.instruction(Instruction::with1(Code::Call_rm64, routine));
    }

    /// Leaves translated code by the routine in a field of the context, which reads what comes after the jump to it. There is so much of this
    /// that it is to be short.
    pub(crate) fn leave(&mut self, field: u32, eip: u32, info: u32) {
        let size = if i8::try_from(field).is_ok() { 4 } else { 7 };
        self.bytes_and(&[0x4c, 0x8d, 0x05], size); // lea r8, [rip + ...]
        self.jump_through(field);
        self.bytes(&eip.to_le_bytes());
        self.bytes(&info.to_le_bytes());
    }

    /// Leaves translated code to have `branch` linked to `target`.
    pub(crate) fn leave_to_link(&mut self, Branch(end): Branch, target: u32) {
        self.leave(at::LEAVE_TO_LINK, target, end);
    }
}
