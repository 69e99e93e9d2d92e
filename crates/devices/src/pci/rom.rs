//! Expansion ROMs: programs on cards, which firmware copies to memory and starts, as those that boot from a network.
//!
//! From the PCI Local Bus Specification 3.0, sections 6.2.5.2 (the base address register) and 6.3 (what is in the ROM).
//! The card answers reads of it, so that a ROM is no memory of the machine: it is in its configuration, and not in saved states.
//!
//! Its bytes are part of the machine's configuration. Firmware starts no ROM that names another function, so a
//! card writes its own IDs into it: iPXE's ROM for virtio names those of version 1 alone.

use std::fmt;
use std::sync::Arc;

use ring3_core::device::{Context, Width};
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;
use thiserror::Error;

use super::{ConfigSpace, registers};

/// The number of the claimed region, after those of the six other base address registers.
pub const REGION: u8 = 6;

/// The most bytes of an image: the register can ask for no more (6.2.5.2).
pub const IMAGE_MAX: usize = 16 << 20;

/// Every image in a ROM begins with this (6.3.1.1).
const SIGNATURE: [u8; 2] = [0x55, 0xaa];
/// The register's least bits of an address (6.2.5.2).
pub(super) const LEAST: usize = 2048;
/// In the register: the card answers. The command register has to say so, too.
pub(super) const ENABLE: u32 = 1 << 0;
const ADDRESS: u32 = !(LEAST as u32 - 1);
/// Where there is no byte of the image.
const EMPTY: u8 = 0xff;

// In the header of an image (6.3.1.1, 6.3.3.1), the place of its data structure, and in that (6.3.1.2).
const POINTER: usize = 0x18;
const DATA_SIGNATURE: &[u8] = b"PCIR";
const DATA_IDS: usize = 4;
/// One of the bytes before that place which are the program's own: iPXE and others have in it what makes the sum of all bytes 0.
const CHECKSUM: usize = 6;

/// What is in an expansion ROM.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "ByteBuf", into = "ByteBuf")]
pub struct RomImage(Arc<[u8]>);

/// Why bytes are no expansion ROM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum RomError {
    /// It does not begin as all do.
    #[error("is no expansion ROM: one begins with the bytes 55 AA")]
    NoSignature,
    /// It is too large.
    #[error("is no expansion ROM: one has at most 16 MiB")]
    TooLarge,
}

impl RomImage {
    /// The image of these bytes.
    pub fn new(bytes: Vec<u8>) -> Result<RomImage, RomError> {
        if bytes.len() > IMAGE_MAX {
            Err(RomError::TooLarge)
        } else if bytes.starts_with(&SIGNATURE) {
            Ok(RomImage(bytes.into()))
        } else {
            Err(RomError::NoSignature)
        }
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// The same with the IDs of the function with registers `space` in its first image, since firmware starts none that is for another function: a
    /// program may be for several, as iPXE's for virtio, or name none, as its for the RTL8029AS. What has no place for them stays as it is.
    pub(crate) fn of_function(&self, space: &ConfigSpace) -> RomImage {
        let ids = space.read(registers::VENDOR, Width::Dword).to_le_bytes();
        let mut bytes = self.0.to_vec();
        match replace_ids(&mut bytes, ids) {
            Some(()) => RomImage(bytes.into()),
            None => self.clone(),
        }
    }

    /// How many bytes of address space it takes: a power of two.
    fn region_len(&self) -> u32 {
        self.0.len().next_power_of_two().max(LEAST) as u32
    }

    /// Adds the base address register to `space`.
    pub(crate) fn add_register(&self, space: &mut ConfigSpace) {
        let writable = !(self.region_len() - 1) & ADDRESS | ENABLE;
        space.make_writable(registers::EXPANSION_ROM, &writable.to_le_bytes());
    }

    /// What the guest reads at `offset` of the region.
    pub(crate) fn read(&self, offset: u64, width: Width) -> u32 {
        (0..u64::from(width.bytes())).rev().fold(0, |value, part| {
            let place = usize::try_from(offset.saturating_add(part)).unwrap_or(usize::MAX);
            value << 8 | u32::from(self.0.get(place).copied().unwrap_or(EMPTY))
        })
    }

    /// Claims the addresses that the registers in `space` say.
    pub(crate) fn claim(&self, space: &ConfigSpace, context: &mut Context<'_>) {
        if space.read(registers::EXPANSION_ROM, Width::Dword) & ENABLE == 0 {
            context.release(REGION);
        } else {
            let len = self.region_len().into();
            space.claim_memory(context, REGION, registers::EXPANSION_ROM, len);
        }
    }
}

/// Puts the IDs of a vendor and a device into the first image. None where there is no place for them.
fn replace_ids(bytes: &mut [u8], new: [u8; 4]) -> Option<()> {
    let pointer = bytes.get(POINTER..)?.first_chunk().copied().map(u16::from_le_bytes)?;
    let data = bytes.get_mut(usize::from(pointer)..)?;
    if !data.starts_with(DATA_SIGNATURE) {
        return None;
    }
    let ids = data.get_mut(DATA_IDS..)?.first_chunk_mut::<4>()?;
    let sum = |ids: &[u8; 4]| ids.iter().fold(0, |sum: u8, id| sum.wrapping_add(*id));
    let before = sum(ids);
    *ids = new;
    let grown = sum(ids).wrapping_sub(before);
    let checksum = bytes.get_mut(CHECKSUM)?;
    *checksum = checksum.wrapping_sub(grown);
    Some(())
}

impl fmt::Debug for RomImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RomImage({} bytes)", self.0.len())
    }
}

