//! Drivers of both kinds, and a device that returns the bytes that it receives.

use ring3_core::bus::{Claim, Decoded, PortRange};
use ring3_core::device::TestBench;
use ring3_core::lines::Message;

use super::super::driver::{AREAS, BUFFERS, Ring};
use super::*;

const SLOT: u8 = 4;
/// Where the tests put the function.
const PORTS: u16 = 0xc000;
const TABLE: u32 = 0xfe00_0000;
const REGISTERS: u32 = 0xfe01_0000;
const QUEUE_SIZE: u16 = 8;

/// The router input of the slot's pin, and the line that the tests route it to.
const INPUT: u8 = 3;
const LINE: u8 = 11;

/// Sends back the bytes that it reads; with its feature it also reports how often it was reset.
#[derive(Debug, Default)]
struct Echo {
    resets: u8,
    started: bool,
    config: [u8; 8],
}

impl DeviceType for Echo {
    fn device(&self) -> DeviceId {
        DeviceId::NIC[0]
    }
    fn id(&self) -> u16 {
        4
    }
    fn class(&self) -> u32 {
        0x00ff00
    }
    fn features(&self) -> u64 {
        1 << 3
    }
    fn queue_sizes(&self) -> Vec<u16> {
        vec![QUEUE_SIZE; 2]
    }
    fn config(&self) -> Vec<u8> {
        self.config.to_vec()
    }
    fn write_config(&mut self, work: &mut Work<'_, '_>, offset: usize, value: u8) {
        if let Some(byte) = self.config.get_mut(offset) {
            *byte = value;
            work.config_changed = value == 0xcc;
        }
    }
    fn start(&mut self, _: &mut Work<'_, '_>) {
        self.started = true;
    }
    fn notify(&mut self, work: &mut Work<'_, '_>, queue: u16) {
        let queue = &mut work.queues[usize::from(queue)];
        while let Some(chain) = queue.pop(work.context.memory) {
            let (from, to) = (chain.readable[0], chain.writable[0]);
            let mut bytes = vec![0; from.len.min(to.len) as usize];
            work.context.memory.read(from.address, &mut bytes);
            work.context.memory.write(to.address, &bytes);
            queue.push(work.context.memory, chain.head, bytes.len() as u32);
        }
    }
    fn reset(&mut self, _: &mut Work<'_, '_>) {
        self.resets += 1;
        self.started = false;
    }
    fn save(&self) -> SavedState {
        SavedState::new("echo", 1, &(self.resets, self.started, self.config))
    }
    fn restore(&mut self, saved: &SavedState) -> Result<(), RestoreError> {
        (self.resets, self.started, self.config) = saved.load("echo", 1)?;
        Ok(())
    }
}

struct Machine {
    bench: TestBench,
    function: VirtioPci<Echo>,
}

impl Machine {
    fn new(interfaces: Interfaces) -> Machine {
        let (mut bench, function) =
            (TestBench::default(), VirtioPci::new(SLOT, interfaces, Echo::default()));
        bench.irq.route(INPUT, Some(LINE));
        let mut machine = Machine { bench, function };
        machine.write_config(registers::BASE_ADDRESS, Width::Dword, PORTS.into());
        machine.write_config(registers::BASE_ADDRESS + 4, Width::Dword, TABLE);
        machine.write_config(registers::BASE_ADDRESS + 16, Width::Dword, REGISTERS);
        machine.write_config(registers::COMMAND, Width::Word, 7);
        machine
    }

