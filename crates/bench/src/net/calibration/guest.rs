//! Measures the cost of a guest's operations by a program in a machine of its own, under the translator.
//!
//! The machine has an NE2000 on the ISA bus, the card of the model's paper. The program reads the card's
//! registers, moves words to and from its memory by repeated OUTS and INS, and receives its interrupts at the
//! end of remote DMA. The cost of the loop itself is measured in the same way and subtracted.

use std::io;
use std::time::Instant;

use ring3_core::net::MacAddress;
use ring3_vm::{Config, Console, Ending, EngineChoice, Kernel, Nic, NicModel, Software, Vm, door};

use super::{CalibrationError, several};

/// The program, which is loaded at 100020h. The card has port 300h and IRQ 5.
#[rustfmt::skip]
const PROGRAM: &[u8] = &[
    0xeb, 0x26, // 100020: jmp 100048h
    0x00, 0x00, // its parameters, which are written here:
    0x00, 0x00, 0x00, 0x00, // 100024: where what is repeated is
    0x00, 0x00, 0x00, 0x00, // 100028: how often
    0x00, 0x00, 0x00, 0x00, // 10002C: words of a transfer
    0x00, 0x00, 0x00, 0x00, // 100030: which lines are masked
    0x00, 0x00, 0x00, 0x00, // 100034: interrupts so far
    0x2f, 0x01, 0x18, 0xff, 0x0f, 0x00, 0x00, 0x00, // 100038: limit and base of the IDT
    0x17, 0x01, 0x10, 0x00, 0x00, 0x8e, 0x10, 0x00, // 100040: interrupt gate to 100117, vector 25h
    0xbc, 0x00, 0x00, 0x18, 0x00, // 100048: mov esp,180000h
    0x0f, 0x01, 0x1d, 0x38, 0x00, 0x10, 0x00, // 10004D: lidtd [100038h]
    0xb0, 0x11, // 100054: mov al,11h
    0xe6, 0x20, // 100056: out 20h,al
    0xb0, 0x20, // 100058: mov al,20h
    0xe6, 0x21, // 10005A: out 21h,al
    0xb0, 0x04, // 10005C: mov al,4h
    0xe6, 0x21, // 10005E: out 21h,al
    0xb0, 0x01, // 100060: mov al,1h
    0xe6, 0x21, // 100062: out 21h,al
    0xa0, 0x30, 0x00, 0x10, 0x00, // 100064: mov al,[100030h]
    0xe6, 0x21, // 100069: out 21h,al
    0xba, 0x0e, 0x03, 0x00, 0x00, // 10006B: mov edx,30Eh
    0xb0, 0x49, // 100070: mov al,49h
    0xee, // 100072: out dx,al
    0xba, 0x07, 0x03, 0x00, 0x00, // 100073: mov edx,307h
    0xb0, 0xff, // 100078: mov al,FFh
    0xee, // 10007A: out dx,al
    0xb2, 0x0f, // 10007B: mov dl,Fh
    0x31, 0xc0, // 10007D: xor eax,eax
    0xee, // 10007F: out dx,al
    0xb2, 0x00, // 100080: mov dl,0h
    0xb0, 0x22, // 100082: mov al,22h
    0xee, // 100084: out dx,al
    0xfc, // 100085: cld
    0x8b, 0x2d, 0x28, 0x00, 0x10, 0x00, // 100086: mov ebp,dword [100028h]
    0xfb, // 10008C: sti
    0xff, 0x25, 0x24, 0x00, 0x10, 0x00, // 10008D: jmp dword [100024h]
    // the end
    0x66, 0xba, 0xf4, 0x00, // 100093: mov dx,F4h
    0xee, // 100097: out dx,al
    0xeb, 0xfe, // 100098: jmp 100098h
    // EMPTY
    0x4d, // 10009A: dec ebp
    0x75, 0xfd, // 10009B: jne 10009Ah
    0xeb, 0xf4, // 10009D: jmp 100093h
    // EXIT
    0xba, 0x00, 0x03, 0x00, 0x00, // 10009F: mov edx,300h
    0xec, // 1000A4: in al,dx
    0x4d, // 1000A5: dec ebp
    0x75, 0xfc, // 1000A6: jne 1000A4h
    0xeb, 0xe9, // 1000A8: jmp 100093h
    // OUTS
    0xb3, 0x12, // 1000AA: mov bl,12h
    0xe8, 0x21, 0x00, 0x00, 0x00, // 1000AC: call 1000D2h
    0xbe, 0x00, 0x00, 0x20, 0x00, // 1000B1: mov esi,200000h
    0x66, 0xf3, 0x6f, // 1000B6: rep outs dx,ds:[esi]
    0x4d, // 1000B9: dec ebp
    0x75, 0xee, // 1000BA: jne 1000AAh
    0xeb, 0xd5, // 1000BC: jmp 100093h
    // INS
    0xb3, 0x0a, // 1000BE: mov bl,Ah
    0xe8, 0x0d, 0x00, 0x00, 0x00, // 1000C0: call 1000D2h
    0xbf, 0x00, 0x00, 0x20, 0x00, // 1000C5: mov edi,200000h
    0x66, 0xf3, 0x6d, // 1000CA: rep ins es:[edi],dx
    0x4d, // 1000CD: dec ebp
    0x75, 0xee, // 1000CE: jne 1000BEh
    0xeb, 0xc1, // 1000D0: jmp 100093h
    // a transfer by remote DMA from 4000h on, of ECX words by port DX
    0x8b, 0x0d, 0x2c, 0x00, 0x10, 0x00, // 1000D2: mov ecx,dword [10002Ch]
    0xba, 0x08, 0x03, 0x00, 0x00, // 1000D8: mov edx,308h
    0x31, 0xc0, // 1000DD: xor eax,eax
    0xee, // 1000DF: out dx,al
    0x42, // 1000E0: inc edx
    0xb0, 0x40, // 1000E1: mov al,40h
    0xee, // 1000E3: out dx,al
    0x42, // 1000E4: inc edx
    0x8d, 0x04, 0x09, // 1000E5: lea eax,[ecx+ecx*1]
    0xee, // 1000E8: out dx,al
    0x42, // 1000E9: inc edx
    0x88, 0xe0, // 1000EA: mov al,ah
    0xee, // 1000EC: out dx,al
    0xb2, 0x00, // 1000ED: mov dl,0h
    0x88, 0xd8, // 1000EF: mov al,bl
    0xee, // 1000F1: out dx,al
    0xb2, 0x10, // 1000F2: mov dl,10h
    0xc3, // 1000F4: ret
    // INTERRUPT
    0xb3, 0x12, // 1000F5: mov bl,12h
    0xe8, 0xd6, 0xff, 0xff, 0xff, // 1000F7: call 1000D2h
    0xbe, 0x00, 0x00, 0x20, 0x00, // 1000FC: mov esi,200000h
    0x66, 0xf3, 0x6f, // 100101: rep outs dx,ds:[esi]
    0xba, 0x0f, 0x03, 0x00, 0x00, // 100104: mov edx,30Fh
    0xb0, 0x40, // 100109: mov al,40h
    0xee, // 10010B: out dx,al
    0xb0, 0x00, // 10010C: mov al,0h
    0xee, // 10010E: out dx,al
    0x4d, // 10010F: dec ebp
    0x75, 0xf7, // 100110: jne 100109h
    0xe9, 0x7c, 0xff, 0xff, 0xff, // 100112: jmp 100093h
    // the interrupt's handler
    0x50, // 100117: push eax
    0xb0, 0x20, // 100118: mov al,20h
    0xe6, 0x20, // 10011A: out 20h,al
    0xff, 0x05, 0x34, 0x00, 0x10, 0x00, // 10011C: inc dword [100034h]
    0x58, // 100122: pop eax
    0xcf, // 100123: iret
];

