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

/// The same transfers as far as they ascend, at privilege level 3 and IOPL 0, so that each access needs
/// the permission of the TSS's bit map, which allows all ports. Then the program reads and writes 16
/// KiB at a port of no device, and reads from another such port over the bit map, until this refuses
/// the next element. The handler of #GP notes ECX and EDI, and switches off.
#[rustfmt::skip]
const USER_PROGRAM: &[u8] = &[
    0xbc, 0x00, 0x00, 0x18, 0x00, // 100020: mov esp, 180000h
    0x0f, 0x01, 0x1d, 0x58, 0x01, 0x10, 0x00, // 100025: lidt [100158h]
    0x0f, 0x01, 0x15, 0x5e, 0x01, 0x10, 0x00, // 10002C: lgdt [10015Eh]
    0xc7, 0x05, 0x04, 0x00, 0x11, 0x00, 0x00, 0x00, 0x18, 0x00, // 100033: mov dword [110004h], 180000h
    0x66, 0xc7, 0x05, 0x08, 0x00, 0x11, 0x00, 0x10, 0x00, // 10003D: mov word [110008h], 10h
    0x66, 0xc7, 0x05, 0x66, 0x00, 0x11, 0x00, 0x68, 0x00, // 100046: mov word [110066h], 68h
    0x66, 0xb8, 0x28, 0x00, // 10004F: mov ax, 28h
    0x0f, 0x00, 0xd8, // 100053: ltr ax
    0xb0, 0x11, // 100056: mov al, 11h
    0xe6, 0x20, // 100058: out 20h, al
    0xb0, 0x00, // 10005A: mov al, 0h
    0xe6, 0x21, // 10005C: out 21h, al
    0xb0, 0x04, // 10005E: mov al, 4h
    0xe6, 0x21, // 100060: out 21h, al
    0xb0, 0x03, // 100062: mov al, 3h
    0xe6, 0x21, // 100064: out 21h, al
    0xb0, 0xfe, // 100066: mov al, FEh
    0xe6, 0x21, // 100068: out 21h, al
    0xb0, 0x34, // 10006A: mov al, 34h
    0xe6, 0x43, // 10006C: out 43h, al
    0xb0, 0x95, // 10006E: mov al, 95h
    0xe6, 0x40, // 100070: out 40h, al
    0xb0, 0x00, // 100072: mov al, 0h
    0xe6, 0x40, // 100074: out 40h, al
    0xb8, 0x23, 0x00, 0x00, 0x00, // 100076: mov eax, 23h
    0x8e, 0xd8, // 10007B: mov ds, eax
    0x8e, 0xc0, // 10007D: mov es, eax
    0x6a, 0x23, // 10007F: push 23h
    0x68, 0x00, 0x00, 0x17, 0x00, // 100081: push 170000h
    0x68, 0x02, 0x02, 0x00, 0x00, // 100086: push 202h
    0x6a, 0x1b, // 10008B: push 1Bh
    0x68, 0x93, 0x00, 0x10, 0x00, // 10008D: push 100093h
    0xcf, // 100092: iret
    0xb3, 0x30, // 100093: mov bl, 30h
    0xe8, 0x5f, 0x00, 0x00, 0x00, // 100095: call 1000F9h
    0xbe, 0xfe, 0x0f, 0x20, 0x00, // 10009A: mov esi, 200FFEh
    0xe8, 0x7a, 0x00, 0x00, 0x00, // 10009F: call 10011Eh
    0xb9, 0x80, 0x00, 0x00, 0x00, // 1000A4: mov ecx, 80h
    0xf3, 0x6f, // 1000A9: rep outs dx, dword [esi]
    0x4d, // 1000AB: dec ebp
    0x75, 0xf1, // 1000AC: jne 10009Fh
    0xb3, 0x20, // 1000AE: mov bl, 20h
    0xe8, 0x44, 0x00, 0x00, 0x00, // 1000B0: call 1000F9h
    0xbf, 0xff, 0x0f, 0x30, 0x00, // 1000B5: mov edi, 300FFFh
    0xe8, 0x5f, 0x00, 0x00, 0x00, // 1000BA: call 10011Eh
    0xb9, 0x00, 0x01, 0x00, 0x00, // 1000BF: mov ecx, 100h
    0x66, 0xf3, 0x6d, // 1000C4: rep ins word es:[edi], dx
    0x4d, // 1000C7: dec ebp
    0x75, 0xf0, // 1000C8: jne 1000BAh
    0x66, 0xba, 0x00, 0x50, // 1000CA: mov dx, 5000h
    0xbf, 0xfd, 0x0f, 0x40, 0x00, // 1000CE: mov edi, 400FFDh
    0xb9, 0x00, 0x10, 0x00, 0x00, // 1000D3: mov ecx, 1000h
    0xf3, 0x6d, // 1000D8: rep ins dword es:[edi], dx
    0xbe, 0xfd, 0x0f, 0x40, 0x00, // 1000DA: mov esi, 400FFDh
    0xb9, 0x00, 0x20, 0x00, 0x00, // 1000DF: mov ecx, 2000h
    0x66, 0xf3, 0x6f, // 1000E4: rep outs dx, word [esi]
    0xbf, 0xa6, 0x00, 0x11, 0x00, // 1000E7: mov edi, 1100A6h
    0x66, 0xba, 0x40, 0x02, // 1000EC: mov dx, 240h
    0xb9, 0x00, 0x10, 0x00, 0x00, // 1000F0: mov ecx, 1000h
    0xf3, 0x6c, // 1000F5: rep ins es:[edi], dx
    0xeb, 0xfe, // 1000F7: jmp 1000F7h
    0xbd, 0x08, 0x00, 0x00, 0x00, // 1000F9: mov ebp, 8h
    0x66, 0xba, 0xf7, 0x01, // 1000FE: mov dx, 1F7h
    0xec, // 100102: in al, dx
    0xa8, 0x80, // 100103: test al, 80h
    0x75, 0xfb, // 100105: jne 100102h
    0x4a, // 100107: dec edx
    0xb0, 0xe0, // 100108: mov al, E0h
    0xee, // 10010A: out dx, al
    0xb2, 0xf2, // 10010B: mov dl, F2h
    0xb0, 0x08, // 10010D: mov al, 8h
    0xee, // 10010F: out dx, al
    0x42, // 100110: inc edx
    0xb0, 0x00, // 100111: mov al, 0h
    0xee, // 100113: out dx, al
    0x42, // 100114: inc edx
    0xee, // 100115: out dx, al
    0x42, // 100116: inc edx
    0xee, // 100117: out dx, al
    0xb2, 0xf7, // 100118: mov dl, F7h
    0x88, 0xd8, // 10011A: mov al, bl
    0xee, // 10011C: out dx, al
    0xc3, // 10011D: ret
    0x66, 0xba, 0xf7, 0x01, // 10011E: mov dx, 1F7h
    0xec, // 100122: in al, dx
    0xa8, 0x08, // 100123: test al, 8h
    0x74, 0xfb, // 100125: je 100122h
    0xb2, 0xf0, // 100127: mov dl, F0h
    0xc3, // 100129: ret
    0x50, // 10012A: push eax
    0xa1, 0xf0, 0xff, 0x1f, 0x00, // 10012B: mov eax, [1FFFF0h]
    0x69, 0xc0, 0x01, 0x01, 0x00, 0x01, // 100130: imul eax, eax, 1000101h
    0x01, 0xc8, // 100136: add eax, ecx
    0xa3, 0xf0, 0xff, 0x1f, 0x00, // 100138: mov [1FFFF0h], eax
    0x58, // 10013D: pop eax
    0xcf, // 10013E: iret
    0x89, 0x0d, 0xf8, 0xff, 0x1f, 0x00, // 10013F: mov [1FFFF8h], ecx
    0x89, 0x3d, 0xfc, 0xff, 0x1f, 0x00, // 100145: mov [1FFFFCh], edi
    0x66, 0xba, 0x04, 0x06, // 10014B: mov dx, 604h
    0x66, 0xb8, 0x00, 0x20, // 10014F: mov ax, 2000h
    0x66, 0xef, // 100153: out dx, ax
    0xeb, 0xfe, // 100155: jmp 100155h
    0x90, // 100157: padding
    0x6f, 0x00, 0x98, 0x01, 0x10, 0x00, // 100158: limit and base of the IDT
    0x2f, 0x00, 0x68, 0x01, 0x10, 0x00, // 10015E: limit and base of the GDT
    0x8d, 0x74, 0x26, 0x00, // 100164: padding
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, // 100168: null descriptor
    0xff, 0xff, 0x00, 0x00, 0x00, 0x9b, 0xcf, 0x00, // 100170: 08h: code of ring 0
    0xff, 0xff, 0x00, 0x00, 0x00, 0x93, 0xcf, 0x00, // 100178: 10h: data of ring 0
    0xff, 0xff, 0x00, 0x00, 0x00, 0xfb, 0xcf, 0x00, // 100180: 1Bh: code of ring 3
    0xff, 0xff, 0x00, 0x00, 0x00, 0xf3, 0xcf, 0x00, // 100188: 23h: data of ring 3
    0x68, 0x20, 0x00, 0x00, 0x11, 0x89, 0x00, 0x00, // 100190: 28h: TSS at 110000, with a map of all ports
    0x2a, 0x01, 0x08, 0x00, 0x00, 0x8e, 0x10, 0x00, // 100198: vector 0, timer: interrupt gate to 10012A
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, // 1001A0: vector 1: none
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, // 1001A8: vector 2: none
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, // 1001B0: vector 3: none
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, // 1001B8: vector 4: none
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, // 1001C0: vector 5: none
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, // 1001C8: vector 6: none
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, // 1001D0: vector 7: none
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, // 1001D8: vector 8: none
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, // 1001E0: vector 9: none
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, // 1001E8: vector 10: none
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, // 1001F0: vector 11: none
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, // 1001F8: vector 12: none
    0x3f, 0x01, 0x08, 0x00, 0x00, 0x8e, 0x10, 0x00, // 100200: vector 13, #GP: interrupt gate to 10013F
];

