//! Random treatment of a device: what every device of this crate must survive.

use proptest::prelude::*;
use ring3_core::device::{Device, TestBench, Width};
use ring3_core::input::DeviceInput;

/// One thing that happens to a device.
#[derive(Debug, Clone)]
pub(crate) enum Blow {
    /// A read at a port.
    Read(u16, Width),
    /// A write at a port.
    Write(u16, Width, u32),
    /// A read at an offset of memory region 0.
    ReadMemory(u64, Width),
    /// A write there.
    WriteMemory(u64, Width, u32),
    /// Nanoseconds pass, and timers fire each at its time.
    Pass(u64),
    /// Nanoseconds pass in one step, and timers that were due in it fire late.
    Jump(u64),
    /// Something comes from outside.
    Input(DeviceInput),
}

/// Up to 200 blows at `ports`, with steps of time from nanoseconds to years.
pub(crate) fn blows(ports: &'static [u16]) -> impl Strategy<Value = Vec<Blow>> {
    let port = proptest::sample::select(ports);
    let width = proptest::sample::select(&[Width::Byte, Width::Word, Width::Dword][..]);
    let byte = any::<u8>().prop_map(u32::from);
    // A device may set millions of timers a second, so no long time passes with all of them.
    let pass = prop_oneof![0..5_000_u64, 0..2_000_000_u64];
    let jump = prop_oneof![0..2_000_000_000_u64, 0..100_000_000_000_000_000_u64];
    let blow = prop_oneof![
        4 => (port.clone(), width.clone()).prop_map(|(port, width)| Blow::Read(port, width)),
        2 => (port.clone(), width, any::<u32>()).prop_map(|(p, w, v)| Blow::Write(p, w, v)),
        4 => (port, byte).prop_map(|(port, value)| Blow::Write(port, Width::Byte, value)),
        3 => pass.prop_map(Blow::Pass),
        1 => jump.prop_map(Blow::Jump),
    ];
    proptest::collection::vec(blow, 0..200)
}

/// The same, with some of `inputs` among them.
pub(crate) fn blows_and_inputs(
    ports: &'static [u16],
    inputs: impl Strategy<Value = DeviceInput>,
) -> impl Strategy<Value = Vec<Blow>> {
    let inputs = proptest::collection::vec((any::<prop::sample::Index>(), inputs), 0..50);
    (blows(ports), inputs).prop_map(|(mut blows, inputs)| {
        for (place, input) in inputs {
            blows.insert(place.index(blows.len() + 1), Blow::Input(input));
        }
        blows
    })
}

/// Up to 200 blows at the registers at `offsets` of memory region 0, with the same steps of time.
pub(crate) fn memory_blows(offsets: &'static [u64]) -> impl Strategy<Value = Vec<Blow>> {
    let offset = || proptest::sample::select(offsets);
    let width = || proptest::sample::select(&[Width::Byte, Width::Word, Width::Dword][..]);
    let anywhere = prop_oneof![offset(), any::<u64>()];
    // Mostly whole registers, and small values that mean something, or that are near the end of a counter.
    let small = 0..0x200_u32;
    let value = prop_oneof![small.clone(), small.prop_map(|value| !value), any::<u32>()];
    let pass = 0..200_u64;
    let jump = prop_oneof![0..2_000_000_000_u64, 0..100_000_000_000_000_000_u64];
    let blow = prop_oneof![
        4 => (offset(), width()).prop_map(|(at, width)| Blow::ReadMemory(at, width)),
        6 => (offset(), value).prop_map(|(at, v)| Blow::WriteMemory(at, Width::Dword, v)),
        2 => (anywhere, width(), any::<u32>()).prop_map(|(at, w, v)| Blow::WriteMemory(at, w, v)),
        2 => pass.prop_map(Blow::Pass),
        2 => jump.prop_map(Blow::Jump),
    ];
    proptest::collection::vec(blow, 0..200)
}

/// Deals the blows, and then requires that the state goes into `fresh` and comes
/// out of it as it was.
pub(crate) fn hammer(device: &mut dyn Device, fresh: &mut dyn Device, blows: Vec<Blow>) {
    hammer_in(&mut TestBench::default(), device, fresh, blows);
}

/// The same in a machine that has what the device needs.
pub(crate) fn hammer_in(
    bench: &mut TestBench,
    device: &mut dyn Device,
    fresh: &mut dyn Device,
    blows: Vec<Blow>,
) {
    for blow in blows {
        match blow {
            Blow::Read(port, width) => {
                device.read_port(&mut bench.context(), port, width);
            }
            Blow::Write(port, width, value) => {
                device.write_port(&mut bench.context(), port, width, value & width.mask());
            }
            Blow::ReadMemory(offset, width) => {
                device.read_memory(&mut bench.context(), 0, offset, width);
            }
            Blow::WriteMemory(offset, width, value) => {
                let value = value & width.mask();
                device.write_memory(&mut bench.context(), 0, offset, width, value);
            }
            Blow::Pass(nanos) => bench.advance(device, nanos),
            Blow::Jump(nanos) => {
                bench.now = bench.now.plus_nanos(nanos);
                bench.advance(device, 0);
            }
            Blow::Input(input) => device.input(&mut bench.context(), input),
        }
    }
    let state = device.save();
    fresh.restore(&state).expect("a device takes its own state");
    assert_eq!(fresh.save(), state);
}

/// An aligned access to configuration space: offset, width, and what is written.
pub(crate) type ConfigBlow = (u8, Width, Option<u32>);

/// Up to 200 accesses to configuration space.
pub(crate) fn config_blows() -> impl Strategy<Value = Vec<ConfigBlow>> {
    let width = proptest::sample::select(&[Width::Byte, Width::Word, Width::Dword][..]);
    let blow = (any::<u8>(), width, any::<Option<u32>>());
    let blow = blow.prop_map(|(offset, width, value)| {
        let aligned = offset & !(width.bytes() as u8 - 1);
        (aligned, width, value.map(|value| value & width.mask()))
    });
    proptest::collection::vec(blow, 0..200)
}

/// Deals the blows to function `function` of the device.
pub(crate) fn hammer_config(
    device: &mut dyn Device,
    bench: &mut TestBench,
    function: u8,
    blows: Vec<ConfigBlow>,
) {
    for (offset, width, value) in blows {
        match value {
            Some(value) => {
                device.write_config(&mut bench.context(), function, offset, width, value);
            }
            None => {
                device.read_config(&mut bench.context(), function, offset, width);
            }
        }
    }
}
