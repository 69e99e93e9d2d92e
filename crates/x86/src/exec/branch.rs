//! Control transfer (SDM vol. 1, 7.3.8): jumps, calls, returns, loops, software interrupts; conditions.

use ring3_core::memory::Memory;

use crate::cpu::{Cpu, reg};
use crate::decode::Op;
use crate::exception::{Fault, vector};
use crate::exec::{Done, Mem, Place};
use crate::flags::Status;
use crate::interrupt::{Event, Source};
use crate::segment::sreg;
use crate::table::{Rows, plain, rm_wide, wide};
use crate::word::Word;

/// Adds the forms of this file to the instruction table.
pub(super) fn forms(rows: &mut Rows) {
    wide!(rows, [Jmp_rel8_16 Jmp_rel8_32], jump);
    wide!(rows, [Jmp_rel16 Jmp_rel32_32], jump);
    rm_wide!(rows, [Jmp_rm16 Jmp_rm32], jump_indirect);
    wide!(rows, [Call_rel16 Call_rel32_32], call);
    rm_wide!(rows, [Call_rm16 Call_rm32], call_indirect);
    wide!(rows, [Retnw Retnd], near_return);
    wide!(rows, [Retnw_imm16 Retnd_imm16], near_return);
    wide!(rows, [Jmp_ptr1616 Jmp_ptr1632], far_jump);
    wide!(rows, [Jmp_m1616 Jmp_m1632], far_jump_indirect);
    wide!(rows, [Call_ptr1616 Call_ptr1632], far_call);
    wide!(rows, [Call_m1616 Call_m1632], far_call_indirect);
    wide!(rows, [Retfw Retfd], far_return);
    wide!(rows, [Retfw_imm16 Retfd_imm16], far_return);
    wide!(rows, [Iretw Iretd], interrupt_return);

    wide!(rows, [Jo_rel8_16 Jo_rel8_32], jump_if, IfOverflow);
    wide!(rows, [Jo_rel16 Jo_rel32_32], jump_if, IfOverflow);
    wide!(rows, [Jno_rel8_16 Jno_rel8_32], jump_if, IfNotOverflow);
    wide!(rows, [Jno_rel16 Jno_rel32_32], jump_if, IfNotOverflow);
    wide!(rows, [Jb_rel8_16 Jb_rel8_32], jump_if, IfBelow);
    wide!(rows, [Jb_rel16 Jb_rel32_32], jump_if, IfBelow);
    wide!(rows, [Jae_rel8_16 Jae_rel8_32], jump_if, IfAboveOrEqual);
    wide!(rows, [Jae_rel16 Jae_rel32_32], jump_if, IfAboveOrEqual);
    wide!(rows, [Je_rel8_16 Je_rel8_32], jump_if, IfEqual);
    wide!(rows, [Je_rel16 Je_rel32_32], jump_if, IfEqual);
    wide!(rows, [Jne_rel8_16 Jne_rel8_32], jump_if, IfNotEqual);
    wide!(rows, [Jne_rel16 Jne_rel32_32], jump_if, IfNotEqual);
    wide!(rows, [Jbe_rel8_16 Jbe_rel8_32], jump_if, IfBelowOrEqual);
    wide!(rows, [Jbe_rel16 Jbe_rel32_32], jump_if, IfBelowOrEqual);
    wide!(rows, [Ja_rel8_16 Ja_rel8_32], jump_if, IfAbove);
    wide!(rows, [Ja_rel16 Ja_rel32_32], jump_if, IfAbove);
    wide!(rows, [Js_rel8_16 Js_rel8_32], jump_if, IfSign);
    wide!(rows, [Js_rel16 Js_rel32_32], jump_if, IfSign);
    wide!(rows, [Jns_rel8_16 Jns_rel8_32], jump_if, IfNotSign);
    wide!(rows, [Jns_rel16 Jns_rel32_32], jump_if, IfNotSign);
    wide!(rows, [Jp_rel8_16 Jp_rel8_32], jump_if, IfParity);
    wide!(rows, [Jp_rel16 Jp_rel32_32], jump_if, IfParity);
    wide!(rows, [Jnp_rel8_16 Jnp_rel8_32], jump_if, IfNotParity);
    wide!(rows, [Jnp_rel16 Jnp_rel32_32], jump_if, IfNotParity);
    wide!(rows, [Jl_rel8_16 Jl_rel8_32], jump_if, IfLess);
    wide!(rows, [Jl_rel16 Jl_rel32_32], jump_if, IfLess);
    wide!(rows, [Jge_rel8_16 Jge_rel8_32], jump_if, IfGreaterOrEqual);
    wide!(rows, [Jge_rel16 Jge_rel32_32], jump_if, IfGreaterOrEqual);
    wide!(rows, [Jle_rel8_16 Jle_rel8_32], jump_if, IfLessOrEqual);
    wide!(rows, [Jle_rel16 Jle_rel32_32], jump_if, IfLessOrEqual);
    wide!(rows, [Jg_rel8_16 Jg_rel8_32], jump_if, IfGreater);
    wide!(rows, [Jg_rel16 Jg_rel32_32], jump_if, IfGreater);

    // The count register has the address size, the target the operand size.
    plain!(rows, [Loop_rel8_16_CX], loop_if::<u16, u16, Always>);
    plain!(rows, [Loop_rel8_32_CX], loop_if::<u32, u16, Always>);
    plain!(rows, [Loop_rel8_16_ECX], loop_if::<u16, u32, Always>);
    plain!(rows, [Loop_rel8_32_ECX], loop_if::<u32, u32, Always>);
    plain!(rows, [Loope_rel8_16_CX], loop_if::<u16, u16, IfEqual>);
    plain!(rows, [Loope_rel8_32_CX], loop_if::<u32, u16, IfEqual>);
    plain!(rows, [Loope_rel8_16_ECX], loop_if::<u16, u32, IfEqual>);
    plain!(rows, [Loope_rel8_32_ECX], loop_if::<u32, u32, IfEqual>);
    plain!(rows, [Loopne_rel8_16_CX], loop_if::<u16, u16, IfNotEqual>);
    plain!(rows, [Loopne_rel8_32_CX], loop_if::<u32, u16, IfNotEqual>);
    plain!(rows, [Loopne_rel8_16_ECX], loop_if::<u16, u32, IfNotEqual>);
    plain!(rows, [Loopne_rel8_32_ECX], loop_if::<u32, u32, IfNotEqual>);
    plain!(rows, [Jcxz_rel8_16], jump_if_count_zero::<u16, u16>);
    plain!(rows, [Jcxz_rel8_32], jump_if_count_zero::<u32, u16>);
    plain!(rows, [Jecxz_rel8_16], jump_if_count_zero::<u16, u32>);
    plain!(rows, [Jecxz_rel8_32], jump_if_count_zero::<u32, u32>);

    plain!(rows, [Int_imm8], software_interrupt);
    plain!(rows, [Int3], breakpoint);
    plain!(rows, [Into], interrupt_on_overflow);
    plain!(rows, [Int1], debug_trap);
    rm_wide!(rows, [Bound_r16_m1616 Bound_r32_m3232], bound);
    plain!(rows, [Ud0 Ud0_r16_rm16 Ud0_r32_rm32 Ud1_r16_rm16 Ud1_r32_rm32 Ud2],
        super::undefined_instruction);
}

