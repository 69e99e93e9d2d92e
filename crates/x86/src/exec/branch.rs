//! Control transfer (SDM vol. 1, 7.3.8): jumps, calls, returns, loops, software interrupts; conditions.

use iced_x86::Code;
use ring3_core::memory::Memory;

use crate::access::is_canonical;
use crate::cpu::{Cpu, reg};
use crate::decode::Op;
use crate::exception::{Fault, vector};
use crate::exec::pair::Part;
use crate::exec::{Done, Flat, Long, Mem, Place, Quick, Reg, Segmented};
use crate::flags::Status;
use crate::interrupt::{Event, Source};
use crate::segment::sreg;
use crate::system_calls::{self, Gate};
use crate::table::{
    Exec, Rows, Way, branches, finish, go_or_link, go_to, linked, near, next_block, plain, rm_wide,
    wide_branches,
};
use crate::word::Word;

/// Rows for the six forms of a conditional jump, with the number that its condition has in its opcode.
macro_rules! conditional {
    ($rows:ident, $byte_16:ident $word:ident $byte_32:ident $dword:ident $byte_64:ident $qword:ident,
        $number:literal $condition:ident) => {
        branches!($rows, [$byte_16 $word], near!(jump_if::<u16, $condition>));
        branches!($rows, [$byte_32 $dword $byte_64 $qword], jump_if_by_link::<$condition>);
        $rows.condition(&[Code::$byte_32, Code::$dword, Code::$byte_64, Code::$qword], $number);
    };
}

