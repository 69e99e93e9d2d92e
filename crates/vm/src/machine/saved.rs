//! A whole machine, saved and restored.

use std::fs::File;
use std::mem;
use std::sync::Arc;

use ring3_core::clock::Clock;
use ring3_core::device::DeviceId;
use ring3_core::input::{DeviceInput, Input};
use ring3_core::net::MacAddress;
use ring3_core::state::{RestoreError, SavedState};
use serde::{Deserialize, Serialize};

use crate::config::{Config, Software};
use crate::engines::EngineMaker;
use crate::file_bytes::FileBytes;
use crate::linux::seed::SEED_LEN;
use crate::machine::{Vm, VmError};

const STATE_NAME: &str = "machine";
const STATE_VERSION: u32 = 1;

/// Upper bound of the instructions of a run, so that counts which are added to them do not overflow.
const INSTRUCTIONS_MAX: u64 = u64::MAX / 2;

/// A machine between two instructions, with everything from which it continues: its configuration, the
/// software that it starts after a reset, processor, memory with its map, devices with their lines and
/// timers, and virtual time.
///
/// It does not contain the disks, with what was written there, inputs that wait at the door, and counters
/// that the guest does not see. It can be stored in any format of `serde`, such as CBOR.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SavedMachine {
    version: u32,
    config: Config,
    /// Kernel and RAM disk may be large, and machines only read them.
    #[serde(with = "shared")]
    software: Arc<Software>,
    cpu: SavedState,
    memory: SavedState,
    board: SavedState,
    clock: Clock,
    /// Number of resets, on which the random seed of the next start depends.
    resets: u64,
    is_off: bool,
    /// Requests to drives that were not answered, by device and tag. A machine with such can only repeat what a
    /// recording says.
    #[serde(default)]
    asked: Vec<(DeviceId, u64)>,
}

/// What distinguishes a machine from others that continue from the same saved state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The addresses of the network cards, in their order; cards beyond them keep theirs. Drivers read them
    /// when they start.
    pub addresses: Vec<MacAddress>,
    /// The seed for the kernel of later starts; see [`Config::rng_seed`].
    pub rng_seed: [u8; SEED_LEN],
    /// The generation ID, if the machine has one. The guest is told of it.
    pub generation: [u8; 16],
}

/// Stores what is shared as if it were not.
mod shared {
    use super::{Arc, Deserialize, Serialize, Software};

    pub(super) fn serialize<S: serde::Serializer>(
        software: &Arc<Software>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        software.as_ref().serialize(to)
    }

    pub(super) fn deserialize<'de, D: serde::Deserializer<'de>>(
        from: D,
    ) -> Result<Arc<Software>, D::Error> {
        Software::deserialize(from).map(Arc::new)
    }
}

impl SavedMachine {
    /// Returns the configuration of the machine.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the software that it starts after a reset.
    pub(crate) fn software(&self) -> &Software {
        &self.software
    }

    /// Returns the state of memory.
    pub(super) fn memory(&self) -> &SavedState {
        &self.memory
    }

    /// Takes out the kernel and its files, which may be large, for those who keep them elsewhere.
    /// [`SavedMachine::give_files`] puts them back.
    pub fn take_files(&mut self) -> Vec<FileBytes> {
        Arc::make_mut(&mut self.software).files().map(mem::take).collect()
    }

    /// Puts back what [`SavedMachine::take_files`] has taken out. Returns false and changes nothing if these
    /// are not as many files as the machine has.
    pub fn give_files(&mut self, files: Vec<FileBytes>) -> bool {
        let software = Arc::make_mut(&mut self.software);
        let fits = software.files().count() == files.len();
        if fits {
            software.files().zip(files).for_each(|(place, file)| *place = file);
        }
        fits
    }
}

impl Vm {
    /// Returns the state of the machine, which must not run: before [`Vm::run`] or [`Vm::replay`], or after
    /// it has ended by [`Ending::Quit`](crate::Ending::Quit).
    ///
    /// A machine that is made from it does the same as this one from here on, if it gets the same inputs. (A
    /// guest that continues to use translations of addresses that it should have invalidated may find them
    /// gone, as on any processor.)
    pub fn save(&mut self) -> SavedMachine {
        let memory = self.memory.save();
        self.save_with(memory)
    }

    /// Saves as [`Vm::save`] does, but without the contents of memory, which are kept elsewhere.
    pub fn save_without_contents(&mut self) -> SavedMachine {
        let memory = self.memory.save_without_contents();
        self.save_with(memory)
    }

    /// Lets `fill` set the contents of the memory of a machine that was saved without them: RAM, and behind
    /// it the memory of the display and the ROMs, as [`Moment::memory`](crate::control::Moment::memory) had
    /// them.
    pub fn fill_memory<T>(&mut self, fill: impl FnOnce(&mut [u8]) -> T) -> T {
        self.memory.change_contents(fill)
    }

    /// Returns the number of bytes of memory: RAM, the memory of the display and the ROMs.
    pub fn memory_len(&self) -> u64 {
        self.memory.all_contents().len() as u64
    }

