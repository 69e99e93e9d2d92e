//! `ring3 img dd`.

use std::path::Path;

use clap::Args;
use ring3_block::{CreateOptions, Format, OpenOptions, create};

use super::{Common, read_padded, said, size};

/// Bytes that are copied at once.
const CHUNK: u64 = 1 << 20;

/// The options of `ring3 img dd`.
#[derive(Debug, Args)]
pub(crate) struct DdArguments {
    /// The format of the source; by default it is detected
    #[arg(short, long, value_name = "FORMAT")]
    format: Option<Format>,

    /// The format of the new image
    #[arg(short = 'O', long, value_name = "FORMAT", default_value = "raw")]
    output_format: Format,

    /// Open the source even if another process writes to it
    #[arg(short = 'U', long)]
    force_share: bool,

    /// The operands if=FILE and of=NEW, and optionally bs=SIZE (512), count=BLOCKS and skip=BLOCKS
    #[arg(value_name = "OPERAND", required = true)]
    operands: Vec<String>,
}

pub(super) fn run(arguments: &DdArguments, common: &Common) -> Result<(), String> {
    let (mut from, mut to) = (None, None);
    let (mut block, mut count, mut skip) = (512, None, 0);
    for operand in &arguments.operands {
        let number = |value| size(value).map_err(|_| format!("invalid number: '{value}'"));
        match operand.split_once('=') {
            Some(("if", value)) => from = Some(value),
            Some(("of", value)) => to = Some(value),
            Some(("bs", value)) => block = number(value)?,
            Some(("count", value)) => count = Some(number(value)?),
            Some(("skip", value)) => skip = number(value)?,
            _ => {
                return Err(format!(
                    "unrecognized operand '{operand}': give if=FILE of=NEW, bs=, count= and skip="
                ));
            }
        }
    }
    let named = |name: &&str| !name.is_empty();
    let (Some(from), Some(to)) = (from.filter(named), to.filter(named)) else {
        return Err("Must specify both input and output file names".to_owned());
    };
    if block == 0 || block > i32::MAX as u64 {
        return Err(format!("invalid number: '{block}'"));
    }
    let (format, shares) = (arguments.format, arguments.force_share);
    let source =
        common.open(Path::new(from), &OpenOptions { format, shares, ..OpenOptions::default() })?;
    let end = count.map_or(u64::MAX, |count| skip.saturating_add(count).saturating_mul(block));
    let start = skip.saturating_mul(block).min(source.size());
    let end = end.min(source.size()).max(start);
    let (format, len) = (arguments.output_format, end - start);
    let options = CreateOptions { format, size: len, backing: None, specific: vec![] };
    let new = said(create(Path::new(to), &options))?;
    let target = OpenOptions { format: Some(format), writes: true, ..OpenOptions::default() };
    let target = said(new.open(&target))?;
    let mut buffer = vec![0; CHUNK as usize];
    for at in (0..len).step_by(CHUNK as usize) {
        let part = &mut buffer[..(len - at).min(CHUNK) as usize];
        read_padded(&source, part, start + at)?;
        if new.is_in_place() || part.iter().any(|byte| *byte != 0) {
            said(target.write_at(part, at))?;
        }
    }
    said(target.close())?;
    said(new.finish())
}
