//! The firmware configuration device: what the machine tells its firmware, and all other software that asks.
//!
//! The interface is QEMU's (docs/specs/fw_cfg.rst there), since the firmware for emulators knows that one: items of
//! bytes that are selected by a key and read byte by byte, or by DMA; a directory gives further items
//! names, as files. Items are read-only. They are what the machine was made with and so no part of a saved state.
//! There are two exceptions: a file in which the guest says where its note for debuggers is ([`FwCfg::add_note`]), and one that
//! names the ports of power management, for which firmware chooses the place ([`FwCfg::add_file_with_ports`]).
//!
//! ```
//! use ring3_core::device::{Device, TestBench, Width};
//! use ring3_devices::fw_cfg::FwCfg;
//!
//! let (mut bench, mut fw_cfg) = (TestBench::default(), FwCfg::default());
//! fw_cfg.write_port(&mut bench.context(), 0x510, Width::Word, 0); // the signature
//! let signature = [(); 4].map(|()| bench.read(&mut fw_cfg, 0x511));
//! assert_eq!(&signature, b"QEMU");
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use ring3_core::bus::PortRange;
use ring3_core::device::{Context, Device, DeviceId, Width};
use ring3_core::input::DeviceInput;
use ring3_core::memory::Memory;
use ring3_core::state::{RestoreError, SavedState};
use serde::{Deserialize, Serialize};

use crate::bytewise;

const VERSION: u32 = 1;

const SELECTOR_PORT: u16 = 0x510;
const DATA_PORT: u16 = 0x511;
/// The address of the DMA descriptor: its high half, and its low half, which starts the transfer. Big-endian.
const DMA_HIGH_PORT: u16 = 0x514;
const DMA_LOW_PORT: u16 = 0x518;
/// What the DMA address registers read as.
const DMA_SIGNATURE: &[u8; 8] = b"QEMU CFG";

/// Keys of items. Numbers are little-endian.
pub mod key {
    /// The four letters by which firmware finds the device.
    pub(super) const SIGNATURE: u16 = 0x00;
    /// Which interfaces there are.
    pub(super) const INTERFACES: u16 = 0x01;
    /// The UUID of the machine, 16 bytes; zeros where it has none.
    pub const UUID: u16 = 0x02;
    /// The size of RAM, eight bytes.
    pub const MEMORY_SIZE: u16 = 0x03;
    /// 1 when there is no display adapter, two bytes.
    pub const NO_DISPLAY: u16 = 0x04;
    /// How many processors, two bytes.
    pub const PROCESSORS: u16 = 0x05;
    /// Where the kernel's protected-mode code belongs, and its size, four bytes each.
    pub const KERNEL_ADDRESS: u16 = 0x07;
    /// See [`KERNEL_ADDRESS`].
    pub const KERNEL_SIZE: u16 = 0x08;
    /// Where the initial RAM disk belongs, and its size, four bytes each.
    pub const INITRD_ADDRESS: u16 = 0x0a;
    /// See [`INITRD_ADDRESS`].
    pub const INITRD_SIZE: u16 = 0x0b;
    /// 1 when the boot menu is to be shown, two bytes.
    pub const BOOT_MENU: u16 = 0x0e;
    /// How many processors there may be, two bytes.
    pub const MAX_PROCESSORS: u16 = 0x0f;
    /// The kernel's protected-mode code.
    pub const KERNEL_DATA: u16 = 0x11;
    /// The initial RAM disk.
    pub const INITRD_DATA: u16 = 0x12;
    /// Where the command line belongs, four bytes.
    pub const COMMAND_LINE_ADDRESS: u16 = 0x13;
    /// The length of the command line with the zero byte at its end, four bytes.
    pub const COMMAND_LINE_SIZE: u16 = 0x14;
    /// The command line, with a zero byte at its end.
    pub const COMMAND_LINE_DATA: u16 = 0x15;
    /// Where the kernel's real-mode code belongs, and its size, four bytes each.
    pub const SETUP_ADDRESS: u16 = 0x16;
    /// See [`SETUP_ADDRESS`].
    pub const SETUP_SIZE: u16 = 0x17;
    /// The kernel's real-mode code, with what a boot loader fills in.
    pub const SETUP_DATA: u16 = 0x18;
    /// The directory of files.
    pub(super) const DIRECTORY: u16 = 0x19;
    /// The first key of a file.
    pub(super) const FIRST_FILE: u16 = 0x20;
    /// 1 when IRQ 0 is at input 2 of the I/O APIC, one byte; the first of the keys that are a PC's own.
    pub const IRQ0_OVERRIDE: u16 = 0x8002;
}

