//! Whole machines whose kernels are a few instructions: the ways in which a run ends.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use crate::support::qmp::Qmp;
use crate::support::{Directory, HALT_FOR_EVER, kernel, ring3, wait_until};
use ring3_devices::acpi_pm::{CONTROL_BLOCK, DEFAULT_BASE, SLEEP_ENABLE, SLP_TYP_S5};
use ring3_devices::uart16550::COM_PORTS;
use rustix::io::ioctl_fionread;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

/// Returns code that sends `text` to COM1.
fn print(text: &str) -> Vec<u8> {
    print_at(0x3f8, text)
}

/// Returns code that writes `text` to `port`.
fn print_at(port: u16, text: &str) -> Vec<u8> {
    let [low, high] = port.to_le_bytes();
    let mut code = vec![0x66, 0xba, low, high]; // MOV DX, port
    for byte in text.bytes() {
        code.extend([0xb0, byte, 0xee]); // MOV AL, byte; OUT DX, AL
    }
    code
}

/// Returns code that switches the machine off (ACPI 6.5, 4.8.3.2.1).
fn power_off() -> Vec<u8> {
    let [port_low, port_high] = (DEFAULT_BASE + CONTROL_BLOCK).to_le_bytes();
    let [low, high] = (SLEEP_ENABLE | u16::from(SLP_TYP_S5) << 10).to_le_bytes();
    vec![
        0x66, 0xba, port_low, port_high, // MOV DX, PM1a_CNT
        0x66, 0xb8, low, high, //           MOV AX, SLP_EN and SLP_TYP
        0x66, 0xef, //                      OUT DX, AX
        0xeb, 0xfe, //                      JMP to itself
    ]
}

/// Code that faults without an IDT, so that the delivery of the fault faults, and the delivery of the double
/// fault, too.
const TRIPLE_FAULT: &[u8] = &[
    0x0f, 0x01, 0x1d, 0x0c, 0x00, 0x10, 0x00, // LIDT [10000Ch]
    0x0f, 0x0b, //                               UD2
    0, 0, 0, //
    0, 0, 0, 0, 0, 0, //                         10000C: limit 0, base 0
];

/// Code that sends x in an endless loop.
const BABBLE: &[u8] = &[
    0x66, 0xba, 0xf8, 0x03, // MOV DX, 3F8h
    0xb0, b'x', //             MOV AL, 'x'
    0xee, //                   OUT DX, AL
    0xeb, 0xfd, //             JMP to the OUT
];

/// MOV AL, value; OUT port, AL.
fn out(port: u8, value: u8) -> [u8; 4] {
    [0xb0, value, 0xe6, port]
}

/// Returns code that divides by zero on the x87 with CR0.NE clear. The handler of IRQ 13 sends h and clears
/// the error, and then the program sends p and switches the machine off.
fn numeric_error() -> Vec<u8> {
    const HANDLER: usize = 0x100;
    let pic = [(0x20, 0x11), (0x21, 0x20), (0x21, 4), (0x21, 1), (0x21, !(1 << 2))];
    let slave = [(0xa0, 0x11), (0xa1, 0x28), (0xa1, 2), (0xa1, 1), (0xa1, !(1 << 5))];
    let mut code = vec![0xbc, 0x00, 0x00, 0x18, 0x00]; // MOV ESP, 180000h
    code.extend(pic.iter().chain(&slave).flat_map(|(port, value)| out(*port, *value)));
    code.extend([
        // The gate of IRQ 13, vector 2Dh, in a table at 102000h.
        0xc7, 0x05, 0x68, 0x21, 0x10, 0x00, 0x00, 0x01, 0x10, 0x00, // MOV [102168h], 100100h
        0xc7, 0x05, 0x6c, 0x21, 0x10, 0x00, 0x00, 0x8e, 0x10, 0x00, // MOV [10216Ch], 108E00h
        0x68, 0x00, 0x20, 0x10, 0x00, //                               PUSH 102000h
        0x66, 0x68, 0xff, 0x07, //                                     PUSH WORD 7FFh
        0x0f, 0x01, 0x1c, 0x24, //                                     LIDT [ESP]
        0xfb, //                                                       STI
        0xdb, 0xe3, //                                                 FNINIT
        0x66, 0x68, 0x7b, 0x03, //                                     PUSH WORD 37Bh
        0xd9, 0x2c, 0x24, //                                           FLDCW [ESP]
        0xd9, 0xe8, 0xd9, 0xee, 0xde, 0xf9, //                         FLD1; FLDZ; FDIVP
        0x9b, //                                                       WAIT
    ]);
    code.extend([print("p"), power_off()].concat());
    code.resize(HANDLER, 0xf4);
    code.extend(out(0xf0, 0));
    code.extend(print("h"));
    code.extend([0xd9, 0xe8, 0xdb, 0xe2]); // FLD1, which needs IGNNE#; FNCLEX
    code.extend([out(0xa0, 0x20), out(0x20, 0x20)].concat());
    code.push(0xcf); // IRETD
    code
}