/// A condition on the status flags (SDM vol. 1, appendix B).
pub(super) trait Condition {
    /// True when it holds.
    fn holds(status: Status) -> bool;
}

macro_rules! conditions {
    ($($name:ident: $test:expr;)*) => {
        $(pub(super) struct $name;

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

/// Jumps to `target` of CS; beyond the limit it is #GP(0).
#[inline(always)]
fn jump_to(cpu: &mut Cpu, target: u64) -> Done {
    check_target(cpu, target)?;
    cpu.ip = target;
    Ok(())
}

#[inline(always)]
fn check_target(cpu: &mut Cpu, target: u64) -> Done {
    if target > u64::from(cpu.segment(sreg::CS).limit) {
        return Err(cpu.general_protection(0));
    }
    Ok(())
}

/// The target of a relative branch with operand size `W`.
#[inline(always)]
fn relative_target<W: Word>(cpu: &Cpu, op: &Op) -> u64 {
    cpu.ip.wrapping_add(u64::from(op.imm)) & W::MASK
}

fn jump<W: Word>(cpu: &mut Cpu, _: &mut Memory, op: &Op) -> Done {
    jump_to(cpu, relative_target::<W>(cpu, op))
}

fn jump_if<W: Word, C: Condition>(cpu: &mut Cpu, _: &mut Memory, op: &Op) -> Done {
    if C::holds(cpu.status) { jump_to(cpu, relative_target::<W>(cpu, op)) } else { Ok(()) }
}

fn jump_indirect<P: Place, W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    let target = P::read::<W>(cpu, memory, op)?;
    jump_to(cpu, target.zero_extend())
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
    check_target(cpu, target)?;
    cpu.push(memory, W::truncate(cpu.ip))?;
    cpu.ip = target;
    Ok(())
}

/// The immediate is the number of bytes of parameters; 0 in the form without one.
fn near_return<W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    let target = cpu.peek::<W>(memory, 0)?.zero_extend();
    jump_to(cpu, target)?;
    let released = W::BYTES as u64 + u64::from(op.imm);
    cpu.set_stack_pointer(cpu.stack_pointer().wrapping_add(released));
    Ok(())
}

fn far_jump<W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    cpu.far_jump(memory, op.disp as u16, u64::from(op.imm) & W::MASK)
}

