//! The options of a drive, `--drive`, and `--boot`.

use std::path::PathBuf;
use std::str::FromStr;

use ring3_block::format::{Format, UnknownFormat};
use ring3_vm::drives::{Cache, DetectZeroes, ErrorPolicy, Limits, OnError};
use thiserror::Error;

use super::{IdeProperties, Interface, VirtioProperties};

/// The value of `--drive`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DriveProperties {
    pub(crate) file: Option<PathBuf>,
    /// The name for QMP.
    pub(crate) id: Option<String>,
    /// Whether `id` is the name of the block node rather than of the drive.
    pub(crate) is_node: bool,
    /// Firmware tries devices with such a number, the lowest first, before those of the boot order.
    pub(crate) boot_index: Option<u32>,
    pub(crate) interface: Interface,
    /// The number of the drive at its interface, or None for the first free one.
    pub(crate) index: Option<u8>,
    pub(crate) is_cdrom: bool,
    /// The format of the file, or None to detect it.
    pub(crate) format: Option<Format>,
    pub(crate) read_only: bool,
    pub(crate) snapshot: bool,
    pub(crate) cache: Cache,
    pub(crate) detect_zeroes: DetectZeroes,
    /// Whether sectors that the guest discards free room in the image.
    pub(crate) discard: bool,
    /// Whether the files that the image names stay closed.
    pub(crate) no_external_files: bool,
    /// A file with the password of an encrypted image.
    pub(crate) password_file: Option<PathBuf>,
    /// The name of that password among [`super::DriveArguments::secrets`].
    pub(crate) key_secret: Option<String>,
    /// The socket of a server that has the disk, instead of a file.
    pub(crate) vblock: Option<PathBuf>,
    /// The device to whose provider this server introduces the machine.
    pub(crate) direct: Option<String>,
    pub(crate) virtio: VirtioProperties,
    pub(crate) ide: IdeProperties,
    /// The limits of its rate.
    pub(crate) limits: Limits,
    /// The actions after an error of the host.
    pub(crate) errors: ErrorPolicy,
}

impl Default for DriveProperties {
    /// A hard disk without a file.
    fn default() -> DriveProperties {
        DriveProperties {
            file: None,
            id: None,
            is_node: false,
            boot_index: None,
            interface: Interface::Ide,
            index: None,
            is_cdrom: false,
            format: None,
            read_only: false,
            snapshot: false,
            cache: Cache::default(),
            detect_zeroes: DetectZeroes::Off,
            discard: false,
            no_external_files: false,
            password_file: None,
            key_secret: None,
            vblock: None,
            direct: None,
            virtio: VirtioProperties::default(),
            ide: IdeProperties::default(),
            limits: Limits::default(),
            errors: ErrorPolicy::default(),
        }
    }
}

/// The names of the properties of a drive.
pub(crate) const KNOWN: &str = "file, vblock, direct, id, if, index, media, format, readonly, snapshot, cache, discard, detect-zeroes, \
     external-files, password-file, rerror, werror, throttling.bps-total and the like";

/// The reasons why a `--drive` or `--boot` is refused.
#[derive(Debug, Error, PartialEq, Eq)]
pub(crate) enum BadProperties {
    #[error("\"{0}\" is not a property: give KEY=VALUE, such as file={0}, separated by commas")]
    NoProperty(String),
    #[error(
        "there is no property \"{0}\"; there are {KNOWN}, and with if=virtio serial, num-queues, disable-legacy and disable-modern"
    )]
    Unknown(String),
    #[error("{key} must be {expected}, not \"{value}\"")]
    Value { key: &'static str, expected: &'static str, value: String },
    #[error("a limit must be a number of bytes or operations a second, not \"{0}\"")]
    Limit(String),
    #[error("give letters among a, b, c, d and n, or order=LETTERS,once=LETTERS,menu=on|off")]
    Boot,
    #[error(
        "serial, num-queues, disable-legacy and disable-modern are properties of virtio disks: add if=virtio"
    )]
    NotVirtio,
    #[error(
        "a virtio disk needs an interface for drivers: leave disable-legacy or disable-modern out"
    )]
    NoInterface,
    #[error(transparent)]
    Format(#[from] UnknownFormat),
}