/// Adds the forms of this file to the instruction table.
pub(super) fn forms(rows: &mut Rows) {
    branches!(rows, [Jmp_rel8_16 Jmp_rel16], near!(jump::<u16>));
    branches!(rows, [Jmp_rel8_32 Jmp_rel32_32 Jmp_rel8_64 Jmp_rel32_64], jump_by_link);
    branches!(rows, [Call_rel16], near!(call::<u16>));
    branches!(rows, [Call_rel32_32], near!(call::<u32>));
    branches!(rows, [Call_rel32_64], call_by_link::<u64>);
    rows.with_flat_stack(&[Code::Call_rel32_32], call_by_link::<u32>);
    rows.parts(Code::Call_rel32_32, None, Some(Part::Call));
    branches!(rows, [Retnw Retnw_imm16], near!(near_return::<u16>));
    branches!(rows, [Retnd Retnd_imm16], near!(near_return::<u32>));
    branches!(rows, [Retnq Retnq_imm16], quick_return::<u64>);
    rows.with_flat_stack(&[Code::Retnd, Code::Retnd_imm16], quick_return::<u32>);
    rows.parts(Code::Retnd, None, Some(Part::Return));
    let word: [Exec; 2] = [near!(jump_indirect::<Mem, u16>), near!(jump_indirect::<Reg, u16>)];
    rows.add_branches(&[Code::Jmp_rm16], word[0], word[0], word[1]);
    rows.add_branches(
        &[Code::Jmp_rm32],
        quick_jump_indirect::<Quick<Segmented>, u32>,
        quick_jump_indirect::<Quick<Flat>, u32>,
        quick_jump_indirect::<Reg, u32>,
    );
    let quadword: [Exec; 2] =
        [quick_jump_indirect::<Quick<Segmented>, u64>, quick_jump_indirect::<Reg, u64>];
    rows.add_branches(&[Code::Jmp_rm64], quadword[0], quadword[0], quadword[1]);
    rows.with_long(&[Code::Jmp_rm64], quick_jump_indirect::<Quick<Long>, u64>);
    let word: [Exec; 2] = [near!(call_indirect::<Mem, u16>), near!(call_indirect::<Reg, u16>)];
    rows.add_branches(&[Code::Call_rm16], word[0], word[0], word[1]);
    rows.add_branches(
        &[Code::Call_rm32],
        near!(call_indirect::<Mem, u32>),
        quick_call_indirect::<Quick<Flat>, u32>,
        near!(call_indirect::<Reg, u32>),
    );
    rows.with_flat_stack(&[Code::Call_rm32], quick_call_indirect::<Reg, u32>);
    let quadword: [Exec; 2] =
        [quick_call_indirect::<Quick<Segmented>, u64>, quick_call_indirect::<Reg, u64>];
    rows.add_branches(&[Code::Call_rm64], quadword[0], quadword[0], quadword[1]);
    rows.with_long(&[Code::Call_rm64], quick_call_indirect::<Quick<Long>, u64>);
    wide_branches!(rows, [Jmp_ptr1616 Jmp_ptr1632], far_jump);
    wide_branches!(rows, [Jmp_m1616 Jmp_m1632 Jmp_m1664], far_jump_indirect);
    wide_branches!(rows, [Call_ptr1616 Call_ptr1632], far_call);
    wide_branches!(rows, [Call_m1616 Call_m1632 Call_m1664], far_call_indirect);
    wide_branches!(rows, [Retfw Retfd Retfq], far_return);
    wide_branches!(rows, [Retfw_imm16 Retfd_imm16 Retfq_imm16], far_return);
    wide_branches!(rows, [Iretw Iretd Iretq], interrupt_return);

    conditional!(rows, Jo_rel8_16 Jo_rel16 Jo_rel8_32 Jo_rel32_32 Jo_rel8_64 Jo_rel32_64,
        0 IfOverflow);
    conditional!(rows, Jno_rel8_16 Jno_rel16 Jno_rel8_32 Jno_rel32_32 Jno_rel8_64 Jno_rel32_64,
        1 IfNotOverflow);
    conditional!(rows, Jb_rel8_16 Jb_rel16 Jb_rel8_32 Jb_rel32_32 Jb_rel8_64 Jb_rel32_64,
        2 IfBelow);
    conditional!(rows, Jae_rel8_16 Jae_rel16 Jae_rel8_32 Jae_rel32_32 Jae_rel8_64 Jae_rel32_64,
        3 IfAboveOrEqual);
    conditional!(rows, Je_rel8_16 Je_rel16 Je_rel8_32 Je_rel32_32 Je_rel8_64 Je_rel32_64,
        4 IfEqual);
    conditional!(rows, Jne_rel8_16 Jne_rel16 Jne_rel8_32 Jne_rel32_32 Jne_rel8_64 Jne_rel32_64,
        5 IfNotEqual);
    conditional!(rows, Jbe_rel8_16 Jbe_rel16 Jbe_rel8_32 Jbe_rel32_32 Jbe_rel8_64 Jbe_rel32_64,
        6 IfBelowOrEqual);
    conditional!(rows, Ja_rel8_16 Ja_rel16 Ja_rel8_32 Ja_rel32_32 Ja_rel8_64 Ja_rel32_64,
        7 IfAbove);
    conditional!(rows, Js_rel8_16 Js_rel16 Js_rel8_32 Js_rel32_32 Js_rel8_64 Js_rel32_64,
        8 IfSign);
    conditional!(rows, Jns_rel8_16 Jns_rel16 Jns_rel8_32 Jns_rel32_32 Jns_rel8_64 Jns_rel32_64,
        9 IfNotSign);
    conditional!(rows, Jp_rel8_16 Jp_rel16 Jp_rel8_32 Jp_rel32_32 Jp_rel8_64 Jp_rel32_64,
        10 IfParity);
    conditional!(rows, Jnp_rel8_16 Jnp_rel16 Jnp_rel8_32 Jnp_rel32_32 Jnp_rel8_64 Jnp_rel32_64,
        11 IfNotParity);
    conditional!(rows, Jl_rel8_16 Jl_rel16 Jl_rel8_32 Jl_rel32_32 Jl_rel8_64 Jl_rel32_64,
        12 IfLess);
    conditional!(rows, Jge_rel8_16 Jge_rel16 Jge_rel8_32 Jge_rel32_32 Jge_rel8_64 Jge_rel32_64,
        13 IfGreaterOrEqual);
    conditional!(rows, Jle_rel8_16 Jle_rel16 Jle_rel8_32 Jle_rel32_32 Jle_rel8_64 Jle_rel32_64,
        14 IfLessOrEqual);
    conditional!(rows, Jg_rel8_16 Jg_rel16 Jg_rel8_32 Jg_rel32_32 Jg_rel8_64 Jg_rel32_64,
        15 IfGreater);

    // The count register has the address size, and the target the operand size.
    branches!(rows, [Loop_rel8_16_CX], near!(loop_if::<u16, u16, Always>));
    branches!(rows, [Loop_rel8_32_CX], near!(loop_if::<u32, u16, Always>));
    branches!(rows, [Loop_rel8_16_ECX], near!(loop_if::<u16, u32, Always>));
    branches!(rows, [Loop_rel8_32_ECX], near!(loop_if::<u32, u32, Always>));
    branches!(rows, [Loope_rel8_16_CX], near!(loop_if::<u16, u16, IfEqual>));
    branches!(rows, [Loope_rel8_32_CX], near!(loop_if::<u32, u16, IfEqual>));
    branches!(rows, [Loope_rel8_16_ECX], near!(loop_if::<u16, u32, IfEqual>));
    branches!(rows, [Loope_rel8_32_ECX], near!(loop_if::<u32, u32, IfEqual>));
    branches!(rows, [Loopne_rel8_16_CX], near!(loop_if::<u16, u16, IfNotEqual>));
    branches!(rows, [Loopne_rel8_32_CX], near!(loop_if::<u32, u16, IfNotEqual>));
    branches!(rows, [Loopne_rel8_16_ECX], near!(loop_if::<u16, u32, IfNotEqual>));
    branches!(rows, [Loopne_rel8_32_ECX], near!(loop_if::<u32, u32, IfNotEqual>));
    branches!(rows, [Loop_rel8_64_ECX], near!(loop_if::<u64, u32, Always>));
    branches!(rows, [Loop_rel8_64_RCX], near!(loop_if::<u64, u64, Always>));
    branches!(rows, [Loope_rel8_64_ECX], near!(loop_if::<u64, u32, IfEqual>));
    branches!(rows, [Loope_rel8_64_RCX], near!(loop_if::<u64, u64, IfEqual>));
    branches!(rows, [Loopne_rel8_64_ECX], near!(loop_if::<u64, u32, IfNotEqual>));
    branches!(rows, [Loopne_rel8_64_RCX], near!(loop_if::<u64, u64, IfNotEqual>));
    branches!(rows, [Jecxz_rel8_64], near!(jump_if_count_zero::<u64, u32>));
    branches!(rows, [Jrcxz_rel8_64], near!(jump_if_count_zero::<u64, u64>));
    branches!(rows, [Jcxz_rel8_16], near!(jump_if_count_zero::<u16, u16>));
    branches!(rows, [Jcxz_rel8_32], near!(jump_if_count_zero::<u32, u16>));
    branches!(rows, [Jecxz_rel8_16], near!(jump_if_count_zero::<u16, u32>));
    branches!(rows, [Jecxz_rel8_32], near!(jump_if_count_zero::<u32, u32>));

    plain!(rows, [Int_imm8], software_interrupt);
    plain!(rows, [Int3], breakpoint);
    plain!(rows, [Into], interrupt_on_overflow);
    plain!(rows, [Int1], debug_trap);
    rm_wide!(rows, [Bound_r16_m1616 Bound_r32_m3232], bound);
    plain!(rows, [Ud0_r16_rm16 Ud0_r32_rm32 Ud0_r64_rm64 Ud1_r16_rm16 Ud1_r32_rm32 Ud1_r64_rm64 Ud2],
        super::undefined_instruction);
}

