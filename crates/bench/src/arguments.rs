//! The options of `ring3 bench`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};

use crate::figures::Which;
use crate::guest::{Guests, Linux};
use crate::{BenchError, net};

/// The arguments of `ring3 bench`.
#[derive(Debug, Args)]
pub struct BenchArguments {
    #[command(subcommand)]
    pub(crate) what: What,
}

#[derive(Debug, Subcommand)]
pub(crate) enum What {
    /// Boot Linux from a CD by firmware and GRUB, or Tern, up to a shell's prompt, in ring3 and in QEMU
    Boot(BootArguments),
    /// Let Linux and Tern wait at their shells' prompts, in ring3 and in QEMU
    Idle(IdleArguments),
    /// Save booted machines of several sizes, continue them, and continue a hundred from one file, in ring3 and,
    /// but for the hundred, in QEMU
    Restore(RestoreArguments),
    /// Move an idle and a busy guest to other processes, by a Unix socket and by TCP, in ring3 and in QEMU
    Move(MoveArguments),
    /// Go back with a debugger in the middle of a recorded boot of Linux
    Back(BackArguments),
    /// Do the same work in machines whose runs are recorded, wholly or as to their last seconds, or whose instructions
    /// are counted, and in one without all this
    Record(RecordArguments),
    /// Start machines by a supervisor and without one, and kill a server that it then replaces
    Supervise(SuperviseArguments),
    /// Run a shell, sort, awk and gzip under Linux in ring3 and in QEMU, and directly on the host
    Work(WorkArguments),
    /// Run small programs, each of which tests one operation of a processor or an operating system, under
    /// Linux or Tern in ring3 and in QEMU, and directly on the host
    Cpu(CpuArguments),
    /// Measure what a call of the kernel, a message, fork, exec, a pipe, a switch of processes and a page
    /// fault cost in Tern and in Linux, in ring3 and in QEMU, and on the host
    System(SystemArguments),
    /// Let Tern compile itself, in ring3 and in QEMU, and compile it with the same compiler on the host
    Recompile(RecompileArguments),
    /// Perform single operations of kernels, each many times, in ring3 and in QEMU: accesses to device
    /// registers, privileged instructions, far transfers, interrupts and exceptions
    Exits(ExitsArguments),
    /// Measure what the ticks of a system's clock cost, at 20 to 10,000 ticks a second, in Tern and Linux in
    /// ring3 and in QEMU, and on the host
    Hz(HzArguments),
    /// Count the ticks of the 8254, the MC146818 and the local APIC's timer at 18 to 8192 Hz, idle and busy, on a
    /// quiet and on a loaded host, in ring3 and in QEMU, and show how even they are
    Ticks(TicksArguments),
    /// Measure what an access to ports costs a driver of Tern in each of its ways: by a message to
    /// the kernel, a direct call, a trap, and the permission map of the TSS; in ring3 and in QEMU
    Hal(HalArguments),
    /// Draw a figure from the measurements of "ring3 bench cpu --data"
    Plot(PlotArguments),
    /// Read and write disks, by IDE, virtio and vblock, with raw and qcow2 images, in ring3 and in QEMU
    Disk(DiskArguments),
    /// Send streams and packets between two guests, in ring3 and in QEMU
    Net(NetArguments),
    /// Be the server outside to which the suite's network benchmarks connect, until this is ended
    Server(ServerArguments),
    /// Execute a script in several guests, each in several kinds of machines, and on the host, and store what
    /// it prints
    Driver(DriverArguments),
}

/// The arguments of `ring3 bench boot`.
#[derive(Debug, Args)]
pub(crate) struct BootArguments {
    #[command(flatten)]
    pub(crate) settings: Settings,

    /// The guest that boots
    #[arg(long, value_name = "NAME", value_enum, default_value = "linux")]
    pub(crate) guest: Guests,

    /// Measure Bochs and v86 as well, if they are installed
    #[arg(long)]
    pub(crate) all: bool,
}

/// The arguments of `ring3 bench idle`.
#[derive(Debug, Args)]
pub(crate) struct IdleArguments {
    #[command(flatten)]
    pub(crate) settings: Settings,

