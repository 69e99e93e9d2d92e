//! Measures requests to disks by IDE, by virtio and through a server, with images of two formats, by their
//! size and by their number in flight.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::children::spawn;
use super::data::Log;
use super::guest::Bus;
use super::peer::{Kind, PROMPT, Peer};
use super::statistics::{Figure, SPREAD, Series, cell};
use super::{BenchError, DiskArguments, Settings, provided, show, suite};
use crate::chart::{self, Chart, Point};

/// The size of the disks in bytes.
pub(super) const DISK: usize = 64 << 20;

/// An interface by which a disk is attached.
#[derive(Debug)]
struct Interface {
    name: &'static str,
    /// The value for `-drive`.
    option: &'static str,
    /// Whether the image is served by a `ring3 vblock`, which both kinds of machines use.
    is_served: bool,
    /// The device file of the disk in Linux.
    file: &'static str,
    /// The commands that load its drivers and keep the kernel's messages out of the output.
    preparation: &'static str,
}

const VIRTIO: Interface = Interface {
    name: "virtio",
    option: "virtio",
    is_served: false,
    file: "/dev/vda",
    preparation: suite::preparation(Bus::Virtio),
};
const INTERFACES: [Interface; 3] = [
    Interface {
        name: "IDE",
        option: "ide",
        is_served: false,
        file: "/dev/sda",
        preparation: suite::preparation(Bus::Ide),
    },
    VIRTIO,
    Interface { name: "vblock", is_served: true, ..VIRTIO },
];
const FORMATS: [&str; 2] = ["raw", "qcow2"];
const KINDS: [Kind; 2] = [Kind::Translator, Kind::Qemu];

/// Requests of one kind.
#[derive(Debug, Clone, Copy)]
pub(super) struct Requests {
    writes: bool,
    is_random: bool,
    /// Bytes of each request.
    bytes: u32,
    /// How many requests are in flight at a time.
    depth: u32,
    count: u32,
}

impl Requests {
    fn command(&self, file: &str, count: u32) -> String {
        let Requests { writes, is_random, bytes, depth, .. } = self;
        let what = if *writes { "write" } else { "read" };
        let order = if *is_random { "random" } else { "sequential" };
        format!("suite --requests {file} {what} {order} {bytes} {depth} {count}")
    }

    pub(super) fn name(&self) -> String {
        let Requests { writes, is_random, bytes, depth, .. } = self;
        let what = if *writes { "write" } else { "read" };
        let order = if *is_random { "at random" } else { "in order" };
        let size =
            if *bytes < 1024 { format!("{bytes} bytes") } else { format!("{} KiB", bytes >> 10) };
        format!("{what} {size} {order}, {depth} at a time")
    }

    /// Returns the seconds that one of these requests takes in a guest with the disk at `file`.
    pub(super) fn measure(
        &self,
        peer: &mut Peer,
        kind: Kind,
        file: &str,
    ) -> Result<f64, BenchError> {
        let mut of = |count| {
            let (time, text) = peer.wait_for_work(&self.command(file, count))?;
            if text.contains(&format!("requests {count}\r")) {
                Ok(time)
            } else {
                Err(BenchError::NotRun(self.name(), kind.name(), text))
            }
        };
        let none = of(0)?;
        Ok((of(self.count)? - none).max(0.0) / f64::from(self.count))
    }
}

pub(super) const fn requests(
    writes: bool,
    is_random: bool,
    bytes: u32,
    depth: u32,
    count: u32,
) -> Requests {
    Requests { writes, is_random, bytes, depth, count }
}

/// The requests in the table.
const TABLE: [Requests; 6] = [
    requests(false, true, 4096, 1, 4000),
    requests(true, true, 4096, 1, 4000),
    requests(false, true, 4096, 16, 8000),
    requests(true, true, 4096, 16, 8000),
    requests(false, false, 65536, 1, 2000),
    requests(true, false, 65536, 1, 2000),
];

/// Returns the sizes in the plot, from a sector to 1 MiB.
fn sizes() -> impl Iterator<Item = u32> {
    (9..=20).map(|power| 1 << power)
}

/// A server. It ends when this is dropped.
pub(super) struct Server {
    child: Child,
    socket: PathBuf,
}

/// How long to wait for a server to start before giving up.
const PATIENCE: Duration = Duration::from_secs(60);

