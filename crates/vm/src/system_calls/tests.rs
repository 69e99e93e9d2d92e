use super::*;

/// Where traces go.
#[derive(Debug, Clone, Default)]
struct Out(Arc<Mutex<Vec<u8>>>);

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A program that calls the system and returns, without a system.
struct Program {
    cpu: Cpu,
    memory: Memory,
    trace: SystemCallTrace,
    out: Out,
}

const STACK: u32 = 0x8000;
const CODE: u32 = 0x1000;
const NAME: u32 = 0x2000;

impl Program {
    fn new(most: u64) -> Program {
        let out = Out::default();
        let mut memory = Memory::new(1 << 20).unwrap();
        memory.write(NAME.into(), b"/bin/\x01sh\0");
        let trace = SystemCallTrace::new(out.clone(), most);
        Program { cpu: Cpu::new(), memory, trace, out }
    }

    /// Calls the system with these values of EAX, EBX, ECX and EDX.
    fn call(&mut self, gate: Gate, [ax, bx, cx, dx]: [u32; 4], next: u32, stack: u32) {
        let mut general = [0; 16];
        for (register, value) in
            [(reg::AX, ax), (reg::BX, bx), (reg::CX, cx), (reg::DX, dx), (reg::SP, stack)]
        {
            general[usize::from(register)] = value.into();
        }
        let (next, instructions) = (next.into(), self.cpu.instructions);
        let caller = Caller { gate, general, next, cr3: 0, instructions };
        self.trace.tracer().called(&self.cpu, &self.memory, &caller);
        self.cpu.instructions += 10;
    }

    fn return_to(&mut self, result: i32, ip: u32, stack: u32) {
        self.cpu.set_gpr(reg::AX, result.cast_unsigned().into());
        self.cpu.set_gpr(reg::SP, stack.into());
        self.cpu.ip = ip.into();
        self.trace.tracer().returned(&self.cpu, &self.memory);
        self.cpu.instructions += 10;
    }

    /// Returns the lines, without instructions and time.
    fn lines(&self) -> Vec<String> {
        self.trace.finish().unwrap();
        let text = String::from_utf8(self.out.0.lock().unwrap().clone()).unwrap();
        let what = |line: &str| line.strip_prefix(' ').map_or(line, |rest| &rest[29..]).to_owned();
        text.lines().map(what).collect()
    }
}

const WRITE: u32 = 4;
const OPEN: u32 = 5;
const EXECVE: u32 = 11;
const MMAP2: u32 = 192;
const NANOSLEEP: u32 = 162;
const SIGRETURN: u32 = 173;
const VFORK: u32 = 190;

#[test]
fn a_call_is_a_line() {
    let mut program = Program::new(10);
    program.call(Gate::Interrupt, [OPEN, NAME, 0x8000, 0o644], CODE, STACK);
    program.return_to(-2, CODE, STACK);
    program.call(Gate::FastCall, [WRITE, 1, NAME, 5], CODE, STACK);
    program.return_to(5, CODE + 2, STACK);
    program.call(Gate::Interrupt, [9999, 7, 0, 0], CODE, STACK);
    program.return_to(-38, CODE, STACK);
    program.call(Gate::Interrupt, [MMAP2, 0, 0x1000, 3], CODE, STACK);
    program.return_to(0xb7f0_0000_u32.cast_signed(), CODE, STACK);
    // Memory that does not exist.
    program.call(Gate::Interrupt, [OPEN, 0xffff_fff0, 0, 0], CODE, STACK);
    assert_eq!(
        program.lines(),
        [
            "00000000 open(\"/bin/\\x01sh\", 0x8000, 644) = -2 ENOENT <0.000000000>",
            "00000000 write(1, \"/bin/\", 5) = 5 <0.000000000>",
            "00000000 call_9999(0x7) = -38 ENOSYS <0.000000000>",
            "00000000 mmap2(0x0, 0x1000, 0x3, 0x0, 0, 0x0) = 0xb7f00000 <0.000000000>",
            "00000000 open(0xfffffff0, 0x0, 000) has not returned",
        ]
    );
}

