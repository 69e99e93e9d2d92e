//! The adapter as a PCI function: identity, base address registers, and where they put video memory and ROM.
//!
//! As "QEMU Standard VGA": base address register 0 is video memory, 2 the registers, and the expansion ROM has the
//! VGA BIOS. (PCI Local Bus Specification 2.1, 6.2.5.)

use ring3_core::memory::{Area, Backing, Memory, PAGE_SIZE, Target};
use serde::{Deserialize, Serialize};

use crate::pci::{Function, Identity, command, registers};

/// The base address register of video memory.
const FRAME_BUFFER: u8 = 0;
/// That of the registers.
pub(super) const REGISTERS: u8 = 2;

/// Size of the registers' memory region in bytes.
pub(super) const REGISTERS_LEN: u32 = 4096;

/// The PCI function of an adapter with that video memory and ROM.
pub(super) fn function(video: Area, rom: Option<Area>) -> Function {
    let identity = Identity { vendor: 0x1234, device: 0x1111, revision: 2, class: 0x030000 };
    let function = Function::new(identity)
        // Bus mastering does nothing.
        .command(command::IO | command::MEMORY | command::MASTER)
        .writable(registers::INTERRUPT_LINE, &[0xff])
        .mapped_memory(FRAME_BUFFER, video.size())
        .memory(REGISTERS, REGISTERS_LEN);
    match rom {
        Some(rom) => function.mapped_rom(rom.size()),
        None => function,
    }
}

/// Where video memory is mapped, and where the ROM.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Mapped {
    frame_buffer: Option<u32>,
    rom: Option<u32>,
}

impl Mapped {
    /// True when this can be of a function with these registers: each is where its register says, or nowhere.
    pub(super) fn is_possible(self, function: &Function) -> bool {
        let fits = |mapped: Option<u32>, address| mapped.is_none() || mapped == address;
        fits(self.frame_buffer, function.memory_address(FRAME_BUFFER))
            && fits(self.rom, function.rom_address())
    }

    /// Maps both to where the registers say now.
    pub(super) fn update(
        &mut self,
        function: &Function,
        memory: &mut Memory,
        video: Area,
        rom: Option<Area>,
    ) {
        let video_memory = Backing::Area(video, 0);
        let to = function.memory_address(FRAME_BUFFER);
        relocate(memory, &mut self.frame_buffer, to, video.size(), video_memory, video_memory);
        if let Some(rom) = rom {
            let to = function.rom_address();
            relocate(
                memory,
                &mut self.rom,
                to,
                rom.size(),
                Backing::Area(rom, 0),
                Backing::Nothing,
            );
        }
    }
}

/// Maps `len` bytes at `to` instead of at `from`, unless something else is mapped there: software that
/// looks for a region's size by writing ones must not hide the firmware. It is tried again whenever a register is written.
fn relocate(
    memory: &mut Memory,
    from: &mut Option<u32>,
    to: Option<u32>,
    len: u64,
    reads: Backing,
    writes: Backing,
) {
    if *from == to {
        return;
    }
    // What was mapped can be given back, and what is free and fits can be mapped: neither fails.
    if let Some(old) = from.take() {
        let _ = memory.map(old.into(), len, Backing::Device, Backing::Device);
    }
    if let Some(new) = to
        && is_free(memory, new.into(), len)
        && memory.map(new.into(), len, reads, writes).is_ok()
    {
        *from = Some(new);
    }
}

/// True when devices answer, if anybody, at all of the `len` addresses from `start` on.
fn is_free(memory: &Memory, start: u64, len: u64) -> bool {
    (start..start + len).step_by(PAGE_SIZE as usize).all(|address| {
        memory.read_target(address) == Target::Device
            && memory.write_target(address) == Target::Device
    })
}
