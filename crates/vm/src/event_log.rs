//! The event log: a line of text for each event of a machine, with the point at which it happened.
//!
//! ```text
//!      1024    0.000001024 input com1: 12 bytes "poweroff -f\n"
//!  31415926    0.031415926 interrupt 0x30
//! 100000000    0.100000000 checkpoint memory 6f2b4cd0911e07aa state 0d9e6b0c7f1a2233
//! ```
//!
//! The first column is the number of instructions executed, the second is virtual time in seconds. Looks at
//! the host's clock are left out. Two logs of the same deterministic run are equal, byte for byte.

use std::fmt::{self, Debug, Display, Formatter};
use std::hash::Hasher;
use std::io::{self, BufWriter, Write};
use std::num::NonZero;

use ring3_core::balloon::BalloonRequest;
use ring3_core::channel::ChannelEvent;
use ring3_core::clock::Time;
use ring3_core::device::DeviceId;
use ring3_core::input::{DeviceInput, HostClocks, Input};
use ring3_core::memory::{Memory, PAGE_SIZE};
use serde::Serialize;
use twox_hash::XxHash3_64;

use crate::machine::Ending;

/// Bytes of an input that are shown.
const SHOWN_BYTES: usize = 64;

/// Hashes (XXH3 of 64 bits) of a machine between two instructions. Equal machines have equal hashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Checkpoint {
    /// The hash of RAM and areas.
    pub memory: u64,
    /// The hash of everything else: processor, devices, virtual time and the map of memory.
    pub state: u64,
}

impl Checkpoint {
    /// Returns the hashes of a machine with this memory and, apart from memory, this state.
    ///
    /// # Panics
    /// When the state cannot be represented as CBOR. All states of a machine can.
    pub(crate) fn of(memory: &Memory, state: &impl Serialize) -> Checkpoint {
        let mut bytes = Vec::new();
        ciborium::into_writer(state, &mut bytes).expect("states serialize");
        Checkpoint { memory: hash_of(memory), state: hash(&bytes) }
    }
}

/// Hashes the pages that are not zero, with their places. To look at the others could take room of the host.
fn hash_of(memory: &Memory) -> u64 {
    let mut hasher = XxHash3_64::with_seed(0);
    let mut pages = memory.full_pages();
    for place in (0..pages.len()).step_by(PAGE_SIZE as usize) {
        if let Some(page) = pages.at(place) {
            hasher.write_usize(place);
            hasher.write(page);
        }
    }
    hasher.finish()
}

fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = XxHash3_64::with_seed(0);
    hasher.write(bytes);
    hasher.finish()
}

/// An event.
#[derive(Debug)]
pub(crate) enum LoggedEvent<'a> {
    /// An input comes in.
    Input(&'a Input),
    /// The processor takes an external interrupt with this vector.
    Interrupt(u8),
    /// The processor receives an NMI.
    Nmi,
    /// The machine is reset.
    Reset,
    /// The processor alone is reset.
    ProcessorReset,
    /// A checkpoint is due after this number of instructions.
    Checkpoint(Checkpoint),
    /// A card is removed.
    Unplug(DeviceId),
    /// The run ends.
    End(&'a Ending),
}

impl Display for LoggedEvent<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            LoggedEvent::Input(Input::Device { device, input }) => {
                write!(f, "input {device}: ")?;
                show_input(input, f)
            }
            LoggedEvent::Input(Input::HostTime { time, .. }) => {
                write!(f, "input host time {}", Seconds(*time))
            }
            LoggedEvent::Input(Input::HostClocks(clocks)) => {
                let HostClocks { time_stamp, seconds, microseconds } = clocks;
                write!(f, "input host clocks {seconds}.{microseconds:06} {time_stamp:016x}")
            }
            LoggedEvent::Input(Input::Plug { device, .. }) => {
                write!(f, "input {device} is inserted")
            }
            LoggedEvent::Input(Input::Reset) => f.write_str("input reset"),
            LoggedEvent::Input(Input::Nmi) => f.write_str("input nmi"),
            LoggedEvent::Input(Input::Checkpoint) => f.write_str("input checkpoint"),
            LoggedEvent::Input(Input::Quit) => f.write_str("input quit"),
            LoggedEvent::Interrupt(vector) => write!(f, "interrupt {vector:#04x}"),
            LoggedEvent::Nmi => f.write_str("nmi"),
            LoggedEvent::Reset => f.write_str("reset of the machine"),
            LoggedEvent::ProcessorReset => f.write_str("reset of the processor"),
            LoggedEvent::Checkpoint(Checkpoint { memory, state }) => {
                write!(f, "checkpoint memory {memory:016x} state {state:016x}")
            }
            LoggedEvent::Unplug(device) => write!(f, "{device} is removed"),
            LoggedEvent::End(ending) => {
                f.write_str("end: ")?;
                match ending {
                    Ending::PowerOff => f.write_str("the guest has switched the machine off"),
                    Ending::Quit => f.write_str("ended from outside"),
                    Ending::Exit(status) => write!(f, "the guest's status {status}"),
                    Ending::Reset => f.write_str("the guest has asked for a reset"),
                    Ending::Panicked => f.write_str("the guest's system has failed"),
                    Ending::Stopped(report) => f.write_str(report.reason()),
                    Ending::Stuck(_) | Ending::For64Bits => {
                        f.write_str("the guest has halted for good")
                    }
                    Ending::NothingToBoot => f.write_str("there is nothing to boot"),
                }
            }
        }
    }
}

