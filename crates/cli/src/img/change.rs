//! `ring3 img resize`, `snapshot` and `rebase`.

use std::time::{SystemTime, UNIX_EPOCH};

use clap::Args;
use ring3_block::{
    Backing, Format, Image, Kind, OpenOptions, Preallocation, SnapshotAct, remove_left,
};

use super::cache::CacheMode;
use super::{
    Common, Form, Source, backing, differences, info, print, print_json, progress, read_padded,
    said, size,
};

/// Bytes that are copied at once.
const CHUNK: u64 = 1 << 20;

/// The options of `ring3 img resize`.
#[derive(Debug, Args)]
pub(crate) struct ResizeArguments {
    #[command(flatten)]
    source: Source,

    /// The new size, or the difference from the present one (+1G or -1G)
    #[arg(value_name = "SIZE", allow_hyphen_values = true)]
    size: String,

    /// Allow a smaller size: data beyond the new end are lost
    #[arg(long)]
    shrink: bool,

    /// How room for the new part is allocated: off, metadata (qcow2 images only), falloc or full
    #[arg(long, value_name = "MODE", default_value = "off")]
    preallocation: Preallocation,

    /// Print errors only
    #[arg(short, long)]
    quiet: bool,
}

/// The options of `ring3 img snapshot`.
#[derive(Debug, Args)]
pub(crate) struct SnapshotArguments {
    #[command(flatten)]
    source: Source,

    /// List the snapshots (the default)
    #[arg(short, long)]
    list: bool,

    /// Create a snapshot with this name
    #[arg(short, long, value_name = "NAME", conflicts_with_all = ["list", "apply", "delete"])]
    create: Option<String>,

    /// Make this snapshot the present state of the disk
    #[arg(short, long, value_name = "NAME", conflicts_with_all = ["list", "delete"])]
    apply: Option<String>,

    /// Delete this snapshot
    #[arg(short, long, value_name = "NAME", conflicts_with = "list")]
    delete: Option<String>,

    /// The form of the list
    #[arg(long, value_name = "FORM", default_value = "human")]
    output: Form,

    /// Print errors only
    #[arg(short, long)]
    quiet: bool,
}

/// The options of `ring3 img rebase`.
#[derive(Debug, Args)]
pub(crate) struct RebaseArguments {
    #[command(flatten)]
    source: Source,

    /// The new backing file, by the name that the image is to keep; "" for none
    #[arg(short, long, value_name = "FILE")]
    backing: String,

    /// The format of the backing file
    #[arg(short = 'F', long, value_name = "FORMAT")]
    backing_format: Option<Format>,

    /// How the host's cache is used for the image
    #[arg(short = 't', long, value_name = "MODE", default_value = "writeback")]
    cache: CacheMode,

    /// How the host's cache is used for backing files
    #[arg(short = 'T', long, value_name = "MODE", default_value = "writeback")]
    source_cache: CacheMode,

    /// Only change the name: the caller knows that the new file has the same contents as the old one
    #[arg(short = 'u', long = "unsafe")]
    unsafe_backing: bool,

    /// Show the progress
    #[arg(short, long)]
    progress: bool,

    /// Print errors only
    #[arg(short, long)]
    quiet: bool,
}

impl Source {
    fn open_to_change(&self, common: &Common) -> Result<Image, String> {
        if self.force_share {
            return Err("an image cannot be changed while others use it: leave out -U".to_owned());
        }
        remove_left(&self.file);
        common.open(&self.file, &OpenOptions { writes: true, ..self.options() })
    }
}

