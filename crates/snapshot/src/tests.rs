//! Tests with a machine that does nothing but has memory and disks.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use ciborium::Value;
use proptest::prelude::*;
use ring3_block::{CreateOptions, Format, Image, OpenOptions};
use ring3_core::device::DeviceId;
use ring3_core::disk::{DiskOperation, DriveId};
use ring3_devices::ide::{DriveKind, DriveModel};
use ring3_disk::{Access, ImageFile, ImageOptions, Overlay};
use ring3_vm::drives::{Attachment, Drive, KeptDisk};
use ring3_vm::{
    Config, Console, Control, EngineChoice, Kernel, Module, SavedMachine, Software, Vm, door,
};

use super::*;
use crate::format::{HEADER_LEN, Header};

/// Firmware that fills 64 KiB of memory with its own bytes and then halts for ever.
fn firmware() -> Software {
    let mut image = vec![0x90; 0x1_0000];
    // cld; xor si, si; mov ds, F000; mov es, 3000; xor di, di; mov cx, 8000; rep movsw; cli; hlt
    let code = [
        0xfc, 0x31, 0xf6, 0xb8, 0x00, 0xf0, 0x8e, 0xd8, 0xb8, 0x00, 0x30, 0x8e, 0xc0, 0x31, 0xff,
        0xb9, 0x00, 0x80, 0xf3, 0xa5, 0xfa, 0xf4,
    ];
    image[..code.len()].copy_from_slice(&code);
    // jmp F000:0000
    image[0xfff0..0xfff5].copy_from_slice(&[0xea, 0x00, 0x00, 0x00, 0xf0]);
    Software::Firmware { image, video: None, kernel: None }
}

pub(crate) struct Nowhere;

