//! A run in a file: the machine at the beginning, and all inputs with the points at which they came in.
//!
//! The file is a sequence of CBOR items (RFC 8742): a header with [`FORMAT`], the version and the machine; the
//! inputs; and a mark for the end, without which the run was cut off. So it contains everything that a replay
//! needs, including the kernel and the data that were read from disks.
//!
//! The machine is a [`Config`] and the [`Software`] with which it is switched on, or a [`SavedMachine`] in the middle
//! of a run, whose contents of memory come before the inputs. Version 1 has only the former, version 2 only the latter,
//! and both have lists of numbers in the place of bytes from serial lines and disks.

use std::fmt::Debug;
use std::io::{self, BufRead, BufWriter, Read, Seek, SeekFrom, Write};

use ring3_core::device::DeviceId;
use ring3_core::disk::DiskError;
use ring3_core::input::StampedInput;
use ring3_core::memory::MemoryCopy;
use serde::{Deserialize, Serialize};
use serde_bytes::{ByteBuf, Bytes};
use thiserror::Error;

use crate::config::{Config, Software};
use crate::engines::EngineMaker;
use crate::machine::{SavedMachine, Vm, VmError};

/// The first field of the header.
pub const FORMAT: &str = "ring3 recording";
/// What a recording begins with: a map of three, and its first field (RFC 8949, 3.1).
const START: &[u8] = b"\xa3\x66format\x6fring3 recording";
/// The newest version.
pub const VERSION: u32 = 3;
/// Upper bound of the bytes of a part of memory.
const PART_MAX: usize = 1 << 20;

/// The reasons why a run cannot be recorded, or not be repeated from its recording.
#[derive(Debug, Error)]
pub enum RecordingError {
    /// It cannot be written.
    #[error("cannot write the recording: {0}")]
    Write(#[source] io::Error),
    /// It cannot be read.
    #[error("cannot read the recording: {0}")]
    Read(#[source] io::Error),
    /// What was read from a disk cannot be read again.
    #[error("what the guest has read from {0} cannot be read again: {1}")]
    Disk(DeviceId, #[source] DiskError),
    /// The file is something else.
    #[error("this is not a recording of ring3")]
    NotARecording,
    /// A newer version of this program wrote it.
    #[error("the recording has version {0}, but this program supports versions up to {VERSION}")]
    TooNew(u32),
    /// The contents of the file are not possible.
    #[error("the recording is damaged: {0}")]
    Damaged(String),
    /// The program that wrote it was cut off.
    #[error("the recording is incomplete and ends here")]
    CutOff,
}

/// The header.
#[derive(Serialize, Deserialize)]
struct Header<M> {
    format: String,
    version: u32,
    machine: M,
}

/// A machine that is switched on, by value or by reference.
#[derive(Debug, Serialize, Deserialize)]
struct Machine<C, S> {
    config: C,
    software: S,
}

/// The items that follow the header.
#[derive(Serialize, Deserialize)]
enum Item<I, B> {
    Input(I),
    End,
    /// Bytes of memory from this place on.
    Memory(u64, B),
    /// Memory is complete, and the run begins.
    Begin,
}

/// The machine at the beginning of a recording.
#[derive(Debug, Serialize, Deserialize)]
enum Beginning<P, M> {
    /// It is switched on.
    PowerOn(P),
    /// It goes on, with the contents of memory that follow.
    Moment(M),
}

/// Writes a recording.
pub struct RecordingWriter {
    out: BufWriter<Box<dyn Write>>,
    /// The first error, after which nothing more is written.
    error: Option<io::Error>,
}

impl Debug for RecordingWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RecordingWriter").field("error", &self.error).finish_non_exhaustive()
    }
}

impl RecordingWriter {
    /// Returns a recording of a machine with this configuration that is switched on with `software`.
    pub fn new(
        out: impl Write + 'static,
        config: &Config,
        software: &Software,
    ) -> Result<RecordingWriter, RecordingError> {
        let mut writer = RecordingWriter { out: BufWriter::new(Box::new(out)), error: None };
        writer.header(&Beginning::<_, ()>::PowerOn(Machine { config, software }));
        writer.take_error().map_or(Ok(writer), Err)
    }

