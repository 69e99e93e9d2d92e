//! The devices of the first PCs, in the state in which firmware leaves them: systems that are always started
//! by a boot loader read keys without setting up the controller.
//!
//! The timer does not tick as it does for the BIOS: a system that halts and never sets it would wake up the
//! host 18 times a second.

use super::Firmware;

/// Ports 60h and 64h of the keyboard controller, and its commands (IBM PS/2 Hardware Interface Technical
/// Reference).
const KEYBOARD_DATA: u16 = 0x60;
const KEYBOARD_COMMAND: u16 = 0x64;
const WRITE_COMMAND_BYTE: u8 = 0x60;
const ENABLE_KEYBOARD: u8 = 0xae;
/// Scan codes of set 1, no mouse, the system flag of a successful start, and interrupts.
const COMMAND_BYTE: u8 = 1 << 6 | 1 << 5 | 1 << 2 | 1 << 0;

/// The second DMA controller (8237A data sheet): its channel 0 is the cascade of the first one, and open.
const DMA_MODE: u16 = 0xd6;
const DMA_MASK: u16 = 0xd4;
const CASCADE: u8 = 0xc0;

/// Sets up these devices.
pub(super) fn set_up(firmware: &mut Firmware<'_>) {
    firmware.out(&[
        (KEYBOARD_COMMAND, WRITE_COMMAND_BYTE),
        (KEYBOARD_DATA, COMMAND_BYTE),
        (KEYBOARD_COMMAND, ENABLE_KEYBOARD),
        (DMA_MODE, CASCADE),
        (DMA_MASK, 0),
    ]);
}

#[cfg(test)]
mod tests {
    use ring3_core::clock::Time;
    use ring3_core::device::Width;

    use super::super::tests::after_reset;

    #[test]
    fn the_keyboard_works_as_after_a_boot_loader() {
        after_reset(false, |machine| {
            machine.out(&[(0x64, 0x20)]);
            let (memory, now) = (&mut *machine.memory, Time::ZERO);
            let command_byte = machine.board.read_port(memory, now, 0x60, Width::Byte);
            assert_eq!(command_byte, 0x65);
            assert_eq!(machine.board.read_port(memory, now, 0x64, Width::Byte) & 1, 0);
            assert_eq!(machine.board.next_timer(), None, "an idle machine sleeps");
        });
    }
}
