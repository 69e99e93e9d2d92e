//! Kernels in ELF files, of 32 and 64 bits: the parts of memory that they occupy, where they start, and what
//! they say about themselves.
//!
//! A file may contain anything: what lies outside of it is refused, and no more bytes are loaded than it has.

use elf::ElfBytes;
use elf::abi::{EM_386, EM_X86_64, PT_LOAD, PT_NOTE, SHT_NOBITS};
use elf::endian::LittleEndian;
use elf::file::Class;
use elf::note::{Note, NoteIterator};
use thiserror::Error;

use crate::placing::Part;

/// The note with the address at which a kernel starts by PVH (Xen, `public/elfnote.h`:
/// `XEN_ELFNOTE_PHYS32_ENTRY`).
const PVH_NOTE_NAME: &[u8] = b"Xen\0";
const PVH_NOTE: u64 = 18;
/// The alignment in segments of notes, unless they say 8.
const NOTE_ALIGNMENT: u64 = 4;

/// The reasons why an ELF file cannot be a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ElfError {
    /// The file contradicts itself.
    #[error("it is not a valid ELF file")]
    Damaged,
    /// It is for another processor.
    #[error("it is for a processor other than a PC's")]
    OtherProcessor,
    /// Segments share bytes of the file, so that it would load more than it has.
    #[error("its segments overlap")]
    Overlapping,
}

/// A kernel in an ELF file.
pub(crate) struct ElfKernel<'a> {
    /// Its loadable segments, at their physical addresses.
    pub(crate) parts: Vec<Part<'a>>,
    /// The physical address of its entry point.
    pub(crate) entry: u64,
    elf: ElfBytes<'a, LittleEndian>,
    file: &'a [u8],
}

/// A table of section headers, as it is in the file, and the sections that loading the segments does not load,
/// such as symbols.
pub(crate) struct Sections<'a> {
    pub(crate) headers: &'a [u8],
    /// Bytes of a header.
    pub(crate) header_len: usize,
    /// The index of the section with the names of sections.
    pub(crate) names: u32,
    /// By their indices: the contents of sections without an address.
    pub(crate) unloaded: Vec<(usize, &'a [u8])>,
}

impl<'a> ElfKernel<'a> {
    /// Reads an ELF file for 32-bit or 64-bit PCs.
    pub(crate) fn parse(file: &'a [u8]) -> Result<ElfKernel<'a>, ElfError> {
        let elf = ElfBytes::<LittleEndian>::minimal_parse(file).map_err(|_| ElfError::Damaged)?;
        match (elf.ehdr.class, elf.ehdr.e_machine) {
            (Class::ELF32, EM_386) | (Class::ELF64, EM_X86_64) => {}
            _ => return Err(ElfError::OtherProcessor),
        }
        let virtual_entry = elf.ehdr.e_entry;
        let mut entry = virtual_entry;
        let mut parts = Vec::new();
        let segments = elf.segments().ok_or(ElfError::Damaged)?;
        for segment in segments.iter().filter(|segment| segment.p_type == PT_LOAD) {
            let bytes = elf.segment_data(&segment).map_err(|_| ElfError::Damaged)?;
            let offset = virtual_entry.wrapping_sub(segment.p_vaddr);
            if offset < segment.p_memsz {
                entry = segment.p_paddr.wrapping_add(offset);
            }
            let len = segment.p_memsz.max(bytes.len() as u64);
            parts.push(Part { start: segment.p_paddr, bytes, len });
        }
        if parts.iter().map(|part| part.bytes.len()).sum::<usize>() > file.len() {
            return Err(ElfError::Overlapping);
        }
        Ok(ElfKernel { parts, entry, elf, file })
    }

    /// Returns the address at which the kernel starts by PVH, if it says so.
    pub(crate) fn pvh_entry(&self) -> Option<u32> {
        let segments = self.elf.segments()?;
        let mut notes = segments.iter().filter(|segment| segment.p_type == PT_NOTE);
        notes.find_map(|segment| self.pvh_note(&segment))
    }

    fn pvh_note(&self, segment: &elf::segment::ProgramHeader) -> Option<u32> {
        let bytes = self.elf.segment_data(segment).ok()?;
        let alignment = if segment.p_align == 8 { 8 } else { NOTE_ALIGNMENT };
        let class = self.elf.ehdr.class;
        let mut notes = NoteIterator::new(LittleEndian, class, alignment as usize, bytes);
        notes.find_map(|note| match note {
            Note::Unknown(note) if (note.name, note.n_type) == (PVH_NOTE_NAME, PVH_NOTE) => {
                // A word of the file's class.
                let low = u32::from_le_bytes(*note.desc.first_chunk()?);
                note.desc[4..].iter().all(|byte| *byte == 0).then_some(low)
            }
            _ => None,
        })
    }

    /// Returns the sections, if the file has any.
    pub(crate) fn sections(&self) -> Option<Sections<'a>> {
        let sections = self.elf.section_headers()?;
        let header_len = usize::from(self.elf.ehdr.e_shentsize);
        let len = sections.len().checked_mul(header_len)?;
        let start = usize::try_from(self.elf.ehdr.e_shoff).ok()?;
        let headers = self.file.get(start..start.checked_add(len)?)?;
        let mut unloaded = Vec::new();
        for (index, section) in sections.iter().enumerate() {
            if section.sh_addr == 0 && section.sh_size > 0 && section.sh_type != SHT_NOBITS {
                let start = usize::try_from(section.sh_offset).ok()?;
                let len = usize::try_from(section.sh_size).ok()?;
                unloaded.push((index, self.file.get(start..start.checked_add(len)?)?));
            }
        }
        let all: usize = unloaded.iter().map(|(_, bytes)| bytes.len()).sum();
        (all <= self.file.len()).then_some(Sections {
            headers,
            header_len,
            names: self.elf.ehdr.e_shstrndx.into(),
            unloaded,
        })
    }
}