/// Shows an input in one line, however long it is.
fn show_input(input: &DeviceInput, f: &mut Formatter<'_>) -> fmt::Result {
    match input {
        DeviceInput::Serial(bytes) if bytes.len() <= SHOWN_BYTES => {
            write!(f, "{} bytes \"{}\"", bytes.len(), bytes.escape_ascii())
        }
        DeviceInput::Serial(bytes) => {
            let first = &bytes[..SHOWN_BYTES];
            let (len, hash) = (bytes.len(), hash(bytes));
            write!(f, "{len} bytes \"{}\"... {hash:016x}", first.escape_ascii())
        }
        DeviceInput::Key { key, pressed } => {
            let what = if *pressed { "pressed" } else { "released" };
            write!(f, "key {:#x} {what}", key.0)
        }
        DeviceInput::Mouse(moved) => write!(f, "{moved:?}"),
        DeviceInput::Disk(answer) => match &answer.result {
            Ok(bytes) if bytes.is_empty() => write!(f, "request {} is done", answer.tag),
            Ok(bytes) => {
                let (len, hash) = (bytes.len(), hash(bytes));
                write!(f, "request {} is done, {len} bytes {hash:016x}", answer.tag)
            }
            Err(error) => write!(f, "request {} fails: {error:?}", answer.tag),
        },
        DeviceInput::Medium { unit, medium: Some(medium) } => {
            write!(f, "drive {unit} has a medium of {} sectors", medium.sectors)
        }
        DeviceInput::Medium { unit, medium: None } => write!(f, "drive {unit} is empty"),
        DeviceInput::EjectRequest { unit } => write!(f, "eject button of drive {unit}"),
        DeviceInput::Packet(packet) => {
            let (len, hash) = (packet.bytes.len(), hash(&packet.bytes));
            write!(f, "packet of {len} bytes {hash:016x}")
        }
        DeviceInput::Link(is_up) => write!(f, "link {}", if *is_up { "up" } else { "down" }),
        DeviceInput::Congestion(is_there) => {
            write!(f, "network {}", if *is_there { "congested" } else { "not congested" })
        }
        DeviceInput::CardAdded { slot } => write!(f, "card in slot {slot}"),
        DeviceInput::CardWanted { slot } => write!(f, "request to remove the card in slot {slot}"),
        DeviceInput::Channel { channel, event } => match event {
            // Only the guest's end says the latter.
            ChannelEvent::Opened | ChannelEvent::Heard => {
                write!(f, "client of channel {channel} comes")
            }
            ChannelEvent::Closed => write!(f, "client of channel {channel} goes"),
            ChannelEvent::Bytes(bytes) => write!(f, "channel {channel}, {} bytes", bytes.len()),
            ChannelEvent::Taken(count) => {
                write!(f, "client of channel {channel} has taken {count} bytes")
            }
        },
        DeviceInput::Balloon(BalloonRequest::Target { pages }) => {
            write!(f, "balloon should have {pages} pages")
        }
        DeviceInput::Balloon(BalloonRequest::Poll { seconds }) => {
            write!(f, "balloon statistics every {seconds} s")
        }
        DeviceInput::ExtraMemory { bytes } => {
            write!(f, "{} MiB should be there of the memory that comes and goes", bytes >> 20)
        }
        DeviceInput::PowerButton => f.write_str("power button"),
        DeviceInput::Generation(number) => {
            write!(f, "generation {:032x}", u128::from_le_bytes(*number))
        }
        DeviceInput::PowerManagement { port } => {
            write!(f, "power management is at port {port:#x}")
        }
    }
}

/// A time in seconds.
pub(crate) struct Seconds(pub(crate) Time);

impl Display for Seconds {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let nanos = self.0.as_nanos();
        write!(f, "{}.{:09}", nanos / 1_000_000_000, nanos % 1_000_000_000)
    }
}