/// Returns the program, to run a machine of 2 MiB with `code` as its kernel.
fn machine(directory: &Directory, code: &[u8]) -> Command {
    let mut command = ring3();
    command
        .args(["run", "--memory=2M", "--kernel"])
        .arg(directory.file("kernel", &kernel(code)))
        .stdin(Stdio::null());
    command
}

fn output(command: &mut Command) -> Output {
    command.output().expect("the program starts")
}

#[test]
fn a_guest_that_switches_off_is_a_success() {
    let directory = Directory::new();
    let output = output(&mut machine(&directory, &[print("hello\r\n"), power_off()].concat()));
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "hello\r\n");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

#[test]
fn x87_errors_are_irq_13() {
    let directory = Directory::new();
    let output = output(&mut machine(&directory, &numeric_error()));
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "hp");
}

#[test]
fn the_serial_port_can_go_to_a_file() {
    let directory = Directory::new();
    let file = directory.file("serial", b"what was there before");
    let mut command = machine(&directory, &[print("hello"), power_off()].concat());
    let output = output(command.arg(format!("--serial=file:{}", file.display())));
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(output.stdout.is_empty());
    assert_eq!(std::fs::read_to_string(file).expect("the file was made"), "hello");
}

/// Returns code that sends `text` to COM1 to COM4, one after the other.
fn print_everywhere(text: &str) -> Vec<u8> {
    let ports = COM_PORTS.iter().flat_map(|port| {
        let [low, high] = port.base.to_le_bytes();
        let mut code = print(text);
        code[2..4].copy_from_slice(&[low, high]);
        code
    });
    ports.collect()
}

#[test]
fn four_serial_ports_have_four_targets() {
    let directory = Directory::new();
    let mut command = machine(&directory, &[print_everywhere("hello"), power_off()].concat());
    let [second, fourth] = ["second", "fourth"].map(|name| directory.path(name));
    command.args(["--serial=stdio", &format!("--serial=file:{}", second.display())]);
    command.args(["--serial=null", &format!("--serial=file:{}", fourth.display())]);
    let output = output(&mut command);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "hello");
    for file in [second, fourth] {
        assert_eq!(std::fs::read_to_string(file).expect("the file was made"), "hello");
    }
}

/// Returns code that echoes input on COM2 up to a q, and then switches the machine off.
fn echo() -> Vec<u8> {
    let mut code = vec![
        0x66, 0xba, 0xfd, 0x02, // MOV DX, 2FDh
        0xec, 0xa8, 0x01, //       IN AL, DX; TEST AL, 1
        0x74, 0xfb, //             JZ to the IN
        0x66, 0xba, 0xf8, 0x02, // MOV DX, 2F8h
        0xec, //                   IN AL, DX
        0xee, //                   OUT DX, AL
        0x3c, b'q', //             CMP AL, 'q'
        0x75, 0xed, //             JNE to the start
    ];
    code.extend(power_off());
    code
}

