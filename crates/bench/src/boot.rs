//! Measures how long a system takes from power-on to user space.

use std::fs;
use std::path::Path;
use std::time::Instant;

use super::data::Log;
use super::guest::Guest;
use super::peer::{Kind, MEMORY, Peer};
use super::statistics::{SPREAD, Series, cell};
use super::{BenchError, BootArguments, Settings, bochs, show, v86};

/// The size in bytes of the hard disk that Bochs needs.
const DISK_OF_BOCHS: usize = 1 << 20;

/// What a system took in each turn.
#[derive(Default)]
struct Boots {
    elapsed: Series,
    processor: Series,
    /// In MiB.
    memory: Series,
}

/// Boots each guest.
pub(super) fn measure(arguments: &BootArguments) -> Result<(), BenchError> {
    let mut log = Log::begin(&arguments.settings)?;
    for guest in arguments.guest.all() {
        let (installed, missing) = kinds(*guest, arguments.all);
        measure_guest(&arguments.settings, *guest, &installed, &mut log)?;
        for (kind, how) in &missing {
            show(&format!("{:<13} is left out: {how}", kind.name()))?;
        }
    }
    Ok(())
}

/// Returns the kinds of systems that boot `guest`, and those that cannot with what they need.
fn kinds(guest: Guest, all: bool) -> (Vec<Kind>, Vec<(Kind, &'static str)>) {
    let (mut kinds, mut missing) = (Kind::installed_with(guest.processor()), Vec::new());
    // The discs for the others have 32-bit systems.
    if all && guest != Guest::Amd64 {
        for (kind, lack) in [(Kind::Bochs, bochs::missing()), (Kind::V86, v86::missing())] {
            match lack {
                None => kinds.push(kind),
                Some(how) => missing.push((kind, how)),
            }
        }
    }
    (kinds, missing)
}

/// Boots a guest in the systems in turns, and shows the medians.
fn measure_guest(
    settings: &Settings,
    guest: Guest,
    kinds: &[Kind],
    log: &mut Log,
) -> Result<(), BenchError> {
    // This is dropped last, because the running processes have their files there.
    let directory = tempfile::tempdir().map_err(BenchError::Disk)?;
    let mut all: Vec<Boots> = kinds.iter().map(|_| Boots::default()).collect();
    for turn in 0..settings.runs {
        for (kind, boots) in kinds.iter().zip(&mut all) {
            let start = prepare(settings, guest, *kind, directory.path())?;
            let begin = Instant::now();
            let mut peer = start()?;
            peer.wait_for(guest.prompt())?;
            boots.elapsed.add(turn, begin.elapsed().as_secs_f64());
            boots.processor.add(turn, peer.time()?);
            boots.memory.add(turn, f64::from(peer.memory()?) / 1024.0);
        }
    }
    for line in explanation(guest) {
        show(&line)?;
    }
    let header = |title: &str, width: usize| format!("{title:>width$}{:SPREAD$}", "");
    let [elapsed, processor] = ["elapsed", "processor"].map(|title| header(title, 10));
    let [ratio, memory] = ["ratio", "MiB"].map(|title| header(title, 8));
    show(format!("{:<13}{elapsed}{processor}{ratio}{memory}", "").trim_end())?;
    let work = match guest {
        Guest::Linux => "boot",
        Guest::Amd64 => "boot of amd64",
        Guest::Tern => "boot of Tern",
    };
    for (kind, boots) in kinds.iter().zip(&all) {
        let name = kind.name();
        let quantities = [
            ("elapsed_seconds", &boots.elapsed),
            ("processor_seconds", &boots.processor),
            ("memory_mib", &boots.memory),
        ];
        for (quantity, series) in quantities {
            log.add_series(name, work, quantity, series)?;
        }
        let [elapsed, processor] =
            [&boots.elapsed, &boots.processor].map(|series| cell(series.figure(), 10, 3, ""));
        let ratio = cell(boots.processor.ratio(&all[0].processor), 8, 2, "x");
        let memory = cell(boots.memory.figure(), 8, 0, "");
        show(format!("{name:<13}{elapsed}{processor}{ratio}{memory}").trim_end())?;
    }
    Ok(())
}

fn explanation(guest: Guest) -> Vec<String> {
    let how = match guest {
        Guest::Linux => format!(
            "Linux, by firmware and GRUB from a CD, in {MEMORY} MiB: from power-on to a shell's prompt"
        ),
        Guest::Amd64 => format!(
            "Linux for 64 bits, its kernel started directly, in {} MiB: from the start of the process\n\
             to a shell's prompt",
            guest.processor().memory()
        ),
        Guest::Tern => "Tern, by \"ring3 run\" without an option, in QEMU as kernel and initrd, in others by\n\
                        firmware and GRUB from a CD: from the start of the process to a shell's prompt"
            .into(),
    };
    vec![
        how,
        "Elapsed time and processor time in seconds (medians; ± half the distance between the"
            .into(),
        "quartiles); then the memory that the process has used on the host by then. The ratio is that"
            .into(),
        "of processor times.".into(),
    ]
}

/// Returns what starts `guest`, for which all files are there then.
fn prepare<'a>(
    settings: &'a Settings,
    guest: Guest,
    kind: Kind,
    directory: &'a Path,
) -> Result<Box<dyn FnOnce() -> Result<Peer, BenchError> + 'a>, BenchError> {
    if guest != Guest::Linux && !matches!(kind, Kind::Bochs | Kind::V86) {
        guest.files(settings, directory)?;
        return Ok(Box::new(move || guest.start(kind, settings, directory)));
    }
    let disc = guest.disc(settings, directory)?;
    if kind == Kind::Bochs {
        let disk = directory.join("disk");
        fs::write(&disk, vec![0; DISK_OF_BOCHS]).map_err(BenchError::Disk)?;
        return Ok(Box::new(move || bochs::boot(&disc, &disk, directory)));
    }
    Ok(Box::new(
        move || if kind == Kind::V86 { v86::boot_disc(&disc) } else { kind.boot_disc(&disc) },
    ))
}