/// The operations that the program can repeat, with the addresses of their loops.
#[derive(Debug, Clone, Copy)]
enum Repeated {
    /// No operation.
    Empty = 0x10_009a,
    /// Reading the card's command register.
    Exit = 0x10_009f,
    /// Writing words to the card.
    Outs = 0x10_00aa,
    /// Reading words from the card.
    Ins = 0x10_00be,
    /// An interrupt of the card, if the line is not masked.
    Interrupt = 0x10_00f5,
}

/// The address of the program, behind its header.
const START: u32 = 0x10_0020;
const PARAMETERS: usize = 4;
const PARAMETERS_LEN: usize = 16;
/// The address of its count of interrupts.
const INTERRUPTS: usize = 0x10_0034;
const DEBUG_EXIT: u16 = 0xf4;

/// The masked lines of the interrupt controller.
const ALL: u32 = 0xff;
const ALL_BUT_THE_CARD: u32 = 0xff & !(1 << 5);

/// A run of the program.
#[derive(Debug, Clone, Copy)]
struct Run {
    repeated: Repeated,
    count: u32,
    /// Words of each transfer.
    words: u32,
    mask: u32,
}

/// The seconds that a guest's operations take.
#[derive(Debug, Clone, Copy)]
pub(super) struct GuestCosts {
    pub(super) exit: f64,
    /// An interrupt, until it is acknowledged.
    pub(super) interrupt: f64,
    pub(super) element: f64,
}

