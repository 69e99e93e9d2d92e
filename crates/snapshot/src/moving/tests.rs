//! Machines that move, with guests that do nothing or write memory all the time.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use ring3_core::device::DeviceId;
use ring3_core::disk::{DiskOperation, DriveId, SECTOR_SIZE};
use ring3_core::input::Input;
use ring3_devices::ide::{DriveKind, DriveModel};
use ring3_disk::{Access, ImageFile, ImageOptions, Overlay};
use ring3_host::stream::Stream;
use ring3_vm::control::Status;
use ring3_vm::drives::{Attachment, Drive, DriveNames, ErrorPolicy, Limit, Limits, OnError};
use ring3_vm::{Config, EngineChoice, Software, Vm, door};

use super::*;
use crate::tests::{Nowhere, Running};

/// What comes of a machine at the other end.
type Came = Result<(Vm, bool), MoveError>;

const ENGINES: [EngineChoice; 2] = [EngineChoice::Interpreter, EngineChoice::Translator];

/// Firmware that fills 64 KiB of memory again and again, with another number each time.
fn busy() -> Software {
    let mut image = vec![0x90; 0x1_0000];
    // cld; mov ax, 3000; mov es, ax; again: inc eax; xor di, di; mov cx, 4000; rep stosd; jmp again
    let code = [
        0xfc, 0xb8, 0x00, 0x30, 0x8e, 0xc0, 0x66, 0x40, 0x31, 0xff, 0xb9, 0x00, 0x40, 0xf3, 0x66,
        0xab, 0xeb, 0xf4,
    ];
    image[..code.len()].copy_from_slice(&code);
    // jmp F000:0000
    image[0xfff0..0xfff5].copy_from_slice(&[0xea, 0x00, 0x00, 0x00, 0xf0]);
    Software::Firmware { image, video: None, kernel: None }
}

/// A machine with such firmware, whose disks are these.
fn machine(engine: EngineChoice, drives: Vec<Arc<dyn Drive>>) -> Running {
    Running::of(move || {
        let mut config = Config { memory_bytes: 8 << 20, display: true, ..Config::default() };
        for (drive, place) in drives.iter().zip(&mut config.ide) {
            let kind = DriveKind::Disk(drive.medium().unwrap());
            let (model, serial) = ("disk".to_owned(), String::new());
            *place = Some(DriveModel { kind, model, serial, trims: false });
        }
        let mut vm = Vm::with_engine(config, busy(), engine).unwrap();
        for (drive, unit) in drives.into_iter().zip(0..) {
            let at = DriveId::new(DeviceId::IDE, unit);
            let (limits, errors, names) = settings(unit);
            vm.attach_drive(at, Attachment { drive, names, limits, errors }).unwrap();
        }
        vm
    })
}

/// What people have set for the disk with this number.
fn settings(unit: u8) -> (Limits, ErrorPolicy, DriveNames) {
    let bytes_total = Limit { average: 1 << 30, max: 2 << 30 };
    let names = DriveNames {
        drive: Some(format!("drive{unit}")),
        node: Some(format!("node{unit}")),
        device: Some(format!("device{unit}")),
    };
    let errors = ErrorPolicy { read: OnError::Ignore, write: OnError::Stop };
    (Limits { bytes_total, ..Limits::default() }, errors, names)
}

fn disk(path: &Path) -> Arc<dyn Drive> {
    let options = ImageOptions { access: Access::ReadWrite, ..ImageOptions::default() };
    Arc::new(ImageFile::open(path, options).unwrap())
}

fn write(drive: &dyn Drive, sector: u64, byte: u8) {
    let data = vec![byte; SECTOR_SIZE];
    drive.execute(&DiskOperation::Write { sector, data }).unwrap();
}

fn read(drive: &dyn Drive, sector: u64) -> u8 {
    drive.execute(&DiskOperation::Read { sector, count: 1 }).unwrap()[0]
}

/// Receives the machine that comes to `incoming`.
fn receive(incoming: Incoming, engine: EngineChoice) -> Came {
    let arriving = incoming.accept(None)?;
    let mut vm = Vm::restore(arriving.machine(), engine)?;
    let runs = arriving.receive(&mut vm)?.take()?;
    Ok((vm, runs))
}

/// Waits at `place`, and receives what comes while `machine` goes to `to`. Returns how both ends see it.
fn move_to(
    machine: &Running,
    place: &Place,
    to: &Place,
    engine: EngineChoice,
) -> (Result<(), MoveError>, Arc<Progress>, Came) {
    let incoming = Incoming::at(place, || true).unwrap();
    let going = go(machine, to);
    let came = receive(incoming, engine);
    let (gone, progress) = going.join().unwrap();
    (gone, progress, came)
}