/// Of the interfaces item: selector and data ports, and DMA.
const INTERFACES: u32 = 1 << 0 | 1 << 1;

/// The length of a file's name in the directory, with the zero byte at its end.
pub const NAME_LEN: usize = 56;
/// The file in which the guest says where its note is (QEMU, docs/specs/vmcoreinfo.rst).
const NOTE_FILE: &str = "etc/vmcoreinfo";
/// The note is one of ELF.
const NOTE_OF_ELF: u16 = 1;
/// The bytes of that file: which notes the host knows, which one there is, its size, and its guest-physical address.
type NotePlace = [u8; 16];

/// More files than this there cannot be: further on are the keys that are a PC's own.
pub const FILES_MAX: usize = 0x1000;

/// The contents of an item, which others may share.
#[derive(Clone)]
struct Contents(Arc<dyn AsRef<[u8]> + Send + Sync>);

impl Contents {
    fn bytes(&self) -> &[u8] {
        (*self.0).as_ref()
    }
}

impl fmt::Debug for Contents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.bytes().len())
    }
}

// The DMA descriptor's first field.
const DMA_ERROR: u32 = 1 << 0;
const DMA_READ: u32 = 1 << 1;
const DMA_SKIP: u32 = 1 << 2;
const DMA_SELECT: u32 = 1 << 3;
const DMA_WRITE: u32 = 1 << 4;

/// What a guest has the DMA interface do: a descriptor in its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DmaCommand {
    control: u32,
    /// In bytes.
    length: u32,
    address: u64,
}

impl DmaCommand {
    /// Selects the item `key` and reads `length` bytes of it to guest-physical address `address`.
    pub fn read(key: u16, length: u32, address: u64) -> DmaCommand {
        DmaCommand { control: u32::from(key) << 16 | DMA_SELECT | DMA_READ, length, address }
    }

    /// As it is in memory.
    pub fn bytes(self) -> [u8; 16] {
        let first = u64::from(self.control) << 32 | u64::from(self.length);
        (u128::from(first) << 64 | u128::from(self.address)).to_be_bytes()
    }

    fn from_bytes(bytes: [u8; 16]) -> DmaCommand {
        let fields = u128::from_be_bytes(bytes);
        DmaCommand {
            control: (fields >> 96) as u32,
            length: (fields >> 64) as u32,
            address: fields as u64,
        }
    }
}

/// The device, `fw_cfg`.
#[derive(Debug, Clone)]
pub struct FwCfg {
    items: BTreeMap<u16, Contents>,
    /// The names of the items from [`key::FIRST_FILE`] on.
    files: Vec<String>,
    /// What items become when the machine is reset.
    after_reset: BTreeMap<u16, Contents>,
    /// The key of [`NOTE_FILE`], if there is one.
    note: Option<u16>,
    with_ports: Option<WithPorts>,
    state: State,
}

