//! `ring3 img map`.

use std::fmt::Write as _;

use clap::Args;
use ring3_block::{Image, Kind, Mapping};
use serde_json::{Value, json};

use super::{Common, Form, Source, print, print_json, said, size};

/// The options of `ring3 img map`.
#[derive(Debug, Args)]
pub(crate) struct MapArguments {
    #[command(flatten)]
    source: Source,

    /// The form of the map
    #[arg(long, value_name = "FORM", default_value = "human")]
    output: Form,

    /// The offset at which the map begins
    #[arg(short, long, value_name = "OFFSET", value_parser = size, default_value = "0")]
    start_offset: u64,

    /// The length of the part that the map covers
    #[arg(short = 'l', long, value_name = "SIZE", value_parser = size)]
    max_length: Option<u64>,
}

pub(super) fn run(arguments: &MapArguments, common: &Common) -> Result<(), String> {
    let image = arguments.source.open(common)?;
    let start = arguments.start_offset.min(image.size());
    let len = arguments.max_length.unwrap_or(u64::MAX).min(image.size() - start);
    let ranges = ranges(&image, start, start + len)?;
    match arguments.output {
        Form::Json => print_json(&ranges.iter().map(object).collect()),
        Form::Human => {
            let mut files = Vec::new();
            let mut below = Some(image);
            while let Some(image) = below {
                files.push(image.path().display().to_string());
                below = image.below();
            }
            let mut text = "Offset          Length          Mapped to       File\n".to_owned();
            for range in ranges {
                if let Kind::Data { at: Some(at) } = range.kind {
                    let (start, len) = (format!("{:#x}", range.start), format!("{:#x}", range.len));
                    // Writing to a string does not fail.
                    let _ = writeln!(
                        text,
                        "{start:<15} {len:<15} {:<15} {}",
                        format!("{at:#x}"),
                        files[range.depth]
                    );
                }
            }
            print(&text)
        }
    }
}

/// Returns the ranges of the disk from `offset` to `end`, with adjacent ranges of one kind merged.
fn ranges(image: &Image, mut offset: u64, end: u64) -> Result<Vec<Mapping>, String> {
    let mut ranges: Vec<Mapping> = Vec::new();
    while offset < end {
        let next = said(image.map(offset, end - offset))?;
        offset += next.len;
        match ranges.last_mut() {
            Some(last) if last.depth == next.depth && follows(last, &next) => last.len += next.len,
            _ => ranges.push(next),
        }
    }
    Ok(ranges)
}

fn follows(last: &Mapping, next: &Mapping) -> bool {
    match (last.kind, next.kind) {
        (Kind::Data { at: Some(first) }, Kind::Data { at: Some(second) })
        | (Kind::Zero { at: Some(first) }, Kind::Zero { at: Some(second) }) => {
            first + last.len == second
        }
        (first, second) => first == second,
    }
}

fn object(range: &Mapping) -> Value {
    let mut object = json!({
        "start": range.start,
        "length": range.len,
        "depth": range.depth,
        "present": range.kind != Kind::Absent,
        "zero": range.is_zero(),
        "data": matches!(range.kind, Kind::Data { .. }),
    });
    if let Kind::Data { at: Some(at) } | Kind::Zero { at: Some(at) } = range.kind {
        object["offset"] = at.into();
    }
    object
}
