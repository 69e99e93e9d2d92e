//! The last seconds of a run: what is written is repeated as it was, and takes bounded memory.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use ring3_core::disk::{DiskError, DiskOperation, DiskRequest, SECTOR_SIZE};

use super::debugger::{COUNTING, Quits, config};
use super::file::File;
use super::*;
use crate::config::OnPanic;
use crate::drives::{Attachment, Drive, Empty};
use crate::machine::flight::{Archive, KeepLastError, Kept, LastOptions, Occasion};
use crate::recording::{Recording, RecordingError};

/// Everything that was written, with the occasions.
#[derive(Clone, Default)]
struct Files(Rc<RefCell<Vec<(Occasion, File)>>>);

impl Archive for Files {
    fn put(
        &mut self,
        occasion: &Occasion,
        write: &mut dyn FnMut(Box<dyn io::Write>) -> Result<(), RecordingError>,
    ) -> Result<Option<PathBuf>, KeepLastError> {
        let file = File::default();
        write(Box::new(file.clone())).unwrap();
        self.0.borrow_mut().push((occasion.clone(), file));
        Ok(Some("file".into()))
    }
}

const OPTIONS: LastOptions =
    LastOptions { time: Duration::from_millis(1), input_bytes: 1 << 30, read_bytes: 1 << 30 };

const ENGINES: [EngineChoice; 2] = [EngineChoice::Interpreter, EngineChoice::Auto];

fn machine(config: Config, code: &[u8], engine: EngineChoice) -> Vm {
    let kernel = Kernel { image: kernel_of(code).into(), ..Kernel::default() };
    Vm::with_engine(config, Software::Kernel(kernel), engine).unwrap()
}

/// Returns the recording in `file`, and a machine of it.
fn machine_of(file: &File, engine: EngineChoice) -> (Vm, Recording) {
    let mut recording = Recording::read(io::Cursor::new(file.contents())).unwrap();
    (recording.machine(engine).unwrap(), recording)
}

/// Asserts that the recording in `file` leads to where `vm` stands, on both engines.
#[track_caller]
fn assert_leads_to(file: &File, vm: &mut Vm) {
    for engine in ENGINES {
        let (mut again, recording) = machine_of(file, engine);
        let began = again.cpu.instructions;
        assert!(began > 0 && began < vm.cpu.instructions, "it begins after {began}");
        let ended = again.replay_from(recording, &mut Sent::default()).unwrap();
        assert_eq!((ended, again.cpu.instructions), (Ending::Quit, vm.cpu.instructions));
        assert_eq!(again.now(), vm.now());
        assert!(again.is_same(vm), "it is another one");
    }
}

/// Runs the counting guest, keeps its last seconds as `options` say, and writes them after a number of
/// checkpoints, when the machine stands still. Returns what was written, and the machine.
fn kept(
    config: Config,
    engine: EngineChoice,
    options: LastOptions,
    checkpoints: u64,
) -> (File, Vm) {
    let mut vm = machine(config, COUNTING, engine);
    let files = Files::default();
    vm.keep_last(options, Box::new(files.clone()));
    // More often than users would want it.
    vm.flight.as_mut().unwrap().nanos = options.time.as_nanos() as u64;
    let (sender, mut door) = door();
    thread::scope(|scope| {
        scope.spawn(move || {
            let quits = Quits(sender);
            let control = quits.0.control();
            while control.stats().unwrap().kept.unwrap().taken < checkpoints {
                thread::sleep(Duration::from_millis(1));
            }
            control.pause().unwrap();
            let kept = control.keep_last(None).unwrap();
            assert_eq!(kept.instructions.1, control.stats().unwrap().instructions);
        });
        assert_eq!(vm.run(&mut door, &mut Sent::default()).unwrap(), Ending::Quit);
    });
    let mut written = files.0.take();
    assert_eq!(written.len(), 1);
    (written.remove(0).1, vm)
}

