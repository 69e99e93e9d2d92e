//! Repeated INS and OUTS, of which devices move many elements at once: the result is the same as with one
//! element at a time.

use std::path::Path;
use std::sync::{Arc, Mutex};

use crate::support::{Until, multiboot_kernel};
use ring3_core::device::DeviceId;
use ring3_core::disk::{DiskError, DiskOperation, DriveId, Medium, SECTOR_SIZE};
use ring3_core::memory::Memory;
use ring3_devices::ide::{DriveKind, DriveModel};
use ring3_vm::drives::{Attachment, Drive};
use ring3_vm::{
    Config, Ending, EngineChoice, EngineError, EngineMaker, Engines, Software, Verified, Vm, door,
};
use ring3_x86::engine::Engine;
use ring3_x86::interpreter::Interpreter;
use ring3_x86::observer::Observer;

/// The timer interrupts it every 125 µs, and the handler hashes ECX. The program writes eight sectors of a
/// disk by doublewords, and reads them by words, and by bytes in descending order, all of them across pages.
/// Then it switches off.
#[rustfmt::skip]
const DISK_BY_PORTS: &[u8] = &[
    0xbc, 0x00, 0x00, 0x18, 0x00, // 100020: mov esp, 180000h
    0x0f, 0x01, 0x1d, 0x00, 0x01, 0x10, 0x00, // 100025: lidtd 100100h
    0xb0, 0x11, // 10002C: mov al, 11h
    0xe6, 0x20, // 10002E: out 20h, al
    0xb0, 0x00, // 100030: mov al, 0h
    0xe6, 0x21, // 100032: out 21h, al
    0xb0, 0x04, // 100034: mov al, 4h
    0xe6, 0x21, // 100036: out 21h, al
    0xb0, 0x03, // 100038: mov al, 3h
    0xe6, 0x21, // 10003A: out 21h, al
    0xb0, 0xfe, // 10003C: mov al, FEh
    0xe6, 0x21, // 10003E: out 21h, al
    0xb0, 0x34, // 100040: mov al, 34h
    0xe6, 0x43, // 100042: out 43h, al
    0xb0, 0x95, // 100044: mov al, 95h
    0xe6, 0x40, // 100046: out 40h, al
    0xb0, 0x00, // 100048: mov al, 0h
    0xe6, 0x40, // 10004A: out 40h, al
    0xfb, // 10004C: sti
    0xb2, 0x30, // 10004D: mov dl, 30h
    0xe8, 0x59, 0x00, 0x00, 0x00, // 10004F: call 1000ADh
    0xbe, 0xfe, 0x0f, 0x20, 0x00, // 100054: mov esi, 200FFEh
    0xe8, 0x7d, 0x00, 0x00, 0x00, // 100059: call 1000DBh
    0xb9, 0x80, 0x00, 0x00, 0x00, // 10005E: mov ecx, 80h
    0xf3, 0x6f, // 100063: rep outs dx, [esi]
    0x4d, // 100065: dec ebp
    0x75, 0xf1, // 100066: jne 100059h
    0xb2, 0x20, // 100068: mov dl, 20h
    0xe8, 0x3e, 0x00, 0x00, 0x00, // 10006A: call 1000ADh
    0xbf, 0xff, 0x0f, 0x30, 0x00, // 10006F: mov edi, 300FFFh
    0xe8, 0x62, 0x00, 0x00, 0x00, // 100074: call 1000DBh
    0xb9, 0x00, 0x01, 0x00, 0x00, // 100079: mov ecx, 100h
    0x66, 0xf3, 0x6d, // 10007E: rep ins es:[edi], dx
    0x4d, // 100081: dec ebp
    0x75, 0xf0, // 100082: jne 100074h
    0xb2, 0x20, // 100084: mov dl, 20h
    0xe8, 0x22, 0x00, 0x00, 0x00, // 100086: call 1000ADh
    0xbf, 0xff, 0x0f, 0x40, 0x00, // 10008B: mov edi, 400FFFh
    0xfd, // 100090: std
    0xe8, 0x45, 0x00, 0x00, 0x00, // 100091: call 1000DBh
    0xb9, 0x00, 0x02, 0x00, 0x00, // 100096: mov ecx, 200h
    0xf3, 0x6c, // 10009B: rep ins es:[edi], dx
    0x4d, // 10009D: dec ebp
    0x75, 0xf1, // 10009E: jne 100091h
    0xfc, // 1000A0: cld
    0x66, 0xba, 0x04, 0x06, // 1000A1: mov dx, 604h
    0x66, 0xb8, 0x00, 0x20, // 1000A5: mov ax, 2000h
    0x66, 0xef, // 1000A9: out dx, ax
    0xeb, 0xfe, // 1000AB: jmp 1000ABh
    0x88, 0xd3, // 1000AD: mov bl, dl
    0xbd, 0x08, 0x00, 0x00, 0x00, // 1000AF: mov ebp, 8h
    0x66, 0xba, 0xf7, 0x01, // 1000B4: mov dx, 1F7h
    0xec, // 1000B8: in al, dx
    0xa8, 0x80, // 1000B9: test al, 80h
    0x75, 0xfb, // 1000BB: jne 1000B8h
    0x66, 0xba, 0xf6, 0x01, // 1000BD: mov dx, 1F6h
    0xb0, 0xe0, // 1000C1: mov al, E0h
    0xee, // 1000C3: out dx, al
    0x66, 0xba, 0xf2, 0x01, // 1000C4: mov dx, 1F2h
    0xb0, 0x08, // 1000C8: mov al, 8h
    0xee, // 1000CA: out dx, al
    0x42, // 1000CB: inc edx
    0xb0, 0x00, // 1000CC: mov al, 0h
    0xee, // 1000CE: out dx, al
    0x42, // 1000CF: inc edx
    0xee, // 1000D0: out dx, al
    0x42, // 1000D1: inc edx
    0xee, // 1000D2: out dx, al
    0x66, 0xba, 0xf7, 0x01, // 1000D3: mov dx, 1F7h
    0x88, 0xd8, // 1000D7: mov al, bl
    0xee, // 1000D9: out dx, al
    0xc3, // 1000DA: ret
    0x66, 0xba, 0xf7, 0x01, // 1000DB: mov dx, 1F7h
    0xec, // 1000DF: in al, dx
    0xa8, 0x08, // 1000E0: test al, 8h
    0x74, 0xf7, // 1000E2: je 1000DBh
    0x66, 0xba, 0xf0, 0x01, // 1000E4: mov dx, 1F0h
    0xc3, // 1000E8: ret
    0x50, // 1000E9: push eax
    0xa1, 0xf0, 0xff, 0x1f, 0x00, // 1000EA: mov eax, 1FFFF0h
    0x69, 0xc0, 0x01, 0x01, 0x00, 0x01, // 1000EF: imul eax, eax, 1000101h
    0x01, 0xc8, // 1000F5: add eax, ecx
    0xa3, 0xf0, 0xff, 0x1f, 0x00, // 1000F7: mov 1FFFF0h, eax
    0x58, // 1000FC: pop eax
    0xcf, // 1000FD: iret
    0x66, 0x90, // 1000FE: xchg ax, ax
    0x07, 0x00, 0x08, 0x01, 0x10, 0x00, 0x00, 0x00, // 100100: limit and base of the IDT
    0xe9, 0x00, 0x10, 0x00, 0x00, 0x8e, 0x10, 0x00, // 100108: interrupt gate to 1000E9
];