/// The same on x86-64, in other registers and with other numbers.
#[test]
fn a_64_bit_call_is_a_line() {
    let mut program = Program::new(10);
    let mut general = [0; 16];
    // openat(AT_FDCWD, NAME, O_LARGEFILE, 0644) at the top of the address space of programs.
    let high = 0x7fff_ffff_0000;
    for (register, value) in [
        (reg::AX, 257),
        (reg::DI, 0xffff_ff9c),
        (reg::SI, NAME.into()),
        (reg::DX, 0x8000),
        (10, 0o644),
        (reg::SP, high),
    ] {
        general[usize::from(register)] = value;
    }
    let caller =
        Caller { gate: Gate::LongCall, general, next: high + 2, cr3: 1 << 32, instructions: 0 };
    program.trace.tracer().called(&program.cpu, &program.memory, &caller);
    program.cpu.set_gpr(reg::SP, high);
    program.cpu.set_gpr(reg::AX, (-2_i64).cast_unsigned());
    program.cpu.ip = high + 2;
    // In another process.
    program.trace.tracer().returned(&program.cpu, &program.memory);
    assert_eq!(
        program.lines(),
        ["100000000 openat(-100, \"/bin/\\x01sh\", 0x8000, 644) has not returned"]
    );
}

#[test]
fn signals_restarts_and_new_programs() {
    let mut program = Program::new(20);
    // A signal comes: its handler writes, and after it the call is made again.
    program.call(Gate::Interrupt, [NANOSLEEP, 0, 0, 0], CODE, STACK);
    program.return_to(0, 0x3000, STACK - 0x100);
    program.call(Gate::Interrupt, [WRITE, 2, NAME, 4], 0x3010, STACK - 0x120);
    program.return_to(4, 0x3010, STACK - 0x120);
    program.call(Gate::Interrupt, [SIGRETURN, 0, 0, 0], 0x3020, STACK - 0x100);
    program.return_to(162, CODE - 2, STACK);
    program.call(Gate::Interrupt, [NANOSLEEP, 0, 0, 0], CODE, STACK);
    program.return_to(0, CODE, STACK);
    // A call by SYSENTER is made again by the INT 80h behind it.
    program.call(Gate::FastCall, [NANOSLEEP, 1, 0, 0], CODE, STACK);
    program.return_to(162, CODE, STACK);
    program.call(Gate::Interrupt, [NANOSLEEP, 1, 0, 0], CODE + 2, STACK);
    program.return_to(0, CODE + 2, STACK);
    // The child returns first; both are on one stack.
    program.call(Gate::Interrupt, [VFORK, 0, 0, 0], CODE, STACK);
    program.return_to(0, CODE, STACK);
    program.call(Gate::Interrupt, [EXECVE, NAME, 0, 0], CODE + 8, STACK);
    program.return_to(77, CODE, STACK);
    program.call(Gate::Interrupt, [EXECVE, NAME, 0, 0], CODE + 16, STACK);
    program.return_to(-13, CODE + 16, STACK);
    let result = "= 0 <0.000000000>";
    let execve = "00000000 execve(\"/bin/\\x01sh\", 0x0, 0x0)";
    assert_eq!(
        program.lines(),
        [
            "00000000 write(2, \"/bin\", 4) = 4 <0.000000000>".to_owned(),
            "00000000 rt_sigreturn()".to_owned(),
            format!("00000000 nanosleep(0x0, 0x0) {result}"),
            format!("00000000 nanosleep(0x1, 0x0) {result}"),
            format!("00000000 vfork() {result}"),
            execve.to_owned(),
            "00000000 vfork() = 77 <0.000000000>".to_owned(),
            execve.to_owned(),
            format!("{execve} = -13 EACCES <0.000000000>"),
        ]
    );
}

#[test]
fn a_hostile_guest_takes_bounded_memory_and_room() {
    let mut program = Program::new(5);
    for stack in 0..10 * CALLS_MAX as u32 {
        program.call(Gate::Interrupt, [WRITE, 1, 0, u32::MAX], CODE, stack);
    }
    assert_eq!(program.trace.tracer().calls.len(), CALLS_MAX);
    for _ in 0..10 {
        program.call(Gate::Interrupt, [SIGRETURN, 0, 0, 0], CODE, STACK);
    }
    let lines = program.lines();
    assert_eq!(lines.len(), 6);
    assert_eq!(lines[5], "the trace is at its limit, and ends here");
}
