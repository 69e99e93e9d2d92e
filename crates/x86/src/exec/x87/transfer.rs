//! x87 data transfer (SDM vol. 1, 8.3.3 and 8.3.4): FLD, FST, FILD, FIST, FISTTP, FBLD, FBSTP, the constants,
//! FXCH, FCMOVcc.

use std::marker::PhantomData;

use ring3_core::memory::Memory;

use super::{
    M16Int, M32Fp, M32Int, M64Fp, M64Int, M80Bcd, M80Fp, Source, Sti, begin, check_write,
    note_instruction, note_memory_instruction, write_bytes,
};
use crate::cpu::Cpu;
use crate::decode::Op;
use crate::exec::branch::{
    Condition, IfAbove, IfAboveOrEqual, IfBelow, IfBelowOrEqual, IfEqual, IfNotEqual, IfNotParity,
    IfParity,
};
use crate::exec::{Done, Mem, Place};
use crate::fpu::{Fpu, status};
use crate::softfloat::{Constant, Context, F80, IntegerSize, Operand, PackedBcd, Rounding};
use crate::table::{Rows, plain};
use crate::word::Word;

/// Adds the forms of this file to the instruction table.
pub(super) fn forms(rows: &mut Rows) {
    plain!(rows, [Fld_m32fp], load_converted::<M32Fp>);
    plain!(rows, [Fld_m64fp], load_converted::<M64Fp>);
    plain!(rows, [Fld_m80fp], load::<M80Fp>);
    plain!(rows, [Fld_sti], load::<Sti>);
    plain!(rows, [Fild_m16int], load::<M16Int>);
    plain!(rows, [Fild_m32int], load::<M32Int>);
    plain!(rows, [Fild_m64int], load::<M64Int>);
    plain!(rows, [Fbld_m80bcd], load::<M80Bcd>);

    plain!(rows, [Fst_m32fp], store::<M32Fp, false>);
    plain!(rows, [Fst_m64fp], store::<M64Fp, false>);
    plain!(rows, [Fist_m16int], store::<M16Int, false>);
    plain!(rows, [Fist_m32int], store::<M32Int, false>);
    plain!(rows, [Fstp_m32fp], store::<M32Fp, true>);
    plain!(rows, [Fstp_m64fp], store::<M64Fp, true>);
    plain!(rows, [Fstp_m80fp], store::<M80Fp, true>);
    plain!(rows, [Fistp_m16int], store::<M16Int, true>);
    plain!(rows, [Fistp_m32int], store::<M32Int, true>);
    plain!(rows, [Fistp_m64int], store::<M64Int, true>);
    plain!(rows, [Fisttp_m16int], store::<Truncated<M16Int>, true>);
    plain!(rows, [Fisttp_m32int], store::<Truncated<M32Int>, true>);
    plain!(rows, [Fisttp_m64int], store::<Truncated<M64Int>, true>);
    plain!(rows, [Fbstp_m80bcd], store::<M80Bcd, true>);
    plain!(rows, [Fst_sti], store_register::<false>);
    plain!(rows, [Fstp_sti Fstp_sti_DFD0 Fstp_sti_DFD8], store_register::<true>);
    plain!(rows, [Fstpnce_sti], store_unless_empty);

    plain!(rows, [Fld1], |cpu, _, op| load_constant(cpu, op, Constant::One));
    plain!(rows, [Fldl2t], |cpu, _, op| load_constant(cpu, op, Constant::Log2Of10));
    plain!(rows, [Fldl2e], |cpu, _, op| load_constant(cpu, op, Constant::Log2OfE));
    plain!(rows, [Fldpi], |cpu, _, op| load_constant(cpu, op, Constant::Pi));
    plain!(rows, [Fldlg2], |cpu, _, op| load_constant(cpu, op, Constant::Log10Of2));
    plain!(rows, [Fldln2], |cpu, _, op| load_constant(cpu, op, Constant::LnOf2));
    plain!(rows, [Fldz], |cpu, _, op| load_constant(cpu, op, Constant::Zero));

    plain!(rows, [Fxch_st0_sti Fxch_st0_sti_DDC8 Fxch_st0_sti_DFC8], exchange);
    plain!(rows, [Fcmovb_st0_sti], move_if::<IfBelow>);
    plain!(rows, [Fcmove_st0_sti], move_if::<IfEqual>);
    plain!(rows, [Fcmovbe_st0_sti], move_if::<IfBelowOrEqual>);
    plain!(rows, [Fcmovu_st0_sti], move_if::<IfParity>);
    plain!(rows, [Fcmovnb_st0_sti], move_if::<IfAboveOrEqual>);
    plain!(rows, [Fcmovne_st0_sti], move_if::<IfNotEqual>);
    plain!(rows, [Fcmovnbe_st0_sti], move_if::<IfAbove>);
    plain!(rows, [Fcmovnu_st0_sti], move_if::<IfNotParity>);
}

