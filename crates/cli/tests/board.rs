//! What Debian's kernel finds on the board.

mod support;

use serde_json::json;
use support::Directory;
use support::guest::{Guest, PROMPT, file};
use support::qmp::Qmp;

/// The mouse is one of the devices of ACPI, without which Linux does not look for it behind its controller.
#[test]
fn debian_finds_the_mouse_and_sees_it_move() {
    let directory = Directory::new();
    let socket = directory.path("qmp");
    let initrds = ["initramfs.cpio.gz", "modules.cpio.gz"].map(file);
    let mut guest = Guest::start(|command| {
        command.args(["--append", "console=ttyS0"]);
        command.arg("--kernel").arg(file("linux-686/vmlinuz"));
        for initrd in initrds {
            command.arg("--initrd").arg(initrd);
        }
        command.arg(format!("--qmp=unix:{}", socket.display()));
    });
    guest.wait_for(PROMPT);
    guest.command("dmesg -n 1");
    guest.command("modprobe psmouse");
    // The mouse is looked for in the background.
    let devices = guest.command(
        "for i in $(seq 100); do grep -q 'Handlers=.*mouse' /proc/bus/input/devices && break; sleep 0.1; done; \
         cat /proc/bus/input/devices",
    );
    assert!(devices.contains("Mouse"), "{devices}");

    // What /dev/input/mice tells is a packet of the PS/2 mouse: buttons, and how far it went to the right and up.
    guest.begin("dd if=/dev/input/mice bs=3 count=1 2>/dev/null | od -t d1 -A n");
    let mut qmp = Qmp::connect(&socket);
    let moves = [("x", 7), ("y", -5)]
        .map(|(axis, value)| json!({"type": "rel", "data": {"axis": axis, "value": value}}));
    qmp.done("input-send-event", json!({"events": moves}));
    let moved = guest.end();
    let moved: Vec<_> = moved.split_whitespace().collect();
    assert_eq!(moved[1..], ["7", "5"], "{moved:?}");
    assert_eq!(guest.power_off(), Some(0));
}
