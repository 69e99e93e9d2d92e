//! Measures how long a system takes from power-on to user space.

use std::time::Instant;

use super::data::Log;
use super::peer::{Kind, MEMORY, PROMPT};
use super::statistics::{SPREAD, Series, cell};
use super::{BenchError, Settings, show};

/// What a system took in each turn.
#[derive(Default)]
struct Boots {
    elapsed: Series,
    processor: Series,
    /// In MiB.
    memory: Series,
}

/// Boots the systems in turns, and shows the medians.
pub(super) fn measure(settings: &Settings) -> Result<(), BenchError> {
    let disc = settings.guest("grub.iso")?;
    let kinds = Kind::installed();
    let mut log = Log::begin(settings)?;
    let mut all: Vec<Boots> = kinds.iter().map(|_| Boots::default()).collect();
    for turn in 0..settings.runs {
        for (kind, boots) in kinds.iter().zip(&mut all) {
            let begin = Instant::now();
            let mut peer = kind.boot_disc(&disc)?;
            peer.wait_for(PROMPT)?;
            boots.elapsed.add(turn, begin.elapsed().as_secs_f64());
            boots.processor.add(turn, peer.time()?);
            boots.memory.add(turn, f64::from(peer.memory()?) / 1024.0);
        }
    }
    show("Time from power-on to a shell's prompt, by firmware and GRUB from a CD: elapsed time")?;
    show("and processor time in seconds; then the memory that the process has used on the host")?;
    show("by then (medians; ± half the distance between the quartiles). The ratio is that of")?;
    show("processor times.")?;
    show(&format!("The guest itself has {MEMORY} MiB."))?;
    let header = |title: &str, width: usize| format!("{title:>width$}{:SPREAD$}", "");
    let [elapsed, processor] = ["elapsed", "processor"].map(|title| header(title, 10));
    let [ratio, memory] = ["ratio", "MiB"].map(|title| header(title, 8));
    show(format!("{:<13}{elapsed}{processor}{ratio}{memory}", "").trim_end())?;
    for (kind, boots) in kinds.iter().zip(&all) {
        let name = kind.name();
        let quantities = [
            ("elapsed_seconds", &boots.elapsed),
            ("processor_seconds", &boots.processor),
            ("memory_mib", &boots.memory),
        ];
        for (quantity, series) in quantities {
            log.add_series(name, "boot", quantity, series)?;
        }
        let [elapsed, processor] =
            [&boots.elapsed, &boots.processor].map(|series| cell(series.figure(), 10, 2, ""));
        let ratio = cell(boots.processor.ratio(&all[0].processor), 8, 2, "x");
        let memory = cell(boots.memory.figure(), 8, 0, "");
        show(format!("{name:<13}{elapsed}{processor}{ratio}{memory}").trim_end())?;
    }
    Ok(())
}