/// Addresses from which the first eight sectors are written, and to which they are read.
const SOURCE: u64 = 0x20_0ffe;
const TARGET: u64 = 0x30_0fff;
/// The last byte to which they are read once more.
const LAST_TARGET: u64 = 0x40_0fff;
const LEN: usize = 8 * SECTOR_SIZE;

/// A disk in memory.
#[derive(Debug)]
struct Disk(Mutex<Vec<u8>>);

impl Drive for Disk {
    fn execute(&self, operation: &DiskOperation) -> Result<Vec<u8>, DiskError> {
        let mut bytes = self.0.lock().unwrap();
        match operation {
            DiskOperation::Read { sector, count } => {
                let start = *sector as usize * SECTOR_SIZE;
                Ok(bytes[start..start + *count as usize * SECTOR_SIZE].to_vec())
            }
            DiskOperation::Write { sector, data } => {
                let start = *sector as usize * SECTOR_SIZE;
                bytes[start..start + data.len()].copy_from_slice(data);
                Ok(Vec::new())
            }
            _ => Ok(Vec::new()),
        }
    }

    fn medium(&self) -> Option<Medium> {
        Some(MEDIUM)
    }

    fn file(&self) -> Option<&Path> {
        None
    }
}

const MEDIUM: Medium = Medium { sectors: 64, read_only: false };

