//! The trait of device models, and the means by which they act on the machine.
//!
//! A device is a state machine over virtual time. The machine calls it for an access by the guest, for a
//! timer that the device has set, or for an input from outside. The device changes its own state, and acts on
//! the machine only through its [`Context`]. It never waits, never looks at the host and never keeps a
//! reference to anything, so the same model runs in the machine, in a test, in a fuzzer or in a process of
//! its own.

mod id;

use serde::{Deserialize, Serialize};

use crate::a20::A20Line;
use crate::balloon::BalloonStatus;
use crate::bus::{Claim, Decoded, PortRange};
use crate::channel::{ChannelEvent, ChannelStatus};
use crate::clock::{Tag, Time, Timers};
use crate::disk::{DiskRequest, DriveId};
use crate::display::Picture;
use crate::dma::{DmaBytes, DmaRequests};
use crate::extra_memory::ExtraMemoryStatus;
use crate::input::DeviceInput;
use crate::lines::IrqLines;
use crate::memory::Memory;
use crate::net::Packet;
use crate::state::{RestoreError, SavedState};

pub use id::{DeviceId, NoDevice};

/// The size of an access.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Width {
    /// One byte.
    Byte,
    /// Two bytes.
    Word,
    /// Four bytes.
    Dword,
}

impl Width {
    /// The width in bytes: 1, 2 or 4.
    pub const fn bytes(self) -> u16 {
        match self {
            Width::Byte => 1,
            Width::Word => 2,
            Width::Dword => 4,
        }
    }

    /// Returns the bits that an access of this width carries, all set.
    pub const fn mask(self) -> u32 {
        u32::MAX >> (32 - 8 * self.bytes() as u32)
    }
}

/// The ways in which a guest says that its system has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GuestFailure {
    /// The system does nothing more (a kernel panic).
    Panic,
    /// Another kernel takes over, to write down what has happened.
    CrashLoaded,
}

/// A message from a device to the world outside the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Serial port `port` (0 is COM1, and the cards on PCI follow COM4) has sent a byte.
    Serial {
        /// Number of the port, from 0.
        port: u8,
        /// The byte.
        byte: u8,
    },
    /// A byte of a message for people who debug firmware (port 402h of some emulators).
    DebugConsole(u8),
    /// A request to a drive; [`DeviceInput::Disk`] brings the answer.
    Disk {
        /// The drive.
        drive: DriveId,
        /// The request.
        request: DiskRequest,
    },
    /// A network card sends a packet.
    Packet {
        /// The card.
        device: DeviceId,
        /// The packet.
        packet: Packet,
    },
    /// The guest ends the run with this status.
    Exit(u8),
    /// The memory balloon has this many pages now.
    Balloon {
        /// The number of pages of 4 KiB.
        pages: u32,
    },
    /// Of the memory that comes and goes, so much is there now.
    ExtraMemory {
        /// The number of bytes.
        bytes: u64,
    },
    /// The guest's end of a channel does something.
    Channel {
        /// Number of the channel, from 0.
        channel: u8,
        /// What it does.
        event: ChannelEvent,
    },
    /// The guest says that its system has failed.
    Failed(GuestFailure),
    /// The guest has released the card in a PCI slot, which is then removed.
    Eject {
        /// PCI device number, 0 to 31.
        slot: u8,
    },
    /// The guest has switched the machine off.
    PowerOff,
    /// The guest has asked for a reset of the whole machine.
    Reset,
    /// The processor's INIT pin was pulsed: the processor starts again at the reset vector, and the rest of
    /// the machine continues.
    ProcessorReset,
}

/// Everything that a device may do to the rest of the machine during one call.
pub struct Context<'a> {
    /// The virtual time of the access, the timer or the input.
    pub now: Time,
    /// The IRQ lines.
    pub irq: &'a mut IrqLines,
    /// Guest-physical memory, for DMA.
    pub memory: &'a mut Memory,
    /// The outputs, which the machine passes on after the call.
    pub outputs: &'a mut Vec<Output>,
    /// All timers; a device sets its own by [`Context::set_timer`].
    pub timers: &'a mut Timers,
    /// Ports and addresses that devices claim or release; the machine passes them to the bus after the call.
    pub claims: &'a mut Vec<Claim>,
    /// The DMA request lines of the ISA bus.
    pub dma: &'a mut DmaRequests,
    /// Address line 20.
    pub a20: &'a mut A20Line,
    /// The device that is being called.
    pub device: DeviceId,
}

