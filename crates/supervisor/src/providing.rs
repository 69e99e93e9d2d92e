//! Disks that programs and guests bring to servers of disks.
//!
//! A machine with the key [`provides`](crate::definition::Machine::provides) has a card whose network leads to the socket of
//! a provider of its own name, and nowhere else. So its guest can bring disks under that name alone. A machine that
//! uses such a disk starts when the disk is there.

use std::time::Duration;

use serde_json::json;
use tokio::time::sleep;

use crate::definition::{Definition, Disk, Machine, Name, Provider, providers_of};
use crate::error::Refusal;
use crate::granting::named;
use crate::part::{Order, Part};
use crate::place::provider_socket;
use crate::record::Wanted;
use crate::supervisor::House;

/// The interval at which a server is asked whether a disk is there.
const INTERVAL: Duration = Duration::from_millis(100);
/// Upper bound of the disks of a machine that its launcher has given it.
const GIVEN: usize = 16;

impl House {
    /// Returns the provider that brings the disk, if there is one.
    pub(crate) fn bringer(&self, disk: &Disk) -> Option<Name> {
        let provider = disk.provider()?;
        providers_of(&disk.server, &self.definitions()).contains_key(&provider).then_some(provider)
    }

    /// Lets servers listen for the machines that bring disks for `definition`, and starts these if `starts` is set.
    pub(crate) async fn call_providers(
        &self,
        definition: &Definition,
        starts: bool,
    ) -> Result<(), Refusal> {
        for provider in definition.providers(&self.definitions()) {
            let provider = self.part(&provider)?;
            if starts && provider.wanted.get() == Wanted::Ended {
                provider.answer(Order::Start).await?;
            }
            self.expect(&provider).await?;
        }
        Ok(())
    }

    /// Lets the server listen for the guest of this machine, if it brings disks there.
    pub(crate) async fn expect(&self, machine: &Part) -> Result<(), Refusal> {
        let all = self.definitions();
        let Definition::Machine(Machine { provides: Some(server), .. }) = &all[&machine.name]
        else {
            return Ok(());
        };
        let (name, part) = (&machine.name, self.part(server)?);
        let there = part.ask("query-providers", json!({})).await?;
        if named(&there, name).is_some() {
            return Ok(());
        }
        let provider = &providers_of(server, &all)[name];
        let Provider { reconnect_delay, .. } = provider;
        let provider = json!({
            "name": name,
            "socket": provider_socket(server, name, provider, &all, &self.place),
            "clients": provider.client_list(),
            "reconnect-delay": reconnect_delay,
        });
        part.ask("provider-start", provider).await.map(|_| ())
    }

    /// Waits until the disks of a machine are there that others bring.
    pub(crate) async fn wait_for_disks(&self, definition: &Definition) -> Result<(), Refusal> {
        for disk in definition.disks() {
            while !self.is_there(disk).await? {
                sleep(INTERVAL).await;
            }
        }
        Ok(())
    }

    /// Returns whether the disk is there, or will be as soon as its server runs.
    async fn is_there(&self, disk: &Disk) -> Result<bool, Refusal> {
        if self.bringer(disk).is_none() {
            return Ok(true);
        }
        let server = self.part(&disk.server)?;
        // A server that has just died is started again.
        let devices = server.ask("query-devices", json!({})).await.unwrap_or_default();
        Ok(named(&devices, &disk.device).is_some())
    }

    /// Refuses a disk that is not there.
    pub(crate) async fn must_be_there(&self, disk: &Disk) -> Result<(), Refusal> {
        if self.is_there(disk).await? {
            return Ok(());
        }
        Err(Refusal::Away { server: disk.server.clone(), device: disk.device.clone() })
    }

    /// Returns a disk that the guest of `provider` brings and calls `device`.
    pub(crate) fn brought(
        &self,
        provider: &Name,
        device: &Name,
        is_writable: bool,
    ) -> Result<Disk, Refusal> {
        let nothing = || Refusal::BringsNothing(provider.clone());
        let all = self.definitions();
        let Some(Definition::Machine(machine)) = all.get(provider) else { return Err(nothing()) };
        let server = machine.provides.clone().ok_or_else(nothing)?;
        let device = Name::try_from(format!("{provider}.{device}"))?;
        Ok(Disk { server, device, is_writable, properties: String::new() })
    }

    /// Refuses another disk for a machine that has got as many as it may.
    pub(crate) fn may_be_given(&self, machine: &Name, provider: &Name) -> Result<(), Refusal> {
        let part = self.part(machine)?;
        let definition = part.definition.borrow();
        let is_given = |disk: &&Disk| disk.provider().as_ref() == Some(provider);
        if definition.disks().iter().filter(is_given).count() < GIVEN {
            return Ok(());
        }
        Err(Refusal::TooManyDisks { machine: machine.clone(), limit: GIVEN })
    }
}
