//! Debuggers with the names and lines of Debian's kernels, which `make guests-debug` fetches: gdb goes forwards and
//! back in boots, and crash reads a dump.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use ring3_skipped::package;

use crate::amd64::gdb;
use crate::gdb::{contains_in_order, end};
use crate::gdb_back::{counter, replay};
use crate::support::guest::{CONSOLE, Guest, PROMPT, file, file_if_there, path};
use crate::support::{Directory, output, ring3, system_program};

/// A kernel, the machine for it, and what its stack shows.
struct Kernel {
    name: &'static str,
    initramfs: &'static str,
    options: &'static [&'static str],
    /// The function that starts the kernel.
    start: &'static str,
    /// The entry of system calls.
    entry: &'static str,
}

const OF_32_BITS: Kernel = Kernel {
    name: "686",
    initramfs: "initramfs.cpio.gz",
    options: &[],
    start: "i386_start_kernel",
    entry: "entry_SYSENTER_32",
};

const OF_64_BITS: Kernel = Kernel {
    name: "amd64",
    initramfs: "initramfs-amd64.cpio.gz",
    options: &["--cpu", "qemu64"],
    start: "secondary_startup_64",
    entry: "entry_SYSCALL_64",
};

impl Kernel {
    /// Returns a machine that boots it with `options`, and the file with its names.
    fn find(&self, options: &[&str]) -> Option<(Command, PathBuf)> {
        let kernel = file_if_there(&format!("linux-{}/vmlinuz", self.name))?;
        let names = path(&format!("debug/{}/vmlinux", self.name));
        if !names.exists() {
            package(format_args!("{} is missing: run make guests-debug", names.display()));
            return None;
        }
        let mut machine = ring3();
        machine.arg("run").args(options).args(self.options);
        machine.args(["--append", &format!("{CONSOLE} nokaslr"), "--kernel"]).arg(kernel);
        machine.arg("--initrd").arg(file(self.initramfs));
        Some((machine, names))
    }
}

/// In the replay of a boot, gdb stops at functions of the kernel, names them on the stack and goes back to the last
/// write of a variable and to the last call of a function.
fn gdb_goes_back(kernel: &Kernel) {
    let Some((mut record, names)) = kernel.find(&[]) else { return };
    let directory = Directory::new();
    record.arg("--record").arg(directory.path("recording"));
    let script = directory.file("script", b"poweroff -f\n");
    record.stdin(fs::File::open(script).unwrap()).stdout(Stdio::null());
    output(&mut record);

    let replay = replay(&directory, "auto", &[]);
    let said = gdb(&[
        &format!("file {}", names.display()),
        &format!("target remote {}", directory.path("gdb").display()),
        "hbreak start_kernel",
        "continue",
        "bt",
        "delete",
        "hbreak begin_new_exec",
        "continue",
        "p bprm->filename",
        "bt",
        "delete",
        "break machine_power_off",
        "continue",
        "bt",
        "delete",
        "watch -location jiffies_64",
        "reverse-continue",
        "bt",
        "delete",
        "break begin_new_exec",
        "reverse-continue",
        "p bprm->filename",
        "reverse-stepi",
        "x/i $pc",
        "info line *$pc",
        "detach",
    ]);
    let expected = [
        "start_kernel () at init/main.c:",
        kernel.start,
        "begin_new_exec (bprm=",
        "\"/init\"\n",
        "load_elf_binary (",
        "run_init_process (",
        "ret_from_fork () at ",
        "machine_power_off () at arch/x86/kernel/reboot.c:",
        "__do_sys_reboot (magic1=",
        kernel.entry,
        "Hardware watchpoint 4: -location jiffies_64",
        "Old value = ",
        "tick_do_update_jiffies64 (",
        "hrtimer_interrupt (",
        "begin_new_exec (bprm=",
        "\"/proc/self/exe\"\n",
        "load_elf_binary (",
        "<begin_new_exec>",
        "of \"fs/binfmt_elf.c\" starts at address",
        "detached]",
    ];
    contains_in_order(&said, &expected);
    let (status, stats) = end(replay);
    assert_eq!(status, Some(0), "{stats}");
    assert!(counter(&stats, " returns to a checkpoint") >= 3, "{stats}");
}

#[test]
#[ignore = "needs `make guests-debug`, 700 MB a kernel; make test-long runs it"]
fn gdb_goes_back_in_a_boot_by_the_names_of_a_32_bit_kernel() {
    gdb_goes_back(&OF_32_BITS);
}

#[test]
#[ignore = "needs `make guests-debug`, 700 MB a kernel; make test-long runs it"]
fn gdb_goes_back_in_a_boot_by_the_names_of_a_64_bit_kernel() {
    gdb_goes_back(&OF_64_BITS);
}

/// crash 8 opens dumps of 64-bit kernels alone: of 32-bit ones it looks for a symbol that they do not have any more.
#[test]
#[ignore = "needs `make guests-debug`, 700 MB a kernel; make test-long runs it"]
fn crash_reads_a_dump_of_a_64_bit_kernel() {
    let Some((mut machine, names)) = OF_64_BITS.find(&["--serial", "stdio"]) else { return };
    if system_program("crash").arg("--version").output().is_err() {
        return package("crash is missing: apt-get install crash");
    }
    let directory = Directory::new();
    machine.arg("--qmp").arg(format!("unix:{}", directory.path("qmp").display()));
    let mut guest = Guest::of(machine);
    guest.wait_for(PROMPT);
    let core = directory.path("core");
    output(ring3().arg("dump").arg(directory.path("qmp")).arg(&core));
    let script = directory.file("script", b"sys\nbt 0\nlog\np init_task.comm\nquit\n");
    let mut crash = system_program("crash");
    crash.arg("-s").arg(names).arg(core).arg("-i").arg(script);
    let said = String::from_utf8(output(&mut crash)).unwrap();
    let expected = [
        "NODENAME: ring3\n",
        "MACHINE: x86_64",
        "COMMAND: \"swapper/0\"",
        " start_kernel at ",
        "Linux version ",
        "\"swapper/0",
    ];
    contains_in_order(&said, &expected);
    assert_eq!(guest.power_off(), Some(0));
}
