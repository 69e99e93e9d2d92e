//! The 256 words by which a drive tells what it is (ATA-6, IDENTIFY DEVICE and IDENTIFY PACKET DEVICE).

/// Words of identification.
const WORDS: usize = 256;
/// "1": the drives have no firmware whose revisions would matter.
const FIRMWARE_REVISION: &str = "1";
/// Sectors that a 28-bit address reaches.
pub(super) const LBA28_SECTORS: u64 = 1 << 28;
/// Sectors that cylinders, heads and sectors reach by the ATA interface: 16383 of 16 by 63.
const CHS_SECTORS: u64 = 16383 * 16 * 63;
/// Bits that say that a word of capabilities is valid: bit 14 is 1 and bit 15 is 0.
const VALID: u16 = 0x4000;

/// Cylinders, heads and sectors a track.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) struct Geometry {
    pub(super) cylinders: u16,
    /// 1 to 16.
    pub(super) heads: u8,
    /// 1 to 255.
    pub(super) sectors: u8,
}

impl Geometry {
    /// The geometry that a disk of `sectors` sectors has by default: 16 heads of 63 sectors, as far
    /// as cylinders go.
    pub(super) fn of(sectors: u64) -> Geometry {
        let cylinders = (sectors / (16 * 63)).clamp(1, 16383) as u16;
        Geometry { cylinders, heads: 16, sectors: 63 }
    }

    /// The same disk of `total` sectors with other heads and sectors a track.
    pub(super) fn with(total: u64, heads: u8, sectors: u8) -> Geometry {
        let cylinder = u64::from(heads) * u64::from(sectors);
        let cylinders = (total.min(CHS_SECTORS) / cylinder.max(1)).clamp(1, 65535) as u16;
        Geometry { cylinders, heads, sectors }
    }

    /// Sectors that it reaches.
    fn capacity(self) -> u32 {
        u32::from(self.cylinders) * u32::from(self.heads) * u32::from(self.sectors)
    }

    /// The sector at a cylinder, head and sector of the registers; nothing for sector 0, or outside.
    pub(super) fn lba(self, cylinder: u16, head: u8, sector: u8) -> Option<u64> {
        let possible = head < self.heads && (1..=self.sectors).contains(&sector);
        let track = u64::from(cylinder) * u64::from(self.heads) + u64::from(head);
        possible.then(|| track * u64::from(self.sectors) + u64::from(sector) - 1)
    }
}

/// How data is to go, as SET FEATURES chose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) enum DmaMode {
    /// Multiword DMA mode 0 to 2.
    Multiword(u8),
    /// Ultra DMA mode 0 to 2: what needs no 80-wire cable.
    Ultra(u8),
}

impl DmaMode {
    /// What drives come up with.
    pub(super) const DEFAULT: DmaMode = DmaMode::Multiword(2);

    /// The mode after SET FEATURES 03h with `value` in the sector count register: that one, or this if a PIO mode is chosen.
    /// Nothing for modes that there are not.
    pub(super) fn choose(self, value: u8) -> Option<DmaMode> {
        match value {
            // PIO default modes, and PIO flow control modes 0 to 4.
            0 | 1 | 0x08..=0x0c => Some(self),
            0x20..=0x22 => Some(DmaMode::Multiword(value & 7)),
            0x40..=0x42 => Some(DmaMode::Ultra(value & 7)),
            _ => None,
        }
    }

    /// Words 63 and 88: modes 0 to 2 supported, and the one that was chosen.
    fn words(self) -> (u16, u16) {
        match self {
            DmaMode::Multiword(mode) => (0x0007 | 0x100 << mode, 0x0007),
            DmaMode::Ultra(mode) => (0x0007, 0x0007 | 0x100 << mode),
        }
    }
}

/// What IDENTIFY DEVICE tells of a disk.
pub(super) struct DiskIdentity<'a> {
    pub(super) model: &'a str,
    pub(super) serial: &'a str,
    /// It is device 1.
    pub(super) second: bool,
    /// Addressable sectors.
    pub(super) sectors: u64,
    /// The geometry that INITIALIZE DEVICE PARAMETERS chose.
    pub(super) geometry: Geometry,
    /// Sectors a block of READ MULTIPLE that can be chosen, and that were, or 0.
    pub(super) multiple: (u8, u8),
    pub(super) dma: DmaMode,
    pub(super) write_cache: bool,
    pub(super) look_ahead: bool,
    /// The most blocks of ranges that DATA SET MANAGEMENT takes, if the disk has that.
    pub(super) trim_blocks: Option<u16>,
}

