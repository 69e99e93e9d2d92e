//! Measures how long a system takes from power-on to user space.

use std::time::Instant;

use super::peer::{Kind, MEMORY, PROMPT};
use super::statistics::median;
use super::{BenchError, Settings, show};

/// Boots the systems in turns, and shows the medians.
pub(super) fn measure(settings: &Settings) -> Result<(), BenchError> {
    let disc = settings.guest("grub.iso")?;
    let kinds = Kind::installed();
    let mut figures = vec![[const { Vec::new() }; 3]; kinds.len()];
    for _ in 0..settings.runs {
        for (kind, [waited, worked, memory]) in kinds.iter().zip(&mut figures) {
            let begin = Instant::now();
            let mut peer = kind.boot_disc(&disc)?;
            peer.wait_for(PROMPT)?;
            waited.push(begin.elapsed().as_secs_f64());
            worked.push(peer.time()?);
            memory.push(f64::from(peer.memory()?) / 1024.0);
        }
    }
    show("Time from power-on to a shell's prompt, by firmware and GRUB from a CD: elapsed time")?;
    show("and processor time in seconds; then the memory that the process has used on the host")?;
    show("by then.")?;
    show(&format!("The guest itself has {MEMORY} MiB."))?;
    show("             elapsed     processor   ratio       MiB")?;
    let mut ours = None;
    for (kind, [waited, worked, memory]) in kinds.iter().zip(figures) {
        let (waited, worked, memory) = (median(waited), median(worked), median(memory));
        let ratio = worked / *ours.get_or_insert(worked);
        let name = kind.name();
        show(&format!("{name:<11} {waited:8.2} {worked:13.2} {ratio:7.2} {memory:9.0}"))?;
    }
    Ok(())
}