    fn read_config(&mut self, offset: u8, width: Width) -> u32 {
        self.function.read_config(&mut self.bench.context(), 0, offset, width) & width.mask()
    }
    fn write_config(&mut self, offset: u8, width: Width, value: u32) {
        self.function.write_config(&mut self.bench.context(), 0, offset, width, value);
    }
    fn read(&mut self, offset: u64, width: Width) -> u32 {
        let context = &mut self.bench.context();
        self.function.read_memory(context, MEMORY, offset, width) & width.mask()
    }
    fn write(&mut self, offset: u64, width: Width, value: u32) {
        self.function.write_memory(&mut self.bench.context(), MEMORY, offset, width, value);
    }
    fn write_msix(&mut self, offset: u64, value: u32) {
        let context = &mut self.bench.context();
        self.function.write_memory(context, MSIX, offset, Width::Dword, value);
    }
    fn read_port(&mut self, port: u16, width: Width) -> u32 {
        self.function.read_port(&mut self.bench.context(), PORTS + port, width) & width.mask()
    }
    fn write_port(&mut self, port: u16, width: Width, value: u32) {
        self.function.write_port(&mut self.bench.context(), PORTS + port, width, value);
    }
    fn status(&mut self) -> u32 {
        self.read(20, Width::Byte)
    }
    fn line(&self) -> bool {
        self.bench.irq.is_high(LINE)
    }
    fn messages(&mut self) -> Vec<Message> {
        self.bench.irq.drain_messages().collect()
    }

    /// A driver of version 1 negotiates, with these features beside VERSION_1, and sets queue 0 up.
    fn start(&mut self, features: u32) -> Ring {
        self.write(20, Width::Byte, 0);
        self.write(20, Width::Byte, 3);
        for (select, value) in [(0, features), (1, 1)] {
            self.write(8, Width::Dword, select);
            self.write(12, Width::Dword, value);
        }
        self.write(20, Width::Byte, 11);
        assert_eq!(self.status(), 11, "the features are accepted");
        self.set_queue(0, AREAS);
        self.write(20, Width::Byte, 15);
        Ring::new(QUEUE_SIZE)
    }

    fn set_queue(&mut self, queue: u16, areas: super::super::queue::Areas) {
        self.write(22, Width::Word, queue.into());
        for (offset, address) in [(32, areas.descriptors), (40, areas.available), (48, areas.used)]
        {
            self.write(offset, Width::Dword, address as u32);
            self.write(offset + 4, Width::Dword, (address >> 32) as u32);
        }
        self.write(28, Width::Word, 1);
    }

    /// Sends `text` through `ring`, which `notify` tells the device; what came back.
    fn echo(&mut self, ring: &mut Ring, text: &[u8], notify: impl FnOnce(&mut Machine)) -> Vec<u8> {
        self.bench.memory.write(BUFFERS, text);
        let (len, back) = (text.len() as u32, BUFFERS + 0x1000);
        let head = ring.add(&mut self.bench, &[(BUFFERS, len, false), (back, len, true)]);
        notify(self);
        assert_eq!(ring.used(&self.bench.memory), Some((head.into(), len)));
        let mut bytes = vec![0; text.len()];
        self.bench.memory.read(back, &mut bytes);
        bytes
    }
}

fn notify_0(machine: &mut Machine) {
    machine.write(NOTIFY, Width::Word, 0);
}

const MODERN: Interfaces = Interfaces { legacy: false, modern: true };
const LEGACY: Interfaces = Interfaces { legacy: true, modern: false };

#[test]
fn devices_are_known_by_their_numbers() {
    for (interfaces, id, revision) in [
        (Interfaces::default(), 0x1005_1af4, 0),
        (LEGACY, 0x1005_1af4, 0),
        (MODERN, 0x1044_1af4, 1),
    ] {
        let mut machine = Machine::new(interfaces);
        assert_eq!(machine.read_config(0, Width::Dword), id);
        assert_eq!(machine.read_config(8, Width::Dword), 0x00ff_0000 | revision);
        assert_eq!(machine.read_config(0x2c, Width::Dword), 0x0004_1af4);
        let kinds: Vec<_> = capabilities(&mut machine).into_iter().map(|(kind, _)| kind).collect();
        let modern: &[u32] = if interfaces.modern { &[1, 3, 4, 2, 5] } else { &[] };
        assert_eq!(kinds, modern);
        let has_ports = machine.read_config(0x10, Width::Dword) != 0;
        assert_eq!(has_ports, interfaces.legacy);
    }
}

