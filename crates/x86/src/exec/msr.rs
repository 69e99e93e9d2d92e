//! Model-specific registers (SDM vol. 4) and performance counters.
//!
//! A register exists if CPUID offers the feature to which it belongs. Access to any other register raises
//! #GP.

use ring3_core::memory::Memory;

use crate::cpu::{Cpu, Cr0, Cr4, reg};
use crate::cpuid::{Features, Model};
use crate::decode::Op;
use crate::engine::Exit;
use crate::exec::Done;
use crate::machine_check::McaRegister;
use crate::mtrr::Mtrr;
use crate::segment::sreg;
use crate::table::{Rows, ending, plain};

/// Adds the forms of this file to the instruction table.
pub(super) fn forms(rows: &mut Rows) {
    plain!(rows, [Rdmsr], rdmsr);
    plain!(rows, [Wrmsr], wrmsr);
    plain!(rows, [Rdpmc], rdpmc);
    ending!(rows, [Wrmsr]);
}

/// The registers that exist.
#[derive(Debug, Clone, Copy)]
enum Msr {
    TimeStampCounter,
    PlatformId,
    ApicBase,
    BiosSignId,
    ArchCapabilities,
    SysenterCs,
    SysenterEsp,
    SysenterEip,
    MiscEnable,
    Pat,
    Efer,
    Star,
    Lstar,
    Cstar,
    Fmask,
    FsBase,
    GsBase,
    KernelGsBase,
    BiosUpdateTrigger,
    TscAux,
    Mtrr(Mtrr),
    Mca(McaRegister),
}

impl Msr {
    /// Returns whether it holds a linear address, which must be canonical.
    fn is_address(self) -> bool {
        matches!(
            self,
            Msr::SysenterEsp
                | Msr::SysenterEip
                | Msr::Lstar
                | Msr::Cstar
                | Msr::FsBase
                | Msr::GsBase
                | Msr::KernelGsBase
        )
    }
}

/// Returns the bits of a register with a linear address.
fn address_bits(model: Model) -> u64 {
    if model.has_long_mode() { u64::MAX } else { 0xffff_ffff }
}

/// Returns the register with this number on processors of model `model`.
fn find(model: Model, number: u32) -> Option<Msr> {
    let features = model.features();
    let (msr, exists) = match number {
        0x10 => (Msr::TimeStampCounter, features.contains(Features::TSC)),
        0x17 => (Msr::PlatformId, model.family() >= 6),
        // The Pentium has an APIC, but a pin switches it off.
        0x1b => (Msr::ApicBase, features.contains(Features::APIC) && model.family() >= 6),
        0x8b => (Msr::BiosSignId, model.family() >= 6),
        0x10a => (Msr::ArchCapabilities, model.tells_of_flaws()),
        0x174 => (Msr::SysenterCs, features.contains(Features::SEP)),
        0x175 => (Msr::SysenterEsp, features.contains(Features::SEP)),
        0x176 => (Msr::SysenterEip, features.contains(Features::SEP)),
        0x1a0 => (Msr::MiscEnable, model >= Model::Pentium4),
        0x277 => (Msr::Pat, features.contains(Features::PAT)),
        EFER => (Msr::Efer, features.contains(Features::NX)),
        0xc000_0081 => (Msr::Star, features.contains(Features::SYSCALL)),
        0xc000_0082 => (Msr::Lstar, features.contains(Features::SYSCALL)),
        0xc000_0083 => (Msr::Cstar, features.contains(Features::SYSCALL)),
        0xc000_0084 => (Msr::Fmask, features.contains(Features::SYSCALL)),
        0xc000_0100 => (Msr::FsBase, model.has_long_mode()),
        0xc000_0101 => (Msr::GsBase, model.has_long_mode()),
        0xc000_0102 => (Msr::KernelGsBase, model.has_long_mode()),
        0xc000_0103 => (Msr::TscAux, features.contains(Features::RDTSCP)),
        0x79 => (Msr::BiosUpdateTrigger, model.family() >= 6),
        _ => match Mtrr::of(number) {
            Some(register) => (Msr::Mtrr(register), features.contains(Features::MTRR)),
            None => return McaRegister::of(number, model).map(Msr::Mca),
        },
    };
    exists.then_some(msr)
}

