//! The tests. Other engines run them too, with a module `engine` of their own.

mod a20;
mod access_prevention;
mod alignment;
mod breakpoints;
mod call_gates;
mod code;
mod deadlines;
mod exits;
mod far_transfers;
mod fast_calls;
mod gates;
mod guest_tools;
mod interrupts;
mod models;
mod modes;
mod msrs;
mod numeric_errors;
mod pae;
mod paging;
mod segments;
mod stepping;
mod system_calls;
mod tables;
mod tasks;
mod translation;
mod virtual_8086;