/// The kinds of the vendor-specific capabilities and where they are, in their order behind MSI-X.
fn capabilities(machine: &mut Machine) -> Vec<(u32, u8)> {
    let mut found = Vec::new();
    let mut place = machine.read_config(0x34, Width::Byte) as u8;
    assert_eq!(machine.read_config(place, Width::Byte), 0x11);
    loop {
        place = machine.read_config(place + 1, Width::Byte) as u8;
        if place == 0 {
            return found;
        }
        assert_eq!(machine.read_config(place, Width::Byte), 9);
        let kind = machine.read_config(place + 3, Width::Byte);
        // That of the last one, the driver says.
        let region = if kind == 5 { 0 } else { 4 };
        assert_eq!(machine.read_config(place + 4, Width::Byte), region);
        found.push((kind, place));
    }
}

#[test]
fn regions_are_where_software_puts_them() {
    let mut machine = Machine::new(Interfaces::default());
    machine.bench.claims.clear();
    machine.write_config(registers::COMMAND, Width::Word, 3);
    let claims: Vec<Decoded> =
        machine.bench.claims.iter().map(|claim: &Claim| claim.decoded).collect();
    let expected = [
        Decoded::Ports(PortRange::new(PORTS, 32)),
        Decoded::Memory { start: TABLE.into(), len: 0x1000 },
        Decoded::Memory { start: REGISTERS.into(), len: 0x4000 },
    ];
    assert_eq!(claims, expected);
    machine.bench.claims.clear();
    machine.write_config(registers::COMMAND, Width::Word, 0);
    assert!(machine.bench.claims.iter().all(|claim| claim.decoded == Decoded::Nothing));
    machine.write_config(0x20, Width::Dword, u32::MAX);
    assert_eq!(machine.read_config(0x20, Width::Dword), 0xffff_c000);
}

#[test]
fn a_driver_of_version_1_sends_and_receives() {
    let mut machine = Machine::new(MODERN);
    assert_eq!(machine.read(18, Width::Word), 2, "queues");
    let mut ring = machine.start(1 << 3);
    assert!(machine.function.device_type().started);
    assert_eq!(machine.read(28, Width::Word), 1, "the queue is enabled");
    assert_eq!(machine.echo(&mut ring, b"abc", notify_0), b"abc");
    assert!(machine.line());
    // This is PCI's own status bit; it stays set until the driver reads the reason for the interrupt.
    assert_eq!(machine.read_config(6, Width::Word) & 8, 8);
    assert_eq!(machine.read(INTERRUPT_STATUS, Width::Byte), 1);
    assert!(!machine.line());
    assert_eq!(machine.read(INTERRUPT_STATUS, Width::Byte), 0);
    // The other queue is not used, and there is no third.
    for queue in [1, 2, 300] {
        machine.write(NOTIFY + 4 * queue, Width::Word, queue as u32);
    }
    machine.write_config(registers::COMMAND, Width::Word, 0x407);
    machine.echo(&mut ring, b"d", notify_0);
    assert!(!machine.line(), "the pin is switched off");
}

#[test]
fn a_legacy_driver_sends_and_receives() {
    let mut machine = Machine::new(LEGACY);
    assert_eq!(
        machine.read_port(0, Width::Dword) >> 27 & 7,
        7,
        "any layout, indirect, event index"
    );
    machine.write_port(18, Width::Byte, 3);
    machine.write_port(4, Width::Dword, u32::MAX);
    assert_eq!(machine.read_port(4, Width::Dword), machine.read_port(0, Width::Dword));
    machine.write_port(4, Width::Dword, 0);
    machine.write_port(14, Width::Word, 1);
    assert_eq!(machine.read_port(12, Width::Word), QUEUE_SIZE.into());
    machine.write_port(8, Width::Dword, 5);
    assert_eq!(machine.read_port(8, Width::Dword), 5);
    // Some notify before they say that they are there.
    let mut ring = Ring::at(super::super::queue::Areas::legacy(5, QUEUE_SIZE), QUEUE_SIZE);
    let notify = |machine: &mut Machine| machine.write_port(16, Width::Word, 1);
    assert_eq!(machine.echo(&mut ring, b"hello", notify), b"hello");
    machine.write_port(18, Width::Byte, 7);
    assert!(machine.line());
    // A byte alone, and together with the status before it.
    assert_eq!(machine.read_port(19, Width::Byte), 1);
    machine.echo(&mut ring, b"again", notify);
    assert_eq!(machine.read_port(18, Width::Word), 0x107);
    assert!(!machine.line());
    machine.write_port(20, Width::Byte, 0x5a);
    assert_eq!(machine.function.device_type().config[0], 0x5a);
    assert_eq!(machine.read_port(20, Width::Word), 0x5a);
    // The driver gives the queue up.
    machine.write_port(8, Width::Dword, 0);
    ring.add(&mut machine.bench, &[(BUFFERS, 1, false), (BUFFERS, 1, true)]);
    notify(&mut machine);
    assert_eq!(ring.used(&machine.bench.memory), None);
}