    /// Returns a recording of a machine that goes on from `machine`, with these contents of memory.
    pub(crate) fn of_moment(
        out: Box<dyn Write>,
        machine: &SavedMachine,
        memory: &MemoryCopy,
    ) -> Result<RecordingWriter, RecordingError> {
        let mut writer = RecordingWriter { out: BufWriter::new(out), error: None };
        writer.header(&Beginning::<(), _>::Moment(machine));
        let (mut start, mut part) = (0, Vec::with_capacity(PART_MAX));
        for (place, page) in memory.pages() {
            if place != start + part.len() as u64 || part.len() + page.len() > PART_MAX {
                writer.memory(start, &part);
                part.clear();
                start = place;
            }
            part.extend_from_slice(page);
        }
        writer.memory(start, &part);
        writer.item(&Item::<StampedInput, ByteBuf>::Begin);
        writer.take_error().map_or(Ok(writer), Err)
    }

    fn header(&mut self, machine: &impl Serialize) {
        self.item(&Header { format: FORMAT.to_owned(), version: VERSION, machine });
    }

    fn memory(&mut self, start: u64, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.item(&Item::<StampedInput, &Bytes>::Memory(start, Bytes::new(bytes)));
        }
    }

    fn item(&mut self, item: &impl Serialize) {
        if self.error.is_some() {
            return;
        }
        self.error = match ciborium::into_writer(item, &mut self.out) {
            Ok(()) => None,
            Err(ciborium::ser::Error::Io(error)) => Some(error),
            Err(ciborium::ser::Error::Value(reason)) => Some(io::Error::other(reason)),
        };
    }

    /// Adds an input. [`RecordingWriter::take_error`] returns an error.
    pub(crate) fn write(&mut self, input: &StampedInput) {
        self.item(&Item::<_, ByteBuf>::Input(input));
    }

    /// Takes the error.
    pub(crate) fn take_error(&mut self) -> Option<RecordingError> {
        self.error.take().map(RecordingError::Write)
    }

    /// Notes that the run has ended.
    pub(crate) fn finish(mut self) -> Result<(), RecordingError> {
        self.item(&Item::<StampedInput, ByteBuf>::End);
        match self.error.take() {
            Some(error) => Err(RecordingError::Write(error)),
            None => self.out.flush().map_err(RecordingError::Write),
        }
    }
}

/// A file that is read in the order of its bytes, or from another place on.
trait Source: BufRead + Seek {}

impl<T: BufRead + Seek> Source for T {}

/// A file and the number of bytes before the next one that is read. (To ask the file takes a system call.)
struct Counted {
    source: Box<dyn Source>,
    position: u64,
}

impl Counted {
    fn go_to(&mut self, position: u64) -> io::Result<()> {
        self.position = self.source.seek(SeekFrom::Start(position))?;
        Ok(())
    }
}

impl Read for Counted {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let count = self.source.read(bytes)?;
        self.position += count as u64;
        Ok(count)
    }
}

/// A recording that is read. As an iterator it returns the inputs; after the last one of a run that was cut
/// off it returns [`RecordingError::CutOff`].
pub struct Recording {
    source: Counted,
    beginning: Beginning<Box<Machine<Config, Software>>, Box<SavedMachine>>,
    ended: bool,
}

impl Debug for Recording {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recording").field("beginning", &self.beginning).finish_non_exhaustive()
    }
}

impl Recording {
    /// Reads the header, which describes the machine.
    pub fn read(source: impl BufRead + Seek + 'static) -> Result<Recording, RecordingError> {
        let mut source = Counted { source: Box::new(source), position: 0 };
        let begins = source.source.fill_buf().map_err(RecordingError::Read)?.starts_with(START);
        let header = ciborium::from_reader(&mut source).map_err(|error| match error {
            ciborium::de::Error::Io(error) if error.kind() != io::ErrorKind::UnexpectedEof => {
                RecordingError::Read(error)
            }
            ciborium::de::Error::Io(_) if begins => RecordingError::CutOff,
            _ => RecordingError::NotARecording,
        });
        let header: Header<ciborium::Value> = header?;
        if header.format != FORMAT {
            return Err(RecordingError::NotARecording);
        }
        if header.version > VERSION {
            return Err(RecordingError::TooNew(header.version));
        }
        let beginning = match header.version {
            1 => header.machine.deserialized().map(Beginning::PowerOn),
            2 => header.machine.deserialized().map(Beginning::Moment),
            _ => header.machine.deserialized(),
        };
        let beginning = beginning.map_err(|error| RecordingError::Damaged(error.to_string()))?;
        Ok(Recording { source, beginning, ended: false })
    }

