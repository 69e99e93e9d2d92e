//! Creation of images.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{Error, Fault, Result};
use crate::format::{BackingName, Format};
use crate::image::{Image, OpenOptions};
use crate::preallocation::Preallocation;
use crate::qcow2::{self, Qcow2Options};
use crate::storage::{Access, HostFile, Storage};
use crate::unfinished::{Unfinished, remove_left};
use crate::vdi::Vdi;
use crate::{bochs::Bochs, cow::Cow, qcow::Qcow};
use crate::{vmdk, vpc};

/// The description of a new image.
#[derive(Debug, Clone)]
pub struct CreateOptions {
    /// The image's format.
    pub format: Format,
    /// Size of the disk in bytes.
    pub size: u64,
    /// The name of the backing image.
    pub backing: Option<BackingName>,
    /// Names and values of options that only this format has, as for qemu-img's `-o`.
    pub specific: Vec<(String, String)>,
}

/// An image that is being made. Its file has another name until [`NewImage::finish`], and is removed if that
/// is never called.
#[derive(Debug)]
pub struct NewImage {
    path: PathBuf,
    place: Place,
}

/// The place to which a new image is written.
#[derive(Debug)]
enum Place {
    /// A file beside the final one.
    File(Unfinished),
    /// A block device, which is written directly.
    Device(Arc<HostFile>),
}

impl NewImage {
    /// Returns whether the image is written to its final place, a block device. Then the old contents remain
    /// where nothing is written.
    pub fn is_in_place(&self) -> bool {
        matches!(self.place, Place::Device(_))
    }

    fn storage(&self) -> Box<dyn Storage> {
        let file = match &self.place {
            Place::File(unfinished) => unfinished.file(),
            Place::Device(file) => file,
        };
        Box::new(Arc::clone(file))
    }

    /// Opens the image for writing. Only [`Image::close`] flushes a file, since an image that is dropped
    /// without being closed is not wanted.
    pub fn open(&self, options: &OpenOptions) -> Result<Image, Error> {
        let image = Image::in_storage(self.storage(), &self.path, options)?;
        Ok(if self.is_in_place() { image } else { image.lost_by_drop() })
    }

    /// Gives the image its name, which replaces a file of that name. Returns once this would survive a power
    /// cut.
    pub fn finish(self) -> Result<(), Error> {
        match self.place {
            Place::File(unfinished) => unfinished.finish(&self.path),
            Place::Device(_) => Ok(()),
        }
    }
}

/// Makes an empty image beside `path`, which gets that name by [`NewImage::finish`].
///
/// So a file of that name is always a whole image, the old one or the new one. If `path` is a block device,
/// the image is written in place. An image at `path` that another process uses is not replaced. Files that a
/// killed process has left behind are removed.
pub fn create(path: &Path, options: &CreateOptions) -> Result<NewImage, Error> {
    // For a symbolic link the file behind it is replaced, and not the link.
    let real = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let path = real.as_path();
    let is_there = match fs::metadata(path) {
        Ok(data) if data.is_dir() => return Err(Error::NotAnImage { path: path.to_owned() }),
        Ok(_) => true,
        Err(_) => false,
    };
    remove_left(path);
    let mut device = None;
    if is_there {
        // The file is opened to lock it, and to find out whether it is a device.
        let there = HostFile::open(path, Access { writes: true, ..Access::default() })?;
        device = there.is_device().then_some(there);
    }
    let place = match device {
        Some(device) => Place::Device(Arc::new(device)),
        None => Place::File(Unfinished::make(path)?),
    };
    let new = NewImage { path: path.to_owned(), place };
    create_in(new.storage(), path, options)
        .map_err(|fault| Error::Create { path: path.to_owned(), fault })?;
    Ok(new)
}

