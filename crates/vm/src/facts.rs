//! The facts that the machine tells its software by fw_cfg, whether that is firmware or not. Keys and names
//! are QEMU's, since software for emulators knows those (QEMU, docs/specs/fw_cfg.rst).

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use ring3_core::memory::RamLayout;
use ring3_devices::fw_cfg::{FILES_MAX, FwCfg, NAME_LEN, key};
use tracing::error;

use crate::acpi;
use crate::cards::nic_slot;
use crate::cards::virtio_disk_slot;
use crate::config::{BootDevice, Config, ConfigError, Kernel, Software};
use crate::file_bytes::FileBytes;
use crate::kernel;
use crate::linux::by_firmware;
use crate::machine::VmError;
use crate::multiboot;
use crate::smbios;

/// Types of the ranges in the memory map (ACPI 6.5, 15).
const E820_RAM: u32 = 1;

/// Returns the facts about the machine of `config`, which starts with `software`.
pub(crate) fn describe(config: &Config, software: &Software) -> Result<FwCfg, VmError> {
    let mut fw_cfg = FwCfg::default();
    fw_cfg.set(key::UUID, config.uuid.unwrap_or_default().to_vec());
    fw_cfg.set(key::MEMORY_SIZE, config.memory_bytes.to_le_bytes().to_vec());
    fw_cfg.set(key::NO_DISPLAY, u16::from(!config.display).to_le_bytes().to_vec());
    fw_cfg.set(key::PROCESSORS, 1u16.to_le_bytes().to_vec());
    fw_cfg.set(key::MAX_PROCESSORS, 1u16.to_le_bytes().to_vec());
    fw_cfg.set(key::BOOT_MENU, u16::from(config.boot_menu).to_le_bytes().to_vec());
    fw_cfg.set(key::IRQ0_OVERRIDE, vec![u8::from(config.has_apics())]);
    let mut map = Vec::new();
    for range in RamLayout::of(config.memory_bytes).ranges().iter().filter(|it| !it.is_empty()) {
        map.extend(range.start.to_le_bytes());
        map.extend((range.end - range.start).to_le_bytes());
        map.extend(E820_RAM.to_le_bytes());
    }
    fw_cfg.add_file("etc/e820", map);
    if software.kernel().is_none() && software.any_kernel().is_some() {
        fw_cfg.add_file("bootorder", format!("{KERNEL_ROM_BOOTS}\0").into_bytes());
    } else if !config.boot_once.is_empty() {
        let (once, then) = (boot_order(&config.boot_once), boot_order(&config.boot_order));
        fw_cfg.add_changing_file("bootorder", once, then);
    } else if !config.boot_order.is_empty() {
        fw_cfg.add_file("bootorder", boot_order(&config.boot_order));
    }
    acpi::give_to_firmware(&mut fw_cfg, config);
    smbios::give_to_firmware(&mut fw_cfg, config)?;
    if let Some(kernel) = software.any_kernel() {
        tell_of_kernel(&mut fw_cfg, config, software, kernel)?;
    }
    if config.note {
        fw_cfg.add_note();
    }
    for (count, file) in config.fw_cfg_files.iter().enumerate() {
        let name = &file.name;
        if name.is_empty() || name.len() >= NAME_LEN || name.contains('\0') {
            return Err(ConfigError::FwCfgName(name.clone()).into());
        }
        if fw_cfg.has_file(name) {
            return Err(ConfigError::FwCfgTwice(name.clone()).into());
        }
        if count >= FILES_MAX / 2 {
            return Err(ConfigError::FwCfgFiles(config.fw_cfg_files.len()).into());
        }
        fw_cfg.add_file(name, file.contents.clone());
    }
    Ok(fw_cfg)
}

/// A part of the kernel's file, which fw_cfg shares with the machine.
struct KernelPart {
    image: FileBytes,
    range: Range<usize>,
}

impl AsRef<[u8]> for KernelPart {
    fn as_ref(&self) -> &[u8] {
        read(&self.image).get(self.range.clone()).unwrap_or_default()
    }
}

/// The initial RAM disk, which is joined when the guest first reads it.
struct InitialRamDisk {
    files: Vec<FileBytes>,
    joined: OnceLock<Vec<u8>>,
}

impl AsRef<[u8]> for InitialRamDisk {
    fn as_ref(&self) -> &[u8] {
        if let [file] = &*self.files {
            return read(file);
        }
        self.joined.get_or_init(|| {
            let files: Vec<_> = self.files.iter().map(read).collect();
            kernel::initial_ram_disk(&files).into_owned()
        })
    }
}