impl Console for Nowhere {
    fn serial(&mut self, _port: u8, _bytes: &[u8]) -> std::io::Result<()> {
        Ok(())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A machine that runs in a thread, which returns its state and the contents of its memory at the end.
pub(crate) struct Running {
    pub(crate) control: Control,
    thread: JoinHandle<(SavedMachine, Vec<u8>)>,
}

impl Running {
    pub(crate) fn new(drives: Vec<Arc<dyn Drive>>) -> Running {
        Running::of(|| {
            let mut config = Config { memory_bytes: 2 << 20, ..Config::default() };
            for (drive, place) in drives.iter().zip(&mut config.ide) {
                let kind = DriveKind::Disk(drive.medium().unwrap());
                let (model, serial) = ("disk".to_owned(), String::new());
                *place = Some(DriveModel { kind, model, serial, trims: false });
            }
            let mut vm = Vm::with_engine(config, firmware(), EngineChoice::Interpreter).unwrap();
            for (drive, unit) in drives.into_iter().zip(0..) {
                let at = DriveId::new(DeviceId::IDE, unit);
                vm.attach_drive(at, Attachment::new(drive)).unwrap();
            }
            vm
        })
    }

    pub(crate) fn of(make: impl FnOnce() -> Vm + Send + 'static) -> Running {
        let (sender, mut door) = door();
        let thread = thread::spawn(move || {
            let mut vm = make();
            vm.run(&mut door, &mut Nowhere).unwrap();
            (vm.save(), vm.fill_memory(|memory| memory.to_vec()))
        });
        Running { control: sender.control(), thread }
    }

    /// Waits until the machine halts.
    pub(crate) fn halted(self) -> Running {
        while self.control.stats().unwrap().sleeps == 0 {
            thread::yield_now();
        }
        self
    }

    pub(crate) fn end(self) -> (SavedMachine, Vec<u8>) {
        self.control.quit();
        self.thread.join().unwrap()
    }
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_machine_is_the_same_after_saving() {
    let directory = tempfile::tempdir().unwrap();
    for compress in [false, true] {
        let file = directory.path().join(format!("saved-{compress}"));
        let machine = Running::new(Vec::new()).halted();
        let saved = save(&machine.control, &file, SaveOptions { compress }).unwrap();
        assert!((0x1_0000..0x10_0000).contains(&saved.memory), "{saved:?}");
        let (_, expected) = machine.end();
        let snapshot = Snapshot::open(&file).unwrap();
        snapshot.check().unwrap();
        assert_eq!(snapshot.memory().1, compress);
        for engine in [EngineChoice::Interpreter, EngineChoice::Translator] {
            let mut vm = Vm::restore(snapshot.machine(), engine).unwrap();
            snapshot.give_memory(&mut vm).unwrap();
            let memory = vm.fill_memory(|memory| memory.to_vec());
            assert!(memory == expected && memory[0x3_0000] == 0xfc);
            let with_contents = Vm::restore(&vm.save(), EngineChoice::Interpreter).unwrap().save();
            assert!(with_contents == vm.save());
        }
        assert_eq!(names(directory.path()).len(), 1 + usize::from(compress));
    }
}

/// Memory that is mapped from the file changes for one machine alone, whoever writes to it: here the engine's
/// code, then the guest.
#[test]
fn machines_from_one_file_change_only_their_own_memory() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("saved");
    let machine = Running::new(Vec::new()).halted();
    save(&machine.control, &file, SaveOptions::default()).unwrap();
    let (_, mut expected) = machine.end();
    let before = fs::read(&file).unwrap();
    let snapshot = Snapshot::open(&file).unwrap();
    let places: Vec<usize> =
        (0..expected.len()).step_by(0x1_2345).chain([expected.len() - 1]).collect();
    let flip = |memory: &mut [u8]| {
        for place in &places {
            memory[*place] ^= 0x5a;
        }
    };
    flip(&mut expected);
    for engine in [EngineChoice::Interpreter, EngineChoice::Translator] {
        let mut vms = [0, 1].map(|_| {
            let mut vm = Vm::restore(snapshot.machine(), engine).unwrap();
            snapshot.give_memory(&mut vm).unwrap();
            vm.fill_memory(flip);
            vm
        });
        for vm in &mut vms {
            assert!(vm.fill_memory(|memory| memory == expected));
        }
        drop(vms);
        snapshot.check().unwrap();
        assert!(fs::read(&file).unwrap() == before);
    }
}

/// Bytes that cannot be compressed.
fn noise(len: usize) -> Vec<u8> {
    let mut state = 1_u32;
    let next = || {
        state = state.wrapping_mul(0x9e37_79b1).wrapping_add(0x7f4a_7c15);
        (state >> 24) as u8
    };
    std::iter::repeat_with(next).take(len).collect()
}

/// A machine with a kernel that halts for ever, and a module of 3 MiB.
fn with_kernel() -> Vm {
    let (magic, has_addresses, start) = (0x1bad_b002_u32, 1_u32 << 16, 0x10_0000);
    let checksum = 0_u32.wrapping_sub(magic).wrapping_sub(has_addresses);
    let header = [magic, has_addresses, checksum, start, start, 0, 0, start + 32];
    let code = [header.map(u32::to_le_bytes).as_flattened(), &[0xfa, 0xf4]].concat();
    let module = Module { name: "module".to_owned(), contents: noise(3 << 20).into() };
    let kernel = Kernel { image: code.into(), modules: vec![module], command_line: String::new() };
    let config = Config { memory_bytes: 8 << 20, ..Config::default() };
    Vm::with_engine(config, Software::Kernel(kernel), EngineChoice::Interpreter).unwrap()
}

/// Makes the machine in `file`.
fn restore(file: &Path) -> (Snapshot, Vm) {
    let snapshot = Snapshot::open(file).unwrap();
    let mut vm = Vm::restore(snapshot.machine(), EngineChoice::Interpreter).unwrap();
    snapshot.give_memory(&mut vm).unwrap();
    (snapshot, vm)
}

/// Resets the machine, and ends it.
fn reset(vm: &mut Vm) -> Result<(), String> {
    let (sender, mut door) = door();
    let control = sender.control();
    let person = thread::spawn(move || {
        control.reset();
        control.quit();
    });
    let ended = vm.run(&mut door, &mut Nowhere).map(drop).map_err(|error| error.to_string());
    person.join().unwrap();
    ended
}

/// A damaged kernel or module does no harm before a reset, which shows that nobody has read it.
#[test]
fn the_kernel_and_its_files_are_read_at_a_reset() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("saved");
    for compress in [false, true] {
        let machine = Running::of(with_kernel).halted();
        save(&machine.control, &file, SaveOptions { compress }).unwrap();
        let (_, expected) = machine.end();
        let restored = || {
            let (snapshot, mut vm) = restore(&file);
            assert!(vm.fill_memory(|memory| memory == expected));
            (snapshot, vm)
        };
        let (snapshot, mut vm) = restored();
        snapshot.check().unwrap();
        assert_eq!(reset(&mut vm), Ok(()));
        assert!(vm.fill_memory(|memory| memory == expected));
        // A restored machine is saved with its files, which are still in the older file.
        let again = Running::of({
            let file = file.clone();
            move || restore(&file).1
        });
        save(&again.control, &file, SaveOptions { compress }).unwrap();
        again.end();
        assert_eq!(reset(&mut restored().1), Ok(()));

        let mut bytes = fs::read(&file).unwrap();
        let end_of_module = noise(3 << 20).split_off((3 << 20) - 64);
        let at = bytes.windows(64).rposition(|window| window == end_of_module).unwrap();
        bytes[at] ^= 1;
        fs::write(&file, bytes).unwrap();
        let (snapshot, mut vm) = restored();
        assert!(matches!(snapshot.check(), Err(OpenError::Damaged { .. })));
        let error = reset(&mut vm).unwrap_err();
        assert!(error.contains("is damaged") && error.lines().count() == 1, "{error}");
    }
}

/// Files of version 1 have the kernel in their index.
#[test]
fn a_file_of_version_1_is_read() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("saved");
    let machine = Running::of(with_kernel).halted();
    save(&machine.control, &file, SaveOptions::default()).unwrap();
    let (_, expected) = machine.end();
    let snapshot = Snapshot::open(&file).unwrap();
    let mut bytes = fs::read(&file).unwrap();
    let header = Header::of(bytes.first_chunk().unwrap()).unwrap().0;
    let index_at = header.index_at as usize;
    let mut index: Value = ciborium::from_reader(&bytes[index_at..]).unwrap();
    for (key, value) in index.as_map_mut().unwrap() {
        if key.as_text() == Some("machine") {
            *value = Value::serialized(snapshot.machine()).unwrap();
        }
    }
    index.as_map_mut().unwrap().retain(|(key, _)| key.as_text() != Some("files"));
    bytes.truncate(index_at);
    ciborium::into_writer(&index, &mut bytes).unwrap();
    let index_len = (bytes.len() - index_at) as u64;
    assert!(index_len > 3 << 20 && header.index_len < 1 << 16);
    let (file_len, index_crc) = (bytes.len() as u64, crc32fast::hash(&bytes[index_at..]));
    let header = Header { version: 1, file_len, index_len, index_crc, ..header };
    bytes[..HEADER_LEN].copy_from_slice(&header.bytes());
    fs::write(&file, bytes).unwrap();
    let (snapshot, mut vm) = restore(&file);
    snapshot.check().unwrap();
    assert_eq!(reset(&mut vm), Ok(()));
    assert!(vm.fill_memory(|memory| memory == expected));
}

