//! The ROM by which SeaBIOS starts a kernel: an expansion ROM with a bootstrap entry vector ("Plug and Play
//! BIOS Specification" 1.0A, chapter 3). It fetches the kernel's parts by the DMA of fw_cfg, which reaches
//! all of memory even in real mode.

use ring3_devices::fw_cfg::{DmaCommand, key};

use super::{Plan, stack_pointer};
use crate::checksum::make_sum_zero;

/// The unit of its length, in bytes.
const BLOCK: usize = 512;
const PNP_HEADER: usize = 0x20;
const ENTRY: usize = 0x40;
/// The name in the boot menu.
const NAME: &[u8] = b"Linux kernel\0";

/// Returns the ROM for a kernel with protected-mode code of `code_len` bytes and an initial RAM disk of
/// `initrd_len`.
pub(crate) fn rom(plan: &Plan, code_len: u32, initrd_len: u32) -> Vec<u8> {
    let parts = [
        (key::SETUP_DATA, plan.setup.len() as u32, plan.setup_address),
        (key::COMMAND_LINE_DATA, plan.command_line.len() as u32, plan.command_line_address),
        (key::KERNEL_DATA, code_len, plan.code_address),
        (key::INITRD_DATA, initrd_len, plan.initrd_address),
    ];
    let commands = parts.map(|(key, len, address)| DmaCommand::read(key, len, address.into()));
    let table = (ENTRY + entry(plan, 0).len()).next_multiple_of(16);

    let mut rom = vec![0x55, 0xaa, 0];
    // Initialization: XOR AX, AX; RETF.
    rom.extend([0x31, 0xc0, 0xcb]);
    rom.resize(0x1a, 0);
    rom.extend((PNP_HEADER as u16).to_le_bytes());
    rom.resize(PNP_HEADER, 0);
    rom.extend(pnp_header((table + 16 * commands.len()) as u16));
    rom.extend(entry(plan, table as u16));
    rom.resize(table, 0);
    for command in commands {
        rom.extend(command.bytes());
    }
    rom.extend(NAME);
    rom.resize(rom.len().next_multiple_of(BLOCK), 0);
    rom[2] = (rom.len() / BLOCK) as u8;
    let last = rom.len() - 1;
    make_sum_zero(&mut rom, last);
    rom
}

/// Returns the expansion header of the specification's table 3, with the name of the product at `name`.
fn pnp_header(name: u16) -> [u8; 32] {
    let mut header = [0; 32];
    header[..4].copy_from_slice(b"$PnP");
    header[4] = 1; // revision
    header[5] = 2; // length in 16 bytes
    header[0x10..0x12].copy_from_slice(&name.to_le_bytes());
    header[0x1a..0x1c].copy_from_slice(&(ENTRY as u16).to_le_bytes());
    make_sum_zero(&mut header, 9);
    header
}

/// Returns the code at the bootstrap entry. It makes fw_cfg execute the commands in the table at `table`, and
/// jumps to the real-mode code with the registers of boot.rst, "Running the Kernel".
fn entry(plan: &Plan, table: u16) -> Vec<u8> {
    const COMMANDS: u8 = 4;
    let segment = (plan.setup_address / 16) as u16;
    let [table_low, table_high] = table.to_le_bytes();
    let [low, high] = segment.to_le_bytes();
    let [entry_low, entry_high] = (segment + 0x20).to_le_bytes();
    let stack = stack_pointer(plan.setup_address, plan.command_line_address);
    let [sp_low, sp_high] = stack.to_le_bytes();
    vec![
        0xfa, //                             CLI
        0xfc, //                             CLD
        0xbe, table_low, table_high, //      MOV SI, table
        0xb9, COMMANDS, 0x00, //             MOV CX, commands
        // next:
        0x66, 0x31, 0xc0, //                 XOR EAX, EAX
        0xba, 0x14, 0x05, //                 MOV DX, 514h
        0x66, 0xef, //                       OUT DX, EAX
        0x8c, 0xc8, //                       MOV AX, CS
        0x66, 0xc1, 0xe0, 0x04, //           SHL EAX, 4
        0x66, 0x0f, 0xb7, 0xd6, //           MOVZX EDX, SI
        0x66, 0x01, 0xd0, //                 ADD EAX, EDX
        0x66, 0x0f, 0xc8, //                 BSWAP EAX
        0xba, 0x18, 0x05, //                 MOV DX, 518h
        0x66, 0xef, //                       OUT DX, EAX
        0x83, 0xc6, 0x10, //                 ADD SI, 16
        0xe2, 0xde, //                       LOOP next
        0xb8, low, high, //                  MOV AX, segment
        0x8e, 0xd8, 0x8e, 0xc0, //           MOV DS, AX; MOV ES, AX
        0x8e, 0xe0, 0x8e, 0xe8, //           MOV FS, AX; MOV GS, AX
        0x8e, 0xd0, //                       MOV SS, AX
        0xbc, sp_low, sp_high, //            MOV SP, below the command line
        0xea, 0x00, 0x00, entry_low, entry_high, // JMP FAR segment + 20h : 0
    ]
}

#[cfg(test)]
mod tests {
    use super::super::tests::{kernel, plan_all};
    use super::*;

    #[test]
    fn firmware_recognizes_the_rom_as_bootable() {
        let plan = plan_all(&kernel(0x203, 1), 100, "quiet", 64 << 20).unwrap();
        let rom = rom(&plan, 40, 100);
        assert_eq!(rom.len(), usize::from(rom[2]) * 512);
        let sum = |bytes: &[u8]| bytes.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
        assert_eq!((&rom[..2], sum(&rom)), (&[0x55, 0xaa][..], 0));
        let header = &rom[usize::from(rom[0x1a])..][..32];
        assert_eq!((&header[..4], sum(header)), (&b"$PnP"[..], 0));
        assert_eq!(header[0x1a..0x1c], [ENTRY as u8, 0]);
        let name = usize::from(u16::from_le_bytes([header[0x10], header[0x11]]));
        assert!(rom[name..].starts_with(NAME));
        // LOOP goes back to the first XOR.
        let code = &rom[ENTRY..];
        let end = code.windows(2).position(|bytes| bytes == [0xe2, 0xde]).unwrap() + 2;
        assert_eq!(code[end - 0x22..][..3], [0x66, 0x31, 0xc0]);
    }
}
