//! The commands for block nodes: images that exist before a device uses them (QMP Reference Manual, "Block
//! devices").
//!
//! A node is a file, an export of an NBD server, a disk of a vhost-user-blk server, or a format in another
//! node. Devices are given its name ([`crate::cards`]). A format in a node holds the lock of the node's file,
//! so the lower node is closed meanwhile.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use ring3_block::Format;
use ring3_disk::{Access, ImageFile, ImageOptions, Served};
use ring3_vm::control::DriveInfo;
use ring3_vm::drives::{Cache, DetectZeroes, Drive, Limits};
use serde::Deserialize;
use serde_json::Value;

use crate::commands::{Inserted, Machine, done};
use crate::protocol::{Arguments, Failure, read};

/// The nodes of clients, by their names.
#[derive(Debug, Default)]
pub(crate) struct Nodes(BTreeMap<String, Node>);

#[derive(Debug)]
struct Node {
    source: Source,
    /// The open drive, or None while another node uses the file.
    drive: Option<Arc<dyn Drive>>,
    /// The node in which this node is a format.
    below: Option<String>,
}

/// The place of a node's bytes, and how they are used.
#[derive(Debug, Clone)]
enum Source {
    /// A file or an export.
    Image(PathBuf, ImageOptions),
    /// A disk behind the socket of a server.
    Server(PathBuf, Access),
}

impl Source {
    fn open(&self) -> Result<Arc<dyn Drive>, Failure> {
        let failed = |error: &dyn std::error::Error| Failure::generic(error.to_string());
        Ok(match self {
            Source::Image(path, options) => {
                Arc::new(ImageFile::open(path, options.clone()).map_err(|error| failed(&error))?)
            }
            Source::Server(socket, access) => {
                let read_only = *access == Access::ReadOnly;
                Arc::new(Served::connect(socket, read_only).map_err(|error| failed(&error))?)
            }
        })
    }
}

impl Nodes {
    /// Returns the drive of node `name` for a device, or None if there is no such node. Fails if another node
    /// uses it.
    pub(crate) fn drive(&self, name: &str) -> Result<Option<Arc<dyn Drive>>, Failure> {
        match self.0.get(name) {
            None => Ok(None),
            Some(Node { drive: None, .. }) => {
                Err(Failure::generic(format!("Node '{name}' is in use by another node")))
            }
            Some(Node { drive, .. }) => Ok(drive.clone()),
        }
    }

    fn add(&mut self, name: String, options: &Options) -> Result<(), Failure> {
        if name.is_empty() || name.starts_with('#') {
            return Err(Failure::generic(format!("Invalid node-name: '{name}'")));
        }
        if self.0.contains_key(&name) {
            return Err(Failure::generic(format!("Duplicate nodes with node-name='{name}'")));
        }
        let (format, file) = match options.layer()? {
            Layer::Protocol(source) => {
                let drive = Some(source.open()?);
                self.0.insert(name, Node { source, drive, below: None });
                return Ok(());
            }
            Layer::Format(format, file) => (format, file),
        };
        let (lower, below) = match file {
            FileReference::Node(lower) => {
                let node = self.0.get_mut(lower).ok_or_else(|| unknown(lower))?;
                node.drive.take().ok_or_else(|| {
                    Failure::generic(format!("Node '{lower}' is in use by another node"))
                })?;
                (node.source.clone(), Some(lower.clone()))
            }
            FileReference::Options(lower) => match lower.layer()? {
                Layer::Protocol(source) => (source, None),
                Layer::Format(..) => {
                    return Err(Failure::generic("a format is in a file, not in another format"));
                }
            },
        };
        let source = options.of_format(format, lower);
        let opened = source.and_then(|source| Ok((source.open()?, source)));
        match opened {
            Ok((drive, source)) => {
                self.0.insert(name, Node { source, drive: Some(drive), below });
                Ok(())
            }
            Err(failure) => {
                self.give_back(below.as_deref());
                Err(failure)
            }
        }
    }

    /// Opens the file of a node again that another node no longer uses.
    fn give_back(&mut self, lower: Option<&str>) {
        if let Some(node) = lower.and_then(|lower| self.0.get_mut(lower)) {
            node.drive = node.source.open().ok();
        }
    }