#[test]
fn a_file_that_was_cut_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("saved");
    let machine = Running::new(Vec::new()).halted();
    save(&machine.control, &file, SaveOptions::default()).unwrap();
    let bytes = fs::read(&file).unwrap();
    for len in [0, 1, 4095, 4096, 5000, bytes.len() - 1] {
        fs::write(&file, &bytes[..len]).unwrap();
        let error = Snapshot::open(&file).unwrap_err();
        let is_named = error.to_string().contains(file.to_str().unwrap());
        assert!(
            is_named && matches!(error, OpenError::Other(_) | OpenError::Damaged { .. }),
            "{error}"
        );
    }
    fs::write(&file, [&bytes[..], b"more"].concat()).unwrap();
    assert!(matches!(Snapshot::open(&file), Err(OpenError::Damaged { .. })));
    let newer = [&bytes[..16], &9_u32.to_le_bytes(), &bytes[20..]].concat();
    fs::write(&file, newer).unwrap();
    assert!(matches!(Snapshot::open(&file), Err(OpenError::TooNew { found: 9, .. })));
    assert!(matches!(Snapshot::open(directory.path()), Err(OpenError::Read { .. })));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// A changed byte is noticed, or does not matter: there are unused bytes behind the header and between
    /// the parts.
    #[test]
    fn a_changed_file_is_refused(at in any::<prop::sample::Index>(), flip in 1..=255_u8, compress: bool) {
        static SAVED: std::sync::OnceLock<[(Vec<u8>, Vec<u8>); 2]> = std::sync::OnceLock::new();
        let saved = SAVED.get_or_init(|| [false, true].map(|compress| {
            let directory = tempfile::tempdir().unwrap();
            let file = directory.path().join("saved");
            let machine = Running::new(Vec::new()).halted();
            save(&machine.control, &file, SaveOptions { compress }).unwrap();
            let (_, memory) = machine.end();
            (fs::read(file).unwrap(), memory)
        }));
        let (bytes, expected) = &saved[usize::from(compress)];
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("saved");
        let mut changed = bytes.clone();
        changed[at.index(bytes.len())] ^= flip;
        fs::write(&file, changed).unwrap();
        if let Ok(snapshot) = Snapshot::open(&file) {
            let mut memory = vec![0; expected.len()];
            if snapshot.fill_memory(&mut memory).is_ok() {
                prop_assert!(memory == *expected);
            }
        }
    }
}

fn qcow2(directory: &Path) -> PathBuf {
    let path = directory.join("disk.qcow2");
    let options =
        CreateOptions { format: Format::Qcow2, size: 1 << 20, backing: None, specific: Vec::new() };
    ring3_block::create(&path, &options).unwrap().finish().unwrap();
    path
}

fn writable(path: &Path) -> Arc<dyn Drive> {
    let options = ImageOptions { access: Access::ReadWrite, ..ImageOptions::default() };
    Arc::new(ImageFile::open(path, options).unwrap())
}

