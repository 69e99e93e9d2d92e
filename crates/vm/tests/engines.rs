//! The same run of a real guest on both engines: the same instructions, the same machine at each checkpoint.

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use ring3_core::input::{Input, StampedInput};
use ring3_vm::{Config, Console, Ending, EngineChoice, Kernel, Module, Sender, Software, Vm, door};

/// Ends the run when the guest has sent `text`.
struct Until {
    text: &'static str,
    sent: String,
    sender: Option<Sender>,
}

impl Console for Until {
    fn serial(&mut self, _: u8, bytes: &[u8]) -> io::Result<()> {
        self.sent.push_str(&String::from_utf8_lossy(bytes));
        if self.sent.contains(self.text)
            && let Some(sender) = self.sender.take()
        {
            sender.send(Input::Quit);
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
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

/// A machine that starts Debian's kernel.
fn debian(kernel: &str, engine: EngineChoice) -> Option<Vm> {
    let (image, initrd) = (guest(kernel)?, guest("initramfs.cpio.gz")?);
    let modules = vec![Module { name: "initrd".to_owned(), contents: initrd }];
    let kernel = Kernel { image, modules, command_line: "console=ttyS0".to_owned() };
    let config = Config { rng_seed: Some([1; 32]), ..Config::default() };
    Some(Vm::with_engine(config, Software::Kernel(kernel), engine).unwrap())
}

/// Runs the guest on the translator until it has sent `text`, repeats that run on both engines, and asserts that the
/// machines are the same whenever they have executed the same number of instructions.
fn assert_engines_agree(kernel: &str, text: &'static str) {
    let Some(mut vm) = debian(kernel, EngineChoice::Auto) else { return };
    if vm.engine() == "interpreter" {
        eprintln!("skipped: this host does not allow the translator");
        return;
    }
    vm.record();
    let (sender, mut door) = door();
    let mut console = Until { text, sent: String::new(), sender: Some(sender) };
    assert_eq!(vm.run(&mut door, &mut console).unwrap(), Ending::Quit, "{}", console.sent);
    let (last, inputs) = vm.recording().split_last().expect("it was ended");
    assert_eq!(last.input, Input::Quit);

    let [mut interpreted, mut translated] = [EngineChoice::Interpreter, EngineChoice::Auto]
        .map(|engine| debian(kernel, engine).expect("it was there before"));
    let mut inputs = inputs.iter().peekable();
    for checkpoint in 1..=CHECKPOINTS {
        let at = last.instructions * checkpoint / CHECKPOINTS;
        let mut part = Vec::new();
        while let Some(input) = inputs.next_if(|input| input.instructions <= at) {
            part.push(input.clone());
        }
        part.push(StampedInput { instructions: at, input: Input::Quit });
        let sent = [&mut interpreted, &mut translated].map(|vm| {
            let mut console = Until { text, sent: String::new(), sender: None };
            assert_eq!(vm.replay(&part, &mut console).unwrap(), Ending::Quit);
            console.sent
        });
        assert_eq!(sent[0], sent[1]);
        assert!(
            interpreted.save() == translated.save(),
            "the machines differ after {at} instructions of {}",
            last.instructions
        );
    }
}

const CHECKPOINTS: u64 = 20;

#[test]
fn debian_starts_in_the_same_way_on_both_engines() {
    assert_engines_agree("linux-686/vmlinuz", "ring3:~# ");
}

#[test]
fn debian_with_pae_starts_in_the_same_way_on_both_engines() {
    assert_engines_agree("linux-686-pae/vmlinuz", "ring3:~# ");
}
