//! The device models of a PC, one file a device, each named for its chip or its role.
//!
//! * [`pic`]: the two 8259A interrupt controllers;
//! * [`local_apic`]: the processor's own interrupt controller, with a timer;
//! * [`io_apic`]: the 82093AA, which brings the IRQ lines to local APICs;
//! * [`pit`]: the 8254 interval timer, and system control port B that goes with it;
//! * [`rtc`]: the MC146818 clock and its CMOS memory;
//! * [`hpet`]: the high precision event timer;
//! * [`dma8237`]: the two 8237A DMA controllers with their page registers;
//! * [`floppy`]: the 82077AA diskette controller with its drives;
//! * [`uart16550`]: a serial port;
//! * [`fpu_error`]: x87 errors as IRQ 13;
//! * [`i8042`]: the keyboard controller and the keyboard behind it;
//! * [`pci`]: PCI configuration space and configuration mechanism #1;
//! * [`pci_hotplug`]: cards that are put in and taken out while the machine runs;
//! * [`pci_serial`]: serial cards;
//! * [`i440fx`]: the host bridge, which says what is RAM below 1 MiB;
//! * [`flash`]: flash memory with the firmware and its variables;
//! * [`piix3`]: the ISA bridge with its router of PCI interrupts, and reset;
//! * [`acpi_pm`]: the power management function: power button, power management timer, soft-off;
//! * [`port92`]: system control port A;
//! * [`fw_cfg`]: what the machine tells its software;
//! * [`debug_ports`]: a console and an exit for those who work on firmware and systems;
//! * [`test_device`]: what kvm-unit-tests want of a machine;
//! * [`ide`]: the IDE function with its bus master, ATA disks and ATAPI CD-ROM drives;
//! * [`vga`]: the display adapter;
//! * [`nic`]: what network cards have in common;
//! * [`e1000`]: the 82540EM;
//! * [`ne2000`]: cards with a DP8390 on ISA, and the RTL8029AS on PCI;
//! * [`virtio`]: virtio devices on PCI, the disk and the network card among them.
//!
//! A device is a pure state machine over virtual time (see
//! [`ring3_core::device`]): the same model runs in a machine, in a unit test and in a
//! process of its own. It is written to be read next to the data sheet that its file
//! names. A board attaches devices to a bus; a test talks to one alone:
//!
//! ```
//! use ring3_core::device::TestBench;
//! use ring3_devices::pit::Pit;
//!
//! let (mut pit, mut bench) = (Pit::default(), TestBench::default());
//! // Counter 0, low byte only, mode 2, binary: one tick of IRQ 0 every 100 periods.
//! bench.write(&mut pit, 0x43, 0x14);
//! bench.write(&mut pit, 0x40, 100);
//! bench.irq.drain_changes();
//! bench.advance(&mut pit, 1_000_000); // 1193 periods of 1.193182 MHz
//! let rises = bench.irq.drain_changes().filter(|(_, high)| *high).count();
//! assert_eq!(rises, 11);
//! ```
#![forbid(unsafe_code)]

pub mod acpi_pm;
pub mod debug_ports;
pub mod dma8237;
pub mod e1000;
pub mod flash;
pub mod floppy;
pub mod fpu_error;
pub mod fw_cfg;
pub mod hpet;
pub mod i440fx;
pub mod i8042;
pub mod ide;
pub mod io_apic;
pub mod local_apic;
pub mod ne2000;
pub mod nic;
pub mod pci;
pub mod pci_hotplug;
pub mod pci_serial;
pub mod pic;
pub mod piix3;
pub mod pit;
pub mod port92;
pub mod pvpanic;
pub mod rtc;
pub mod test_device;
pub mod uart16550;
pub mod vga;
pub mod virtio;
pub mod vmgenid;

mod bytewise;
#[cfg(test)]
mod hammer;
