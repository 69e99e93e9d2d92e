//! The header: specification (docs/interop/qcow2.txt in QEMU), "Header" and "Header extensions".

use crate::error::{Fault, Result};
use crate::format::BackingName;

/// Number of bytes in the header of version 2.
const V2_LEN: usize = 72;
/// Number of bytes in the header of version 3, up to and including the field of its length.
const V3_LEN: usize = 104;
/// Number of bytes in the header with the compression type.
const V3_LONG_LEN: usize = 112;
/// "QFI\xfb".
const MAGIC: u32 = 0x514649fb;

/// log2 of the cluster size. The upper bound is QEMU's.
pub(super) const CLUSTER_BITS: std::ops::RangeInclusive<u32> = 9..=21;
/// Upper bound of the entries in an L1 table: 32 MiB, as in QEMU.
pub(super) const L1_ENTRIES_MAX: u64 = 4 << 20;
/// Upper bound of the bytes in the refcount table, as in QEMU.
pub(super) const REFCOUNT_TABLE_MAX: u64 = 8 << 20;
/// Upper bound of the snapshots, as in QEMU.
pub(super) const SNAPSHOTS_MAX: u32 = 65536;
/// Number of bytes at the start of a file that contain the header, all extensions and the name of the backing
/// file.
pub(super) const HEAD_MAX: u64 = 64 << 10;

/// Bits of `incompatible_features`.
pub(super) mod incompatible {
    pub(crate) const DIRTY: u64 = 1 << 0;
    pub(crate) const CORRUPT: u64 = 1 << 1;
    pub(crate) const DATA_FILE: u64 = 1 << 2;
    pub(crate) const COMPRESSION: u64 = 1 << 3;
    pub(crate) const EXTENDED_L2: u64 = 1 << 4;
}

/// The bit of `compatible_features` for lazy refcounts.
pub(super) const LAZY_REFCOUNTS: u64 = 1;

/// The compression of clusters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Compression {
    Zlib,
    Zstd,
}

impl Compression {
    pub(super) fn name(self) -> &'static str {
        match self {
            Compression::Zlib => "zlib",
            Compression::Zstd => "zstd",
        }
    }
}

/// The type of a header extension.
mod extension {
    pub(super) const END: u32 = 0;
    pub(super) const BACKING_FORMAT: u32 = 0xe2792aca;
    pub(super) const FEATURE_NAMES: u32 = 0x6803f857;
    pub(super) const BITMAPS: u32 = 0x23852875;
    pub(super) const ENCRYPTION: u32 = 0x0537be77;
}

/// The encryption of clusters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Crypt {
    /// No encryption.
    None,
    /// QEMU's older encryption, AES.
    Aes,
    /// Encryption by LUKS, whose header has `len` bytes at this offset.
    Luks { at: u64, len: u64 },
}

