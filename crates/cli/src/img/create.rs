//! `ring3 img create`.

use std::path::PathBuf;

use clap::Args;
use ring3_block::{BackingName, CreateOptions, Format, NewImage, create};

use super::{Common, backing, human, print, said, size, specific};

/// What `ring3 img create` is told.
#[derive(Debug, Args)]
pub(crate) struct CreateArguments {
    /// The format
    #[arg(short, long, value_name = "FORMAT", default_value = "raw")]
    format: Format,

    /// The image on which it stands: its name as the new image is to say it, relative to that
    #[arg(short, long, value_name = "FILE")]
    backing: Option<String>,

    /// The format of that
    #[arg(short = 'F', long, value_name = "FORMAT", requires = "backing")]
    backing_format: Option<Format>,

    /// Do not look at the image on which it stands; the size must then be given
    #[arg(short = 'u', long = "unsafe", requires = "backing")]
    unsafe_backing: bool,

    /// What only this format has: name=value,...
    #[arg(short, value_name = "OPTIONS")]
    options: Vec<String>,

    /// Say nothing
    #[arg(short, long)]
    quiet: bool,

    /// The file
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Bytes of the disk, or as 512M, 20G; if not given, those of the image on which it stands
    #[arg(value_name = "SIZE", value_parser = size)]
    size: Option<u64>,
}

pub(super) fn run(arguments: &CreateArguments, common: &Common) -> Result<(), String> {
    let mut named = None;
    let mut below = None;
    if let Some(base) = &arguments.backing {
        if arguments.unsafe_backing {
            let format = arguments.backing_format.map(|format| format.name().to_owned());
            named = Some(BackingName { name: base.clone(), format });
        } else {
            let (name, bytes) = backing(&arguments.file, base, arguments.backing_format, common)?;
            (named, below) = (Some(name), Some(bytes));
        }
    }
    let Some(size) = arguments.size.or(below) else {
        return Err("give the size of the disk, such as 20G".to_owned());
    };
    let format = arguments.format;
    let options =
        CreateOptions { format, size, backing: named, specific: specific(&arguments.options)? };
    said(create(&arguments.file, &options).and_then(NewImage::finish))?;
    if arguments.quiet {
        return Ok(());
    }
    print(&format!("{}: {format}, {} ({size} bytes)\n", arguments.file.display(), human(size)))
}