/// A file that names ports of power management.
#[derive(Debug, Clone)]
struct WithPorts {
    key: u16,
    /// With numbers that count from the first of these ports.
    contents: Vec<u8>,
    /// Where these numbers are. Each has four bytes.
    places: Vec<usize>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
struct State {
    key: u16,
    /// The next byte of the item.
    offset: u32,
    /// The high half of the descriptor's address.
    dma_high: u32,
    /// The machine is on: the next reset is not the one at power-on.
    #[serde(default)]
    is_on: bool,
    /// It was reset since.
    #[serde(default)]
    was_reset: bool,
    /// What the guest has written to [`NOTE_FILE`].
    #[serde(default)]
    note: Option<NotePlace>,
    /// The first port of power management.
    #[serde(default)]
    power_management: u16,
}

impl Default for FwCfg {
    /// A device with no items but those that say what it is.
    fn default() -> FwCfg {
        let mut fw_cfg = FwCfg {
            items: BTreeMap::new(),
            files: vec![],
            after_reset: BTreeMap::new(),
            note: None,
            with_ports: None,
            state: State::default(),
        };
        fw_cfg.set(key::SIGNATURE, b"QEMU".to_vec());
        fw_cfg.set(key::INTERFACES, INTERFACES.to_le_bytes().to_vec());
        fw_cfg.set(key::DIRECTORY, 0u32.to_be_bytes().to_vec());
        fw_cfg
    }
}

impl FwCfg {
    /// Gives the item of that key its contents.
    pub fn set(&mut self, key: u16, contents: Vec<u8>) {
        self.share(key, Arc::new(contents));
    }

    /// The same where the contents are somebody else's, too.
    pub fn share(&mut self, key: u16, contents: Arc<dyn AsRef<[u8]> + Send + Sync>) {
        self.items.insert(key, Contents(contents));
    }

    /// There is a file of that name.
    pub fn has_file(&self, name: &str) -> bool {
        self.files.iter().any(|file| file == name)
    }

    /// Adds a file.
    ///
    /// # Panics
    /// When the name has more than 55 bytes or is there already, or there are [`FILES_MAX`] files: mistakes of whoever builds
    /// a machine.
    pub fn add_file(&mut self, name: &str, contents: Vec<u8>) {
        assert!(name.len() < NAME_LEN, "{name} is too long for the directory");
        assert!(!self.has_file(name), "{name} is there twice");
        assert!(self.files.len() < FILES_MAX, "there is no room for {name}");
        self.set(key::FIRST_FILE + self.files.len() as u16, contents);
        self.files.push(name.to_owned());
        let mut directory = (self.files.len() as u32).to_be_bytes().to_vec();
        for (key, name) in (key::FIRST_FILE..).zip(&self.files) {
            directory.extend((self.item(key).len() as u32).to_be_bytes());
            directory.extend(key.to_be_bytes());
            directory.extend([0, 0]);
            directory.extend(name.as_bytes());
            directory.resize(directory.len() + NAME_LEN - name.len(), 0);
        }
        self.set(key::DIRECTORY, directory);
    }

    /// Adds a file whose contents are other ones after the first reset of the machine. The shorter contents end in zeros.
    ///
    /// # Panics
    /// As [`FwCfg::add_file`].
    pub fn add_changing_file(&mut self, name: &str, mut first: Vec<u8>, mut then: Vec<u8>) {
        let len = first.len().max(then.len());
        first.resize(len, 0);
        then.resize(len, 0);
        self.add_file(name, first);
        let key = key::FIRST_FILE + (self.files.len() - 1) as u16;
        self.after_reset.insert(key, Contents(Arc::new(then)));
    }

    /// Adds a file in which the guest says where its note for debuggers is, from which they learn how the data of its
    /// kernel are laid out. Linux has a driver for it.
    ///
    /// # Panics
    /// As [`FwCfg::add_file`].
    pub fn add_note(&mut self) {
        let mut place = NotePlace::default();
        place[..2].copy_from_slice(&NOTE_OF_ELF.to_le_bytes());
        self.add_file(NOTE_FILE, place.to_vec());
        self.note = Some(key::FIRST_FILE + (self.files.len() - 1) as u16);
    }

    /// Adds a file in which the four bytes at each of `places` are the number of a port of power management, counted
    /// from the first of these ports. The guest finds numbers that count from 0.
    ///
    /// # Panics
    /// As [`FwCfg::add_file`], and when a place is not in the file, or there is such a file already.
    pub fn add_file_with_ports(&mut self, name: &str, contents: Vec<u8>, places: Vec<usize>) {
        assert!(self.with_ports.is_none(), "{name} is not the only file with ports");
        assert!(places.iter().all(|place| place + 4 <= contents.len()), "no number in {name}");
        self.add_file(name, contents.clone());
        let key = key::FIRST_FILE + (self.files.len() - 1) as u16;
        self.with_ports = Some(WithPorts { key, contents, places });
    }

