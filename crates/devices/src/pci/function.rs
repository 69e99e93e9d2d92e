//! One function of a PCI device: its configuration registers, what answers at its base addresses, and its expansion ROM.
//!
//! A device model makes its [`Function`] with what its data sheet says of the registers, and passes configuration accesses on to it; where the
//! function's ports and memory are is claimed from the bus whenever software moves them (PCI Local Bus Specification 2.1, 6.2.5).

use ring3_core::bus::PortRange;
use ring3_core::device::{Context, Width};
use ring3_core::state::{RestoreError, SavedState};

use super::rom::{self, RomImage};
use super::{ConfigSpace, Identity, STATUS_ERRORS, command, registers};

/// Base address registers of a function (6.1).
const BASES: usize = 6;
/// The kind of a base address register for ports, and of one for memory that may be prefetched (6.2.5.1).
const PORTS: u8 = 1 << 0;
const PREFETCHABLE: u8 = 1 << 3;
/// The bits of such a register that are an address.
const PORT_ADDRESS: u32 = !0x3;
const MEMORY_ADDRESS: u32 = !0xf;

/// What answers at the address in a base address register.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Base {
    /// There is no such register, or the device maps its memory itself.
    #[default]
    Nothing,
    /// So many ports.
    Ports(u16),
    /// So many bytes of the device.
    Memory(u32),
}

/// See the module.
#[derive(Debug, Clone)]
pub(crate) struct Function {
    space: ConfigSpace,
    /// The registers after a reset.
    after_reset: ConfigSpace,
    /// By the number of the base address register, which is that of the claimed region, too.
    bases: [Base; BASES],
    rom: Option<RomImage>,
}

/// How a device model makes its function.
impl Function {
    /// A function with that identity, of which all other registers are 0 and read-only.
    pub(crate) fn new(identity: Identity) -> Function {
        let space = ConfigSpace::new(identity);
        Function { after_reset: space.clone(), space, bases: [Base::Nothing; BASES], rom: None }
    }

    fn with(mut self, change: impl FnOnce(&mut ConfigSpace)) -> Function {
        change(&mut self.space);
        self.after_reset = self.space.clone();
        self
    }

    /// Gives the registers from `offset` on these values after a reset.
    #[must_use]
    pub(crate) fn fixed(self, offset: u8, values: &[u8]) -> Function {
        self.with(|space| space.set(offset, values))
    }

    /// Lets software write those bits of the registers from `offset` on that are 1 in `masks`.
    #[must_use]
    pub(crate) fn writable(self, offset: u8, masks: &[u8]) -> Function {
        self.with(|space| space.make_writable(offset, masks))
    }

    /// Lets software clear those bits of the registers from `offset` on that are 1 in `masks`, by writing ones to them.
    #[must_use]
    pub(crate) fn clearable(self, offset: u8, masks: &[u8]) -> Function {
        self.with(|space| space.make_clearable(offset, masks))
    }

    /// Lets software write those `bits` of the command register ([`command`]).
    #[must_use]
    pub(crate) fn command(self, bits: u32) -> Function {
        self.writable(registers::COMMAND, &(bits as u16).to_le_bytes())
    }

    /// Sets those `bits` of the status register for good; those that note errors are cleared by ones.
    #[must_use]
    pub(crate) fn status(self, bits: u16) -> Function {
        self.fixed(registers::STATUS, &bits.to_le_bytes())
            .clearable(registers::STATUS, &[0, STATUS_ERRORS])
    }

    /// Gives it subsystem IDs.
    #[must_use]
    pub(crate) fn subsystem(self, vendor: u16, device: u16) -> Function {
        let ids = [vendor, device].map(u16::to_le_bytes);
        self.fixed(registers::SUBSYSTEM_VENDOR, ids.as_flattened())
    }

    /// Lets it interrupt by INTA#.
    #[must_use]
    pub(crate) fn interrupt(self) -> Function {
        self.fixed(registers::INTERRUPT_PIN, &[1]).writable(registers::INTERRUPT_LINE, &[0xff])
    }

    fn base(self, number: u8, len: u64, kind: u8) -> Function {
        let offset = base_register(number);
        let bits = (len.next_power_of_two() as u32).wrapping_neg();
        self.fixed(offset, &[kind]).writable(offset, &bits.to_le_bytes())
    }

