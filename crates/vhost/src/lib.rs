//! The common parts of servers over vhost-user (QEMU's `docs/interop/vhost-user`): the session with a client,
//! the client's memory, and the virtqueues there.
//!
//! * [`conversation`]: a client's messages; [`session`]: their effects on a [`Device`](session::Device);
//! * [`memory`]: guest memory that a client shares by descriptors;
//! * [`queue`]: the description of a virtqueue;
//! * [`chain`]: the buffers of a virtqueue's entry;
//! * [`event`]: the descriptors by which both sides wake each other;
//! * [`block`]: the constants of disks, for servers and clients.
//!
//! Clients are hostile: memory that could become shorter while it is mapped is refused, and no chain makes
//! the server loop.
#![forbid(unsafe_code)]

pub mod block;
pub mod chain;
pub mod conversation;
pub mod event;
pub mod memory;
pub mod queue;
pub mod session;
