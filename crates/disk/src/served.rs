//! A disk behind a vhost-user-blk server, such as `ring3 vblock`.
//!
//! The machine shares a few MiB of its own memory for requests and their data, and not the guest's memory:
//! the translator would not see another process write code there, a recording could not repeat such writes,
//! and a server need not see more than its disk. This costs one copy for each request, as with all other
//! drives.
//!
//! The machine polls for the answer to a single request, for some microseconds. A guest that has several
//! requests under way runs on, and the machine finds the answers when it next looks outside
//! (`ring3_vm::drives`), so server and guest work at the same time. When the guest waits, the machine sleeps
//! on the server's descriptor together with all others (`Drive::arm`). If a thread waited there instead, the
//! server would have to wake the thread, and the thread the machine.

use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;

use ring3_core::disk::{DiskError, DiskOperation, Medium};
use ring3_vblock_client::{Act, ClientError, Disk, Waiting};
use ring3_vm::drives::{Begun, Drive, Opener, PendingOperation, ResizeError};

use crate::range::{bytes_of, check};

/// A drive on a server's disk. While the server is away, requests wait.
#[derive(Debug)]
pub struct Served {
    disk: Disk,
    read_only: bool,
}

impl Served {
    /// Connects to the server at `socket`. The disk is read-only if the server says so, or if `read_only` is
    /// set.
    pub fn connect(socket: &Path, read_only: bool) -> Result<Served, ClientError> {
        let disk = Disk::connect(socket)?;
        let read_only = read_only || disk.is_read_only();
        Ok(Served { disk, read_only })
    }

    fn present(&self) -> Medium {
        Medium { sectors: self.disk.sectors(), read_only: self.read_only }
    }
}

/// Returns the act that the server must perform for an operation, and its first sector.
fn act(operation: &DiskOperation) -> Option<(Act<'_>, u64)> {
    Some(match operation {
        DiskOperation::Read { sector, count } => (Act::Read(bytes_of(*count) as usize), *sector),
        DiskOperation::Write { sector, data } => (Act::Write(data), *sector),
        DiskOperation::Flush => (Act::Flush, 0),
        DiskOperation::Discard { sector, count } => (Act::Discard(*count), *sector),
        DiskOperation::WriteZeroes { sector, count, gives_up_room } => {
            (Act::WriteZeroes { count: *count, unmaps: *gives_up_room }, *sector)
        }
        // The machine itself puts an empty drive in the place of this one.
        DiskOperation::Eject => return None,
    })
}

/// Logs an error as a warning, since the guest learns only that its request failed.
fn answer(result: Result<Vec<u8>, ClientError>) -> Result<Vec<u8>, DiskError> {
    result.map_err(|error| {
        tracing::warn!("{error}");
        DiskError::Host
    })
}

/// A request for which the server has not answered yet.
struct Asked(Waiting);

impl PendingOperation for Asked {
    fn look(&mut self) -> Option<Result<Vec<u8>, DiskError>> {
        self.0.look().map(answer)
    }

    fn look_a_while(&mut self) -> Option<Result<Vec<u8>, DiskError>> {
        self.0.look_a_while().map(answer)
    }

    fn wait(self: Box<Self>) -> Result<Vec<u8>, DiskError> {
        answer(self.0.wait())
    }
}

impl Drive for Served {
    fn execute(&self, operation: &DiskOperation) -> Result<Vec<u8>, DiskError> {
        check(operation, self.present())?;
        match act(operation) {
            Some((act, sector)) => answer(self.disk.execute(act, sector)),
            None => Ok(Vec::new()),
        }
    }

    /// Returns None after an error too: then a thread executes the operation, and handles the error.
    fn begin(&self, operation: &DiskOperation) -> Option<Begun> {
        check(operation, self.present()).ok()?;
        let (act, sector) = act(operation)?;
        let waiting = self.disk.begin(act, sector)?.ok()?;
        Some(Begun::Pending(Box::new(Asked(waiting))))
    }

    fn has_news(&self) -> bool {
        self.disk.has_news()
    }

    fn arm(&self) -> Option<BorrowedFd<'_>> {
        self.disk.arm()
    }

    fn on_resize(&self, listener: Box<dyn Fn() + Send>) {
        self.disk.on_resize(listener);
    }

    fn resize(&self, _bytes: u64) -> Result<(), ResizeError> {
        Err(ResizeError::Served)
    }

    fn reconnects(&self) -> bool {
        true
    }

    fn end(&self) {
        self.disk.give_up();
    }

    fn opener(&self) -> Option<Opener> {
        let (socket, read_only) = (self.disk.path().to_owned(), self.read_only);
        let open = move || Ok(Arc::new(Served::connect(&socket, read_only)?) as Arc<dyn Drive>);
        Some(Box::new(open))
    }

    fn medium(&self) -> Option<Medium> {
        Some(self.present())
    }

    fn file(&self) -> Option<&Path> {
        Some(self.disk.path())
    }
}