    /// Sets the contents of memory as [`Vm::fill_memory`] does, to those that `file` has from `offset` on, a
    /// multiple of a page. They are read when they are first touched, so the file must stay as it is for as
    /// long as the machine exists. Returns false and changes nothing if the host cannot do so.
    pub fn take_memory_of(&mut self, file: &File, offset: u64) -> bool {
        self.memory.take_contents_of(file, offset)
    }

    fn save_with(&mut self, memory: SavedState) -> SavedMachine {
        SavedMachine {
            version: STATE_VERSION,
            config: self.config.clone(),
            software: Arc::clone(&self.software),
            cpu: self.save_processor(),
            memory,
            board: self.board.save(),
            clock: self.clock.clone(),
            resets: self.stats.resets,
            is_off: self.is_off,
            asked: self.asked(),
        }
    }

    /// Makes the saved machine again, to be run by `engine`. Its drives must be attached as they were, with
    /// the same contents.
    pub fn restore(saved: &SavedMachine, engine: impl EngineMaker) -> Result<Vm, VmError> {
        Vm::restore_as(saved, saved.config.clone(), engine)
    }

    /// Makes a machine that continues from `saved` as one of its own, with this identity.
    pub fn restore_with_identity(
        saved: &SavedMachine,
        identity: &Identity,
        engine: impl EngineMaker,
    ) -> Result<Vm, VmError> {
        let mut config = saved.config.clone();
        for (nic, address) in config.nics.iter_mut().flatten().zip(&identity.addresses) {
            nic.mac = *address;
        }
        config.rng_seed = Some(identity.rng_seed);
        let has_generation = config.generation.is_some();
        config.generation = config.generation.map(|_| identity.generation);
        let mut vm = Vm::restore_as(saved, config, engine)?;
        if has_generation {
            let input = DeviceInput::Generation(identity.generation);
            vm.take_input(Input::Device { device: DeviceId::VMGENID, input });
        }
        Ok(vm)
    }

    fn restore_as(
        saved: &SavedMachine,
        config: Config,
        engine: impl EngineMaker,
    ) -> Result<Vm, VmError> {
        if saved.version > STATE_VERSION {
            let (found, known) = (saved.version, STATE_VERSION);
            return Err(RestoreError::TooNew { name: STATE_NAME.to_owned(), found, known }.into());
        }
        let mut vm = Vm::assemble(config, Arc::clone(&saved.software), engine)?;
        vm.memory.restore(&saved.memory)?;
        vm.take_over(saved)?;
        Ok(vm)
    }

    /// Takes over everything except memory and its map, which must be those of `saved` already.
    pub(super) fn take_over(&mut self, saved: &SavedMachine) -> Result<(), VmError> {
        let SavedMachine { cpu, board, clock, .. } = saved;
        let damaged = |reason: &str| RestoreError::Damaged {
            name: STATE_NAME.to_owned(),
            reason: reason.to_owned(),
        };
        self.cpu.restore(cpu)?;
        if self.cpu.model != self.config.cpu {
            return Err(damaged("its processor is of another model").into());
        }
        if self.cpu.instructions > INSTRUCTIONS_MAX || clock.picos_per_instruction() == 0 {
            return Err(damaged("its time is not possible").into());
        }
        self.board.restore(board)?;
        self.clock = clock.clone();
        self.show_clock();
        self.stats.resets = saved.resets;
        self.is_off = saved.is_off;
        self.asked.clone_from(&saved.asked);
        Ok(())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::config::Kernel;
    use crate::engines::EngineChoice;
    use crate::linux::tests::kernel_of;
    use ring3_x86::cpu::Cpu;
    use ring3_x86::cpuid::Model;

    pub(in crate::machine) fn machine() -> Vm {
        let config = Config { memory_bytes: 32 << 20, ..Config::default() };
        let kernel = Kernel { image: kernel_of(&[0xf4]).into(), ..Kernel::default() };
        Vm::new(config, Software::Kernel(kernel)).unwrap()
    }

    fn saved() -> SavedMachine {
        machine().save()
    }

    #[test]
    fn a_saved_machine_is_restored() {
        let saved = saved();
        let mut vm = Vm::restore(&saved, EngineChoice::Interpreter).unwrap();
        assert!(vm.save() == saved);
        // It also has everything for a reset.
        let mut other = machine();
        for vm in [&mut vm, &mut other] {
            vm.reset().unwrap();
        }
        assert!(vm.save() == other.save());
    }

    #[test]
    fn impossible_states_are_refused() {
        let refused = |change: fn(&mut SavedMachine), part: &str| {
            let mut bad = saved();
            change(&mut bad);
            let error = Vm::restore(&bad, EngineChoice::Interpreter).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        };
        refused(|machine| machine.version += 1, "this program knows up to 1");
        refused(|machine| machine.config.memory_bytes = 64 << 20, "other memory");
        refused(|machine| machine.config.memory_bytes = 1, "guest memory must be");
        refused(|machine| machine.config.cpu = Model::I486, "another model");
        refused(|machine| machine.config.serial_ports = 0, "has no device com1");
        refused(|machine| machine.cpu = machine.board.clone(), "saved state of board, not of cpu");
        refused(
            |machine| {
                let mut cpu = Cpu::of_model(machine.config.cpu);
                cpu.instructions = u64::MAX;
                machine.cpu = cpu.save();
            },
            "its time is not possible",
        );
    }
}
