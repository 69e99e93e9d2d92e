//! The Multiboot2 header of a kernel.

use super::Multiboot2Error;

/// The magic number (3.1.2), and the architecture: 32-bit protected mode of i386.
const MAGIC: u32 = 0xe852_50d6;
const I386: u32 = 0;
/// The header is within this many bytes of the file, at a multiple of 8 (3.1).
const SEARCHED: usize = 32768;
const ALIGNMENT: usize = 8;
/// The length of the magic fields.
const FIELDS_LEN: usize = 16;

/// Tags (3.1.4 to 3.1.13).
mod tag {
    pub(super) const END: u16 = 0;
    pub(super) const INFORMATION_REQUEST: u16 = 1;
    pub(super) const ADDRESS: u16 = 2;
    pub(super) const ENTRY_ADDRESS: u16 = 3;
    pub(super) const CONSOLE_FLAGS: u16 = 4;
    pub(super) const FRAMEBUFFER: u16 = 5;
    pub(super) const MODULE_ALIGNMENT: u16 = 6;
    pub(super) const EFI_BOOT_SERVICES: u16 = 7;
    pub(super) const EFI_I386_ENTRY: u16 = 8;
    pub(super) const EFI_AMD64_ENTRY: u16 = 9;
    pub(super) const RELOCATABLE: u16 = 10;
}
/// The length of a tag's type, flags and size.
const TAG_LEN: usize = 8;
/// A flag of tags: a loader that does not know the tag ignores it.
const OPTIONAL: u16 = 1 << 0;
/// The greatest type of information that there is (3.6). A kernel that requires it does without what the machine
/// has not.
const LAST_INFORMATION: u32 = 21;
/// A preference for high addresses, in the tag for relocation.
const PREFERS_HIGH: u32 = 2;

/// Where the kernel belongs (3.1.5).
#[allow(clippy::struct_field_names)] // The names of the specification.
pub(super) struct Address {
    pub(super) header_addr: u32,
    pub(super) load_addr: u32,
    pub(super) load_end_addr: u32,
    pub(super) bss_end_addr: u32,
}

/// Where a kernel can be that runs at several places (3.1.13).
pub(super) struct Relocation {
    pub(super) min_addr: u32,
    pub(super) max_addr: u32,
    pub(super) alignment: u32,
    pub(super) prefers_high: bool,
}

/// A header. Modules are always on pages, and there is neither BIOS nor EFI.
#[derive(Default)]
pub(super) struct Header {
    /// Its offset in the file.
    pub(super) offset: usize,
    pub(super) address: Option<Address>,
    pub(super) entry: Option<u32>,
    /// Width, height and depth; 0 for what the kernel leaves to the loader.
    pub(super) framebuffer: Option<(u32, u32, u32)>,
    pub(super) relocation: Option<Relocation>,
}

fn word(bytes: &[u8], index: usize) -> Option<u32> {
    bytes.get(4 * index..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}

/// Returns the offset of the header in `file` and its tags.
pub(super) fn find(file: &[u8]) -> Option<(usize, &[u8])> {
    let searched = &file[..file.len().min(SEARCHED)];
    (0..searched.len()).step_by(ALIGNMENT).find_map(|offset| {
        let bytes = &file[offset..];
        let [magic, architecture, len, checksum] =
            [word(bytes, 0)?, word(bytes, 1)?, word(bytes, 2)?, word(bytes, 3)?];
        let sum = magic.wrapping_add(architecture).wrapping_add(len).wrapping_add(checksum);
        let is_header = (magic, architecture, sum) == (MAGIC, I386, 0);
        is_header.then(|| Some((offset, bytes.get(FIELDS_LEN..len as usize)?))).flatten()
    })
}

impl Header {
    /// Reads the header of a kernel.
    pub(super) fn parse(file: &[u8]) -> Result<Header, Multiboot2Error> {
        let cut = Multiboot2Error::Unloadable("its header is cut");
        let (offset, mut tags) = find(file).ok_or(cut)?;
        let mut header = Header { offset, ..Header::default() };
        loop {
            let cut = Multiboot2Error::Unloadable("its header is cut");
            let (Some(first), Some(size)) = (word(tags, 0), word(tags, 1)) else { return Err(cut) };
            let (kind, flags, size) = (first as u16, (first >> 16) as u16, size as usize);
            let Some(body) = tags.get(TAG_LEN..size) else { return Err(cut) };
            if kind == tag::END {
                return Ok(header);
            }
            header.take(kind, flags, body)?;
            tags = tags.get(size.next_multiple_of(ALIGNMENT)..).unwrap_or_default();
        }
    }

    /// Takes a tag with this contents.
    fn take(&mut self, kind: u16, flags: u16, body: &[u8]) -> Result<(), Multiboot2Error> {
        let is_optional = flags & OPTIONAL != 0;
        let field = |index: usize| {
            word(body, index).ok_or(Multiboot2Error::Unloadable("a tag of its header is too short"))
        };
        match kind {
            tag::INFORMATION_REQUEST => {
                let kinds = (0..body.len() / 4).filter_map(|index| word(body, index));
                let unknown = kinds.into_iter().find(|kind| *kind > LAST_INFORMATION);
                if let Some(unknown) = unknown.filter(|_| !is_optional) {
                    return Err(Multiboot2Error::UnknownInformation(unknown));
                }
            }
            tag::ADDRESS => {
                self.address = Some(Address {
                    header_addr: field(0)?,
                    load_addr: field(1)?,
                    load_end_addr: field(2)?,
                    bss_end_addr: field(3)?,
                });
            }
            tag::ENTRY_ADDRESS => self.entry = Some(field(0)?),
            tag::FRAMEBUFFER => self.framebuffer = Some((field(0)?, field(1)?, field(2)?)),
            tag::RELOCATABLE => {
                self.relocation = Some(Relocation {
                    min_addr: field(0)?,
                    max_addr: field(1)?,
                    alignment: field(2)?,
                    prefers_high: field(3)? == PREFERS_HIGH,
                });
            }
            tag::CONSOLE_FLAGS
            | tag::MODULE_ALIGNMENT
            | tag::EFI_BOOT_SERVICES
            | tag::EFI_I386_ENTRY
            | tag::EFI_AMD64_ENTRY => {}
            _ if is_optional => {}
            _ => return Err(Multiboot2Error::UnknownTag(kind)),
        }
        Ok(())
    }
}