/// Returns the bytes of a file. The guest finds none if they cannot be read any more.
fn read(file: &FileBytes) -> &[u8] {
    file.get().unwrap_or_else(|error| {
        error!("the guest does not find its files in fw_cfg: {error}");
        &[]
    })
}

/// The name of the ROM that starts a kernel, as SeaBIOS calls it in its boot order.
const KERNEL_ROM: &str = "genroms/kernel.bin";
const KERNEL_ROM_BOOTS: &str = "/rom@genroms/kernel.bin";

/// Adds a Linux kernel, its initial RAM disk and its command line. With firmware it also adds what SeaBIOS
/// needs to start the kernel.
fn tell_of_kernel(
    fw_cfg: &mut FwCfg,
    config: &Config,
    software: &Software,
    kernel: &Kernel,
) -> Result<(), VmError> {
    let command_line = [kernel.command_line.as_bytes(), &[0]].concat();
    fw_cfg.set(key::COMMAND_LINE_SIZE, number(command_line.len()));
    fw_cfg.set(key::COMMAND_LINE_DATA, command_line);
    let has_firmware = software.kernel().is_none();
    let Kernel { image, modules, command_line } = kernel;
    let start = image.start()?;
    if !has_firmware && multiboot::is_multiboot(&start) {
        return Ok(());
    }
    let files: Vec<_> = modules.iter().map(|module| module.contents.clone()).collect();
    let initrd_len = kernel::initial_ram_disk_len(files.iter().map(FileBytes::len));
    let (image_len, ram) = (image.len(), RamLayout::of(config.memory_bytes).low());
    let planned = by_firmware::plan(&start, image_len as u64, initrd_len as u64, command_line, ram);
    let plan = match planned {
        Ok(plan) => plan,
        Err(error) if has_firmware => return Err(error.into()),
        // If the kernel is started without firmware, loading it reports the error.
        Err(_) => return Ok(()),
    };
    let code_len = image_len - plan.code_start;
    if has_firmware {
        let rom = by_firmware::rom(&plan, code_len as u32, initrd_len as u32);
        fw_cfg.add_file(KERNEL_ROM, rom);
    }
    fw_cfg.set(key::SETUP_ADDRESS, plan.setup_address.to_le_bytes().to_vec());
    fw_cfg.set(key::SETUP_SIZE, number(plan.setup.len()));
    fw_cfg.set(key::SETUP_DATA, plan.setup);
    fw_cfg.set(key::COMMAND_LINE_ADDRESS, plan.command_line_address.to_le_bytes().to_vec());
    fw_cfg.set(key::KERNEL_ADDRESS, plan.code_address.to_le_bytes().to_vec());
    fw_cfg.set(key::KERNEL_SIZE, number(code_len));
    let (image, range) = (image.clone(), plan.code_start..image_len);
    fw_cfg.share(key::KERNEL_DATA, Arc::new(KernelPart { image, range }));
    fw_cfg.set(key::INITRD_ADDRESS, plan.initrd_address.to_le_bytes().to_vec());
    fw_cfg.set(key::INITRD_SIZE, number(initrd_len));
    let initrd = InitialRamDisk { files, joined: OnceLock::new() };
    fw_cfg.share(key::INITRD_DATA, Arc::new(initrd));
    Ok(())
}

/// Returns a number as four bytes.
fn number(value: usize) -> Vec<u8> {
    (value as u32).to_le_bytes().to_vec()
}

/// Returns the order in which firmware looks for a system, in the names of Open Firmware that SeaBIOS uses.
fn boot_order(devices: &[BootDevice]) -> Vec<u8> {
    let names = devices.iter().map(|device| match device {
        BootDevice::Diskette(unit) => format!("/pci@i0cf8/isa@1/fdc@03f0/floppy@{unit}"),
        BootDevice::Ide(unit) => format!("/pci@i0cf8/ide@1,1/drive@{}/disk@{}", unit / 2, unit % 2),
        // Named by the class of the function. The number is hexadecimal.
        BootDevice::Virtio(unit) => {
            format!("/pci@i0cf8/scsi@{:x}/disk@0,0", virtio_disk_slot(*unit))
        }
        BootDevice::Network(card) => format!("/pci@i0cf8/ethernet@{:x}", nic_slot(*card)),
    });
    let mut text = names.collect::<Vec<_>>().join("\n");
    text.push('\0');
    text.into_bytes()
}

#[cfg(test)]
mod tests {
    use ring3_core::device::{Device, TestBench, Width};

    use super::*;
    use crate::config::{FwCfgFile, Module};

