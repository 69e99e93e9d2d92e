//! How long a system takes from the power switch to user space.

use std::time::Instant;

use super::peer::{Kind, PROMPT};
use super::{BenchError, Settings, median, show};

/// Boots by turns, and shows the medians.
pub(super) fn measure(settings: &Settings) -> Result<(), BenchError> {
    let disc = settings.guest("grub.iso")?;
    let kinds = Kind::installed();
    let mut times = vec![(Vec::new(), Vec::new()); kinds.len()];
    for _ in 0..settings.runs {
        for (kind, (waited, worked)) in kinds.iter().zip(&mut times) {
            let begin = Instant::now();
            let mut peer = kind.boot_disc(&disc)?;
            peer.wait_for(PROMPT)?;
            waited.push(begin.elapsed().as_secs_f64());
            worked.push(peer.time()?);
        }
    }
    show("From the power switch to a shell's prompt, by firmware and GRUB from a disc:")?;
    show("             seconds   processor's   ratio")?;
    let mut ours = None;
    for (kind, (waited, worked)) in kinds.iter().zip(times) {
        let (waited, worked) = (median(waited), median(worked));
        let ratio = worked / *ours.get_or_insert(worked);
        show(&format!("{:<11} {waited:8.2} {worked:13.2} {ratio:7.2}", kind.name()))?;
    }
    Ok(())
}
