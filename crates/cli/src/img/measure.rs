//! `ring3 img measure`.

use clap::Args;
use ring3_block::{Format, Image, Kind};
use serde_json::json;

use super::convert::snapshot_name;
use super::{Common, Form, print, print_json, said, size, specific};

/// The options of `ring3 img measure`.
#[derive(Debug, Args)]
pub(crate) struct MeasureArguments {
    /// The image that is to be converted
    #[arg(value_name = "FILE", required_unless_present = "size", conflicts_with = "size")]
    file: Option<std::path::PathBuf>,

    /// The image's format; by default it is detected
    #[arg(short, long, value_name = "FORMAT")]
    format: Option<Format>,

    /// Open the image even if another process writes to it
    #[arg(short = 'U', long)]
    force_share: bool,

    /// The format of the new image
    #[arg(short = 'O', long, value_name = "FORMAT", default_value = "raw")]
    output_format: Format,

    /// Options of the format: name=value,...
    #[arg(short, value_name = "OPTIONS")]
    options: Vec<String>,

    /// Bytes of a new disk, instead of an image
    #[arg(long, value_name = "SIZE", value_parser = size)]
    size: Option<u64>,

    /// Take the disk as it was in this snapshot
    #[arg(short = 'l', long, value_name = "SNAPSHOT")]
    snapshot: Option<String>,

    /// The form of the result
    #[arg(long, value_name = "FORM", default_value = "human")]
    output: Form,
}

pub(super) fn run(arguments: &MeasureArguments, common: &Common) -> Result<(), String> {
    let options = specific(&arguments.options)?;
    let image = arguments.file.as_deref().map(|file| -> Result<Image, String> {
        let (format, shares) = (arguments.format, arguments.force_share);
        let options = ring3_block::OpenOptions { format, shares, ..Default::default() };
        let image = common.open(file, &options)?;
        if let Some(snapshot) = &arguments.snapshot {
            said(image.show_snapshot(snapshot_name(snapshot)))?;
        }
        Ok(image)
    });
    let image = image.transpose()?;
    let disk = match (&image, arguments.size) {
        (Some(image), _) => image.size(),
        (None, size) => size.unwrap_or(0),
    };
    let (required, all) = match arguments.output_format {
        // Bytes that are not written count, too.
        Format::Raw => (disk, disk),
        Format::Qcow2 => {
            let layout = Layout::of(&options)?;
            let all = layout.whole(disk).ok_or("The image size is too large")?;
            let data = match &image {
                Some(image) if !layout.takes_all => data(image, layout.cluster)?,
                Some(_) => disk.next_multiple_of(layout.cluster),
                None if layout.takes_all => disk.next_multiple_of(layout.cluster),
                None => 0,
            };
            (all - disk.next_multiple_of(layout.cluster) + data, all)
        }
        other => return Err(format!("Block driver '{other}' does not support size measurement")),
    };
    match arguments.output {
        Form::Json => print_json(&json!({ "required": required, "fully-allocated": all })),
        Form::Human => print(&format!("required size: {required}\nfully allocated size: {all}\n")),
    }
}

/// Returns the bytes of all clusters that are not zeros.
fn data(image: &Image, cluster: u64) -> Result<u64, String> {
    let (mut offset, mut data) = (0, 0);
    while offset < image.size() {
        let range = said(image.map(offset, image.size() - offset))?;
        let mut end = offset + range.len;
        if matches!(range.kind, Kind::Data { .. }) {
            // The range extends to the end of its last cluster, which then counts only once.
            let first = offset / cluster * cluster;
            end = end.next_multiple_of(cluster);
            data += end - first;
        }
        offset = end;
    }
    Ok(data)
}

/// The properties that determine the size of a qcow2 image.
struct Layout {
    cluster: u64,
    refcount_bits: u64,
    entry: u64,
    /// Whether all clusters are allocated at once.
    takes_all: bool,
}

impl Layout {
    fn of(options: &[(String, String)]) -> Result<Layout, String> {
        let mut layout =
            Layout { cluster: 64 << 10, refcount_bits: 16, entry: 8, takes_all: false };
        for (name, value) in options {
            let number = || size(value);
            match (name.as_str(), value.as_str()) {
                ("cluster_size", _) => layout.cluster = number()?,
                ("refcount_bits", _) => layout.refcount_bits = number()?,
                ("extended_l2", "on") => layout.entry = 16,
                ("preallocation", "metadata" | "falloc" | "full") => layout.takes_all = true,
                (
                    "compat" | "compression_type" | "lazy_refcounts" | "extended_l2"
                    | "preallocation",
                    _,
                ) => {}
                _ => return Err(format!("Invalid parameter '{name}'")),
            }
        }
        let is_cluster =
            layout.cluster.is_power_of_two() && (512..=2 << 20).contains(&layout.cluster);
        if !is_cluster {
            return Err("Cluster size must be a power of two between 512 and 2048k".to_owned());
        }
        if !layout.refcount_bits.is_power_of_two() || layout.refcount_bits > 64 {
            return Err(
                "Refcount width must be a power of two and may not exceed 64 bits".to_owned()
            );
        }
        Ok(layout)
    }

    /// Returns the size of an image with all clusters of a disk of `size` bytes, or None if no image can have
    /// that size.
    fn whole(&self, size: u64) -> Option<u64> {
        if size > i64::MAX as u64 / 2 {
            return None;
        }
        let disk = size.next_multiple_of(self.cluster);
        // The header, the L2 tables and the L1 table.
        let entries = (disk / self.cluster).next_multiple_of(self.cluster / self.entry);
        let tables = entries * self.entry / self.cluster;
        if tables * 8 > 32 << 20 {
            return None;
        }
        let first =
            self.cluster + entries * self.entry + (tables * 8).next_multiple_of(self.cluster);
        // Refcounts count their own clusters, too.
        let clusters = (first + disk) / self.cluster;
        let (in_block, in_table) = (self.cluster * 8 / self.refcount_bits, self.cluster / 8);
        let (mut blocks, mut table) = (0_u64, 0_u64);
        loop {
            let more = (clusters + table + blocks).div_ceil(in_block);
            let more = (more, more.div_ceil(in_table));
            if more == (blocks, table) {
                break;
            }
            (blocks, table) = more;
        }
        Some(first + disk + (blocks + table) * self.cluster)
    }
}