fn go(machine: &Running, place: &Place) -> JoinHandle<(Result<(), MoveError>, Arc<Progress>)> {
    let (control, place) = (machine.control.clone(), place.clone());
    thread::spawn(move || {
        let progress = Arc::new(Progress::default());
        assert!(progress.begin() && !progress.begin());
        let gone = depart(&control, &place, Parameters::default(), &progress);
        (gone, progress)
    })
}

/// Waits until the guest has executed more instructions than now.
#[track_caller]
fn assert_runs(machine: &Running) {
    let instructions = || machine.control.stats().unwrap().instructions;
    let before = instructions();
    let mut looks = 0;
    while instructions() == before {
        thread::sleep(Duration::from_millis(1));
        looks += 1;
        assert!(looks < 10_000, "the guest stands still");
    }
}

/// Asserts that the machine that has moved away and the one that has come are the same. Returns the latter.
#[track_caller]
fn assert_same(old: Running, came: (Vm, bool)) -> Vm {
    let (mut vm, runs) = came;
    assert_eq!(old.control.status(), Status::Moved);
    assert!(runs);
    // Nothing lets it go on.
    old.control.resume().unwrap();
    assert_eq!(old.control.status(), Status::Moved);
    let (expected, memory) = old.end();
    assert!(vm.fill_memory(|bytes| *bytes == memory[..]), "memory differs");
    assert!(vm.save() == expected, "the state differs");
    vm
}

#[test]
fn a_busy_machine_moves_between_both_engines() {
    let directory = tempfile::tempdir().unwrap();
    let socket = Place::Unix(directory.path().join("socket"));
    for (from, to) in ENGINES.into_iter().flat_map(|from| ENGINES.map(|to| (from, to))) {
        let old = machine(from, Vec::new());
        assert_runs(&old);
        let (gone, progress, came) = move_to(&old, &socket, &socket, to);
        gone.unwrap();
        let (stage, counts) = progress.look();
        assert_eq!((stage, counts.remaining), (Stage::Completed, 0));
        assert!(counts.normal > 16 && counts.zero > 1000 && counts.rounds >= 1, "{counts:?}");
        let mut vm = assert_same(old, came.unwrap());
        // It goes on.
        vm.announce();
        let before = vm.stats().instructions;
        let (sender, mut door) = door();
        let quits = thread::spawn(move || {
            thread::sleep(Duration::from_millis(20));
            sender.send(Input::Quit);
        });
        vm.run(&mut door, &mut Nowhere).unwrap();
        quits.join().unwrap();
        assert!(vm.stats().instructions > before);
    }
}

#[test]
fn a_machine_moves_by_tcp_and_by_a_file() {
    let directory = tempfile::tempdir().unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let tcp = Place::Tcp { host: "127.0.0.1".to_owned(), port };
    let old = machine(EngineChoice::Translator, Vec::new());
    let (gone, _, came) = move_to(&old, &tcp, &tcp, EngineChoice::Translator);
    gone.unwrap();
    assert_same(old, came.unwrap());
    let path = directory.path().join("file");
    let file = Place::File(path.clone());
    let old = machine(EngineChoice::Translator, Vec::new());
    // A file of that name stays until another one is complete.
    fs::write(&path, b"another").unwrap();
    let progress = Arc::new(Progress::default());
    assert!(progress.begin());
    progress.cancel();
    assert!(depart(&old.control, &file, Parameters::default(), &progress).is_err());
    assert_eq!(fs::read(&path).unwrap(), b"another");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    go(&old, &file).join().unwrap().0.unwrap();
    let incoming = Incoming::at(&file, || true).unwrap();
    assert_same(old, receive(incoming, EngineChoice::Interpreter).unwrap());
}

#[test]
fn disks_are_handed_over() {
    let directory = tempfile::tempdir().unwrap();
    let (raw, base) = (directory.path().join("raw"), directory.path().join("base"));
    for image in [&raw, &base] {
        fs::write(image, vec![0; 64 << 10]).unwrap();
    }
    let over: Arc<dyn Drive> = Arc::new(Overlay::open(&base, ImageOptions::default()).unwrap());
    let drives = vec![disk(&raw), over];
    write(&*drives[0], 3, 7);
    write(&*drives[1], 5, 9);
    let old = machine(EngineChoice::Interpreter, drives);
    let socket = Place::Unix(directory.path().join("socket"));
    let (gone, _, came) = move_to(&old, &socket, &socket, EngineChoice::Interpreter);
    gone.unwrap();
    let vm = assert_same(old, came.unwrap());
    let drives = vm.drives();
    for (unit, (info, _)) in (0..).zip(&drives) {
        assert_eq!((info.limits, info.errors, info.names.clone()), settings(unit));
    }
    assert_eq!(read(&*drives[0].1, 3), 7);
    assert_eq!(read(&*drives[1].1, 5), 9);
    write(&*drives[0].1, 4, 8);
    drop((vm, drives));
    assert_eq!(fs::read(&raw).unwrap()[4 * SECTOR_SIZE], 8);
    assert!(fs::read(&base).unwrap().iter().all(|byte| *byte == 0));
}

