//! Images that are described by options, as in QEMU: `driver=qcow2,file.filename=disk.qcow2`
//! (`--image-opts`), or the same options as JSON
//! (`json:{"driver":"qcow2","file":{"filename":"disk.qcow2"}}`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;
use thiserror::Error;

use crate::format::{BackingName, Format, UnknownFormat};
use crate::image::{Backing, OpenOptions};

/// Options that make no difference here and are accepted.
const NO_DIFFERENCE: [&str; 18] = [
    "aio",
    "auto-read-only",
    "cache-clean-interval",
    "cache-size",
    "detect-zeroes",
    "discard",
    "encrypt.format",
    "force-share",
    "l2-cache-entry-size",
    "l2-cache-size",
    "lazy-refcounts",
    "locking",
    "node-name",
    "overlap-check",
    "pass-discard-request",
    "pass-discard-snapshot",
    "read-only",
    "refcount-cache-size",
];

/// The description of an image by options.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImageSpec {
    /// The path of the file, or the address of an NBD export.
    pub path: PathBuf,
    /// The format, if it is given.
    pub format: Option<Format>,
    /// The treatment of the backing image, if it is given.
    pub backing: Option<Backing>,
    /// The id of the object with the password.
    pub key_secret: Option<String>,
    /// Whether others may write to the image.
    pub shares: bool,
    /// The part of the file that is a raw image: offset of the first byte, and perhaps the length.
    pub slice: Option<(u64, Option<u64>)>,
}

/// The reasons why options describe no image.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum BadSpec {
    /// The text is no JSON, or no object.
    #[error("Could not parse the JSON options: {0}")]
    Json(String),
    /// No file is given.
    #[error(
        "A block device must be specified for \"{0}filename\": give driver=FORMAT,file.filename=FILE"
    )]
    NoFile(String),
    /// The option is unknown.
    #[error("there is no option \"{0}\" for an image")]
    Unknown(String),
    /// The option cannot have this value.
    #[error("{key} must be {expected}, not \"{value}\"")]
    Value {
        /// The option's name.
        key: String,
        /// The possible values.
        expected: &'static str,
        /// The given value.
        value: String,
    },
    /// The format is unknown.
    #[error(transparent)]
    Format(#[from] UnknownFormat),
}

/// Options by their names, whose parts are separated by dots.
type Options = BTreeMap<String, String>;

impl ImageSpec {
    /// Returns the image that the object after `json:` in `text` describes. Returns None if `text` is the
    /// name of a file.
    pub fn of_name(text: &str) -> Option<Result<ImageSpec, BadSpec>> {
        text.strip_prefix("json:").map(ImageSpec::of_json)
    }

    fn of_json(text: &str) -> Result<ImageSpec, BadSpec> {
        let value: Value =
            serde_json::from_str(text).map_err(|error| BadSpec::Json(error.to_string()))?;
        let mut options = Options::new();
        match &value {
            Value::Object(_) => flatten("", &value, &mut options)?,
            _ => return Err(BadSpec::Json("it is no object".to_owned())),
        }
        ImageSpec::of_options(options)
    }

    /// Returns the image that these options describe.
    pub fn of_pairs<'a>(
        pairs: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<ImageSpec, BadSpec> {
        let owned = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
        ImageSpec::of_options(pairs.into_iter().map(owned).collect())
    }

    fn of_options(mut options: Options) -> Result<ImageSpec, BadSpec> {
        let mut spec = ImageSpec::default();
        let driver = options.remove("driver");
        let is_protocol = driver.as_deref().is_some_and(is_protocol);
        let place = if is_protocol {
            // A protocol as driver means the bytes themselves, without probing for a format.
            spec.format = Some(Format::Raw);
            String::new()
        } else {
            spec.format = driver.map(|name| name.parse()).transpose()?;
            // The prefix "file." may be left out if a file is all that is given.
            if options.contains_key("filename") { String::new() } else { "file.".to_owned() }
        };
        let protocol = if is_protocol { None } else { options.remove("file.driver") };
        spec.path = match protocol.as_deref() {
            Some("nbd") => server(&mut options, &place),
            Some(other) if !is_protocol_of_files(other) => {
                let value = other.to_owned();
                let expected = "file, host_device or nbd";
                return Err(BadSpec::Value { key: "file.driver".to_owned(), expected, value });
            }
            _ => match options.remove(&format!("{place}filename")) {
                Some(name) => Ok(PathBuf::from(name.strip_prefix("file:").unwrap_or(&name))),
                None => server(&mut options, &place),
            },
        }?;
        let locking = options.get(&format!("{place}locking")).map(String::as_str);
        spec.shares =
            locking == Some("off") || options.get("force-share").is_some_and(|value| is_on(value));
        spec.key_secret = match options.remove("key-secret") {
            None => options.remove("encrypt.key-secret"),
            secret => secret,
        };
        spec.slice = slice(&mut options)?;
        spec.backing = backing(&mut options)?;
        let left = options.keys().find(|key| {
            let key = key.strip_prefix("file.").unwrap_or(key);
            !NO_DIFFERENCE.contains(&key) && !key.starts_with("cache.")
        });
        match left {
            Some(key) => Err(BadSpec::Unknown(key.clone())),
            None => Ok(spec),
        }
    }