/// Makes an empty image in `storage`, which is empty. `path` is the image's place, for formats that name
/// their own file or read the backing image.
pub fn create_in(
    storage: Box<dyn Storage>,
    path: &Path,
    options: &CreateOptions,
) -> Result<(), Fault> {
    let size = options.size;
    let refuse_backing = || match &options.backing {
        None => Ok(()),
        Some(_) => Err(Fault::refused(format!(
            "{} images cannot have a backing file here; make a qcow2 image",
            options.format
        ))),
    };
    match options.format {
        Format::Raw => create_raw(&*storage, options),
        Format::Qcow2 => {
            qcow2::create(storage, options.size, &qcow2_options(options)?)?;
            Ok(())
        }
        Format::Vdi => {
            refuse_backing()?;
            let is_fixed = switch(&options.specific, "preallocation", ["off", "metadata"])?;
            Vdi::create(&*storage, size, is_fixed)
        }
        Format::Qcow => {
            no_options(&options.specific)?;
            Qcow::create(&*storage, size, options.backing.as_ref())
        }
        Format::Cow => {
            no_options(&options.specific)?;
            Cow::create(&*storage, size, options.backing.as_ref())
        }
        Format::Vhdx | Format::Parallels | Format::Luks => Err(Fault::unsupported(format!(
            "{} images can only be read; make a qcow2 image",
            options.format
        ))),
        Format::Bochs => {
            refuse_backing()?;
            no_options(&options.specific)?;
            Bochs::create(&*storage, size)
        }
        Format::Vpc => vpc::create(&*storage, size, &vpc_subformat(path, options)?),
        Format::Vmdk => {
            refuse_backing()?;
            switch(&options.specific, "subformat", ["monolithicSparse", "monolithicSparse"])?;
            let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
            vmdk::create(&*storage, size, &name)
        }
    }
}

/// Returns the subformat of a VHD image. An image with a backing image must be a differencing one.
fn vpc_subformat(path: &Path, options: &CreateOptions) -> Result<vpc::Subformat> {
    if let Some(backing) = &options.backing {
        switch(&options.specific, "subformat", ["differencing", "differencing"])?;
        return Ok(vpc::Subformat::Differencing(vpc::Parent::of(path, backing)?));
    }
    let is_fixed = switch(&options.specific, "subformat", ["dynamic", "fixed"])?;
    Ok(if is_fixed { vpc::Subformat::Fixed } else { vpc::Subformat::Dynamic })
}

fn no_options(specific: &[(String, String)]) -> Result<()> {
    match specific.first() {
        None => Ok(()),
        Some((name, value)) => Err(unknown_option(name, value, "no options for this format")),
    }
}

/// Returns whether `option`, the only option of a format, has the second of its two `values`. Other options
/// and values are errors.
fn switch(specific: &[(String, String)], option: &str, values: [&str; 2]) -> Result<bool> {
    let mut is_second = false;
    for (name, value) in specific {
        if name != option || !values.contains(&value.as_str()) {
            let distinct = if values[0] == values[1] { &values[..1] } else { &values };
            return Err(unknown_option(name, value, &format!("{option}={}", distinct.join("|"))));
        }
        is_second = value == values[1] && values[0] != values[1];
    }
    Ok(is_second)
}

fn create_raw(storage: &dyn Storage, options: &CreateOptions) -> Result<()> {
    if options.backing.is_some() {
        return Err(Fault::refused("raw images cannot have a backing file"));
    }
    let mut mode = Preallocation::Off;
    for (name, value) in &options.specific {
        match (name.as_str(), value.parse()) {
            ("preallocation", Ok(known)) if known != Preallocation::Metadata => mode = known,
            ("preallocation", Ok(_)) => {
                return Err(Fault::refused(
                    "Unsupported preallocation mode: metadata: raw images have none",
                ));
            }
            _ => return Err(unknown_option(name, value, "preallocation=off|falloc|full")),
        }
    }
    storage.set_size(options.size).map_err(|error| match error.kind() {
        ErrorKind::InvalidInput | ErrorKind::FileTooLarge => Fault::refused(format!(
            "the file system does not support files of {} bytes",
            options.size
        )),
        _ => error.into(),
    })?;
    if mode != Preallocation::Off {
        storage.take_room(0, options.size, mode == Preallocation::Full)?;
    }
    Ok(storage.flush()?)
}