/// A condition on the status flags (SDM vol. 1, appendix B).
pub(crate) trait Condition {
    /// Returns whether it holds.
    fn holds(status: Status) -> bool;
}

macro_rules! conditions {
    ($($name:ident: $test:expr;)*) => {
        $(pub(crate) struct $name;

        impl Condition for $name {
            #[inline(always)]
            fn holds(status: Status) -> bool {
                let test: fn(Status) -> bool = $test;
                test(status)
            }
        })*
    };
}

conditions! {
    IfOverflow: Status::overflow;
    IfNotOverflow: |status| !status.overflow();
    IfBelow: Status::carry;
    IfAboveOrEqual: |status| !status.carry();
    IfEqual: Status::zero;
    IfNotEqual: |status| !status.zero();
    IfBelowOrEqual: |status| status.carry() || status.zero();
    IfAbove: |status| !status.carry() && !status.zero();
    IfSign: Status::sign;
    IfNotSign: |status| !status.sign();
    IfParity: Status::parity;
    IfNotParity: |status| !status.parity();
    IfLess: |status| status.sign() != status.overflow();
    IfGreaterOrEqual: |status| status.sign() == status.overflow();
    IfLessOrEqual: |status| status.zero() || status.sign() != status.overflow();
    IfGreater: |status| !status.zero() && status.sign() == status.overflow();
    Always: |_| true;
}

