//! `--guest-tools`: functions of the machine that programs in the guest call by CPUID.

use std::process::Command;

use crate::support::{Directory, kernel, output, ring3};

/// Reads the host's clocks, sends ECX, which has the seconds, to the debug console, and switches off. Without an
/// answer it sends nothing.
#[rustfmt::skip]
const SECONDS: &[u8] = &[
    0xb8, b'Q', b'E', b'M', b'U', //             MOV EAX, "QEMU"
    0xba, b't', b'i', b'm', b'e', //             MOV EDX, "time"
    0x31, 0xc9, 0x31, 0xdb, //                   XOR ECX, ECX; XOR EBX, EBX
    0xf9, 0x0f, 0xa2, //                         STC; CPUID
    0x72, 0x12, //                               JC off
    0xbf, 0x04, 0x00, 0x00, 0x00, //             MOV EDI, 4
    0x66, 0xba, 0x02, 0x04, //                   MOV DX, 402h
    0x88, 0xc8, 0xee, //                         next: MOV AL, CL; OUT DX, AL
    0xc1, 0xe9, 0x08, //                         SHR ECX, 8
    0x4f, //                                     DEC EDI
    0x75, 0xf7, //                               JNZ next
    0x66, 0xba, 0x04, 0x06, //                   off: MOV DX, 604h
    0x66, 0xb8, 0x00, 0x20, 0x66, 0xef, //       MOV AX, 2000h; OUT DX, AX
    0xeb, 0xfe, //                               JMP to itself
];

fn run(directory: &Directory, options: &str) -> Vec<u8> {
    let mut command = ring3();
    command.arg("run").args(["--serial", "none", "--debugcon", "stdio"]);
    command.args(options.split_whitespace()).current_dir(directory.path("."));
    output(&mut command)
}

#[test]
fn host_time_is_read_if_it_is_allowed_and_repeats_in_a_replay() {
    let directory = Directory::new();
    directory.file("kernel", &kernel(SECONDS));
    let now = || {
        let date = output(Command::new("date").arg("+%s"));
        String::from_utf8(date).unwrap().trim().parse::<u64>().unwrap()
    };
    for engine in ["interpreter", "auto"] {
        let before = now();
        let options = format!(
            "--kernel kernel --engine {engine} --guest-tools host-time --record recording"
        );
        let sent = run(&directory, &options);
        let seconds = u32::from_le_bytes(sent.as_slice().try_into().expect("four bytes"));
        assert!((before..=now()).contains(&seconds.into()), "{seconds}");
        assert_eq!(run(&directory, &format!("--replay recording --engine {engine}")), sent);
        assert_eq!(run(&directory, &format!("--kernel kernel --engine {engine}")), b"");
    }
}

#[test]
fn a_tool_that_does_not_exist_is_refused() {
    let directory = Directory::new();
    let path = directory.file("kernel", &kernel(SECONDS));
    let mut command = ring3();
    command.args(["run", "--guest-tools", "host-time,telepathy", "--kernel"]).arg(path);
    let refused = command.output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
    let message = String::from_utf8(refused.stderr).unwrap();
    assert!(message.contains("telepathy") && message.contains("host-time"), "{message}");
}
