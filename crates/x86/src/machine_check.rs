//! The registers of machine checks (SDM vol. 3, 17.3). There are no hardware errors to report here, but
//! software reads the registers.

use serde::{Deserialize, Serialize};

use crate::cpuid::{Features, Model};

/// The most banks.
const MOST_BANKS: usize = 10;
/// IA32_MCG_CAP: there is IA32_MCG_CTL.
const HAS_CONTROL: u64 = 1 << 8;
/// The bits of IA32_MCG_STATUS: RIPV, EIPV and MCIP.
const STATUS: u64 = 7;

/// The registers that can be written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineCheck {
    status: u64,
    control: u64,
    bank_control: [u64; MOST_BANKS],
}

/// One of the registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum McaRegister {
    /// IA32_P5_MC_ADDR and IA32_P5_MC_TYPE: registers of the Pentium that later processors have, too.
    Pentium,
    /// IA32_MCG_CAP.
    Capabilities,
    /// IA32_MCG_STATUS.
    Status,
    /// IA32_MCG_CTL.
    Control,
    /// IA32_MCi_CTL.
    BankControl(usize),
    /// IA32_MCi_STATUS, IA32_MCi_ADDR or IA32_MCi_MISC.
    BankReport,
}

/// Returns the number of banks of a processor of model `model`: five on a P6, four on a Pentium 4.
fn banks(model: Model) -> usize {
    match model {
        Model::I486 | Model::Pentium => 0,
        Model::Pentium3 => 5,
        Model::Pentium4 => 4,
        Model::Max | Model::Qemu64 | Model::X86_64_V2 | Model::X86_64_V3 => MOST_BANKS,
    }
}

impl McaRegister {
    /// Returns the register with this MSR number on processors of model `model`.
    pub(crate) fn of(number: u32, model: Model) -> Option<McaRegister> {
        let has = |feature| model.features().contains(feature);
        let exists = if number <= 1 { has(Features::MCE) } else { has(Features::MCA) };
        let register = match number {
            0 | 1 => McaRegister::Pentium,
            0x179 => McaRegister::Capabilities,
            0x17a => McaRegister::Status,
            0x17b => McaRegister::Control,
            0x400..=0x4ff => {
                let (bank, place) = ((number - 0x400) as usize / 4, number % 4);
                // The P6 has no IA32_MCi_MISC (SDM vol. 4, table 2-61).
                if bank >= banks(model) || place == 3 && model == Model::Pentium3 {
                    return None;
                }
                if place == 0 { McaRegister::BankControl(bank) } else { McaRegister::BankReport }
            }
            _ => return None,
        };
        exists.then_some(register)
    }
}

impl MachineCheck {
    pub(crate) fn read(&self, register: McaRegister, model: Model) -> u64 {
        match register {
            McaRegister::Capabilities => banks(model) as u64 | HAS_CONTROL,
            McaRegister::Status => self.status,
            McaRegister::Control => self.control,
            McaRegister::BankControl(bank) => self.bank_control[bank],
            McaRegister::Pentium | McaRegister::BankReport => 0,
        }
    }

    /// Writes a register. Returns false and writes nothing if this raises #GP: for a read-only register, a
    /// reserved bit, or a report of an error, which software may only clear (SDM vol. 3, 17.3.2.2).
    pub(crate) fn write(&mut self, register: McaRegister, value: u64) -> bool {
        match register {
            McaRegister::Capabilities => return false,
            McaRegister::Pentium => {}
            McaRegister::BankReport => return value == 0,
            McaRegister::Status if value & !STATUS != 0 => return false,
            McaRegister::Status => self.status = value,
            McaRegister::Control => self.control = value,
            McaRegister::BankControl(bank) => self.bank_control[bank] = value,
        }
        true
    }
}
