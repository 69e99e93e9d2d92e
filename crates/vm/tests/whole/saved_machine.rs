//! Real guests that are saved in the middle of their start, and restored: both machines continue in the same
//! way.

use crate::support::{CONSOLE, LINUX, Until, debian, run_until};
use ring3_vm::{Config, Ending, EngineChoice, SavedMachine, Software, Vm, firmware};

/// Returns the machine as it comes back from a file.
fn through_a_file(saved: &SavedMachine) -> SavedMachine {
    let mut file = Vec::new();
    ciborium::into_writer(saved, &mut file).unwrap();
    ciborium::from_reader(&*file).unwrap()
}

/// Runs `vm` until it has sent `first`, saves and restores it, lets the restored machine continue until it
/// has sent `second`, and asserts that `vm` does the same with the same inputs.
#[track_caller]
fn assert_goes_on(mut vm: Vm, first: &'static str, second: &'static str) {
    run_until(&mut vm, first);
    let saved = vm.save();
    let mut restored = Vm::restore(&through_a_file(&saved), EngineChoice::Interpreter).unwrap();
    assert!(restored.save() == saved, "it is another one");
    let began = restored.stats();
    restored.record();
    let sent = run_until(&mut restored, second);
    let stats = restored.stats();
    assert!(stats.instructions - began.instructions > 1_000_000, "hardly anything was tested");
    assert!(restored.save() != saved);

    let mut console = Until { text: second, sent: String::new(), sender: None };
    assert_eq!(vm.replay(restored.recording(), &mut console).unwrap(), Ending::Quit);
    assert_eq!(console.sent, sent);
    assert_eq!(vm.stats().virtual_time, stats.virtual_time);
    assert!(
        vm.save() == restored.save(),
        "it is another one after {} instructions",
        stats.instructions
    );
    assert_eq!(vm.picture(), restored.picture());
}

#[test]
fn debian_continues_after_it_was_saved() {
    let config = Config { display: true, ..Config::default() };
    let command_line = format!("console=tty0 {CONSOLE}");
    let engine = EngineChoice::Interpreter;
    let Some(vm) = debian(config, LINUX, &command_line, engine) else { return };
    assert_goes_on(vm, "LSM: ", "Run /init as init process");
}

/// In between it copies itself into RAM, and memory is mapped anew.
#[test]
fn firmware_continues_after_it_was_saved() {
    let image = |names: &[&str]| Some(firmware::read_first(&firmware::places(names, None, &[]))?.1);
    let (Some(bios), Some(video)) = (image(&firmware::NAMES), image(&firmware::VIDEO_NAMES)) else {
        ring3_skipped::package("SeaBIOS is missing: install the package seabios");
        return;
    };
    let software =
        Software::Firmware { image: bios.unwrap(), video: Some(video.unwrap()), kernel: None };
    let config = Config { display: true, ..Config::default() };
    let vm = Vm::new(config, software).unwrap();
    assert_goes_on(vm, "Relocating init", "No bootable device");
}