fn far_call<W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    cpu.far_call(memory, op.disp as u16, u64::from(op.imm) & W::MASK, W::BITS == 32)
}

/// The far pointer in memory: selector and offset.
fn far_pointer<W: Word>(
    cpu: &mut Cpu,
    memory: &mut Memory,
    op: &Op,
) -> Result<(u16, u64), crate::exception::Stopped> {
    let offset = Mem::read::<W>(cpu, memory, op)?;
    let behind = op.displaced(W::BYTES as u32);
    Ok((Mem::read(cpu, memory, &behind)?, offset.zero_extend()))
}

fn far_jump_indirect<W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    let (selector, offset) = far_pointer::<W>(cpu, memory, op)?;
    cpu.far_jump(memory, selector, offset)
}

fn far_call_indirect<W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    let (selector, offset) = far_pointer::<W>(cpu, memory, op)?;
    cpu.far_call(memory, selector, offset, W::BITS == 32)
}

fn far_return<W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    cpu.far_return(memory, W::BITS == 32, u64::from(op.imm))
}

fn interrupt_return<W: Word>(cpu: &mut Cpu, memory: &mut Memory, _: &Op) -> Done {
    cpu.interrupt_return(memory, W::BITS == 32)
}

fn loop_if<W: Word, Count: Word, C: Condition>(cpu: &mut Cpu, _: &mut Memory, op: &Op) -> Done {
    let count = cpu.get::<Count>(reg::CX).zero_extend().wrapping_sub(1) & Count::MASK;
    let target = relative_target::<W>(cpu, op);
    if count != 0 && C::holds(cpu.status) {
        jump_to(cpu, target)?;
    }
    cpu.set(reg::CX, Count::truncate(count));
    Ok(())
}

fn jump_if_count_zero<W: Word, Count: Word>(cpu: &mut Cpu, _: &mut Memory, op: &Op) -> Done {
    if cpu.get::<Count>(reg::CX).zero_extend() == 0 {
        return jump_to(cpu, relative_target::<W>(cpu, op));
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
    interrupt(cpu, memory, vector, Source::Software)
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

/// INT1 (ICEBP): a trap that no gate's privilege keeps out.
fn debug_trap(cpu: &mut Cpu, memory: &mut Memory, _: &Op) -> Done {
    interrupt(cpu, memory, vector::DB, Source::Exception)
}

/// The bounds are signed (SDM vol. 2, BOUND).
fn bound<P: Place, W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    let index = cpu.get::<W>(op.reg).sign_extend() as i64;
    let lower = P::read::<W>(cpu, memory, op)?.sign_extend() as i64;
    let behind = op.displaced(W::BYTES as u32);
    let upper = P::read::<W>(cpu, memory, &behind)?.sign_extend() as i64;
    if index < lower || index > upper {
        return Err(cpu.fault(Fault::new(vector::BR)));
    }
    Ok(())
}