    fn remove(&mut self, name: &str) -> Result<(), Failure> {
        if self.0.values().any(|other| other.below.as_deref() == Some(name)) {
            return Err(Failure::generic(format!("Node '{name}' is in use by another node")));
        }
        let node = self.0.remove(name).ok_or_else(|| unknown(name))?;
        drop(node.drive);
        self.give_back(node.below.as_deref());
        Ok(())
    }
}

fn unknown(name: &str) -> Failure {
    Failure::generic(format!("Failed to find node with node-name='{name}'"))
}

/// The description of a node (`BlockdevOptions`).
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Options {
    driver: String,
    node_name: Option<String>,
    #[serde(default)]
    read_only: bool,
    /// This option has no effect: a node that cannot be written is an error.
    #[serde(default, rename = "auto-read-only")]
    _auto_read_only: bool,
    #[serde(default)]
    discard: Discard,
    #[serde(default)]
    cache: CacheOptions,
    #[serde(default)]
    detect_zeroes: Detect,
    /// For a format: its file.
    file: Option<FileReference>,
    /// For a file: its name.
    filename: Option<PathBuf>,
    /// For a vhost-user-blk server: its socket.
    path: Option<PathBuf>,
    /// For an NBD server: its address.
    server: Option<Address>,
    export: Option<String>,
    /// In seconds. The default is that of the NBD client ([`ring3_block::nbd`]).
    reconnect_delay: Option<u32>,
    open_timeout: Option<u32>,
}

/// The node or file that contains a format.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum FileReference {
    Node(String),
    Options(Box<Options>),
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Discard {
    #[default]
    Ignore,
    Unmap,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Detect {
    #[default]
    Off,
    On,
    Unmap,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
struct CacheOptions {
    direct: bool,
    no_flush: bool,
}

/// The address of a server (`SocketAddress`).
#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase", deny_unknown_fields)]
enum Address {
    Unix { path: String },
    Inet { host: String, port: String },
}

/// Whether a node contains the bytes itself, or finds them in another node.
enum Layer<'a> {
    Protocol(Source),
    Format(Format, &'a FileReference),
}

impl Options {
    fn layer(&self) -> Result<Layer<'_>, Failure> {
        let wanted = |member: &str| Failure::generic(format!("Parameter '{member}' is missing"));
        let path = match self.driver.as_str() {
            "file" | "host_device" => self.filename.clone().ok_or_else(|| wanted("filename"))?,
            "nbd" => self.uri(self.server.as_ref().ok_or_else(|| wanted("server"))?).into(),
            "virtio-blk-vhost-user" => {
                let socket = self.path.clone().ok_or_else(|| wanted("path"))?;
                return Ok(Layer::Protocol(Source::Server(socket, self.access())));
            }
            driver => {
                let format: Format = driver
                    .parse()
                    .map_err(|_| Failure::generic(format!("Unknown driver '{driver}'")))?;
                let file = self.file.as_ref().ok_or_else(|| wanted("file"))?;
                return Ok(Layer::Format(format, file));
            }
        };
        Ok(Layer::Protocol(Source::Image(path, self.image(Format::Raw))))
    }

    /// Returns the URI of the export at `server`. It can express all options, and names with any characters.
    fn uri(&self, server: &Address) -> String {
        let export = escape(self.export.as_deref().unwrap_or_default());
        let (before, socket) = match server {
            Address::Unix { path } => {
                (format!("nbd+unix:///{export}"), Some(("socket", escape(path))))
            }
            Address::Inet { host, port } if host.contains(':') => {
                (format!("nbd://[{host}]:{port}/{export}"), None)
            }
            Address::Inet { host, port } => (format!("nbd://{host}:{port}/{export}"), None),
        };
        let times =
            [("reconnect-delay", self.reconnect_delay), ("open-timeout", self.open_timeout)];
        let times = times.into_iter().filter_map(|(name, time)| Some((name, time?.to_string())));
        let parameters: Vec<_> = socket
            .into_iter()
            .chain(times)
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        if parameters.is_empty() { before } else { format!("{before}?{}", parameters.join("&")) }
    }

    fn access(&self) -> Access {
        if self.read_only { Access::ReadOnly } else { Access::ReadWrite }
    }

    fn image(&self, format: Format) -> ImageOptions {
        let CacheOptions { direct, no_flush } = self.cache;
        ImageOptions {
            format: Some(format),
            access: self.access(),
            cache: Cache { direct, no_flush, ..Cache::default() },
            detect_zeroes: match self.detect_zeroes {
                Detect::Off => DetectZeroes::Off,
                Detect::On => DetectZeroes::On,
                Detect::Unmap => DetectZeroes::Unmap,
            },
            discard: self.discard == Discard::Unmap,
            ..ImageOptions::default()
        }
    }

    /// Makes a format in the node `lower`. An option about the host's cache takes effect if either node has
    /// it.
    fn of_format(&self, format: Format, lower: Source) -> Result<Source, Failure> {
        let mut image = self.image(format);
        match lower {
            Source::Image(path, options) => {
                image.cache.direct |= options.cache.direct;
                image.cache.no_flush |= options.cache.no_flush;
                if options.access == Access::ReadOnly {
                    image.access = Access::ReadOnly;
                }
                Ok(Source::Image(path, image))
            }
            Source::Server(..) if format == Format::Raw => Ok(lower),
            Source::Server(..) => {
                Err(Failure::generic("the server has the format of its disk; give raw"))
            }
        }
    }
}

/// Escapes `text` for a URI (RFC 3986, 2.1). Slashes may stay, in paths and behind the question mark (3.3,
/// 3.4).
fn escape(text: &str) -> String {
    let byte = |byte| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
            char::from(byte).to_string()
        }
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(byte).collect()
}

