//! The event descriptors of a queue (eventfd(2)): kicks, calls and errors.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

/// Returns a client's descriptor, made non-blocking so that it cannot make a thread wait.
pub fn of_client(file: Option<File>) -> io::Result<Option<Arc<OwnedFd>>> {
    let Some(file) = file else { return Ok(None) };
    let flags = fcntl_getfl(&file)?;
    fcntl_setfl(&file, flags | OFlags::NONBLOCK)?;
    Ok(Some(Arc::new(file.into())))
}

/// Adds one to an event descriptor. An error is ignored: the counter may be full, or the other side gone.
pub fn signal(event: &impl AsFd) {
    let _ = rustix::io::write(event, &1_u64.to_ne_bytes());
}
