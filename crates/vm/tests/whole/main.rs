//! Whole machines: what they do on both engines, saved, repeated and compared. One program, so that the tests of
//! all files run side by side.

mod back;
mod engines;
mod exits;
mod guest_tools;
mod networks;
mod port_strings;
mod saved_machine;
mod support;
mod ticks;
mod verify;
