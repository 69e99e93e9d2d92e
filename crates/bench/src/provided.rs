//! Measures a disk that a guest provides for another one, by the size of requests and by their number in flight: through
//! `ring3 vblock`, and directly after this server has introduced them, beside a disk that the providing guest uses
//! itself. Root (2007) supposed that the direct way would save what his server costs (5.2.4); table 5.1 there has that
//! cost, and table 5.2 what a provided disk costs.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::data::Log;
use super::disk::{Server, make_image, requests};
use super::guest::Bus;
use super::peer::{Kind, PROMPT, Peer};
use super::statistics::{Figure, SPREAD, Series, cell};
use super::{BenchError, DiskArguments, Settings, show, suite};

/// How long the provider may take to be there.
const PATIENCE: Duration = Duration::from_secs(60);
/// The ways to a disk, as the columns of the table.
const WAYS: [&str; 4] = ["provider's", "vblock", "provided", "direct"];
/// How many requests are measured at a time, by way: the same work takes a hundred times as long by another one.
const COUNTS: [u32; 4] = [16_000, 4000, 500, 500];
/// The columns of a time, of a factor and of a difference, without their spreads.
const TIME: usize = 11;
const FACTOR: usize = 10;
const SAVED: usize = 10;
/// How many requests are in flight at a time.
const DEPTHS: [u32; 2] = [1, 8];

/// What the provider runs in its guest: two connections, one for the server and one for a direct way.
const SERVE: &str = "echo '#!/bin/sh' > /tmp/serve; chmod +x /tmp/serve; \
    echo \"echo '{\\\"execute\\\": \\\"serve\\\", \\\"arguments\\\": {\\\"device\\\": \\\"disk\\\"}}'; \
    exec nbdkit -s file /dev/vda\" >> /tmp/serve; \
    for i in 1 2; do nc 10.0.2.100 1 -e /tmp/serve 2>/dev/null & done; sleep 1";
const NETWORK: &str = "echo 1 > /proc/sys/vm/overcommit_memory; modprobe virtio_net; \
    ip addr add 10.0.2.15/24 dev eth0; ip link set eth0 up; ip route add default via 10.0.2.2";

/// The files of the guests and servers.
struct Place<'a> {
    settings: &'a Settings,
    directory: &'a Path,
}

impl Place<'_> {
    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Returns `before` with the path of this file behind it.
    fn option(&self, before: &str, name: &str, after: &str) -> OsString {
        let mut option = OsString::from(before);
        option.push(self.path(name));
        option.push(after);
        option
    }

    /// Boots a guest with the disks that `drives` describe, and `nic`.
    fn boot(
        &self,
        drives: impl IntoIterator<Item = OsString>,
        nic: Option<OsString>,
    ) -> Result<Peer, BenchError> {
        let kernel = self.settings.guest("linux-686/vmlinuz")?;
        let mut initrd = self.settings.guest("suite.cpio.gz")?;
        let mut options: Vec<OsString> =
            drives.into_iter().flat_map(|drive| ["-drive".into(), drive]).collect();
        if let Some(nic) = nic {
            let parts = [initrd, self.settings.guest("nbd.cpio.gz")?];
            initrd = self.path("initrd");
            let parts: Result<Vec<_>, _> = parts.iter().map(fs::read).collect();
            let joined = parts.and_then(|parts| fs::write(&initrd, parts.concat()));
            joined.map_err(BenchError::Disk)?;
            options.extend(["-nic".into(), nic]);
        }
        let mut peer = Kind::Translator.boot_kernel(&kernel, &initrd, &options)?;
        peer.wait_for(PROMPT)?;
        peer.work(suite::preparation(Bus::Virtio))?;
        Ok(peer)
    }

    /// Boots a guest that the server introduces to the provider.
    fn boot_direct(&self) -> Result<Peer, BenchError> {
        let kernel = self.settings.guest("linux-686/vmlinuz")?;
        let initrd = self.settings.guest("suite.cpio.gz")?;
        let failed = |error| BenchError::Start("ring3", error);
        let mut command = Command::new(env::current_exe().map_err(failed)?);
        command.args(["run", "--memory", "128M", "--serial", "stdio", "--kernel"]).arg(kernel);
        command.arg("--initrd").arg(initrd).args(["--append", "console=ttyS0"]);
        command.arg("--drive").arg(self.option("vblock=", "near", ",direct=guest.disk,if=virtio"));
        command.stderr(Stdio::inherit());
        let mut peer = Peer::start(Kind::Translator, command)?;
        peer.wait_for(PROMPT)?;
        peer.work(suite::preparation(Bus::Virtio))?;
        Ok(peer)
    }

    /// Starts a server with a disk of its own, and a provider's.
    fn serve(&self, image: &Path) -> Result<Server, BenchError> {
        let failed = |error| BenchError::Start("ring3 vblock", error);
        let mut command = Command::new(env::current_exe().map_err(failed)?);
        let mut device = OsString::from("own,format=raw,file=");
        device.push(image);
        command.arg("vblock").arg("--device").arg(device);
        command.arg("--client").arg(self.option("own=own:rw,socket=", "own", ""));
        command.arg("--client").arg(self.option("far=guest.disk:rw,socket=", "far", ""));
        command.args(["--client", "near=guest.disk:rw"]);
        command.arg("--client-socket").arg(self.option("near=", "near", ""));
        command.arg("--provider").arg(self.option("guest=", "provider", ""));
        Server::launch(command, self.path("provider"))
    }
}

