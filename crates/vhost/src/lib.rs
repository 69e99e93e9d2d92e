//! What servers over vhost-user have in common (`docs/interop/vhost-user` of QEMU): a client's memory, and what stands in it.
//!
//! * [`memory`]: guest memory that a client shares by descriptors;
//! * [`chain`]: the buffers of a virtqueue's entry;
//! * [`event`]: the descriptors by which both sides wake each other.
//!
//! Clients are hostile: memory that could become shorter while it is mapped is refused, and no chain makes the server loop.
#![forbid(unsafe_code)]

pub mod chain;
pub mod event;
pub mod memory;
