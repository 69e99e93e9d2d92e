//! `ring3 img create`.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use clap::Args;
use ring3_block::{BackingName, CreateOptions, Format, NewImage, create};

use super::{Common, backing, options_help, parsed, print, said, size, specific, take};

/// The options of `ring3 img create`.
#[derive(Debug, Args)]
pub(crate) struct CreateArguments {
    /// The image's format
    #[arg(short, long, value_name = "FORMAT", default_value = "raw")]
    format: Format,

    /// The backing file, by the name that the image is to keep, relative to the image
    #[arg(short, long, value_name = "FILE")]
    backing: Option<String>,

    /// The format of the backing file
    #[arg(short = 'F', long, value_name = "FORMAT")]
    backing_format: Option<Format>,

    /// Do not open the backing file; the size must then be given
    #[arg(short = 'u', long = "unsafe", requires = "backing")]
    unsafe_backing: bool,

    /// Options of the format: name=value,...
    #[arg(short, value_name = "OPTIONS")]
    options: Vec<String>,

    /// Print errors only
    #[arg(short, long)]
    quiet: bool,

    /// The new image
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,

    /// The size of the disk in bytes, or such as 512M or 20G; by default that of the backing file
    #[arg(value_name = "SIZE", value_parser = size)]
    size: Option<u64>,
}

pub(super) fn run(arguments: &CreateArguments, common: &Common) -> Result<(), String> {
    if options_help::is_asked(&arguments.options) {
        return print(&options_help::text(arguments.format));
    }
    let Some(file) = &arguments.file else {
        return Err("Expecting image file name".to_owned());
    };
    let mut specific = specific(&arguments.options)?;
    let base = take(&mut specific, "backing_file").or_else(|| arguments.backing.clone());
    let base_format =
        take(&mut specific, "backing_fmt").map(|format| parsed(&format)).transpose()?;
    let base_format = base_format.or(arguments.backing_format);
    let mut named = None;
    let mut below = None;
    if let Some(base) = &base {
        if arguments.unsafe_backing {
            let format = base_format.map(|format| format.name().to_owned());
            named = Some(BackingName { name: base.clone(), format });
        } else {
            let (name, bytes) = backing(file, base, base_format, common)?;
            (named, below) = (Some(name), Some(bytes));
        }
    }
    let Some(size) = arguments.size.or(below) else {
        return Err(format!(
            "{}: Image creation needs a size parameter: give the size of the disk, such as 20G",
            file.display()
        ));
    };
    let format = arguments.format;
    let options = CreateOptions { format, size, backing: named, specific };
    if !arguments.quiet {
        print(&formatting(file, &options))?;
    }
    said(create(file, &options).and_then(NewImage::finish))
}

/// Describes the new image in qemu-img's words.
fn formatting(file: &Path, options: &CreateOptions) -> String {
    let given = |name: &str| {
        let found = options.specific.iter().rev().find(|(key, _)| key == name);
        found.map(|(_, value)| value.as_str())
    };
    let mut text = format!("Formatting '{}', fmt={}", file.display(), options.format);
    // Writing to a string does not fail.
    let mut put = |name: &str, value: Option<&str>| {
        if let Some(value) = value {
            let _ = write!(text, " {name}={value}");
        }
    };
    let is_qcow2 = options.format == Format::Qcow2;
    let or = |name, default| if is_qcow2 { given(name).or(Some(default)) } else { None };
    let cluster = given("cluster_size").and_then(|value| size(value).ok()).unwrap_or(65536);
    put("cluster_size", is_qcow2.then(|| cluster.to_string()).as_deref());
    put("extended_l2", or("extended_l2", "off"));
    put("preallocation", given("preallocation").filter(|_| is_qcow2));
    put("compression_type", or("compression_type", "zlib"));
    put("size", Some(&options.size.to_string()));
    if let Some(backing) = &options.backing {
        put("backing_file", Some(&backing.name));
        put("backing_fmt", backing.format.as_deref());
    }
    put("compat", given("compat"));
    put("lazy_refcounts", or("lazy_refcounts", "off"));
    put("refcount_bits", or("refcount_bits", "16"));
    put("preallocation", given("preallocation").filter(|_| !is_qcow2));
    put("subformat", given("subformat"));
    text.push('\n');
    text
}
