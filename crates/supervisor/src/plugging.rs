//! Disks and network cards that come and go while a guest runs.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::broadcast::Receiver;
use tokio::time::timeout;

use crate::command::State;
use crate::definition::{Disk, Name, Network};
use crate::error::Refusal;
use crate::part::Part;
use crate::supervisor::House;

/// How long a machine has for its first answer.
const ANSWER: Duration = Duration::from_secs(10);
/// How long a guest has for releasing a card.
const RELEASE: Duration = Duration::from_secs(2);

/// Plugs a disk, to which the machine has the right, into the machine if it runs.
pub(crate) async fn plug(house: &House, machine: &Name, disk: &Disk) -> Result<(), Refusal> {
    let part = house.part(machine)?;
    if !has_process(&part).await || !disk.properties.is_empty() {
        return Ok(());
    }
    let (socket, id) = (house.place.part(machine).disk(disk), disk.id());
    let node = json!({
        "driver": "virtio-blk-vhost-user",
        "node-name": id,
        "path": socket,
        "read-only": !disk.is_writable,
    });
    let card = json!({ "driver": "virtio-blk-pci", "id": id, "drive": id });
    let undo = ("blockdev-del", json!({ "node-name": id }));
    put_in(&part, ("blockdev-add", node), card, undo).await
}

/// Adds what is behind a card, and then the card; without it, the former is removed by `undo`.
async fn put_in(
    part: &Part,
    (add, behind): (&'static str, Value),
    card: Value,
    (undo, arguments): (&'static str, Value),
) -> Result<(), Refusal> {
    part.ask(add, behind).await?;
    let plugged = part.ask("device_add", card).await;
    if plugged.is_err() {
        let _ = part.ask(undo, arguments).await;
    }
    plugged.map(|_| ())
}

/// Asks the guest for a card. Returns whether it has released it in time.
async fn gives_up(house: &House, part: &Part, id: &str) -> Result<bool, Refusal> {
    let events = house.events();
    part.ask("device_del", json!({ "id": id })).await?;
    Ok(timeout(RELEASE, released(events, &part.name, id)).await.is_ok())
}

/// Takes a disk out of the machine, if it runs, and the right away.
pub(crate) async fn unplug(house: &House, machine: &Name, disk: &Disk) -> Result<(), Refusal> {
    let (part, id) = (house.part(machine)?, disk.id());
    // A machine has no card of this name if the disk is not on virtio; it loses the disk all the same.
    if has_process(&part).await && matches!(gives_up(house, &part, &id).await, Ok(true)) {
        // Disks of the machine's command line are not nodes.
        let _ = part.ask("blockdev-del", json!({ "node-name": id })).await;
    }
    let right = json!({ "client": machine, "device": disk.device });
    house.part(&disk.server)?.ask("revoke", right).await.map(|_| ())
}

/// Plugs a card into the machine, if it runs.
pub(crate) async fn connect(
    house: &House,
    machine: &Name,
    network: &Network,
) -> Result<(), Refusal> {
    let part = house.part(machine)?;
    if !has_process(&part).await || !network.properties.is_empty() {
        return Ok(());
    }
    let (path, id) = (house.place.part(&network.switch).network(), network.id());
    let netdev = json!({ "type": "switch", "id": id, "path": path, "start": false });
    let card = json!({ "driver": "virtio-net-pci", "id": id, "netdev": id });
    put_in(&part, ("netdev_add", netdev), card, ("netdev_del", json!({ "id": id }))).await
}

/// Takes a card out of the machine, if it runs.
pub(crate) async fn disconnect(
    house: &House,
    machine: &Name,
    network: &Network,
) -> Result<(), Refusal> {
    let (part, id) = (house.part(machine)?, network.id());
    if !has_process(&part).await {
        return Ok(());
    }
    if gives_up(house, &part, &id).await? {
        // Networks of the machine's command line are forgotten with their cards.
        let _ = part.ask("netdev_del", json!({ "id": id })).await;
        return Ok(());
    }
    // The guest loses the network all the same.
    part.ask("set_link", json!({ "name": id, "up": false })).await.map(|_| ())
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

/// Returns whether the machine has a process that obeys. One that has not answered yet, as after a supervisor has taken it
/// over, has a moment for that.
async fn has_process(part: &Part) -> bool {
    let comes = part.reaches(|state| !matches!(state, State::Waiting | State::Starting));
    let _ = timeout(ANSWER, comes).await;
    matches!(part.state(), State::Running | State::Paused)
}
