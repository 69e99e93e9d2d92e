//! `ring3 img`: disk images, with the options and exit statuses of qemu-img.
//!
//! * [`create`], [`convert`]: new images, which get their names when they are complete;
//! * [`info`], [`map`], [`compare`], [`check`], [`measure`]: questions about images;
//! * [`change`], [`commit`]: sizes, snapshots, backing files;
//! * [`dd`], [`bench`]: copies of a part, and speed;
//! * [`cache`], [`options_help`]: options that many commands share;
//! * [`sentence`]: errors in qemu-img's words;
//! * [`progress`], [`interruption`]: progress, and signals.

mod bench;
mod cache;
mod change;
mod check;
mod commit;
mod compare;
mod convert;
mod create;
mod dd;
mod info;
mod interruption;
mod map;
mod measure;
mod options_help;
mod progress;
mod sentence;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand, ValueEnum};
use ring3_block::format::UnknownFormat;
use ring3_block::{
    BackingName, Format, Image, ImageSpec, OpenOptions, Secret, forbid_external_files, parse_size,
};

use crate::qemu::properties::Properties;
use crate::secrets::{self, SecretObject};

/// The options of `ring3 img`.
#[derive(Debug, Args)]
pub(crate) struct ImgArguments {
    #[command(flatten)]
    common: Common,

    #[command(subcommand)]
    command: ImgCommand,
}

/// The options that all commands share.
#[derive(Debug, Args)]
struct Common {
    /// Open no file that an image names: neither backing files nor files with parts of its data. Use it for
    /// images that a guest or a stranger has written
    #[arg(long, global = true)]
    no_external_files: bool,

    /// Name a password: secret,id=NAME,file=FILE (or data=TEXT), with format=base64 if it is in base64
    #[arg(long, global = true, value_name = "OBJECT")]
    object: Vec<SecretObject>,

    /// Take each image as a list of options: driver=qcow2,file.filename=FILE,encrypt.key-secret=NAME
    #[arg(long, global = true)]
    image_opts: bool,
}

/// The commands of `ring3 img`.
#[derive(Debug, Subcommand)]
enum ImgCommand {
    /// Create an image
    Create(create::CreateArguments),
    /// Describe an image
    Info(info::InfoArguments),
    /// Copy an image into a new one, which may have another format
    Convert(convert::ConvertArguments),
    /// Compare the contents of two images: status 0 if they are the same, 1 if not, 2 after an error
    Compare(compare::CompareArguments),
    /// Show which parts of an image are in which file, and where
    Map(map::MapArguments),
    /// Look for damage, and repair it: status 0 if there is none, 1 after an error, 2 if there is damage, 3
    /// if only room is lost
    Check(check::CheckArguments),
    /// Change the size of the disk
    Resize(change::ResizeArguments),
    /// List, create, apply or delete snapshots in an image
    Snapshot(change::SnapshotArguments),
    /// Change the backing file of an image
    Rebase(change::RebaseArguments),
    /// Write the contents of an image into its backing file
    Commit(commit::CommitArguments),
    /// Compute how large an image would be in another format
    Measure(measure::MeasureArguments),
    /// Copy a part of an image into a new one: if=FILE of=NEW
    Dd(dd::DdArguments),
    /// Measure how fast an image can be read or written
    Bench(bench::BenchArguments),
    /// Not implemented: to change an image's options, make another image with "convert -o"
    #[command(hide = true)]
    Amend(MissingArguments),
    /// Not implemented: ring3 does not keep the bitmaps in images
    #[command(hide = true)]
    Bitmap(MissingArguments),
}

/// The options of a command that is not implemented.
#[derive(Debug, Args)]
struct MissingArguments {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    _all: Vec<String>,
}

impl ImgArguments {
    /// Returns the exit status of an error.
    pub(crate) fn error_status(&self) -> ExitCode {
        ExitCode::from(if matches!(self.command, ImgCommand::Compare(_)) { 2 } else { 1 })
    }
}

