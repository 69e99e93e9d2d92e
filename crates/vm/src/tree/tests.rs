use serde::Serialize;

use super::*;
use crate::config::{Config, Kernel, Software};
use crate::linux::tests::kernel_of;

#[derive(Serialize)]
struct State {
    counter: u64,
    wide: u128,
    latch: Option<u8>,
    on: bool,
    mode: Mode,
    buffer: Vec<u8>,
    inner: SavedState,
    all: Vec<SavedState>,
}

#[derive(Serialize)]
enum Mode {
    Idle,
}

fn tree() -> Tree {
    let state = State {
        counter: u64::MAX,
        wide: u128::MAX,
        latch: None,
        on: true,
        mode: Mode::Idle,
        buffer: (0..20).collect(),
        inner: SavedState::new("inner", 3, &[1_u8, 2]),
        all: vec![SavedState::new("rtc", 1, &7), SavedState::new("pit", 1, &8)],
    };
    Tree::of_state(&SavedState::new("test", 1, &state), &DataSheets::new())
}

#[test]
fn a_saved_state_is_a_tree() {
    assert_eq!(
        tree().to_string(),
        "counter 0xffffffffffffffff\n\
         wide 0xffffffffffffffffffffffffffffffff\n\
         latch none\n\
         on yes\n\
         mode Idle\n\
         buffer 20 bytes: 000102030405060708090a0b0c0d0e0f10111213\n\
         inner [0x1 0x2]\n\
         all/rtc 0x7\n\
         all/pit 0x8\n"
    );
}

#[test]
fn a_path_leads_to_a_part() {
    let tree = tree();
    assert_eq!(tree.at("all/PIT"), Ok(&Tree::Number(8)));
    assert_eq!(tree.at("/inner/1/"), Ok(&Tree::Number(2)));
    assert_eq!(tree.at(""), Ok(&tree));
    let wrong = |path| tree.at(path).unwrap_err().to_string();
    assert_eq!(wrong("all/pic"), "there is no pic in all: it has rtc, pit");
    assert_eq!(wrong("inner/2"), "there is no 2 in inner: it has 0 to 1");
    assert_eq!(wrong("on/off"), "there is no off in on: it has no parts");
    assert!(wrong("x").starts_with("there is no x in the machine: it has counter, wide,"));
}

/// Each line of the table is of a part that a machine has.
#[test]
fn a_machine_shows_its_registers_by_their_names() {
    let config = Config { memory_bytes: 32 << 20, display: true, ..Config::default() };
    let kernel = Kernel { image: kernel_of(&[0xf4]).into(), ..Kernel::default() };
    let mut vm = Vm::new(config, Software::Kernel(kernel)).unwrap();
    let before = vm.save();
    let tree = vm.tree();
    assert!(vm.save() == before, "it changes nothing");
    for path in [
        "processor/general_registers/ESP",
        "processor/EIP",
        "processor/control_registers/CR0",
        "processor/segments/CS/selector",
        "processor/fpu/FCW",
        "processor/sse/registers/XMM0",
        "devices/pit/counters/0/CW",
        "devices/rtc/cmos/register_B",
        "devices/com1/LCR",
        "devices/i440fx/config/vendor_id",
        "devices/ide/channels/0/master/BMICX",
        "devices/vga/state/registers/crtc/CR7",
        "devices/hpet/timers/0/Tn_CONF",
        "devices/acpi_pm/registers/PMSTS",
        "devices/interrupts/pic/master/IMR",
        "devices/interrupts/apics/local_apic/TPR",
        "devices/interrupts/apics/local_apic/LVT/LINT0",
        "devices/interrupts/apics/io_apic",
        "devices/dma/controllers/0/mask_register",
        "timers",
        "time/instructions",
        "memory/bytes",
        "drives",
        "networks",
        "counters/instructions",
    ] {
        tree.at(path).unwrap_or_else(|error| panic!("{error}"));
    }
    let cr0 = tree.at("processor/control_registers/CR0").unwrap();
    assert_eq!(cr0, &Tree::Number(vm.cpu().cr0().bits().into()));
    assert_eq!(tree.at("devices/i440fx/config/vendor_id"), Ok(&Tree::Number(0x8086)));
}