/// Jumps to `target` of CS with operand size `W`. A target beyond the limit, or of 64 bits and not canonical,
/// raises #GP(0).
#[inline(always)]
fn jump_to<W: Word>(cpu: &mut Cpu, target: u64) -> Done {
    check_target::<W>(cpu, target)?;
    cpu.ip = target;
    Ok(())
}

/// Returns whether there can be code at `target` of CS. Near branches have 64-bit operands in 64-bit mode only,
/// and on Intel's processors always (SDM vol. 2, Jcc).
#[inline(always)]
fn may_go_to<W: Word>(cpu: &Cpu, target: u64) -> bool {
    if W::BITS == 64 {
        is_canonical(target)
    } else {
        target <= u64::from(cpu.segment(sreg::CS).limit)
    }
}

#[inline(always)]
fn check_target<W: Word>(cpu: &mut Cpu, target: u64) -> Done {
    if may_go_to::<W>(cpu, target) { Ok(()) } else { Err(cpu.general_protection(0)) }
}

/// Returns the target of a relative branch with operand size `W`.
#[inline(always)]
fn relative_target<W: Word>(cpu: &Cpu, op: &Op) -> u64 {
    cpu.ip.wrapping_add(op.imm.sign_extend()) & W::MASK
}

fn jump<W: Word>(cpu: &mut Cpu, _: &mut Memory, op: &Op) -> Done {
    jump_to::<W>(cpu, relative_target::<W>(cpu, op))
}

fn jump_if<W: Word, C: Condition>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    if C::holds(cpu.status) { jump::<W>(cpu, memory, op) } else { Ok(()) }
}

/// Performs a jump in 32-bit or 64-bit code, and continues with the block at its target if that is known.
#[inline(always)]
fn jump_by_link(cpu: &mut Cpu, memory: &mut Memory, op: &Op, ops: &[Op], at: usize) -> Done {
    if let Some((at, block)) = linked(cpu, op, ops, at, Way::Taken) {
        return (block.exec)(cpu, memory, block, ops, at);
    }
    jump_unlinked(cpu, memory, op, ops, at)
}

#[inline(never)]
fn jump_unlinked(cpu: &mut Cpu, memory: &mut Memory, op: &Op, ops: &[Op], at: usize) -> Done {
    let jump = if cpu.is_in_64_bit_mode() { jump::<u64> } else { jump::<u32> };
    finish(cpu, memory, op, at, jump)?;
    go_or_link(cpu, memory, ops, at, Way::Taken)
}

#[inline(always)]
pub(super) fn jump_if_by_link<C: Condition>(
    cpu: &mut Cpu,
    memory: &mut Memory,
    op: &Op,
    ops: &[Op],
    at: usize,
) -> Done {
    if C::holds(cpu.status) {
        jump_by_link(cpu, memory, op, ops, at)
    } else {
        next_block(cpu, memory, op, ops, at)
    }
}

/// Performs a call in 32-bit or 64-bit code.
#[inline(always)]
pub(super) fn call_by_link<W: Word>(
    cpu: &mut Cpu,
    memory: &mut Memory,
    op: &Op,
    ops: &[Op],
    at: usize,
) -> Done {
    let return_address = W::truncate(cpu.ip);
    let target = relative_target::<W>(cpu, op);
    if !may_go_to::<W>(cpu, target) || cpu.push_at_once(memory, return_address).is_err() {
        return begin_again(cpu, memory, op, at, call::<W>);
    }
    if let Some((at, block)) = linked(cpu, op, ops, at, Way::Taken) {
        return (block.exec)(cpu, memory, block, ops, at);
    }
    cpu.ip = target;
    go_or_link(cpu, memory, ops, at, Way::Taken)
}