/// A format of numbers in memory.
trait Format {
    /// A number in this format.
    type Bits;

    /// Converts a value, or returns None if an unmasked exception allows no result.
    fn convert(context: &mut Context, value: F80) -> Option<Self::Bits>;

    /// Writes the memory operand.
    fn write(cpu: &mut Cpu, memory: &mut Memory, op: &Op, bits: Self::Bits) -> Done;
}

/// Defines the format of a memory operand by the functions that convert to it and write it.
macro_rules! memory_format {
    ($format:ident, $bits:ty, $convert:expr, $write:expr) => {
        impl Format for $format {
            type Bits = $bits;

            fn convert(context: &mut Context, value: F80) -> Option<$bits> {
                let convert: fn(&mut Context, F80) -> Option<$bits> = $convert;
                convert(context, value)
            }

            fn write(cpu: &mut Cpu, memory: &mut Memory, op: &Op, bits: $bits) -> Done {
                $write(cpu, memory, op, bits)
            }
        }
    };
}

memory_format!(M32Fp, u32, Context::store_f32, Mem::write);
memory_format!(M64Fp, u64, Context::store_f64, Mem::write);
// Even a signaling NaN is stored unchanged.
memory_format!(M80Fp, [u8; 10], |_, value| Some(value.to_bytes()), write_bytes);
memory_format!(
    M16Int,
    u16,
    |context, value| integer(context, value, IntegerSize::Word),
    Mem::write
);
memory_format!(
    M32Int,
    u32,
    |context, value| integer(context, value, IntegerSize::Doubleword),
    Mem::write
);
memory_format!(
    M64Int,
    u64,
    |context, value| integer(context, value, IntegerSize::Quadword),
    Mem::write
);
memory_format!(M80Bcd, PackedBcd, Context::store_bcd, write_bytes);

/// The value that FISTTP stores: the format, rounded toward zero whatever the control word says.
struct Truncated<F>(PhantomData<F>);

impl<F: Format> Format for Truncated<F> {
    type Bits = F::Bits;

    fn convert(context: &mut Context, value: F80) -> Option<F::Bits> {
        context.rounding = Rounding::Zero;
        F::convert(context, value)
    }

    fn write(cpu: &mut Cpu, memory: &mut Memory, op: &Op, bits: F::Bits) -> Done {
        F::write(cpu, memory, op, bits)
    }
}

fn integer<W: Word>(context: &mut Context, value: F80, size: IntegerSize) -> Option<W> {
    let integer = context.store_integer(value, size, context.rounding)?;
    Some(W::truncate(integer as u64))
}

/// Loads a value that is exact in a register and raises no exception.
fn load<S: Source<Value = F80>>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    begin(cpu)?;
    let source = S::read(cpu, memory, op)?;
    push(&mut cpu.fpu, source, |_, value| Some(value));
    Ok(())
}

/// Loads a `float` or `double`.
fn load_converted<S: Source<Value = Operand>>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    begin(cpu)?;
    let source = S::read(cpu, memory, op)?;
    push(&mut cpu.fpu, source, Context::load);
    Ok(())
}

fn load_constant(cpu: &mut Cpu, op: &Op, constant: Constant) -> Done {
    begin(cpu)?;
    note_instruction(cpu, op);
    push(&mut cpu.fpu, Some(constant), |context, constant| Some(context.constant(constant)));
    Ok(())
}

