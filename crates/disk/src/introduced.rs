//! A direct way to a disk that a program provides for a vblock server: the server only introduces the machine to
//! the provider, and requests go from one to the other.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ring3_block::nbd::{Nbd, Source};
use ring3_block::{Format, Image, OpenOptions};
use ring3_vblock_client::lobby::Lobby;

use crate::{Access, ImageError, ImageFile, ImageOptions};

/// How long requests wait for a provider that is away.
const RECONNECT: Duration = Duration::from_secs(60);

/// The introductions to one provider, each by a connection with the machine's socket at the server.
#[derive(Debug)]
struct Introductions {
    socket: PathBuf,
    device: String,
    /// The connection by which the last introduction came, and with which it ends.
    lobby: Mutex<Option<Lobby>>,
}

impl Source for Introductions {
    fn name(&self) -> &str {
        &self.device
    }

    fn connect(&self) -> io::Result<OwnedFd> {
        let mut kept = self.lobby.lock().unwrap_or_else(PoisonError::into_inner);
        // The provider learns by this that the connection before is over.
        *kept = None;
        let mut lobby = Lobby::connect(&self.socket)?;
        let stream = lobby.open(&self.device, true)?;
        *kept = Some(lobby);
        Ok(stream)
    }
}

/// Lets the server at `socket`, one of this machine's own, introduce it to the provider of `device`.
pub(crate) fn introduce(
    socket: &Path,
    device: &str,
    read_only: bool,
) -> Result<ImageFile, ImageError> {
    let (socket, device) = (socket.to_owned(), device.to_owned());
    let path = PathBuf::from(&device);
    let source = Introductions { socket, device: device.clone(), lobby: Mutex::default() };
    // The provider knows the device by the name that follows its own.
    let export = device.split_once('.').map_or(&*device, |(_, export)| export);
    let nbd = Nbd::over(Arc::new(source), export, RECONNECT, !read_only)?;
    let writes = !read_only;
    let open = OpenOptions { format: Some(Format::Raw), writes, ..OpenOptions::default() };
    let image = Image::in_export(nbd, &path, &open)?;
    let access = if writes { Access::ReadWrite } else { Access::ReadOnly };
    ImageFile::of(
        image,
        ImageOptions { format: Some(Format::Raw), access, ..ImageOptions::default() },
    )
}