fn quick_jump_indirect<P: Place, W: Word>(
    cpu: &mut Cpu,
    memory: &mut Memory,
    op: &Op,
    ops: &[Op],
    at: usize,
) -> Done {
    if let Ok(target) = P::read::<W>(cpu, memory, op).map(W::zero_extend)
        && may_go_to::<W>(cpu, target)
    {
        cpu.ip = target;
        return go_to(cpu, memory, ops);
    }
    begin_again(cpu, memory, op, at, jump_indirect::<P::Any, W>)
}

fn quick_call_indirect<P: Place, W: Word>(
    cpu: &mut Cpu,
    memory: &mut Memory,
    op: &Op,
    ops: &[Op],
    at: usize,
) -> Done {
    let return_address = W::truncate(cpu.ip);
    if let Ok(target) = P::read::<W>(cpu, memory, op).map(W::zero_extend)
        && may_go_to::<W>(cpu, target)
        && cpu.push_at_once(memory, return_address).is_ok()
    {
        cpu.ip = target;
        return go_to(cpu, memory, ops);
    }
    begin_again(cpu, memory, op, at, call_indirect::<P::Any, W>)
}

#[inline(always)]
pub(super) fn quick_return<W: Word>(
    cpu: &mut Cpu,
    memory: &mut Memory,
    op: &Op,
    ops: &[Op],
    at: usize,
) -> Done {
    if let Ok(target) = cpu.peek_at_once::<W>(memory).map(W::zero_extend)
        && may_go_to::<W>(cpu, target)
    {
        cpu.release_flat::<W>(W::BYTES as u64 + u64::from(op.imm));
        cpu.ip = target;
        return go_to(cpu, memory, ops);
    }
    begin_again(cpu, memory, op, at, near_return::<W>)
}

/// Executes `op` by `handler` after a quick handler of a branch has stopped. It stays a function of its own,
/// for the same reason as those of [`slow!`](crate::table::slow).
#[inline(never)]
fn begin_again(
    cpu: &mut Cpu,
    memory: &mut Memory,
    op: &Op,
    at: usize,
    handler: fn(&mut Cpu, &mut Memory, &Op) -> Done,
) -> Done {
    cpu.rewind_answers();
    finish(cpu, memory, op, at, handler)
}

fn jump_indirect<P: Place, W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    let target = P::read::<W>(cpu, memory, op)?;
    jump_to::<W>(cpu, target.zero_extend())
}

fn call<W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    call_to::<W>(cpu, memory, relative_target::<W>(cpu, op))
}

fn call_indirect<P: Place, W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    let target = P::read::<W>(cpu, memory, op)?;
    call_to::<W>(cpu, memory, target.zero_extend())
}

#[inline(always)]
fn call_to<W: Word>(cpu: &mut Cpu, memory: &mut Memory, target: u64) -> Done {
    check_target::<W>(cpu, target)?;
    cpu.push(memory, W::truncate(cpu.ip))?;
    cpu.ip = target;
    Ok(())
}

/// Performs RET. The immediate is the number of bytes of parameters; it is 0 in the form without one.
fn near_return<W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    let target = cpu.peek::<W>(memory, 0)?.zero_extend();
    jump_to::<W>(cpu, target)?;
    let released = W::BYTES as u64 + u64::from(op.imm);
    cpu.set_stack_pointer(cpu.stack_pointer().wrapping_add(released));
    Ok(())
}

fn far_jump<W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    cpu.far_jump(memory, op.disp as u16, u64::from(op.imm) & W::MASK)
}

fn far_call<W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    cpu.far_call(memory, op.disp as u16, u64::from(op.imm) & W::MASK, W::BYTES)
}

/// Returns the far pointer in memory: selector and offset.
fn far_pointer<W: Word>(
    cpu: &mut Cpu,
    memory: &mut Memory,
    op: &Op,
) -> Result<(u16, u64), crate::exception::Stopped> {
    let offset = Mem::read::<W>(cpu, memory, op)?;
    let behind = op.displaced(cpu, W::BYTES as u64);
    Ok((Mem::read(cpu, memory, &behind)?, offset.zero_extend()))
}

