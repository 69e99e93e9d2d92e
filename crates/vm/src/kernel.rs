//! Starts a kernel without firmware, by whichever boot protocol it has.

use std::borrow::Cow;

use ring3_core::memory::Memory;
use ring3_x86::cpu::{Cpu, reg};
use ring3_x86::cpuid::Features;
use ring3_x86::segment::{Attributes, Segment, TableRegister};

use crate::acpi::PCI_WINDOW;
use crate::config::Kernel;
use crate::file_bytes::UnreadableFile;
use crate::kernel_file::{self, KernelFile};
use crate::linear_mode::LinearMode;
use crate::linux::seed::SEED_LEN;
use crate::linux::{self, LinuxImage};
use crate::machine::VmError;
use crate::memory_map::tell_end_of_low_ram;
use crate::multiboot2::{self, Given};
use crate::placing::GDT_LEN;
use crate::{multiboot, pvh};

/// Puts `kernel` into memory, which has the ACPI tables already, and sets the processor to its start. Linux
/// gets `seed`. If there is a display adapter, whose memory is at `video_memory`, the kernel is told of its screen.
/// Returns the mode in which that must be; without one it shows text.
pub(crate) fn start(
    cpu: &mut Cpu,
    memory: &mut Memory,
    kernel: &Kernel,
    rsdp: u64,
    seed: Option<&[u8; SEED_LEN]>,
    video_memory: Option<u32>,
) -> Result<Option<LinearMode>, VmError> {
    let has_display = video_memory.is_some();
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
    let files: Vec<&[u8]> = modules.iter().map(|(_, contents)| *contents).collect();
    let initrd = initial_ram_disk(&files);
    let initrd = (!modules.is_empty()).then_some(&*initrd);
    let mut mode = None;
    let (entry, ax) = match kernel_file::recognize(image) {
        KernelFile::Multiboot => {
            tell_end_of_low_ram(memory);
            let entry = multiboot::load(memory, image, &modules, command_line, has_display)?;
            (entry, multiboot::BOOTED)
        }
        KernelFile::Multiboot2 => {
            tell_end_of_low_ram(memory);
            let given = Given { modules: &modules, command_line, rsdp, video_memory };
            let (entry, asked) = multiboot2::load(memory, image, &given)?;
            mode = asked;
            (entry, multiboot2::BOOTED)
        }
        KernelFile::Elf => {
            let initrd = initrd.unwrap_or_default();
            (pvh::load(memory, image, initrd, command_line, rsdp)?, 0)
        }
        _ => {
            let image = LinuxImage { kernel: image, initrd, command_line };
            start_linux(cpu, memory, &image, rsdp, seed, has_display)?;
            return Ok(None);
        }
    };
    cpu.set_flat_entry(linux::BOOT_CS, linux::BOOT_DS, entry.eip);
    cpu.set_gpr(reg::AX, ax.into());
    cpu.set_gpr(reg::BX, entry.information.into());
    cpu.gdtr = TableRegister { base: entry.gdt_base.into(), limit: GDT_LEN as u16 - 1 };
    // As PVH wants it: a busy 32-bit TSS.
    cpu.tr = Segment::new(0, 0, TSS_LIMIT, Attributes(0x8b));
    Ok(mode)
}

/// The limit of a 32-bit TSS without an I/O permission map (SDM vol. 3, 8.2.2).
const TSS_LIMIT: u32 = 0x67;

/// Starts Linux by its boot protocol for PCs.
fn start_linux(
    cpu: &mut Cpu,
    memory: &mut Memory,
    image: &LinuxImage<'_>,
    rsdp: u64,
    seed: Option<&[u8; SEED_LEN]>,
    has_display: bool,
) -> Result<(), VmError> {
    let entry = linux::load(memory, image, Some(rsdp))?;
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