#[test]
fn the_last_seconds_are_repeated_as_they_were() {
    for (deterministic, engine) in [false, true].into_iter().flat_map(|d| ENGINES.map(|e| (d, e))) {
        let config = Config { deterministic, memory_bytes: 32 << 20, ..config() };
        let time = Duration::from_millis(5);
        let options = LastOptions { time, input_bytes: 1 << 30, read_bytes: 1 << 30 };
        let (file, mut vm) = kept(config, engine, options, 5);
        assert_leads_to(&file, &mut vm);
        let Kept { taken, checkpoints, memory_bytes, .. } = vm.stats().kept.unwrap();
        assert!(taken >= 5 && checkpoints == 2, "{taken} taken, {checkpoints} kept");
        // The counting guest changes a few pages between the two.
        assert!((1..1 << 20).contains(&memory_bytes), "{memory_bytes} bytes");
    }
}

#[test]
fn inputs_take_no_more_memory_than_is_allowed() {
    let config = Config { memory_bytes: 32 << 20, ..config() };
    // Room for some hundred looks at the host's clock.
    let time = Duration::from_secs(3600);
    let options = LastOptions { time, input_bytes: 32 << 10, read_bytes: 1 << 30 };
    let (file, mut vm) = kept(config, EngineChoice::Auto, options, 8);
    assert_leads_to(&file, &mut vm);
    let kept = vm.stats().kept.unwrap();
    assert!(kept.checkpoints <= 3, "{kept:?}");
    assert!((16 << 10..=34 << 10).contains(&kept.most_input_bytes), "{kept:?}");
}

/// MOV ECX, n; LOOP to itself: takes some time. Then an IDT without entries, and UD2.
#[rustfmt::skip]
const TRIPLE_FAULT: &[u8] = &[
    0xb9, 0x00, 0x00, 0x40, 0x00, 0xe2, 0xfe, // MOV ECX, 400000h; LOOP to itself
    0x0f, 0x01, 0x1d, 0x20, 0x00, 0x10, 0x00, // LIDT [100020h]
    0x0f, 0x0b, //                               UD2
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, //             100020: an IDT of no bytes
];

/// The same loop; then it says at port 505h that it has failed, and halts for good.
#[rustfmt::skip]
const PANIC: &[u8] = &[
    0xb9, 0x00, 0x00, 0x40, 0x00, 0xe2, 0xfe, // MOV ECX, 400000h; LOOP to itself
    0x66, 0xba, 0x05, 0x05, 0xb0, 0x01, 0xee, // MOV DX, 505h; MOV AL, 1; OUT DX, AL
    0xfa, 0xf4, 0xeb, 0xfd, //                   CLI; HLT; JMP to the HLT
];

/// Returns what was written when `code` ran to its end.
fn written(config: Config, code: &[u8], engine: EngineChoice) -> (Ending, Vec<(Occasion, File)>) {
    let mut vm = machine(Config { ends_when_stuck: true, ..config }, code, engine);
    let files = Files::default();
    vm.keep_last(OPTIONS, Box::new(files.clone()));
    let (sender, mut door) = door();
    let mut events = sender.control().subscribe();
    let ending = vm.run(&mut door, &mut Sent::default()).unwrap();
    if config.on_panic.is_some() {
        let told = events.find(|event| matches!(event, Event::GuestFailed(..)));
        assert!(told.is_some());
    }
    (ending, files.0.take())
}

#[test]
fn a_failure_of_the_guest_is_an_occasion() {
    for (deterministic, engine) in [false, true].into_iter().flat_map(|d| ENGINES.map(|e| (d, e))) {
        let config = Config { deterministic, memory_bytes: 32 << 20, ..config() };
        // It ends there, and so does the replay.
        for (code, config, occasion, end) in [
            (
                TRIPLE_FAULT,
                Config { reboots: false, ..config.clone() },
                Occasion::Stopped,
                "triple fault",
            ),
            (
                PANIC,
                Config { on_panic: Some(OnPanic::End), ..config.clone() },
                Occasion::Panic,
                "Panicked",
            ),
        ] {
            let (ending, files) = written(config, code, engine);
            assert!(format!("{ending:?}").contains(end), "{ending:?}");
            let [(why, file)] = &files[..] else { panic!("{} files", files.len()) };
            assert_eq!(*why, occasion);
            for engine in ENGINES {
                let (mut again, recording) = machine_of(file, engine);
                let ended = again.replay_from(recording, &mut Sent::default()).unwrap();
                assert_eq!(format!("{ended:?}"), format!("{ending:?}"));
            }
        }
        // It goes on, and halts.
        let config = Config { on_panic: Some(OnPanic::Continue), ..config };
        let (ending, files) = written(config, PANIC, engine);
        assert!(matches!(ending, Ending::Stuck(_)), "{ending:?}");
        let occasions: Vec<_> = files.iter().map(|(occasion, _)| occasion.clone()).collect();
        assert_eq!(occasions, [Occasion::Panic, Occasion::Stopped]);
    }
}