    /// Gives the file with ports the numbers that they have now.
    fn name_ports(&mut self) {
        let Some(WithPorts { key, contents, places }) = &self.with_ports else { return };
        let (key, mut contents) = (*key, contents.clone());
        let first = u32::from(self.state.power_management);
        for place in places {
            let number = &mut contents[*place..][..4];
            let port = first + u32::from_le_bytes(number.try_into().expect("four bytes"));
            number.copy_from_slice(&port.to_le_bytes());
        }
        self.set(key, contents);
    }

    /// The ports at which the board attaches the device.
    pub fn ports(&self) -> [PortRange; 2] {
        [PortRange::new(SELECTOR_PORT, 2), PortRange::new(DMA_HIGH_PORT, 8)]
    }

    /// The contents of an item; none for one that does not exist.
    fn item(&self, key: u16) -> &[u8] {
        if let (Some(place), true) = (&self.state.note, self.note == Some(key)) {
            return place;
        }
        let changed = self.after_reset.get(&key).filter(|_| self.state.was_reset);
        changed.or_else(|| self.items.get(&key)).map_or(&[], Contents::bytes)
    }

    /// What is left of the selected item.
    fn rest(&self) -> &[u8] {
        self.item(self.state.key).get(self.state.offset as usize..).unwrap_or_default()
    }

    fn select(&mut self, key: u16) {
        self.state.key = key;
        self.state.offset = 0;
    }

    fn skip(&mut self, bytes: u32) {
        self.state.offset = self.state.offset.saturating_add(bytes);
    }

    /// The next byte; 0 behind the end.
    fn read_byte(&mut self) -> u8 {
        let byte = self.rest().first().copied().unwrap_or(0);
        self.skip(1);
        byte
    }

    /// Does what the descriptor at `descriptor` says: control, length and address, big-endian.
    fn transfer(&mut self, memory: &mut Memory, descriptor: u64) {
        let mut fields = [0; 16];
        memory.read(descriptor, &mut fields);
        let DmaCommand { control, length, address } = DmaCommand::from_bytes(fields);
        if control & DMA_SELECT != 0 {
            self.select((control >> 16) as u16);
        }
        let mut result = 0;
        if control & DMA_READ != 0 {
            // More than all of memory is a mistake, and would only take long.
            if u64::from(length) <= memory.size() {
                self.read_to(memory, address, length);
            } else {
                result = DMA_ERROR;
            }
        } else if control & DMA_WRITE != 0 {
            if self.write_from(memory, address, length).is_none() {
                result = DMA_ERROR;
            }
        } else if control & DMA_SKIP != 0 {
            self.skip(length);
        }
        memory.write(descriptor, &u32::to_be_bytes(result));
    }

    /// Writes `length` bytes at `address` to the selected item. Returns None if they do not fit there, or if the item is
    /// read-only.
    fn write_from(&mut self, memory: &Memory, address: u64, length: u32) -> Option<()> {
        let mut place = NotePlace::default();
        let key = self.note.filter(|key| *key == self.state.key)?;
        place.copy_from_slice(self.item(key));
        let start = self.state.offset as usize;
        memory.read(address, place.get_mut(start..start.checked_add(length as usize)?)?);
        self.state.note = Some(place);
        self.skip(length);
        Some(())
    }

    /// Reads `length` bytes to `address`, zeros where the item has ended.
    fn read_to(&mut self, memory: &mut Memory, address: u64, length: u32) {
        const ZEROS: [u8; 4096] = [0; 4096];
        let rest = self.rest();
        let there = rest.len().min(length as usize);
        memory.write(address, &rest[..there]);
        let mut written = there as u64;
        while written < u64::from(length) {
            let len = (u64::from(length) - written).min(ZEROS.len() as u64);
            memory.write(address.wrapping_add(written), &ZEROS[..len as usize]);
            written += len;
        }
        self.skip(length);
    }
}

impl Device for FwCfg {
    fn id(&self) -> DeviceId {
        DeviceId::FW_CFG
    }

