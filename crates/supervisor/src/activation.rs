//! A socket for commands that systemd has made, and whose first client has it start the supervisor (sd_listen_fds(3)).

use std::os::unix::net::UnixListener;
use std::path::Path;

use listenfd::ListenFd;
use rustix::io::{FdFlags, fcntl_setfd};

use crate::error::Error;

/// Returns the socket that was handed over to this process, if one was. It must be at `path`, where clients look.
pub(crate) fn socket(path: &Path) -> Result<Option<UnixListener>, Error> {
    let mut handed = ListenFd::from_env();
    let wrong = || Error::Activation { wanted: path.to_owned() };
    let Some(listener) = handed.take_unix_listener(0).map_err(|_| wrong())? else {
        return Ok(None);
    };
    let address = listener.local_addr().map_err(Error::Host)?;
    if address.as_pathname() != Some(path) || handed.len() > 1 {
        return Err(wrong());
    }
    // The processes that the supervisor starts have no use for it.
    fcntl_setfd(&listener, FdFlags::CLOEXEC).map_err(|error| Error::Host(error.into()))?;
    listener.set_nonblocking(true).map_err(Error::Host)?;
    Ok(Some(listener))
}
