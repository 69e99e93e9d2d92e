//! Drives that take their time.

use std::path::Path;
use std::sync::{Arc, Mutex, mpsc};

use ring3_core::disk::{DiskError, DiskOperation};

use super::*;
use crate::drives::{Attachment, Drive};

/// A guest that makes the first hard disk read its first sector, says so on COM1, counts until the read is
/// complete, sends the sector's first byte and switches off.
#[rustfmt::skip]
const READER: &[u8] = &[
    0x66, 0xba, 0xf6, 0x01, 0xb0, 0xe0, 0xee, //    MOV DX, 1F6h; MOV AL, E0h (LBA); OUT DX, AL
    0xb2, 0xf2, 0xb0, 0x01, 0xee, //                MOV DL, F2h; MOV AL, 1 (sector); OUT DX, AL
    0x42, 0x30, 0xc0, 0xee, //                      INC EDX; XOR AL, AL; OUT DX, AL
    0x42, 0xee, 0x42, 0xee, //                      INC EDX; OUT DX, AL; INC EDX; OUT DX, AL
    0xb2, 0xf7, 0xb0, 0x20, 0xee, //                MOV DL, F7h; MOV AL, 20h (READ SECTORS); OUT DX, AL
    0x66, 0xba, 0xf8, 0x03, 0xb0, b'A', 0xee, //    MOV DX, 3F8h; MOV AL, 'A'; OUT DX, AL
    0x66, 0xba, 0xf7, 0x01, //                      MOV DX, 1F7h
    0x43, 0xec, 0xa8, 0x80, 0x75, 0xfa, //          INC EBX; IN AL, DX; TEST AL, BSY; JNZ to the INC
    0xb2, 0xf0, 0x66, 0xed, //                      MOV DL, F0h; IN AX, DX
    0x66, 0xba, 0xf8, 0x03, 0xee, //                MOV DX, 3F8h; OUT DX, AL
    0x66, 0xba, 0x04, 0x06, 0x66, 0xb8, 0x00, 0x20, 0x66, 0xef, 0xeb, 0xfe, // as POWER_OFF
];

const SECTOR: u8 = 0x5a;

/// A drive that starts its requests on command.
#[derive(Debug)]
struct Slow(Mutex<mpsc::Receiver<()>>);

impl Drive for Slow {
    fn execute(&self, operation: &DiskOperation) -> Result<Vec<u8>, DiskError> {
        let DiskOperation::Read { count, .. } = operation else { return Ok(Vec::new()) };
        self.0.lock().unwrap().recv().map_err(|_| DiskError::Host)?;
        Ok(vec![SECTOR; *count as usize * 512])
    }

    fn medium(&self) -> Option<Medium> {
        Some(Medium { sectors: 8, read_only: true })
    }

    fn file(&self) -> Option<&Path> {
        None
    }
}

/// Lets the drive continue some time after something came from the guest.
struct GoOn(Sent, mpsc::Sender<()>);

impl Console for GoOn {
    fn serial(&mut self, port: u8, bytes: &[u8]) -> io::Result<()> {
        let go_on = self.1.clone();
        thread::spawn(move || {
            thread::sleep(Duration::from_millis(20));
            // The drive may be gone.
            let _ = go_on.send(());
        });
        self.0.serial(port, bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn reader() -> (Vm, GoOn) {
    let (go_on, told) = mpsc::channel();
    let drive = Slow(Mutex::new(told));
    let kind = DriveKind::Disk(drive.medium().unwrap());
    let model =
        DriveModel { kind, model: "drive".to_owned(), serial: "1".to_owned(), trims: false };
    let config = Config {
        memory_bytes: 64 << 20,
        ide: [Some(model), None, None, None],
        ..Config::default()
    };
    let kernel = Kernel { image: kernel_of(READER).into(), ..Kernel::default() };
    let mut vm = Vm::new(config, Software::Kernel(kernel)).unwrap();
    vm.attach_drive(DriveId::new(DeviceId::IDE, 0), Attachment::new(Arc::new(drive))).unwrap();
    (vm, GoOn(Sent::default(), go_on))
}

#[test]
fn the_guest_runs_on_while_a_drive_works() {
    let (mut vm, mut console) = reader();
    vm.record();
    let (_sender, mut door) = door();
    assert_eq!(vm.run(&mut door, &mut console).unwrap(), Ending::PowerOff);
    assert_eq!(console.0.0, [b'A', SECTOR]);
    assert!(vm.cpu.gpr(ring3_x86::cpu::reg::BX) > 100, "it counted meanwhile");
    assert_repeats(&mut vm, &console.0);
}

/// Ends the run when something comes from the guest, and then lets the drive continue.
struct End(mpsc::Sender<()>, Option<crate::door::Sender>);

impl Console for End {
    fn serial(&mut self, _: u8, _: &[u8]) -> io::Result<()> {
        if let Some(sender) = self.1.take() {
            sender.send(Input::Quit);
            let go_on = self.0.clone();
            thread::spawn(move || {
                thread::sleep(Duration::from_millis(20));
                go_on.send(()).unwrap();
            });
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_run_that_is_ended_waits_for_its_drives() {
    let (mut vm, GoOn(_, go_on)) = reader();
    vm.record();
    let (sender, mut door) = door();
    let ending = vm.run(&mut door, &mut End(go_on, Some(sender))).unwrap();
    assert_eq!(ending, Ending::Quit);
    let last = vm.recording().last().map(|stamped| stamped.input.clone());
    assert!(matches!(last, Some(Input::Device { input: DeviceInput::Disk(_), .. })), "{last:?}");
}