    fn reset(&mut self, _: &mut Context<'_>) {
        self.state = State { is_on: true, was_reset: self.state.is_on, ..State::default() };
        self.name_ports();
    }

    /// Takes [`DeviceInput::PowerManagement`].
    fn input(&mut self, _: &mut Context<'_>, input: DeviceInput) {
        if let DeviceInput::PowerManagement { port } = input {
            self.state.power_management = port;
            self.name_ports();
        }
    }

    fn read_port(&mut self, _: &mut Context<'_>, port: u16, width: Width) -> u32 {
        bytewise::read(port, width, |port| match port {
            DATA_PORT => self.read_byte(),
            DMA_HIGH_PORT.. => {
                let index = usize::from(port - DMA_HIGH_PORT);
                DMA_SIGNATURE.get(index).copied().unwrap_or(0xff)
            }
            _ => 0xff,
        })
    }

    fn write_port(&mut self, context: &mut Context<'_>, port: u16, width: Width, value: u32) {
        match (port, width) {
            (SELECTOR_PORT, Width::Word) => self.select(value as u16),
            (DMA_HIGH_PORT, Width::Dword) => self.state.dma_high = value.swap_bytes(),
            (DMA_LOW_PORT, Width::Dword) => {
                let high = std::mem::take(&mut self.state.dma_high);
                let address = u64::from(high) << 32 | u64::from(value.swap_bytes());
                self.transfer(context.memory, address);
            }
            _ => {}
        }
    }

    /// Returns the place of a note of ELF.
    fn note(&self) -> Option<(u64, u32)> {
        let place = self.state.note?;
        let is_elf = place[2..4] == NOTE_OF_ELF.to_le_bytes();
        let (len, address) = (place[4..8].try_into().ok()?, place[8..].try_into().ok()?);
        is_elf.then(|| (u64::from_le_bytes(address), u32::from_le_bytes(len)))
    }

    fn save(&self) -> SavedState {
        SavedState::new(self.name(), VERSION, &self.state)
    }

