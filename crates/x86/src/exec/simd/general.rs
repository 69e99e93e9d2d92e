//! Instructions on general registers that came with SSE (SDM vol. 1, 11.4.4, 12.10.9, 12.12): MOVNTI, CRC32,
//! POPCNT; and PTEST, which sets flags.

use iced_x86::Code;
use ring3_core::memory::Memory;

use super::{Source, Vector};
use crate::cpu::Cpu;
use crate::decode::Op;
use crate::exec::{Done, Mem, Place, Reg};
use crate::flags::{Eflags, Status};
use crate::table::{Rows, exec, plain, rm, rm_long, rm_wide};
use crate::word::Word;

/// Adds the forms of this file to the instruction table.
pub(super) fn forms(rows: &mut Rows) {
    plain!(rows, [Movnti_m32_r32], store_non_temporal::<u32>);
    plain!(rows, [Movnti_m64_r64], store_non_temporal::<u64>);
    rm_wide!(rows, [Popcnt_r16_rm16 Popcnt_r32_rm32 Popcnt_r64_rm64], count_ones);
    rm!(rows, u8, [Crc32_r32_rm8], crc32);
    rm!(rows, u16, [Crc32_r32_rm16], crc32);
    rm!(rows, u32, [Crc32_r32_rm32], crc32);
    rm_long!(rows, u8, [Crc32_r64_rm8], crc32);
    rm_long!(rows, u64, [Crc32_r64_rm64], crc32);
    rows.add(Code::Ptest_xmm_xmmm128, exec!(test::<Mem>), exec!(test::<Reg>));
}

fn store_non_temporal<W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    Mem::write(cpu, memory, op, cpu.get::<W>(op.reg))
}

fn count_ones<P: Place, W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    let source: W = P::read(cpu, memory, op)?;
    let count = source.zero_extend().count_ones();
    cpu.set(op.reg, W::truncate(count.into()));
    let flags = if count == 0 { Eflags::ZF } else { Eflags::empty() };
    cpu.status = Status::from_eflags(flags);
    Ok(())
}

/// The polynomial 11EDC6F41h (CRC-32C), its bits in reverse order.
const POLYNOMIAL: u32 = 0x82f6_3b78;

fn crc32<P: Place, W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    let source: W = P::read(cpu, memory, op)?;
    let start = cpu.get::<u32>(op.reg);
    let bits = source.zero_extend();
    let crc = (0..W::BITS).fold(start, |crc, bit| {
        let carry = (crc ^ (bits >> bit) as u32) & 1;
        crc >> 1 ^ (POLYNOMIAL * carry)
    });
    cpu.set(op.reg, crc);
    Ok(())
}

/// Performs PTEST: ZF says whether no bit of the source is set in the destination, and CF whether all are.
fn test<S: Source>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    u128::begin(cpu)?;
    let source: u128 = S::vector(cpu, memory, op)?;
    let destination = cpu.sse.xmm(op.reg);
    let mut flags = Eflags::empty();
    flags.set(Eflags::ZF, source & destination == 0);
    flags.set(Eflags::CF, source & !destination == 0);
    cpu.status = Status::from_eflags(flags);
    Ok(())
}