#[test]
fn clients_of_a_serial_port_come_and_go() {
    let directory = Directory::new();
    let socket = directory.path("com2");
    let mut child = machine(&directory, &echo())
        .args(["--serial=null", &format!("--serial=unix:{}", socket.display())])
        .spawn()
        .expect("the program starts");
    let connect = || wait_until("nobody is at the socket", || UnixStream::connect(&socket).ok());
    for word in ["one", "two", "q"] {
        let mut client = connect();
        client.write_all(word.as_bytes()).unwrap();
        let mut echo = vec![0; word.len()];
        client.read_exact(&mut echo).unwrap();
        assert_eq!(String::from_utf8_lossy(&echo), word);
    }
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(!socket.exists());
}

#[test]
fn a_pseudoterminal_is_named() {
    let directory = Directory::new();
    let mut child = machine(&directory, &echo())
        .args(["--serial=null", "--serial=pty"])
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut line = String::new();
    let mut errors = BufReader::new(child.stderr.take().expect("it was asked for"));
    errors.read_line(&mut line).unwrap();
    let name = line.strip_prefix("ring3: COM2 is ").expect("the name is shown").trim_end();
    let mut terminal = File::options().read(true).write(true).open(name).unwrap();
    terminal.write_all(b"\r\n\x03").unwrap();
    let mut echo = [0; 3];
    terminal.read_exact(&mut echo).unwrap();
    assert_eq!(&echo, b"\r\n\x03");
    terminal.write_all(b"q").unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_full_disk_ends_the_run_with_an_error() {
    let directory = Directory::new();
    let output = output(machine(&directory, BABBLE).arg("--serial=file:/dev/full"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert_eq!(errors, "ring3: cannot write to /dev/full: No space left on device (os error 28)\n");
}

#[test]
fn a_guest_that_nothing_can_wake_up_ends_the_run() {
    let directory = Directory::new();
    let output = output(&mut machine(&directory, HALT_FOR_EVER));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "{errors}");
    assert!(errors.starts_with("ring3: the guest has halted with interrupts disabled"), "{errors}");
    // The report of a triple fault: its place, and all registers.
    for part in ["eip 00100002", "halted", "esp ", "cs ", "idtr base", "cr0 ", "at eip: "] {
        assert!(errors.contains(part), "{part:?} is not in {errors}");
    }
}

/// A guest that resets as soon as it starts, in each possible way, causes a few lines: first a note of the
/// problem, and later that it continues. Clients of QMP receive them, too.
#[test]
fn a_loop_of_resets_is_reported_in_a_few_lines() {
    let directory = Directory::new();
    let stack = [0xbc, 0x00, 0x00, 0x18, 0x00]; // MOV ESP, 180000h
    let qmp = format!("--qmp=unix:{}", directory.path("qmp").display());
    for reset in [HARD_RESET, KEYBOARD_RESET, FAST_RESET, &[&stack, FAULT].concat()] {
        for more in [&[][..], &[&qmp]] {
            let mut child = machine(&directory, reset)
                .args(more)
                .stderr(Stdio::piped())
                .spawn()
                .expect("the program starts");
            let socket = directory.path("qmp");
            let client = more.first().map(|_| {
                let mut client = wait_until("nobody serves", || UnixStream::connect(&socket).ok());
                client.write_all(b"{\"execute\":\"qmp_capabilities\"}\n").unwrap();
                // The client does not read thousands of events.
                client
            });
            let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
            let mut said = Vec::new();
            loop {
                let line = lines.next().expect("it is told that the guest resets").unwrap();
                let is_last = line.contains("resets again and again: ");
                said.push(line);
                if is_last {
                    break;
                }
            }
            kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
            child.wait().unwrap();
            said.extend(lines.map(|line| line.unwrap()));
            drop(client);
            assert!(said.len() <= 4, "{said:#?}");
            assert!(said.iter().any(|line| line.contains("at 0010:001000")), "{said:#?}");
            let faults = reset.ends_with(FAULT);
            assert_eq!(said[0].contains("triple fault at 0010:00100"), faults, "{said:#?}");
        }
    }
}

/// Signals that end a process let the machine end in good order: counters are printed, and files are
/// complete. The parent process sees the signal, except with QEMU's command line, where the status is 0.
/// Ignored signals, as with nohup, stay ignored.
#[test]
fn signals_end_a_run_in_good_order() {
    let directory = Directory::new();
    let (recording, socket) = (directory.path("recording"), directory.path("qmp"));
    let kernel = directory.file("kernel", &kernel(&[&print("r")[..], &[0xeb, 0xfe]].concat()));
    let started = |command: &mut Command| {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let mut ready = [0];
        child.stdout.as_mut().unwrap().read_exact(&mut ready).expect("the guest runs");
        child
    };
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let mut command = ring3();
        command.args(["run", "-m2M", "--stats", "--record"]).arg(&recording);
        let child = started(command.arg("--kernel").arg(&kernel));
        // timeout(1) signals its command, and then the group to which it belongs.
        for _ in 0..2 {
            kill_process(Pid::from_child(&child), signal).expect("the program runs");
            thread::sleep(Duration::from_millis(2));
        }
        let output = child.wait_with_output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.signal(), Some(signal.as_raw()), "{errors}");
        assert!(errors.contains(" instructions\n") && errors.contains(" 0 resets"), "{errors}");
        let mut again = ring3();
        let again = again.args(["run", "--replay"]).arg(&recording).output().unwrap();
        assert_eq!(again.status.code(), Some(0), "{again:?}");
        assert_eq!(again.stdout, b"r");

        let mut qemu = ring3();
        qemu.args(["qemu", "-m", "2", "-nographic", "-kernel"]).arg(&kernel);
        let child = started(qemu.arg("-qmp").arg(format!("unix:{},server", socket.display())));
        let mut qmp = Qmp::connect(&socket);
        kill_process(Pid::from_child(&child), signal).expect("the program runs");
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        assert!(output.stderr.is_empty(), "{output:?}");
        let reason = json!({"guest": false, "reason": "host-signal"});
        assert_eq!(qmp.event("SHUTDOWN"), reason);
    }
    let mut ignoring = Command::new("sh");
    ignoring.args(["-c", "trap '' HUP; exec \"$0\" \"$@\""]).arg(ring3().get_program());
    let child = started(ignoring.args(["run", "-m2M", "--kernel"]).arg(&kernel));
    let id = Pid::from_child(&child);
    kill_process(id, Signal::HUP).expect("the program runs");
    kill_process(id, Signal::TERM).expect("it goes on");
    assert_eq!(child.wait_with_output().unwrap().status.signal(), Some(Signal::TERM.as_raw()));
}

