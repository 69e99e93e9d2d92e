//! Opening an image and its chain of backing images.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Image, Layer};
use crate::encryption::luks::Luks;
use crate::encryption::{Password, Secret};
use crate::error::{Error, Fault};
use crate::external::External;
use crate::format::{BackingName, Driver, Format, PROBE_SIZE};
use crate::nbd::Nbd;
use crate::qcow2::Qcow2;
use crate::raw::Raw;
use crate::storage::{Access, HostFile, Slice, Storage, read_padded};
use crate::vdi::Vdi;
use crate::vmdk;
use crate::vpc;
use crate::{bochs::Bochs, cow::Cow, qcow::Qcow};
use crate::{parallels, vhdx};

/// Upper bound of the images in a chain.
const CHAIN_MAX: usize = 64;

/// The options for opening an image.
#[derive(Debug, Clone, Default)]
pub struct OpenOptions {
    /// The image's format. Without it the first bytes decide. This is safe only if no guest has written them
    /// (see [`Format::probe`]).
    pub format: Option<Format>,
    /// Whether to open the image for writing too.
    pub writes: bool,
    /// Whether to open the image without locks, although another process may be writing to it. Only for
    /// reading.
    pub shares: bool,
    /// Whether to bypass the host's cache (`O_DIRECT`), also for backing images.
    pub direct: bool,
    /// Whether a flush only writes tables from memory to the file, and does not wait until the host has made
    /// them permanent. After a failure of the host the image may contain anything.
    pub no_flush: bool,
    /// The treatment of the backing image.
    pub backing: Backing,
    /// Whether to open nothing that an image names: no backing image (except [`Backing::Other`]), and no file
    /// with a part of its data. The names in an image cannot be trusted if a guest or a stranger has written
    /// it.
    pub no_external_files: bool,
    /// The part of the file that is the image: offset of the first byte, and perhaps the length. For raw
    /// images.
    pub slice: Option<(u64, Option<u64>)>,
    /// The password of an encrypted image, and of encrypted backing images.
    pub secret: Option<Secret>,
    /// Whether the disk will not be read, so that properties of an encrypted image can be shown without a
    /// password.
    pub is_for_telling: bool,
}

impl OpenOptions {
    fn password(&self) -> Password<'_> {
        match &self.secret {
            _ if self.is_for_telling => Password::NotNeeded,
            Some(secret) => Password::Given(secret),
            None => Password::Missing,
        }
    }
}

/// The treatment of an image's backing image.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Backing {
    /// Opens the backing image, and those below it.
    #[default]
    Follow,
    /// Does not open the backing image. It reads as zeros.
    Ignore,
    /// Opens this backing image instead of the one that the image names, or none.
    Other(Option<BackingName>),
}

pub(super) fn open(path: &Path, options: &OpenOptions) -> Result<Image, Error> {
    let place = Place::open(path, options)?;
    let (layer, guarded) = open_layer(path, place, options, &mut Vec::new())?;
    Ok(Image { layer: Arc::new(layer), writes: options.writes, guarded, closed: false })
}

/// Opens the image in `storage` as if it were the file at `path`.
pub(super) fn open_in(
    storage: Box<dyn Storage>,
    path: &Path,
    options: &OpenOptions,
) -> Result<Image, Error> {
    let place = Place { server: None, storage };
    let (layer, guarded) = open_layer(path, place, options, &mut Vec::new())?;
    Ok(Image { layer: Arc::new(layer), writes: options.writes, guarded, closed: false })
}

/// Opens the image in an export. It is called `path` in messages.
pub(super) fn open_export(nbd: Nbd, path: &Path, options: &OpenOptions) -> Result<Image, Error> {
    let server = Arc::new(nbd);
    let place = Place { server: Some(Arc::clone(&server)), storage: Box::new(server) };
    let (layer, guarded) = open_layer(path, place, options, &mut Vec::new())?;
    Ok(Image { layer: Arc::new(layer), writes: options.writes, guarded, closed: false })
}

fn access(options: &OpenOptions) -> Access {
    let OpenOptions { writes, shares, direct, no_flush, .. } = *options;
    Access { writes, shares, direct, no_flush }
}

/// The place of an image's bytes.
struct Place {
    /// The NBD server that exports them, if there is one.
    server: Option<Arc<Nbd>>,
    storage: Box<dyn Storage>,
}

impl Place {
    /// Opens the file at `path`, or the NBD export with this address.
    fn open(path: &Path, options: &OpenOptions) -> Result<Place, Error> {
        if Nbd::is_address(path) {
            let server = Arc::new(Nbd::connect(path, options.writes)?);
            return Ok(Place { server: Some(Arc::clone(&server)), storage: Box::new(server) });
        }
        let storage = Box::new(HostFile::open(path, access(options))?);
        Ok(Place { server: None, storage })
    }
}

