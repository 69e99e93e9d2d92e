//! What is behind the drives of a machine.
//!
//! Each of these is a [`Drive`](ring3_vm::drives::Drive), which the machine asks for sectors:
//!
//! * [`ImageFile`]: a disk image of any format, or a block device of the host;
//! * [`Overlay`]: an image that stays as it is while the guest writes;
//! * [`Served`]: a disk of a vhost-user-blk server, such as `ring3 vblock`.
//!
//! The machine itself has only the drive without a medium, [`Empty`](ring3_vm::drives::Empty). It decides which thread
//! asks, and when, and what becomes of errors; nothing here has threads or waits for anything but the host. Inside,
//! `range` refuses operations that no medium of that size can do.
#![forbid(unsafe_code)]

mod error;
mod image;
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
