//! Real guests, saved in the middle of their start, and restored: both machines go on in the same way.

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use ring3_core::input::Input;
use ring3_vm::firmware;
use ring3_vm::{
    Config, Console, Ending, EngineChoice, Kernel, Module, SavedMachine, Sender, Software, Vm, door,
};

/// Ends the run when the guest has sent `text`.
struct Until {
    text: &'static str,
    sent: String,
    sender: Option<Sender>,
}

impl Until {
    fn heard(&mut self, bytes: &[u8]) {
        self.sent.push_str(&String::from_utf8_lossy(bytes));
        if self.sent.contains(self.text)
            && let Some(sender) = self.sender.take()
        {
            sender.send(Input::Quit);
        }
    }
}

impl Console for Until {
    fn serial(&mut self, _: u8, bytes: &[u8]) -> io::Result<()> {
        self.heard(bytes);
        Ok(())
    }

    fn debug(&mut self, byte: u8) -> io::Result<()> {
        self.heard(&[byte]);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Runs `vm` until the guest has sent `text`; what it has sent.
fn run_until(vm: &mut Vm, text: &'static str) -> String {
    let (sender, mut door) = door();
    let mut console = Until { text, sent: String::new(), sender: Some(sender) };
    let ending = vm.run(&mut door, &mut console).unwrap();
    assert_eq!(ending, Ending::Quit, "{}", console.sent);
    console.sent
}

/// The machine as it comes back from a file.
fn through_a_file(saved: &SavedMachine) -> SavedMachine {
    let mut file = Vec::new();
    ciborium::into_writer(saved, &mut file).unwrap();
    ciborium::from_reader(&*file).unwrap()
}

/// Runs `vm` until it has sent `first`, saves and restores it, lets the other one go on until it has sent `second`, and asserts
/// that `vm` does the same with the same inputs.
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

/// A file of the guests; none where they are not there, which is told.
fn guest(name: &str) -> Option<Vec<u8>> {
    let tree = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guests");
    let path = env::var_os("RING3_GUESTS").map_or_else(tree, PathBuf::from).join(name);
    let contents = fs::read(&path);
    if contents.is_err() {
        eprintln!("skipped: {} is missing: run make guests", path.display());
    }
    contents.ok()
}

#[test]
fn debian_goes_on_after_it_was_saved() {
    let (Some(image), Some(initrd)) = (guest("linux-686/vmlinuz"), guest("initramfs.cpio.gz"))
    else {
        return;
    };
    let config = Config { display: true, ..Config::default() };
    let modules = vec![Module { name: "initrd".to_owned(), contents: initrd }];
    let kernel = Kernel { image, modules, command_line: "console=ttyS0 console=tty0".to_owned() };
    let vm = Vm::new(config, Software::Kernel(kernel)).unwrap();
    assert_goes_on(vm, "LSM: ", "Run /init as init process");
}

/// In between it copies itself into RAM, and memory is mapped anew.
#[test]
fn firmware_goes_on_after_it_was_saved() {
    let image = |names: &[&str]| Some(firmware::read_first(&firmware::places(names, None, &[]))?.1);
    let (Some(bios), Some(video)) = (image(&firmware::NAMES), image(&firmware::VIDEO_NAMES)) else {
        eprintln!("skipped: SeaBIOS is not installed");
        return;
    };
    let software = Software::Firmware { image: bios.unwrap(), video: Some(video.unwrap()) };
    let config = Config { display: true, ..Config::default() };
    let vm = Vm::new(config, software).unwrap();
    assert_goes_on(vm, "Relocating init", "No bootable device");
}