#[test]
fn features_are_agreed_on_or_not() {
    let mut machine = Machine::new(Interfaces::default());
    machine.write(0, Width::Dword, 1);
    assert_eq!(machine.read(4, Width::Dword), 1, "VERSION_1");
    machine.write(0, Width::Dword, 2);
    assert_eq!(machine.read(4, Width::Dword), 0);
    for (low, high) in [(1 << 3, 0), (1 << 4, 1), (0, 3)] {
        machine.write(20, Width::Byte, 0);
        machine.write(8, Width::Dword, 0);
        machine.write(12, Width::Dword, low);
        machine.write(8, Width::Dword, 1);
        machine.write(12, Width::Dword, high);
        machine.write(20, Width::Byte, 11);
        assert_eq!(machine.status(), 3, "{low:#x} {high:#x}");
    }
    machine.start(0);
    machine.write(8, Width::Dword, 0);
    machine.write(12, Width::Dword, 8);
    assert_eq!(machine.read(12, Width::Dword), 0, "they are settled");
}

#[test]
fn a_reset_makes_everything_new() {
    let mut machine = Machine::new(MODERN);
    let mut ring = machine.start(0);
    machine.echo(&mut ring, b"abc", notify_0);
    machine.write(20, Width::Byte, 0);
    assert_eq!((machine.status(), machine.line()), (0, false));
    assert_eq!(machine.read(28, Width::Word), 0);
    let echo = machine.function.device_type();
    assert!(echo.resets == 2 && !echo.started);
    notify_0(&mut machine);
    let mut ring = machine.start(0);
    // The rings of before are still in memory.
    assert_eq!(ring.used(&machine.bench.memory), Some((0, 3)));
}

#[test]
fn a_driver_that_breaks_a_queue_hears_of_it() {
    let mut machine = Machine::new(MODERN);
    let mut ring = machine.start(0);
    machine.bench.memory.write(ring.areas.available + 2, &100_u16.to_le_bytes());
    notify_0(&mut machine);
    assert_eq!(machine.status(), 0x4f);
    assert_eq!(machine.read(INTERRUPT_STATUS, Width::Byte), 2);
    notify_0(&mut machine);
    assert_eq!(machine.read(INTERRUPT_STATUS, Width::Byte), 0, "once");
    ring = machine.start(0);
    assert_eq!(machine.status(), 0x4f, "the index is what it was");
    machine.bench.memory.write(ring.areas.available + 2, &0_u16.to_le_bytes());
    ring = machine.start(0);
    assert_eq!(machine.echo(&mut ring, b"ok", notify_0), b"ok");
}

#[test]
fn buffers_that_exist_at_the_start_need_no_notification() {
    let mut machine = Machine::new(MODERN);
    let mut ring = Ring::new(QUEUE_SIZE);
    let echoed = machine.echo(&mut ring, b"early", |machine| {
        machine.start(0);
    });
    assert_eq!(echoed, b"early");
}

