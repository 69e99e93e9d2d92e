//! Modules that the tests of this directory share.

#![allow(dead_code, unused_imports, reason = "no test needs all of it")]

pub(crate) mod anything;
pub(crate) mod assembler;
pub(crate) mod comparison;
pub(crate) mod coverage;
pub(crate) mod differences;
pub(crate) mod guest;
pub(crate) mod host_fpu;
pub(crate) mod kernel;
pub(crate) mod programs;
pub(crate) mod random;
pub(crate) mod series;
