//! Locks against use by a second process, compatible with QEMU's.
//!
//! QEMU (block/file-posix.c) locks single bytes of an image: byte 100 + *n* while it uses right *n*, and byte
//! 200 + *n* while it allows no one else to have right *n*. All of them are shared locks of the open file
//! (F_OFD_SETLK). A program that wants a right first asks whether anybody has locked the byte that forbids
//! it. In addition flock(2) is used, for programs that know nothing else.

use std::fmt::Display;
use std::fs::File;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use rustix::fs::{FlockOperation, flock};

use crate::error::Error;

/// The first of the bytes for rights in use.
const USED: i64 = 100;
/// The first of the bytes for rights that others may not have.
const FORBIDDEN: i64 = 200;
/// The right to read consistent data.
const READ: i64 = 0;
/// The right to write.
const WRITE: i64 = 1;
/// The right to change the size.
const RESIZE: i64 = 3;

/// How long a lock may outlive its file, and how often this is looked at. A process that was just started has
/// all open files of the one that starts it, with their locks, until it executes its program.
const PATIENCE: Duration = Duration::from_millis(100);
const PAUSE: Duration = Duration::from_millis(5);

/// Locks `file` for a reader or for a writer, until it is closed.
pub(super) fn take(file: &File, path: &Path, writes: bool) -> Result<(), Error> {
    let until = Instant::now() + PATIENCE;
    loop {
        match try_to_take(file, path, writes) {
            Err(Error::InUse { .. }) if Instant::now() < until => thread::sleep(PAUSE),
            result => return result,
        }
    }
}

fn try_to_take(file: &File, path: &Path, writes: bool) -> Result<(), Error> {
    let in_use = || Error::InUse { path: path.to_owned(), writes };
    let exclusive = FlockOperation::NonBlockingLockExclusive;
    let operation = if writes { exclusive } else { FlockOperation::NonBlockingLockShared };
    match flock(file, operation) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => return Err(in_use()),
        Err(error) => {
            unlockable(path, &error);
            return Ok(());
        }
    }
    let used: &[i64] = if writes { &[READ, WRITE, RESIZE] } else { &[READ] };
    let forbidden = [WRITE, RESIZE];
    for byte in
        used.iter().map(|right| USED + right).chain(forbidden.map(|right| FORBIDDEN + right))
    {
        let lock = lock_of(byte, libc::F_RDLCK);
        match fcntl(file, FcntlArg::F_OFD_SETLK(&lock)) {
            Ok(_) => {}
            Err(Errno::EAGAIN | Errno::EACCES) => return Err(in_use()),
            Err(error) => {
                unlockable(path, &error);
                return Ok(());
            }
        }
    }
    let against = used.iter().map(|right| FORBIDDEN + right);
    for byte in against.chain(forbidden.map(|right| USED + right)) {
        let mut lock = lock_of(byte, libc::F_WRLCK);
        match fcntl(file, FcntlArg::F_OFD_GETLK(&mut lock)) {
            Ok(_) if lock.l_type == libc::F_UNLCK as libc::c_short => {}
            Ok(_) => return Err(in_use()),
            Err(error) => {
                unlockable(path, &error);
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Logs that a file system has no locks. The image is used nevertheless.
fn unlockable(path: &Path, error: &dyn Display) {
    tracing::warn!(
        "{} cannot be locked, so other programs may change it at the same time: {error}",
        path.display()
    );
}

fn lock_of(byte: i64, kind: i32) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: byte,
        l_len: 1,
        l_pid: 0,
    }
}
