//! The descriptors by which a server and its client wake each other: those of a queue (eventfd(2)), for kicks,
//! calls and errors, and the socket for a server's own messages.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::net::{SendFlags, send};

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

/// A message of a server by which a client learns that its configuration has changed
/// (VHOST_USER_BACKEND_CONFIG_CHANGE_MSG in `docs/interop/vhost-user`): number, flags with the version, and no
/// payload.
pub const CONFIGURATION_CHANGED: [u32; 3] = [2, 1, 0];

/// Tells the client at the other end of `channel` that its configuration has changed. If it has not read earlier
/// messages and there is no room for one more, it learns of this change from them.
pub fn tell_configuration(channel: &impl AsFd) {
    let message = CONFIGURATION_CHANGED.map(u32::to_le_bytes);
    let _ = send(channel, message.as_flattened(), SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
}