/// A machine that cannot end, because its output is not read, dies of the second signal.
#[test]
fn a_second_signal_ends_a_run_at_once() {
    let directory = Directory::new();
    let mut child =
        machine(&directory, BABBLE).stdout(Stdio::piped()).spawn().expect("the program starts");
    let mut some = [0; 1000];
    let stdout = child.stdout.as_mut().unwrap();
    stdout.read_exact(&mut some).expect("the guest runs");
    // This ends when the pipe is full.
    wait_until("the pipe is not filled", || {
        let before = ioctl_fionread(&*stdout).unwrap();
        thread::sleep(Duration::from_millis(100));
        (before > 0 && ioctl_fionread(&*stdout).unwrap() == before).then_some(())
    });
    let id = Pid::from_child(&child);
    for _ in 0..2 {
        kill_process(id, Signal::TERM).unwrap();
        thread::sleep(Duration::from_millis(200));
    }
    assert_eq!(child.wait().unwrap().signal(), Some(Signal::TERM.as_raw()));
}

#[test]
fn a_guest_can_give_the_status() {
    let directory = Directory::new();
    // MOV AL, 10h; OUT F4h, AL; JMP to itself
    let mut command = machine(&directory, &[&out(0xf4, 0x10)[..], &[0xeb, 0xfe]].concat());
    let output = output(command.arg("--debug-exit=0xf4"));
    assert_eq!(output.status.code(), Some(0x21), "{output:?}");
}