    /// The guest that is idle
    #[arg(long, value_name = "NAME", value_enum, default_value = "both")]
    pub(crate) guest: Guests,

    /// How long to look at them in each run
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub(crate) time: u32,
}

/// The arguments of `ring3 bench restore`.
#[derive(Debug, Args)]
pub(crate) struct RestoreArguments {
    #[command(flatten)]
    pub(crate) settings: Settings,

    /// The memory of the guests, in MiB. The many machines from one file have that of the last one
    #[arg(long, value_name = "MIB", default_value = "128,2048,512", value_delimiter = ',')]
    #[arg(value_parser = clap::value_parser!(u32).range(64..=2048))]
    pub(crate) memory: Vec<u32>,

    /// The number of machines that continue from one file
    #[arg(long, value_name = "NUMBER", default_value_t = 100)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) machines: u32,
}

/// The arguments of `ring3 bench move`.
#[derive(Debug, Args)]
pub(crate) struct MoveArguments {
    #[command(flatten)]
    pub(crate) settings: Settings,

    /// The memory of the guest, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 512)]
    #[arg(value_parser = clap::value_parser!(u32).range(64..=2048))]
    pub(crate) memory: u32,
}

/// The arguments of `ring3 bench back`.
#[derive(Debug, Args)]
pub(crate) struct BackArguments {
    #[command(flatten)]
    pub(crate) settings: Settings,
}

/// The arguments of `ring3 bench record`.
#[derive(Debug, Args)]
pub(crate) struct RecordArguments {
    #[command(flatten)]
    pub(crate) settings: Settings,
}

/// The arguments of `ring3 bench supervise`.
#[derive(Debug, Args)]
pub(crate) struct SuperviseArguments {
    #[command(flatten)]
    pub(crate) settings: Settings,
}

/// The arguments of `ring3 bench driver`.
#[derive(Debug, Args)]
pub(crate) struct DriverArguments {
    /// The file that names the script, the kinds of machines, the guests and the directory for the results
    /// (TOML)
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
}

/// The arguments of `ring3 bench server`.
#[derive(Debug, Args)]
pub(crate) struct ServerArguments {
    /// Listen at this address and port. Whoever reaches it can have data sent, so a guest's user network,
    /// for which 127.0.0.1 is enough, is the safe way to it
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:1234")]
    pub(crate) listen: SocketAddr,
}

/// The arguments of `ring3 bench net`.
#[derive(Debug, Args)]
pub(crate) struct NetArguments {
    #[command(flatten)]
    pub(crate) settings: Settings,

    /// Measure this card only: virtio, e1000 or ne2k_pci; may be given several times
    #[arg(long = "card", value_name = "NAME", value_parser = net::named)]
    pub(crate) cards: Vec<&'static net::Card>,

    /// Compare the prediction of "ring3 netmodel" for each card on this host with measurements, and name the
    /// terms of the model that differ most
    #[arg(long, conflicts_with = "plot")]
    pub(crate) model: bool,

    /// Measure packets and records of other sizes as well, and write plots of the results to this file (SVG)
    #[arg(long, value_name = "FILE")]
    pub(crate) plot: Option<PathBuf>,
}

/// The arguments of `ring3 bench disk`.
#[derive(Debug, Args)]
pub(crate) struct DiskArguments {
    #[command(flatten)]
    pub(crate) settings: Settings,

    /// Measure instead a disk that a guest provides for another: directly, and through the server that has
    /// introduced them, by size and number of the requests, beside a disk that the guest uses itself
    #[arg(long, conflicts_with = "plot")]
    pub(crate) provided: bool,

    /// Measure requests of other sizes as well, and write plots of the results to this file (SVG)
    #[arg(long, value_name = "FILE")]
    pub(crate) plot: Option<PathBuf>,
}

/// The arguments of `ring3 bench work`.
#[derive(Debug, Args)]
pub(crate) struct WorkArguments {
    #[command(flatten)]
    pub(crate) settings: Settings,

    /// The guest that does the work
    #[arg(long, value_name = "NAME", value_enum, default_value = "linux")]
    pub(crate) guest: Linux,

    /// Measure Bochs, v86 and User Mode Linux as well, which do the work in 32 bits
    #[arg(long)]
    pub(crate) all: bool,
}

