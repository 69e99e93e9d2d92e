//! `ring3 img check`.

use std::fmt::Write as _;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use ring3_block::{Backing, Error, Fault, Repair, Report, remove_left};
use serde_json::json;

use super::cache::CacheMode;
use super::{Common, Form, Source, print, print_json, said};

/// The exit status if the format has no checks, or no repairs.
const UNSUPPORTED: u8 = 63;

/// The options of `ring3 img check`.
#[derive(Debug, Args)]
pub(crate) struct CheckArguments {
    #[command(flatten)]
    source: Source,

    /// Repair this kind of damage
    #[arg(short, long, value_name = "WHAT")]
    repair: Option<What>,

    /// How the host's cache is used
    #[arg(short = 'T', long, value_name = "MODE", default_value = "writeback")]
    source_cache: CacheMode,

    /// The form of the report
    #[arg(long, value_name = "FORM", default_value = "human")]
    output: Form,

    /// Print errors only
    #[arg(short, long)]
    quiet: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum What {
    /// Only lost room
    Leaks,
    /// All damage that can be repaired
    All,
}

pub(super) fn run(arguments: &CheckArguments, common: &Common) -> Result<ExitCode, String> {
    let repair = match arguments.repair {
        None => Repair::Nothing,
        Some(What::Leaks) => Repair::Leaks,
        Some(What::All) => Repair::All,
    };
    let mut options = arguments.source.options();
    (options.writes, options.backing) = (repair != Repair::Nothing, Backing::Ignore);
    options.is_for_telling = true;
    if options.writes {
        remove_left(&arguments.source.file);
    }
    let options = arguments.source_cache.apply(&options);
    let image = common.open(&arguments.source.file, &options)?;
    let report = match image.check(repair) {
        Err(Error::In { fault: Fault::Unsupported(reason), .. }) => {
            crate::complain(&format!("This image format does not support checks: {reason}"));
            return Ok(ExitCode::from(UNSUPPORTED));
        }
        report => said(report)?,
    };
    let format = image.format().name();
    said(image.close())?;
    match arguments.output {
        Form::Json => print_json(&json!({
            "filename": arguments.source.file.to_string_lossy(),
            "format": format,
            "check-errors": 0,
            "corruptions": report.corruptions,
            "corruptions-fixed": report.corruptions_fixed,
            "leaks": report.leaks,
            "leaks-fixed": report.leaks_fixed,
            "total-clusters": report.total_clusters,
            "allocated-clusters": report.allocated_clusters,
            "compressed-clusters": report.compressed_clusters,
            "image-end-offset": report.end,
        }))?,
        Form::Human if arguments.quiet => {}
        Form::Human => print(&text(&report))?,
    }
    Ok(ExitCode::from(match () {
        () if !report.is_sound() => 2,
        () if report.leaks > report.leaks_fixed => 3,
        () => 0,
    }))
}

#[expect(clippy::cast_precision_loss, reason = "four digits are shown")]
fn text(report: &Report) -> String {
    let mut text = String::new();
    for message in &report.messages {
        let _ = writeln!(text, "{message}");
    }
    // Writing to a string does not fail.
    let fixed = (report.leaks_fixed, report.corruptions_fixed);
    if fixed != (0, 0) {
        let (leaks, errors) = fixed;
        let _ = writeln!(
            text,
            "The following inconsistencies were found and repaired:\n\n    {leaks} leaked clusters\n    {errors} corruptions\n"
        );
    }
    let (errors, leaks) =
        (report.corruptions - report.corruptions_fixed, report.leaks - report.leaks_fixed);
    if errors == 0 && leaks == 0 {
        text.push_str("No errors were found on the image.\n");
    }
    if errors > 0 {
        let _ = writeln!(
            text,
            "\n{errors} errors were found on the image.\nData may be corrupted, or further writes to the image may corrupt it."
        );
    }
    if leaks > 0 {
        let _ = writeln!(
            text,
            "\n{leaks} leaked clusters were found on the image.\nThis means waste of disk space, but no harm to data."
        );
    }
    if report.total_clusters > 0 {
        let part = |of: u64, whole: u64| of as f64 * 100.0 / whole.max(1) as f64;
        let (allocated, compressed) = (report.allocated_clusters, report.compressed_clusters);
        let _ = writeln!(
            text,
            "{allocated}/{} = {:.2}% allocated, {:.2}% compressed clusters",
            report.total_clusters,
            part(allocated, report.total_clusters),
            part(compressed, allocated),
        );
        let _ = writeln!(text, "Image end offset: {}", report.end);
    }
    text
}