/// Bits of IA32_ARCH_CAPABILITIES (SDM vol. 4, table 2-2), for flaws that do not exist here. The interpreter
/// does not speculate. Where code runs on the host's processor, supervisor pages are not mapped while it is
/// user code (RDCL_NO). VERW, which would clear the buffers behind the other flaws, does not reach the host:
/// MDS_NO, TAA_NO, SBDR_SSDP_NO, FBSDP_NO, PSDP_NO and RFDS_NO.
const ARCH_CAPABILITIES: u64 = 1 << 0 | 1 << 5 | 1 << 8 | 1 << 13 | 1 << 14 | 1 << 15 | 1 << 27;

/// Bits of IA32_MISC_ENABLE: fast string operations are on, and branch trace store and precise event-based
/// sampling are unavailable. None of the bits can be changed here.
const MISC_ENABLE: u64 = 1 << 0 | 1 << 11 | 1 << 12;
/// IA32_EFER.
const EFER: u32 = 0xc000_0080;
/// IA32_EFER.LME.
const LME: u64 = 1 << 8;

fn rdmsr(cpu: &mut Cpu, _: &mut Memory, _: &Op) -> Done {
    cpu.require_cpl0()?;
    let Some(msr) = find(cpu.model, cpu.get(reg::CX)) else {
        return Err(cpu.general_protection(0));
    };
    let value = match msr {
        Msr::TimeStampCounter => cpu.time_stamp()?,
        Msr::ApicBase => cpu.msrs.apic_base,
        // No microcode update is loaded (SDM vol. 3, 11.11.7.1); one for platform 0 would fit (11.11.4).
        Msr::BiosSignId | Msr::PlatformId => 0,
        Msr::ArchCapabilities => ARCH_CAPABILITIES,
        Msr::SysenterCs => cpu.msrs.sysenter_cs.into(),
        Msr::SysenterEsp => cpu.msrs.sysenter_esp,
        Msr::SysenterEip => cpu.msrs.sysenter_eip,
        Msr::MiscEnable => MISC_ENABLE,
        Msr::Pat => cpu.msrs.pat,
        Msr::Efer => cpu.efer(),
        Msr::Star => cpu.msrs.long.star,
        Msr::Lstar => cpu.msrs.long.lstar,
        Msr::Cstar => cpu.msrs.long.cstar,
        Msr::Fmask => cpu.msrs.long.flag_mask,
        Msr::FsBase => cpu.segment(sreg::FS).base,
        Msr::GsBase => cpu.segment(sreg::GS).base,
        Msr::KernelGsBase => cpu.msrs.long.kernel_gs_base,
        Msr::BiosUpdateTrigger => return Err(cpu.general_protection(0)),
        Msr::TscAux => cpu.msrs.tsc_aux.into(),
        Msr::Mtrr(register) => cpu.msrs.mtrrs.read(register),
        Msr::Mca(register) => cpu.msrs.machine_check.read(register, cpu.model),
    };
    set_edx_eax(cpu, value);
    Ok(())
}