impl Context<'_> {
    /// Sets this device's timer `tag` to `at`. [`Device::timer`] is called at that time, or later if the
    /// machine has slept.
    pub fn set_timer(&mut self, tag: Tag, at: Time) {
        self.timers.set(self.device, tag, at, false);
    }

    /// Sets this device's timer `tag` to `at` for one of many ticks that software counts. [`Device::timer`]
    /// is called at exactly that virtual time, however late it is by the host's clock.
    pub fn set_tick(&mut self, tag: Tag, at: Time) {
        self.timers.set(self.device, tag, at, true);
    }

    /// Cancels this device's timer `tag`.
    pub fn cancel_timer(&mut self, tag: Tag) {
        self.timers.cancel(self.device, tag);
    }

    /// Makes this device answer from now on at `ports` as its region `region`, and nowhere else as that
    /// region. A PCI base address register for ports does this.
    pub fn claim_ports(&mut self, region: u8, ports: PortRange) {
        self.claims.push(Claim { device: self.device, region, decoded: Decoded::Ports(ports) });
    }

    /// Makes this device answer from now on at the `len` guest-physical addresses from `start` on as its
    /// region `region`, and nowhere else as that region. Where memory is mapped to places, accesses do not
    /// reach the device.
    pub fn claim_memory(&mut self, region: u8, start: u64, len: u64) {
        let decoded = Decoded::Memory { start, len };
        self.claims.push(Claim { device: self.device, region, decoded });
    }

    /// Makes this device answer nowhere as its region `region` from now on.
    pub fn release(&mut self, region: u8) {
        self.claims.push(Claim { device: self.device, region, decoded: Decoded::Nothing });
    }

    /// Drives DMA request line `channel` (0 to 7) high, or stops driving it. If the line is still high when
    /// this call of the device ends, [`Device::dma`] is called as soon as the DMA controller is set up for
    /// the channel.
    pub fn request_dma(&mut self, channel: u8, high: bool) {
        self.dma.set(self.device, channel, high);
    }

    /// Drives address line 20 high or low. The processor sees the change after the current instruction.
    pub fn drive_a20(&mut self, high: bool) {
        self.a20.drive(self.device, high);
    }

    /// Sends `request` to drive `unit` of this device.
    pub fn ask_disk(&mut self, unit: u8, request: DiskRequest) {
        self.outputs.push(Output::Disk { drive: DriveId::new(self.device, unit), request });
    }

    /// Sends a packet to the network behind this device.
    pub fn send_packet(&mut self, packet: Packet) {
        self.outputs.push(Output::Packet { device: self.device, packet });
    }

    /// Sends `output` to the world outside.
    pub fn output(&mut self, output: Output) {
        self.outputs.push(output);
    }
}

/// A device model.
pub trait Device {
    /// Returns which device of the machine this is.
    fn id(&self) -> DeviceId;