impl DiskIdentity<'_> {
    /// The data of IDENTIFY DEVICE.
    pub(super) fn data(&self) -> Vec<u8> {
        let mut words = [0; WORDS];
        let default = Geometry::of(self.sectors);
        // A fixed ATA device.
        words[0] = 0x0040;
        words[1] = default.cylinders;
        words[3] = default.heads.into();
        words[6] = default.sectors.into();
        common(&mut words, self.model, self.serial, self.dma);
        words[47] = 0x8000 | u16::from(self.multiple.0);
        words[48] = 0x0001; // 32-bit data port, of old.
        words[49] = 0x0f00; // IORDY, which can be disabled; LBA; DMA.
        words[50] = VALID;
        words[53] = 0x0007; // Words 54 to 58, 64 to 70 and 88 are valid.
        words[54] = self.geometry.cylinders;
        words[55] = self.geometry.heads.into();
        words[56] = self.geometry.sectors.into();
        set_dword(&mut words, 57, self.geometry.capacity());
        words[59] = if self.multiple.1 == 0 { 0 } else { 0x100 | u16::from(self.multiple.1) };
        set_dword(&mut words, 60, self.sectors.min(LBA28_SECTORS - 1) as u32);
        words[80] = 0x0070; // ATA/ATAPI-4 to -6.
        let switches = u16::from(self.write_cache) << 5 | u16::from(self.look_ahead) << 6;
        words[82] = 0x4068; // NOP, look-ahead, write cache, power management.
        words[83] = VALID | 0x3400; // FLUSH CACHE (EXT), 48-bit addresses.
        words[84] = VALID;
        words[85] = 0x4008 | switches;
        words[86] = 0x3400;
        words[87] = VALID;
        words[93] = reset_result(self.second);
        words[100] = self.sectors as u16;
        words[101] = (self.sectors >> 16) as u16;
        words[102] = (self.sectors >> 32) as u16;
        if let Some(blocks) = self.trim_blocks {
            words[80] |= 0x0180; // ATA/ATAPI-7 and ATA8-ACS, without which nobody asks for it.
            words[105] = blocks;
            words[169] = 0x0001; // Its TRIM bit.
        }
        bytes(&words)
    }
}

/// The data of IDENTIFY PACKET DEVICE of a CD-ROM drive.
pub(super) fn cd_rom(model: &str, serial: &str, second: bool, dma: DmaMode) -> Vec<u8> {
    let mut words = [0; WORDS];
    // An ATAPI CD-ROM with removable media, which asks for its packet of 12 bytes at once.
    words[0] = 0x85c0;
    common(&mut words, model, serial, dma);
    words[49] = 0x0f00;
    words[50] = VALID;
    words[53] = 0x0006;
    words[80] = 0x0070;
    words[82] = 0x4218; // NOP, DEVICE RESET, PACKET, power management.
    words[83] = VALID;
    words[84] = VALID;
    words[85] = 0x4218;
    words[87] = VALID;
    words[93] = reset_result(second);
    bytes(&words)
}

/// The words that mean the same for both.
fn common(words: &mut [u16; WORDS], model: &str, serial: &str, dma: DmaMode) {
    set_text(&mut words[10..20], serial);
    set_text(&mut words[23..27], FIRMWARE_REVISION);
    set_text(&mut words[27..47], model);
    (words[63], words[88]) = dma.words();
    words[51] = 0x0200; // PIO mode 2, for software that knows no others.
    words[64] = 0x0003; // PIO modes 3 and 4.
    // Nanoseconds of a cycle: multiword DMA at least and recommended, PIO without and with IORDY.
    words[65..69].fill(120);
}

/// Word 93: how the drive came out of its reset, as device 0 or 1 by a jumper, with a 40-wire cable.
fn reset_result(second: bool) -> u16 {
    VALID | if second { 0x0b00 } else { 0x000b }
}

fn set_dword(words: &mut [u16; WORDS], index: usize, value: u32) {
    words[index] = value as u16;
    words[index + 1] = (value >> 16) as u16;
}

/// A string of printable ASCII, the first character of each pair in the word's upper byte, filled up with spaces.
fn set_text(words: &mut [u16], text: &str) {
    let mut characters = text.bytes().filter(|byte| (0x20..0x7f).contains(byte));
    for word in words {
        let mut next = || characters.next().unwrap_or(b' ');
        *word = u16::from_be_bytes([next(), next()]);
    }
}

fn bytes(words: &[u16; WORDS]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn geometries_reach_no_further_than_the_disk() {
        for sectors in [1, 1008, 20_000, 1 << 24, 1 << 40] {
            let geometry = Geometry::of(sectors);
            assert!(u64::from(geometry.capacity()) <= sectors.max(1008));
            assert_eq!(geometry.lba(0, 0, 1), Some(0));
            assert_eq!(geometry.lba(1, 1, 1), Some(1008 + 63));
            assert_eq!(geometry.lba(0, 0, 0), None);
            assert_eq!(geometry.lba(0, 0, 64), None);
            assert_eq!(geometry.lba(0, 16, 1), None);
        }
        assert_eq!(Geometry::of(1 << 40).capacity(), 16_514_064);
        assert_eq!(Geometry::with(20_000, 4, 17).cylinders, 294);
        assert_eq!(Geometry::with(20_000, 1, 0).capacity(), 0);
    }

    #[test]
    fn text_is_swapped_and_filled_up() {
        let mut words = [0; 4];
        set_text(&mut words, "ring3\n");
        assert_eq!(words, [0x7269, 0x6e67, 0x3320, 0x2020]);
    }
}
