//! Creation of images.

use super::Qcow2;
use super::header::{CLUSTER_BITS, Compression, HEAD_MAX, Header, LAZY_REFCOUNTS};
use super::refcounts::put;
use crate::encryption::Password;
use crate::error::{Fault, Result};
use crate::format::{BackingName, Driver};
use crate::preallocation::Preallocation;
use crate::storage::Storage;

/// The options of a new image.
#[derive(Debug, Clone)]
pub(crate) struct Qcow2Options {
    /// Number of bytes in a cluster: a power of 2 from 512 to 2 MiB.
    pub(crate) cluster_size: u64,
    /// Whether the image has version 2 ("compat=0.10").
    pub(crate) is_old: bool,
    /// Number of bits in a reference count: 1, 2, 4, ... 64.
    pub(crate) refcount_bits: u64,
    pub(crate) lazy_refcounts: bool,
    pub(crate) zstd: bool,
    pub(crate) backing: Option<BackingName>,
    /// The room that the image takes at once.
    pub(crate) preallocation: Preallocation,
}

impl Default for Qcow2Options {
    fn default() -> Qcow2Options {
        Qcow2Options {
            cluster_size: 64 << 10,
            is_old: false,
            refcount_bits: 16,
            lazy_refcounts: false,
            zstd: false,
            backing: None,
            preallocation: Preallocation::Off,
        }
    }
}

/// Makes an image of `size` bytes in `storage`, which is empty.
pub(crate) fn create(
    storage: Box<dyn Storage>,
    size: u64,
    options: &Qcow2Options,
) -> Result<Qcow2> {
    let bits = options.cluster_size.trailing_zeros();
    if !options.cluster_size.is_power_of_two() || !CLUSTER_BITS.contains(&bits) {
        return Err(Fault::refused("the cluster size must be a power of 2 from 512 to 2M"));
    }
    if !options.refcount_bits.is_power_of_two() || options.refcount_bits > 64 {
        return Err(Fault::refused("the refcount bits must be 1, 2, 4, 8, 16, 32 or 64"));
    }
    if options.preallocation != Preallocation::Off && options.backing.is_some() {
        return Err(Fault::refused(
            "an image with a backing file cannot be preallocated; give preallocation=off",
        ));
    }
    if options.is_old && (options.refcount_bits != 16 || options.lazy_refcounts || options.zstd) {
        return Err(Fault::refused(
            "compat=0.10 allows only 16 refcount bits, no lazy refcounts and no zstd; give compat=1.1",
        ));
    }
    let compression = if options.zstd { Compression::Zstd } else { Compression::Zlib };
    let version = if options.is_old { 2 } else { 3 };
    let order = options.refcount_bits.trailing_zeros();
    let mut header = Header::new(version, bits, order, compression);
    header.backing.clone_from(&options.backing);
    if options.lazy_refcounts {
        header.compatible |= LAZY_REFCOUNTS;
    }
    // First an image of no bytes: the header, the refcount table, one block with reference counts, and an L1
    // table. Then it grows to its size.
    let cluster = options.cluster_size;
    header.refcount_offset = cluster;
    header.refcount_clusters = 1;
    header.l1_offset = 3 * cluster;
    header.l1_entries = 1;
    if header.encode().is_none() {
        // Clusters of the smallest size have no room for the names of features.
        header.extensions.clear();
    }
    let head = header.encode();
    let head = head.ok_or_else(|| {
        Fault::refused("the name of the backing file does not fit into the header")
    })?;
    let mut block = vec![0; cluster as usize];
    for index in 0..4 {
        put(&mut block, index, order, 1);
    }
    let mut table = vec![0; cluster as usize];
    table[..8].copy_from_slice(&(2 * cluster).to_be_bytes());
    storage.set_size(4 * cluster)?;
    storage.write_at(&table, cluster)?;
    storage.write_at(&block, 2 * cluster)?;
    storage.write_at(&vec![0; cluster as usize], 3 * cluster)?;
    storage.flush()?;
    debug_assert!(head.len() as u64 <= HEAD_MAX);
    storage.write_at(&head, 0)?;
    let image = Qcow2::open(storage, true, Password::NotNeeded)?;
    if size > 0 {
        image.resize(size)?;
    }
    image.preallocate(0, options.preallocation)?;
    image.flush()?;
    Ok(image)
}