/// Opens an image that can then be given to a device.
pub(crate) fn add(machine: &Machine, arguments: Arguments) -> Result<Value, Failure> {
    let options: Options = read(arguments)?;
    let name = options
        .node_name
        .clone()
        .ok_or_else(|| Failure::generic("'node-name' must be specified for the root node"))?;
    let drives = machine.control.drives()?;
    let in_device = |name: &str| drives.iter().any(|drive| is(drive, name));
    if in_device(&name) {
        return Err(Failure::generic(format!("Duplicate nodes with node-name='{name}'")));
    }
    if let Some(FileReference::Node(lower)) = &options.file
        && in_device(lower)
    {
        return Err(Failure::generic(format!("Node {lower} is in use")));
    }
    machine.nodes().add(name, &options)?;
    done()
}

/// Closes a node that no device uses.
pub(crate) fn remove(machine: &Machine, arguments: Arguments) -> Result<Value, Failure> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields, rename_all = "kebab-case")]
    struct Remove {
        node_name: String,
    }
    let Remove { node_name } = read(arguments)?;
    if machine.control.drives()?.iter().any(|drive| is(drive, &node_name)) {
        return Err(Failure::generic(format!("Node {node_name} is in use")));
    }
    machine.nodes().remove(&node_name)?;
    done()
}

/// Returns whether the node in `drive` is called `name`.
pub(crate) fn is(drive: &DriveInfo, name: &str) -> bool {
    drive.names.node.as_deref() == Some(name)
}

/// Describes all nodes: those of clients, and those of drives whose nodes have no name.
pub(crate) fn query(machine: &Machine, arguments: Arguments) -> Result<Value, Failure> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields, rename_all = "kebab-case")]
    struct Query {
        /// Asks for a reply without backing images. It has no effect, since the reply never contains them.
        #[serde(default, rename = "flat")]
        _flat: bool,
    }
    let Query { .. } = read(arguments)?;
    let drives = machine.control.drives()?;
    let nodes = machine.nodes();
    let mut all = Vec::new();
    for (name, node) in &nodes.0 {
        let in_device = drives.iter().find(|drive| is(drive, name));
        let Some(drive) = &node.drive else { continue };
        let alone = || {
            Some(Inserted {
                name: name.clone(),
                medium: drive.medium()?,
                file: drive.file(),
                format: drive.format(),
                cache: drive.cache(),
                detect_zeroes: drive.detect_zeroes(),
                limits: Limits::default(),
            })
        };
        all.extend(in_device.map_or_else(alone, Inserted::of).map(|inserted| inserted.show()));
    }
    let others = drives
        .iter()
        .filter(|drive| !drive.names.node.as_ref().is_some_and(|name| nodes.0.contains_key(name)));
    all.extend(others.filter_map(Inserted::of).map(|inserted| inserted.show()));
    Ok(all.into())
}