    /// Returns the configuration of the machine.
    pub fn config(&self) -> &Config {
        match &self.beginning {
            Beginning::PowerOn(machine) => &machine.config,
            Beginning::Moment(machine) => machine.config(),
        }
    }

    /// Returns the software with which it starts when it is switched on.
    pub fn software(&self) -> &Software {
        match &self.beginning {
            Beginning::PowerOn(machine) => &machine.software,
            Beginning::Moment(machine) => machine.software(),
        }
    }

    /// Makes the machine as it was at the beginning, to be run by `engine`. This must come before the first input
    /// is read.
    pub fn machine(&mut self, engine: impl EngineMaker) -> Result<Vm, VmError> {
        let mut vm = match &self.beginning {
            Beginning::PowerOn(machine) => {
                let Machine { config, software } = &**machine;
                return Vm::with_engine(config.clone(), software.clone(), engine);
            }
            Beginning::Moment(machine) => Vm::restore(machine, engine)?,
        };
        vm.fill_memory(|memory| self.fill(memory))?;
        Ok(vm)
    }

    /// Fills `memory`, which is all zero, with its contents at the beginning.
    fn fill(&mut self, memory: &mut [u8]) -> Result<(), RecordingError> {
        loop {
            match self.item()? {
                Item::Memory(start, bytes) => {
                    let start = usize::try_from(start).ok();
                    let range =
                        start.and_then(|start| Some(start..start.checked_add(bytes.len())?));
                    let there = range.and_then(|range| memory.get_mut(range));
                    let there = there.ok_or_else(|| {
                        RecordingError::Damaged("it has contents where no memory is".to_owned())
                    })?;
                    there.copy_from_slice(&bytes);
                }
                Item::Begin => return Ok(()),
                Item::Input(_) | Item::End => {
                    return Err(RecordingError::Damaged("it has no memory".to_owned()));
                }
            }
        }
    }

    /// Returns the place in the file of the next input.
    pub(crate) fn position(&self) -> u64 {
        self.source.position
    }

    /// Continues with the input at `position`, where [`Recording::position`] said that there is one.
    pub(crate) fn go_to(&mut self, position: u64) -> Result<(), RecordingError> {
        self.ended = false;
        self.source.go_to(position).map_err(RecordingError::Read)
    }

    fn item(&mut self) -> Result<Item<StampedInput, ByteBuf>, RecordingError> {
        if self.source.source.fill_buf().map_err(RecordingError::Read)?.is_empty() {
            return Err(RecordingError::CutOff);
        }
        ciborium::from_reader(&mut self.source).map_err(|error| match error {
            ciborium::de::Error::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                RecordingError::CutOff
            }
            ciborium::de::Error::Io(error) => RecordingError::Read(error),
            error => RecordingError::Damaged(error.to_string()),
        })
    }
}

