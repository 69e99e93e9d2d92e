//! Memory that comes and goes: `-device virtio-mem-pci`, with a memory backend that says how much there is room for.

use ring3_devices::virtio::memory::ExtraMemoryModel;

use super::properties::unknown;
use super::settings::ExtraMemory;
use super::{Properties, Reason, Translation, reason, set};
use crate::args::bytes_of;

/// A device of the command line, whose backend may come later.
#[derive(Debug)]
pub(super) struct Device {
    id: Option<String>,
    backend: String,
    requested: u64,
}

/// Reads a size, which is in bytes if it has no unit.
fn size(key: &str, value: &str) -> Result<u64, Reason> {
    let bytes = value.parse().ok().or_else(|| bytes_of(value));
    bytes.ok_or_else(|| format!("{key} is a size, as 512M or 2G"))
}

/// Notes the size of a memory backend of `-object`.
pub(super) fn backend(all: &mut Translation, properties: &mut Properties) -> Result<(), Reason> {
    let (Some(id), Some(bytes)) = (properties.take("id"), properties.take("size")) else {
        return Ok(());
    };
    all.memory_backends.push((id, size("size", &bytes)?));
    Ok(())
}

/// `-device virtio-mem-pci`.
pub(super) fn device(
    all: &mut Translation,
    _: &str,
    properties: &mut Properties,
) -> Result<(), Reason> {
    let (mut id, mut backend, mut requested) = (None, String::new(), 0);
    properties.for_each(|key, value| match key {
        "id" => set(&mut id, Some(value.to_owned())),
        "memdev" => set(&mut backend, value.to_owned()),
        "requested-size" => set(&mut requested, size(key, value)?),
        // Where the device is, and what makes no difference here: blocks have 2 MiB, and unplugged ones cannot be used.
        "addr"
        | "bus"
        | "block-size"
        | "dynamic-memslots"
        | "memaddr"
        | "node"
        | "prealloc"
        | "unplugged-inaccessible"
        | "disable-legacy"
        | "disable-modern" => Ok(()),
        _ => unknown(key, "id, memdev and requested-size"),
    })?;
    if backend.is_empty() {
        return reason(
            "the memory is missing: add memdev=ID, and -object memory-backend-ram,id=ID,size=SIZE",
        );
    }
    if all.memory_device.is_some() {
        return reason("a machine has one such device: give it a larger memory backend");
    }
    all.memory_device = Some(Device { id, backend, requested });
    Ok(())
}

/// Gives the device its memory. Returns the reason if that is impossible.
pub(super) fn finish(all: &mut Translation) -> Result<(), Reason> {
    let Some(Device { id, backend, requested }) = all.memory_device.take() else {
        if std::mem::take(&mut all.has_maxmem) {
            all.warn_of("-m maxmem", "memory comes later by -device virtio-mem-pci alone");
        }
        return Ok(());
    };
    let found = all.memory_backends.iter().find(|(known, _)| *known == backend);
    let Some((_, region)) = found else {
        return Err(format!(
            "there is no memory {backend}: add -object memory-backend-ram,id={backend},size=SIZE"
        ));
    };
    let model = ExtraMemoryModel { region: *region, requested };
    if !model.is_possible() {
        return reason(
            "sizes must be multiples of 2 MiB, and requested-size at most that of memdev",
        );
    }
    all.run.qemu.extra_memory = Some(ExtraMemory { model, id });
    Ok(())
}
