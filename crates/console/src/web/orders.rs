//! What pages have done to machines: power, and discs and diskettes.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use ring3_supervisor::definition::Name;
use ring3_supervisor::place::Place;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::task::spawn_blocking;

use crate::monitor::Monitor;

/// The most images that are listed.
const IMAGES_MAX: usize = 1000;

/// What is done to a machine.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(tag = "order", rename_all = "kebab-case", deny_unknown_fields)]
pub(super) enum Order {
    /// Starts it, or lets its guest go on.
    Start { machine: Name },
    /// Lets its guest wait.
    Pause { machine: Name },
    /// Presses its power button, and ends it if its guest does not switch off.
    Stop { machine: Name },
    /// Presses its reset button.
    Reset { machine: Name },
    /// Kills it.
    Kill { machine: Name },
    /// Lists its drives whose media can be changed, and the images that may be put there.
    Media { machine: Name },
    /// Puts an image into a drive.
    Insert { machine: Name, device: String, image: String },
    /// Takes the medium out of a drive.
    Eject { machine: Name, device: String },
}

/// Carries out an order. Returns what the page is told.
pub(super) async fn carry_out(order: Order, place: &Place, media: Option<&Path>) -> Value {
    let done = match order {
        Order::Start { machine } => supervisor(place, "start", &machine).await,
        Order::Pause { machine } => supervisor(place, "pause", &machine).await,
        Order::Stop { machine } => supervisor(place, "stop", &machine).await,
        Order::Kill { machine } => supervisor(place, "kill", &machine).await,
        Order::Reset { machine } => ask(place, &machine, "system_reset", json!({})).await,
        Order::Media { machine } => return list_media(place, &machine, media).await,
        Order::Insert { machine, device, image } => {
            insert(place, &machine, &device, &image, media).await
        }
        Order::Eject { machine, device } => {
            ask(place, &machine, "eject", json!({ "device": device })).await
        }
    };
    let text = done.map_or_else(|error| error.to_string(), |_| "done".to_owned());
    json!({ "is": "note", "text": text })
}

async fn supervisor(place: &Place, command: &str, machine: &Name) -> io::Result<Value> {
    let mut monitor = Monitor::open(&place.control()).await?;
    monitor.ask(command, &json!({ "name": machine })).await
}

/// Asks the machine itself.
async fn ask(place: &Place, machine: &Name, command: &str, arguments: Value) -> io::Result<Value> {
    let opened = Monitor::open(&place.part(machine).control()).await;
    let mut monitor =
        opened.map_err(|_| io::Error::other(format!("\"{machine}\" does not run")))?;
    monitor.ask(command, &arguments).await
}

async fn list_media(place: &Place, machine: &Name, media: Option<&Path>) -> Value {
    let drives = match ask(place, machine, "query-block", json!({})).await {
        Ok(drives) => drives,
        Err(error) => return json!({ "is": "note", "text": error.to_string() }),
    };
    let drives = drives.as_array().into_iter().flatten().filter(|drive| drive["removable"] == true);
    let drive = |drive: &Value| {
        let file = drive["inserted"]["file"].as_str().and_then(|file| Path::new(file).file_name());
        json!({ "device": drive["device"], "file": file.map(|file| file.to_string_lossy()) })
    };
    let images = match media.map(Path::to_owned) {
        Some(directory) => {
            json!(spawn_blocking(move || images(&directory)).await.unwrap_or_default())
        }
        None => Value::Null,
    };
    let drives: Vec<_> = drives.map(drive).collect();
    json!({ "is": "media", "machine": machine, "drives": drives, "images": images })
}

/// Returns the names of the files in a directory.
fn images(directory: &Path) -> Vec<String> {
    let files = fs::read_dir(directory).into_iter().flatten().flatten();
    let files = files.filter(|file| file.path().is_file());
    let names = files.filter_map(|file| file.file_name().into_string().ok());
    let mut names: Vec<_> = names.filter(|name| !name.starts_with('.')).collect();
    names.sort();
    names.truncate(IMAGES_MAX);
    names
}

/// Returns the path of an image of the directory.
fn path(image: &str, media: Option<&Path>) -> io::Result<PathBuf> {
    let directory = media.ok_or_else(|| {
        io::Error::other("no images may be put into drives; start the page with --media DIRECTORY")
    })?;
    // A name with a slash, or "..", leads elsewhere.
    if !images(directory).iter().any(|name| name == image) {
        return Err(io::Error::other(format!("there is no image \"{image}\" in the directory")));
    }
    Ok(directory.join(image))
}

async fn insert(
    place: &Place,
    machine: &Name,
    device: &str,
    image: &str,
    media: Option<&Path>,
) -> io::Result<Value> {
    let (image, media) = (image.to_owned(), media.map(Path::to_owned));
    let found = spawn_blocking(move || path(&image, media.as_deref())).await;
    let path = found.map_err(io::Error::other)??;
    let arguments = json!({ "device": device, "filename": path });
    let inserted = ask(place, machine, "blockdev-change-medium", arguments).await;
    inserted.map_err(|error| {
        let reason = error.to_string();
        // The supervisor starts machines so that they open no other files than those of their definitions.
        let is_denied = reason.contains("permission");
        let advice = "; sandbox = \"auto,files=DIRECTORY\" in the machine's definition gives it the directory";
        io::Error::other(if is_denied { reason + advice } else { reason })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_images_of_the_directory_are_inserted() {
        let directory = tempfile::tempdir().unwrap();
        let media = directory.path().join("media");
        fs::create_dir(&media).unwrap();
        fs::create_dir(media.join("more")).unwrap();
        for file in ["b.iso", "a.img", ".hidden"] {
            fs::write(media.join(file), "x").unwrap();
        }
        fs::write(directory.path().join("secret"), "x").unwrap();
        assert_eq!(images(&media), ["a.img", "b.iso"]);
        assert_eq!(path("b.iso", Some(&media)).unwrap(), media.join("b.iso"));
        let absolute = directory.path().join("secret");
        let elsewhere = absolute.to_str().unwrap();
        for bad in ["", ".", "..", "../secret", "more", ".hidden", "./b.iso", elsewhere, "b.iso\0"]
        {
            assert!(path(bad, Some(&media)).unwrap_err().to_string().contains("no image"), "{bad}");
        }
        assert!(path("b.iso", None).unwrap_err().to_string().contains("--media DIRECTORY"));
    }
}