impl Common {
    /// Opens the image that the user calls `file`.
    fn open(&self, file: &Path, options: &OpenOptions) -> Result<Image, String> {
        let mut options =
            OpenOptions { no_external_files: self.no_external_files, ..options.clone() };
        let Some(spec) = self.spec(file)? else {
            // A single password is the password of the image.
            if let [object] = self.object.as_slice() {
                options.secret = Some(self.secret(&object.id)?);
            }
            return said(Image::open(file, &options));
        };
        if let Some(id) = &spec.key_secret {
            options.secret = Some(self.secret(id)?);
        }
        said(Image::open(&spec.path, &spec.options(&options)))
    }

    /// Returns the password with the id `id`.
    fn secret(&self, id: &str) -> Result<Secret, String> {
        secrets::find(&self.object, id).map_err(|error| error.to_string())
    }

    /// Returns the options or the object that `file` contains, or None if it is the name of a file.
    fn spec(&self, file: &Path) -> Result<Option<ImageSpec>, String> {
        let text = file.to_string_lossy();
        if self.image_opts {
            return said(ImageSpec::of_pairs(Properties::parse(&text, None).iter())).map(Some);
        }
        said(ImageSpec::of_name(&text).transpose())
    }
}

/// The form of a command's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Form {
    /// For people
    Human,
    /// For programs
    Json,
}

/// The image and how to open it.
#[derive(Debug, Args)]
struct Source {
    /// The image
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// The image's format; by default it is detected
    #[arg(short, long, value_name = "FORMAT")]
    format: Option<Format>,

    /// Open the image even if another process writes to it; its parts may then date from different moments
    #[arg(short = 'U', long)]
    force_share: bool,
}

impl Source {
    fn options(&self) -> OpenOptions {
        OpenOptions { format: self.format, shares: self.force_share, ..OpenOptions::default() }
    }

    fn open(&self, common: &Common) -> Result<Image, String> {
        common.open(&self.file, &self.options())
    }
}

/// Executes the command line.
pub(crate) fn run(arguments: &ImgArguments) -> Result<ExitCode, String> {
    interruption::prepare()?;
    let ImgArguments { common, command } = arguments;
    if common.no_external_files {
        forbid_external_files();
    }
    match command {
        ImgCommand::Create(arguments) => create::run(arguments, common),
        ImgCommand::Info(arguments) => info::run(arguments, common),
        ImgCommand::Convert(arguments) => convert::run(arguments, common),
        ImgCommand::Compare(arguments) => return compare::run(arguments, common),
        ImgCommand::Map(arguments) => map::run(arguments, common),
        ImgCommand::Check(arguments) => return check::run(arguments, common),
        ImgCommand::Resize(arguments) => change::resize(arguments, common),
        ImgCommand::Snapshot(arguments) => change::snapshot(arguments, common),
        ImgCommand::Rebase(arguments) => change::rebase(arguments, common),
        ImgCommand::Commit(arguments) => commit::run(arguments, common),
        ImgCommand::Measure(arguments) => measure::run(arguments, common),
        ImgCommand::Dd(arguments) => dd::run(arguments, common),
        ImgCommand::Bench(arguments) => bench::run(arguments, common),
        ImgCommand::Amend(_) => Err("amend is not implemented: an image's options are chosen when it is created; make another image with \
             \"ring3 img convert -O qcow2 -o …\""
            .to_owned()),
        ImgCommand::Bitmap(_) => Err("bitmap is not implemented: images are read and written without the bitmaps in them".to_owned()),
    }?;
    Ok(ExitCode::SUCCESS)
}

fn said<T, E: Said>(result: Result<T, E>) -> Result<T, String> {
    result.map_err(|error| error.said())
}

/// An error that is reported to the user.
trait Said {
    fn said(&self) -> String;
}

impl Said for ring3_block::Error {
    fn said(&self) -> String {
        sentence::sentence(self)
    }
}

impl Said for ring3_block::Fault {
    fn said(&self) -> String {
        self.to_string()
    }
}

impl Said for ring3_block::BadSpec {
    fn said(&self) -> String {
        self.to_string()
    }
}

/// Prints to standard output. A reader that closes it does not want the rest.
fn print(text: &str) -> Result<(), String> {
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result.map_err(|error| format!("cannot write to standard output: {error}")),
    }
}

/// Prints an object or array for programs.
fn print_json(value: &serde_json::Value) -> Result<(), String> {
    print(&format!("{value:#}\n"))
}

/// Reads a size on the command line.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    parse_size(text)
        .ok_or_else(|| "give a size in bytes, or such as 512k, 20M, 4G or 1T".to_owned())
}