pub(super) fn resize(arguments: &ResizeArguments, common: &Common) -> Result<(), String> {
    let file = &arguments.source.file;
    if size(&arguments.size).is_err() && !file.exists() && size(&file.to_string_lossy()).is_ok() {
        return Err(format!(
            "the file comes before the size: ring3 img resize {} {}",
            arguments.size,
            file.display()
        ));
    }
    let image = arguments.source.open_to_change(common)?;
    let before = image.size();
    let out_of_bounds = || {
        format!(
            "{} has {before} bytes, so its size cannot change by {}",
            arguments.source.file.display(),
            arguments.size
        )
    };
    let new = match arguments.size.split_at_checked(1) {
        Some(("+", more)) => before.checked_add(size(more)?).ok_or_else(out_of_bounds)?,
        Some(("-", less)) => before.checked_sub(size(less)?).ok_or_else(out_of_bounds)?,
        _ => size(&arguments.size)?,
    };
    if new < before && !arguments.shrink {
        return Err(format!(
            "Use the --shrink option to perform a shrink operation.\n\
             Shrinking an image will delete all data beyond the shrunken image's end ({} bytes). Before performing such an \
             operation, make sure there is no important data there.",
            before - new
        ));
    }
    if arguments.preallocation == Preallocation::Off {
        said(image.resize(new))?;
    } else if new <= before {
        return Err("Preallocation can only be used for growing images".to_owned());
    } else {
        said(image.grow(new, arguments.preallocation))?;
    }
    said(image.close())?;
    if arguments.quiet { Ok(()) } else { print("Image resized.\n") }
}

pub(super) fn snapshot(arguments: &SnapshotArguments, common: &Common) -> Result<(), String> {
    let act = match (&arguments.create, &arguments.apply, &arguments.delete) {
        (Some(name), _, _) => {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            SnapshotAct::Create {
                name: name.clone(),
                date: (now.as_secs() as u32, now.subsec_nanos()),
            }
        }
        (_, Some(name), _) => SnapshotAct::Apply(name.clone()),
        (_, _, Some(name)) => SnapshotAct::Delete(name.clone()),
        _ => {
            let options = OpenOptions {
                is_for_telling: true,
                backing: Backing::Ignore,
                ..arguments.source.options()
            };
            let snapshots = common.open(&arguments.source.file, &options)?.snapshots();
            return match arguments.output {
                Form::Json => print_json(&info::snapshot_objects(&snapshots)),
                Form::Human if snapshots.is_empty() => Ok(()),
                Form::Human => print(&info::snapshots(&snapshots)),
            };
        }
    };
    let image = arguments.source.open_to_change(common)?;
    said(image.snapshot(&act))?;
    said(image.close())
}

pub(super) fn rebase(arguments: &RebaseArguments, common: &Common) -> Result<(), String> {
    let file = &arguments.source.file;
    let named = match arguments.backing.as_str() {
        "" => None,
        base if arguments.unsafe_backing => {
            let format = arguments.backing_format.map(|format| format.name().to_owned());
            Some(ring3_block::BackingName { name: base.to_owned(), format })
        }
        base => Some(backing(file, base, arguments.backing_format, common)?.0),
    };
    if arguments.unsafe_backing {
        let options =
            OpenOptions { writes: true, backing: Backing::Ignore, ..arguments.source.options() };
        let image = common.open(file, &arguments.cache.apply(&options))?;
        said(image.set_backing(named.as_ref()))?;
        return said(image.close());
    }
    let image = arguments.source.open_to_change(common)?;
    let new = OpenOptions {
        format: arguments.source.format,
        backing: Backing::Other(named.clone()),
        shares: true,
        ..OpenOptions::default()
    };
    let new = common.open(file, &arguments.source_cache.apply(&new))?.below();
    let old = image.below();
    let bar = progress::bar(image.size(), arguments.progress && !arguments.quiet);
    let mut buffers = [vec![0; CHUNK as usize], vec![0; CHUNK as usize]];
    let mut offset = 0;
    while offset < image.size() {
        bar.set_position(offset);
        let extent = said(image.extent(offset, CHUNK))?;
        if extent.kind == Kind::Absent {
            // The disk must read the same afterwards.
            let len = extent.len as usize;
            for (below, buffer) in [&old, &new].into_iter().zip(&mut buffers) {
                match below {
                    Some(below) => read_padded(below, &mut buffer[..len], offset)?,
                    None => buffer[..len].fill(0),
                }
            }
            let [old, new] = &buffers;
            for (at, old) in differences(&old[..len], &new[..len]) {
                said(image.write_at(old, offset + at))?;
            }
        }
        offset += extent.len;
    }
    bar.finish();
    said(image.flush())?;
    said(image.set_backing(named.as_ref()))?;
    said(image.close())
}