/// Measures all ways in turns, and shows the medians.
pub(super) fn measure(arguments: &DiskArguments) -> Result<(), BenchError> {
    let settings = &arguments.settings;
    // This is dropped last, because the running processes have their files there.
    let directory = tempfile::tempdir().map_err(BenchError::Disk)?;
    let place = Place { settings, directory: directory.path() };
    let [own, served, provided] =
        [0, 1, 2].map(|number| make_image(directory.path(), number, "raw"));
    let (own, served, provided) = (own?, served?, provided?);
    let _server = place.serve(&served)?;
    let drive = |image: &Path| {
        let mut drive = OsString::from("format=raw,if=virtio,file=");
        drive.push(image);
        drive
    };
    let nic =
        place.option("user,model=virtio-net-pci,guestfwd=tcp:10.0.2.100:1-unix:", "provider", "");
    let mut provider = place.boot([drive(&provided), drive(&own)], Some(nic))?;
    provider.work(NETWORK)?;
    provider.work(SERVE)?;
    let began = Instant::now();
    while !place.path("far").exists() {
        if began.elapsed() > PATIENCE {
            let error = std::io::Error::other("the provider does not come");
            return Err(BenchError::Start("ring3 vblock", error));
        }
        thread::sleep(Duration::from_millis(10));
    }
    let by_socket = "if=virtio,driver=virtio-blk-vhost-user,path=";
    // The provider has a disk of its own beside the one that it provides.
    let mut peers = [
        (provider, "/dev/vdb"),
        (place.boot([place.option(by_socket, "own", "")], None)?, "/dev/vda"),
        (place.boot([place.option(by_socket, "far", "")], None)?, "/dev/vda"),
        (place.boot_direct()?, "/dev/vda"),
    ];
    show("Elapsed time for a request, in microseconds by the host's clock (medians; ± half the")?;
    show(
        "distance between the quartiles): a disk that the providing guest uses itself, one of ring3",
    )?;
    show(
        "vblock, and one that this guest provides for another, through ring3 vblock and directly.",
    )?;
    show("The factors compare the latter two with the first one.")?;
    let names = WAYS.map(|name| format!("{name:>TIME$}{:SPREAD$}", ""));
    let factors = ["provided", "direct"]
        .map(|name| format!("{:>FACTOR$}{:SPREAD$}", format!("{name} x"), ""));
    show(&format!("{:<38}{}{}{:>SAVED$}", "", names.concat(), factors.concat(), "saved"))?;
    let mut log = Log::begin(settings)?;
    let (mut increases, mut count) = (0.0, 0_u32);
    for depth in DEPTHS {
        for writes in [false, true] {
            for bytes in (9..=16).map(|power| 1 << power) {
                let requests = COUNTS.map(|count| requests(writes, true, bytes, depth, count));
                let mut times = vec![Series::default(); peers.len()];
                for turn in 0..settings.runs {
                    let ways = peers.iter_mut().zip(&requests).zip(&mut times);
                    for (((peer, file), requests), times) in ways {
                        times.add(turn, requests.measure(peer, Kind::Translator, file)?);
                    }
                }
                let name = requests[0].name();
                for (way, times) in WAYS.iter().zip(&times) {
                    log.add_series(way, &name, "elapsed_seconds", times)?;
                }
                show(line(&name, &times).trim_end())?;
                if let (true, 1, Some(factor)) = (writes, depth, times[2].ratio(&times[0])) {
                    increases += factor.median - 1.0;
                    count += 1;
                }
            }
        }
    }
    show(&format!(
        "Writes to the provided disk, 1 at a time, take {:.0} % longer on average; table 5.2 of Root (2007): 1278 %.",
        increases / f64::from(count) * 100.0
    ))
}

fn line(name: &str, times: &[Series]) -> String {
    let micros = |time: &Series| time.figure().map(|time| time.times(1e6));
    let cells: String = times.iter().map(|time| cell(micros(time), TIME, 1, "")).collect();
    let [own, _, through, direct] = times else { return String::new() };
    let factors = [through, direct].map(|time| cell(time.ratio(own), FACTOR, 1, "x"));
    // The same turns are compared.
    let saved = Figure::of(through.with(direct, |through, direct| through - direct).values());
    let saved = saved.map_or_else(String::new, |saved| format!("{:.1}", saved.median * 1e6));
    format!("{name:<38}{cells}{}{saved:>SAVED$}", factors.concat())
}
