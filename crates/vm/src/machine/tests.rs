mod back;
mod debugger;
mod deterministic;
mod drives;
#[path = "../../tests/whole/support/file.rs"]
mod file;
mod flight;

use std::thread;
use std::time::Duration;

use ring3_core::device::DeviceId;
use ring3_core::disk::{DriveId, Medium};
use ring3_core::input::DeviceInput;
use ring3_devices::ide::{DriveKind, DriveModel};

use super::*;
use crate::config::Kernel;
use crate::control::{ChangeError, Ended, Event, MediumHeld, Status};
use crate::door::door;
use crate::drives::Empty;
use crate::linux::tests::kernel_of;

/// A guest whose every step depends on time and input: it lets the timer interrupt it a
/// thousand times a second, hashes the time-stamp counter at each tick, echoes what comes on
/// COM1 with the hash added, and switches off after a 'q'.
#[rustfmt::skip]
const CLOCKED_ECHO: &[u8] = &[
    0xbc, 0x00, 0x00, 0x18, 0x00, //                   100000: MOV ESP, 180000h
    0x0f, 0x01, 0x1d, 0x80, 0x00, 0x10, 0x00, //       100005: LIDT [100080h]
    0xb0, 0x11, 0xe6, 0x20, //                         10000C: ICW1 to the first 8259A
    0xb0, 0x00, 0xe6, 0x21, //                         100010: ICW2: vectors from 0
    0xb0, 0x04, 0xe6, 0x21, //                         100014: ICW3
    0xb0, 0x03, 0xe6, 0x21, //                         100018: ICW4: automatic end of interrupt
    0xb0, 0xfe, 0xe6, 0x21, //                         10001C: IRQ 0 alone
    0xb0, 0x34, 0xe6, 0x43, //                         100020: counter 0, mode 2
    0xb0, 0xa9, 0xe6, 0x40, //                         100024: 1193 ticks
    0xb0, 0x04, 0xe6, 0x40, //                         100028
    0xfb, //                                           10002C: STI
    0xf4, //                                           10002D: HLT
    0x66, 0xba, 0xfd, 0x03, //                         10002E: MOV DX, 3FDh
    0xec, //                                           100032: IN AL, DX
    0xa8, 0x01, //                                     100033: TEST AL, 1
    0x74, 0xf6, //                                     100035: JZ 10002D
    0x66, 0xba, 0xf8, 0x03, //                         100037: MOV DX, 3F8h
    0xec, //                                           10003B: IN AL, DX
    0x3c, b'q', //                                     10003C: CMP AL, 'q'
    0x74, 0x05, //                                     10003E: JE 100045
    0x00, 0xd8, //                                     100040: ADD AL, BL
    0xee, //                                           100042: OUT DX, AL
    0xeb, 0xe8, //                                     100043: JMP 10002D
    0x66, 0xba, 0x04, 0x06, //                         100045: MOV DX, 604h
    0x66, 0xb8, 0x00, 0x20, //                         100049: MOV AX, 2000h
    0x66, 0xef, //                                     10004D: OUT DX, AX
    0xeb, 0xfe, //                                     10004F: JMP to itself
    0x50, 0x52, //                                     100051: PUSH EAX; PUSH EDX
    0x0f, 0x31, //                                     100053: RDTSC
    0x69, 0xdb, 0x01, 0x01, 0x00, 0x01, //             100055: IMUL EBX, EBX, 1000101h
    0x01, 0xc3, //                                     10005B: ADD EBX, EAX
    0x5a, 0x58, //                                     10005D: POP EDX; POP EAX
    0xcf, //                                           10005F: IRETD
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    0x07, 0x00, 0x88, 0x00, 0x10, 0x00, 0x00, 0x00, // 100080: IDT: limit and base
    0x51, 0x00, 0x10, 0x00, 0x00, 0x8e, 0x10, 0x00, // 100088: interrupt gate to 100051
];

/// MOV DX, 604h; MOV AX, 2000h; OUT DX, AX; JMP to itself: switches off.
const POWER_OFF: &[u8] = &[0x66, 0xba, 0x04, 0x06, 0x66, 0xb8, 0x00, 0x20, 0x66, 0xef, 0xeb, 0xfe];

#[derive(Default)]
struct Sent(Vec<u8>);

