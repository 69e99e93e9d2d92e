//! Unix sockets to which this user's programs connect.

use std::fs::{self, Metadata};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, fchmod};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};
use thiserror::Error;
use tracing::warn;

/// Number of clients that may wait to be accepted. The kernel refuses more.
const WAITING_CLIENTS: i32 = 8;

/// The reasons why a socket cannot be made.
#[derive(Debug, Error)]
pub enum SocketError {
    /// Another process listens at the path.
    #[error("the socket {0} is in use by another process; end it, or choose another path")]
    InUse(PathBuf),
    /// A file of another kind is at the path.
    #[error("{0} exists and is not a socket; remove it, or choose another path")]
    NoSocket(PathBuf),
    /// The host refuses to make the socket.
    #[error("cannot listen at the socket {path}: {source}")]
    Refused {
        /// The path.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
}

/// The file of a socket. It is removed when this is dropped, unless another file has taken its place.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
}

impl SocketFile {
    fn at(path: &Path) -> io::Result<SocketFile> {
        let identity = identity(&fs::symlink_metadata(path)?);
        Ok(SocketFile { path: path.to_owned(), identity })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let there = fs::symlink_metadata(&self.path).map(|file| identity(&file));
        if there.is_ok_and(|there| there == self.identity)
            && let Err(error) = fs::remove_file(&self.path)
        {
            warn!("cannot remove the socket {}: {error}", self.path.display());
        }
    }
}

fn identity(file: &Metadata) -> (u64, u64) {
    (file.dev(), file.ino())
}

/// Listens at `path` with a socket that does not block, for this user alone. Replaces the socket of a process
/// that is gone.
pub fn listen_at(path: &Path) -> Result<(UnixListener, SocketFile), SocketError> {
    let (socket, file) = socket_at(path, SocketType::STREAM, SocketFlags::NONBLOCK)?;
    listen(&socket, WAITING_CLIENTS)
        .map_err(|error| SocketError::Refused { path: path.to_owned(), source: error.into() })?;
    Ok((socket.into(), file))
}

/// Makes a socket for datagrams at `path`, to which this user alone can send. Replaces the socket of a
/// process that is gone.
pub fn datagrams_at(path: &Path) -> Result<(OwnedFd, SocketFile), SocketError> {
    socket_at(path, SocketType::DGRAM, SocketFlags::empty())
}

fn socket_at(
    path: &Path,
    kind: SocketType,
    flags: SocketFlags,
) -> Result<(OwnedFd, SocketFile), SocketError> {
    let refused =
        |error: Errno| SocketError::Refused { path: path.to_owned(), source: error.into() };
    let address = SocketAddrUnix::new(path).map_err(refused)?;
    let socket = new_socket(kind, flags).map_err(refused)?;
    // A program that can connect can write files as this user. On Linux the socket's file gets the mode of
    // the socket, so there is no moment at which others could connect.
    fchmod(&socket, Mode::RUSR | Mode::WUSR).map_err(refused)?;
    match bind(&socket, &address) {
        Err(Errno::ADDRINUSE) => {
            remove_stale(path, &address, kind)?;
            bind(&socket, &address).map_err(refused)?;
        }
        result => result.map_err(refused)?,
    }
    let file = SocketFile::at(path)
        .map_err(|source| SocketError::Refused { path: path.to_owned(), source })?;
    Ok((socket, file))
}

/// Removes the socket at `path` if nobody listens there.
fn remove_stale(
    path: &Path,
    address: &SocketAddrUnix,
    kind: SocketType,
) -> Result<(), SocketError> {
    let refused = |source| SocketError::Refused { path: path.to_owned(), source };
    let file = fs::symlink_metadata(path).map_err(refused)?;
    if !file.file_type().is_socket() {
        return Err(SocketError::NoSocket(path.to_owned()));
    }
    let probe = new_socket(kind, SocketFlags::NONBLOCK).map_err(|error| refused(error.into()))?;
    match connect(&probe, address) {
        Err(Errno::CONNREFUSED) => fs::remove_file(path).map_err(refused),
        // A process listens there, though it may have no room for a client, or have a socket of another kind.
        Ok(()) | Err(Errno::AGAIN | Errno::PROTOTYPE) => Err(SocketError::InUse(path.to_owned())),
        Err(error) => Err(refused(error.into())),
    }
}

fn new_socket(kind: SocketType, flags: SocketFlags) -> Result<OwnedFd, Errno> {
    socket_with(AddressFamily::UNIX, kind, flags | SocketFlags::CLOEXEC, None)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// Returns a path at which nothing is, and that no other test uses.
    fn path(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("ring3-socket-{}-{name}", std::process::id()));
        let _ = fs::remove_file(&path);
        path
    }

    #[test]
    fn a_socket_is_for_its_user_alone() {
        let path = path("mode");
        let listening = listen_at(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        drop(listening);
        assert!(!path.exists());
    }

    #[test]
    fn only_an_unused_socket_is_replaced() {
        let path = path("stale");
        let (listener, file) = listen_at(&path).unwrap();
        assert!(matches!(listen_at(&path), Err(SocketError::InUse(_))));
        drop(listener);
        drop(listen_at(&path).unwrap());
        drop(file);
        assert!(!path.exists());

        let (_, file) = datagrams_at(&path).unwrap();
        drop(datagrams_at(&path).unwrap());
        drop(file);
        let (datagrams, file) = datagrams_at(&path).unwrap();
        assert!(matches!(datagrams_at(&path), Err(SocketError::InUse(_))));
        assert!(matches!(listen_at(&path), Err(SocketError::InUse(_))));
        drop((datagrams, file));
        assert!(!path.exists());

        fs::write(&path, "precious").unwrap();
        assert!(matches!(listen_at(&path), Err(SocketError::NoSocket(_))));
        assert_eq!(fs::read(&path).unwrap(), b"precious");
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn an_impossible_path_is_reported() {
        for bad in ["/no/such/directory/socket".to_owned(), "x".repeat(200)] {
            let error = listen_at(bad.as_ref()).unwrap_err();
            assert!(matches!(error, SocketError::Refused { .. }));
            assert!(error.to_string().contains(&bad), "{error}");
        }
    }
}