#[test]
fn a_qemu_command_line_does_the_same() {
    let directory = Directory::new();
    let kernel =
        directory.file("kernel", &kernel(&[print("hello"), out(0xf4, 1).to_vec()].concat()));
    let mut command = ring3();
    command.args([
        "qemu",
        "qemu-system-i386",
        "-m",
        "2",
        "-nographic",
        "-no-reboot",
        "-cpu",
        "486",
    ]);
    command.args(["-device", "isa-debug-exit,iobase=0xf4,iosize=0x04", "-kernel"]).arg(kernel);
    let output = output(command.stdin(Stdio::null()));
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "hello");
}

/// Returns code that sends the first byte of the random seed, and the year that the clock shows.
fn print_seed_and_year() -> Vec<u8> {
    let mut code = vec![
        0x8b, 0xb6, 0x50, 0x02, 0x00, 0x00, // MOV ESI, [ESI+250h]: setup_data
        0x8a, 0x46, 0x10, //                   MOV AL, [ESI+10h]
        0x66, 0xba, 0xf8, 0x03, //             MOV DX, 3F8h
        0xee, //                               OUT DX, AL
        0xb0, 0x09, 0xe6, 0x70, 0xe4, 0x71, // MOV AL, 9; OUT 70h, AL; IN AL, 71h
        0xee, //                               OUT DX, AL
    ];
    code.extend(power_off());
    code
}

#[test]
fn seed_and_clock_have_the_given_values() {
    let directory = Directory::new();
    let mut command = machine(&directory, &print_seed_and_year());
    let output = output(command.args(["--seed=77", "--rtc=base=1999-12-24T18:00:00"]));
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(output.stdout, [77, 0x99]);
}

#[test]
fn the_log_goes_to_a_file() {
    let directory = Directory::new();
    let log = directory.path("log");
    let mut command = machine(&directory, &power_off());
    let output = output(command.args(["--log=ring3_vm=info", "--log-file"]).arg(&log));
    assert!(output.stderr.is_empty(), "{output:?}");
    let log = std::fs::read_to_string(log).expect("the file was made");
    assert!(log.contains("the guest has switched the machine off"), "{log}");
}

#[test]
fn the_last_message_of_the_firmware_is_logged_without_an_end_of_line() {
    let directory = Directory::new();
    let code = [print_at(0x402, "first\nlast"), power_off()].concat();
    let output = output(machine(&directory, &code).arg("--log=ring3::firmware=debug"));
    let errors = String::from_utf8_lossy(&output.stderr);
    let ends: Vec<_> = errors.lines().filter_map(|line| line.split_whitespace().last()).collect();
    assert_eq!(ends, ["first", "last"], "{errors}");
}

#[test]
fn counters_are_shown_when_asked_for() {
    let directory = Directory::new();
    let output = output(machine(&directory, &power_off()).arg("--stats"));
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let errors = String::from_utf8_lossy(&output.stderr);
    for line in
        ["instructions", "s of it in the guest's code", "s of it in devices", "s of it asleep"]
    {
        assert!(errors.contains(line), "{errors}");
    }
}