impl Sections<'_> {
    /// Returns the place of the address of section `index` in the table, in bytes.
    pub(crate) fn address_field(&self, index: usize) -> std::ops::Range<usize> {
        const LEN_32: usize = 40;
        let (offset, len) = if self.header_len == LEN_32 { (12, 4) } else { (16, 8) };
        let start = index * self.header_len + offset;
        start..start + len
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns an ELF file for 64-bit PCs with these program headers (type, offset, virtual and physical address,
    /// bytes in the file and in memory) and this entry point, and `contents` behind them, at [`contents_at`].
    pub(crate) fn elf64(headers: &[(u32, [u64; 5])], entry: u64, contents: &[u8]) -> Vec<u8> {
        let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
        file.extend([2, 0, 62, 0, 1, 0, 0, 0]);
        file.extend([entry, 64, 0].map(u64::to_le_bytes).as_flattened());
        file.extend([0, 0, 0, 0, 64, 0, 56, 0, headers.len() as u8, 0, 0, 0, 0, 0, 0, 0]);
        for (kind, [offset, virtual_start, physical_start, file_len, len]) in headers {
            file.extend(kind.to_le_bytes());
            file.extend(7u32.to_le_bytes());
            let fields = [*offset, *virtual_start, *physical_start, *file_len, *len, 4];
            file.extend(fields.map(u64::to_le_bytes).as_flattened());
        }
        file.extend(contents);
        file
    }

    /// Returns the offset of the contents in a file with this number of program headers.
    pub(crate) fn contents_at(headers: u64) -> u64 {
        64 + 56 * headers
    }

    /// Returns a note by which a 64-bit kernel starts at `entry`.
    pub(crate) fn pvh_note_of(entry: u64) -> Vec<u8> {
        let mut note = [4u32, 8, 18].map(u32::to_le_bytes).as_flattened().to_vec();
        note.extend(b"Xen\0");
        note.extend(entry.to_le_bytes());
        note
    }

    #[test]
    fn segments_and_entry_are_physical() {
        let at = contents_at(1);
        let virtual_start = 0xffff_ffff_8100_0000;
        let load = (PT_LOAD, [at, virtual_start, 0x20_0000, 4, 0x1000]);
        let file = elf64(&[load], virtual_start + 2, &[1, 2, 3, 4]);
        let kernel = ElfKernel::parse(&file).unwrap();
        assert_eq!(kernel.entry, 0x20_0002);
        let [part] = &kernel.parts[..] else { panic!("{:?}", kernel.parts) };
        assert_eq!((part.start, part.bytes, part.len), (0x20_0000, &[1, 2, 3, 4][..], 0x1000));
        assert_eq!(kernel.pvh_entry(), None);
    }

    #[test]
    fn the_note_says_where_to_start() {
        let at = contents_at(2);
        let other = [5u32, 1, 18].map(u32::to_le_bytes);
        let mut notes = [other.as_flattened(), b"Self\0\0\0\0", &[9, 0, 0, 0]].concat();
        notes.extend(pvh_note_of(0x100_0010));
        let len = notes.len() as u64;
        let headers = [(PT_LOAD, [0, 0, 0, 0, 0]), (PT_NOTE, [at, 0, 0, len, len])];
        let entry =
            |notes: &[u8]| ElfKernel::parse(&elf64(&headers, 0, notes)).unwrap().pvh_entry();
        assert_eq!(entry(&notes), Some(0x100_0010));
        // An address above 4 GiB is none.
        let last = notes.len() - 1;
        notes[last] = 1;
        assert_eq!(entry(&notes), None);
    }

    #[test]
    fn segments_that_share_bytes_are_refused() {
        let at = contents_at(300);
        let load = (PT_LOAD, [0, 0x10_0000, 0x10_0000, at, at]);
        let file = elf64(&vec![load; 300][..], 0, &[]);
        // The number of program headers has two bytes.
        let mut file = file;
        file[56..58].copy_from_slice(&300u16.to_le_bytes());
        assert_eq!(ElfKernel::parse(&file).err(), Some(ElfError::Overlapping));
    }
}
