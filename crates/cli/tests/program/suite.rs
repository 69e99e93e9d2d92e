//! The benchmark suite (`guest/suite`, `ring3 bench cpu`) computes the same results in a guest as on the
//! host.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use crate::support::guest::{Guest, PROMPT, add_linux, file, file_if_there};
use crate::support::{Directory, output, ring3};
use crate::tern::has_tern;

/// The suite's description of a benchmark.
struct Benchmark {
    name: String,
    count: u32,
    /// `-`, `disk`, `screen` or `server`.
    needs: String,
}

/// Returns the suite's output on the host.
fn on_host(arguments: &[&str]) -> String {
    let output = Command::new(file("suite")).args(arguments).output().expect("it is a program");
    assert!(output.status.success(), "suite {arguments:?}: {output:?}");
    String::from_utf8(output.stdout).expect("it speaks ASCII")
}

fn list() -> Vec<Benchmark> {
    let line = |line: &str| {
        let [name, _group, count, needs] =
            line.split(' ').collect::<Vec<_>>().try_into().expect("four words");
        let count = count.parse().expect("a number");
        Benchmark { name: String::from(name), count, needs: String::from(needs) }
    };
    on_host(&[]).lines().map(line).collect()
}

/// Returns the checksum in the line `NAME CHECKSUM MICROSECONDS`.
fn checksum<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let mut words = text.lines().last()?.split(' ');
    (words.next()? == name).then(|| words.next())?
}

/// `ring3 bench server` at a free port of this host.
struct Server {
    child: Child,
    port: String,
}

