//! The same run of a real guest on both engines: the same instructions, and the same machine at each
//! checkpoint.

use crate::support::{CONSOLE, LINUX, Until, run_until};
use ring3_core::clock::Time;
use ring3_core::input::{Input, StampedInput};
use ring3_vm::{Config, Ending, EngineChoice, Vm};

/// Returns a machine that starts Debian's kernel.
fn debian(kernel: &str, engine: EngineChoice) -> Option<Vm> {
    let config = Config { rng_seed: Some([1; 32]), ..Config::default() };
    crate::support::debian(config, kernel, CONSOLE, engine)
}

/// Runs the guest on the translator until it has sent `text`, repeats this run on both engines, and asserts
/// that the machines are equal whenever they have executed the same number of instructions.
///
/// With `counts_forms` the first run and the interpreter count instructions by their form, and must count alike.
fn assert_engines_agree(kernel: &str, text: &'static str, counts_forms: bool) {
    let Some(mut vm) = debian(kernel, EngineChoice::Auto) else { return };
    if vm.engine() == "interpreter" {
        ring3_skipped::host("this host does not allow the translator");
        return;
    }
    vm.record();
    vm.count_forms(counts_forms);
    run_until(&mut vm, text);
    let counted = vm.histogram().cloned();
    let (last, inputs) = vm.recording().split_last().expect("it was ended");
    assert_eq!(last.input, Input::Quit);

    let [mut interpreted, mut translated] = [EngineChoice::Interpreter, EngineChoice::Auto]
        .map(|engine| debian(kernel, engine).expect("it was there before"));
    interpreted.count_forms(counts_forms);
    let mut inputs = inputs.iter().peekable();
    for checkpoint in 1..=CHECKPOINTS {
        let at = last.instructions * checkpoint / CHECKPOINTS;
        let mut part = Vec::new();
        while let Some(input) = inputs.next_if(|input| input.instructions <= at) {
            part.push(input.clone());
        }
        part.push(StampedInput { instructions: at, time: Time::ZERO, input: Input::Quit });
        let sent = [&mut interpreted, &mut translated].map(|vm| {
            let mut console = Until { text, sent: String::new(), sender: None };
            assert_eq!(vm.replay(&part, &mut console).unwrap(), Ending::Quit);
            console.sent
        });
        assert_eq!(sent[0], sent[1]);
        assert_eq!(
            interpreted.checkpoint(),
            translated.checkpoint(),
            "the machines differ after {at} instructions of {}",
            last.instructions
        );
    }
    assert_eq!(counted.is_some(), counts_forms);
    if let (Some(translated), Some(interpreted)) = (counted, interpreted.histogram()) {
        let differing: Vec<_> = translated
            .rows()
            .zip(interpreted.rows())
            .filter(|(ours, right)| ours != right)
            .collect();
        assert!(differing.is_empty(), "translator, interpreter: {differing:#?}");
        assert_eq!(translated.total(), last.instructions);
        let users: u64 = translated.rows().map(|row| row.user).sum();
        assert!(0 < users && users < last.instructions, "{users}");
    }
}

const CHECKPOINTS: u64 = 20;

#[test]
fn debian_starts_in_the_same_way_on_both_engines() {
    assert_engines_agree(LINUX, "ring3:~# ", true);
}

/// This kernel also unpacks itself, which takes most of the time. `boot_debian` in the tests of the program starts
/// it on the translator, whose own tests compare paging with PAE.
#[test]
#[ignore = "takes fifteen seconds of a processor; make test-long runs it"]
fn debian_with_pae_starts_in_the_same_way_on_both_engines() {
    assert_engines_agree("linux-686-pae/vmlinuz", "ring3:~# ", false);
}
