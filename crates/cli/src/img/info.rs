//! `ring3 img info`.

use std::fmt::Write as _;

use clap::Args;
use jiff::{Timestamp, tz::TimeZone};
use ring3_block::{Backing, Image, OpenOptions, Snapshot};
use serde_json::{Map, Value, json};

use super::{Common, Form, Source, human, print, print_json};

/// The options of `ring3 img info`.
#[derive(Debug, Args)]
pub(crate) struct InfoArguments {
    #[command(flatten)]
    source: Source,

    /// The form of the description
    #[arg(long, value_name = "FORM", default_value = "human")]
    output: Form,

    /// Describe the images below it in the chain, too
    #[arg(long)]
    backing_chain: bool,
}

pub(super) fn run(arguments: &InfoArguments, common: &Common) -> Result<(), String> {
    let mut options = OpenOptions { is_for_telling: true, ..arguments.source.options() };
    if !arguments.backing_chain {
        // The image can be described even if its backing file is gone.
        options.backing = Backing::Ignore;
    }
    let mut image = Some(common.open(&arguments.source.file, &options)?);
    let (mut objects, mut texts) = (Vec::new(), Vec::new());
    while let Some(this) = image {
        objects.push(object(&this));
        texts.push(text(&this));
        image = this.below();
    }
    match (arguments.output, arguments.backing_chain) {
        (Form::Human, _) => print(&texts.join("\n")),
        (Form::Json, true) => print_json(&Value::Array(objects)),
        (Form::Json, false) => print_json(&objects[0]),
    }
}

fn text(image: &Image) -> String {
    let details = image.details();
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = writeln!(text, "image: {}", image.path().display());
    let _ = writeln!(text, "file format: {}", image.format());
    let _ = writeln!(text, "virtual size: {} ({} bytes)", human(image.size()), image.size());
    if let Some(bytes) = image.allocated() {
        let _ = writeln!(text, "disk size: {}", human(bytes));
    }
    if details.is_encrypted {
        text.push_str("encrypted: yes\n");
    }
    if details.dirty {
        let _ = writeln!(text, "cleanly shut down: no");
    }
    if let Some(bytes) = details.cluster_size {
        let _ = writeln!(text, "cluster_size: {bytes}");
    }
    if let Some(backing) = image.backing() {
        let _ = writeln!(text, "backing file: {}", backing.name);
        if let Some(format) = backing.format {
            let _ = writeln!(text, "backing file format: {format}");
        }
    }
    if !details.snapshots.is_empty() {
        text.push_str(&snapshots(&details.snapshots));
    }
    if !details.specific.is_empty() {
        text.push_str("Format specific information:\n");
        for (name, value) in &details.specific {
            let _ = writeln!(text, "    {name}: {value}");
        }
        if !details.encryption.is_empty() {
            text.push_str("    encrypt:\n");
        }
        for (name, value) in &details.encryption {
            let _ = writeln!(text, "        {name}: {value}");
        }
    }
    text
}

/// Lists snapshots for people.
pub(super) fn snapshots(snapshots: &[Snapshot]) -> String {
    let mut text =
        "Snapshot list:\nID        TAG               VM SIZE                DATE     VM CLOCK\n"
            .to_owned();
    for snapshot in snapshots {
        let date = Timestamp::from_second(i64::from(snapshot.date_seconds));
        let date = date.map(|date| {
            date.to_zoned(TimeZone::system()).strftime("%Y-%m-%d %H:%M:%S").to_string()
        });
        let (seconds, milliseconds) =
            (snapshot.clock / 1_000_000_000, snapshot.clock / 1_000_000 % 1000);
        let clock = format!(
            "{:02}:{:02}:{:02}.{milliseconds:03}",
            seconds / 3600,
            seconds / 60 % 60,
            seconds % 60
        );
        let _ = writeln!(
            text,
            "{:<9} {:<16} {:>8} {:>19} {clock:>12}",
            snapshot.id,
            snapshot.name,
            human(snapshot.state_size),
            date.unwrap_or_default(),
        );
    }
    text
}

/// Lists snapshots for programs.
pub(super) fn snapshot_objects(snapshots: &[Snapshot]) -> Value {
    let object = |snapshot: &Snapshot| {
        json!({
            "id": snapshot.id,
            "name": snapshot.name,
            "vm-state-size": snapshot.state_size,
            "date-sec": snapshot.date_seconds,
            "date-nsec": snapshot.date_nanoseconds,
            "vm-clock-sec": snapshot.clock / 1_000_000_000,
            "vm-clock-nsec": snapshot.clock % 1_000_000_000,
        })
    };
    snapshots.iter().map(object).collect()
}

/// Returns the names and values of the fields that only one format has.
fn specific(fields: &[(&'static str, String)]) -> Map<String, Value> {
    let value =
        |text: &str| serde_json::from_str(text).ok().filter(|value: &Value| !value.is_f64());
    fields
        .iter()
        .map(|(name, text)| {
            (name.replace(' ', "-"), value(text).unwrap_or_else(|| text.as_str().into()))
        })
        .collect()
}

fn object(image: &Image) -> Value {
    let details = image.details();
    let mut object = json!({
        "filename": image.path().to_string_lossy(),
        "format": image.format().name(),
        "virtual-size": image.size(),
        "dirty-flag": details.dirty,
    });
    let fields = object.as_object_mut().expect("it is an object");
    let mut put = |name: &str, value: Value| fields.insert(name.to_owned(), value);
    if let Some(bytes) = image.allocated() {
        put("actual-size", bytes.into());
    }
    if let Some(bytes) = details.cluster_size {
        put("cluster-size", bytes.into());
    }
    if details.is_encrypted {
        put("encrypted", true.into());
    }
    if let Some(backing) = image.backing() {
        let full = backing.path(image.path());
        put(
            "full-backing-filename",
            full.map_or(Value::Null, |path| path.to_string_lossy().into()),
        );
        put("backing-filename", backing.name.into());
        if let Some(format) = backing.format {
            put("backing-filename-format", format.into());
        }
    }
    if !details.snapshots.is_empty() {
        put("snapshots", snapshot_objects(&details.snapshots));
    }
    if !details.specific.is_empty() {
        let mut data = specific(&details.specific);
        if !details.encryption.is_empty() {
            data.insert("encrypt".to_owned(), Value::Object(specific(&details.encryption)));
        }
        put("format-specific", json!({ "type": image.format().name(), "data": data }));
    }
    object
}