fn snapshots_in(path: &Path) -> Vec<String> {
    let image = Image::open(path, &OpenOptions::default()).unwrap();
    image.snapshots().into_iter().map(|snapshot| snapshot.name).collect()
}

#[test]
fn a_qcow2_image_keeps_the_disk_of_that_moment() {
    let directory = tempfile::tempdir().unwrap();
    let (file, disk) = (directory.path().join("saved"), qcow2(directory.path()));
    let drive = writable(&disk);
    let write = |byte| DiskOperation::Write { sector: 3, data: vec![byte; 512] };
    drive.execute(&write(1)).unwrap();
    let machine = Running::new(vec![Arc::clone(&drive)]);
    save(&machine.control, &file, SaveOptions::default()).unwrap();
    drive.execute(&write(2)).unwrap();
    // Another machine in the same file takes the place of the first one, and of its snapshot.
    save(&machine.control, &file, SaveOptions::default()).unwrap();
    drive.execute(&write(3)).unwrap();
    let snapshot = Snapshot::open(&file).unwrap();
    let KeptDisk::InSnapshot(name) = snapshot.drives()[0].kept.clone() else { panic!() };
    assert_eq!(snapshot.drives()[0].file.as_deref(), Some(&*disk));
    drop((machine.end(), drive));
    assert_eq!(snapshots_in(&disk), std::slice::from_ref(&name));
    let shown = ImageOptions { shows: Some(name), ..ImageOptions::default() };
    let shown = ImageFile::open(&disk, shown).unwrap();
    let read = DiskOperation::Read { sector: 3, count: 1 };
    assert_eq!(shown.execute(&read), Ok(vec![2; 512]));
    drop(shown);
    snapshot.delete().unwrap();
    assert!(snapshots_in(&disk).is_empty() && !file.exists());
}

#[test]
fn a_running_machine_deletes_its_file() {
    let directory = tempfile::tempdir().unwrap();
    let (file, disk) = (directory.path().join("saved"), qcow2(directory.path()));
    let machine = Running::new(vec![writable(&disk)]);
    save(&machine.control, &file, SaveOptions::default()).unwrap();
    Snapshot::open(&file).unwrap().delete_with(&machine.control).unwrap();
    machine.end();
    assert!(snapshots_in(&disk).is_empty() && !file.exists());
}

#[test]
fn what_was_written_over_an_image_is_in_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let (file, disk) = (directory.path().join("saved"), directory.path().join("disk"));
    fs::write(&disk, vec![7; 1 << 20]).unwrap();
    let drive = Arc::new(Overlay::open(&disk, ImageOptions::default()).unwrap());
    drive.execute(&DiskOperation::Write { sector: 9, data: vec![1; 1024] }).unwrap();
    for compress in [false, true] {
        let machine = Running::new(vec![drive.clone()]);
        save(&machine.control, &file, SaveOptions { compress }).unwrap();
        let snapshot = Snapshot::open(&file).unwrap();
        let saved = &snapshot.drives()[0];
        assert_eq!((saved.written_bytes(), &saved.kept), (1024, &KeptDisk::UnderWrites(None)));
        let mut found = Vec::new();
        snapshot
            .written(saved, |sector, bytes| {
                found.push((sector, bytes));
                Ok(())
            })
            .unwrap();
        assert_eq!(found, [(9, vec![1; 1024])]);
    }
}

/// A machine that cannot be saved leaves an older file as it is, and nothing else behind.
#[test]
fn a_failure_loses_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let (file, raw) = (directory.path().join("saved"), directory.path().join("raw"));
    fs::write(&raw, vec![0; 1 << 20]).unwrap();
    fs::write(&file, "older").unwrap();
    let disk = qcow2(directory.path());
    let machine = Running::new(vec![writable(&disk), writable(&raw)]);
    let before = names(directory.path());
    let error = save(&machine.control, &file, SaveOptions::default()).unwrap_err().to_string();
    assert!(error.contains(raw.to_str().unwrap()) && error.contains("snapshot=on"), "{error}");
    let nowhere = directory.path().join("missing/saved");
    let error = save(&machine.control, &nowhere, SaveOptions::default()).unwrap_err().to_string();
    assert!(error.contains(nowhere.to_str().unwrap()), "{error}");
    // A name that is not a file's is not replaced.
    for other in [directory.path(), Path::new("/dev/null")] {
        let error = save(&machine.control, other, SaveOptions::default()).unwrap_err();
        assert!(matches!(error, SaveError::NotAFile(_)), "{error}");
    }
    machine.end();
    assert_eq!(names(directory.path()), before);
    assert_eq!(fs::read(&file).unwrap(), b"older");
    assert!(snapshots_in(&disk).is_empty());
}