impl Console for Sent {
    fn serial(&mut self, _: u8, bytes: &[u8]) -> io::Result<()> {
        self.0.extend(bytes);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn vm() -> Vm {
    vm_with(CLOCKED_ECHO)
}

/// A machine that starts `code` at 100000h.
fn vm_with(code: &[u8]) -> Vm {
    let config = Config { memory_bytes: 64 << 20, ..Config::default() };
    let kernel = Kernel { image: kernel_of(code).into(), ..Kernel::default() };
    Vm::new(config, Software::Kernel(kernel)).unwrap()
}

#[test]
fn a_run_is_repeated_by_its_inputs_alone() {
    let mut live = vm();
    live.record();
    let (sender, mut door) = door();
    let typist = thread::spawn(move || {
        for byte in *b"ring3 runs in ring 3q" {
            thread::sleep(Duration::from_millis(5));
            let input = DeviceInput::Serial(vec![byte]);
            sender.send(Input::Device { device: DeviceId::COM[0], input });
        }
    });
    let mut sent = Sent::default();
    assert_eq!(live.run(&mut door, &mut sent).unwrap(), Ending::PowerOff);
    typist.join().unwrap();
    assert_eq!(sent.0.len(), 20);

    assert_repeats(&mut live, &sent);
}

/// Asserts that the recording of `live`, which sent `sent` and switched itself off, repeats it.
#[track_caller]
fn assert_repeats(live: &mut Vm, sent: &Sent) {
    let mut replayed = Vm::new(live.config.clone(), (*live.software).clone()).unwrap();
    let mut again = Sent::default();
    let ending = replayed.replay(live.recording(), &mut again).unwrap();
    assert_eq!(ending, Ending::PowerOff);
    assert_eq!(again.0, sent.0);
    assert_eq!(replayed.cpu.save(), live.cpu.save());
    assert_eq!(replayed.board.save(), live.board.save());
    assert!(replayed.memory.contents() == live.memory.contents());
    assert_eq!(replayed.now(), live.now());
}

fn typed(byte: u8) -> Input {
    Input::Device { device: DeviceId::COM[0], input: DeviceInput::Serial(vec![byte]) }
}

#[test]
fn a_pause_stops_time_and_the_guest_and_does_not_change_a_replay() {
    let mut live = vm();
    live.record();
    let (sender, mut door) = door();
    let events = sender.control().subscribe();
    let person = thread::spawn(move || {
        let control = sender.control();
        sender.send(typed(b'1'));
        thread::sleep(Duration::from_millis(20));
        for _ in 0..3 {
            control.pause().unwrap();
            control.pause().unwrap();
            assert_eq!(control.status(), Status::Paused);
            let before = control.stats().unwrap();
            thread::sleep(Duration::from_millis(5));
            sender.send(typed(b'2'));
            sender.send(Input::Reset);
            let after = loop {
                let stats = control.stats().unwrap();
                if stats.resets > before.resets {
                    break stats;
                }
            };
            assert_eq!(after.instructions, before.instructions);
            assert_eq!(after.virtual_time, before.virtual_time);
            assert_eq!(after.host_time, before.host_time);
            control.resume().unwrap();
            assert_eq!(control.status(), Status::Running);
            while control.stats().unwrap().virtual_time == after.virtual_time {}
        }
        control.press_power_button();
        assert_eq!(control.picture(), Ok(None));
        assert_eq!(control.drives(), Ok(Vec::new()));
        sender.send(typed(b'q'));
        // The machine is about to end, and will report it soon.
        while control.stats().is_ok() {}
        assert_eq!(control.status(), Status::Ended);
    });
    let mut sent = Sent::default();
    assert_eq!(live.run(&mut door, &mut sent).unwrap(), Ending::PowerOff);
    person.join().unwrap();
    let reset = Event::Reset { by_guest: false };
    let mut expected = Vec::new();
    for _ in 0..3 {
        expected.extend([Event::Paused, reset.clone(), Event::Resumed]);
    }
    expected.extend([Event::PowerButton, Event::Ended(Ending::PowerOff)]);
    assert_eq!(events.collect::<Vec<_>>(), expected);
    assert_repeats(&mut live, &sent);
}

#[test]
fn a_paused_machine_can_be_ended() {
    let (sender, mut door) = door();
    let person = thread::spawn(move || {
        sender.control().pause().unwrap();
        sender.send(Input::Quit);
    });
    assert_eq!(vm().run(&mut door, &mut Sent::default()).unwrap(), Ending::Quit);
    person.join().unwrap();
}

#[test]
fn a_recording_of_another_run_is_recognized() {
    let byte = DeviceInput::Serial(vec![0]);
    let first = Input::Device { device: DeviceId::COM[0], input: byte };
    let wrong = [
        StampedInput { instructions: 10, time: Time::ZERO, input: first },
        StampedInput { instructions: 5, time: Time::ZERO, input: Input::Quit },
    ];
    let result = vm().replay(&wrong, &mut Sent::default());
    assert!(matches!(result, Err(VmError::Diverged(10))));
}

/// A guest that has a copy of itself 1 MiB lower. The copy lacks what the guest executes until it masks
/// address line 20, and has another datum.
#[rustfmt::skip]
const A20_SWITCHER: &[u8] = &[
    0xbe, 0x00, 0x00, 0x10, 0x00, //       100000: MOV ESI, 100000h
    0x31, 0xff, //                         100005: XOR EDI, EDI
    0xb9, 0x80, 0x00, 0x00, 0x00, //       100007: MOV ECX, 80h
    0xf3, 0xa4, //                         10000C: REP MOVSB
    0x31, 0xff, //                         10000E: XOR EDI, EDI
    0xb9, 0x2a, 0x00, 0x00, 0x00, //       100010: MOV ECX, 2Ah
    0xb0, 0xf4, //                         100015: MOV AL, F4h (HLT)
    0xf3, 0xaa, //                         100017: REP STOSB
    0xc6, 0x05, 0x50, 0x00, 0x00, 0x00, b'l', // 100019: MOV BYTE [50h], 'l'
    0x90, 0x90, //                         100020: NOP; NOP
    0xb0, 0x00, 0xe6, 0x92, //             100022: MOV AL, 0; OUT 92h, AL
    0xb0, 0xdd, 0xe6, 0x64, //             100026: MOV AL, DDh; OUT 64h, AL
    0x66, 0xba, 0xf8, 0x03, //             00002A: MOV DX, 3F8h
    0xa0, 0x50, 0x00, 0x10, 0x00, 0xee, // 00002E: MOV AL, [100050h]; OUT DX, AL
    0xb0, 0x02, 0xe6, 0x92, //             000034: MOV AL, 2; OUT 92h, AL
    0xa0, 0x50, 0x00, 0x10, 0x00, 0xee, // 100038: MOV AL, [100050h]; OUT DX, AL
    0x66, 0xba, 0x04, 0x06, //             10003E: MOV DX, 604h
    0x66, 0xb8, 0x00, 0x20, //             100042: MOV AX, 2000h
    0x66, 0xef, //                         100046: OUT DX, AX
    0xeb, 0xfe, //                         100048: JMP to itself
    0, 0, 0, 0, 0, 0, //                   10004A
    b'h', //                               100050
];

/// The OUT itself is executed where it was fetched, but the next instruction is not.
#[test]
fn address_line_20_changes_between_two_instructions() {
    let mut sent = Sent::default();
    let (_sender, mut door) = door();
    let mut vm = vm_with(A20_SWITCHER);
    assert_eq!(vm.run(&mut door, &mut sent).unwrap(), Ending::PowerOff);
    assert_eq!(sent.0, b"lh");
}

/// A guest that has a copy of itself 1 MiB lower, with another datum. It adds up the datum while it switches
/// address line 20 200 times.
#[rustfmt::skip]
const A20_ADDER: &[u8] = &[
    0xbe, 0x00, 0x00, 0x10, 0x00, //       100000: MOV ESI, 100000h
    0x31, 0xff, //                         100005: XOR EDI, EDI
    0xb9, 0x80, 0x00, 0x00, 0x00, //       100007: MOV ECX, 80h
    0xf3, 0xa4, //                         10000C: REP MOVSB
    0xc6, 0x05, 0x50, 0x00, 0x00, 0x00, b'l', // 10000E: MOV BYTE [50h], 'l'
    0xb0, 0xdd, 0xe6, 0x64, //             100015: MOV AL, DDh; OUT 64h, AL
    0xb9, 0xc8, 0x00, 0x00, 0x00, //       100019: MOV ECX, 200
    0x31, 0xdb, //                         10001E: XOR EBX, EBX
    0x88, 0xc8, 0x24, 0x01, 0x00, 0xc0, // 100020: MOV AL, CL; AND AL, 1; ADD AL, AL
    0xe6, 0x92, //                         100026: OUT 92h, AL
    0x69, 0xdb, 0x01, 0x01, 0x00, 0x01, // 100028: IMUL EBX, EBX, 1000101h
    0x0f, 0xb6, 0x05, 0x50, 0x00, 0x10, 0x00, // 10002E: MOVZX EAX, BYTE [100050h]
    0x01, 0xc3, //                         100035: ADD EBX, EAX
    0x49, 0x75, 0xe6, //                   100037: DEC ECX; JNZ 100020
    0x66, 0xba, 0xf8, 0x03, //             10003A: MOV DX, 3F8h
    0x88, 0xd8, 0xee, //                   10003E: MOV AL, BL; OUT DX, AL
    0x88, 0xf8, 0xee, //                   100041: MOV AL, BH; OUT DX, AL
    0x66, 0xba, 0x04, 0x06, //             100044: MOV DX, 604h
    0x66, 0xb8, 0x00, 0x20, //             100048: MOV AX, 2000h
    0x66, 0xef, //                         10004C: OUT DX, AX
    0xeb, 0xfe, //                         10004E: JMP to itself
    b'h', //                               100050
];

#[test]
fn every_engine_masks_address_line_20() {
    let sum = (1..=200_u32).rev().fold(0_u32, |sum, count| {
        let datum = if count % 2 == 1 { b'h' } else { b'l' };
        sum.wrapping_mul(0x0100_0101).wrapping_add(datum.into())
    });
    for engine in [EngineChoice::Interpreter, EngineChoice::Auto] {
        let config = Config { memory_bytes: 64 << 20, ..Config::default() };
        let kernel = Kernel { image: kernel_of(A20_ADDER).into(), ..Kernel::default() };
        let mut vm = Vm::with_engine(config, Software::Kernel(kernel), engine).unwrap();
        let mut sent = Sent::default();
        let (_sender, mut door) = door();
        assert_eq!(vm.run(&mut door, &mut sent).unwrap(), Ending::PowerOff);
        assert_eq!(sent.0, sum.to_le_bytes()[..2], "{engine:?}");
    }
}

/// A guest that locks the tray of its CD-ROM drive (PREVENT ALLOW MEDIUM REMOVAL), says so on COM1 and halts.
#[rustfmt::skip]
const TRAY_LOCKER: &[u8] = &[
    0x66, 0xba, 0x77, 0x01, //             100000: MOV DX, 177h
    0xb0, 0xa0, 0xee, //                   100004: MOV AL, A0h (PACKET); OUT DX, AL
    0xb2, 0x70, //                         100007: MOV DL, 70h
    0xbe, 0x20, 0x00, 0x10, 0x00, //       100009: MOV ESI, 100020h
    0xb9, 0x06, 0x00, 0x00, 0x00, //       10000E: MOV ECX, 6
    0xf3, 0x66, 0x6f, //                   100013: REP OUTSW
    0x66, 0xba, 0xf8, 0x03, //             100016: MOV DX, 3F8h
    0xee, //                               10001A: OUT DX, AL
    0xfa, 0xf4, //                         10001B: CLI; HLT
    0xeb, 0xfc, 0x90, //                   10001D: JMP 10001B
    0x1e, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, // 100020
];

/// Tells a thread when something comes from the guest.
struct Signal(std::sync::mpsc::Sender<()>);

impl Console for Signal {
    fn serial(&mut self, _: u8, _: &[u8]) -> io::Result<()> {
        // The thread may have ended already.
        let _ = self.0.send(());
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_guest_that_has_locked_the_tray_is_asked_for_the_disc() {
    let medium = Some(Medium { sectors: 8, read_only: true });
    let drive = DriveModel {
        kind: DriveKind::CdRom(medium),
        model: "drive".to_owned(),
        serial: "1".to_owned(),
        trims: false,
    };
    let config = Config {
        memory_bytes: 64 << 20,
        ide: [None, None, Some(drive), None],
        ..Config::default()
    };
    let kernel = Kernel { image: kernel_of(TRAY_LOCKER).into(), ..Kernel::default() };
    let mut vm = Vm::new(config, Software::Kernel(kernel)).unwrap();
    vm.record();
    let (sender, mut door) = door();
    let (signal, locked) = std::sync::mpsc::channel();
    let person = thread::spawn(move || {
        let control = sender.control();
        locked.recv().unwrap();
        let change =
            |force| control.change_medium(DriveId::new(DeviceId::IDE, 2), Box::new(Empty), force);
        assert!(control.drives().unwrap()[0].locked);
        assert_eq!(change(false), Err(ChangeError::Held(MediumHeld)));
        assert!(control.drives().unwrap()[0].locked);
        assert_eq!(change(true), Ok(()));
        assert!(!control.drives().unwrap()[0].locked);
        control.quit();
        while control.stats().is_ok() {}
        assert_eq!(change(false), Err(ChangeError::Ended(Ended)));
    });
    assert_eq!(vm.run(&mut door, &mut Signal(signal)).unwrap(), Ending::Quit);
    person.join().unwrap();
    let of_the_drive = vm.recording().iter().filter_map(|stamped| match &stamped.input {
        Input::Device { device: DeviceId::IDE, input } => Some(input.clone()),
        _ => None,
    });
    let expected =
        [DeviceInput::EjectRequest { unit: 2 }, DeviceInput::Medium { unit: 2, medium: None }];
    assert_eq!(of_the_drive.collect::<Vec<_>>(), expected);
}

#[test]
fn a_machine_that_stays_when_it_is_off_waits_for_a_reset() {
    let vm = || {
        let config = Config { memory_bytes: 64 << 20, stays_when_off: true, ..Config::default() };
        let kernel = Kernel { image: kernel_of(POWER_OFF).into(), ..Kernel::default() };
        Vm::new(config, Software::Kernel(kernel)).unwrap()
    };
    let mut live = vm();
    live.record();
    let (sender, mut door) = door();
    let control = sender.control();
    let mut events = control.subscribe();
    let person = thread::spawn(move || {
        let mut next = || events.next().unwrap();
        assert_eq!(next(), Event::Off);
        assert_eq!(control.status(), Status::Off);
        assert_eq!(next(), Event::Paused);
        assert_eq!(control.status(), Status::Off);
        let before = control.stats().unwrap();
        control.resume().unwrap();
        control.pause().unwrap();
        assert_eq!(control.status(), Status::Off);
        assert_eq!(control.stats().unwrap().instructions, before.instructions);
        control.reset();
        assert_eq!(control.status(), Status::Paused);
        assert_eq!(next(), Event::Reset { by_guest: false });
        assert_eq!(control.stats().unwrap().instructions, before.instructions);
        control.resume().unwrap();
        assert_eq!([next(), next(), next()], [Event::Resumed, Event::Off, Event::Paused]);
        control.quit();
        assert_eq!(next(), Event::Ended(Ending::Quit));
    });
    let mut sent = Sent::default();
    assert_eq!(live.run(&mut door, &mut sent).unwrap(), Ending::Quit);
    person.join().unwrap();
    let mut replayed = vm();
    assert_eq!(replayed.replay(live.recording(), &mut sent).unwrap(), Ending::Quit);
    assert_eq!(replayed.stats().resets, 1);
    assert_eq!(replayed.cpu.save(), live.cpu.save());
    assert_eq!(replayed.board.save(), live.board.save());
}

/// A Multiboot kernel finds the last character of the screen that it was told of.
#[test]
fn a_multiboot_kernel_learns_the_address_of_the_screen() {
    #[rustfmt::skip]
    const WRITER: &[u8] = &[
        0x8b, 0x7b, 0x58, //       MOV EDI, [EBX+framebuffer_addr]
        0x8b, 0x43, 0x60, //       MOV EAX, [EBX+framebuffer_pitch]
        0x8b, 0x4b, 0x68, //       MOV ECX, [EBX+framebuffer_height]
        0x49, 0xf7, 0xe1, //       DEC ECX; MUL ECX
        0x01, 0xc7, //             ADD EDI, EAX
        0x8b, 0x43, 0x64, //       MOV EAX, [EBX+framebuffer_width]
        0x8d, 0x7c, 0x47, 0xfe, // LEA EDI, [EDI+2*EAX-2]
        0xc6, 0x07, b'Z', //       MOV BYTE [EDI], 'Z'
    ];
    let (magic, flags, start) = (0x1bad_b002_u32, 1_u32 << 16, 0x10_0000);
    let checksum = 0_u32.wrapping_sub(magic).wrapping_sub(flags);
    let header = [magic, flags, checksum, start, start, 0, 0, start + 32].map(u32::to_le_bytes);
    let image = [header.as_flattened(), WRITER, POWER_OFF].concat();
    let config = Config { memory_bytes: 2 << 20, display: true, ..Config::default() };
    let kernel = Kernel { image: image.into(), ..Kernel::default() };
    let mut vm = Vm::new(config, Software::Kernel(kernel)).unwrap();
    let (_sender, mut door) = door();
    assert_eq!(vm.run(&mut door, &mut Sent::default()).unwrap(), Ending::PowerOff);
    let Some(Picture::Text(screen)) = vm.picture() else { panic!("no text screen") };
    assert_eq!((screen.columns, screen.rows), (80, 25));
    let written: Vec<_> = screen.cells.iter().map(|cell| cell.character).collect();
    assert_eq!(written[..1999], [b' '; 1999]);
    assert_eq!(written[1999], b'Z');
}
