//! Whole machines whose kernels are a few instructions: how a run ends.

mod support;

use std::io::Read;
use std::process::{Command, Output, Stdio};

use ring3_devices::acpi_pm::{CONTROL_BLOCK, DEFAULT_BASE, SLEEP_ENABLE, SLP_TYP_S5};
use support::{Directory, kernel, ring3};

/// Code that sends `text` to COM1.
fn print(text: &str) -> Vec<u8> {
    let mut code = vec![0x66, 0xba, 0xf8, 0x03]; // MOV DX, 3F8h
    for byte in text.bytes() {
        code.extend([0xb0, byte, 0xee]); // MOV AL, byte; OUT DX, AL
    }
    code
}

/// Code that switches the machine off (ACPI 6.5, 4.8.3.2.1).
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

/// Code that faults without an IDT, so that delivering the fault faults, and that too.
const TRIPLE_FAULT: &[u8] = &[
    0x0f, 0x01, 0x1d, 0x0c, 0x00, 0x10, 0x00, // LIDT [10000Ch]
    0x0f, 0x0b, //                               UD2
    0, 0, 0, //
    0, 0, 0, 0, 0, 0, //                         10000C: limit 0, base 0
];

/// Code that sends x for ever.
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

/// Code that divides by zero on the x87 with CR0.NE clear. The handler of IRQ 13 sends h and clears the error, and
/// then the program sends p and switches the machine off.
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

/// The program, to run a machine of 2 MiB with `code` as its kernel.
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

#[test]
fn counters_are_shown_when_asked_for() {
    let directory = Directory::new();
    let output = output(machine(&directory, &power_off()).arg("--stats"));
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(!output.stderr.is_empty());
}

#[test]
fn a_triple_fault_is_reported() {
    let directory = Directory::new();
    let output = output(&mut machine(&directory, TRIPLE_FAULT));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{errors}");
    assert!(errors.starts_with("ring3: the processor has stopped: "), "{errors}");
}

#[test]
fn output_that_nobody_reads_ends_the_run_with_an_error() {
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