/// The arguments of `ring3 bench cpu`.
#[derive(Debug, Args)]
pub(crate) struct CpuArguments {
    #[command(flatten)]
    pub(crate) settings: Settings,

    /// The guest that runs the benchmarks
    #[arg(long, value_name = "NAME", value_enum, default_value = "linux")]
    pub(crate) guest: Guests,

    /// Run this benchmark only; may be given several times
    #[arg(long, value_name = "NAME")]
    pub(crate) only: Vec<String>,

    /// Repeat each benchmark for about this time in each system. The count of its work is chosen so that a run
    /// takes a quarter of a second
    #[arg(long, value_name = "SECONDS", conflicts_with = "runs")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub(crate) seconds: Option<u32>,

    /// Run the benchmarks of van der Kouwe (2009), table 7, only, and show the paper's slow-downs beside ours
    #[arg(long)]
    pub(crate) paper: bool,

    /// Measure a deterministic run as well ("ring3 run --deterministic")
    #[arg(long)]
    pub(crate) deterministic: bool,

    /// Measure Bochs as well, with Linux
    #[arg(long)]
    pub(crate) all: bool,

    /// Give the guests their disk by virtio instead of IDE; Bochs has no such disk
    #[arg(long, conflicts_with = "all")]
    pub(crate) virtio: bool,

    /// Write a plot of the ratios to this file (SVG)
    #[arg(long, value_name = "FILE")]
    pub(crate) plot: Option<PathBuf>,
}

/// The arguments of `ring3 bench plot`.
#[derive(Debug, Args)]
pub(crate) struct PlotArguments {
    /// What is compared
    #[arg(long, value_name = "NAME", value_enum)]
    pub(crate) figure: Which,

    /// The measurements ("ring3 bench cpu --data")
    #[arg(value_name = "FILE")]
    pub(crate) data: PathBuf,

    /// The measurements of another host, which "--figure hosts" compares with the first
    #[arg(value_name = "OTHER")]
    pub(crate) other: Option<PathBuf>,

    /// The picture (SVG)
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: PathBuf,
}

/// The arguments of `ring3 bench system`.
#[derive(Debug, Args)]
pub(crate) struct SystemArguments {
    #[command(flatten)]
    pub(crate) settings: Settings,

    /// Measure the interpreter as well
    #[arg(long)]
    pub(crate) all: bool,
}

/// The arguments of `ring3 bench recompile`.
#[derive(Debug, Args)]
pub(crate) struct RecompileArguments {
    #[command(flatten)]
    pub(crate) settings: Settings,

    /// Measure a deterministic run as well ("ring3 run --deterministic")
    #[arg(long)]
    pub(crate) deterministic: bool,

    /// Measure the interpreter as well
    #[arg(long)]
    pub(crate) all: bool,
}

/// The arguments of `ring3 bench exits`.
#[derive(Debug, Args)]
pub(crate) struct ExitsArguments {
    #[command(flatten)]
    pub(crate) settings: Settings,

    /// Perform this operation only; may be given several times
    #[arg(long, value_name = "NAME")]
    pub(crate) only: Vec<String>,

    /// Measure a deterministic run as well ("ring3 run --deterministic")
    #[arg(long)]
    pub(crate) deterministic: bool,

    /// Measure the interpreter as well
    #[arg(long)]
    pub(crate) all: bool,
}

/// The arguments of `ring3 bench hz`.
#[derive(Debug, Args)]
pub(crate) struct HzArguments {
    #[command(flatten)]
    pub(crate) settings: Settings,

    /// The guest whose ticks are measured
    #[arg(long, value_name = "NAME", value_enum, default_value = "both")]
    pub(crate) guest: Guests,

    /// Measure this number of ticks a second only; may be given several times. Linux has powers of two
    #[arg(long, value_name = "TIMES")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) hz: Vec<u32>,

