//! Locks against a second process, as QEMU has them.
//!
//! QEMU (block/file-posix.c) locks single bytes of an image:
//! byte 100 + *n* while it uses right *n*, byte 200 + *n* while others may not. All are shared locks of the open file
//! (F_OFD_SETLK); who wants a right asks whether anybody holds the byte that forbids it. flock(2) is taken beside
//! them, for programs that know only that.

use std::fmt::Display;
use std::fs::File;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use rustix::fs::{FlockOperation, flock};

use crate::error::Error;

/// The first of the bytes that stand for rights in use.
const USED: i64 = 100;
/// The first of the bytes that stand for rights which others may not have.
const FORBIDDEN: i64 = 200;
/// To read what is consistent.
const READ: i64 = 0;
/// To write.
const WRITE: i64 = 1;
/// To change the size.
const RESIZE: i64 = 3;

/// Locks `file` for a reader or for a writer, until it is closed.
pub(super) fn take(file: &File, path: &Path, writes: bool) -> Result<(), Error> {
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

/// A file system without locks: better unprotected than unusable.
fn unlockable(path: &Path, error: &dyn Display) {
    tracing::warn!("{} cannot be locked against a second user: {error}", path.display());
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