/// Passes at most `len` bytes on from the source to the target, and ends the connections then or when nothing
/// more comes. Returns the socket for the source.
fn cut(directory: &Path, target: &Place, len: usize) -> Place {
    let Place::Unix(target) = target.clone() else { panic!("it is a socket") };
    let path = directory.join(format!("cut-{len}"));
    let listener = UnixListener::bind(&path).unwrap();
    thread::spawn(move || {
        let mut source = listener.accept().unwrap().0;
        source.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        let mut target = UnixStream::connect(target).unwrap();
        let mut bytes = vec![0; 4096];
        let mut left = len;
        while left > 0 {
            let most = left.min(bytes.len());
            let Ok(count @ 1..) = source.read(&mut bytes[..most]) else { break };
            if target.write_all(&bytes[..count]).is_err() {
                break;
            }
            left -= count;
        }
    });
    Place::Unix(path)
}

#[test]
fn a_transfer_that_breaks_off_leaves_the_source_whole() {
    let directory = tempfile::tempdir().unwrap();
    let raw = directory.path().join("raw");
    fs::write(&raw, vec![0; 64 << 10]).unwrap();
    let old = machine(EngineChoice::Translator, vec![disk(&raw)]);
    assert_runs(&old);
    // How long a whole transfer is.
    let file = directory.path().join("file");
    let whole = machine(EngineChoice::Translator, Vec::new());
    go(&whole, &Place::File(file.clone())).join().unwrap().0.unwrap();
    whole.end();
    let len = fs::metadata(&file).unwrap().len() as usize;
    let target = Place::Unix(directory.path().join("target"));
    for len in [0, 10, 19, 25, 100, len / 4, len / 2, len - 100_000, usize::MAX] {
        let place = cut(directory.path(), &target, len);
        let (gone, progress, came) = move_to(&old, &target, &place, EngineChoice::Translator);
        let error = gone.unwrap_err();
        assert!(matches!(error, MoveError::Lost(_) | MoveError::Cut), "{len}: {error}");
        assert!(matches!(progress.look().0, Stage::Failed(_)));
        assert!(came.is_err());
        assert_eq!(old.control.status(), Status::Running);
        assert_runs(&old);
        let is_there = old.control.visit(|vm, _| vm.drives()[0].1.medium().is_some()).unwrap();
        assert!(is_there, "{len}: its disk is gone");
    }
    // Nobody is there; nobody wants to wait; and at last it moves after all.
    let (gone, _) = go(&old, &target).join().unwrap();
    assert!(gone.unwrap_err().to_string().contains("--incoming"));
    let progress = Arc::new(Progress::default());
    assert!(progress.begin());
    progress.cancel();
    let waiting = Incoming::at(&target, || true).unwrap();
    let gone = depart(&old.control, &target, Parameters::default(), &progress);
    assert!(matches!(gone, Err(MoveError::Cancelled)));
    assert_eq!(progress.look().0, Stage::Cancelled);
    drop(waiting);
    let (gone, _, came) = move_to(&old, &target, &target, EngineChoice::Translator);
    gone.unwrap();
    assert_same(old, came.unwrap());
}

/// Passes everything on between `source` and `target`, up to the word to go on, or with it and up to the answer.
fn lose(source: Stream, target: Stream, passes_word: bool) {
    let is_ready = Arc::new(AtomicBool::new(false));
    let pass = |mut from: Stream, mut to: Stream, ends: Box<dyn FnMut() -> bool + Send>| {
        let mut ends = ends;
        thread::spawn(move || {
            let mut bytes = vec![0; 4096];
            while let Ok(count @ 1..) = from.read(&mut bytes) {
                if ends() || to.write_all(&bytes[..count]).is_err() {
                    break;
                }
            }
            from.hang_up();
            to.hang_up();
        });
    };
    let (was_ready, mut answers) = (Arc::clone(&is_ready), 0);
    let clones = [&source, &target].map(|end| end.try_clone().unwrap());
    let [back, forth] = clones;
    // The first answer says that the target is ready, and the second that it goes on.
    let is_last_answer = move || {
        is_ready.store(true, Ordering::SeqCst);
        answers += 1;
        answers == 2
    };
    pass(target, back, Box::new(is_last_answer));
    pass(source, forth, Box::new(move || !passes_word && was_ready.load(Ordering::SeqCst)));
}