/// An event log that is being written.
pub struct EventLog {
    out: BufWriter<Box<dyn Write>>,
    /// Number of instructions between checkpoints; None for no checkpoints.
    interval: Option<NonZero<u64>>,
    /// The count of instructions at the last checkpoint.
    last: u64,
    /// The first error, after which nothing more is written.
    error: Option<io::Error>,
}

impl Debug for EventLog {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventLog").field("interval", &self.interval).finish_non_exhaustive()
    }
}

impl EventLog {
    /// Returns a log that writes to `out`, with a checkpoint at each multiple of `interval` instructions, if
    /// it is given.
    pub fn new(out: impl Write + 'static, interval: Option<NonZero<u64>>) -> EventLog {
        EventLog { out: BufWriter::new(Box::new(out)), interval, last: 0, error: None }
    }

    /// Returns the number of instructions at which the next checkpoint is due.
    pub(crate) fn next_checkpoint(&self) -> Option<u64> {
        let interval = self.interval?.get();
        Some((self.last / interval).saturating_add(1).saturating_mul(interval))
    }

    /// Writes a line. [`EventLog::take_error`] returns an error.
    pub(crate) fn tell(&mut self, instructions: u64, time: Time, event: &LoggedEvent<'_>) {
        if let LoggedEvent::Checkpoint(_) = event {
            self.last = instructions;
        }
        if matches!(event, LoggedEvent::Input(Input::HostTime { .. })) || self.error.is_some() {
            return;
        }
        let time = Seconds(time).to_string();
        self.error = writeln!(self.out, "{instructions:>12} {time:>16} {event}").err();
    }

    /// Takes the error.
    pub(crate) fn take_error(&mut self) -> Option<io::Error> {
        self.error.take()
    }

    /// Writes what is still buffered.
    pub(crate) fn finish(&mut self) -> io::Result<()> {
        match self.error.take() {
            Some(error) => Err(error),
            None => self.out.flush(),
        }
    }
}

#[cfg(test)]
mod tests {
    use ring3_core::disk::DiskAnswer;
    use ring3_core::input::{Key, MouseMove};

    use super::*;

    #[test]
    fn an_input_is_one_short_line() {
        let com1 = DeviceId::COM[0];
        let input = |device, input| {
            let input = Input::Device { device, input };
            LoggedEvent::Input(&input).to_string()
        };
        assert_eq!(
            input(com1, DeviceInput::Serial(b"a\r\n".to_vec())),
            "input com1: 3 bytes \"a\\r\\n\""
        );
        let long = input(com1, DeviceInput::Serial(vec![b'\n'; 100_000]));
        assert!(long.len() < 200 && !long.contains('\n'), "{long}");
        let other = input(com1, DeviceInput::Serial([vec![b'\n'; 99_999], vec![0]].concat()));
        assert_ne!(long, other);
        let key = DeviceInput::Key { key: Key(0x1e), pressed: true };
        assert_eq!(input(DeviceId::I8042, key), "input i8042: key 0x1e pressed");
        let answer = DiskAnswer { tag: 3, result: Ok(Vec::new()) };
        assert_eq!(input(DeviceId::IDE, DeviceInput::Disk(answer)), "input ide: request 3 is done");
        let clocks = HostClocks { time_stamp: 0xabc, seconds: 1_800_000_000, microseconds: 12 };
        assert_eq!(
            LoggedEvent::Input(&Input::HostClocks(clocks)).to_string(),
            "input host clocks 1800000000.000012 0000000000000abc"
        );
        assert!(!input(DeviceId::I8042, DeviceInput::Mouse(MouseMove::default())).contains('\n'));
    }

    #[test]
    fn the_hash_is_xxh3() {
        // The test vector of an empty input with seed 0 (XXH3_64bits).
        assert_eq!(hash(b""), 0x2d06_8005_38d3_94c2);
    }

    #[test]
    fn checkpoints_are_at_multiples() {
        let mut log = EventLog::new(io::sink(), NonZero::new(100));
        assert_eq!(log.next_checkpoint(), Some(100));
        let checkpoint = Checkpoint { memory: 1, state: 2 };
        log.tell(100, Time::ZERO, &LoggedEvent::Checkpoint(checkpoint));
        assert_eq!(log.next_checkpoint(), Some(200));
        log.tell(250, Time::ZERO, &LoggedEvent::Checkpoint(checkpoint));
        assert_eq!(log.next_checkpoint(), Some(300));
        assert_eq!(EventLog::new(io::sink(), None).next_checkpoint(), None);
    }
}
