//! How guest code becomes host code: blocks are translated here, kept, and found again.

pub(crate) mod block;
pub(crate) mod block_store;
pub(crate) mod branch_slots;
pub(crate) mod cache;
pub(crate) mod changing;
pub(crate) mod copy;
pub(crate) mod counters;
pub(crate) mod emitter;
pub(crate) mod flags;
pub(crate) mod frames;
pub(crate) mod parts;
pub(crate) mod segments;
pub(crate) mod strings;