pub(super) fn switch(key: &'static str, value: &str) -> Result<bool, BadProperties> {
    match value {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(BadProperties::Value { key, expected: "on or off", value: value.to_owned() }),
    }
}

impl DriveProperties {
    /// Returns whether this is a drive for CDs and DVDs. Floppy drives are not, whatever `media` says.
    pub(super) fn takes_discs(&self) -> bool {
        self.is_cdrom && self.interface == Interface::Ide
    }

    /// Sets a property that concerns the use of the image. Returns None if `key` is no such property.
    pub(crate) fn set(&mut self, key: &str, value: &str) -> Option<Result<(), BadProperties>> {
        let wrong = |key, expected| BadProperties::Value { key, expected, value: value.to_owned() };
        let set = match key {
            "cache" => Cache::of_mode(value).map(|cache| self.cache = cache).ok_or_else(|| {
                wrong("cache", "writeback, none, unsafe, writethrough or directsync")
            }),
            "cache.direct" => {
                switch("cache.direct", value).map(|direct| self.cache.direct = direct)
            }
            "cache.no-flush" => {
                switch("cache.no-flush", value).map(|no_flush| self.cache.no_flush = no_flush)
            }
            "discard" => {
                let discard = match value {
                    "on" | "unmap" => Ok(true),
                    "off" | "ignore" => Ok(false),
                    _ => Err(wrong("discard", "on (unmap) or off (ignore)")),
                };
                discard.map(|discard| self.discard = discard)
            }
            "external-files" => {
                switch("external-files", value).map(|opens| self.no_external_files = !opens)
            }
            "password-file" => {
                self.password_file = Some(value.into());
                Ok(())
            }
            "detect-zeroes" => DetectZeroes::of_word(value)
                .map(|detect_zeroes| self.detect_zeroes = detect_zeroes)
                .ok_or_else(|| wrong("detect-zeroes", "on, off or unmap")),
            "rerror" => match on_error(value) {
                None | Some(OnError::StopWithoutRoom) => {
                    Err(wrong("rerror", "report, ignore or stop"))
                }
                Some(read) => {
                    self.errors.read = read;
                    Ok(())
                }
            },
            "werror" => on_error(value)
                .map(|write| self.errors.write = write)
                .ok_or_else(|| wrong("werror", "report, ignore, stop or enospc")),
            _ => {
                let place = limit(&mut self.limits, key)?;
                let number = value.parse().map(|number| *place = number);
                number.map_err(|_| BadProperties::Limit(value.to_owned()))
            }
        };
        Some(set)
    }
}

fn on_error(word: &str) -> Option<OnError> {
    OnError::WORDS.iter().find(|(known, _)| *known == word).map(|(_, on_error)| *on_error)
}

/// Returns the number among `limits` that `key` names: `throttling.bps-total`, `throttling.iops-read-max`, or
/// in the older form `bps`, `iops_rd_max`.
fn limit<'a>(limits: &'a mut Limits, key: &str) -> Option<&'a mut u64> {
    let (name, is_max) = match key.strip_suffix("-max").or_else(|| key.strip_suffix("_max")) {
        Some(name) => (name, true),
        None => (key, false),
    };
    let limit = match name.strip_prefix("throttling.").unwrap_or(name) {
        "bps-total" | "bps" => &mut limits.bytes_total,
        "bps-read" | "bps_rd" => &mut limits.bytes_read,
        "bps-write" | "bps_wr" => &mut limits.bytes_write,
        "iops-total" | "iops" => &mut limits.operations_total,
        "iops-read" | "iops_rd" => &mut limits.operations_read,
        "iops-write" | "iops_wr" => &mut limits.operations_write,
        _ => return None,
    };
    Some(if is_max { &mut limit.max } else { &mut limit.average })
}

