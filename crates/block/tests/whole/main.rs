//! All formats of images, beside the programs that made them, after power cuts, and in hostile hands. One program, so
//! that the tests of all files run side by side.

mod external;
mod formats;
mod full_disk;
mod host_files;
mod malformed;
mod nbd;
mod only_read;
mod power_cuts;
mod qcow2;
mod support;
mod vhdx_parents;
