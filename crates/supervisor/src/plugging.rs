//! Disks that come and go while a guest runs.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::broadcast::Receiver;
use tokio::time::timeout;

use crate::command::State;
use crate::definition::{Disk, Name};
use crate::error::Refusal;
use crate::supervisor::House;

/// How long a guest has for releasing a card.
const RELEASE: Duration = Duration::from_secs(2);

/// Plugs a disk, to which the machine has the right, into the machine if it runs.
pub(crate) async fn plug(house: &House, machine: &Name, disk: &Disk) -> Result<(), Refusal> {
    let part = house.part(machine)?;
    if !has_process(part.state()) || !disk.properties.is_empty() {
        return Ok(());
    }
    let (socket, id) = (house.place.part(machine).disk(disk), disk.id());
    let node = json!({
        "driver": "virtio-blk-vhost-user",
        "node-name": id,
        "path": socket,
        "read-only": !disk.is_writable,
    });
    part.ask("blockdev-add", node).await?;
    let card = json!({ "driver": "virtio-blk-pci", "id": id, "drive": id });
    let plugged = part.ask("device_add", card).await;
    if plugged.is_err() {
        let _ = part.ask("blockdev-del", json!({ "node-name": id })).await;
    }
    plugged.map(|_| ())
}

/// Takes a disk out of the machine, if it runs, and the right away.
pub(crate) async fn unplug(house: &House, machine: &Name, disk: &Disk) -> Result<(), Refusal> {
    let (part, id) = (house.part(machine)?, disk.id());
    if has_process(part.state()) {
        let events = house.events();
        // A machine has no card of this name if the disk is not on virtio; it loses the disk all the same.
        if part.ask("device_del", json!({ "id": id })).await.is_ok()
            && timeout(RELEASE, released(events, machine, &id)).await.is_ok()
        {
            // Disks of the machine's command line are not nodes.
            let _ = part.ask("blockdev-del", json!({ "node-name": id })).await;
        }
    }
    let right = json!({ "client": machine, "device": disk.device });
    house.part(&disk.server)?.ask("revoke", right).await.map(|_| ())
}

/// Waits until the guest has released a card.
async fn released(mut events: Receiver<String>, machine: &Name, id: &str) {
    loop {
        // A listener that is too slow waits for its time to be over.
        let Ok(event) = events.recv().await else { return std::future::pending().await };
        let event: Value = serde_json::from_str(&event).unwrap_or_default();
        let data = &event["data"];
        if event["event"] == "DEVICE_DELETED"
            && data["name"] == machine.as_str()
            && data["device"] == id
        {
            return;
        }
    }
}

fn has_process(state: State) -> bool {
    matches!(state, State::Running | State::Paused)
}