#[test]
fn a_change_of_the_configuration_interrupts() {
    let mut machine = Machine::new(MODERN);
    machine.start(0);
    let generation = machine.read(21, Width::Byte);
    machine.write(DEVICE + 2, Width::Word, 0xcc11);
    assert_eq!(machine.read(DEVICE, Width::Dword), 0xcc11_0000);
    assert_ne!(machine.read(21, Width::Byte), generation);
    assert_eq!(machine.read(INTERRUPT_STATUS, Width::Byte), 2);
    assert_eq!(machine.read(DEVICE + 6, Width::Dword), 0, "past the end");
}

#[test]
fn interrupts_can_be_messages() {
    let mut machine = Machine::new(MODERN);
    let control = machine.read_config(MSIX_CONTROL, Width::Word);
    assert_eq!(control, 2, "three vectors");
    machine.write_config(MSIX_CONTROL, Width::Word, 0x8000);
    let mut ring = machine.start(0);
    for (offset, vector, now) in [(26, 1, 1), (16, 2, 2), (16, 3, 0xffff)] {
        machine.write(offset, Width::Word, vector);
        assert_eq!(machine.read(offset, Width::Word), now);
    }
    for (offset, value) in [(0x10, 0xfee0_1004), (0x14, 0), (0x18, 0x4041)] {
        machine.write_msix(offset, value);
    }
    machine.echo(&mut ring, b"a", notify_0);
    assert!(machine.messages().is_empty(), "it is masked");
    let context = &mut machine.bench.context();
    assert_eq!(machine.function.read_memory(context, MSIX, 0x800, Width::Dword), 2);
    machine.write_msix(0x1c, 0);
    let expected = [Message { address: 0xfee0_1004, data: 0x4041 }];
    assert_eq!(machine.messages(), expected);
    machine.echo(&mut ring, b"b", notify_0);
    assert_eq!(machine.messages(), expected);
    assert!(!machine.line());
    // All of them are masked for a while.
    machine.write_config(MSIX_CONTROL, Width::Word, 0xc000);
    machine.echo(&mut ring, b"c", notify_0);
    assert!(machine.messages().is_empty());
    machine.write_config(MSIX_CONTROL, Width::Word, 0x8000);
    assert_eq!(machine.messages(), expected);
    // Where there are no vectors, the driver looks for itself.
    machine.write(26, Width::Word, 0xffff);
    machine.echo(&mut ring, b"d", notify_0);
    assert!(machine.messages().is_empty());
}

#[test]
fn a_driver_can_use_configuration_space_only() {
    let mut machine = Machine::new(MODERN);
    let (_, window) = capabilities(&mut machine)[4];
    let select = |machine: &mut Machine, offset: u32, len| {
        machine.write_config(window + 4, Width::Byte, 4);
        machine.write_config(window + 8, Width::Dword, offset);
        machine.write_config(window + 12, Width::Dword, len);
    };
    select(&mut machine, 18, 2);
    assert_eq!(machine.read_config(window + 16, Width::Word), 2);
    select(&mut machine, 20, 1);
    machine.write_config(window + 16, Width::Byte, 3);
    assert_eq!(machine.status(), 3);
    for (offset, len) in [(0x4000, 4), (u32::MAX, 1), (21, 2), (0, 3), (0, 0)] {
        select(&mut machine, offset, len);
        machine.write_config(window + 16, Width::Dword, 0);
        assert_eq!(machine.read_config(window + 16, Width::Dword), 0);
    }
    assert_eq!(machine.status(), 3);
}

#[test]
fn a_saved_device_continues() {
    let mut machine = Machine::new(Interfaces::default());
    let mut ring = machine.start(0);
    machine.echo(&mut ring, b"abc", notify_0);
    let saved = machine.function.save();
    let mut other = VirtioPci::new(SLOT, Interfaces::default(), Echo::default());
    other.restore(&saved).unwrap();
    assert_eq!(other.save(), saved);
    machine.function = other;
    assert_eq!(machine.echo(&mut ring, b"def", notify_0), b"def");
    for interfaces in [MODERN, LEGACY] {
        let mut other = VirtioPci::new(SLOT, interfaces, Echo::default());
        assert!(other.restore(&saved).is_err());
    }
}
