//! The rights of machines to disks.

use serde_json::{Value, json};

use crate::definition::{Definition, Disk, Machine, Name, clients_of};
use crate::error::Refusal;
use crate::place::client_socket;
use crate::supervisor::House;

impl House {
    /// Gives a machine the right to a disk at the server, if it does not have it yet.
    pub(crate) async fn grant(&self, machine: &Name, disk: &Disk) -> Result<(), Refusal> {
        let server = self.part(&disk.server)?;
        let (device, access) = (disk.device.as_str(), disk.access());
        let is_this = |right: &&Value| right["device"] == device;
        let there = if let Some(provider) = self.bringer(disk) {
            // The right is there also while the disk is not.
            let providers = server.ask("query-providers", json!({})).await?;
            let rights = named(&providers, &provider).map(|provider| &provider["rights"]);
            let rights = rights.and_then(Value::as_array).into_iter().flatten();
            rights.filter(|right| right["client"] == machine.as_str()).find(is_this).cloned()
        } else {
            let clients = server.ask("query-clients", json!({})).await?;
            let rights = named(&clients, machine).map(|client| &client["grants"]);
            rights.and_then(Value::as_array).into_iter().flatten().find(is_this).cloned()
        };
        match there {
            Some(right) if right["access"] == access => return Ok(()),
            Some(_) => {
                server.ask("revoke", json!({ "client": machine, "device": device })).await?;
            }
            None => {}
        }
        let socket = (!disk.is_direct()).then(|| self.place.part(machine).disk(disk));
        let right =
            json!({ "client": machine, "device": device, "access": access, "socket": socket });
        server.ask("grant", right).await.map(|_| ())
    }

    /// Gives a machine that uses a disk without the server in between a socket for that.
    pub(crate) async fn introduce(&self, machine: &Name, disk: &Disk) -> Result<(), Refusal> {
        let (all, server) = (self.definitions(), self.part(&disk.server)?);
        let clients = server.ask("query-clients", json!({})).await?;
        if named(&clients, machine).is_some_and(|client| client["devices-socket"].is_string()) {
            return Ok(());
        }
        let client = &clients_of(&disk.server, &all)[machine];
        let socket = client_socket(&disk.server, machine, client, &all, &self.place);
        let socket = json!({ "client": machine, "socket": socket });
        server.ask("client-socket-start", socket).await.map(|_| ())
    }

    /// Takes back what servers have for a machine that is forgotten. A server that does not run has nothing.
    pub(crate) async fn release(&self, machine: &Name, definition: &Definition) {
        for disk in definition.disks() {
            let Ok(server) = self.part(&disk.server) else { continue };
            let right = json!({ "client": machine, "device": disk.device });
            let _ = server.ask("revoke", right).await;
            if disk.is_direct() {
                let _ = server.ask("client-socket-stop", json!({ "client": machine })).await;
            }
        }
        if let Definition::Machine(Machine { provides: Some(server), .. }) = definition
            && let Ok(server) = self.part(server)
        {
            let _ = server.ask("provider-stop", json!({ "name": machine })).await;
        }
    }
}

/// Returns the element of a list that has this name.
pub(crate) fn named<'a>(list: &'a Value, name: &Name) -> Option<&'a Value> {
    list.as_array()?.iter().find(|element| element["name"] == name.as_str())
}
