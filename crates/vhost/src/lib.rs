//! What servers over vhost-user have in common (`docs/interop/vhost-user` of QEMU): its session with a client,
//! the client's memory, and what stands in it.
//!
//! * [`conversation`]: a client's messages; [`session`]: what they say of a [`Device`](session::Device);
//! * [`memory`]: guest memory that a client shares by descriptors;
//! * [`queue`]: what is said of a virtqueue;
//! * [`chain`]: the buffers of a virtqueue's entry;
//! * [`event`]: the descriptors by which both sides wake each other.
//!
//! Clients are hostile: memory that could become shorter while it is mapped is refused, and no chain makes the server loop.
#![forbid(unsafe_code)]

pub mod chain;
pub mod conversation;
pub mod event;
pub mod memory;
pub mod queue;
pub mod session;