impl FromStr for DriveProperties {
    type Err = BadProperties;

    fn from_str(text: &str) -> Result<DriveProperties, BadProperties> {
        let mut drive = DriveProperties::default();
        for property in text.split(',').filter(|property| !property.is_empty()) {
            let (key, value) = property
                .split_once('=')
                .ok_or_else(|| BadProperties::NoProperty(property.to_owned()))?;
            let wrong =
                |key, expected| BadProperties::Value { key, expected, value: value.to_owned() };
            match key {
                "file" => drive.file = Some(value.into()),
                "vblock" => drive.vblock = Some(value.into()),
                "direct" => drive.direct = Some(value.to_owned()),
                "id" => drive.id = Some(value.to_owned()),
                "if" => {
                    drive.interface = match value {
                        "ide" => Interface::Ide,
                        "floppy" => Interface::Floppy,
                        "virtio" => Interface::Virtio,
                        "pflash" => Interface::Flash,
                        _ => return Err(wrong("if", "ide, floppy, virtio or pflash")),
                    };
                }
                "index" => {
                    let index = value.parse().map_err(|_| wrong("index", "a number from 0"))?;
                    drive.index = Some(index);
                }
                "media" => {
                    drive.is_cdrom = match value {
                        "disk" => false,
                        "cdrom" => true,
                        _ => return Err(wrong("media", "disk or cdrom")),
                    };
                }
                "format" => drive.format = Some(value.parse()?),
                "readonly" | "read-only" => drive.read_only = switch("readonly", value)?,
                "snapshot" => drive.snapshot = switch("snapshot", value)?,
                _ => match drive.set(key, value).or_else(|| drive.virtio.set(key, value)) {
                    Some(set) => set?,
                    None => return Err(BadProperties::Unknown(key.to_owned())),
                },
            }
        }
        drive.check()?;
        Ok(drive)
    }
}

/// The value of `--flash`: a file, and properties of a drive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FlashProperties(pub(crate) DriveProperties);

impl FromStr for FlashProperties {
    type Err = BadProperties;

    fn from_str(text: &str) -> Result<FlashProperties, BadProperties> {
        format!("if=pflash,file={text}").parse().map(FlashProperties)
    }
}

/// The value of `--boot`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct BootOptions {
    /// Letters among a, b, c, d and n.
    pub(crate) order: String,
    /// The order until the first reset, if it is another one.
    pub(crate) once: String,
    pub(crate) menu: bool,
}

impl BootOptions {
    /// Returns whether one of the orders contains `letter`.
    pub(crate) fn has_letter(&self, letter: char) -> bool {
        self.order.contains(letter) || self.once.contains(letter)
    }
}

impl FromStr for BootOptions {
    type Err = BadProperties;

