//! The server of disks and its clients, well-behaved and not. One program, so that the tests of all files run side by
//! side.

mod client;
mod lobby;
mod peers;
mod provider;
mod support;
mod vhost_user;
