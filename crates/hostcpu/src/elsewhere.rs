//! The runner of hosts on which instructions cannot be run.

use std::convert::Infallible;

use crate::{Layout, LongState, LongStop, Refused, State, Stop, Unavailable, refuse};

/// Runs instructions on the host's processor. On this kind of host no runner can be made.
pub struct Runner(Infallible);

impl Runner {
    /// Returns an error on this kind of host.
    pub fn new() -> Result<Self, Unavailable> {
        Err(Unavailable::NotX86Linux)
    }

    /// Returns where the regions lie.
    pub fn layout(&self) -> &'static Layout {
        match self.0 {}
    }

    /// Returns the contents of the data region.
    pub fn data(&self) -> &[u8] {
        match self.0 {}
    }

    /// Returns the contents of the data region, for changes.
    pub fn data_mut(&mut self) -> &mut [u8] {
        match self.0 {}
    }

    /// Returns the contents of the read-only region.
    pub fn read_only(&self) -> &[u8] {
        match self.0 {}
    }

    /// Returns the contents of the read-only region, for changes, which only the guest cannot make.
    pub fn read_only_mut(&mut self) -> &mut [u8] {
        match self.0 {}
    }

    /// Runs one instruction.
    pub fn run(&mut self, start: &State, code: &[u8]) -> Result<(State, Stop), Refused> {
        refuse::check(start.eip, code)?;
        match self.0 {}
    }

    /// Runs one instruction of 64-bit code.
    ///
    /// # Safety
    /// Nothing is ever run here.
    pub unsafe fn run_long(
        &mut self,
        start: &LongState,
        code: &[u8],
    ) -> Result<(LongState, LongStop), Refused> {
        let eip = u32::try_from(start.rip).map_err(|_| Refused::Place(start.rip as u32))?;
        refuse::check_long(eip, code)?;
        match self.0 {}
    }

    /// Runs a program.
    ///
    /// # Safety
    /// Nothing is ever run here.
    pub unsafe fn run_program(
        &mut self,
        start: &State,
        code: &[u8],
    ) -> Result<(State, Stop), Refused> {
        refuse::check_program(start.eip, code)?;
        match self.0 {}
    }
}