fn unknown_option(name: &str, value: &str, known: &str) -> Fault {
    Fault::refused(format!("\"{name}={value}\" is not supported; give {known}"))
}

fn qcow2_options(options: &CreateOptions) -> Result<Qcow2Options> {
    let mut new = Qcow2Options { backing: options.backing.clone(), ..Qcow2Options::default() };
    for (name, value) in &options.specific {
        match (name.as_str(), value.as_str()) {
            ("cluster_size", _) => new.cluster_size = size_of_option(name, value)?,
            ("refcount_bits", _) => new.refcount_bits = size_of_option(name, value)?,
            ("compat", "0.10" | "v2") => new.is_old = true,
            ("compat", "1.1" | "v3") => new.is_old = false,
            ("lazy_refcounts", "on") => new.lazy_refcounts = true,
            ("compression_type", "zstd") => new.zstd = true,
            ("compression_type", "zlib") => new.zstd = false,
            ("preallocation", _) if value.parse::<Preallocation>().is_ok() => {
                new.preallocation = value.parse().unwrap_or_default();
            }
            ("lazy_refcounts" | "extended_l2" | "encryption", "off") => {}
            _ => {
                let known = "cluster_size, compat=0.10|1.1, compression_type=zlib|zstd, \
                    lazy_refcounts=on|off, preallocation=off|metadata|falloc|full and refcount_bits";
                return Err(unknown_option(name, value, known));
            }
        }
    }
    Ok(new)
}

/// Returns the size that an option's value states, with a suffix as in qemu-img: 64k, 2M.
fn size_of_option(name: &str, value: &str) -> Result<u64> {
    parse_size(value).ok_or_else(|| {
        Fault::refused(format!("\"{name}={value}\" is not a size such as 65536 or 64k"))
    })
}

/// Returns the size that `text` states in bytes, or with one of the suffixes b, k, M, G, T, P and E (powers
/// of 1024), as in qemu-img.
pub fn parse_size(text: &str) -> Option<u64> {
    // 10GB and 10GiB mean 10G.
    let short = text.strip_suffix(['b', 'B']).map(|text| text.strip_suffix('i').unwrap_or(text));
    let has_unit = |text: &&str| text.ends_with(|letter: char| "kKmMgGtTpPeE".contains(letter));
    let text = short.filter(has_unit).unwrap_or(text);
    let (number, shift) = match text.char_indices().next_back()? {
        (at, 'b' | 'B') => (&text[..at], 0),
        (at, 'k' | 'K') => (&text[..at], 10),
        (at, 'm' | 'M') => (&text[..at], 20),
        (at, 'g' | 'G') => (&text[..at], 30),
        (at, 't' | 'T') => (&text[..at], 40),
        (at, 'p' | 'P') => (&text[..at], 50),
        (at, 'e' | 'E') => (&text[..at], 60),
        _ => (text, 0),
    };
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(part) || part.len() > 9 {
        return None;
    }
    let unit = 1_u64 << shift;
    let mut bytes = whole.parse::<u64>().ok()?.checked_mul(unit)?;
    if !part.is_empty() {
        let tenths = u128::from(part.parse::<u64>().ok()?) * u128::from(unit);
        bytes = bytes.checked_add((tenths / 10_u128.pow(part.len() as u32)) as u64)?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        assert_eq!(parse_size("65536"), Some(65536));
        assert_eq!(parse_size("64k"), Some(65536));
        assert_eq!(parse_size("1.5G"), Some(3 << 29));
        assert_eq!(parse_size("7E"), Some(7 << 60));
        for bad in ["", "k", "-1", "1x", "1.k2", "16E", "0x10", ".5G", "１"] {
            assert_eq!(parse_size(bad), None, "{bad}");
        }
    }
}