impl TryFrom<ByteBuf> for RomImage {
    type Error = RomError;

    fn try_from(bytes: ByteBuf) -> Result<RomImage, RomError> {
        RomImage::new(bytes.into_vec())
    }
}

impl From<RomImage> for ByteBuf {
    fn from(image: RomImage) -> ByteBuf {
        ByteBuf::from(image.0.to_vec())
    }
}

#[cfg(test)]
mod tests {
    use ring3_core::bus::Decoded;
    use ring3_core::device::TestBench;
    use ring3_core::state::SavedState;

    use super::*;
    use crate::pci::Identity;

    fn image(len: usize) -> RomImage {
        let mut bytes: Vec<u8> = (0..len).map(|place| place as u8).collect();
        bytes[..2].copy_from_slice(&SIGNATURE);
        RomImage::new(bytes).unwrap()
    }

    fn space(image: &RomImage) -> ConfigSpace {
        let identity = Identity { vendor: 1, device: 2, revision: 3, class: 0x020000 };
        let mut space = ConfigSpace::new(identity);
        space.make_writable(registers::COMMAND, &[0x07]);
        image.add_register(&mut space);
        space
    }

    #[test]
    fn firmware_learns_the_size() {
        for (len, mask) in [(2, 0xffff_f800), (2049, 0xffff_f000), (75776, 0xfffe_0000)] {
            let mut space = space(&image(len));
            // All ones but for the enable bit (6.2.5.2).
            space.write(registers::EXPANSION_ROM, Width::Dword, !ENABLE);
            assert_eq!(space.read(registers::EXPANSION_ROM, Width::Dword), mask, "{len}");
        }
    }

    #[test]
    fn the_rom_is_at_the_address_in_its_registers() {
        let image = image(5000);
        let (mut bench, mut space) = (TestBench::default(), space(&image));
        let nowhere = Decoded::Nothing;
        let there = Decoded::Memory { start: 0xfebc_0000, len: 8192 };
        for (command, register, expected) in [
            (0x02, 0xfebc_0000, nowhere),
            (0x01, 0xfebc_0001, nowhere),
            (0x02, 0x0000_0001, nowhere),
            (0x02, 0xfebc_0001, there),
        ] {
            space.write(registers::COMMAND, Width::Word, command);
            space.write(registers::EXPANSION_ROM, Width::Dword, register);
            image.claim(&space, &mut bench.context());
            let claim = bench.claims.last().unwrap();
            assert_eq!((claim.region, claim.decoded), (REGION, expected), "{register:x}");
        }
    }

    #[test]
    fn the_whole_rom_is_read_and_nothing_after_it() {
        let image = image(5000);
        assert_eq!(image.read(0, Width::Word), 0xaa55);
        assert_eq!(image.read(4097, Width::Dword), 0x0403_0201);
        assert_eq!(image.read(4999, Width::Dword), 0xffff_ff87);
        assert_eq!(image.read(u64::MAX, Width::Byte), 0xff);
    }

    #[test]
    fn another_function_has_it_with_the_same_sum() {
        let mut bytes = image(512).bytes().to_vec();
        bytes[POINTER..][..2].copy_from_slice(&0x1c_u16.to_le_bytes());
        bytes[0x1c..][..8].copy_from_slice(b"PCIR\xf4\x1a\x41\x10");
        let before = RomImage::new(bytes.clone()).unwrap();
        let space = space(&before);
        let after = before.of_function(&space);
        assert_eq!(after.read(0x20, Width::Dword), 0x0002_0001);
        let sum =
            |image: &RomImage| image.bytes().iter().fold(0_u8, |sum, byte| sum.wrapping_add(*byte));
        assert_eq!(sum(&after), sum(&before));
        // Without the data structure, or with one past the end.
        assert_eq!(image(512).of_function(&space), image(512));
        bytes[POINTER..][..2].copy_from_slice(&0x1fe_u16.to_le_bytes());
        bytes[0x1fe..].copy_from_slice(b"PC");
        let cut = RomImage::new(bytes).unwrap();
        assert_eq!(cut.of_function(&space), cut);
        assert_eq!(image(2).of_function(&space), image(2));
    }

    #[test]
    fn a_file_that_is_not_a_rom_is_refused() {
        assert_eq!(RomImage::new(vec![0x55]), Err(RomError::NoSignature));
        assert_eq!(RomImage::new(vec![0x55; IMAGE_MAX + 1]), Err(RomError::TooLarge));
        let saved = SavedState::new("rom", 1, &image(300));
        assert_eq!(saved.load("rom", 1), Ok(image(300)));
        let other = SavedState::new("rom", 1, &ByteBuf::from(vec![1, 2]));
        assert!(other.load::<RomImage>("rom", 1).is_err());
    }
}