    /// Returns `options` together with the options that this description adds.
    pub fn options(&self, options: &OpenOptions) -> OpenOptions {
        let mut options = options.clone();
        options.format = self.format.or(options.format);
        options.shares |= self.shares && !options.writes;
        options.slice = self.slice.or(options.slice);
        if let Some(backing) = &self.backing
            && options.backing == Backing::Follow
        {
            options.backing = backing.clone();
        }
        options
    }
}

fn is_on(value: &str) -> bool {
    matches!(value, "on" | "yes" | "true")
}

fn is_protocol(driver: &str) -> bool {
    driver == "nbd" || is_protocol_of_files(driver)
}

fn is_protocol_of_files(driver: &str) -> bool {
    matches!(driver, "file" | "host_device")
}

/// Adds the contents of `value`, whose name is `name`, to `options`.
fn flatten(name: &str, value: &Value, options: &mut Options) -> Result<(), BadSpec> {
    let text = match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                let name = if name.is_empty() { key.clone() } else { format!("{name}.{key}") };
                flatten(&name, value, options)?;
            }
            return Ok(());
        }
        Value::Array(_) => return Err(BadSpec::Unknown(name.to_owned())),
        Value::Null => String::new(),
        Value::Bool(on) => if *on { "on" } else { "off" }.to_owned(),
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
    };
    options.insert(name.to_owned(), text);
    Ok(())
}

/// Returns the address of the NBD export that `options` describe.
fn server(options: &mut Options, place: &str) -> Result<PathBuf, BadSpec> {
    let mut take = |name: &str| options.remove(&format!("{place}{name}"));
    let export = take("export").unwrap_or_default();
    take("server.type");
    let path = take("server.path").or_else(|| take("path"));
    let host = take("server.host").or_else(|| take("host"));
    let port = take("server.port").or_else(|| take("port")).unwrap_or_else(|| "10809".to_owned());
    match (path, host) {
        (Some(path), _) => Ok(format!("nbd+unix:///{export}?socket={path}").into()),
        (None, Some(host)) => Ok(format!("nbd://{host}:{port}/{export}").into()),
        (None, None) => Err(BadSpec::NoFile(place.to_owned())),
    }
}

/// Returns the part of the file that is a raw image.
fn slice(options: &mut Options) -> Result<Option<(u64, Option<u64>)>, BadSpec> {
    let mut number = |key: &str| {
        let wrong = |value: String| BadSpec::Value {
            key: key.to_owned(),
            expected: "a number of bytes",
            value,
        };
        let value = options.remove(key);
        value.map(|value| crate::parse_size(&value).ok_or_else(|| wrong(value))).transpose()
    };
    let (offset, size) = (number("offset")?, number("size")?);
    Ok((offset.is_some() || size.is_some()).then(|| (offset.unwrap_or(0), size)))
}