impl Server {
    fn start() -> Server {
        let mut command = ring3();
        command.args(["bench", "server", "--listen", "127.0.0.1:0"]);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the program starts");
        let mut line = String::new();
        let output = child.stdout.take().expect("it was asked for");
        BufReader::new(output).read_line(&mut line).expect("it says where it listens");
        let port = line.trim().strip_prefix("Listening at 127.0.0.1:").map(String::from);
        Server { child, port: port.expect("its port") }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The commands that connect Linux to the user network.
const NETWORK: &str = "modprobe virtio_pci; modprobe virtio_net; ip link set eth0 up; \
                       ip addr add 10.0.2.15/24 dev eth0";

/// Asserts that the clock of the system that has shown `shown` ticked `hz` times a second. A tick at either
/// end may count or not.
#[track_caller]
fn assert_ticks(shown: &str, hz: u64) {
    let line = shown.lines().find(|line| line.starts_with("ticks ")).expect("a result");
    let numbers: Vec<u64> =
        line.split_whitespace().skip(1).map(|word| word.parse().expect("a number")).collect();
    let [_, iterations, cycles, time, ticks] = numbers[..] else { panic!("{line}") };
    assert!(iterations > 0 && cycles > 0 && time > 0, "{line}");
    assert!(ticks.abs_diff(hz * time / 1_000_000) <= 2, "{line}");
}

/// Runs each benchmark for a thousandth of its usual time, and with nothing to do, in a guest of the engine.
fn compare(engine: &str) {
    let directory = Directory::new();
    // Each 32-bit word of the disk is its own number (guest/suite/io.c).
    let image: Vec<u8> = (0..16u32 << 18).flat_map(u32::to_le_bytes).collect();
    let [ours, the_guests] = ["host", "guest"].map(|name| directory.file(name, &image));
    let drive = format!("file={},index=0", the_guests.display());
    let server = Server::start();
    let mut guest = Guest::start(|command| {
        command.args(["--engine", engine, "--drive", &drive, "--nic", "user"]);
        add_linux(command, &["suite.cpio.gz"]);
    });
    guest.wait_for(PROMPT);
    guest.command("dmesg -n 1; modprobe ata_piix; modprobe sd_mod");
    guest.command(NETWORK);
    let benchmarks = list();
    assert!(benchmarks.len() > 30, "{} benchmarks", benchmarks.len());
    for Benchmark { name, count, needs } in benchmarks {
        for count in [0, (count / 1000).clamp(3, 1000)] {
            let times = count.to_string();
            let (expected, path) = match needs.as_str() {
                "-" => (on_host(&[&name, &times]), String::new()),
                "disk" => {
                    (on_host(&[&name, &times, &ours.display().to_string()]), "/dev/sda".into())
                }
                "server" => {
                    let [from_host, from_guest] =
                        ["127.0.0.1", "10.0.2.2"].map(|host| format!("{host}:{}", server.port));
                    (on_host(&[&name, &times, &from_host]), from_guest)
                }
                // The test must not write to the host's screen; in the guest, the program itself checks the
                // screen.
                _ => (format!("{name} {count:08x}"), "/dev/tty1".into()),
            };
            let expected = checksum(&expected, &name).expect("the host's checksum");
            let shown = guest.command(&format!("suite {name} {times} {path}"));
            assert_eq!(checksum(&shown, &name), Some(expected), "{name} {count}: {shown}");
        }
    }
    // /dev/rtc0 ticks: none is lost in a tenth of a second or a few.
    let shown = guest.command("suite --ticks 100000000 1024");
    assert_ticks(&shown, 1024);
    let written = std::fs::read(&the_guests).expect("it is there");
    assert!(written == image, "nothing else is written than what was there");
    assert_eq!(guest.power_off(), Some(0));
}

#[test]
fn the_suite_has_the_results_of_the_host_on_the_default_engine() {
    compare("auto");
}

#[test]
#[ignore = "what the default engine does, in many times the time; make test-long runs it"]
fn the_suite_has_the_results_of_the_host_in_the_interpreter() {
    compare("interpreter");
}

/// Runs `ring3 bench cpu` once with further `arguments`, and returns its lines.
fn bench(arguments: &[&str]) -> Vec<String> {
    let mut command = ring3();
    command.args(["bench", "cpu", "--runs", "1"]).args(arguments).arg("--guests");
    let text = output(command.arg(file("suite").parent().expect("it is in a directory")));
    String::from_utf8(text).expect("it speaks UTF-8").lines().map(String::from).collect()
}

/// `ring3 bench` itself compares the results with the host's.
#[test]
fn the_suite_is_measured_in_tern() {
    if !has_tern() {
        return;
    }
    let directory = Directory::new();
    let (data, picture) = (directory.path("data"), directory.path("picture.svg"));
    let file = data.to_str().expect("a name in UTF-8");
    let lines = bench(&["--guest", "tern", "--only", "flow_taskswitch", "--paper", "--data", file]);
    let words = |line: &String| line.split_whitespace().map(String::from).collect::<Vec<_>>();
    let mut rows =
        lines.iter().map(words).filter(|words| words.contains(&"flow_taskswitch".into()));
    let row = rows.next().expect("a row");
    // The host, three systems with a ratio each, and how much more time QEMU takes.
    assert_eq!(row.len(), 1 + 1 + 3 * 2 + 1, "{lines:#?}");
    assert!(lines.iter().any(|line| line.starts_with("(count 0, median)")), "{lines:#?}");
    // 8.330 s in MINIX in QEMU on Linux, 0.069 s on Linux itself.
    assert_eq!(rows.next().expect("a row beside the paper's")[1], "120.72x", "{lines:#?}");
    // The host and three systems, each with all of the work and with none.
    let runs = std::fs::read_to_string(&data).expect("the measurements");
    assert_eq!(runs.lines().count(), 4 * 2, "{runs}");
    let plot = |figure: &str| {
        let mut command = ring3();
        command.args(["bench", "plot", "--figure", figure, file, "--output"]).arg(&picture);
        command.output().expect("the program starts")
    };
    assert!(plot("slowdown").status.success());
    let drawn = std::fs::read_to_string(&picture).expect("the picture");
    assert!(drawn.contains("flow_taskswitch") && drawn.contains("QEMU (TCG)"), "{drawn}");
    for (figure, reason) in [("guests", "--guest both"), ("hosts", "the other host")] {
        let refused = plot(figure);
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(refused.status.code() == Some(1) && said.contains(reason), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

/// All that the 64-bit guest can run is there, and `ring3 bench` compares its results with those of the host.
#[test]
fn the_suite_is_measured_in_64_bits() {
    let (Some(_), Some(_)) =
        (file_if_there("suite-amd64.cpio.gz"), file_if_there("linux-amd64/vmlinuz"))
    else {
        return;
    };
    let guests = file("suite-amd64");
    let names = ["flow_syscall", "getpid", "io_disk_read_random"];
    let mut command = ring3();
    // No other emulator is in this PATH: booting Linux there takes longest.
    command.args(["bench", "cpu", "--runs", "1", "--guest", "amd64"]).env("PATH", "/none");
    command.args(names.map(|name| ["--only", name]).as_flattened());
    let text = output(command.arg("--guests").arg(guests.parent().expect("its directory")));
    let text = String::from_utf8(text).expect("it speaks UTF-8");
    for name in names {
        let row = text.lines().find(|line| line.starts_with(name)).expect("a row");
        // The host, and the translator and the interpreter with a ratio each.
        assert_eq!(row.split_whitespace().count(), 1 + 1 + 2 * 2, "{text}");
    }
}

/// The disk is that of a virtio card, and the benchmark has the host's checksum, as `ring3 bench` itself sees to.
#[test]
fn the_suite_is_measured_with_a_virtio_disk() {
    if !has_tern() {
        return;
    }
    let mut command = ring3();
    // No other emulator is in this PATH.
    command
        .args(["bench", "cpu", "--guest", "tern", "--virtio", "--runs", "1"])
        .env("PATH", "/none");
    command.args(["--only", "io_disk_write_random", "--guests"]);
    let text = output(command.arg(file("suite").parent().expect("it is in a directory")));
    let text = String::from_utf8(text).expect("it speaks UTF-8");
    let row = text.lines().find(|line| line.starts_with("io_disk_write_random")).expect("a row");
    assert!(row.contains('x'), "{text}");
}

#[test]
#[ignore = "boots Tern and Linux for a benchmark; make test-long runs it"]
fn operations_are_measured_in_tern_and_in_linux() {
    if !has_tern() {
        return;
    }
    let mut command = ring3();
    // No other emulator is in this PATH: booting Linux there takes longest.
    command.args(["bench", "system", "--runs", "1", "--guests"]).env("PATH", "/none");
    let text = output(command.arg(file("suite").parent().expect("it is in a directory")));
    let text = String::from_utf8(text).expect("it speaks UTF-8");
    for title in ["null kernel call", "message and its answer", "fork, exit, wait", "page fault"] {
        let row = text.lines().find_map(|line| line.strip_prefix(title)).expect("a row");
        let times: Vec<f64> =
            row.split_whitespace().map(|time| time.parse().expect("a time")).collect();
        // The host, and both guests.
        assert_eq!(times.len(), 3, "{text}");
        assert!(times.iter().all(|time| *time > 0.0), "{text}");
    }
    assert!(text.lines().any(|line| line.starts_with("switch of processes")), "{text}");
}

/// The command itself compares the checksums of what Tern has made with those of what the host has made.
#[test]
#[ignore = "takes a minute of a processor; make test-long runs it"]
fn compiling_tern_is_measured() {
    if !has_tern() || file_if_there("tern-source.img").is_none() {
        return;
    }
    let mut command = ring3();
    command.args(["bench", "recompile", "--deterministic", "--runs", "1", "--guests"]);
    let text = output(command.arg(file("suite").parent().expect("it is in a directory")));
    let text = String::from_utf8(text).expect("it speaks UTF-8");
    for name in ["host", "ring3", "deterministic"] {
        let row =
            text.lines().find_map(|line| line.strip_prefix(&format!("{name} "))).expect("a row");
        let time: f64 =
            row.split_whitespace().next().and_then(|time| time.parse().ok()).expect("a time");
        assert!(time > 0.0, "{text}");
    }
}

/// Counts Tern's ticks. In a deterministic run no tick is early or late, so all of them come.
fn ticks_are_counted(engine: &str) {
    if !has_tern() {
        return;
    }
    let mut guest = Guest::start(|command| {
        command.args(["--tern", "--deterministic", "--engine", engine]);
    });
    guest.wait_for("/ # ");
    guest.type_line("PS1=ring3':~# '");
    guest.wait_for(PROMPT);
    for (hz, source) in
        [(1, ""), (100, ""), (1024, "pit"), (2400, ""), (10_000, ""), (10_000, "pit")]
    {
        let shown = guest.command(&format!("suite --ticks 50000000 {hz} {source}"));
        assert_ticks(&shown, hz);
    }
    assert_eq!(guest.power_off(), Some(0));
}

#[test]
fn tern_s_clock_ticks_as_often_as_it_is_told() {
    ticks_are_counted("translator");
}

#[test]
#[ignore = "the same on the interpreter, in many times the time; make test-long runs it"]
fn tern_s_clock_ticks_as_often_in_the_interpreter() {
    ticks_are_counted("interpreter");
}

#[test]
fn the_ticks_of_tern_are_measured() {
    if !has_tern() {
        return;
    }
    let directory = Directory::new();
    let plot = directory.path("plot.svg");
    let mut command = ring3();
    command.args(["bench", "hz", "--guest", "tern", "--runs", "1", "--time", "20"]);
    command.args(["--hz", "1000", "--hz", "10000", "--plot"]).arg(&plot);
    let text = String::from_utf8(output(&mut command)).expect("it speaks UTF-8");
    for begin in ["  1000", " 10000", "Tern, ring3: ", "Tern, QEMU (TCG): ", "MINIX 3 on its own"] {
        assert!(text.lines().any(|line| line.starts_with(begin)), "{begin}: {text}");
    }
    assert!(text.contains("instructions a tick"), "{text}");
    assert!(std::fs::read_to_string(plot).expect("the plot").contains("Tern, ring3"));
}

/// Returns the numbers in a line of a table.
fn numbers(line: &str) -> Vec<f64> {
    line.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

/// Returns what `ring3 bench hal --instructions` prints with these `arguments`. Two of them run side by side, so that
/// each of them has a busy host, and print the same.
fn counted(arguments: &[&str]) -> String {
    let start = || {
        let mut command = ring3();
        command.args(["bench", "hal", "--instructions"]).args(arguments);
        command.stdout(Stdio::piped()).spawn().expect("the program starts")
    };
    let [text, other] = [start(), start()].map(|child| {
        let output = child.wait_with_output().expect("it ends");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("it speaks UTF-8")
    });
    assert_eq!(text, other, "{arguments:?}");
    text
}

/// Instructions are the same wherever they are counted, and so is what a direct call saves of a
/// message's: at least as much as in the paper, though it checks the port.
#[test]
#[ignore = "computes for more than a minute; make test-long runs it"]
fn instructions_of_ways_to_ports_are_exact() {
    if !has_tern() {
        return;
    }
    let text = counted(&[]);
    for row in ["read a byte ", "read a word ", "write a byte ", "write a double-word "] {
        let line = text.lines().find_map(|line| line.strip_prefix(row)).expect(row);
        let [message, direct, trap, bitmap, kernel, share] = numbers(line)[..] else {
            panic!("{text}")
        };
        assert!(direct < message * 0.43 && share <= 43.0, "{text}");
        assert!(kernel < direct && bitmap < direct && direct < trap && trap < message, "{text}");
    }
    let text = counted(&["--transfers"]);
    let rows = ["byte sent, 19200 bit/s ", "byte sent, 38400 bit/s ", "64 KiB of a disk, by PIO "];
    for row in rows {
        let line = text.lines().find_map(|line| line.strip_prefix(row)).expect(row);
        let [message, direct, _, _, kernel, _] = numbers(line)[..] else { panic!("{text}") };
        assert!(kernel < direct && direct < message, "{row}: {text}");
    }
    // The checks take instructions, but few of those of a message.
    let text = counted(&["--masks"]);
    let line = text.lines().find_map(|line| line.strip_prefix("instructions")).expect("a row");
    let [checked, not, share] = numbers(line)[..] else { panic!("{text}") };
    assert!(not < checked && share > 0.0 && share < 22.0, "{text}");
}

#[test]
fn ways_to_ports_are_measured() {
    if !has_tern() {
        return;
    }
    let directory = Directory::new();
    let data = directory.path("data");
    let mut command = ring3();
    command.args(["bench", "hal", "--runs", "1", "--data"]).arg(&data);
    let text = String::from_utf8(output(&mut command)).expect("it speaks UTF-8");
    let after = |title: &str| text.split(title).nth(1).unwrap_or_else(|| panic!("{title}: {text}"));
    for title in ["ring3: cycles", "interpreter: cycles", "QEMU (TCG): cycles", "\ninstructions\n"]
    {
        for row in ["read a byte", "write a double-word", "read 512 words", "vector of 16 reads"] {
            let line = after(title).lines().find_map(|line| line.strip_prefix(row)).expect(row);
            // Five ways, and the share, which is a whole number, too.
            let all = numbers(line);
            assert!(all.len() == 6 && all.iter().all(|it| *it > 0.0), "{title}, {row}: {text}");
        }
    }
    assert!(after("Table 1 of Pessolani et al.").contains("1435"), "{text}");
    // Four systems, five ways, fourteen accesses; three of the ways have no door without an access.
    let runs = std::fs::read_to_string(&data).expect("the measurements");
    assert_eq!(runs.lines().count(), 4 * (5 * 14 - 3), "{runs}");
}

#[test]
fn transfers_of_drivers_are_measured() {
    if !has_tern() {
        return;
    }
    // No other emulator is in this PATH; `ways_to_ports_are_measured` measures one.
    let mut command = ring3();
    command.args(["bench", "hal", "--transfers", "--runs", "1"]).env("PATH", "/none");
    let text = output(&mut command);
    let text = String::from_utf8(text).expect("it speaks UTF-8");
    let rows = [
        "byte received, 19200 bit/s ",
        "byte received, 38400 bit/s ",
        "1000 bytes, there and back ",
    ];
    for row in rows {
        // The last table is that of instructions, which no other work disturbs much.
        let line = text.lines().filter_map(|line| line.strip_prefix(row)).next_back().expect(row);
        // Five ways, and a direct call as a share of a message.
        let [message, direct, _, _, kernel, _] = numbers(line)[..] else { panic!("{row}: {text}") };
        assert!(kernel < message && direct < message, "{row}: {text}");
    }
    let sent = text.lines().filter(|line| line.starts_with("byte sent, 19200 bit/s "));
    // By the translator and the interpreter, and in instructions.
    assert_eq!(sent.count(), 3, "{text}");
}

#[test]
#[ignore = "computes for twenty seconds; make test-long runs it"]
fn checks_of_destinations_are_measured() {
    if !has_tern() {
        return;
    }
    let mut command = ring3();
    command.args(["bench", "hal", "--masks", "--runs", "1"]).env("PATH", "/none");
    let text = String::from_utf8(output(&mut command)).expect("it speaks UTF-8");
    for name in ["ring3, ns", "interpreter, ns", "instructions"] {
        let line = text.lines().find_map(|line| line.strip_prefix(name)).expect(name);
        // Where other work delayed the messages without checks, the times give no share.
        let [checked, not, ..] = numbers(line)[..] else { panic!("{name}: {text}") };
        assert!(checked > 0.0 && not > 0.0, "{text}");
    }
}

#[test]
fn operations_of_kernels_are_measured() {
    let directory = Directory::new();
    let data = directory.path("data");
    let mut command = ring3();
    command.args(["bench", "exits", "--runs", "3", "--only", "cpuid", "--only", "iret", "--data"]);
    command.arg(&data).arg("--guests").arg(file("exits").parent().expect("it is in a directory"));
    let text = String::from_utf8(output(&mut command)).expect("it speaks UTF-8");
    for name in ["cpuid", "iret"] {
        let row = text.lines().find(|line| line.starts_with(name)).expect("a row");
        assert!(row.contains('±') && row.ends_with(".000"), "{text}");
    }
    // Two operations, two systems, three turns.
    let runs = std::fs::read_to_string(&data).expect("the measurements");
    assert_eq!(runs.lines().count(), 2 * 2 * 3, "{runs}");
    assert!(runs.contains("\"quantity\":\"processor_seconds\""), "{runs}");
}

#[test]
fn an_unknown_benchmark_is_an_error_that_lists_the_known_ones() {
    let guests = file("suite");
    let output = ring3()
        .args(["bench", "cpu", "--only", "nonsense", "--guests"])
        .arg(guests.parent().expect("it is in a directory"))
        .output()
        .expect("the program starts");
    assert_eq!(output.status.code(), Some(1));
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(message.lines().count(), 1, "{message}");
    assert!(message.contains("nonsense") && message.contains("flow_call"), "{message}");
}