    /// How long to count in each run
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 100)]
    #[arg(value_parser = clap::value_parser!(u32).range(10..=60_000))]
    pub(crate) time: u32,

    /// Let counter 0 of the 8254 tick in Tern, not the local APIC's timer
    #[arg(long)]
    pub(crate) pit: bool,

    /// Measure the interpreter as well
    #[arg(long)]
    pub(crate) all: bool,

    /// Write a plot of the results to this file (SVG)
    #[arg(long, value_name = "FILE")]
    pub(crate) plot: Option<PathBuf>,
}

/// The arguments of `ring3 bench ticks`.
#[derive(Debug, Args)]
pub(crate) struct TicksArguments {
    #[command(flatten)]
    pub(crate) settings: Settings,

    /// Measure this number of ticks a second only; may be given several times
    #[arg(long, value_name = "TIMES")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=8192))]
    pub(crate) hz: Vec<u32>,

    /// How long to count in each run
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 1000)]
    #[arg(value_parser = clap::value_parser!(u32).range(100..=60_000))]
    pub(crate) time: u32,

    /// How many threads keep the host busy in the second half; by default one for each of its processors
    #[arg(long, value_name = "THREADS")]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=1024))]
    pub(crate) load: Option<u32>,

    /// Measure the interpreter as well
    #[arg(long)]
    pub(crate) all: bool,
}

/// The arguments of `ring3 bench hal`.
#[derive(Debug, Args)]
pub(crate) struct HalArguments {
    #[command(flatten)]
    pub(crate) settings: Settings,

    /// Measure transfers by the drivers of real devices: bytes over a serial line at 19200 and 38400 bit/s,
    /// blocks of a disk by programmed I/O, and packets of an NE2000
    #[arg(long)]
    pub(crate) transfers: bool,

    /// Measure what messages cost with and without the kernel's checks of their destinations
    #[arg(long, conflicts_with = "transfers")]
    pub(crate) masks: bool,

    /// Count instructions only, which are the same in each run and on any host
    #[arg(long)]
    pub(crate) instructions: bool,
}

/// The arguments of all measurements.
#[derive(Debug, Args)]
pub(crate) struct Settings {
    /// The directory of the guests, which `make guests` fills
    #[arg(long, value_name = "DIRECTORY", env = "RING3_GUESTS", default_value = "guests")]
    pub(crate) guests: PathBuf,

    /// The number of times to measure everything; the medians are shown
    #[arg(long, value_name = "TIMES", default_value_t = 5)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) runs: u32,

    /// Write each measurement to this file (a JSON object a line)
    #[arg(long, value_name = "FILE")]
    pub(crate) data: Option<PathBuf>,
}

impl What {
    /// Returns the paths of the files that the measurement is to write.
    pub(crate) fn files(&self) -> Vec<&Path> {
        let (settings, plot) = match self {
            What::Boot(arguments) => (&arguments.settings, &None),
            What::Idle(arguments) => (&arguments.settings, &None),
            What::Restore(arguments) => (&arguments.settings, &None),
            What::Move(arguments) => (&arguments.settings, &None),
            What::Back(arguments) => (&arguments.settings, &None),
            What::Record(arguments) => (&arguments.settings, &None),
            What::Supervise(arguments) => (&arguments.settings, &None),
            What::Work(arguments) => (&arguments.settings, &None),
            What::System(arguments) => (&arguments.settings, &None),
            What::Recompile(arguments) => (&arguments.settings, &None),
            What::Exits(arguments) => (&arguments.settings, &None),
            What::Ticks(arguments) => (&arguments.settings, &None),
            What::Hal(arguments) => (&arguments.settings, &None),
            What::Cpu(arguments) => (&arguments.settings, &arguments.plot),
            What::Hz(arguments) => (&arguments.settings, &arguments.plot),
            What::Disk(arguments) => (&arguments.settings, &arguments.plot),
            What::Net(arguments) => (&arguments.settings, &arguments.plot),
            What::Plot(_) | What::Server(_) | What::Driver(_) => return Vec::new(),
        };
        [&settings.data, plot].into_iter().flatten().map(PathBuf::as_path).collect()
    }
}

impl Settings {
    /// Returns the path of the guests' file `name`.
    pub(crate) fn guest(&self, name: &str) -> Result<PathBuf, BenchError> {
        let path = self.guests.join(name);
        if path.exists() { Ok(path) } else { Err(BenchError::NoGuest(path)) }
    }
}