fn wrmsr(cpu: &mut Cpu, _: &mut Memory, _: &Op) -> Done {
    cpu.require_cpl0()?;
    let value = u64::from(cpu.get::<u32>(reg::DX)) << 32 | u64::from(cpu.get::<u32>(reg::AX));
    if cpu.get::<u32>(reg::CX) == EFER && value & LME != 0 {
        cpu.long_mode_sought = Some(cpu.instructions);
    }
    let Some(msr) = find(cpu.model, cpu.get(reg::CX)) else {
        return Err(cpu.general_protection(0));
    };
    if msr.is_address() && cpu.model.has_long_mode() {
        cpu.require_canonical(value)?;
    }
    match msr {
        Msr::TimeStampCounter => {
            let now = cpu.time_stamp()?;
            cpu.msrs.time_stamp_offset =
                cpu.msrs.time_stamp_offset.wrapping_add(now.wrapping_sub(value));
        }
        Msr::ApicBase if value & !apic_base_bits(cpu.model) == 0 => {
            cpu.ask(Exit::ApicBase { value })?;
            cpu.msrs.apic_base = value;
        }
        // No microcode update fits this processor, so none is loaded (SDM vol. 3, 11.11.6).
        Msr::BiosUpdateTrigger | Msr::BiosSignId => {}
        Msr::TscAux if value >> 32 == 0 => cpu.msrs.tsc_aux = value as u32,
        Msr::Mtrr(register) => {
            let address_bits = cpu.model.physical_address_bits();
            if !cpu.msrs.mtrrs.write(register, value, address_bits) {
                return Err(cpu.general_protection(0));
            }
        }
        Msr::Mca(register) => {
            if !cpu.msrs.machine_check.write(register, value) {
                return Err(cpu.general_protection(0));
            }
        }
        Msr::SysenterCs => cpu.msrs.sysenter_cs = value as u32,
        Msr::SysenterEsp => cpu.msrs.sysenter_esp = value & address_bits(cpu.model),
        Msr::SysenterEip => cpu.msrs.sysenter_eip = value & address_bits(cpu.model),
        Msr::Star => cpu.msrs.long.star = value,
        Msr::Lstar => cpu.msrs.long.lstar = value,
        Msr::Cstar => cpu.msrs.long.cstar = value,
        Msr::Fmask if value >> 32 == 0 => cpu.msrs.long.flag_mask = value,
        Msr::FsBase => cpu.set_base(sreg::FS, value),
        Msr::GsBase => cpu.set_base(sreg::GS, value),
        Msr::KernelGsBase => cpu.msrs.long.kernel_gs_base = value,
        Msr::MiscEnable if value == MISC_ENABLE => {}
        Msr::Pat if value.to_le_bytes().into_iter().all(is_memory_type) => cpu.msrs.pat = value,
        Msr::Efer => cpu.write_efer(value)?,
        Msr::PlatformId
        | Msr::ArchCapabilities
        | Msr::ApicBase
        | Msr::MiscEnable
        | Msr::Pat
        | Msr::TscAux
        | Msr::Fmask => {
            return Err(cpu.general_protection(0));
        }
    }
    Ok(())
}

/// The bits of IA32_APIC_BASE that exist: BSP, global enable, and the address of a page (SDM vol. 3,
/// figure 12-5). There is no x2APIC mode.
fn apic_base_bits(model: Model) -> u64 {
    let address = (1 << model.physical_address_bits()) - 0x1000;
    1 << 8 | 1 << 11 | address
}

/// Returns whether `kind` is UC, WC, WT, WP, WB or UC- (SDM vol. 3, table 13-10).
fn is_memory_type(kind: u8) -> bool {
    matches!(kind, 0 | 1 | 4..=7)
}

/// Performs RDPMC. The counters that a model has always read 0, because nothing is counted.
fn rdpmc(cpu: &mut Cpu, _: &mut Memory, _: &Op) -> Done {
    if cpu.cr0.contains(Cr0::PE) && !cpu.cr4.contains(Cr4::PCE) {
        cpu.require_cpl0()?;
    }
    // Bit 31 asks for a quick answer of 32 bits (SDM vol. 2, RDPMC). It exists only on the Pentium 4.
    let quick = if cpu.model == Model::Pentium4 { 1 << 31 } else { 0 };
    if cpu.get::<u32>(reg::CX) & !quick >= cpu.model.performance_counters() {
        return Err(cpu.general_protection(0));
    }
    set_edx_eax(cpu, 0);
    Ok(())
}

fn set_edx_eax(cpu: &mut Cpu, value: u64) {
    cpu.set(reg::AX, value as u32);
    cpu.set(reg::DX, (value >> 32) as u32);
}