/// The contents of the header.
#[derive(Debug, Clone)]
pub(super) struct Header {
    pub(super) version: u32,
    pub(super) backing: Option<BackingName>,
    pub(super) cluster_bits: u32,
    pub(super) size: u64,
    pub(super) l1_entries: u32,
    pub(super) l1_offset: u64,
    pub(super) refcount_offset: u64,
    pub(super) refcount_clusters: u32,
    pub(super) snapshots: u32,
    pub(super) snapshots_offset: u64,
    pub(super) incompatible: u64,
    pub(super) compatible: u64,
    pub(super) autoclear: u64,
    pub(super) refcount_order: u32,
    pub(super) length: u32,
    pub(super) compression: Compression,
    pub(super) crypt: Crypt,
    /// Types and contents of extensions that are kept unchanged.
    pub(super) extensions: Vec<(u32, Vec<u8>)>,
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn be64(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

fn text(bytes: &[u8], what: &str) -> Result<String> {
    String::from_utf8(bytes.to_vec())
        .map_err(|_| Fault::unsupported(format!("{what} is not in UTF-8")))
}

impl Header {
    /// Reads the header at the start of `head`, which is filled up with zeros if the file is shorter.
    pub(super) fn parse(head: &[u8]) -> Result<Header> {
        if head.len() < V3_LONG_LEN || be32(head, 0) != MAGIC {
            return Err(Fault::refused("Image is not in qcow2 format"));
        }
        let version = be32(head, 4);
        if !(2..=3).contains(&version) {
            return Err(Fault::unsupported(format!("version {version} of qcow2 is not supported")));
        }
        let v3 = version == 3;
        let mut header = Header {
            version,
            backing: None,
            cluster_bits: be32(head, 20),
            size: be64(head, 24),
            l1_entries: be32(head, 36),
            l1_offset: be64(head, 40),
            refcount_offset: be64(head, 48),
            refcount_clusters: be32(head, 56),
            snapshots: be32(head, 60),
            snapshots_offset: be64(head, 64),
            incompatible: if v3 { be64(head, 72) } else { 0 },
            compatible: if v3 { be64(head, 80) } else { 0 },
            autoclear: if v3 { be64(head, 88) } else { 0 },
            refcount_order: if v3 { be32(head, 96) } else { 4 },
            length: if v3 { be32(head, 100) } else { V2_LEN as u32 },
            compression: Compression::Zlib,
            crypt: Crypt::None,
            extensions: Vec::new(),
        };
        header.check(head)?;
        header.parse_extensions(head)?;
        header.crypt = header.find_crypt(be32(head, 32))?;
        let (at, len) = (be64(head, 8), be32(head, 16) as usize);
        if at != 0 && len != 0 {
            let limit = header.cluster_size().min(head.len() as u64);
            let end = at.checked_add(len as u64).filter(|end| *end <= limit && len <= 1023);
            let end = end.ok_or_else(|| {
                Fault::damaged("the name of its backing file is outside of the header")
            })?;
            let name = text(&head[at as usize..end as usize], "the name of its backing file")?;
            let format = header.take_extension(extension::BACKING_FORMAT);
            let format = format.map(|bytes| text(&bytes, "the format of its backing file"));
            header.backing = Some(BackingName { name, format: format.transpose()? });
        }
        header.take_extension(extension::BACKING_FORMAT);
        Ok(header)
    }

    /// Returns the encryption that the number `method` means.
    fn find_crypt(&mut self, method: u32) -> Result<Crypt> {
        let pointer = self.extensions.iter().find(|(kind, _)| *kind == extension::ENCRYPTION);
        match (method, pointer) {
            (0, _) => Ok(Crypt::None),
            (1, _) => Ok(Crypt::Aes),
            (2, Some((_, bytes))) if bytes.len() >= 16 => {
                let (at, len) = (be64(bytes, 0), be64(bytes, 8));
                let is_place = at.is_multiple_of(self.cluster_size()) && at < 1 << 56;
                if !is_place || len > 1 << 32 {
                    return Err(Fault::damaged(format!(
                        "a LUKS header cannot have {len} bytes at {at:#x}"
                    )));
                }
                Ok(Crypt::Luks { at, len })
            }
            (2, _) => Err(Fault::damaged("it is encrypted but has no LUKS header")),
            (method, _) => {
                Err(Fault::unsupported(format!("it is encrypted by the unknown method {method}")))
            }
        }
    }

    fn check(&mut self, head: &[u8]) -> Result<()> {
        use incompatible::{COMPRESSION, CORRUPT, DATA_FILE, DIRTY, EXTENDED_L2};
        if !CLUSTER_BITS.contains(&self.cluster_bits) {
            let bits = self.cluster_bits;
            return Err(Fault::damaged(format!(
                "its header says that a cluster has 2 to the power of {bits} bytes"
            )));
        }
        let cluster = self.cluster_size();
        if self.version == 3 {
            let length = self.length as u64;
            if length < V3_LEN as u64 || !length.is_multiple_of(8) || length > cluster {
                return Err(Fault::damaged(format!("its header cannot have {length} bytes")));
            }
        }
        if self.incompatible & DATA_FILE != 0 {
            return Err(Fault::unsupported(
                "its data are in a separate file, which is not supported; convert it with \"qemu-img convert\"",
            ));
        }
        let unknown = self.incompatible & !(DIRTY | CORRUPT | COMPRESSION | EXTENDED_L2);
        if unknown != 0 {
            return Err(Fault::unsupported(format!(
                "it uses unknown features of qcow2 (bits {unknown:#x})"
            )));
        }
        if self.incompatible & EXTENDED_L2 != 0 && self.cluster_bits < 14 {
            return Err(Fault::damaged("it has extended L2 entries with clusters below 16 KiB"));
        }
        if self.length as usize >= V3_LONG_LEN && self.incompatible & COMPRESSION != 0 {
            self.compression = match head[V3_LEN] {
                0 => Compression::Zlib,
                1 => Compression::Zstd,
                other => {
                    return Err(Fault::unsupported(format!(
                        "it uses the unknown compression type {other}"
                    )));
                }
            };
        }
        if self.refcount_order > 6 {
            return Err(Fault::damaged(format!(
                "its header says that a refcount has 2 to the power of {} bits",
                self.refcount_order
            )));
        }
        let aligned = |offset: u64| offset.is_multiple_of(cluster) && offset < 1 << 56;
        if !aligned(self.l1_offset)
            || !aligned(self.refcount_offset)
            || !aligned(self.snapshots_offset)
        {
            return Err(Fault::damaged("a table does not begin at the start of a cluster"));
        }
        if u64::from(self.l1_entries) > L1_ENTRIES_MAX {
            return Err(Fault::damaged(format!(
                "its L1 table cannot have {} entries",
                self.l1_entries
            )));
        }
        if u64::from(self.refcount_clusters) > REFCOUNT_TABLE_MAX / cluster {
            return Err(Fault::damaged(format!(
                "its refcount table cannot have {} clusters",
                self.refcount_clusters
            )));
        }
        if self.snapshots > SNAPSHOTS_MAX {
            return Err(Fault::damaged(format!("it cannot have {} snapshots", self.snapshots)));
        }
        if self.size > i64::MAX as u64 || self.l1_needed(self.size) > u64::from(self.l1_entries) {
            return Err(Fault::damaged(format!(
                "an L1 table of {} entries does not fit a disk of {} bytes",
                self.l1_entries, self.size
            )));
        }
        Ok(())
    }

    fn parse_extensions(&mut self, head: &[u8]) -> Result<()> {
        let limit = self.cluster_size().min(head.len() as u64) as usize;
        let mut at = self.length as usize;
        let outside = || Fault::damaged("the header extensions do not end within the header");
        // No extension of type 0 is needed if the name of the backing file follows.
        let name = be64(head, 8);
        let end = if name != 0 && name < limit as u64 { name as usize } else { limit };
        while at + 8 <= end {
            let (kind, len) = (be32(head, at), be32(head, at + 4) as usize);
            if kind == extension::END {
                break;
            }
            let next = at.checked_add(8).and_then(|start| start.checked_add(len));
            let next = next.filter(|next| *next <= end).ok_or_else(outside)?;
            self.extensions.push((kind, head[at + 8..next].to_vec()));
            at = next.next_multiple_of(8);
        }
        Ok(())
    }

    fn take_extension(&mut self, kind: u32) -> Option<Vec<u8>> {
        let index = self.extensions.iter().position(|(of, _)| *of == kind)?;
        Some(self.extensions.remove(index).1)
    }

    /// Returns whether the image has dirty bitmaps, whose clusters are unknown here.
    pub(super) fn has_bitmaps(&self) -> bool {
        self.extensions.iter().any(|(kind, _)| *kind == extension::BITMAPS)
    }

    /// Returns the number of bytes in a cluster.
    pub(super) fn cluster_size(&self) -> u64 {
        1 << self.cluster_bits
    }

    /// Returns whether L2 entries are extended: 16 bytes for 32 subclusters.
    pub(super) fn has_subclusters(&self) -> bool {
        self.incompatible & incompatible::EXTENDED_L2 != 0
    }

    /// Returns log2 of the number of entries in an L2 table.
    pub(super) fn l2_bits(&self) -> u32 {
        self.cluster_bits - if self.has_subclusters() { 4 } else { 3 }
    }

    /// Returns the number of entries that an L1 table needs for a disk of `size` bytes.
    pub(super) fn l1_needed(&self, size: u64) -> u64 {
        size.div_ceil(1 << (self.cluster_bits + self.l2_bits()).min(63))
    }

    /// Returns log2 of the number of entries in a refcount block.
    pub(super) fn block_bits(&self) -> u32 {
        self.cluster_bits + 3 - self.refcount_order
    }

    /// Returns the numbers at the start, which lie in one sector and so are written at once.
    pub(super) fn encode_numbers(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(V3_LONG_LEN);
        bytes.extend(MAGIC.to_be_bytes());
        bytes.extend(self.version.to_be_bytes());
        let (at, len) = match &self.backing {
            Some(backing) => (self.name_offset() as u64, backing.name.len() as u32),
            None => (0, 0),
        };
        bytes.extend(at.to_be_bytes());
        bytes.extend(len.to_be_bytes());
        bytes.extend(self.cluster_bits.to_be_bytes());
        bytes.extend(self.size.to_be_bytes());
        bytes.extend(0_u32.to_be_bytes());
        bytes.extend(self.l1_entries.to_be_bytes());
        bytes.extend(self.l1_offset.to_be_bytes());
        bytes.extend(self.refcount_offset.to_be_bytes());
        bytes.extend(self.refcount_clusters.to_be_bytes());
        bytes.extend(self.snapshots.to_be_bytes());
        bytes.extend(self.snapshots_offset.to_be_bytes());
        if self.version == 3 {
            bytes.extend(self.incompatible.to_be_bytes());
            bytes.extend(self.compatible.to_be_bytes());
            bytes.extend(self.autoclear.to_be_bytes());
            bytes.extend(self.refcount_order.to_be_bytes());
            bytes.extend(self.length.to_be_bytes());
        }
        if self.length as usize >= V3_LONG_LEN {
            let kind = u8::from(self.compression == Compression::Zstd);
            bytes.extend([kind, 0, 0, 0, 0, 0, 0, 0]);
        }
        bytes
    }

    /// Returns the whole header, or None if it does not fit into a cluster.
    pub(super) fn encode(&self) -> Option<Vec<u8>> {
        let mut bytes = self.encode_numbers();
        // Fields that are unknown here are replaced by zeros, which they must allow since they are optional.
        bytes.resize(self.length as usize, 0);
        bytes.extend(self.encode_extensions());
        if let Some(backing) = &self.backing {
            bytes.extend(backing.name.as_bytes());
        }
        (bytes.len() as u64 <= self.cluster_size().min(HEAD_MAX)).then_some(bytes)
    }

    fn name_offset(&self) -> usize {
        self.length as usize + self.encode_extensions().len()
    }

    fn encode_extensions(&self) -> Vec<u8> {
        let format = self.backing.as_ref().and_then(|backing| backing.format.as_ref());
        let format = format.map(|format| (extension::BACKING_FORMAT, format.as_bytes()));
        let others = self.extensions.iter().map(|(kind, bytes)| (*kind, bytes.as_slice()));
        let mut all = Vec::new();
        for (kind, bytes) in format.into_iter().chain(others) {
            all.extend(kind.to_be_bytes());
            all.extend((bytes.len() as u32).to_be_bytes());
            all.extend(bytes);
            all.resize(all.len().next_multiple_of(8), 0);
        }
        all.extend([0; 8]);
        all
    }

    /// Returns the header of a new image without contents.
    pub(super) fn new(
        version: u32,
        cluster_bits: u32,
        refcount_order: u32,
        compression: Compression,
    ) -> Header {
        let zstd = compression == Compression::Zstd;
        let length = match version {
            2 => V2_LEN,
            _ if zstd => V3_LONG_LEN,
            _ => V3_LEN,
        };
        Header {
            version,
            backing: None,
            cluster_bits,
            size: 0,
            l1_entries: 0,
            l1_offset: 0,
            refcount_offset: 0,
            refcount_clusters: 0,
            snapshots: 0,
            snapshots_offset: 0,
            incompatible: if zstd { incompatible::COMPRESSION } else { 0 },
            compatible: 0,
            autoclear: 0,
            refcount_order,
            length: length as u32,
            compression,
            crypt: Crypt::None,
            extensions: if version == 3 { vec![feature_names()] } else { vec![] },
        }
    }
}

/// Returns the names of features, for programs that do not know them.
fn feature_names() -> (u32, Vec<u8>) {
    let names = [
        (0, 0, "dirty bit"),
        (0, 1, "corrupt bit"),
        (0, 2, "external data file"),
        (0, 3, "compression type"),
        (0, 4, "extended L2 entries"),
        (1, 0, "lazy refcounts"),
        (2, 0, "bitmaps"),
        (2, 1, "raw external data"),
    ];
    let mut bytes = Vec::new();
    for (kind, bit, name) in names {
        bytes.extend([kind, bit]);
        bytes.extend(name.as_bytes());
        bytes.resize(bytes.len().next_multiple_of(48), 0);
    }
    (extension::FEATURE_NAMES, bytes)
}