/// The target ends when it is ready, and before it reads the word to go on. Both ends are of one process here, so
/// that what is between them does not show.
#[test]
fn a_target_that_dies_before_it_has_the_machine_loses_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let raw = directory.path().join("raw");
    fs::write(&raw, vec![0; 64 << 10]).unwrap();
    let old = machine(EngineChoice::Translator, vec![disk(&raw)]);
    let [between, target] = ["between", "target"].map(|name| directory.path().join(name));
    let listener = UnixListener::bind(&between).unwrap();
    let there = target.clone();
    thread::spawn(move || {
        let source = Stream::from(OwnedFd::from(listener.accept().unwrap().0));
        lose(source, Stream::unix(&there).unwrap(), false);
    });
    let engine = EngineChoice::Translator;
    let (gone, _, came) = move_to(&old, &Place::Unix(target), &Place::Unix(between), engine);
    assert!(matches!(gone, Err(MoveError::Lost(_) | MoveError::Cut)), "{gone:?}");
    assert!(came.is_err());
    assert_eq!(old.control.status(), Status::Running);
    assert_runs(&old);
    assert!(old.control.visit(|vm, _| vm.drives()[0].1.medium().is_some()).unwrap());
    old.end();
}

/// The target has the machine, and what passes the bytes on loses its answer.
#[test]
fn a_source_in_doubt_stands_still() {
    let old = machine(EngineChoice::Interpreter, Vec::new());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let place = |port| Place::Tcp { host: "127.0.0.1".to_owned(), port };
    let between = place(listener.local_addr().unwrap().port());
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    thread::spawn(move || {
        let source = Stream::from(OwnedFd::from(listener.accept().unwrap().0));
        lose(source, Stream::tcp(("127.0.0.1", port)).unwrap(), true);
    });
    let (gone, progress, came) = move_to(&old, &place(port), &between, EngineChoice::Interpreter);
    let gone = gone.unwrap_err();
    assert!(matches!(gone, MoveError::InDoubt(_)), "{gone}");
    assert!(matches!(progress.look().0, Stage::Failed(_)));
    let (vm, runs) = came.unwrap();
    assert!(runs);
    assert_eq!(old.control.status(), Status::Paused);
    // Somebody finds out that it does not run there.
    drop(vm);
    old.control.resume().unwrap();
    assert_runs(&old);
    old.end();
}

#[test]
fn the_target_says_why_it_refuses() {
    let directory = tempfile::tempdir().unwrap();
    let raw = directory.path().join("raw");
    fs::write(&raw, vec![0; 64 << 10]).unwrap();
    let target = Place::Unix(directory.path().join("target"));
    let old = machine(EngineChoice::Interpreter, vec![disk(&raw)]);
    let incoming = Incoming::at(&target, || true).unwrap();
    let going = go(&old, &target);
    let refused = incoming.accept(Some(1 << 20)).map(drop).unwrap_err().to_string();
    assert!(going.join().unwrap().0.is_err());
    assert_eq!(
        refused,
        "the machine that comes has 8388608 bytes of memory instead of 1048576: start both with the same --memory"
    );
    // The disk is not there for the other end, but the source still has it.
    let incoming = Incoming::at(&target, || true).unwrap();
    let going = go(&old, &target);
    let arriving = incoming.accept(None).unwrap();
    let mut vm = Vm::restore(arriving.machine(), EngineChoice::Interpreter).unwrap();
    fs::rename(&raw, raw.with_extension("gone")).unwrap();
    assert!(arriving.receive(&mut vm).is_err());
    fs::rename(raw.with_extension("gone"), &raw).unwrap();
    let refused = going.join().unwrap().0.unwrap_err().to_string();
    let begins = refused.starts_with("the other end cannot take the machine: ");
    assert!(begins && refused.contains("raw"), "{refused}");
    assert_runs(&old);
    old.end();
}

#[test]
fn bad_transfers_end_in_one_line() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    let place = Place::File(path.clone());
    let old = machine(EngineChoice::Interpreter, Vec::new());
    go(&old, &place).join().unwrap().0.unwrap();
    old.end();
    let whole = fs::read(&path).unwrap();
    let refused = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        let incoming = Incoming::at(&place, || true).unwrap();
        let error = receive(incoming, EngineChoice::Interpreter).map(drop).unwrap_err().to_string();
        assert!(!error.contains('\n'), "{error}");
        error
    };
    let changed = |at: usize| {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        refused(&bytes)
    };
    assert_eq!(changed(0), "what comes is not a machine of ring3");
    assert!(changed(16).contains("version 3"), "{}", changed(16));
    for at in [20, 24, 28, 32, 1000, whole.len() / 2, whole.len() - 1] {
        assert!(changed(at).contains("damaged"), "{at}: {}", changed(at));
    }
    for len in [0, 10, 20, 31, 1000, whole.len() / 2, whole.len() - 1] {
        assert_eq!(refused(&whole[..len]), "the transfer ends before the machine is complete");
    }
}