/// Reads the options of a format, `name=value,name=value`.
fn specific(texts: &[String]) -> Result<Vec<(String, String)>, String> {
    let pairs = texts.iter().flat_map(|text| text.split(',')).filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| {
            // A name without a value switches an option on.
            let (name, value) = pair.split_once('=').unwrap_or((pair, "on"));
            if name.is_empty() {
                Err(format!("give options as name=value, not \"{pair}\""))
            } else {
                Ok((name.to_owned(), value.to_owned()))
            }
        })
        .collect()
}

/// Takes an option out of a format's options. The last one of its name counts.
fn take(options: &mut Vec<(String, String)>, name: &str) -> Option<String> {
    options.extract_if(.., |(key, _)| key == name).last().map(|(_, value)| value)
}

/// Returns the format with this name.
fn parsed(name: &str) -> Result<Format, String> {
    name.parse().map_err(|error: UnknownFormat| error.to_string())
}

/// Returns the backing file of a new image at `file`: the name by which the image refers to it, and the size
/// of its disk.
///
/// If its format is not given, it is detected, which is as safe as the user's trust in it so far, and kept in
/// the new image.
fn backing(
    file: &Path,
    base: &str,
    format: Option<Format>,
    common: &Common,
) -> Result<(BackingName, u64), String> {
    let mut named = BackingName { name: base.to_owned(), format: None };
    let path = said(named.path(file))?;
    let image = common.open(&path, &OpenOptions { format, ..OpenOptions::default() })?;
    named.format = Some(image.format().name().to_owned());
    Ok((named, image.size()))
}

/// Reads from an image. Bytes beyond its end are zeros.
fn read_padded(image: &Image, bytes: &mut [u8], offset: u64) -> Result<(), String> {
    let there = image.size().saturating_sub(offset).min(bytes.len() as u64) as usize;
    let (inside, behind) = bytes.split_at_mut(there);
    behind.fill(0);
    if inside.is_empty() { Ok(()) } else { said(image.read_at(inside, offset)) }
}

/// Returns the parts of 64 KiB in which `new` differs from `old`, which has the same length: the offset of
/// each, and its bytes in `new`.
fn differences<'a>(new: &'a [u8], old: &'a [u8]) -> impl Iterator<Item = (u64, &'a [u8])> {
    const PART: usize = 64 << 10;
    let parts = (0..).step_by(PART).zip(new.chunks(PART).zip(old.chunks(PART)));
    parts.filter(|(_, (new, old))| new != old).map(|(at, (new, _))| (at, new))
}

/// Formats a size for people, as qemu-img does: 1.5 GiB.
#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
fn human(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1000.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = match value {
        _ if value.fract() == 0.0 => 0,
        _ if value >= 100.0 => 0,
        _ if value >= 10.0 => 1,
        _ => 2,
    };
    let number = format!("{value:.digits$}");
    let number =
        if digits > 0 { number.trim_end_matches('0').trim_end_matches('.') } else { &number };
    format!("{number} {}", units[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_said_as_qemu_says_them() {
        for (bytes, expected) in [
            (0, "0 B"),
            (999, "999 B"),
            (1024, "1 KiB"),
            (1000, "0.98 KiB"),
            (196 << 10, "196 KiB"),
            (3 << 29, "1.5 GiB"),
            (1 << 40, "1 TiB"),
        ] {
            assert_eq!(human(bytes), expected);
        }
    }

    #[test]
    fn options_of_formats_are_read() {
        let read = specific(&["a=1,b".to_owned(), "c=x=y".to_owned()]).unwrap();
        let expected = [("a", "1"), ("b", "on"), ("c", "x=y")];
        assert_eq!(read, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
        assert!(specific(&["=1".to_owned()]).is_err());
    }

    #[test]
    fn parts_that_differ_are_found() {
        let old = vec![0; 200_000];
        let mut new = old.clone();
        (new[70_000], new[199_999]) = (1, 2);
        let found: Vec<_> = differences(&new, &old).collect();
        assert_eq!(found, [(65_536, &new[65_536..131_072]), (196_608, &new[196_608..])]);
        assert_eq!(differences(&old, &old).count(), 0);
    }
}