/// Returns the backing image: an object, or nothing.
fn backing(options: &mut Options) -> Result<Option<Backing>, BadSpec> {
    if options.get("backing").is_some_and(String::is_empty) {
        options.remove("backing");
        return Ok(Some(Backing::Ignore));
    }
    let keys: Vec<String> =
        options.keys().filter(|key| key.starts_with("backing.")).cloned().collect();
    if keys.is_empty() {
        return Ok(None);
    }
    let mut below = Options::new();
    for key in keys {
        let value = options.remove(&key).unwrap_or_default();
        below.insert(key["backing.".len()..].to_owned(), value);
    }
    let spec = ImageSpec::of_options(below)?;
    if spec.backing.is_some() || spec.slice.is_some() {
        return Err(BadSpec::Unknown("backing.backing".to_owned()));
    }
    // The user has named the backing image, so the path is relative to the current directory.
    let path = std::path::absolute(&spec.path).unwrap_or(spec.path);
    let name = path.to_string_lossy().into_owned();
    let format = spec.format.map(|format| format.name().to_owned());
    Ok(Some(Backing::Other(Some(BackingName { name, format }))))
}

/// Returns the path and the format in the name of a backing file, if it is an object.
pub(crate) fn named(name: &str) -> Option<Result<(PathBuf, Option<Format>), BadSpec>> {
    let spec = ImageSpec::of_name(name)?;
    Some(spec.and_then(|spec| {
        if spec.slice.is_some() || spec.backing.is_some() {
            return Err(BadSpec::Unknown("backing.file".to_owned()));
        }
        Ok((Path::new(&spec.path).to_owned(), spec.format))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(text: &str) -> Result<ImageSpec, BadSpec> {
        ImageSpec::of_pairs(
            text.split(',').map(|pair| pair.split_once('=').unwrap_or((pair, "on"))),
        )
    }

    fn json(text: &str) -> Result<ImageSpec, BadSpec> {
        ImageSpec::of_name(&format!("json:{text}")).unwrap()
    }

    #[test]
    fn options_name_images() {
        let spec = pairs("driver=qcow2,file.driver=file,file.filename=a.img,read-only=on").unwrap();
        assert_eq!((spec.path.to_str(), spec.format), (Some("a.img"), Some(Format::Qcow2)));
        assert_eq!(pairs("file.filename=a.img").unwrap().format, None);
        assert_eq!(pairs("driver=file,filename=a.img").unwrap().format, Some(Format::Raw));
        assert_eq!(
            pairs("driver=luks,key-secret=s,file.filename=a").unwrap().key_secret.unwrap(),
            "s"
        );
        let spec = pairs("driver=qcow2,encrypt.format=luks,encrypt.key-secret=s,file.filename=a");
        assert_eq!(spec.unwrap().key_secret.unwrap(), "s");
        let spec = pairs("driver=raw,offset=1M,size=512,file.filename=a").unwrap();
        assert_eq!(spec.slice, Some((1 << 20, Some(512))));
        let spec = pairs("driver=raw,file.driver=nbd,file.host=h,file.port=1,file.export=e");
        assert_eq!(spec.unwrap().path.to_str(), Some("nbd://h:1/e"));
        assert!(pairs("driver=qcow2,file.filename=a,file.locking=off").unwrap().shares);
    }

    #[test]
    fn json_objects_name_the_same_images() {
        let text = r#"{"driver":"qcow2","file":{"driver":"file","filename":"a,b"},"backing":null}"#;
        let spec = json(text).unwrap();
        assert_eq!((spec.path.to_str(), spec.backing), (Some("a,b"), Some(Backing::Ignore)));
        let text = r#"{"driver":"raw","file":{"driver":"nbd","server":{"type":"unix","path":"/s"},"export":"e"}}"#;
        assert_eq!(json(text).unwrap().path.to_str(), Some("nbd+unix:///e?socket=/s"));
        let text = r#"{"file.filename":"a","driver":"qcow2","backing":{"driver":"raw","file":{"filename":"/b"}}}"#;
        let backing = BackingName { name: "/b".to_owned(), format: Some("raw".to_owned()) };
        assert_eq!(json(text).unwrap().backing, Some(Backing::Other(Some(backing))));
    }

    #[test]
    fn a_specification_without_a_file_is_refused() {
        for bad in [
            "driver=qcow2",
            "driver=nonsense,file.filename=a",
            "driver=raw,file.driver=qcow2,file.file.filename=a",
            "driver=raw,file.filename=a,offset=x",
            "driver=raw,file.filename=a,nonsense=1",
            "driver=nbd,export=e",
        ] {
            assert!(pairs(bad).is_err(), "{bad}");
        }
        for bad in ["", "[]", "1", "{", r#"{"file":["a"]}"#, r#"{"driver":5}"#] {
            assert!(json(bad).is_err(), "{bad}");
        }
    }
}