    /// Gives it `len` ports by base address register `number`; a power of two.
    #[must_use]
    pub(crate) fn ports(mut self, number: u8, len: u16) -> Function {
        self.bases[usize::from(number)] = Base::Ports(len);
        self.base(number, len.into(), PORTS)
    }

    /// Gives it `len` bytes of memory, a power of two, that the device answers for.
    #[must_use]
    pub(crate) fn memory(mut self, number: u8, len: u32) -> Function {
        self.bases[usize::from(number)] = Base::Memory(len);
        self.base(number, len.into(), 0)
    }

    /// Gives it at least `len` bytes of memory that may be prefetched, and that the device itself maps at [`Function::memory_address`].
    #[must_use]
    pub(crate) fn mapped_memory(self, number: u8, len: u64) -> Function {
        self.base(number, len, PREFETCHABLE)
    }

    /// Gives it a ROM of at least `len` bytes that the device itself maps at [`Function::rom_address`].
    #[must_use]
    pub(crate) fn mapped_rom(self, len: u64) -> Function {
        let len = len.next_power_of_two().max(rom::LEAST as u64) as u32;
        let bits = len.wrapping_neg() | rom::ENABLE;
        self.writable(registers::EXPANSION_ROM, &bits.to_le_bytes())
    }

    /// Gives it a ROM, whichever function that was made for.
    #[must_use]
    pub(crate) fn with_rom(mut self, rom: Option<RomImage>) -> Function {
        self.rom = rom.map(|rom| rom.of_function(&self.space));
        match self.rom.clone() {
            Some(rom) => self.with(|space| rom.add_register(space)),
            None => self,
        }
    }
}

/// What it does in a machine.
impl Function {
    /// Gives all registers the values that they have after a reset. The device [claims](Function::claim) what they say then.
    pub(crate) fn reset(&mut self) {
        self.space = self.after_reset.clone();
    }

    /// The `width` at `offset`; FFh past the end.
    pub(crate) fn read(&self, offset: u8, width: Width) -> u32 {
        self.space.read(offset, width)
    }

    /// Software writes `value` of `width` at `offset`, and may have moved what the function answers for.
    pub(crate) fn write(
        &mut self,
        context: &mut Context<'_>,
        offset: u8,
        width: Width,
        value: u32,
    ) {
        self.space.write(offset, width, value);
        self.claim(context);
    }

    /// Gives the registers from `offset` on these values, as the hardware itself does.
    pub(crate) fn set(&mut self, offset: u8, values: &[u8]) {
        self.space.set(offset, values);
    }

    /// Claims the ports and addresses that the registers say.
    pub(crate) fn claim(&self, context: &mut Context<'_>) {
        for (region, base) in (0..).zip(self.bases) {
            match base {
                Base::Nothing => {}
                Base::Ports(len) => match self.first_port(region) {
                    Some(first) => context.claim_ports(region, PortRange::new(first, len)),
                    None => context.release(region),
                },
                Base::Memory(len) => {
                    self.space.claim_memory(context, region, base_register(region), len.into());
                }
            }
        }
        if let Some(rom) = &self.rom {
            rom.claim(&self.space, context);
        }
    }

    /// True if all `bits` of the command register are set ([`command`]).
    pub(crate) fn may(&self, bits: u32) -> bool {
        self.read(registers::COMMAND, Width::Word) & bits == bits
    }

    /// The address in base address register `number`, whether the function answers there or not.
    fn address(&self, number: u8) -> u32 {
        let is_ports = matches!(self.bases[usize::from(number)], Base::Ports(_));
        let bits = if is_ports { PORT_ADDRESS } else { MEMORY_ADDRESS };
        self.read(base_register(number), Width::Dword) & bits
    }

    /// The first port by base address register `number`, if the function answers there; 0 means that it has none yet (6.2.5.1).
    fn first_port(&self, number: u8) -> Option<u16> {
        let first = u16::try_from(self.address(number)).ok().filter(|first| *first != 0);
        first.filter(|_| self.may(command::IO))
    }

    /// How far `port` is from the first one of base address register `number`.
    pub(crate) fn port_offset(&self, number: u8, port: u16) -> u16 {
        port.wrapping_sub(self.address(number) as u16)
    }

