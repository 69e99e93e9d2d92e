//! Starts a kernel without firmware, by whichever boot protocol it has.

use std::borrow::Cow;

use ring3_core::memory::Memory;
use ring3_x86::cpu::{Cpu, reg};
use ring3_x86::cpuid::Features;
use ring3_x86::segment::TableRegister;

use crate::acpi::PCI_WINDOW;
use crate::config::Kernel;
use crate::file_bytes::UnreadableFile;
use crate::kernel_file::{self, KernelFile};
use crate::linux::seed::SEED_LEN;
use crate::linux::{self, LinuxImage};
use crate::machine::VmError;
use crate::multiboot;

/// Puts `kernel` into memory, which has the ACPI tables already, and sets the processor to its start. Linux
/// gets `seed`. If the machine `has_display`, the kernel is told of the text screen.
pub(crate) fn start(
    cpu: &mut Cpu,
    memory: &mut Memory,
    kernel: &Kernel,
    rsdp: u64,
    seed: Option<&[u8; SEED_LEN]>,
    has_display: bool,
) -> Result<(), VmError> {
    let Kernel { image, modules, command_line } = kernel;
    for register in reg::AX..=reg::DI {
        cpu.set_gpr(register, 0);
    }
    if cpu.model.features().contains(Features::MTRR) {
        let address_bits = cpu.model.physical_address_bits();
        cpu.msrs.mtrrs.set_as_firmware_does(PCI_WINDOW.0, address_bits);
    }
    let image = image.get()?;
    let named = modules.iter().map(|module| Ok((module.name.as_str(), module.contents.get()?)));
    let modules = named.collect::<Result<Vec<_>, UnreadableFile>>()?;
    if kernel_file::recognize(image) == KernelFile::Multiboot {
        let entry = multiboot::load(memory, image, &modules, command_line, has_display)?;
        cpu.set_flat_entry(linux::BOOT_CS, linux::BOOT_DS, entry.eip);
        cpu.set_gpr(reg::AX, multiboot::BOOTED.into());
        cpu.set_gpr(reg::BX, entry.information.into());
        let limit = size_of_val(&multiboot::GDT) as u16 - 1;
        cpu.gdtr = TableRegister { base: entry.gdt_base.into(), limit };
        return Ok(());
    }
    let files: Vec<&[u8]> = modules.iter().map(|(_, contents)| *contents).collect();
    let initrd = initial_ram_disk(&files);
    let initrd = (!modules.is_empty()).then_some(&*initrd);
    let image = LinuxImage { kernel: image, initrd, command_line };
    let entry = linux::load(memory, &image, Some(rsdp))?;
    if let Some(seed) = seed {
        linux::seed::give(memory, seed)?;
    }
    if has_display {
        linux::screen_info::tell(memory)?;
    }
    cpu.set_flat_entry(entry.code_selector, entry.data_selector, entry.eip);
    cpu.set_gpr(reg::SI, entry.esi.into());
    cpu.gdtr = TableRegister { base: entry.gdt_base.into(), limit: entry.gdt_limit };
    Ok(())
}

/// Joins the files, each at a multiple of four bytes, as Linux expects them.
pub(crate) fn initial_ram_disk<'a>(files: &[&'a [u8]]) -> Cow<'a, [u8]> {
    if let [file] = files {
        return Cow::Borrowed(file);
    }
    let mut all = Vec::new();
    for file in files {
        all.resize(all.len().next_multiple_of(4), 0);
        all.extend_from_slice(file);
    }
    Cow::Owned(all)
}

/// Returns the number of bytes of files with these numbers of bytes that are joined in this way.
pub(crate) fn initial_ram_disk_len(files: impl Iterator<Item = usize>) -> usize {
    files.fold(0_usize, |len, file| len.next_multiple_of(4) + file)
}
