//! What distinguishes a machine from all others: seeds, addresses and the generation ID, made from random
//! numbers of the host.

use std::io;

use ring3_vm::linux::seed::SEED_LEN;
use ring3_vm::{Config, Identity};
use rustix::rand::{GetRandomFlags, getrandom};

use crate::args::RunArguments;
use crate::board::GenerationId;

/// Returns random bytes. getrandom(2) never returns a part of so few.
fn random<const LEN: usize>() -> io::Result<[u8; LEN]> {
    let mut bytes = [0; LEN];
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(bytes)
}

/// Returns the seed for the kernel: one made from the number on the command line, or a random one.
pub(crate) fn rng_seed(asked_for: Option<u64>) -> io::Result<[u8; SEED_LEN]> {
    let Some(number) = asked_for else { return random() };
    let mut seed = [0; SEED_LEN];
    seed[..8].copy_from_slice(&number.to_le_bytes());
    Ok(seed)
}

/// Returns the generation ID of a new machine, which `seed` determines if it is given.
pub(crate) fn generation(
    asked_for: GenerationId,
    seed: Option<u64>,
) -> io::Result<Option<[u8; 16]>> {
    Ok(match (asked_for, seed) {
        (GenerationId::Off, _) => None,
        (GenerationId::Number(number), _) => Some(number),
        (GenerationId::Auto, None) => Some(random()?),
        (GenerationId::Auto, Some(seed)) => Some(u128::from(seed).to_le_bytes()),
    })
}

/// Returns a new identity for a machine that continues with this configuration. Cards whose addresses are on
/// the command line get those.
pub(crate) fn new_identity(arguments: &RunArguments, config: &Config) -> io::Result<Identity> {
    let mut given = arguments.nics.cards().into_iter().map(|card| card.mac);
    let addresses = config.cards().map(|(_, nic)| {
        if let Some(address) = given.next().flatten() {
            return Ok(address);
        }
        // The first half says who has made the card.
        let mut address = nic.mac;
        address.0[3..].copy_from_slice(&random::<3>()?);
        Ok(address)
    });
    let addresses = addresses.collect::<io::Result<_>>()?;
    Ok(Identity { addresses, rng_seed: random()?, generation: random()? })
}
