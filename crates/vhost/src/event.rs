//! The event descriptors of a queue (eventfd(2)): kicks, calls and errors.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

/// A client's descriptor, which must not make a thread wait.
pub fn of_client(file: Option<File>) -> io::Result<Option<Arc<OwnedFd>>> {
    let Some(file) = file else { return Ok(None) };
    let flags = fcntl_getfl(&file)?;
    fcntl_setfl(&file, flags | OFlags::NONBLOCK)?;
    Ok(Some(Arc::new(file.into())))
}

/// Adds one to an event descriptor; it may be at its end, or gone.
pub fn signal(event: &impl AsFd) {
    let _ = rustix::io::write(event, &1_u64.to_ne_bytes());
}
