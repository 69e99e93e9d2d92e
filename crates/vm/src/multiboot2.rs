//! Direct boot of kernels that follow the Multiboot2 Specification, version 2.0 (cited by its sections): from an
//! ELF file of 32 or 64 bits, or any file whose header says where it belongs, to the registers with which the
//! kernel starts.
//!
//! Memory is laid out as by [`crate::multiboot`]; sections that the segments do not contain, such as symbols,
//! follow the modules. The information has everything for which a header can ask and that exists here: there is
//! no BIOS and no EFI. A kernel that asks for graphics gets a linear mode of the adapter, and one that asks for
//! none the text screen.
//!
//! A kernel file may contain anything: each field is compared with the length of the file and the size of memory
//! before it is used.

mod header;
mod information;

use ring3_core::memory::Memory;
use thiserror::Error;
use tracing::warn;

use crate::elf_kernel::{ElfError, ElfKernel, Sections};
use crate::linear_mode::LinearMode;
use crate::placing::{Entry, GDT_LEN, Part, Placer, PlacingError};
use header::{Address, Header, Relocation};
use information::Information;

/// The value that a kernel finds in EAX (3.3).
pub(crate) const BOOTED: u32 = 0x36d7_6289;

/// The reasons why a kernel cannot be booted.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum Multiboot2Error {
    /// Its header requires something that the machine does not have.
    #[error("needs an unknown feature of its boot loader: tag {0} of its Multiboot2 header")]
    UnknownTag(u16),
    /// It requires information that the machine does not have.
    #[error("needs unknown information from its boot loader: tag {0} of Multiboot2")]
    UnknownInformation(u32),
    /// Its header contradicts itself or the file.
    #[error("has a Multiboot2 header but cannot be loaded: {0}")]
    Unloadable(&'static str),
    /// The file cannot be read.
    #[error("has a Multiboot2 header but cannot be loaded: {0}")]
    Elf(#[from] ElfError),
    /// There is no place for it in memory.
    #[error(transparent)]
    Placing(#[from] PlacingError),
}

/// Returns whether `file` has a Multiboot2 header.
pub fn is_multiboot2(file: &[u8]) -> bool {
    header::find(file).is_some()
}

/// Returns whether `file` has a Multiboot2 header that says where it belongs. Then the format of the file says
/// nothing about the kernel.
pub(crate) fn is_addressed(file: &[u8]) -> bool {
    Header::parse(file).is_ok_and(|header| header.address.is_some())
}

/// What a kernel gets from its boot loader besides itself.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Given<'a> {
    /// Modules, each a name and contents.
    pub(crate) modules: &'a [(&'a str, &'a [u8])],
    pub(crate) command_line: &'a str,
    /// The address of the ACPI tables' RSDP.
    pub(crate) rsdp: u64,
    /// The address of the display adapter's memory, if there is an adapter.
    pub(crate) video_memory: Option<u32>,
}

/// Loads the kernel in `file` into `memory`. Returns its start, and the mode that the display adapter must have
/// then; without one it shows text.
pub(crate) fn load(
    memory: &mut Memory,
    file: &[u8],
    given: &Given<'_>,
) -> Result<(Entry, Option<LinearMode>), Multiboot2Error> {
    let header = Header::parse(file)?;
    let (mut parts, mut eip, sections) = if let Some(address) = &header.address {
        let part = addressed(file, &header, address)?;
        let entry = header.entry.ok_or(Multiboot2Error::Unloadable("the entry is missing"))?;
        (vec![part], entry, None)
    } else {
        let kernel = ElfKernel::parse(file)?;
        let entry = header.entry.unwrap_or(kernel.entry as u32);
        let sections = kernel.sections();
        (kernel.parts, entry, sections)
    };
    if let Some(relocation) = &header.relocation {
        let by = distance(relocation, &parts, memory.ram().low())?;
        for part in &mut parts {
            part.start = part.start.wrapping_add(by);
        }
        eip = eip.wrapping_add(by as u32);
    }
    let base = parts.iter().map(|part| part.start).min().unwrap_or(0);
    let mut placer = Placer::load(memory, &parts)?;

    let mut information = Information::default();
    information.add_command_line(given.command_line);
    information.add_loader();
    for (name, contents) in given.modules {
        let (start, end) = placer.put(contents)?;
        information.add_module(start, end, name);
    }
    information.add_memory(placer.memory().ram());
    if let Some(sections) = sections {
        let headers = load_sections(&mut placer, &sections)?;
        information.add_sections(&headers, sections.header_len, sections.names);
    }
    information.add_rsdp(placer.memory(), given.rsdp);
    if header.relocation.is_some() {
        information.add_base(base as u32);
    }
    let mode = match (given.video_memory, header.framebuffer) {
        (Some(_), Some((width, height, depth))) if depth > 0 || width > 80 || height > 25 => {
            let mode = LinearMode::for_request(width, height, depth);
            if mode.is_none() {
                warn!(
                    "the kernel asks for {width} by {height} pixels of {depth} bits, which the display adapter cannot \
                     show; it starts with a text screen"
                );
            }
            mode
        }
        _ => None,
    };
    if let Some(video_memory) = given.video_memory {
        information.add_screen(video_memory, mode);
    }
    debug_assert_eq!((placer.next() + GDT_LEN) % 8, 0);
    Ok((placer.finish(&information.finish(), eip)?, mode))
}

/// Returns the part of a kernel whose header says where it belongs (3.1.5).
fn addressed<'a>(
    file: &'a [u8],
    header: &Header,
    address: &Address,
) -> Result<Part<'a>, Multiboot2Error> {
    let unloadable = |reason| Err(Multiboot2Error::Unloadable(reason));
    // All ones: the file's start, which is as far before the header in memory as in the file.
    let before = match address.load_addr {
        u32::MAX => header.offset as u32,
        load_addr => match address.header_addr.checked_sub(load_addr) {
            Some(before) => before,
            None => return unloadable("its first byte would lie before the file"),
        },
    };
    let (Some(first), Some(start)) =
        (header.offset.checked_sub(before as usize), address.header_addr.checked_sub(before))
    else {
        return unloadable("its first byte would lie before the file");
    };
    let bytes = &file[first..];
    // 0 stands for the whole file.
    let len = match address.load_end_addr.checked_sub(start) {
        _ if address.load_end_addr == 0 => bytes.len(),
        Some(len) => len as usize,
        None => return unloadable("it ends before it begins"),
    };
    let Some(bytes) = bytes.get(..len) else {
        return unloadable("the file is shorter than its header says");
    };
    let bss = u64::from(address.bss_end_addr.saturating_sub(start));
    Ok(Part { start: start.into(), bytes, len: bss.max(len as u64) })
}