/// Where the handler of #GP notes ECX and EDI.
const REFUSED_AT: u64 = 0x1f_fff8;

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

fn machine(code: &[u8], deterministic: bool, engine: &dyn EngineMaker) -> Vm {
    let kind = DriveKind::Disk(MEDIUM);
    let disk = DriveModel { kind, model: "DISK".to_owned(), serial: "1".to_owned(), trims: false };
    let ide = [Some(disk), None, None, None];
    let config =
        Config { memory_bytes: 16 << 20, deterministic, ide, reboots: false, ..Config::default() };
    // The code itself is its data.
    let mut kernel = multiboot_kernel(code);
    let mut image = kernel.image.get().unwrap().to_vec();
    image.resize(SOURCE as usize - 0x10_0000, 0);
    image.extend((0..LEN as u32).map(|n| (n.wrapping_mul(0x9e37_79b1) >> 13) as u8));
    kernel.image = image.into();
    let mut vm = Vm::with_engine(config, Software::Kernel(kernel), engine).unwrap();
    let disk = Attachment::new(Arc::new(Disk(Mutex::new(vec![0; 64 * SECTOR_SIZE]))));
    vm.attach_drive(DriveId::new(DeviceId::IDE, 0), disk).unwrap();
    vm
}

fn nobody() -> Until {
    Until { text: "never", sent: String::new(), sender: None }
}