impl Iterator for Recording {
    type Item = Result<StampedInput, RecordingError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let item = self.item();
        self.ended = !matches!(item, Ok(Item::Input(_)));
        match item {
            Ok(Item::Input(input)) => Some(Ok(input)),
            Ok(Item::End) => None,
            Ok(Item::Memory(..) | Item::Begin) => {
                let reason = "it has memory in the middle of the run".to_owned();
                Some(Err(RecordingError::Damaged(reason)))
            }
            Err(error) => Some(Err(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use ring3_core::clock::Time;
    use ring3_core::device::DeviceId;
    use ring3_core::input::{DeviceInput, Input};

    use super::*;
    use crate::config::Kernel;

    /// A file that can be read after it was written.
    #[derive(Clone, Default)]
    struct Shared(Rc<RefCell<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.borrow_mut().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn input(instructions: u64) -> StampedInput {
        let input = DeviceInput::Serial(b"ls\n".to_vec());
        let input = Input::Device { device: DeviceId::COM[0], input };
        StampedInput { instructions, time: Time::from_nanos(7), input }
    }

    /// Returns a recording with two inputs.
    fn recorded() -> Vec<u8> {
        let file = Shared::default();
        let kernel = Kernel { image: vec![1, 2, 3].into(), ..Kernel::default() };
        let mut writer =
            RecordingWriter::new(file.clone(), &config(), &Software::Kernel(kernel)).unwrap();
        writer.write(&input(5));
        writer.write(&input(9));
        writer.finish().unwrap();
        file.0.take()
    }

    fn config() -> Config {
        Config { memory_bytes: 1 << 20, deterministic: true, ..Config::default() }
    }

    fn read(bytes: &[u8]) -> Result<Recording, RecordingError> {
        Recording::read(io::Cursor::new(bytes.to_vec()))
    }

    #[test]
    fn a_recording_is_read_as_it_was_written() {
        let recording = read(&recorded()).unwrap();
        assert_eq!(recording.config(), &config());
        assert_eq!(recording.software().kernel().unwrap().image, vec![1, 2, 3].into());
        let inputs: Vec<_> = recording.map(Result::unwrap).collect();
        assert_eq!(inputs, [input(5), input(9)]);
    }

    #[test]
    fn recordings_of_earlier_versions_are_read() {
        let image = vec![0xf4; 64 << 10];
        let software = Software::Firmware { image, video: None, kernel: None };
        let config = config();
        let saved = Vm::new(config.clone(), software.clone()).unwrap().save_without_contents();
        for version in [1, 2] {
            let mut bytes = Vec::new();
            let header = |machine| Header { format: FORMAT.to_owned(), version, machine };
            let machine = match version {
                1 => ciborium::Value::serialized(&Machine { config: &config, software: &software }),
                _ => ciborium::Value::serialized(&saved),
            };
            ciborium::into_writer(&header(machine.unwrap()), &mut bytes).unwrap();
            let item = Item::<_, ByteBuf>::Input(input(5));
            ciborium::into_writer(&item, &mut bytes).unwrap();
            ciborium::into_writer(&Item::<StampedInput, ByteBuf>::End, &mut bytes).unwrap();
            let recording = read(&bytes).unwrap();
            assert_eq!(recording.config(), &config);
            assert_eq!(recording.map(Result::unwrap).collect::<Vec<_>>(), [input(5)]);
        }
    }

    #[test]
    fn a_recording_is_read_again_from_any_input() {
        let mut recording = read(&recorded()).unwrap();
        let mut positions = vec![recording.position()];
        while recording.next().is_some() {
            positions.push(recording.position());
        }
        for (position, count) in positions.into_iter().zip([2, 1, 0]) {
            recording.go_to(position).unwrap();
            let rest: Vec<_> = recording.by_ref().map(Result::unwrap).collect();
            assert_eq!(rest, [input(5), input(9)][2 - count..]);
        }
    }

    #[test]
    fn a_recording_that_was_cut_off_anywhere_is_recognized() {
        let bytes = recorded();
        let whole = |bytes: &[u8]| read(bytes).unwrap().flatten().count();
        let mut lengths = Vec::new();
        for len in 0..bytes.len() {
            let recording = match read(&bytes[..len]) {
                Ok(recording) => recording,
                Err(error) => {
                    assert!(lengths.is_empty(), "the header was whole before");
                    let begins = len >= START.len();
                    assert_eq!(matches!(error, RecordingError::CutOff), begins, "{len}: {error}");
                    continue;
                }
            };
            lengths.push(whole(&bytes[..len]));
            assert!(matches!(recording.last(), Some(Err(RecordingError::CutOff))), "{len}");
        }
        assert!(lengths.is_sorted());
        assert_eq!((lengths[0], lengths.last()), (0, Some(&2)));
    }

    #[test]
    fn a_file_that_is_not_a_recording_is_refused() {
        assert!(matches!(read(b""), Err(RecordingError::NotARecording)));
        assert!(matches!(read(b"hello"), Err(RecordingError::NotARecording)));
        let header = |format: &str, version| {
            let mut bytes = Vec::new();
            let header = Header { format: format.to_owned(), version, machine: 1 };
            ciborium::into_writer(&header, &mut bytes).unwrap();
            read(&bytes).unwrap_err()
        };
        assert!(matches!(header("other", 1), RecordingError::NotARecording));
        assert!(matches!(header(FORMAT, 2), RecordingError::Damaged(_)));
        assert!(matches!(header(FORMAT, 3), RecordingError::Damaged(_)));
        assert!(matches!(header(FORMAT, 4), RecordingError::TooNew(4)));
        assert!(matches!(header(FORMAT, 1), RecordingError::Damaged(_)));
    }
}
