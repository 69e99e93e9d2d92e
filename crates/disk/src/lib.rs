//! The back-ends of a machine's drives.
//!
//! Each of these is a [`Drive`](ring3_vm::drives::Drive), from which the machine reads and to which it writes
//! sectors:
//!
//! * [`ImageFile`]: a disk image of any format, or a block device of the host;
//! * [`Overlay`]: an image that does not change when the guest writes;
//! * [`ImageFile::introduced`]: a disk of a program to which such a server introduces the machine;
//! * [`Served`]: a disk of a vhost-user-blk server, such as `ring3 vblock`.
//!
//! The machine itself has only the drive without a medium, [`Empty`](ring3_vm::drives::Empty). The machine
//! decides which thread calls a drive, and when, and what happens after an error. Nothing here starts
//! threads, or waits for anything but the host and servers. Internally, `range` refuses operations that are
//! not possible with the medium.
#![forbid(unsafe_code)]

mod error;
mod image;
mod introduced;
mod options;
mod overlay;
mod range;
mod served;

pub use error::ImageError;
pub use image::ImageFile;
pub use options::{Access, BlockSize, ImageOptions};
pub use overlay::Overlay;
pub use ring3_vblock_client::ClientError;
pub use served::Served;
