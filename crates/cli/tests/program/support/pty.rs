//! Pseudoterminals.

use std::fs::File;

use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

/// Opens a pseudoterminal: the test's end, and the terminal for a program.
pub(crate) fn open() -> (File, File) {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a pseudoterminal");
    grantpt(&ours).expect("a terminal of our own");
    unlockpt(&ours).expect("a terminal of our own");
    let name = ptsname(&ours, Vec::new()).expect("a terminal has a name");
    let theirs = rustix::fs::open(name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty())
        .expect("the terminal opens");
    (File::from(ours), File::from(theirs))
}
