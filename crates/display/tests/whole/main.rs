//! The displays, and real clients of them. One program, so that the tests of all files run side by side.

mod support;
mod terminal;
mod vnc;
mod vnc_clients;