/// Pushes the value that `convert` makes from `source`, where None stands for an empty register.
fn push<T>(fpu: &mut Fpu, source: Option<T>, convert: impl FnOnce(&mut Context, T) -> Option<F80>) {
    let value = match source {
        None => fpu.stack_underflow().then_some(F80::INDEFINITE),
        Some(_) if fpu.is_full() => fpu.stack_overflow().then_some(F80::INDEFINITE),
        Some(source) => {
            let mut context = fpu.context();
            let value = convert(&mut context, source);
            fpu.conclude(context);
            value
        }
    };
    if let Some(value) = value {
        fpu.push(value);
    }
}

/// Stores ST(0) in memory. An empty register is stored as the indefinite value of the format, to which the
/// registers' indefinite value is converted. The access may fault even if an unmasked exception prevents the
/// write.
fn store<F: Format, const POP: bool>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    begin(cpu)?;
    let value = cpu.fpu.st(0);
    let mut context = cpu.fpu.context();
    let indefinite = cpu.fpu.masks_invalid().then_some(F80::INDEFINITE);
    let bits = value.or(indefinite).and_then(|value| F::convert(&mut context, value));
    let has_result = bits.is_some();
    match bits {
        Some(bits) => F::write(cpu, memory, op, bits)?,
        None => check_write(cpu, memory, op, size_of::<F::Bits>())?,
    }
    note_memory_instruction(cpu, op);
    match value {
        Some(_) => cpu.fpu.conclude(context),
        None => _ = cpu.fpu.stack_underflow(),
    }
    if POP && has_result {
        cpu.fpu.pop();
    }
    Ok(())
}

/// Performs FST and FSTP to a register.
fn store_register<const POP: bool>(cpu: &mut Cpu, _: &mut Memory, op: &Op) -> Done {
    begin(cpu)?;
    note_instruction(cpu, op);
    let fpu = &mut cpu.fpu;
    let value = match fpu.st(0) {
        None => fpu.stack_underflow().then_some(F80::INDEFINITE),
        value => {
            fpu.set_codes(status::C1, 0);
            value
        }
    };
    if let Some(value) = value {
        fpu.set_st(op.rm, value);
        if POP {
            fpu.pop();
        }
    }
    Ok(())
}

/// Performs FSTPNCE, an undocumented encoding of FSTP that raises no exception for an empty register and then
/// stores nothing.
fn store_unless_empty(cpu: &mut Cpu, _: &mut Memory, op: &Op) -> Done {
    begin(cpu)?;
    note_instruction(cpu, op);
    let fpu = &mut cpu.fpu;
    if let Some(value) = fpu.st(0) {
        fpu.set_st(op.rm, value);
    }
    fpu.set_codes(status::C1, 0);
    fpu.pop();
    Ok(())
}

/// Performs FXCH. Masked stack underflow first makes indefinite values of the empty registers.
fn exchange(cpu: &mut Cpu, _: &mut Memory, op: &Op) -> Done {
    begin(cpu)?;
    note_instruction(cpu, op);
    let fpu = &mut cpu.fpu;
    let (top, other) = (fpu.st(0), fpu.st(op.rm));
    if top.is_some() && other.is_some() {
        fpu.set_codes(status::C1, 0);
    } else if !fpu.stack_underflow() {
        return Ok(());
    }
    fpu.set_st(0, other.unwrap_or(F80::INDEFINITE));
    fpu.set_st(op.rm, top.unwrap_or(F80::INDEFINITE));
    Ok(())
}

/// Performs FCMOVcc. An empty register causes a stack underflow whatever the condition; otherwise C1 does not
/// change.
fn move_if<C: Condition>(cpu: &mut Cpu, _: &mut Memory, op: &Op) -> Done {
    begin(cpu)?;
    note_instruction(cpu, op);
    let fpu = &mut cpu.fpu;
    if let (Some(_), Some(value)) = (fpu.st(0), fpu.st(op.rm)) {
        if C::holds(cpu.status) {
            fpu.set_st(0, value);
        }
    } else if fpu.stack_underflow() {
        fpu.set_st(0, F80::INDEFINITE);
    }
    Ok(())
}