#[test]
fn a_triple_fault_is_reported() {
    let directory = Directory::new();
    let output = output(machine(&directory, TRIPLE_FAULT).arg("--no-reboot"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{errors}");
    assert!(errors.starts_with("ring3: the processor has stopped: "), "{errors}");
}

/// Returns code that ends the run if the byte in CMOS memory is set. If not, it sets the byte and executes
/// `reset`.
fn once(reset: &[u8]) -> Vec<u8> {
    let off = power_off();
    let mut code = vec![
        0xb0,
        0x40,
        0xe6,
        0x70, //      MOV AL, 40h; OUT 70h, AL
        0xe4,
        0x71,
        0x84,
        0xc0, //      IN AL, 71h; TEST AL, AL
        0x74,
        off.len() as u8, //       JZ over what switches off
    ];
    code.extend(off);
    code.extend([0xb0, 0x01, 0xe6, 0x71]); // MOV AL, 1; OUT 71h, AL
    code.extend(reset);
    code
}

/// Code that asks the ISA bridge for a reset, and then loops.
const HARD_RESET: &[u8] = &[0x66, 0xba, 0xf9, 0x0c, 0xb0, 0x06, 0xee, 0xeb, 0xfe];
/// Code for a reset by the keyboard controller's pulse, and by port 92h.
const KEYBOARD_RESET: &[u8] = &[0xb0, 0xfe, 0xe6, 0x64, 0xeb, 0xfe];
const FAST_RESET: &[u8] = &[0xb0, 0x01, 0xe6, 0x92, 0xeb, 0xfe];
/// Code that loads an IDT without entries, at any address, and faults.
const FAULT: &[u8] = &[
    0x68, 0, 0, 0, 0, 0x68, 0, 0, 0, 0, // PUSH 0; PUSH 0
    0x0f, 0x01, 0x1c, 0x24, //             LIDT [ESP]
    0x0f, 0x0b, //                         UD2
];

#[test]
fn every_reset_starts_the_kernel_again() {
    let directory = Directory::new();
    let stack = [0xbc, 0x00, 0x00, 0x18, 0x00]; // MOV ESP, 180000h
    for reset in [HARD_RESET, KEYBOARD_RESET, FAST_RESET, &[&stack, FAULT].concat()] {
        let output = output(machine(&directory, &once(reset)).arg("--stats"));
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{errors}");
        assert!(errors.contains(" 1 resets"), "{errors}");
    }
}

#[test]
fn a_reset_ends_the_run_when_asked_to() {
    let directory = Directory::new();
    let output = output(machine(&directory, HARD_RESET).args(["--no-reboot", "--stats"]));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{errors}");
    assert!(errors.contains(" 0 resets"), "{errors}");
}

/// Returns a kernel with a Multiboot header whose address fields put it at 1 MiB.
fn multiboot(code: &[u8]) -> Vec<u8> {
    const MAGIC: u32 = 0x1bad_b002;
    const FLAGS: u32 = 1 << 16;
    const START: u32 = 0x10_0000;
    let checksum = 0u32.wrapping_sub(MAGIC).wrapping_sub(FLAGS);
    let header = [MAGIC, FLAGS, checksum, START, START, 0, 0, START + 32];
    let mut file: Vec<u8> = header.iter().flat_map(|word| word.to_le_bytes()).collect();
    file.extend(code);
    file
}

/// Returns code that sends the text to COM1, up to a zero byte, that EBX + `offset` points to by `steps`
/// further pointers.
fn print_from_information(offset: u8, steps: usize) -> Vec<u8> {
    let mut code = vec![0x8b, 0x73, offset]; // MOV ESI, [EBX+offset]
    for _ in 0..steps {
        code.extend([0x8b, 0x36]); //           MOV ESI, [ESI]
    }
    code.extend([
        0x66, 0xba, 0xf8, 0x03, //              MOV DX, 3F8h
        0xac, 0x84, 0xc0, //                    LODSB; TEST AL, AL
        0x74, 0x03, //                          JZ behind
        0xee, 0xeb, 0xf8, //                    OUT DX, AL; JMP to the LODSB
    ]);
    code
}

#[test]
fn a_multiboot_kernel_starts_with_command_line_and_modules() {
    const CMDLINE: u8 = 16;
    const MODS_ADDR: u8 = 24;
    let directory = Directory::new();
    let code =
        [print_from_information(CMDLINE, 0), print_from_information(MODS_ADDR, 1), power_off()]
            .concat();
    let kernel = directory.file("kernel", &multiboot(&code));
    let module = directory.file("module", b" and a module\0");
    let mut command = ring3();
    command.args(["run", "--memory=2M", "--append=quiet", "--kernel"]).arg(kernel);
    let output = output(command.arg("--initrd").arg(module).stdin(Stdio::null()));
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "kernel quiet and a module");
}

#[test]
fn unread_output_ends_the_run_with_an_error() {
    let directory = Directory::new();
    let mut child = machine(&directory, BABBLE)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    drop(child.stdout.take());
    let mut errors = String::new();
    let mut stderr = child.stderr.take().expect("it was asked for");
    stderr.read_to_string(&mut errors).expect("messages are text");
    let status = child.wait().expect("it is our child");
    assert_eq!(status.code(), Some(1), "{errors}");
    assert_eq!(errors, "ring3: cannot write to standard output: Broken pipe (os error 32)\n");
}

/// Returns code that jumps to each of `targets`, where there must be an invalid opcode at the second address.
/// It sends u for each correct address, and x for each other one.
fn execute_elsewhere(targets: &[(u32, u32)]) -> Vec<u8> {
    const HANDLER: usize = 0x180;
    let mut code = vec![
        0xbc, 0x00, 0x00, 0x18, 0x00, //                               MOV ESP, 180000h
        // The gate of #UD, vector 6, in a table at 102000h.
        0xc7, 0x05, 0x30, 0x20, 0x10, 0x00, 0x80, 0x01, 0x10, 0x00, // MOV [102030h], 100180h
        0xc7, 0x05, 0x34, 0x20, 0x10, 0x00, 0x00, 0x8e, 0x10, 0x00, // MOV [102034h], 108E00h
        0x68, 0x00, 0x20, 0x10, 0x00, //                               PUSH 102000h
        0x66, 0x68, 0xff, 0x07, //                                     PUSH WORD 7FFh
        0x0f, 0x01, 0x1c, 0x24, //                                     LIDT [ESP]
        0xc6, 0x05, 0xff, 0xff, 0x1f, 0x00, 0xeb, //                   MOV BYTE [1FFFFFh], EBh
    ];
    for (target, found) in targets {
        let next = 0x10_0000 + code.len() as u32 + 17;
        code.push(0xbb); // MOV EBX, next
        code.extend(next.to_le_bytes());
        code.push(0xbe); // MOV ESI, found
        code.extend(found.to_le_bytes());
        code.push(0xb9); // MOV ECX, target
        code.extend(target.to_le_bytes());
        code.extend([0xff, 0xe1]); // JMP ECX
    }
    code.extend(power_off());
    assert!(code.len() <= HANDLER);
    code.resize(HANDLER, 0xf4);
    code.extend([
        0x66, 0xba, 0xf8, 0x03, // MOV DX, 3F8h
        0xb0, b'u', //             MOV AL, 'u'
        0x39, 0x34, 0x24, //       CMP [ESP], ESI
        0x74, 0x02, //             JE over
        0xb0, b'x', //             MOV AL, 'x'
        0xee, //                   over: OUT DX, AL
        0x83, 0xc4, 0x0c, //       ADD ESP, 12
        0xff, 0xe3, //             JMP EBX
    ]);
    code
}

/// Beyond the end of memory, at the local APIC, the I/O APIC, the HPET and a window for PCI, fetches read
/// ones, which are not an instruction. At the last byte of memory is a jump whose second byte lies beyond it.
#[test]
fn code_in_device_memory_or_without_memory_ends_the_run() {
    let directory = Directory::new();
    let targets = [
        (0x20_0000, 0x20_0000),
        (0xfee0_0000, 0xfee0_0000),
        (0xfec0_0010, 0xfec0_0010),
        (0xfed0_00f0, 0xfed0_00f0),
        (0xe800_0123, 0xe800_0123),
        (0x1f_ffff, 0x20_0000),
    ];
    let code = execute_elsewhere(&targets);
    for engine in ["interpreter", "auto"] {
        let output = output(machine(&directory, &code).args(["--engine", engine]));
        assert_eq!(String::from_utf8_lossy(&output.stdout), "u".repeat(targets.len()), "{engine}");
        assert_eq!(output.status.code(), Some(0), "{output:?}");
    }
}

/// The guest's statuses that have another meaning come with a line that says so.
#[test]
fn a_status_of_the_guest_differs_from_one_of_the_host() {
    let directory = Directory::new();
    for (value, is_told) in [(0u8, true), (1, true), (2, true), (3, false), (0x21, false)] {
        let code = [&out(0xf4, value)[..], &[0xf4]].concat();
        let output = output(machine(&directory, &code).arg("--debug-exit=0xf4"));
        assert_eq!(output.status.code(), Some(2 * i32::from(value) + 1), "{output:?}");
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(told.contains("by the debug exit"), is_told, "{told}");
    }
}
