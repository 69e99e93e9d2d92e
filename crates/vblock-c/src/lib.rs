//! A library for C programs that use the disks of a vblock server: the interface of the paper's libvblock
//! (J. Root, "Virtualising Darwin on L4", appendix A.1). `include/vblock.h` describes it.
//!
//! * [`interface`]: the functions that C calls, with all code that is unsafe;
//! * [`library`]: what they do; [`buffers`]: the buffers that C fills and reads.
//!
//! Requests and their data go over memory that this process shares with the server (`ring3_vblock_client`), so
//! each request copies its data once between a buffer and that memory. The server never sees the buffers.
#![deny(unsafe_code)]

mod buffers;
mod interface;
mod library;