/// A triple fault that starts the guest again is written before it does so.
#[test]
fn a_recording_ends_at_the_triple_fault() {
    for engine in ENGINES {
        let config = Config { memory_bytes: 32 << 20, ..config() };
        let mut vm = machine(config, TRIPLE_FAULT, engine);
        let files = Files::default();
        vm.keep_last(OPTIONS, Box::new(files.clone()));
        let (sender, mut door) = door();
        let control = sender.control();
        let waiter = thread::spawn(move || {
            while control.stats().unwrap().resets == 0 {
                thread::sleep(Duration::from_millis(1));
            }
            control.quit();
        });
        vm.run(&mut door, &mut Sent::default()).unwrap();
        waiter.join().unwrap();
        let files = files.0.take();
        let (occasion, file) = &files[0];
        assert_eq!(*occasion, Occasion::TripleFault);
        let (mut again, recording) = machine_of(file, engine);
        let ended = again.replay_from(recording, &mut Sent::default()).unwrap();
        assert_eq!((ended, again.stats.resets), (Ending::Quit, 1));
        let end = again.cpu.instructions;
        // One instruction before, it is about to execute UD2.
        let (mut again, recording) = machine_of(file, engine);
        assert_eq!(again.replay_to_count(recording, end - 1, &mut Sent::default()).unwrap(), None);
        assert_eq!(again.cpu.ip, 0x10_000e);
    }
}

#[test]
fn a_recording_that_was_cut_off_is_recognized() {
    let config = Config { deterministic: true, memory_bytes: 32 << 20, ..config() };
    let options = LastOptions { time: Duration::from_millis(20), ..OPTIONS };
    let (file, _) = kept(config, EngineChoice::Interpreter, options, 2);
    let whole = file.contents();
    for len in [whole.len() / 2, whole.len() - whole.len() / 4, whole.len() - 30] {
        let recording = Recording::read(io::Cursor::new(whole[..len].to_vec()));
        let Ok(mut recording) = recording else { continue };
        let Ok(mut vm) = recording.machine(EngineChoice::Interpreter) else { continue };
        let error = vm.replay_from(recording, &mut Sent::default()).unwrap_err();
        assert!(matches!(error, VmError::Recording(RecordingError::CutOff)), "{error}");
    }
}

/// A disk in memory that changes only here.
#[derive(Debug)]
struct Disk(Mutex<Vec<u8>>);

impl Drive for Disk {
    fn execute(&self, operation: &DiskOperation) -> Result<Vec<u8>, DiskError> {
        let mut bytes = self.0.lock().unwrap();
        let at = |sector: u64| sector as usize * SECTOR_SIZE;
        match operation {
            DiskOperation::Read { sector, count } => {
                let range = at(*sector)..at(*sector + u64::from(*count));
                return bytes.get(range).map(<[u8]>::to_vec).ok_or(DiskError::OutOfRange);
            }
            DiskOperation::Write { sector, data } => {
                bytes[at(*sector)..][..data.len()].copy_from_slice(data);
            }
            _ => {}
        }
        Ok(Vec::new())
    }

    fn changes_only_here(&self) -> bool {
        true
    }

    fn medium(&self) -> Option<Medium> {
        let sectors = (self.0.lock().unwrap().len() / SECTOR_SIZE) as u64;
        Some(Medium { sectors, read_only: false })
    }

    fn file(&self) -> Option<&Path> {
        None
    }
}

const DISK: DriveId = DriveId::new(DeviceId::IDE, 0);
const SECTORS: u64 = 100;