    fn restore(&mut self, saved: &SavedState) -> Result<(), RestoreError> {
        self.state = saved.load(self.name(), VERSION)?;
        self.name_ports();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::hammer::{blows, hammer};
    use ring3_core::device::TestBench;

    const DESCRIPTOR: u64 = 0x1000;
    const BUFFER: u64 = 0x2000;

    fn machine() -> (TestBench, FwCfg) {
        let mut fw_cfg = FwCfg::default();
        fw_cfg.set(key::PROCESSORS, vec![1, 0]);
        fw_cfg.add_file("etc/e820", vec![1, 2, 3]);
        fw_cfg.add_file("bootorder", b"/rom@genroms\0".to_vec());
        (TestBench::default(), fw_cfg)
    }

    fn select(bench: &mut TestBench, fw_cfg: &mut FwCfg, key: u16) {
        fw_cfg.write_port(&mut bench.context(), SELECTOR_PORT, Width::Word, key.into());
    }

    fn read<const N: usize>(bench: &mut TestBench, fw_cfg: &mut FwCfg) -> [u8; N] {
        [(); N].map(|()| bench.read(fw_cfg, DATA_PORT))
    }

    #[test]
    fn a_file_changes_when_the_machine_is_reset_and_not_at_power_on() {
        let (mut bench, mut fw_cfg) = machine();
        fw_cfg.add_changing_file("once", b"cd".to_vec(), b"disk".to_vec());
        let mut contents = || {
            fw_cfg.reset(&mut bench.context());
            select(&mut bench, &mut fw_cfg, key::FIRST_FILE + 2);
            read::<4>(&mut bench, &mut fw_cfg)
        };
        assert_eq!([contents(), contents(), contents()], [*b"cd\0\0", *b"disk", *b"disk"]);
        let mut restored = fw_cfg.clone();
        restored.reset(&mut bench.context());
        restored.restore(&fw_cfg.save()).unwrap();
        select(&mut bench, &mut restored, key::FIRST_FILE + 2);
        assert_eq!(&read::<4>(&mut bench, &mut restored), b"disk");
    }

    #[test]
    fn a_file_names_the_ports_of_power_management() {
        let (mut bench, mut fw_cfg) = machine();
        fw_cfg.add_file_with_ports("table", vec![1, 0, 0, 0, 0xaa, 4, 0, 0, 0], vec![0, 5]);
        let table = |fw_cfg: &mut FwCfg, bench: &mut TestBench| {
            select(bench, fw_cfg, key::FIRST_FILE + 2);
            read::<9>(bench, fw_cfg)
        };
        assert_eq!(table(&mut fw_cfg, &mut bench), [1, 0, 0, 0, 0xaa, 4, 0, 0, 0]);
        let mut other = fw_cfg.clone();
        fw_cfg.input(&mut bench.context(), DeviceInput::PowerManagement { port: 0xb0fe });
        let moved = [0xff, 0xb0, 0, 0, 0xaa, 2, 0xb1, 0, 0];
        assert_eq!(table(&mut fw_cfg, &mut bench), moved);
        other.restore(&fw_cfg.save()).unwrap();
        assert_eq!(table(&mut other, &mut bench), moved);
        other.reset(&mut bench.context());
        assert_eq!(table(&mut other, &mut bench), [1, 0, 0, 0, 0xaa, 4, 0, 0, 0]);
    }

    /// Runs a DMA descriptor and returns what its control field is afterwards.
    fn dma(bench: &mut TestBench, fw_cfg: &mut FwCfg, control: u32, length: u32) -> u32 {
        let mut fields = [control.to_be_bytes(), length.to_be_bytes()].concat();
        fields.extend(BUFFER.to_be_bytes());
        bench.memory.write(DESCRIPTOR, &fields);
        fw_cfg.write_port(&mut bench.context(), DMA_HIGH_PORT, Width::Dword, 0);
        let low = (DESCRIPTOR as u32).swap_bytes();
        fw_cfg.write_port(&mut bench.context(), DMA_LOW_PORT, Width::Dword, low);
        u32::from_be_bytes(bench.memory.load(DESCRIPTOR as usize))
    }

    #[test]
    fn the_guest_says_where_its_note_is() {
        let (mut bench, mut fw_cfg) = machine();
        fw_cfg.add_note();
        let key = key::FIRST_FILE + 2;
        select(&mut bench, &mut fw_cfg, key);
        assert_eq!(read(&mut bench, &mut fw_cfg), [1, 0, 0, 0]);
        let place = [1, 0, 1, 0, 24, 4, 0, 0, 0, 0x50, 0x23, 1, 0, 0, 0, 0];
        bench.memory.write(BUFFER, &place);
        let write = u32::from(key) << 16 | DMA_SELECT | DMA_WRITE;
        assert_eq!(fw_cfg.note(), None);
        assert_eq!(dma(&mut bench, &mut fw_cfg, write, 16), 0);
        assert_eq!(fw_cfg.note(), Some((0x123_5000, 0x418)));
        select(&mut bench, &mut fw_cfg, key);
        assert_eq!(read(&mut bench, &mut fw_cfg), place);
        let mut other = machine().1;
        other.add_note();
        other.restore(&fw_cfg.save()).unwrap();
        assert_eq!(other.note(), fw_cfg.note());
        // Too much, behind the end, and to an item that is read-only.
        assert_eq!(dma(&mut bench, &mut fw_cfg, write, 17), DMA_ERROR);
        assert_eq!(dma(&mut bench, &mut fw_cfg, DMA_WRITE, u32::MAX), DMA_ERROR);
        let other = u32::from(key::FIRST_FILE) << 16 | DMA_SELECT | DMA_WRITE;
        assert_eq!(dma(&mut bench, &mut fw_cfg, other, 1), DMA_ERROR);
        // Another kind of note, and a reset.
        bench.memory.write(BUFFER, &[0; 16]);
        assert_eq!(dma(&mut bench, &mut fw_cfg, write, 16), 0);
        assert_eq!(fw_cfg.note(), None);
        bench.memory.write(BUFFER, &place);
        assert_eq!(dma(&mut bench, &mut fw_cfg, write, 16), 0);
        fw_cfg.reset(&mut bench.context());
        assert_eq!(fw_cfg.note(), None);
    }

    #[test]
    fn items_are_read_byte_by_byte_and_zeros_follow() {
        let (mut bench, mut fw_cfg) = machine();
        select(&mut bench, &mut fw_cfg, key::INTERFACES);
        assert_eq!(read(&mut bench, &mut fw_cfg), [3, 0, 0, 0, 0, 0]);
        select(&mut bench, &mut fw_cfg, 0x8000);
        assert_eq!(read(&mut bench, &mut fw_cfg), [0, 0]);
    }

    #[test]
    fn the_directory_names_files() {
        let (mut bench, mut fw_cfg) = machine();
        select(&mut bench, &mut fw_cfg, key::DIRECTORY);
        assert_eq!(read(&mut bench, &mut fw_cfg), [0, 0, 0, 2]);
        assert_eq!(read(&mut bench, &mut fw_cfg), [0, 0, 0, 3, 0, 0x20, 0, 0]);
        let name: [u8; NAME_LEN] = read(&mut bench, &mut fw_cfg);
        assert!(name.starts_with(b"etc/e820\0") && name[8..].iter().all(|byte| *byte == 0));
        assert_eq!(read(&mut bench, &mut fw_cfg), [0, 0, 0, 13, 0, 0x21, 0, 0]);
    }

    #[test]
    fn dma_selects_skips_and_reads() {
        let (mut bench, mut fw_cfg) = machine();
        assert_eq!(dma(&mut bench, &mut fw_cfg, 0x21 << 16 | DMA_SELECT | DMA_SKIP, 1), 0);
        bench.memory.write(BUFFER, &[0xff; 32]);
        assert_eq!(dma(&mut bench, &mut fw_cfg, DMA_READ, 16), 0);
        assert_eq!(&bench.memory.load::<17>(BUFFER as usize), b"rom@genroms\0\0\0\0\0\xff");
        assert_eq!(bench.read(&mut fw_cfg, DATA_PORT), 0);
    }

    #[test]
    fn impossible_operations_are_errors() {
        let (mut bench, mut fw_cfg) = machine();
        assert_eq!(dma(&mut bench, &mut fw_cfg, 0x20 << 16 | DMA_SELECT | DMA_WRITE, 1), DMA_ERROR);
        assert_eq!(dma(&mut bench, &mut fw_cfg, DMA_READ, u32::MAX), DMA_ERROR);
        assert_eq!(dma(&mut bench, &mut fw_cfg, DMA_SKIP, u32::MAX), 0);
        assert_eq!(dma(&mut bench, &mut fw_cfg, DMA_SKIP, u32::MAX), 0);
        assert_eq!(bench.read(&mut fw_cfg, DATA_PORT), 0);
    }

    #[test]
    fn firmware_finds_the_dma_interface() {
        let (mut bench, mut fw_cfg) = machine();
        let halves = [DMA_HIGH_PORT, DMA_LOW_PORT]
            .map(|port| fw_cfg.read_port(&mut bench.context(), port, Width::Dword).to_le_bytes());
        assert_eq!(halves.as_flattened(), b"QEMU CFG");
    }

    proptest! {
        #[test]
        fn any_accesses_leave_a_state_that_can_be_saved(
            blows in blows(&[0x510, 0x511, 0x514, 0x515, 0x518]),
        ) {
            let (_, mut fw_cfg) = machine();
            let mut fresh = fw_cfg.clone();
            hammer(&mut fw_cfg, &mut fresh, blows);
        }

        #[test]
        fn any_descriptor_is_survived(control in any::<u32>(), length in any::<u32>()) {
            let (mut bench, mut fw_cfg) = machine();
            let result = dma(&mut bench, &mut fw_cfg, control, length);
            prop_assert!(result & !DMA_ERROR == 0);
        }
    }
}