    fn from_str(text: &str) -> Result<BootOptions, BadProperties> {
        let letters = |letters: &str| {
            let known = letters.bytes().all(|letter| b"abcdn".contains(&letter));
            if known { Ok(letters.to_owned()) } else { Err(BadProperties::Boot) }
        };
        let mut options = BootOptions::default();
        for property in text.split(',').filter(|property| !property.is_empty()) {
            match property.split_once('=') {
                None => options.order = letters(property)?,
                Some(("order", value)) => options.order = letters(value)?,
                Some(("once", value)) => options.once = letters(value)?,
                Some(("menu", value)) => options.menu = switch("menu", value)?,
                Some(_) => return Err(BadProperties::Boot),
            }
        }
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use ring3_vm::drives::Limit;

    use super::*;

    #[test]
    fn properties_are_read() {
        let drive: DriveProperties =
            "file=/tmp/a,if=floppy,index=1,readonly=on,format=raw".parse().unwrap();
        assert_eq!((drive.interface, drive.index), (Interface::Floppy, Some(1)));
        assert!(drive.read_only && !drive.snapshot);
        let disk = "file=a,if=virtio,num-queues=4,disable-legacy=on,serial=x";
        let disk: DriveProperties = disk.parse().unwrap();
        assert_eq!((disk.interface, disk.virtio.queues), (Interface::Virtio, 4));
        assert!(!disk.virtio.interfaces.legacy && disk.virtio.interfaces.modern);
        for wrong in [
            "num-queues=2",
            "if=virtio,num-queues=0",
            "if=virtio,num-queues=17",
            "if=virtio,disable-legacy=on,disable-modern=on",
        ] {
            assert!(wrong.parse::<DriveProperties>().is_err(), "{wrong}");
        }
        for wrong in [
            "file",
            "size=1",
            "if=scsi",
            "index=x",
            "format=qcow9",
            "snapshot=yes",
            "cache=fast",
            "cache.direct=1",
            "discard=yes",
            "detect-zeroes=no",
            "rerror=enospc",
            "werror=no",
            "bps=1M",
            "throttling.bps=x",
        ] {
            assert!(wrong.parse::<DriveProperties>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn flash_memory_is_a_file_with_properties() {
        let FlashProperties(flash) = "OVMF.fd,readonly=on".parse().unwrap();
        assert_eq!((flash.interface, flash.file), (Interface::Flash, Some("OVMF.fd".into())));
        assert!(flash.read_only && "a,b".parse::<FlashProperties>().is_err());
    }

    #[test]
    fn the_use_of_images_is_read() {
        let drive = |text: &str| text.parse::<DriveProperties>().unwrap();
        for (mode, cache) in Cache::MODES {
            assert_eq!(drive(&format!("file=a,cache={mode}")).cache, cache);
        }
        let none = drive("cache.direct=on,cache.no-flush=on");
        assert_eq!(none.cache, Cache { writeback: true, direct: true, no_flush: true });
        let unmap = drive("discard=unmap,detect-zeroes=unmap");
        assert!(unmap.discard && unmap.detect_zeroes == DetectZeroes::Unmap);
        assert!(!drive("discard=on,discard=ignore").discard);
        let hostile = drive("file=a,external-files=off,password-file=/run/key");
        assert!(hostile.no_external_files && hostile.password_file == Some("/run/key".into()));
        let errors = drive("rerror=stop,werror=ignore").errors;
        assert_eq!(errors, ErrorPolicy { read: OnError::Stop, write: OnError::Ignore });
        assert_eq!(drive("werror=enospc").errors, ErrorPolicy::default());
    }

    #[test]
    fn limits_are_read_in_both_forms() {
        let limits = |text: &str| text.parse::<DriveProperties>().unwrap().limits;
        for (new, old) in [
            ("bps-total", "bps"),
            ("bps-read", "bps_rd"),
            ("bps-write", "bps_wr"),
            ("iops-total", "iops"),
            ("iops-read", "iops_rd"),
            ("iops-write", "iops_wr"),
        ] {
            let new = limits(&format!("throttling.{new}=10,throttling.{new}-max=20"));
            assert_eq!(new, limits(&format!("{old}=10,{old}_max=20")));
            assert!(!new.is_none() && new.check().is_ok());
        }
        assert_eq!(limits("bps=10,bps_max=20").bytes_total, Limit { average: 10, max: 20 });
    }

    #[test]
    fn boot_orders_are_read() {
        let options: BootOptions = "order=dc,once=d,menu=on".parse().unwrap();
        let expected = BootOptions { order: "dc".into(), once: "d".into(), menu: true };
        assert_eq!(options, expected);
        assert_eq!("cd".parse::<BootOptions>().unwrap().order, "cd");
        assert!("order=c,once=n".parse::<BootOptions>().unwrap().has_letter('n'));
        assert!("p".parse::<BootOptions>().is_err());
        assert!("order=c,once=x".parse::<BootOptions>().is_err());
        assert!("splash=x".parse::<BootOptions>().is_err());
    }
}
