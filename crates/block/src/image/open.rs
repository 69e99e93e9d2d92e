//! Opening an image and those below it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Image, Layer};
use crate::error::{Error, Fault};
use crate::format::{BackingName, Driver, Format, PROBE_SIZE};
use crate::nbd::Nbd;
use crate::qcow2::Qcow2;
use crate::raw::Raw;
use crate::storage::{Access, HostFile, Storage, read_padded};
use crate::vdi::Vdi;
use crate::vmdk;
use crate::vpc;
use crate::{bochs::Bochs, cow::Cow, qcow::Qcow};

/// The most images of a chain.
const CHAIN_MAX: usize = 64;

/// How to open an image.
#[derive(Debug, Clone, Default)]
pub struct OpenOptions {
    /// The format; if not given, it is found out by what the image begins with, which is safe only for images of which no
    /// guest has written the start (see [`Format::probe`]).
    pub format: Option<Format>,
    /// Open it for writing too.
    pub writes: bool,
    /// Open it without locks: another process may be writing to it. Only for reading.
    pub shares: bool,
    /// Use its files past the host's cache (`O_DIRECT`), and those on which it stands.
    pub direct: bool,
    /// A flush writes what an image has in memory to its file, and does not wait until the host keeps that for certain: what there
    /// is after a crash of the host is anything.
    pub no_flush: bool,
    /// What to do about the image that it stands on.
    pub backing: Backing,
}

/// What to do about the image on which one stands.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Backing {
    /// Open it, and those on which it stands.
    #[default]
    Follow,
    /// Leave it alone: it reads as zeros.
    Ignore,
    /// Take this one for it, or none.
    Other(Option<BackingName>),
}

pub(super) fn open(path: &Path, options: &OpenOptions) -> Result<Image, Error> {
    let mut seen = Vec::new();
    let (layer, guarded) = open_layer(path, options, &mut seen)?;
    Ok(Image { layer: Arc::new(layer), writes: options.writes, guarded, closed: false })
}

/// Opens one image and, if `options` say so, those below. `seen` are the files above.
fn open_layer(
    path: &Path,
    options: &OpenOptions,
    seen: &mut Vec<PathBuf>,
) -> Result<(Layer, bool), Error> {
    // Two names of one file make a loop as well.
    let real = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    if seen.contains(&real) {
        return Err(Error::Loop { path: path.to_owned() });
    }
    if seen.len() == CHAIN_MAX {
        return Err(Error::Deep { path: seen[0].clone(), max: CHAIN_MAX });
    }
    seen.push(real);
    let OpenOptions { writes, shares, direct, no_flush, .. } = *options;
    let access = Access { writes, shares, direct, no_flush };
    let server = if Nbd::is_address(path) {
        Some(Arc::new(Nbd::connect(path, options.writes)?))
    } else {
        None
    };
    let storage: Box<dyn Storage> = match &server {
        Some(server) => Box::new(Arc::clone(server)),
        None => Box::new(HostFile::open(path, access)?),
    };
    let in_image = |fault| Error::In { path: path.to_owned(), fault };
    let mut head = [0; PROBE_SIZE];
    read_padded(&*storage, &mut head, 0).map_err(|error| in_image(error.into()))?;
    let format = options.format.unwrap_or_else(|| Format::probe(&head));
    let guarded = options.format.is_none() && format == Format::Raw;
    let driver = open_driver(format, storage, access).map_err(in_image)?;
    let named = match &options.backing {
        Backing::Follow => driver.backing(),
        Backing::Ignore => None,
        Backing::Other(other) => other.clone(),
    };
    let below = named.map(|named| open_backing(path, &named, options, seen)).transpose()?;
    if let Some(below) = &below
        && driver.stands_on().is_some_and(|identity| below.driver.identity() != Some(identity))
    {
        return Err(in_image(Fault::refused(format!(
            "it was made on another image than the one that is at {} now",
            below.path.display()
        ))));
    }
    let layer = Layer { path: path.to_owned(), format, driver, below: below.map(Arc::new), server };
    Ok((layer, guarded))
}

pub(super) fn open_driver(
    format: Format,
    storage: Box<dyn Storage>,
    access: Access,
) -> Result<Box<dyn Driver>, Fault> {
    Ok(match format {
        Format::Raw => Box::new(Raw::open(storage)?),
        Format::Qcow2 => Box::new(Qcow2::open(storage, access.writes)?),
        Format::Vdi => Box::new(Vdi::open(storage)?),
        Format::Vmdk => vmdk::open(storage, access)?,
        Format::Vpc => vpc::open(storage)?,
        Format::Qcow => Box::new(Qcow::open(storage)?),
        Format::Bochs => Box::new(Bochs::open(storage)?),
        Format::Cow => Box::new(Cow::open(storage)?),
    })
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
    let (shares, direct) = (options.shares, options.direct);
    let below = OpenOptions { format, shares, direct, ..OpenOptions::default() };
    let opened = open_layer(&path, &below, seen);
    let (layer, _) = opened.map_err(|source| match source {
        Error::Loop { .. } | Error::Deep { .. } => source,
        source => Error::Backing { path: above.to_owned(), source: Box::new(source) },
    })?;
    Ok(layer)
}
