//! Instructions that leave ordinary execution (`guest/exits`): they have the same results on both engines,
//! and a bounded cost on the translator.

use std::collections::BTreeMap;
use std::io;

use ring3_core::device::DeviceId;
use ring3_core::input::{DeviceInput, Input};
use ring3_vm::{Config, Console, Ending, EngineChoice, Kernel, Sender, Software, Vm, door};

const PROMPT: &str = "ring3:~# ";

/// Types commands, one at each prompt, and notes the output between prompts.
struct Typist {
    commands: Vec<String>,
    typed: usize,
    shown: Vec<String>,
    line: String,
    sender: Sender,
}

impl Console for Typist {
    fn serial(&mut self, _: u8, bytes: &[u8]) -> io::Result<()> {
        self.line.push_str(&String::from_utf8_lossy(bytes));
        if self.line.ends_with(PROMPT) {
            self.shown.push(std::mem::take(&mut self.line));
            let input = match self.commands.get(self.typed) {
                Some(command) => {
                    let input = DeviceInput::Serial(format!("{command}\n").into_bytes());
                    Input::Device { device: DeviceId::COM[0], input }
                }
                None => Input::Quit,
            };
            self.typed += 1;
            self.sender.send(input);
        }
        Ok(())
    }

    fn debug(&mut self, _: u8) -> io::Result<()> {
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns a machine that starts the kernel, or None if there is no kernel.
pub(crate) fn machine(engine: EngineChoice, deterministic: bool) -> Option<Vm> {
    let image = crate::support::guest("exits")?;
    let config = Config {
        memory_bytes: 32 << 20,
        deterministic,
        rng_seed: Some([1; 32]),
        ..Config::default()
    };
    let software = Software::Kernel(Kernel { image: image.into(), ..Kernel::default() });
    Some(Vm::with_engine(config, software, engine).unwrap())
}

/// Runs `commands` one after the other, and returns the output of each.
pub(crate) fn run(vm: &mut Vm, commands: Vec<String>) -> Vec<String> {
    let (sender, mut door) = door();
    let mut console = Typist { commands, typed: 0, shown: Vec::new(), line: String::new(), sender };
    assert_eq!(vm.run(&mut door, &mut console).unwrap(), Ending::Quit, "{}", console.line);
    // The first one is the output before the first prompt.
    console.shown.split_off(1)
}

/// Returns the names of all rows.
fn rows() -> Option<Vec<String>> {
    let mut vm = machine(EngineChoice::Interpreter, true)?;
    let shown = run(&mut vm, vec!["list".to_owned()]);
    let name = |line: &str| {
        let (name, count) = line.split_once(' ')?;
        count.trim().parse::<u32>().ok().map(|_| name.to_owned())
    };
    Some(shown[0].lines().filter_map(name).collect())
}

/// A console that types nothing.
#[derive(Default)]
struct Listener(String);

impl Console for Listener {
    fn serial(&mut self, _: u8, bytes: &[u8]) -> io::Result<()> {
        self.0.push_str(&String::from_utf8_lossy(bytes));
        Ok(())
    }

    fn debug(&mut self, _: u8) -> io::Result<()> {
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Runs each row on the translator, often enough for the translator to leave instructions to the interpreter
/// and to translate them again, and repeats this run on both engines.
fn assert_engines_agree(deterministic: bool) {
    const COUNT: u32 = 1500;
    let Some(mut rows) = rows() else { return };
    assert!(rows.len() > 100, "{} rows", rows.len());
    // The selector of the operand of an unmasked x87 exception is one of the few things that the translator
    // may not know.
    rows.retain(|row| row != "numeric_error");
    let commands: Vec<_> = rows.iter().map(|row| format!("{row} {COUNT}")).collect();
    let mut vm = machine(EngineChoice::Auto, deterministic).expect("it was there before");
    vm.record();
    for (row, shown) in rows.iter().zip(run(&mut vm, commands)) {
        assert!(shown.contains(&format!("\n{row} ")), "{row}: {shown}");
    }
    let recording = vm.recording().to_vec();
    let mut machines = [EngineChoice::Interpreter, EngineChoice::Auto].map(|engine| {
        let mut vm = machine(engine, deterministic).expect("it was there before");
        let mut console = Listener::default();
        assert_eq!(vm.replay(&recording, &mut console).unwrap(), Ending::Quit);
        (console.0, vm)
    });
    let [(ours, interpreted), (theirs, translated)] = &mut machines;
    assert_eq!(ours, theirs);
    let at = |vm: &Vm| (vm.stats().instructions, vm.stats().virtual_time);
    assert_eq!(at(interpreted), at(translated));
    assert!(interpreted.save() == translated.save(), "the machines differ");
    assert!(vm.save() == translated.save(), "the run was not repeated");
}

#[test]
fn engines_do_the_same_at_the_same_time() {
    assert_engines_agree(false);
}

#[test]
fn engines_do_the_same_in_deterministic_runs() {
    assert_engines_agree(true);
}

/// Returns the translator's counts for executing the row `count` times, after a run in which the translator
/// adapts.
fn counters(row: &str, count: u32) -> Option<BTreeMap<&'static str, u64>> {
    let mut vm = machine(EngineChoice::Auto, false)?;
    if vm.engine() == "interpreter" {
        ring3_skipped::host("this host does not allow the translator");
        return None;
    }
    run(&mut vm, vec![format!("{row} 4000"), format!("{row} {count}")]);
    Some(vm.stats().engine.into_iter().collect())
}

/// Asserts that a hundred executions of each row take at most these numbers of entries to translated code and
/// of signals.
fn assert_costs(rows: &[(&str, u64, u64)]) {
    const COUNT: u32 = 20_000;
    for (row, entries, signals) in rows {
        let Some(before) = counters(row, 0) else { return };
        let Some(after) = counters(row, COUNT) else { return };
        let hundreds = u64::from(COUNT) / 100;
        // The host's time and the terminal add to this.
        let most = |each: u64| each * hundreds + 1000;
        let [entered, signalled] = ["entries to translated code", "signals"]
            .map(|name| after[name].saturating_sub(before[name]));
        assert!(entered <= most(*entries), "{row}: {entered} entries");
        assert!(signalled <= most(*signals), "{row}: {signalled} signals");
    }
}

#[test]
fn registers_that_only_read_are_read_in_translated_code() {
    assert_costs(&[
        ("mmio_apic_id", 0, 0),
        ("mmio_apic_tpr", 0, 0),
        ("mmio_apic_irr", 0, 0),
        ("mmio_apic_icr", 0, 0),
        ("mmio_apic_compared", 0, 0),
        ("mmio_io_apic_read", 0, 0),
    ]);
}

#[test]
fn devices_are_accessed_while_translated_code_waits() {
    assert_costs(&[
        ("mmio_apic_count", 0, 0),
        ("mmio_apic_tpr_write", 0, 0),
        ("mmio_apic_eoi", 0, 0),
        ("mmio_io_apic_write", 0, 0),
        ("vga_text_write", 0, 0),
        ("port_post_write", 0, 0),
        ("port_pci_config_read", 0, 0),
        ("real_port", 0, 0),
        ("short_port", 0, 0),
        ("user_port_allowed", 0, 0),
        ("virtual_port_allowed", 0, 0),
        ("privileged_port_allowed", 0, 0),
    ]);
}

#[test]
fn an_access_to_device_memory_in_a_segment_leaves_translated_code_once() {
    assert_costs(&[("real_text", 105, 1)]);
}

#[test]
fn segments_of_real_mode_are_entered_in_translated_code() {
    assert_costs(&[
        ("real_int", 0, 0),
        ("real_far_call", 0, 0),
        ("real_far_jump", 0, 0),
        ("real_far_jumps_away", 0, 0),
        ("real_far_return", 0, 0),
        ("real_iret", 0, 0),
        ("real_load_ss", 0, 0),
        ("virtual_far_call", 0, 0),
        ("virtual_load_ss", 0, 0),
    ]);
}

#[test]
fn segment_registers_are_loaded_in_translated_code() {
    assert_costs(&[
        ("load_ds", 0, 0),
        ("load_es_alternating", 0, 0),
        ("load_fs_null", 0, 0),
        ("load_ss", 0, 0),
        ("les", 0, 0),
        ("user_load_es", 0, 0),
        ("short_load_ds", 0, 0),
        ("short_load_es_alternating", 0, 0),
        ("short_les", 0, 0),
    ]);
}

#[test]
fn far_transfers_stay_in_translated_code() {
    assert_costs(&[
        ("far_call", 0, 0),
        ("far_jump", 0, 0),
        ("far_jump_indirect", 0, 0),
        ("far_return", 0, 0),
        ("call_gate", 0, 0),
        ("short_int", 0, 0),
        ("short_far_call", 0, 0),
        ("short_far_jump", 0, 0),
    ]);
}

#[test]
fn flags_of_privileged_virtual_8086_mode_change_in_translated_code() {
    assert_costs(&[
        ("privileged_iret", 0, 0),
        ("privileged_pushf_popf", 0, 0),
        ("privileged_cli_sti", 0, 0),
    ]);
}

#[test]
fn system_instructions_stay_in_translated_code() {
    let rows = [
        "cpuid",
        "real_cpuid",
        "rdmsr_apic_base",
        "rdmsr_tsc",
        "rdmsr_sysenter",
        "wrmsr_sysenter",
        "cr0_write",
        "task_switched_flag",
        "cr2_write",
        "cr4_write",
        "debug_register_read",
        "debug_register_write",
        "invlpg",
        "wbinvd",
        "lgdt",
        "lidt",
        "sgdt",
        "lldt",
        "ltr",
        "str",
        "smsw",
        "lmsw",
        "verr",
        "lar",
    ];
    assert_costs(&rows.map(|row| (row, 0, 0)));
}

#[test]
fn exceptions_again_and_again_take_no_signal() {
    assert_costs(&[
        ("divide_error", 105, 2),
        ("single_step", 105, 2),
        ("user_divide_error", 105, 2),
    ]);
}

#[test]
fn exceptions_of_known_instructions_are_delivered_in_translated_code() {
    assert_costs(&[
        ("undefined_opcode", 0, 0),
        ("user_undefined_opcode", 0, 0),
        ("user_privileged", 0, 0),
        ("user_port_refused", 0, 0),
        ("virtual_port_refused", 0, 0),
        ("numeric_error", 0, 0),
        ("breakpoint", 0, 0),
        ("user_breakpoint", 0, 0),
        ("general_protection", 0, 0),
        ("page_fault", 0, 0),
        ("user_page_fault", 0, 0),
    ]);
}

/// Like loaders, the kernel has data beside its code there, and a write to such data takes a signal.
#[test]
fn going_to_real_mode_and_back_keeps_the_mapped_pages() {
    assert_costs(&[("mode_switch", 1200, 105), ("mode_switch_paged", 1400, 105)]);
}