const COUNT: u32 = 50_000;
const TRANSFERS: u32 = 5_000;
/// Words of a full frame, and of a very small one.
const MANY: u32 = 750;
const FEW: u32 = 2;

/// Measures the costs of a guest's operations.
pub(super) fn calibrate() -> Result<GuestCosts, CalibrationError> {
    let run = |repeated, count, words, mask| -> Result<f64, CalibrationError> {
        Ok(Run { repeated, count, words, mask }.time()? / f64::from(count))
    };
    let simple = |repeated| run(repeated, COUNT, FEW, ALL);
    let transfer = |repeated, words| run(repeated, TRANSFERS, words, ALL);
    let empty = simple(Repeated::Empty)?;
    let exit = simple(Repeated::Exit)? - empty;
    let masked = simple(Repeated::Interrupt)?;
    let interrupt = run(Repeated::Interrupt, COUNT, FEW, ALL_BUT_THE_CARD)? - masked;
    let mut elements = 0.0;
    for way in [Repeated::Outs, Repeated::Ins] {
        elements += transfer(way, MANY)? - transfer(way, FEW)?;
    }
    let element = elements / f64::from(2 * (MANY - FEW));
    // On a host that was busy at the wrong moment a difference may be negative.
    Ok(GuestCosts { exit: exit.max(0.0), interrupt: interrupt.max(0.0), element: element.max(0.0) })
}

impl Run {
    /// Returns the seconds that the run takes.
    fn time(self) -> Result<f64, CalibrationError> {
        several(|| {
            let mut vm = self.machine()?;
            let start = Instant::now();
            let ending = vm.run(&mut door().1, &mut Nobody)?;
            let taken = start.elapsed();
            if !matches!(ending, Ending::Exit(_)) {
                return Err(CalibrationError::Ended(ending));
            }
            let wanted = if self.mask == ALL { 0 } else { self.count };
            let had = u32::from_le_bytes(vm.memory().load(INTERRUPTS));
            if had != wanted {
                return Err(CalibrationError::Interrupts { wanted, had });
            }
            Ok(taken)
        })
    }

    fn machine(self) -> Result<Vm, CalibrationError> {
        let mac = MacAddress([0x52, 0x54, 0, 0, 0, 1]);
        let config = Config {
            memory_bytes: 4 << 20,
            nics: vec![Some(Nic { mac, model: NicModel::NE2000_ISA, rom: None })],
            debug_exit_port: Some(DEBUG_EXIT),
            ..Config::default()
        };
        let mut program = PROGRAM.to_vec();
        let parameters = [self.repeated as u32, self.count, self.words, self.mask];
        let parameters = parameters.map(u32::to_le_bytes);
        program[PARAMETERS..][..PARAMETERS_LEN].copy_from_slice(parameters.as_flattened());
        let kernel = Software::Kernel(multiboot_kernel(&program));
        Ok(Vm::with_engine(config, kernel, EngineChoice::Translator)?)
    }
}

/// Makes a Multiboot kernel of `code`, which starts at its first byte (Multiboot Specification, 3.1).
fn multiboot_kernel(code: &[u8]) -> Kernel {
    let (magic, has_addresses, entry) = (0x1bad_b002_u32, 1_u32 << 16, START);
    let start = entry - 32;
    let checksum = 0_u32.wrapping_sub(magic).wrapping_sub(has_addresses);
    let header = [magic, has_addresses, checksum, start, start, 0, 0, entry].map(u32::to_le_bytes);
    Kernel { image: [header.as_flattened(), code].concat().into(), ..Kernel::default() }
}

/// A console without output, since the program prints nothing.
struct Nobody;

impl Console for Nobody {
    fn serial(&mut self, _: u8, _: &[u8]) -> io::Result<()> {
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