    /// The memory address by base address register `number`, if the function answers there.
    pub(crate) fn memory_address(&self, number: u8) -> Option<u32> {
        self.space.memory_address(base_register(number))
    }

    /// The memory address of the ROM, if it is enabled and the function answers there.
    pub(crate) fn rom_address(&self) -> Option<u32> {
        let is_enabled = self.read(registers::EXPANSION_ROM, Width::Dword) & rom::ENABLE != 0;
        self.space.memory_address(registers::EXPANSION_ROM).filter(|_| is_enabled)
    }

    /// What software reads at `offset` of the ROM; ones where there is none.
    pub(crate) fn read_rom(&self, offset: u64, width: Width) -> u32 {
        self.rom.as_ref().map_or(width.mask(), |rom| rom.read(offset, width))
    }

    /// The registers for a saved state.
    pub(crate) fn save(&self) -> Vec<u8> {
        self.space.save()
    }

    /// This function with the registers from the state `saved` of its device.
    ///
    /// # Errors
    /// When registers differ that software cannot change.
    pub(crate) fn restored(
        &self,
        saved: &SavedState,
        registers: &[u8],
    ) -> Result<Function, RestoreError> {
        let mut function = self.clone();
        function.reset();
        if function.space.restore(registers) {
            Ok(function)
        } else {
            Err(saved.damaged("a read-only PCI register differs"))
        }
    }
}

/// The offset of base address register `number`.
pub(crate) const fn base_register(number: u8) -> u8 {
    registers::BASE_ADDRESS + 4 * number
}

#[cfg(test)]
mod tests {
    use ring3_core::bus::Decoded;
    use ring3_core::device::TestBench;

    use super::*;

    fn function() -> Function {
        Function::new(Identity { vendor: 1, device: 2, revision: 3, class: 0x020000 })
            .command(command::IO | command::MEMORY)
            .ports(1, 32)
            .memory(4, 0x1000)
            .mapped_memory(5, 0x1800)
    }

    /// What the regions of the bases and of the ROM were claimed with last.
    fn claims(bench: &TestBench) -> [Option<Decoded>; 2] {
        [1, 4].map(|region| {
            let last = bench.claims.iter().rfind(|claim| claim.region == region);
            last.map(|claim| claim.decoded)
        })
    }

    #[test]
    fn a_function_answers_at_the_addresses_in_its_registers() {
        let (mut bench, mut function) = (TestBench::default(), function());
        let mut write = |function: &mut Function, offset, value| {
            function.write(&mut bench.context(), offset, Width::Dword, value);
            claims(&bench)
        };
        let nothing = Some(Decoded::Nothing);
        let ports = Some(Decoded::Ports(PortRange::new(0xc000, 32)));
        let memory = Some(Decoded::Memory { start: 0xfeb0_0000, len: 0x1000 });
        assert_eq!(write(&mut function, base_register(1), 0xc01f), [nothing; 2]);
        assert_eq!(write(&mut function, base_register(4), 0xfeb0_0fff), [nothing; 2]);
        for (bits, claims) in [(1, [ports, nothing]), (2, [nothing, memory]), (3, [ports, memory])]
        {
            assert_eq!(write(&mut function, registers::COMMAND, bits), claims);
        }
        assert_eq!(function.port_offset(1, 0xc007), 7);
        assert_eq!(function.memory_address(5), None, "it has no address yet");
        write(&mut function, base_register(5), u32::MAX);
        assert_eq!(function.memory_address(5), Some(0xffff_e000), "it has two pages");
        // Software knows by the low bits what is there (6.2.5.1).
        let kinds = [1, 4, 5].map(|number| function.read(base_register(number), Width::Byte) & 0xf);
        assert_eq!(kinds, [1, 0, 8]);
        function.reset();
        function.claim(&mut bench.context());
        assert_eq!(claims(&bench), [nothing; 2]);
    }

    #[test]
    fn a_state_of_another_function_is_refused() {
        let saved = SavedState::new("card", 1, &());
        let mut other = function().ports(0, 8);
        other.write(&mut TestBench::default().context(), base_register(0), Width::Dword, 0xc000);
        assert!(function().restored(&saved, &other.save()).is_err());
        let restored = other.restored(&saved, &other.save()).unwrap();
        assert_eq!(restored.save(), other.save());
    }
}