    /// Returns the item of a key, as a guest reads it.
    fn item(fw_cfg: &mut FwCfg, key: u16, len: usize) -> Vec<u8> {
        let mut bench = TestBench::default();
        fw_cfg.write_port(&mut bench.context(), 0x510, Width::Word, key.into());
        (0..len).map(|_| bench.read(fw_cfg, 0x511)).collect()
    }

    fn started_with(kernel: Kernel) -> FwCfg {
        describe(&Config::default(), &Software::Kernel(kernel)).unwrap()
    }

    #[test]
    fn a_guest_without_firmware_finds_the_items_of_kvm_unit_tests() {
        let mut fw_cfg = started_with(Kernel { image: vec![0xf4].into(), ..Kernel::default() });
        assert_eq!(item(&mut fw_cfg, key::PROCESSORS, 2), [1, 0]);
        assert_eq!(item(&mut fw_cfg, key::MAX_PROCESSORS, 2), [1, 0]);
        assert_eq!(item(&mut fw_cfg, key::MEMORY_SIZE, 8), (128u64 << 20).to_le_bytes());
    }

    #[test]
    fn the_kernel_and_its_files_are_items() {
        let image = crate::linux::tests::kernel_of(&[0xcc; 32]);
        let module =
            |contents: &[u8]| Module { name: "m".into(), contents: contents.to_vec().into() };
        let kernel = Kernel {
            image: image.clone().into(),
            modules: vec![module(b"disk")],
            command_line: "quiet".into(),
        };
        let mut fw_cfg = started_with(kernel.clone());
        assert_eq!(item(&mut fw_cfg, key::SETUP_SIZE, 4), 1024u32.to_le_bytes());
        assert_eq!(item(&mut fw_cfg, key::SETUP_DATA, 0x210), image[..0x210]);
        assert_eq!(item(&mut fw_cfg, key::KERNEL_SIZE, 4), 32u32.to_le_bytes());
        assert_eq!(item(&mut fw_cfg, key::KERNEL_DATA, 33), [&[0xcc; 32][..], &[0]].concat());
        assert_eq!(item(&mut fw_cfg, key::INITRD_SIZE, 4), 4u32.to_le_bytes());
        assert_eq!(item(&mut fw_cfg, key::INITRD_DATA, 4), *b"disk");
        assert_eq!(item(&mut fw_cfg, key::COMMAND_LINE_SIZE, 4), 6u32.to_le_bytes());
        assert_eq!(item(&mut fw_cfg, key::COMMAND_LINE_DATA, 6), *b"quiet\0");

        let modules = vec![module(b"one"), module(b"two")];
        let mut fw_cfg = started_with(Kernel { modules, ..kernel });
        assert_eq!(item(&mut fw_cfg, key::INITRD_DATA, 7), *b"one\0two");
    }

    #[test]
    fn files_of_the_user_with_impossible_names_are_refused() {
        let with = |names: &[&str]| {
            let file = |name: &&str| FwCfgFile { name: (*name).to_owned(), contents: vec![1] };
            let fw_cfg_files = names.iter().map(file).collect();
            let config = Config { fw_cfg_files, ..Config::default() };
            describe(&config, &Software::Kernel(Kernel::default()))
        };
        assert!(with(&["opt/a", "opt/b"]).is_ok_and(|fw_cfg| fw_cfg.has_file("opt/b")));
        assert!(with(&[&"x".repeat(NAME_LEN - 1)]).is_ok());
        for name in ["", "a\0b", &"x".repeat(NAME_LEN)] {
            let error = with(&[name]).unwrap_err();
            assert!(matches!(error, VmError::Config(ConfigError::FwCfgName(_))), "{error}");
        }
        for names in [&["opt/a", "opt/a"][..], &["etc/e820"]] {
            let error = with(names).unwrap_err();
            assert!(matches!(error, VmError::Config(ConfigError::FwCfgTwice(_))), "{error}");
        }
    }

    #[test]
    fn firmware_learns_the_boot_order_by_the_places_of_drives() {
        let order = [
            BootDevice::Ide(3),
            BootDevice::Virtio(12),
            BootDevice::Network(1),
            BootDevice::Diskette(0),
        ];
        let expected = "/pci@i0cf8/ide@1,1/drive@1/disk@1\n\
                        /pci@i0cf8/scsi@10/disk@0,0\n\
                        /pci@i0cf8/ethernet@14\n\
                        /pci@i0cf8/isa@1/fdc@03f0/floppy@0\0";
        assert_eq!(boot_order(&order), expected.as_bytes());
    }
}