/// Returns how often the guest has left the engine, or would have, for this reason: `port read`, `port
/// write`.
fn exits(vm: &Vm, reason: &str) -> u64 {
    let stats = vm.stats().to_string();
    let line = stats.lines().find(|line| line.contains(reason)).unwrap();
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
        let mut vm = machine(DISK_BY_PORTS, true, &engine);
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
        let reads = exits(&vm, "port read");
        assert!((alone..alone + 300).contains(&reads), "{reads}");
    }
}

#[test]
fn a_deterministic_run_is_the_same_as_element_by_element() {
    let mut vm = machine(DISK_BY_PORTS, true, &EngineChoice::Auto);
    let engines = Engines { tested: &EngineChoice::Auto, reference: &OneByOne };
    assert_same(&vm.verify(engines, &mut door().1, &mut nobody()).unwrap());
    // The timer has interrupted it.
    assert_ne!(vm.memory().load::<4>(0x1f_fff0), [0; 4]);
}

#[test]
fn a_normal_run_is_repeated_element_by_element() {
    let mut vm = machine(DISK_BY_PORTS, false, &EngineChoice::Auto);
    vm.record();
    assert_eq!(vm.run(&mut door().1, &mut nobody()).unwrap(), Ending::PowerOff);
    for engine in [&EngineChoice::Auto as &dyn EngineMaker, &OneByOne] {
        let mut again = machine(DISK_BY_PORTS, false, engine);
        assert_eq!(again.replay(vm.recording(), &mut nobody()).unwrap(), Ending::PowerOff);
        assert_eq!(again.checkpoint(), vm.checkpoint());
    }
}

/// The rights of user programs are asked for once where many elements are moved, but before each
/// element where these may change the answer.
#[test]
fn elements_of_user_programs_are_moved_at_once() {
    for engine in [EngineChoice::Interpreter, EngineChoice::Auto] {
        let mut vm = machine(USER_PROGRAM, true, &engine);
        assert_eq!(vm.run(&mut door().1, &mut nobody()).unwrap(), Ending::PowerOff);
        let read = |start: u64| {
            let mut bytes = [0; LEN];
            vm.memory().read(start, &mut bytes);
            bytes
        };
        assert!(read(TARGET) == read(SOURCE));
        // The byte of the map for the port is the eleventh that is read.
        let [ecx, edi] = [REFUSED_AT, REFUSED_AT + 4].map(|at| vm.memory().load::<4>(at as usize));
        assert_eq!((u32::from_le_bytes(ecx), u32::from_le_bytes(edi)), (0x1000 - 11, 0x11_00b1));
        // Some for the status of the disk, and a few of each transfer and each page.
        for reason in ["port read", "port write"] {
            assert!(exits(&vm, reason) < 200, "{}", vm.stats());
        }
    }
}

#[test]
fn a_deterministic_run_of_a_user_program_is_the_same_as_element_by_element() {
    let mut vm = machine(USER_PROGRAM, true, &EngineChoice::Auto);
    let engines = Engines { tested: &EngineChoice::Auto, reference: &OneByOne };
    assert_same(&vm.verify(engines, &mut door().1, &mut nobody()).unwrap());
    assert_ne!(vm.memory().load::<4>(0x1f_fff0), [0; 4]);
}
