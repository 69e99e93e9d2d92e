//! The random seed that a boot loader hands to the kernel: `SETUP_RNG_SEED` in the list `setup_data`
//! (Linux, Documentation/arch/x86/boot.rst, "setup_data", and its arch/x86/include/uapi/asm/setup_data.h).
//!
//! Without a seed, a kernel on a machine with so few interrupts waits long until enough of them count as
//! random. Linux 6.0 and later use the seed; earlier kernels skip entries of unknown types.

use ring3_core::memory::{Memory, MemoryError};

use super::{ZERO_PAGE, header};

/// Bytes of a seed.
pub const SEED_LEN: usize = 32;

/// The address of the only entry of the list.
const SETUP_DATA: u64 = 0x8000;
/// Its type.
const SETUP_RNG_SEED: u32 = 9;
/// The first protocol version with `setup_data`.
const VERSION_WITH_SETUP_DATA: u16 = 0x0209;

/// Gives `seed` to the kernel that [`load`](super::load) has put into `memory`, if its header has a place for
/// it.
pub fn give(memory: &mut Memory, seed: &[u8; SEED_LEN]) -> Result<(), MemoryError> {
    let mut version = [0; 2];
    memory.read(ZERO_PAGE + header::VERSION as u64, &mut version);
    if u16::from_le_bytes(version) < VERSION_WITH_SETUP_DATA {
        return Ok(());
    }
    // Next entry, type, length, contents.
    let mut entry = 0u64.to_le_bytes().to_vec();
    entry.extend(SETUP_RNG_SEED.to_le_bytes());
    entry.extend((SEED_LEN as u32).to_le_bytes());
    entry.extend(seed);
    memory.load_image(SETUP_DATA, &entry)?;
    memory.load_image(ZERO_PAGE + header::SETUP_DATA as u64, &SETUP_DATA.to_le_bytes())
}

/// Returns the seed that takes the place of `seed` after `resets` resets of the machine. The kernel hashes
/// it, so any difference will do. The first eight bytes stay as they are, for callers that keep a count
/// there.
pub(crate) fn after_resets(mut seed: [u8; SEED_LEN], resets: u64) -> [u8; SEED_LEN] {
    for (byte, number) in seed[8..].iter_mut().zip(resets.to_le_bytes()) {
        *byte ^= number;
    }
    seed
}

#[cfg(test)]
mod tests {
    use super::super::tests::kernel_of;
    use super::super::{LinuxImage, load};
    use super::*;

    fn with_seed(kernel: &[u8]) -> Memory {
        let mut memory = Memory::new(64 << 20).unwrap();
        load(&mut memory, &LinuxImage { kernel, initrd: None, command_line: "" }, None).unwrap();
        give(&mut memory, &[0xa5; SEED_LEN]).unwrap();
        memory
    }

    #[test]
    fn the_kernel_finds_the_seed() {
        let memory = with_seed(&kernel_of(&[0xcc; 32]));
        let list = u64::from_le_bytes(memory.load(0x7000 + 0x250)) as usize;
        assert_eq!(memory.load::<8>(list), [0; 8]);
        assert_eq!(memory.load::<8>(list + 8), [9, 0, 0, 0, 32, 0, 0, 0]);
        assert_eq!(memory.load::<33>(list + 16)[..32], [0xa5; 32]);
    }

    #[test]
    fn an_old_kernel_gets_none() {
        let mut kernel = kernel_of(&[0xcc; 32]);
        kernel[0x206] = 8;
        let memory = with_seed(&kernel);
        assert_eq!(memory.load::<8>(0x7000 + 0x250), [0; 8]);
        assert_eq!(memory.load::<48>(0x8000), [0; 48]);
    }

    #[test]
    fn no_two_starts_have_the_same_seed() {
        let seed = [0x5a; SEED_LEN];
        assert_eq!(after_resets(seed, 0), seed);
        assert_ne!(after_resets(seed, 1), seed);
        assert_ne!(after_resets(seed, 1), after_resets(seed, 256));
    }
}
