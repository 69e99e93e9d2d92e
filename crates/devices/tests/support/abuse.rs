//! What a hostile driver does to a virtio device, from any bytes.

use ring3_core::device::{Device, DeviceId, Output, TestBench, Width};
use ring3_core::disk::{DiskAnswer, DiskError, DiskOperation, Medium};
use ring3_core::input::DeviceInput;
use ring3_core::net::{MacAddress, Packet};
use ring3_devices::virtio::block::{Block, DiskModel};
use ring3_devices::virtio::net::{Net, NetModel};
use ring3_devices::virtio::pci::{Interfaces, VirtioPci};

/// Where the tests put the legacy ports, and the base address register that says so.
const PORTS: u16 = 0xc000;
const BASE_OF_PORTS: u8 = 0x10;
/// Bytes of guest memory that are written to.
const MEMORY: u64 = 0x8000;

// Registers of a legacy device (virtio 0.9.5, 2.2.2.1), and one of those of version 1 for notifications.
const QUEUE_ADDRESS: u16 = 8;
const QUEUE_SELECT: u16 = 14;
const QUEUE_NOTIFY: u16 = 16;
const NOTIFY_PAGE: u64 = 0x3000;

/// The most requests and bytes of them that a disk may have under way: its own bounds, and one request more.
const ASKED_MAX: usize = 256;
const ASKED_BYTES_MAX: usize = 13 << 20;

/// The bytes from which all is made.
struct Source<'a>(&'a [u8]);

impl Source<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn word(&mut self) -> Option<u16> {
        Some(u16::from_le_bytes([self.byte()?, self.byte()?]))
    }

    /// A number as drivers have them: small, or any.
    fn value(&mut self) -> Option<u32> {
        let first = self.byte()?;
        if first < 0xc0 {
            return Some(u32::from(first & 0x3f));
        }
        Some(u32::from(self.word()?) << 16 | u32::from(self.word()?))
    }

    fn width(&mut self) -> Option<Width> {
        Some([Width::Byte, Width::Word, Width::Dword][usize::from(self.byte()? % 3)])
    }

    fn bytes(&mut self, len: usize) -> &[u8] {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken
    }
}

/// Has a device for whatever drivers `bytes` make of it.
///
/// # Panics
/// When the device does, keeps more under way than it may, or does not take its own state.
pub(crate) fn use_virtio(bytes: &[u8]) {
    let mut source = Source(bytes);
    let Some(kind) = source.byte() else { return };
    let interfaces = Interfaces { legacy: kind & 4 != 0, modern: kind & 8 != 0 };
    let medium = Medium { sectors: 16384, read_only: kind & 16 != 0 };
    let disk = DiskModel { medium, serial: "S123".to_owned(), queues: 1 + u16::from(kind >> 6) };
    let mac = MacAddress([2, 0, 0, 0, 0, 1]);
    let net = NetModel { mac, mtu: Some(1500), pairs: 1 + u16::from(kind >> 6) };
    if kind & 1 == 0 {
        drive(&mut source, &|| {
            VirtioPci::new(4, interfaces, Block::new(DeviceId::VIRTIO_BLK[0], disk.clone()))
        });
    } else {
        drive(&mut source, &|| {
            VirtioPci::new(3, interfaces, Net::new(DeviceId::NIC[0], net.clone()))
        });
    }
}

fn drive<D: Device>(source: &mut Source<'_>, new: &dyn Fn() -> D) {
    let (mut bench, mut device) = (TestBench::default(), new());
    device.reset(&mut bench.context());
    device.write_config(&mut bench.context(), 0, BASE_OF_PORTS, Width::Dword, PORTS.into());
    let mut asked = Vec::new();
    while step(source, &mut bench, &mut device, new, &mut asked).is_some() {
        for output in bench.outputs.drain(..) {
            if let Output::Disk { request, .. } = output {
                let len = match request.operation {
                    DiskOperation::Read { count, .. } => count as usize * 512,
                    DiskOperation::Write { data, .. } => data.len(),
                    _ => 0,
                };
                asked.push((request.tag, len));
            }
        }
        assert!(asked.len() <= ASKED_MAX, "{} requests", asked.len());
        let bytes: usize = asked.iter().map(|(_, len)| len).sum();
        assert!(bytes <= ASKED_BYTES_MAX, "{bytes} bytes");
        bench.irq.drain_messages();
        bench.irq.drain_changes();
        bench.claims.clear();
    }
}

/// One thing that a driver, or somebody outside, does; none where the bytes end.
fn step<D: Device>(
    source: &mut Source<'_>,
    bench: &mut TestBench,
    device: &mut D,
    new: &dyn Fn() -> D,
    asked: &mut Vec<(u64, usize)>,
) -> Option<()> {
    let context = &mut bench.context();
    match source.byte()? % 16 {
        0 => {
            let (offset, width, value) = (source.byte()?, source.width()?, source.value()?);
            // The ports stay where they are.
            if !(BASE_OF_PORTS..BASE_OF_PORTS + 4).contains(&offset) {
                let offset = offset & !(width.bytes() as u8 - 1);
                device.write_config(context, 0, offset, width, value);
                device.read_config(context, 0, offset, width);
            }
        }
        1..=3 => {
            let region = if source.byte()? & 7 == 0 { 1 } else { 4 };
            let place = u64::from(source.byte()? & 3) << 12 | u64::from(source.byte()?);
            device.write_memory(context, region, place, source.width()?, source.value()?);
            device.read_memory(context, region, place, Width::Dword);
        }
        4..=6 => {
            let port = PORTS + u16::from(source.byte()? & 0x7f);
            device.write_port(context, port, source.width()?, source.value()?);
            device.read_port(context, port, Width::Dword);
        }
        7..=9 => {
            let address = u64::from(source.word()?) % MEMORY;
            let len = 1 + usize::from(source.byte()? & 0x3f);
            context.memory.write(address, source.bytes(len));
        }
        10 => {
            let way = source.byte()?;
            if !asked.is_empty() {
                let (tag, len) = asked.swap_remove(usize::from(way >> 2) % asked.len());
                let result = match way & 3 {
                    0 => Err(DiskError::Host),
                    1 => Ok(Vec::new()),
                    _ => Ok(vec![1; len]),
                };
                device.input(context, DeviceInput::Disk(DiskAnswer { tag, result }));
            }
        }
        11 | 12 => {
            let queue = source.byte()?;
            let notify = NOTIFY_PAGE + 4 * u64::from(queue & 0xf);
            device.write_memory(context, 4, notify, Width::Word, (queue & 0xf).into());
            device.write_port(context, PORTS + QUEUE_NOTIFY, Width::Word, (queue & 0xf).into());
        }
        13 => {
            // A queue whose rings are in memory that is written to.
            let (queue, page) = (source.byte()? & 7, source.byte()? & 7);
            device.write_port(context, PORTS + QUEUE_SELECT, Width::Word, queue.into());
            device.write_port(context, PORTS + QUEUE_ADDRESS, Width::Dword, page.into());
        }
        14 => {
            let len = usize::from(source.byte()?) * 8;
            if device.takes_input() {
                let packet = Packet::frame(source.bytes(len).to_vec());
                device.input(context, DeviceInput::Packet(packet));
            }
        }
        _ => {
            if source.byte()? & 7 == 0 {
                device.reset(context);
                device.write_config(context, 0, BASE_OF_PORTS, Width::Dword, PORTS.into());
            }
            let saved = device.save();
            let mut other = new();
            other.restore(&saved).expect("a device takes its own state");
            assert!(other.save() == saved, "a state that is taken over is the same");
        }
    }
    Some(())
}