    /// Returns the device's name, which identifies it in saved states and logs.
    fn name(&self) -> &'static str {
        self.id().name()
    }

    /// Brings the device to its state after power-on. The machine has dropped its timers and lowered its
    /// lines before this call.
    fn reset(&mut self, context: &mut Context<'_>);

    /// Returns the byte at `port`, if reading it has no effect, and it only changes when a device is
    /// accessed, when a timer is due or when an input comes. Returns None for all other ports.
    fn peek_port(&self, _port: u16) -> Option<u8> {
        None
    }

    /// Performs the guest's read of `width` at `port`, which the device was attached to or has claimed. Bits
    /// above the width are ignored.
    fn read_port(&mut self, _context: &mut Context<'_>, _port: u16, width: Width) -> u32 {
        width.mask()
    }

    /// Performs the guest's write of `value` of `width` at `port`. Bits above the width are 0.
    fn write_port(&mut self, _context: &mut Context<'_>, _port: u16, _width: Width, _value: u32) {}

    /// Begins a repeated INS, by which the guest reads `width` at `port` again and again, and fills `bytes`
    /// from the start. It does only those accesses that change nothing but the device itself, which gets no
    /// [`Context`] here, and that do not depend on time. Returns the number of accesses done; the machine
    /// does the others one by one.
    fn read_port_string(&mut self, _port: u16, _width: Width, _bytes: &mut [u8]) -> usize {
        0
    }

    /// Begins a repeated OUTS, by which the guest writes `bytes`, `width` at a time, at `port`. It does only
    /// accesses of the same kind as [`Device::read_port_string`], and returns their number.
    fn write_port_string(&mut self, _port: u16, _width: Width, _bytes: &[u8]) -> usize {
        0
    }

    /// Performs the guest's read of `width` at `offset` of memory region `region`, which the device has
    /// claimed or was attached with (region 0). Any offset is possible, odd ones too; the access begins in
    /// the region and may leave it. Bits above the width are ignored.
    fn read_memory(
        &mut self,
        _context: &mut Context<'_>,
        _region: u8,
        _offset: u64,
        width: Width,
    ) -> u32 {
        width.mask()
    }

    /// Performs the guest's write of `value` of `width` at `offset` of memory region `region`. Bits above the
    /// width are 0.
    fn write_memory(
        &mut self,
        _context: &mut Context<'_>,
        _region: u8,
        _offset: u64,
        _width: Width,
        _value: u32,
    ) {
    }

    /// Performs the guest's read of `width` at `offset` of the configuration space of PCI function `function`
    /// of this device (PCI Local Bus Specification 2.1, chapter 6). The access is aligned. Bits above the
    /// width are ignored.
    fn read_config(
        &mut self,
        _context: &mut Context<'_>,
        _function: u8,
        _offset: u8,
        width: Width,
    ) -> u32 {
        width.mask()
    }

    /// Performs the guest's write of `value` of `width` to the configuration space. The access is aligned,
    /// and bits above the width are 0.
    fn write_config(
        &mut self,
        _context: &mut Context<'_>,
        _function: u8,
        _offset: u8,
        _width: Width,
        _value: u32,
    ) {
    }

    /// Moves bytes of request line `channel` for the DMA controller, and returns how many of `bytes` it has
    /// moved. If it has moved all of them, terminal count came with the last.
    fn dma(&mut self, _context: &mut Context<'_>, _channel: u8, _bytes: DmaBytes<'_>) -> usize {
        0
    }

    /// Handles timer `tag`, which the device has set and which is due.
    fn timer(&mut self, _context: &mut Context<'_>, _tag: Tag) {}

    /// Handles an event from outside for this device.
    fn input(&mut self, _context: &mut Context<'_>, _input: DeviceInput) {}

    /// Returns whether the device has room for more input. While it has none, inputs wait outside.
    fn takes_input(&self) -> bool {
        true
    }

    /// Returns whether software forbids removing the medium of drive `unit` of this device.
    fn holds_medium(&self, _unit: u8) -> bool {
        false
    }

    /// Returns the picture that a display adapter shows now, or None for other devices.
    fn picture(&self, _memory: &Memory) -> Option<Picture> {
        None
    }

    /// Returns the guest-physical address and the size of the note for debuggers that the guest has told this device
    /// of. Both are only what the guest says.
    fn note(&self) -> Option<(u64, u32)> {
        None
    }

    /// Returns what is known of the channels that lead through this device, by their numbers.
    fn channels(&self) -> Vec<ChannelStatus> {
        Vec::new()
    }

    /// Returns what is known of memory that comes and goes, or None for other devices.
    fn extra_memory(&self) -> Option<ExtraMemoryStatus> {
        None
    }

    /// Returns what is known of a memory balloon, or None for other devices.
    fn balloon(&self) -> Option<BalloonStatus> {
        None
    }

    /// Saves the whole state, except for timers and line levels, which the machine keeps.
    fn save(&self) -> SavedState;

    /// Restores a state that [`Device::save`] made, perhaps in an earlier version. On an error the device is
    /// unchanged.
    fn restore(&mut self, state: &SavedState) -> Result<(), RestoreError>;
}

/// A small machine around one device, for its unit tests. Its memory, lines, timers and outputs can be
/// examined.
#[derive(Debug)]
pub struct TestBench {
    /// Virtual time of the next call; [`TestBench::advance`] moves it.
    pub now: Time,
    /// The IRQ lines.
    pub irq: IrqLines,
    /// One MiB of RAM.
    pub memory: Memory,
    /// The outputs of the device.
    pub outputs: Vec<Output>,
    /// The timers that the device has set.
    pub timers: Timers,
    /// The claims of the device.
    pub claims: Vec<Claim>,
    /// The DMA request lines.
    pub dma: DmaRequests,
    /// Address line 20.
    pub a20: A20Line,
}

impl Default for TestBench {
    fn default() -> Self {
        TestBench {
            now: Time::ZERO,
            irq: IrqLines::default(),
            memory: Memory::new(1 << 20).expect("one MiB is a valid size"),
            outputs: Vec::new(),
            timers: Timers::default(),
            claims: Vec::new(),
            dma: DmaRequests::default(),
            a20: A20Line::default(),
        }
    }
}

impl TestBench {
    /// The id by which the device under test is called, whatever device it is.
    pub const DEVICE: DeviceId = DeviceId::TEST_DEVICE;

    /// Makes the context for one call of the device under test.
    pub fn context(&mut self) -> Context<'_> {
        Context {
            now: self.now,
            irq: &mut self.irq,
            memory: &mut self.memory,
            outputs: &mut self.outputs,
            timers: &mut self.timers,
            claims: &mut self.claims,
            dma: &mut self.dma,
            a20: &mut self.a20,
            device: TestBench::DEVICE,
        }
    }

    /// Reads a byte at `port`.
    pub fn read(&mut self, device: &mut dyn Device, port: u16) -> u8 {
        device.read_port(&mut self.context(), port, Width::Byte) as u8
    }

    /// Writes a byte at `port`.
    pub fn write(&mut self, device: &mut dyn Device, port: u16, value: u8) {
        device.write_port(&mut self.context(), port, Width::Byte, value.into());
    }

    /// Lets `nanos` nanoseconds pass. Each timer of the device fires at its time.
    pub fn advance(&mut self, device: &mut dyn Device, nanos: u64) {
        let end = self.now.plus_nanos(nanos);
        while let Some(at) = self.timers.next().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            while let Some((_, tag)) = self.timers.take_due(self.now) {
                device.timer(&mut self.context(), tag);
            }
        }
        self.now = end;
    }
}
