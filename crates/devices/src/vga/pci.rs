//! The adapter as a PCI function: identity, base address registers, and where they put video memory and ROM.
//!
//! As "QEMU Standard VGA": base address register 0 is video memory, 2 the registers, and the expansion ROM has the
//! VGA BIOS. (PCI Local Bus Specification 2.1, 6.2.5.)

use ring3_core::memory::{Area, Backing, Memory, PAGE_SIZE, Target};
use serde::{Deserialize, Serialize};

use crate::pci::{ConfigSpace, Identity, registers};
use ring3_core::device::Width;

/// Base address register 0: video memory.
const FRAME_BUFFER: u8 = 0x10;
/// Base address register 2: the registers.
pub(super) const REGISTERS: u8 = 0x18;
const ROM: u8 = registers::EXPANSION_ROM;

/// I/O space, memory space and bus mastering, which does nothing.
const COMMAND_BITS: u8 = 0x07;
/// A base address register for memory that may be prefetched.
const PREFETCHABLE: u8 = 1 << 3;
const ROM_ENABLE: u32 = 1;
/// The smallest ROM that a base address register can have (6.2.5.2).
const LEAST_ROM: u64 = 2048;

/// Size of the registers' memory region in bytes.
pub(super) const REGISTERS_LEN: u64 = 4096;

/// The configuration space of an adapter with that video memory and ROM.
pub(super) fn config_space(video: Area, rom: Option<Area>) -> ConfigSpace {
    let identity = Identity { vendor: 0x1234, device: 0x1111, revision: 2, class: 0x030000 };
    let mut space = ConfigSpace::new(identity);
    space.make_writable(registers::COMMAND, &[COMMAND_BITS]);
    space.make_writable(registers::INTERRUPT_LINE, &[0xff]);
    space.set(FRAME_BUFFER, &[PREFETCHABLE]);
    space.make_writable(FRAME_BUFFER, &address_bits(video.size()).to_le_bytes());
    space.make_writable(REGISTERS, &address_bits(REGISTERS_LEN).to_le_bytes());
    if let Some(rom) = rom {
        let bits = address_bits(rom.size().max(LEAST_ROM)) | ROM_ENABLE;
        space.make_writable(ROM, &bits.to_le_bytes());
    }
    space
}

/// The bits of an address that a base address register has for a region of at least `len` bytes.
fn address_bits(len: u64) -> u32 {
    (len.next_power_of_two() as u32).wrapping_neg()
}

/// Where video memory is mapped, and where the ROM.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Mapped {
    frame_buffer: Option<u32>,
    rom: Option<u32>,
}

impl Mapped {
    /// True when this can be of a function with these registers: each is where its register says, or nowhere.
    pub(super) fn is_possible(self, space: &ConfigSpace) -> bool {
        let fits = |mapped: Option<u32>, register| {
            mapped.is_none() || mapped == space.memory_address(register)
        };
        fits(self.frame_buffer, FRAME_BUFFER) && fits(self.rom, ROM)
    }

    /// Maps both to where the registers say now.
    pub(super) fn update(
        &mut self,
        space: &ConfigSpace,
        memory: &mut Memory,
        video: Area,
        rom: Option<Area>,
    ) {
        let video_memory = Backing::Area(video, 0);
        let to = space.memory_address(FRAME_BUFFER);
        relocate(memory, &mut self.frame_buffer, to, video.size(), video_memory, video_memory);
        if let Some(rom) = rom {
            let enabled = space.read(ROM, Width::Dword) & ROM_ENABLE != 0;
            let to = space.memory_address(ROM).filter(|_| enabled);
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