fn far_jump_indirect<W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    let (selector, offset) = far_pointer::<W>(cpu, memory, op)?;
    cpu.far_jump(memory, selector, offset)
}

fn far_call_indirect<W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    let (selector, offset) = far_pointer::<W>(cpu, memory, op)?;
    cpu.far_call(memory, selector, offset, W::BYTES)
}

fn far_return<W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    cpu.far_return(memory, W::BYTES, u64::from(op.imm))
}

fn interrupt_return<W: Word>(cpu: &mut Cpu, memory: &mut Memory, _: &Op) -> Done {
    let is_awaited = cpu.begin_system_return()?;
    cpu.interrupt_return(memory, W::BYTES)?;
    cpu.end_system_return(memory, is_awaited);
    Ok(())
}

fn loop_if<W: Word, Count: Word, C: Condition>(cpu: &mut Cpu, _: &mut Memory, op: &Op) -> Done {
    let count = cpu.get::<Count>(reg::CX).zero_extend().wrapping_sub(1) & Count::MASK;
    let target = relative_target::<W>(cpu, op);
    if count != 0 && C::holds(cpu.status) {
        jump_to::<W>(cpu, target)?;
    }
    cpu.set(reg::CX, Count::truncate(count));
    Ok(())
}

fn jump_if_count_zero<W: Word, Count: Word>(cpu: &mut Cpu, _: &mut Memory, op: &Op) -> Done {
    if cpu.get::<Count>(reg::CX).zero_extend() == 0 {
        return jump_to::<W>(cpu, relative_target::<W>(cpu, op));
    }
    Ok(())
}

/// Delivers a software interrupt; EIP is already that of the next instruction. It clears TF, so
/// that its handler does not begin with a single-step trap (SDM vol. 3, 19.3.1.4).
fn interrupt(cpu: &mut Cpu, memory: &mut Memory, vector: u8, source: Source) -> Done {
    let before = cpu.attention;
    cpu.deliver(memory, Event { vector, error_code: None, source })?;
    cpu.hold_trap_back(before);
    Ok(())
}

fn software_interrupt(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    let vector = op.immediate();
    let before = cpu.attention;
    if cpu.redirect_interrupt(memory, vector)? {
        cpu.hold_trap_back(before);
        return Ok(());
    }
    if cpu.in_virtual_8086_mode() && cpu.iopl() < 3 {
        return Err(cpu.general_protection(0));
    }
    if vector != system_calls::VECTOR {
        return interrupt(cpu, memory, vector, Source::Software);
    }
    let caller = cpu.begin_system_call(Gate::Interrupt)?;
    interrupt(cpu, memory, vector, Source::Software)?;
    cpu.end_system_call(memory, caller);
    Ok(())
}

fn breakpoint(cpu: &mut Cpu, memory: &mut Memory, _: &Op) -> Done {
    interrupt(cpu, memory, vector::BP, Source::Software)
}

fn interrupt_on_overflow(cpu: &mut Cpu, memory: &mut Memory, _: &Op) -> Done {
    if cpu.status.overflow() {
        return interrupt(cpu, memory, vector::OF, Source::Software);
    }
    Ok(())
}

/// Performs INT1 (ICEBP): a trap for which no gate's privilege is checked.
fn debug_trap(cpu: &mut Cpu, memory: &mut Memory, _: &Op) -> Done {
    interrupt(cpu, memory, vector::DB, Source::Exception)
}

/// Performs BOUND, whose bounds are signed (SDM vol. 2, BOUND).
fn bound<P: Place, W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    let index = cpu.get::<W>(op.reg).sign_extend() as i64;
    let lower = P::read::<W>(cpu, memory, op)?.sign_extend() as i64;
    let behind = op.displaced(cpu, W::BYTES as u64);
    let upper = P::read::<W>(cpu, memory, &behind)?.sign_extend() as i64;
    if index < lower || index > upper {
        return Err(cpu.fault(Fault::new(vector::BR)));
    }
    Ok(())
}