/// Returns how far a kernel that can be relocated (3.1.13) is moved: not at all where it is at home.
fn distance(relocation: &Relocation, parts: &[Part<'_>], ram: u64) -> Result<u64, Multiboot2Error> {
    const MIB: u64 = 1 << 20;
    let start = parts.iter().map(|part| part.start).min().unwrap_or(0);
    let end = parts.iter().map(Part::end).max().unwrap_or(0);
    let len = end - start;
    let alignment = u64::from(relocation.alignment.max(1));
    // The addresses are those of the kernel's first and last byte.
    let first = u64::from(relocation.min_addr);
    let limit = ram.min(u64::from(relocation.max_addr) + 1);
    let fits = |at: u64| at >= first && at.saturating_add(len) <= limit;
    if start.is_multiple_of(alignment) && fits(start) && parts.iter().all(|part| part.fits(ram)) {
        return Ok(0);
    }
    let highest = limit.checked_sub(len).map(|at| at - at % alignment);
    let lowest = Some(first.max(MIB).next_multiple_of(alignment));
    let at = if relocation.prefers_high { highest } else { lowest };
    let at = at.filter(|at| *at >= MIB && fits(*at));
    let at = at.ok_or(PlacingError::NoMemory { start, end })?;
    Ok(at.wrapping_sub(start))
}

/// Loads the sections that are not loaded yet. Returns the table with their addresses.
fn load_sections(
    placer: &mut Placer<'_>,
    sections: &Sections<'_>,
) -> Result<Vec<u8>, PlacingError> {
    let mut headers = sections.headers.to_vec();
    for (index, contents) in &sections.unloaded {
        let (start, _) = placer.put(contents)?;
        let field = &mut headers[sections.address_field(*index)];
        let len = field.len();
        field.copy_from_slice(&u64::from(start).to_le_bytes()[..len]);
    }
    Ok(headers)
}

#[cfg(test)]
mod tests;
