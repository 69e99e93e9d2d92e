//! The boot information of a Multiboot2 kernel (3.6).

use ring3_core::memory::{Memory, RamLayout};

use crate::linear_mode::LinearMode;
use crate::memory_map::{LOW_RAM_END, Range, memory_map};

/// Tags (3.6.3 to 3.6.20).
mod tag {
    pub(super) const END: u32 = 0;
    pub(super) const COMMAND_LINE: u32 = 1;
    pub(super) const LOADER: u32 = 2;
    pub(super) const MODULE: u32 = 3;
    pub(super) const BASIC_MEMORY: u32 = 4;
    pub(super) const MEMORY_MAP: u32 = 6;
    pub(super) const FRAMEBUFFER: u32 = 8;
    pub(super) const SECTIONS: u32 = 9;
    pub(super) const OLD_RSDP: u32 = 14;
    pub(super) const NEW_RSDP: u32 = 15;
    pub(super) const LOAD_BASE: u32 = 21;
}
const ALIGNMENT: usize = 8;
const MIB: u64 = 1 << 20;

/// The lengths of an RSDP of ACPI 1.0, and of later ones.
const OLD_RSDP_LEN: usize = 20;
const NEW_RSDP_LEN: usize = 36;

/// Kinds of framebuffers.
const RGB: u8 = 1;
const EGA_TEXT: u8 = 2;

/// The information so far.
pub(super) struct Information(Vec<u8>);

impl Default for Information {
    /// Nothing but the room for its length, and a reserved word.
    fn default() -> Information {
        Information(vec![0; 8])
    }
}

impl Information {
    fn add(&mut self, tag: u32, body: &[u8]) {
        self.0.extend(tag.to_le_bytes());
        self.0.extend((8 + body.len() as u32).to_le_bytes());
        self.0.extend(body);
        self.0.resize(self.0.len().next_multiple_of(ALIGNMENT), 0);
    }

    /// Adds a tag of words and a text.
    fn add_text(&mut self, tag: u32, words: &[u32], text: &str) {
        let words = words.iter().flat_map(|word| word.to_le_bytes());
        self.add(tag, &words.chain(text.bytes()).chain([0]).collect::<Vec<_>>());
    }

    pub(super) fn add_command_line(&mut self, command_line: &str) {
        self.add_text(tag::COMMAND_LINE, &[], command_line);
    }

    pub(super) fn add_loader(&mut self) {
        self.add_text(tag::LOADER, &[], concat!("ring3 ", env!("CARGO_PKG_VERSION")));
    }

    pub(super) fn add_module(&mut self, start: u32, end: u32, name: &str) {
        self.add_text(tag::MODULE, &[start, end], name);
    }

    /// Adds the size of memory and its map.
    pub(super) fn add_memory(&mut self, ram: RamLayout) {
        const ENTRY_LEN: u32 = 24;
        let sizes = [LOW_RAM_END, ram.low().saturating_sub(MIB)].map(|len| (len >> 10) as u32);
        self.add(tag::BASIC_MEMORY, sizes.map(u32::to_le_bytes).as_flattened());
        // The length and the version of entries.
        let mut map = [ENTRY_LEN, 0].map(u32::to_le_bytes).as_flattened().to_vec();
        for range in memory_map(ram) {
            map.extend(range.entry());
            map.extend([0; ENTRY_LEN as usize - Range::ENTRY_LEN]);
        }
        self.add(tag::MEMORY_MAP, &map);
    }

    /// Adds a table of section headers, each of `header_len` bytes.
    pub(super) fn add_sections(&mut self, headers: &[u8], header_len: usize, names: u32) {
        let fields = [(headers.len() / header_len.max(1)) as u32, header_len as u32, names];
        self.add(tag::SECTIONS, &[fields.map(u32::to_le_bytes).as_flattened(), headers].concat());
    }

    /// Adds copies of the RSDP at `address`.
    pub(super) fn add_rsdp(&mut self, memory: &Memory, address: u64) {
        let mut rsdp = [0; NEW_RSDP_LEN];
        memory.read(address, &mut rsdp);
        self.add(tag::OLD_RSDP, &rsdp[..OLD_RSDP_LEN]);
        self.add(tag::NEW_RSDP, &rsdp);
    }

    /// Adds the address at which the kernel was loaded.
    pub(super) fn add_base(&mut self, base: u32) {
        self.add(tag::LOAD_BASE, &base.to_le_bytes());
    }

    /// Adds the screen: that of `mode`, or text in mode 3, whose size is in characters.
    pub(super) fn add_screen(&mut self, video_memory: u32, mode: Option<LinearMode>) {
        let mut body = Vec::new();
        let (address, [pitch, width, height]) = match mode {
            Some(mode) => (video_memory, [mode.pitch(), mode.width.into(), mode.height.into()]),
            None => (0xb_8000, [160, 80, 25]),
        };
        body.extend(u64::from(address).to_le_bytes());
        body.extend([pitch, width, height].map(u32::to_le_bytes).as_flattened());
        match mode {
            Some(mode) => {
                body.extend([mode.bits_per_pixel, RGB, 0, 0]);
                body.extend(mode.colours().as_flattened());
            }
            None => body.extend([16, EGA_TEXT, 0, 0]),
        }
        self.add(tag::FRAMEBUFFER, &body);
    }

    /// Returns all of it.
    pub(super) fn finish(mut self) -> Vec<u8> {
        self.add(tag::END, &[]);
        let len = self.0.len() as u32;
        self.0[..4].copy_from_slice(&len.to_le_bytes());
        self.0
    }
}