/// An observer that observes nothing. Instructions that are observed are executed alone, and so are the
/// elements of repeated ones.
#[derive(Debug)]
struct Silent;

impl Observer for Silent {}

/// The interpreter, one element at a time.
struct OneByOne;

impl EngineMaker for OneByOne {
    fn make(&self, size: u64) -> Result<(Box<dyn Engine>, Memory), EngineError> {
        let mut engine = Interpreter::new();
        engine.set_observer(Some(Box::new(Silent)));
        Ok((Box::new(engine), Memory::new(size)?))
    }
}

fn machine(deterministic: bool, engine: &dyn EngineMaker) -> Vm {
    let kind = DriveKind::Disk(MEDIUM);
    let disk = DriveModel { kind, model: "DISK".to_owned(), serial: "1".to_owned(), trims: false };
    let ide = [Some(disk), None, None, None];
    let config =
        Config { memory_bytes: 16 << 20, deterministic, ide, reboots: false, ..Config::default() };
    // The code itself is its data.
    let mut kernel = multiboot_kernel(DISK_BY_PORTS);
    let to_source = SOURCE as usize - 0x10_0000 - kernel.image.len();
    kernel.image.extend(vec![0; to_source]);
    kernel.image.extend((0..LEN as u32).map(|n| (n.wrapping_mul(0x9e37_79b1) >> 13) as u8));
    let mut vm = Vm::with_engine(config, Software::Kernel(kernel), engine).unwrap();
    let disk = Attachment::new(Arc::new(Disk(Mutex::new(vec![0; 64 * SECTOR_SIZE]))));
    vm.attach_drive(DriveId::new(DeviceId::IDE, 0), disk).unwrap();
    vm
}

fn nobody() -> Until {
    Until { text: "never", sent: String::new(), sender: None }
}

/// Returns how often the guest has left the engine, or would have, to read a port.
fn port_reads(vm: &Vm) -> u64 {
    let stats = vm.stats().to_string();
    let line = stats.lines().find(|line| line.contains("port read")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

#[track_caller]
fn assert_same(verified: &Verified) {
    match verified {
        Verified::Same(ending) => assert_eq!(*ending, Ending::PowerOff),
        Verified::Differs(difference) => panic!("{difference}"),
    }
}

#[test]
fn disks_are_read_and_written_by_many_elements_at_once() {
    for engine in [EngineChoice::Interpreter, EngineChoice::Auto] {
        let mut vm = machine(true, &engine);
        assert_eq!(vm.run(&mut door().1, &mut nobody()).unwrap(), Ending::PowerOff);
        let read = |start: u64| {
            let mut bytes = [0; LEN];
            vm.memory().read(start, &mut bytes);
            bytes
        };
        let data = read(SOURCE);
        assert!(data.iter().any(|byte| *byte != 0));
        assert!(read(TARGET) == data);
        let mut reversed = read(LAST_TARGET + 1 - LEN as u64);
        reversed.reverse();
        assert!(reversed == data);
        // Elements in descending order are read one by one, as are a few others.
        let alone = LEN as u64;
        assert!((alone..alone + 300).contains(&port_reads(&vm)), "{}", port_reads(&vm));
    }
}

#[test]
fn a_deterministic_run_is_the_same_as_element_by_element() {
    let mut vm = machine(true, &EngineChoice::Auto);
    let engines = Engines { tested: &EngineChoice::Auto, reference: &OneByOne };
    assert_same(&vm.verify(engines, &mut door().1, &mut nobody()).unwrap());
    // The timer has interrupted it.
    assert_ne!(vm.memory().load::<4>(0x1f_fff0), [0; 4]);
}

#[test]
fn a_normal_run_is_repeated_element_by_element() {
    let mut vm = machine(false, &EngineChoice::Auto);
    vm.record();
    assert_eq!(vm.run(&mut door().1, &mut nobody()).unwrap(), Ending::PowerOff);
    for engine in [&EngineChoice::Auto as &dyn EngineMaker, &OneByOne] {
        let mut again = machine(false, engine);
        assert_eq!(again.replay(vm.recording(), &mut nobody()).unwrap(), Ending::PowerOff);
        assert_eq!(again.checkpoint(), vm.checkpoint());
    }
}