/// A machine with a disk whose reads are kept as places, with room for some of them.
fn with_disk(input_bytes: u64) -> (Vm, Arc<Disk>, Files) {
    let contents = (0..SECTORS as usize * SECTOR_SIZE).map(|index| (index / 7) as u8);
    let disk = Arc::new(Disk(Mutex::new(contents.collect())));
    let mut vm = machine(Config { memory_bytes: 32 << 20, ..config() }, COUNTING, ENGINES[0]);
    vm.drives.attach(DISK, Attachment::new(Arc::clone(&disk) as Arc<dyn Drive>));
    let files = Files::default();
    let options = LastOptions { time: Duration::from_secs(60), input_bytes, read_bytes: 64 << 10 };
    vm.keep_last(options, Box::new(files.clone()));
    vm.keep_checkpoint();
    (vm, disk, files)
}

/// Lets a device ask for `operation`, and get the answer, which is returned.
fn ask(vm: &mut Vm, tag: u64, operation: DiskOperation) -> Input {
    let request = DiskRequest { tag, operation };
    vm.note_request(DISK, &request);
    let answer = vm.drives.ask(DISK, request).unwrap();
    let input = Input::Device { device: DISK.device, input: DeviceInput::Disk(answer) };
    vm.take_input(input.clone());
    vm.keep_checkpoint();
    input
}

fn read(sector: u64, count: u32) -> DiskOperation {
    DiskOperation::Read { sector, count }
}

fn write(sector: u64, byte: u8, count: usize) -> DiskOperation {
    DiskOperation::Write { sector, data: vec![byte; count * SECTOR_SIZE] }
}

/// Writes what `vm` has kept, and returns the answers of the disk in it.
fn answers_in(vm: &mut Vm, files: &Files) -> Vec<Input> {
    vm.write_last(&Occasion::Asked(None)).unwrap();
    let (_, file) = files.0.borrow_mut().pop().unwrap();
    let (_, recording) = machine_of(&file, ENGINES[0]);
    let inputs = recording.map(|input| input.unwrap().input);
    let is_answer =
        |input: &Input| matches!(input, Input::Device { input: DeviceInput::Disk(_), .. });
    inputs.filter(is_answer).collect()
}

/// What was read is in a recording as it was, although the disk has changed since then, or is another one.
#[test]
fn what_was_read_is_read_again() {
    let (mut vm, disk, files) = with_disk(1 << 20);
    let mut said = Vec::new();
    let mut tags = 0..;
    let mut act = |vm: &mut Vm, operation| {
        said.push(ask(vm, tags.next().unwrap(), operation));
        said.clone()
    };
    act(&mut vm, read(3, 30));
    act(&mut vm, write(4, 1, 2));
    act(&mut vm, read(3, 30));
    act(&mut vm, read(90, 10));
    let kept = vm.kept_last().unwrap();
    assert_eq!((kept.checkpoints, kept.read_bytes), (2, 70 * 512), "a checkpoint came between");
    assert!(kept.input_bytes < 30 * 512, "{kept:?}");
    act(&mut vm, write(5, 2, 10));
    act(&mut vm, DiskOperation::Discard { sector: 80, count: 20 });
    act(&mut vm, read(90, 11));
    let expected = act(&mut vm, read(0, 6));
    assert!(answers_in(&mut vm, &files) == expected);
    assert!(answers_in(&mut vm, &files) == expected, "once more");
    // The disk gets shorter, and then another one takes its place.
    vm.note_new_medium(DISK);
    disk.0.lock().unwrap().truncate(20 * SECTOR_SIZE);
    act(&mut vm, read(3, 5));
    vm.note_new_medium(DISK);
    vm.drives.attach(DISK, Attachment::new(Arc::new(Empty)));
    let expected = act(&mut vm, read(3, 5));
    assert!(answers_in(&mut vm, &files) == expected);
}

/// Former contents take bounded memory as well.
#[test]
fn what_cannot_be_kept_is_not_in_a_recording() {
    let (mut vm, _disk, files) = with_disk(12 << 10);
    ask(&mut vm, 0, read(0, 30));
    ask(&mut vm, 1, write(0, 1, 8));
    assert_eq!(answers_in(&mut vm, &files).len(), 2);
    ask(&mut vm, 2, write(0, 1, 100));
    assert!(vm.kept_last().unwrap().input_bytes < 13 << 10);
    let last = ask(&mut vm, 3, read(1, 1));
    assert_eq!(answers_in(&mut vm, &files).last(), Some(&last));
}
