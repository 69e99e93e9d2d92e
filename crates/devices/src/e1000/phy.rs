//! The transceiver (PHY), an M88E1011: a cable of 1000 Mb/s to a partner that can do all that it can.

use serde::{Deserialize, Serialize};

// MDIC.
const REGISTER_SHIFT: u32 = 16;
const PHY_SHIFT: u32 = 21;
const OPERATION: u32 = 3 << 26;
const WRITE: u32 = 1 << 26;
const READ: u32 = 2 << 26;
pub(super) const READY: u32 = 1 << 28;
pub(super) const INTERRUPT: u32 = 1 << 29;
const ERROR: u32 = 1 << 30;
/// The address of the only one.
const ADDRESS: u32 = 1;

// Its registers (IEEE 802.3, 22.2.4; those from 16 on are the chip's own).
const CONTROL: usize = 0;
const STATUS: usize = 1;
const SPECIFIC_STATUS: usize = 17;
const CONTROL_RESET: u16 = 1 << 15;
const CONTROL_RESTART: u16 = 1 << 9;
const STATUS_LINK: u16 = 1 << 2;
const STATUS_NEGOTIATED: u16 = 1 << 5;
/// Speed and duplex are known, and there is a link.
const SPECIFIC_LINK: u16 = 1 << 10 | 1 << 11;

/// After a reset: what it can do, its identifier, what it tells its partner, and what the partner tells.
const AT_RESET: [u16; 32] = {
    let mut registers = [0; 32];
    registers[CONTROL] = 0x1140;
    registers[STATUS] = 0x7949;
    registers[2] = 0x0141;
    registers[3] = 0x0c20;
    registers[4] = 0x0de1;
    registers[5] = 0xcde1;
    registers[6] = 0x000f;
    registers[9] = 0x0e00;
    registers[10] = 0x7c00;
    registers[15] = 0x3000;
    registers[16] = 0x0360;
    registers[SPECIFIC_STATUS] = 0xa000;
    registers[20] = 0x0d60;
    registers
};

/// Registers that software writes.
const WRITABLE: u32 =
    1 << CONTROL | 1 << 4 | 1 << 7 | 1 << 9 | 1 << 16 | 1 << 18 | 1 << 20 | 3 << 29;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Phy {
    registers: [u16; 32],
    mdic: u32,
}

impl Default for Phy {
    fn default() -> Phy {
        Phy { registers: AT_RESET, mdic: READY }
    }
}

impl Phy {
    /// The register by which software gets at the others.
    pub(super) fn mdic(&self) -> u32 {
        self.mdic
    }

    /// Software reads or writes a register.
    pub(super) fn set_mdic(&mut self, value: u32, link_up: bool) {
        let register = (value >> REGISTER_SHIFT & 0x1f) as usize;
        self.mdic = value & !ERROR | READY;
        if value >> PHY_SHIFT & 0x1f != ADDRESS {
            self.mdic |= ERROR;
            return;
        }
        match value & OPERATION {
            READ => self.mdic = self.mdic & !0xffff | u32::from(self.read(register, link_up)),
            WRITE => self.write(register, value as u16),
            _ => self.mdic |= ERROR,
        }
    }

    fn read(&self, register: usize, link_up: bool) -> u16 {
        let when_up = match register {
            STATUS => STATUS_LINK | STATUS_NEGOTIATED,
            SPECIFIC_STATUS => SPECIFIC_LINK,
            _ => 0,
        };
        self.registers[register] | if link_up { when_up } else { 0 }
    }

    fn write(&mut self, register: usize, value: u16) {
        if register == CONTROL && value & CONTROL_RESET != 0 {
            self.registers = AT_RESET;
        } else if WRITABLE >> register & 1 != 0 {
            let done_at_once = if register == CONTROL { CONTROL_RESTART } else { 0 };
            self.registers[register] = value & !done_at_once;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_phy_has_a_link_and_a_reset_clears_its_registers() {
        let mut phy = Phy::default();
        let access = |register: u32| 1 << PHY_SHIFT | register << REGISTER_SHIFT;
        let read = |phy: &mut Phy, register| {
            phy.set_mdic(access(register) | READ, true);
            phy.mdic() as u16
        };
        assert_eq!(read(&mut phy, 2), 0x0141);
        assert_eq!(read(&mut phy, 1), 0x796d);
        assert_eq!(read(&mut phy, 17), 0xac00);
        phy.set_mdic(access(4) | WRITE | 0x0c01, true);
        phy.set_mdic(access(2) | WRITE | 0x1234, true);
        assert_eq!((read(&mut phy, 4), read(&mut phy, 2)), (0x0c01, 0x0141));
        phy.set_mdic(access(0) | WRITE | 0x8000, true);
        assert_eq!(read(&mut phy, 4), 0x0de1);
        phy.set_mdic(2 << PHY_SHIFT | READ, true);
        assert_eq!(phy.mdic() & (READY | ERROR), READY | ERROR);
    }
}
