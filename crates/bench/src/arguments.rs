//! The options of `ring3 bench`.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};

use crate::{BenchError, net};

/// What `ring3 bench` is told.
#[derive(Debug, Args)]
pub struct BenchArguments {
    #[command(subcommand)]
    pub(crate) what: What,
}

#[derive(Debug, Subcommand)]
pub(crate) enum What {
    /// Boots Linux from a disc by GRUB, up to a shell's prompt, here and in QEMU
    Boot(Settings),
    /// A shell, sort, awk and gzip in a booted Linux, here and in QEMU, and on the host itself
    Work(WorkArguments),
    /// Small programs in a booted Linux, each for one thing that processors and systems do, here and in QEMU, and
    /// on the host itself
    Cpu(CpuArguments),
    /// What leaves ordinary execution, one thing at a time: device registers, privileged instructions, far transfers,
    /// interrupts and exceptions, in a small kernel, here and in QEMU
    Exits(ExitsArguments),
    /// Requests to disks by IDE and virtio, with raw and qcow2 images, here and in QEMU
    Disk(DiskArguments),
    /// Streams and packets between two guests, here and in QEMU
    Net(NetArguments),
}

/// What `ring3 bench net` is told.
#[derive(Debug, Args)]
pub(crate) struct NetArguments {
    #[command(flatten)]
    pub(crate) settings: Settings,

    /// Only with this card, virtio, e1000 or ne2k_pci; may be given again
    #[arg(long = "card", value_name = "NAME", value_parser = net::named)]
    pub(crate) cards: Vec<&'static net::Card>,

    /// Show what the model of "ring3 netmodel" predicts for each card on this host, beside what is measured, and which of its terms is off
    #[arg(long, conflicts_with = "plot")]
    pub(crate) model: bool,

    /// Measure other sizes too, and write plots of them, an SVG file
    #[arg(long, value_name = "FILE")]
    pub(crate) plot: Option<PathBuf>,
}

/// What `ring3 bench disk` is told.
#[derive(Debug, Args)]
pub(crate) struct DiskArguments {
    #[command(flatten)]
    pub(crate) settings: Settings,

    /// Measure requests of other sizes too, and write a plot of them, an SVG file
    #[arg(long, value_name = "FILE")]
    pub(crate) plot: Option<PathBuf>,
}

/// What `ring3 bench work` is told.
#[derive(Debug, Args)]
pub(crate) struct WorkArguments {
    #[command(flatten)]
    pub(crate) settings: Settings,

    /// In Bochs, v86 and User Mode Linux, too
    #[arg(long)]
    pub(crate) all: bool,
}

/// What `ring3 bench cpu` is told.
#[derive(Debug, Args)]
pub(crate) struct CpuArguments {
    #[command(flatten)]
    pub(crate) settings: Settings,

    /// Only this benchmark; may be given again
    #[arg(long, value_name = "NAME")]
    pub(crate) only: Vec<String>,

    /// In a deterministic run, too
    #[arg(long)]
    pub(crate) deterministic: bool,

    /// In Bochs, too
    #[arg(long)]
    pub(crate) all: bool,

    /// Write a plot of the ratios, an SVG file
    #[arg(long, value_name = "FILE")]
    pub(crate) plot: Option<PathBuf>,
}

/// What `ring3 bench exits` is told.
#[derive(Debug, Args)]
pub(crate) struct ExitsArguments {
    #[command(flatten)]
    pub(crate) settings: Settings,

    /// Only this row; may be given again
    #[arg(long, value_name = "NAME")]
    pub(crate) only: Vec<String>,

    /// In a deterministic run, too
    #[arg(long)]
    pub(crate) deterministic: bool,

    /// In the interpreter, too
    #[arg(long)]
    pub(crate) all: bool,
}

/// How it is measured.
#[derive(Debug, Args)]
pub(crate) struct Settings {
    /// Where the guests are: `make guests` gets them
    #[arg(long, value_name = "DIRECTORY", env = "RING3_GUESTS", default_value = "guests")]
    pub(crate) guests: PathBuf,

    /// How often everything is measured; the medians are shown
    #[arg(long, value_name = "TIMES", default_value_t = 5)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) runs: u32,
}

impl What {
    /// Returns the path for the plot, if one is wanted.
    pub(crate) fn plot(&self) -> Option<&Path> {
        match self {
            What::Cpu(arguments) => arguments.plot.as_deref(),
            What::Disk(arguments) => arguments.plot.as_deref(),
            What::Net(arguments) => arguments.plot.as_deref(),
            What::Boot(_) | What::Work(_) | What::Exits(_) => None,
        }
    }
}

impl Settings {
    /// Returns the path of the guests' file `name`.
    pub(crate) fn guest(&self, name: &str) -> Result<PathBuf, BenchError> {
        let path = self.guests.join(name);
        if path.exists() { Ok(path) } else { Err(BenchError::NoGuest(path)) }
    }
}
