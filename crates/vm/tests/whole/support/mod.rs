//! Functions that the tests of this directory share: real guests, and how they are run.
#![allow(dead_code, reason = "each test program uses a part of it")]

pub(crate) mod file;

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use ring3_core::input::Input;
use ring3_vm::{Config, Console, Ending, EngineChoice, Kernel, Module, Sender, Software, Vm, door};

/// Ends the run when the guest has sent `text`.
pub(crate) struct Until {
    pub(crate) text: &'static str,
    pub(crate) sent: String,
    pub(crate) sender: Option<Sender>,
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

/// Runs `vm` until the guest has sent `text`. Returns everything that it has sent.
pub(crate) fn run_until(vm: &mut Vm, text: &'static str) -> String {
    let (sender, mut door) = door();
    let mut console = Until { text, sent: String::new(), sender: Some(sender) };
    let ending = vm.run(&mut door, &mut console).unwrap();
    assert_eq!(ending, Ending::Quit, "{}", console.sent);
    console.sent
}

/// Debian's first kernel, which need not unpack itself (tests/guests/unpack).
pub(crate) const LINUX: &str = "linux-686/unpacked";

/// The kernel's options for a console on the serial port. They leave out half of a boot: the search for cards of
/// ISA PnP, of which there are none, and the kernel's tests of its own cryptography.
pub(crate) const CONSOLE: &str = "console=ttyS0 noisapnp cryptomgr.notests";

/// Returns a file of the guests. Returns None, and reports a skipped test, if there is none.
pub(crate) fn guest(name: &str) -> Option<Vec<u8>> {
    let tree = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guests");
    let path = env::var_os("RING3_GUESTS").map_or_else(tree, PathBuf::from).join(name);
    let contents = fs::read(&path);
    if contents.is_err() {
        ring3_skipped::package(format_args!("{} is missing: run make guests", path.display()));
    }
    contents.ok()
}

/// Returns a machine with this configuration that starts Debian's kernel `kernel`, or None if there is none.
pub(crate) fn debian(
    config: Config,
    kernel: &str,
    command_line: &str,
    engine: EngineChoice,
) -> Option<Vm> {
    let software = debian_software(kernel, command_line)?;
    Some(Vm::with_engine(config, software, engine).unwrap())
}

/// Returns Debian's kernel `kernel`, or None if there is none.
pub(crate) fn debian_software(kernel: &str, command_line: &str) -> Option<Software> {
    let (image, initrd) = (guest(kernel)?, guest("initramfs.cpio.gz")?);
    let modules = vec![Module { name: "initrd".to_owned(), contents: initrd.into() }];
    let (image, command_line) = (image.into(), command_line.to_owned());
    Some(Software::Kernel(Kernel { image, modules, command_line }))
}

/// Returns Debian's first kernel, with its modules, or None if there is none.
pub(crate) fn debian_with_modules(command_line: &str) -> Option<Software> {
    let files = ["initramfs.cpio.gz", "modules.cpio.gz"];
    let modules =
        files.map(|name| Some(Module { name: name.to_owned(), contents: guest(name)?.into() }));
    let modules = modules.into_iter().collect::<Option<_>>()?;
    let (image, command_line) = (guest(LINUX)?.into(), command_line.to_owned());
    Some(Software::Kernel(Kernel { image, modules, command_line }))
}

/// Returns a Multiboot kernel of `code`, which is loaded at 100020h (Multiboot Specification, 3.1).
pub(crate) fn multiboot_kernel(code: &[u8]) -> Kernel {
    let (magic, flags, start) = (0x1bad_b002_u32, 1_u32 << 16, 0x10_0000);
    let checksum = 0_u32.wrapping_sub(magic).wrapping_sub(flags);
    let header = [magic, flags, checksum, start, start, 0, 0, start + 32].map(u32::to_le_bytes);
    Kernel { image: [header.as_flattened(), code].concat().into(), ..Kernel::default() }
}