/// Opens the image in `storage` and, if `options` say so, those below. `seen` contains the files above.
fn open_layer(
    path: &Path,
    place: Place,
    options: &OpenOptions,
    seen: &mut Vec<PathBuf>,
) -> Result<(Layer, bool), Error> {
    let Place { server, mut storage } = place;
    seen.push(real(path));
    let in_image = |fault| Error::In { path: path.to_owned(), fault };
    if let Some((start, len)) = options.slice {
        storage = Box::new(Slice::of(storage, start, len).map_err(in_image)?);
    }
    let mut head = [0; PROBE_SIZE];
    read_padded(&*storage, &mut head, 0).map_err(|error| in_image(error.into()))?;
    let format = options.format.unwrap_or_else(|| Format::probe(&head));
    let guarded = options.format.is_none() && format == Format::Raw;
    if guarded && options.writes {
        tracing::info!(
            "{}: its format was not given and is not recognized, so it is used as a raw image; writes that would make it \
             look like another format are refused; give format=raw (-f raw) to allow them",
            path.display()
        );
    }
    let external = External { image: path, is_allowed: !options.no_external_files };
    let driver = open_driver(format, storage, access(options), external, options.password())
        .map_err(in_image)?;
    let (named, is_users) = match &options.backing {
        Backing::Follow => (driver.backing(), false),
        Backing::Ignore => (None, false),
        Backing::Other(other) => (other.clone(), true),
    };
    if let Some(named) = &named
        && !is_users
    {
        external.ask("a backing file", &named.name).map_err(in_image)?;
    }
    let below = named.map(|named| open_backing(path, &named, options, seen)).transpose()?;
    if let Some(below) = &below {
        let known = driver.stands_on();
        let is_known = below.driver.identity().is_some_and(|identity| known.contains(&identity));
        if !known.is_empty() && !is_known {
            return Err(in_image(Fault::refused(format!(
                "its parent at {} is not the image that it was made on, or has been changed since",
                below.path.display()
            ))));
        }
    }
    let layer = Layer { path: path.to_owned(), format, driver, below: below.map(Arc::new), server };
    Ok((layer, guarded))
}

pub(super) fn open_driver(
    format: Format,
    storage: Box<dyn Storage>,
    access: Access,
    external: External<'_>,
    password: Password<'_>,
) -> Result<Box<dyn Driver>, Fault> {
    if access.writes {
        format.check_writes()?;
    }
    Ok(match format {
        Format::Raw => Box::new(Raw::open(storage)?),
        Format::Qcow2 => Box::new(Qcow2::open(storage, access.writes, password)?),
        Format::Vdi => Box::new(Vdi::open(storage)?),
        Format::Vmdk => vmdk::open(storage, access, external)?,
        Format::Vpc => vpc::open(storage)?,
        Format::Qcow => Box::new(Qcow::open(storage, access.writes, password)?),
        Format::Bochs => Box::new(Bochs::open(storage)?),
        Format::Cow => Box::new(Cow::open(storage)?),
        Format::Vhdx => vhdx::open(storage)?,
        Format::Parallels => parallels::open(storage)?,
        Format::Luks => Box::new(Luks::open(storage, password)?),
    })
}

/// Returns the path by which loops are found: a file may have several names.
fn real(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

fn open_backing(
    above: &Path,
    named: &BackingName,
    options: &OpenOptions,
    seen: &mut Vec<PathBuf>,
) -> Result<Layer, Error> {
    let fails = |fault| Error::In { path: above.to_owned(), fault };
    let format = named.known_format().map_err(fails)?;
    let path = named.path(above).map_err(fails)?;
    if seen.contains(&real(&path)) {
        return Err(Error::Loop { path });
    }
    if seen.len() == CHAIN_MAX {
        return Err(Error::Deep { path: seen[0].clone(), max: CHAIN_MAX });
    }
    let below = OpenOptions {
        format,
        writes: false,
        no_flush: false,
        backing: Backing::Follow,
        slice: None,
        ..options.clone()
    };
    let opened =
        Place::open(&path, &below).and_then(|place| open_layer(&path, place, &below, seen));
    let (layer, _) = opened.map_err(|source| match source {
        Error::Loop { .. } | Error::Deep { .. } => source,
        source => Error::Backing { path: above.to_owned(), source: Box::new(source) },
    })?;
    Ok(layer)
}
