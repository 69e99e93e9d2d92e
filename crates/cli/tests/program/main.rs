//! Tests of the whole program, most of them with real guests. They are one binary, so that few programs are
//! linked and no test waits for those of another file. Each module says what it tests.

mod support;

mod board;
mod boot_debian;
mod boot_loaders;
mod disks;
mod doctor;
mod documents;
mod driver;
mod encrypted;
mod errors;
mod firmware;
mod first_mistakes;
mod for_64_bits;
mod full_disk;
mod hotplug;
mod img;
mod img_interrupted;
mod img_lines;
mod img_room;
mod installer;
mod kernels;
mod libvirt;
mod limits;
mod links;
mod machine;
mod nat;
mod net;
mod peers;
mod provider;
mod pxe;
mod qemu;
mod qemu_lines;
mod qmp;
mod real_mode_kernels;
mod repetition;
mod screens;
mod snapshots;
mod suite;
mod switch;
mod terminal;
mod tern;
mod tern_compile;
mod vblock;
mod virtio;