impl Server {
    fn start(image: &Path, format: &str) -> Result<Server, BenchError> {
        let failed = |error| BenchError::Start("ring3 vblock", error);
        let socket = image.with_extension("socket");
        let mut device = OsString::from(format!("disk,format={format},file="));
        device.push(image);
        let mut client = OsString::from("bench=disk:rw,socket=");
        client.push(&socket);
        let mut command = Command::new(env::current_exe().map_err(failed)?);
        command.arg("vblock").arg("--device").arg(device).arg("--client").arg(client);
        Server::launch(command, socket)
    }

    /// Starts the server by `command`, and waits until `socket` is there.
    pub(super) fn launch(mut command: Command, socket: PathBuf) -> Result<Server, BenchError> {
        let failed = |error| BenchError::Start("ring3 vblock", error);
        let child = spawn(command.stdin(Stdio::null())).map_err(failed)?;
        let mut server = Server { child, socket };
        let began = Instant::now();
        while !server.socket.exists() {
            let ended = server.child.try_wait().map_err(failed)?;
            if ended.is_some() || began.elapsed() > PATIENCE {
                return Err(failed(std::io::Error::other("it has no socket")));
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(server)
    }

    /// Returns the options by which a machine of kind `kind` uses the server.
    fn options(&self, kind: Kind) -> Vec<OsString> {
        let mut option = OsString::from(match kind {
            Kind::Qemu => "socket,id=disk,path=",
            _ => "if=virtio,driver=virtio-blk-vhost-user,path=",
        });
        option.push(&self.socket);
        if kind != Kind::Qemu {
            return vec!["-drive".into(), option];
        }
        let words = "-object memory-backend-memfd,id=memory,size=128M,share=on -machine memory-backend=memory \
            -device vhost-user-blk-pci,chardev=disk -chardev";
        words.split_whitespace().map(OsString::from).chain([option]).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The process may already have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A booted guest with a disk.
struct System {
    kind: Kind,
    interface: &'static Interface,
    format: &'static str,
    /// The machine, which is dropped before its server.
    peer: Peer,
    _server: Option<Server>,
}

impl System {
    fn name(&self) -> String {
        format!("{}, {}", self.interface.name, self.format)
    }

    /// Returns the name of the machine and its disk.
    fn full_name(&self) -> String {
        format!("{}, {}", self.kind.name(), self.name())
    }

    fn boot(
        settings: &Settings,
        kind: Kind,
        interface: &'static Interface,
        format: &'static str,
        image: &Path,
    ) -> Result<System, BenchError> {
        let kernel = settings.guest("linux-686/vmlinuz")?;
        let initrd = settings.guest("suite.cpio.gz")?;
        let server = interface.is_served.then(|| Server::start(image, format)).transpose()?;
        let options = if let Some(server) = &server {
            server.options(kind)
        } else {
            let mut drive =
                OsString::from(format!("format={format},if={},file=", interface.option));
            drive.push(image);
            vec!["-drive".into(), drive]
        };
        let mut peer = kind.boot_kernel(&kernel, &initrd, &options)?;
        peer.wait_for(PROMPT)?;
        peer.work(interface.preparation)?;
        Ok(System { kind, interface, format, peer, _server: server })
    }

    /// Returns the seconds that one of `requests` takes.
    fn measure(&mut self, requests: &Requests) -> Result<f64, BenchError> {
        requests.measure(&mut self.peer, self.kind, self.interface.file)
    }
}

/// Measures the systems in turns, and shows the medians.
pub(super) fn measure(arguments: &DiskArguments) -> Result<(), BenchError> {
    if arguments.provided {
        return provided::measure(arguments);
    }
    let settings = &arguments.settings;
    // This is dropped last, because the running processes have their files there.
    let directory = tempfile::tempdir().map_err(BenchError::Disk)?;
    let installed = Kind::installed();
    let kinds: Vec<_> = KINDS.into_iter().filter(|kind| installed.contains(kind)).collect();
    let mut systems = Vec::new();
    for interface in &INTERFACES {
        for format in FORMATS {
            for kind in &kinds {
                let image = make_image(directory.path(), systems.len(), format)?;
                systems.push(System::boot(settings, *kind, interface, format, &image)?);
            }
        }
    }
    show("Elapsed time for a request, in microseconds by the host's clock (medians; ± half the")?;
    show("distance between the quartiles). The images are in the host's page cache.")?;
    let name = |kind: &Kind| format!("{:>TIME$}{:SPREAD$}{:>RATE$}", kind.name(), "", "MB/s");
    let names: Vec<_> = kinds.iter().map(name).collect();
    show(&format!("{:<38}{:<15}{}{:>GAIN$}", "", "", names.concat(), "QEMU/ring3"))?;
    let mut log = Log::begin(settings)?;
    for requests in &TABLE {
        let times = measure_all(settings.runs, &mut systems, requests, &mut log)?;
        for (systems, times) in systems.chunks(kinds.len()).zip(times.chunks(kinds.len())) {
            show(line(requests, &systems[0].name(), times).trim_end())?;
        }
    }
    let Some(path) = &arguments.plot else { return Ok(()) };
    let mut charts = Vec::new();
    for writes in [false, true] {
        let mut curves: Vec<_> =
            systems.iter().map(|system| (system.full_name(), Vec::new())).collect();
        for bytes in sizes() {
            let requests = requests(writes, true, bytes, 1, 500);
            let times = measure_all(settings.runs, &mut systems, &requests, &mut log)?;
            for ((_, points), time) in curves.iter_mut().zip(times) {
                let point = |time: Figure| Point {
                    x: f64::from(bytes),
                    y: time.median * 1e6,
                    spread: time.spread,
                };
                points.extend(time.figure().map(point));
            }
        }
        let title = if writes { "Writes" } else { "Reads" };
        charts.push(Chart { title, unit: "microseconds", curves });
    }
    chart::write(path, "bytes of a request", &charts)
        .map_err(|error| BenchError::Plot(path.clone(), error))
}

/// The columns of a time, of a rate and of a ratio, without their spreads.
const TIME: usize = 11;
const RATE: usize = 8;
const GAIN: usize = 11;

/// Measures all systems in turns. Returns the seconds that a request takes in each.
fn measure_all(
    runs: u32,
    systems: &mut [System],
    requests: &Requests,
    log: &mut Log,
) -> Result<Vec<Series>, BenchError> {
    let mut times = vec![Series::default(); systems.len()];
    for turn in 0..runs {
        for (system, times) in systems.iter_mut().zip(&mut times) {
            times.add(turn, system.measure(requests)?);
        }
    }
    for (system, times) in systems.iter().zip(&times) {
        log.add_series(&system.full_name(), &requests.name(), "elapsed_seconds", times)?;
    }
    Ok(times)
}

fn line(requests: &Requests, name: &str, times: &[Series]) -> String {
    let both = |time: &Series| {
        let figure = time.figure();
        let rate = figure.map(|time| f64::from(requests.bytes) / time.median / 1e6);
        let rate = rate.map_or("-".into(), |rate| format!("{rate:.0}"));
        format!("{}{rate:>RATE$}", cell(figure.map(|time| time.times(1e6)), TIME, 1, ""))
    };
    let gain = match times {
        [ours, qemu] => cell(qemu.ratio(ours), GAIN, 2, "x"),
        _ => String::new(),
    };
    let cells = times.iter().map(both).collect::<String>();
    format!("{:<38}{name:<15}{cells}{gain}", requests.name())
}

/// Makes an image of format `format` in which every byte has been written.
pub(super) fn make_image(
    directory: &Path,
    number: usize,
    format: &str,
) -> Result<PathBuf, BenchError> {
    let raw = directory.join(format!("{number}.raw"));
    let bytes: Vec<u8> = (0..DISK as u32 / 4).flat_map(|word| (word | 1).to_le_bytes()).collect();
    fs::write(&raw, bytes).map_err(BenchError::Disk)?;
    if format == "raw" {
        return Ok(raw);
    }
    let image = directory.join(format!("{number}.{format}"));
    let program = env::current_exe().map_err(BenchError::Disk)?;
    let mut convert = Command::new(program);
    convert.args(["img", "convert", "-f", "raw", "-O", format]).arg(&raw).arg(&image);
    let output = convert.output().map_err(BenchError::Disk)?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(BenchError::Disk(std::io::Error::other(text)));
    }
    fs::remove_file(&raw).map_err(BenchError::Disk)?;
    Ok(image)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_times_and_rates() {
        let times = [100e-6, 200e-6].map(|time| Series::from_iter([(0, time)]));
        let text = line(&TABLE[4], "IDE, raw", &times);
        let words: Vec<_> = text.split_whitespace().collect();
        assert_eq!(words[words.len() - 5..], ["100.0", "655", "200.0", "328", "2.00x"]);
        assert!(text.starts_with("read 64 KiB in order, 1 at a time"));
    }

    #[test]
    fn commands_describe_the_requests_completely() {
        let command = TABLE[1].command("/dev/vda", 7);
        assert_eq!(command, "suite --requests /dev/vda write random 4096 1 7");
    }
}
