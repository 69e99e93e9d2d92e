//! Networks behind cards, and the switch. One program, so that the tests of all files run side by side.

mod networks;
mod switch;
