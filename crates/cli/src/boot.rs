//! Checks that there is something to boot, and what to say if there is not, or if firmware finds nothing.
//!
//! * [`files`]: files without an option, which are recognized by their contents.

mod files;

use std::io::Write;
use std::path::Path;

use clap::error::ErrorKind;
use clap::{CommandFactory, Error};
use ring3_display::tty::Stderr;
use ring3_tern::TERN;

use crate::args::{Arguments, DebugTarget, RunArguments};
use crate::display::DisplayTarget;
pub(crate) use files::medium_in;

/// Advice for a machine that has nothing to boot.
const ADVICE: &str = "name a file with a disk, a disc, a diskette or a kernel (ring3 run FILE, or --hda, --cdrom, --fda, \
     --kernel FILE), give a network (--nic user), or boot the system that is part of ring3 (--tern)";

impl RunArguments {
    /// Makes a machine that has nothing else to boot start Tern, and says so. A machine that is driven from
    /// outside may still get a disk, so its firmware starts. Options for a kernel show that one was forgotten.
    pub(crate) fn choose_tern(&mut self) {
        let is_for_kernel = !self.append.is_empty() || !self.initrd.is_empty();
        if is_for_kernel || self.has_software() || self.has_monitor() || TERN.is_none() {
            return;
        }
        self.tern = true;
        // A failure is ignored: the system introduces itself.
        let _ = writeln!(
            Stderr,
            "ring3: no disk and no kernel is given, so Tern boots, a small system that is part of ring3 (\"ring3 run --help\" \
             shows how to boot others)"
        );
    }

    /// Returns whether something is named that the machine can boot.
    fn has_software(&self) -> bool {
        self.tern
            || self.kernel.is_some()
            || self.bios.is_some()
            || !self.drives.flash.is_empty()
            || self.restore.is_some()
            || self.incoming.is_some()
            || self.repetition.replay.is_some()
            || !self.media().is_empty()
            || !self.nics.cards().is_empty()
    }

    /// Refuses a machine that has nothing to boot if nobody could read its firmware's messages or give it a
    /// disk. Otherwise this prints the advice only.
    pub(crate) fn check_boot(&self) -> Result<(), Error> {
        if self.has_software() {
            return Ok(());
        }
        let is_seen = self.has_monitor()
            || self.display != DisplayTarget::None
            || self.debugcon != DebugTarget::Log;
        if !is_seen {
            let reason = format!("there is nothing to boot: {ADVICE}");
            return Err(Arguments::command().error(ErrorKind::MissingRequiredArgument, reason));
        }
        if !self.has_monitor() {
            // A failure is ignored: the firmware's messages say the same.
            let _ = writeln!(Stderr, "ring3: there is nothing to boot: {ADVICE}");
        }
        Ok(())
    }

    /// Returns the media in the machine's drives.
    fn media(&self) -> Vec<&Path> {
        let drives = &self.drives;
        let short = [
            &drives.hda,
            &drives.hdb,
            &drives.hdc,
            &drives.hdd,
            &drives.cdrom,
            &drives.fda,
            &drives.fdb,
        ];
        let long = drives
            .drive
            .iter()
            .filter_map(|drive| drive.file.as_deref().or(drive.vblock.as_deref()));
        short.into_iter().flatten().map(AsRef::as_ref).chain(long).collect()
    }

    /// Returns the message for a firmware that has found nothing to boot.
    pub(crate) fn nothing_was_found(&self) -> String {
        let media: Vec<_> = self.media().iter().map(|path| path.display().to_string()).collect();
        let on_network = if self.nics.cards().is_empty() { "" } else { ", nor on the network" };
        if media.is_empty() && on_network.is_empty() {
            return format!("the firmware has found nothing to boot: {ADVICE}");
        }
        let where_not = if media.is_empty() {
            "no server on the network has one".to_owned()
        } else {
            format!("there is no boot loader on {}{on_network}", media.join(", "))
        };
        format!(
            "the firmware has found no system to boot: {where_not}; --kernel FILE starts a kernel without a boot loader"
        )
    }
}
